"""Tasks that snooze and tasks that crash, under real workers: what runs again, and what is quarantined."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from horsies import TaskStatus, gather, testing
from tests.support import ends_app
from tests.support.apps import UNREACHABLE, make_app
from tests.support.ends_app import APP, LIMIT
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.worker_app import build
from tests.support.workers import WorkerProcess, check_invariants, describe, ended, start_worker

SOON_MS = 60_000
POISONS = int(os.environ.get("HORSIES_POISONS", "1"))
WORKS = int(os.environ.get("HORSIES_POISON_WORKS", "12"))
WORK_S = float(os.environ.get("HORSIES_POISON_WORK_S", "0.2"))
"""`just bench-poison` sets these for the long forms."""
QUICK = {"recovery": {"worker_state_interval_ms": 1_000}}


@contextmanager
def tasks_on(db: Database, **config: Any) -> Iterator[SimpleNamespace]:
    with build(describe(db, **config)) as app:
        tasks = ends_app.register(app)
        tasks.app = app
        yield tasks


@contextmanager
def worker(db: Database, folder: Path, *arguments: str, **config: Any) -> Iterator[WorkerProcess]:
    with ended(start_worker(describe(db, **config), folder, *arguments, app=APP)) as process:
        process.wait_up()
        yield process


class Supervisor:
    """Starts the worker again whenever it has died."""

    def __init__(self, db: Database, folder: Path) -> None:
        self._start = lambda: start_worker(describe(db, **QUICK), folder, app=APP, processes=4)
        self.workers = [self._start()]

    def look(self) -> None:
        if not self.workers[-1].is_running:
            self.workers.append(self._start())

    @property
    def deaths(self) -> int:
        return len(self.workers) - 1


def test_snoozed_tasks_run_again(db: Database, tmp_path: Path) -> None:
    with tasks_on(db) as tasks:
        with worker(db, tmp_path, "--shutdown-timeout=3") as process:
            handles = [tasks.poll.send(2), tasks.poll_async.send(3), tasks.poll.send(0)]
            assert [one.unwrap() for one in gather(handles, timeout_ms=SOON_MS)] == [[1, 2], [1, 3], [1, 0]]
            process.wait_for_log("snoozed after", times=5)
            assert "(snooze 2)" in process.log
            assert " WARNING " not in "".join(line for line in process.log.splitlines() if "snooze" in line)
            assert [len(handle.attempts()) for handle in handles] == [1, 1, 1]
            assert [handle.info().snoozes for handle in handles] == [2, 3, 0]
            # what a shutdown interrupts may say that it wants to go on later
            trace = tmp_path / "trace"
            stopped = tasks.until_stopped.send(str(trace))
            eventually(trace.exists)
        assert stopped.info().status is TaskStatus.PENDING
        assert stopped.info().retry_count == 0
        with worker(db, tmp_path):
            assert stopped.get(timeout_ms=SOON_MS).unwrap() == 1
    check_invariants(db)

    imagined = make_app(UNREACHABLE)
    inline = ends_app.register(imagined)
    with testing.inline(imagined):
        assert [inline.poll.send(2).get().unwrap(), inline.poll_async.send(3).get().unwrap()] == [[1, 2], [1, 3]]


def test_a_task_that_kills_its_process_is_quarantined(db: Database, tmp_path: Path) -> None:
    with tasks_on(db) as tasks, worker(db, tmp_path) as process:
        poison = tasks.poison.send(whole_worker=False)
        works = [tasks.work.send(0.2) for _ in range(6)]
        error = poison.get(timeout_ms=SOON_MS).err_value
        assert error.error_code == "CRASH_LIMIT"
        assert f"died {LIMIT} times" in error.message
        assert "signal 9" in error.message
        assert [one.unwrap() for one in gather(works, timeout_ms=SOON_MS)] == [1] * 6, "in processes of their own"
        info = poison.info()
        assert (info.status, info.crash_count, info.retry_count, info.max_retries) == (
            TaskStatus.FAILED, LIMIT, LIMIT - 1, LIMIT - 1,
        )  # fmt: skip
        assert [(one.error_code, one.will_retry) for one in poison.attempts()] == [
            ("WORKER_CRASHED", number < LIMIT) for number in range(1, LIMIT + 1)
        ]
        process.wait_for_log(f"CRASH_LIMIT, its process has died {LIMIT} times")
        told = [line for line in process.log.splitlines() if poison.task_id in line and ": crashed after" in line]
        assert [", will be retried in" in line for line in told] == [number < LIMIT for number in range(1, LIMIT + 1)]
        assert " ERROR " in told[-1]
    check_invariants(db)


@pytest.mark.long
def test_a_task_that_kills_its_worker_is_quarantined_and_nothing_else_is_lost(db: Database, tmp_path: Path) -> None:
    with tasks_on(db, **QUICK) as tasks:
        works = [tasks.work.send(WORK_S) for _ in range(WORKS // 2)]
        poisons = [tasks.poison.send(whole_worker=True) for _ in range(POISONS)]
        works += [tasks.work.send(WORK_S) for _ in range(WORKS - len(works))]
        supervisor = Supervisor(db, tmp_path)
        began = time.monotonic()

        def all_ended() -> bool:
            supervisor.look()
            return not db.value("SELECT count(*) FROM horsies_tasks WHERE terminal_at IS NULL")

        try:
            eventually(all_ended, timeout=60 + 60 * POISONS, interval=0.1)
        finally:
            last = supervisor.workers[-1]
            if last.is_running:
                last.kill_all()
        took = time.monotonic() - began
        hit = sum(handle.info().crash_count > 0 for handle in works)
        sys.stdout.write(
            f"{POISONS} poison(s) killed {supervisor.deaths} workers; {WORKS} other tasks, {hit} of them hit at least "
            f"once; all ended after {took:.1f} s\n"
        )
        for poison in poisons:
            assert poison.get(timeout_ms=0).err_value.error_code == "CRASH_LIMIT"
            assert poison.info().crash_count == LIMIT
        assert supervisor.deaths <= LIMIT * POISONS
        results = gather(works, timeout_ms=0)
        assert [result for result in results if not result.is_ok()] == []
