"""How long a stop may take: `shutdown_timeout` bounds all of it, whatever the database does."""

import re
import signal
import time
from pathlib import Path

import pytest

from horsies import TaskStatus
from horsies_worker.exit_codes import ExitCode
from tests.support.chaosproxy import ChaosProxy, Mode
from tests.support.postgres import Database
from tests.support.scheduler_app import start_scheduler
from tests.support.waiting import eventually
from tests.support.workers import Chaos, WorkerProcess, check_invariants, ended, tasks_on, worker

SLACK_S = 6.0
"""For a busy machine. Without a bound these stops take 15 s, 46 s or for ever."""


def left_within(process: WorkerProcess, seconds: float) -> int:
    began = time.monotonic()
    code = process.wait(seconds + SLACK_S)
    assert time.monotonic() - began < seconds + SLACK_S
    return code


@pytest.mark.parametrize("mode", [Mode.DROP, Mode.CUT])
def test_a_stop_that_meets_a_transaction_on_a_lost_connection(db: Database, tmp_path: Path, mode: Mode) -> None:
    """The reaper is inside its transaction when its connection dies, or falls silent, and the worker is told to leave.
    Its rollback must neither replace the cancellation nor be waited for."""
    point = tmp_path / "in_sweep"
    with (
        ChaosProxy(db.url) as proxy,
        worker(proxy.url, "--shutdown-timeout=5", folder=tmp_path, sync_points={"in_sweep": point}) as leaving,
    ):
        eventually(point.exists)
        proxy.set(mode)
        leaving.terminate()
        assert left_within(leaving, 5) == 0
    check_invariants(db)


def test_a_second_signal_ends_a_stop_on_a_silent_connection(db: Database, tmp_path: Path) -> None:
    """A result that cannot be written, a claim without an answer, a transaction: all of it ends two seconds later."""
    chaos = Chaos(db, tmp_path)
    point = tmp_path / "in_sweep"
    with ChaosProxy(db.url) as proxy, tasks_on(db) as tasks:
        points = {"in_sweep": point}
        with worker(proxy.url, "--shutdown-timeout=120", folder=tmp_path, sync_points=points) as leaving:
            (once,) = chaos.send(tasks.chaos, 1, 60.0)
            eventually(lambda: chaos.starts(once) == 1)
            eventually(point.exists)
            proxy.set(Mode.DROP)
            leaving.terminate()
            leaving.wait_for_log("stopping")
            leaving.signal(signal.SIGINT)
            assert left_within(leaving, 2) == ExitCode.DATABASE
            assert "1 result could not be written" in leaving.log


@pytest.mark.parametrize(("timeout", "drain_s"), [(0, 0), (1, 0.5), (5, 3)])
def test_running_tasks_and_last_writes_share_the_timeout(
    db: Database, tmp_path: Path, timeout: int, drain_s: float
) -> None:
    """A task that will not end is interrupted in time for its end to be written, however short the timeout is."""
    chaos = Chaos(db, tmp_path)
    with tasks_on(db) as tasks, worker(db, f"--shutdown-timeout={timeout}", folder=tmp_path) as leaving:
        (once,) = chaos.send(tasks.chaos, 1, 60.0)
        eventually(lambda: chaos.starts(once) == 1)
        before = db.value("SELECT clock_timestamp()")
        leaving.terminate()
        assert left_within(leaving, max(1, timeout)) == 0
        assert leaving.log.rstrip().endswith("has stopped")
        info = once.info()
        ended_at = db.value("SELECT finished_at FROM horsies_task_attempts WHERE task_id = %s", once.task_id)
        assert (ended_at - before).total_seconds() >= drain_s, "it had all the time that the log promised"
        (promised,) = re.findall(r"running tasks have (\S+) s", leaving.log)
        assert float(promised) == pytest.approx(drain_s, abs=0.3), "less what passed since the signal"
        assert (info.status, info.error_code) == (TaskStatus.FAILED, "WORKER_CRASHED")
        assert "interrupted by shutdown" in info.failed_reason


def test_a_result_that_cannot_be_written_is_given_up_in_time(db: Database, tmp_path: Path) -> None:
    chaos = Chaos(db, tmp_path)
    with (
        ChaosProxy(db.url) as proxy,
        tasks_on(db) as tasks,
        worker(proxy.url, "--shutdown-timeout=4", folder=tmp_path) as leaving,
    ):
        (once,) = chaos.send(tasks.chaos, 1, 60.0)
        eventually(lambda: chaos.starts(once) == 1)
        proxy.set(Mode.DROP)
        leaving.terminate()
        assert left_within(leaving, 4) == ExitCode.DATABASE
        assert "1 result could not be written" in leaving.log


@pytest.mark.parametrize("timeout", [0, 4])
@pytest.mark.parametrize("busy", [False, True])
def test_a_stopped_template_does_not_hold_up_the_stop(db: Database, tmp_path: Path, timeout: int, busy: bool) -> None:
    """It reports the ends of the children to the worker, and now reports nothing."""
    chaos = Chaos(db, tmp_path)
    with tasks_on(db) as tasks, worker(db, f"--shutdown-timeout={timeout}", folder=tmp_path) as leaving:
        running = chaos.send(tasks.chaos, 1, 60.0) if busy else []
        eventually(lambda: all(chaos.starts(one) == 1 for one in running))
        (template,) = (process for process in leaving.offspring() if process.ppid() == leaving.pid)
        template.suspend()
        eventually(lambda: template.status() == "stopped")
        leaving.terminate()
        assert left_within(leaving, max(1, timeout)) == 0
        assert "could not be written" not in leaving.log
        for one in running:
            assert "interrupted by shutdown" in one.info().failed_reason
        assert db.value("SELECT stopped_at IS NOT NULL FROM horsies_worker_instances")
        eventually(lambda: not template.is_running() or template.status() == "zombie")
    check_invariants(db)


def test_a_scheduler_inside_its_transaction(db: Database, tmp_path: Path) -> None:
    point = tmp_path / "before_fire"
    with ChaosProxy(db.url) as proxy:
        process = start_scheduler(proxy.url, {"s": 1}, tmp_path, sync_points={"before_fire": point})
        with ended(process):
            eventually(point.exists)
            proxy.set(Mode.DROP)
            process.terminate()
            assert left_within(process, 5) == 0
