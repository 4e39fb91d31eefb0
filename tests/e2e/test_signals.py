"""What each signal does to a worker: the table of docs/guides/workers.md."""

import signal
from pathlib import Path

import pytest

from horsies import TaskStatus
from tests.support.postgres import Database
from tests.support.scheduler_app import scheduler
from tests.support.waiting import eventually
from tests.support.workers import Chaos, tasks_on, worker


def test_an_idle_worker_outlives_signals_that_are_not_a_stop(db: Database, tmp_path: Path) -> None:
    with tasks_on(db) as tasks, worker(db, folder=tmp_path) as process:
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH, signal.SIGPIPE, signal.SIGURG, signal.SIGCONT):
            process.signal(number)
        process.wait_for_log("SIGUSR1: the stacks of this process")
        process.wait_for_log("claimer.py")  # threads and asyncio tasks
        process.wait_for_log("SIGUSR2 has no meaning here")
        assert tasks.add.send(1, 2).get(20_000).ok == 3
        # and in a child: where its task is
        (child, *_) = process.children()
        child.send_signal(signal.SIGUSR1)
        process.wait_for_log("(most recent call first)")
        assert tasks.add.send(1, 2).get(20_000).ok == 3
        assert child.is_running()
        process.signal(signal.SIGHUP)
        assert process.wait() == 0


def test_sigquit_does_not_wait_for_running_tasks(db: Database, tmp_path: Path) -> None:
    chaos = Chaos(db, tmp_path)
    with tasks_on(db) as tasks, worker(db, "--shutdown-timeout=120", folder=tmp_path) as leaving:
        (once,) = chaos.send(tasks.chaos, 1, 60.0)
        eventually(lambda: chaos.starts(once) == 1)
        leaving.signal(signal.SIGQUIT)
        assert leaving.wait(10) == 0
        info = once.info()
        assert (info.status, info.error_code) == (TaskStatus.FAILED, "WORKER_CRASHED")
        assert "interrupted by shutdown" in info.failed_reason


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
def test_a_scheduler_leaves_cleanly(db: Database, tmp_path: Path, number: int) -> None:
    with scheduler(db, {"s": 1}, tmp_path) as process:
        for harmless in (signal.SIGUSR1, signal.SIGUSR2):
            process.signal(harmless)
        process.wait_for_log("SIGUSR1: the stacks of this process")
        process.wait_for_log("SIGUSR2 has no meaning here")
        process.signal(number)
        assert process.wait() == 0
