"""Carries out the plan: each fault at its time, in a thread of its own, so that faults overlap.

A fault strikes one place of the fleet, or the server, at a time: one that comes while its target is struck moves to
another worker, or waits for a while, and is left out if that was in vain. What was really done, and when, is the fault
log.
"""

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from tests.soak import strikes
from tests.soak.fleet import Fleet, Slot, WorkerSlot
from tests.soak.plan import Fault, Plan
from tests.soak.server import Server
from tests.soak.strikes import Field

PATIENCE_S: Final = 8.0


@dataclass
class Struck:
    """A fault as it happened. Times are of this machine's clock."""

    kind: str
    target: str
    began: float
    ended: float = 0.0
    solo: bool = False
    worker_id: str | None = None
    pids: list[int] = field(default_factory=list[int])
    """Children of the worker that was struck."""
    detail: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str | None = None


class Nemesis(threading.Thread):
    def __init__(self, plan: Plan, fleet: Fleet, server: Server, folder: Path, older: Sequence[Path]) -> None:
        super().__init__(name="nemesis", daemon=True)
        self._plan, self._fleet = plan, fleet
        self._field = Field(fleet, server, older)
        self._server_lock = threading.Lock()
        self._log = folder / "faults.jsonl"
        self._write = threading.Lock()
        self._over = threading.Event()
        self.struck: list[Struck] = []
        self.began = 0.0

    def run(self) -> None:
        self.began = time.time()
        threads: list[threading.Thread] = []
        for fault in self._plan.faults:
            if self._over.wait(max(0.0, self.began + fault.at - time.time())):
                break
            thread = threading.Thread(target=self._strike, args=(fault,), daemon=True)
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()

    def stop(self) -> None:
        self._over.set()

    def _strike(self, fault: Fault) -> None:
        target: Slot | None = None
        lock = self._server_lock
        if fault.kind in strikes.OF_WORKER:
            target = self._free_worker(fault)
            if target is None:
                return self._note(Struck(fault.kind, "-", time.time(), time.time(), error="every target is struck"))
            lock = target.lock
        elif fault.kind in strikes.WITHOUT_TARGET:
            lock = threading.Lock()
            lock.acquire()
        elif not lock.acquire(timeout=PATIENCE_S):
            return self._note(Struck(fault.kind, "server", time.time(), time.time(), error="the server is struck"))
        struck = Struck(fault.kind, target.name if target else "server", time.time(), solo=fault.solo)
        try:
            if isinstance(target, WorkerSlot) and target.process.is_running:
                struck.worker_id = next(reversed(target.worker_ids), None)
                struck.pids = target.pids()
            work: Callable[[Field, Fault, Any], dict[str, Any] | None] = strikes.STRIKES[fault.kind]
            struck.detail = work(self._field, fault, target) or {}
        except Exception as error:  # the judge tells it
            struck.error = f"{type(error).__name__}: {str(error)[:500]}"
        finally:
            # what was killed is started again as part of the fault; the fault itself was over before
            struck.ended = struck.detail.pop("ended", time.time())
            lock.release()
        return self._note(struck)

    def _free_worker(self, fault: Fault) -> Slot | None:
        workers = self._fleet.workers
        first = len(workers) - 1 if fault.kind == "blackhole" else fault.target
        count = 1 if fault.kind == "blackhole" else len(workers)
        for step in range(count):
            slot = workers[(first + step) % len(workers)]
            if slot.lock.acquire(blocking=False):
                return slot
        return workers[first] if workers[first].lock.acquire(timeout=PATIENCE_S) else None

    def _note(self, struck: Struck) -> None:
        with self._write:
            self.struck.append(struck)
            with self._log.open("a") as file:
                file.write(json.dumps(asdict(struck)) + "\n")
