"""The processes of a run: workers behind a proxy each, schedulers and producers, started again when killed."""

import json
import os
import re
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil

from tests.soak import settings
from tests.soak.ledger import FOLDER_VARIABLE
from tests.soak.machine import ROOT, Namespace
from tests.support.chaosproxy import ChaosProxy
from tests.support.workers import WorkerProcess, start_worker

APP = "tests.soak.app:app"
_UP = re.compile(r"worker (\S+) is up")


class Slot:
    """One place of the fleet: its proxy stays, its process comes and goes."""

    def __init__(
        self, name: str, folder: Path, url: str, environment: dict[str, str], network: Namespace | None
    ) -> None:
        self.name = name
        self.folder = folder / name
        self.folder.mkdir()
        self.network = network
        self.proxy = ChaosProxy(url, host=network.host if network else "127.0.0.1")
        self.lock = threading.Lock()
        """Held while a fault strikes this place."""
        self.environment = environment
        self.processes: list[WorkerProcess] = []
        self.codes: list[int] = []

    @property
    def process(self) -> WorkerProcess:
        return self.processes[-1]

    @property
    def worker_ids(self) -> list[str]:
        """Of the process that runs now; a worker that was taken for dead goes on under another id."""
        return _UP.findall(self.process.log)

    def logs(self) -> str:
        return "".join(process.log for process in self.processes)

    def start(self, older: Sequence[Path] = ()) -> None:
        raise NotImplementedError

    def wait(self) -> None:
        """Of one that was told to leave."""
        try:
            self.codes.append(self.process.wait(40))
        except AssertionError:
            self.codes.append(-1)
            self.process.kill_all()


class WorkerSlot(Slot):
    def start(self, older: Sequence[Path] = ()) -> None:
        environment = dict(self.environment)
        if older:
            environment["PYTHONPATH"] = os.pathsep.join([*map(str, older), str(ROOT)])
        inside = self.network.command() if self.network else ()
        self.processes.append(
            start_worker(
                {"url": self.proxy.url}, self.folder, "--shutdown-timeout=25", app=APP, processes=settings.PROCESSES,
                command=(*inside, sys.executable, "-m", "horsies_worker"), **environment,
            )
        )  # fmt: skip

    def pids(self) -> list[int]:
        return [process.pid for process in self.process.children()]


class SchedulerSlot(Slot):
    def start(self, older: Sequence[Path] = ()) -> None:
        command = [sys.executable, "-m", "horsies.cli", "scheduler", APP, f"--health-file={self.folder / 'health'}"]
        variables = {"HORSIES_TEST_APP": json.dumps({"url": self.proxy.url}), **self.environment}
        self.processes.append(WorkerProcess(command, {**os.environ, **variables}, self.folder, cwd=ROOT))


class ProducerSlot(Slot):
    given: dict[str, Any]

    def start(self, older: Sequence[Path] = ()) -> None:
        given = json.dumps({**self.given, "url": self.proxy.url})
        command = [sys.executable, "-m", "tests.soak.producer", given]
        self.processes.append(WorkerProcess(command, {**os.environ, **self.environment}, self.folder, cwd=ROOT))


class Fleet:
    def __init__(
        self,
        stack: ExitStack,
        folder: Path,
        url: str,
        mark: str,
        seed: int,
        produce_s: float,
        network: Namespace | None,
    ) -> None:
        (folder / "ledger").mkdir()
        environment = {
            FOLDER_VARIABLE: str(folder / "ledger"), settings.MARK: mark, "PYTHONUNBUFFERED": "1",
        }  # fmt: skip
        last = settings.WORKERS - 1
        self.workers = [
            WorkerSlot(f"worker-{n}", folder, url, environment, network if n == last else None)
            for n in range(settings.WORKERS)
        ]
        self.schedulers = [
            SchedulerSlot(f"scheduler-{n}", folder, url, environment, None) for n in range(settings.SCHEDULERS)
        ]
        self.producers = [
            ProducerSlot(f"producer-{n}", folder, url, environment, None) for n in range(settings.PRODUCERS)
        ]
        for number, producer in enumerate(self.producers):
            producer.given = {
                "number": number, "seed": seed, "seconds": produce_s,
                "rate": settings.SENDS_PER_SECOND / settings.PRODUCERS,
            }  # fmt: skip
        for slot in self.all:
            stack.enter_context(slot.proxy)
        stack.callback(self.kill_all)

    @property
    def all(self) -> list[Slot]:
        return [*self.workers, *self.schedulers, *self.producers]

    def start(self) -> None:
        for slot in (*self.workers, *self.schedulers):
            slot.start()
        for slot in (*self.workers, *self.schedulers):
            slot.process.wait_up()

    def restart_ended(self) -> None:
        """Whatever faults have left dead or frozen."""
        for slot in (*self.workers, *self.schedulers):
            if not slot.process.is_running:
                slot.start()
                slot.process.wait_up()

    def stop(self) -> None:
        for slot in (*self.workers, *self.schedulers):
            slot.process.terminate()
        for slot in (*self.workers, *self.schedulers):
            slot.wait()

    def kill_all(self) -> None:
        for slot in self.all:
            for process in slot.processes[-1:]:
                if process.is_running:
                    process.kill_all()


def gone_after(pids: Sequence[psutil.Process], most_s: float) -> float | None:
    """Seconds until all of them have ended; None if one has not."""
    began = time.monotonic()
    while time.monotonic() < began + most_s:
        if not any(process.is_running() and process.status() != psutil.STATUS_ZOMBIE for process in pids):
            return time.monotonic() - began
        time.sleep(0.02)
    return None
