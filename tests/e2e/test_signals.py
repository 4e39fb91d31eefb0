"""What each signal does to a worker: the table of docs/guides/workers.md."""

import json
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from horsies import TaskStatus
from tests.support.postgres import Database
from tests.support.scheduler_app import scheduler
from tests.support.waiting import eventually
from tests.support.worker_app import VARIABLE
from tests.support.workers import APP, Chaos, WorkerProcess, describe, ended, start_worker, tasks_on, worker

IGNORING = ("sh", "-c", 'trap "" $1; shift; exec "$@"', "sh")
"""Runs a command with the named signals ignored."""


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


@pytest.mark.parametrize("style", ["text", "json"])
def test_sigusr1_tells_what_each_child_does(db: Database, tmp_path: Path, style: str) -> None:
    with (
        tasks_on(db) as tasks,
        worker(db, f"--log-format={style}", processes=2, folder=tmp_path) as process,
    ):
        sync, asynchronous, in_c = tasks.sleep.send(60), tasks.nap.send(60), tasks.in_c.send(60)
        handles = (sync, asynchronous, in_c)
        expected = [
            "SIGUSR1: the stacks of this process",
            *(f"task {name} {handle.task_id} attempt 1: running for "
              for name, handle in zip(("sleep", "nap", "in_c"), handles, strict=True)),
            "time.sleep(seconds)", "in in_c",
        ]  # fmt: skip

        def is_told() -> bool:
            process.signal(signal.SIGUSR1)  # again, because a task may have begun only after the last one
            return all(text in process.log for text in expected)

        eventually(is_told, interval=0.5)
        log = process.log
        if style == "json":
            lines = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
            found = [line for line in lines if "task_ids" in line]
            assert {line["child_pid"] for line in found} == {child.pid for child in process.children()}
            assert {task_id for line in found for task_id in line["task_ids"]} == {one.task_id for one in handles}
        process.signal(signal.SIGQUIT)
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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGQUIT])
def test_signals_that_a_shell_ignores_for_its_background_jobs(db: Database, tmp_path: Path, number: int) -> None:
    """`horsies worker ... &` in a script starts with SIGINT and SIGQUIT ignored."""
    command = [*IGNORING, "INT QUIT USR1", sys.executable, "-m", "horsies_worker", APP, "--processes=1"]
    environment = {**os.environ, VARIABLE: json.dumps(describe(db)), "HORSIES_HEALTH_FILE": str(tmp_path / "health")}
    with ended(WorkerProcess(command, environment, tmp_path)) as process:
        process.wait_up()
        process.signal(signal.SIGUSR1)
        process.wait_for_log("SIGUSR1: the stacks of this process")
        (child, *_) = process.children()
        child.send_signal(signal.SIGUSR1)
        process.wait_for_log("(most recent call first)")
        process.signal(number)
        assert process.wait() == 0


def test_all_signals_at_once_with_a_fault_handler(db: Database, tmp_path: Path) -> None:
    """`faulthandler` gives the handlers a stack that is too small for six of them."""
    with worker(db, folder=tmp_path, environment={"PYTHONFAULTHANDLER": "1"}) as process:
        process.signal(signal.SIGSTOP)
        for name in ("TERM", "INT", "HUP", "QUIT", "USR1", "USR2"):
            process.signal(signal.Signals[f"SIG{name}"])
        process.signal(signal.SIGCONT)
        assert process.wait() == 0


def test_sighup_stays_ignored_under_nohup(db: Database, tmp_path: Path) -> None:
    """`horsies dev` passes it on like a worker: not at all."""
    command = [*IGNORING, "HUP", sys.executable, "-m", "horsies.cli", "dev", APP, "--no-reload", "--processes=1"]
    environment = {
        **os.environ, VARIABLE: json.dumps(describe(db)), "HORSIES_HEALTH_FILE": str(tmp_path / "health"),
        "HORSIES_DATABASE_URL": db.url,
    }  # fmt: skip
    with ended(WorkerProcess(command, environment, tmp_path)) as process:
        process.wait_up()
        process.signal(signal.SIGHUP)
        process.terminate()
        assert process.wait() == 0
        assert "hurried stop" not in process.log, "SIGTERM was the first signal that counted"


def started_with(db: Database, folder: Path, recipe: str = "", *, prefix: Sequence[str] = ()) -> WorkerProcess:
    """A worker whose app does this to signals while it is imported."""
    return start_worker(
        describe(db), folder, "--shutdown-timeout=4", app="tests.support.signal_app:app", processes=1,
        command=(*prefix, sys.executable, "-m", "horsies_worker"), HORSIES_TEST_SIGNALS=recipe,
    )  # fmt: skip


BLOCKING = (
    sys.executable, "-c",
    "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()); "
    "os.execv(sys.argv[1], sys.argv[1:])",
)  # fmt: skip
"""Runs a command with all signals blocked, as a supervisor does that waits for signals and forgets to unblock them."""


@pytest.mark.parametrize(("recipe", "prefix"), [("", BLOCKING), ("blocked", ()), ("child", ())])
def test_signals_that_others_have_blocked_or_ignored(
    db: Database, tmp_path: Path, recipe: str, prefix: Sequence[str]
) -> None:
    with tasks_on(db) as tasks, ended(started_with(db, tmp_path, recipe, prefix=prefix)) as process:
        process.wait_up()
        for _ in range(2):  # the template is told how a child has ended
            died = tasks.die.send(-3)
            assert died.get(20_000).err_value.error_code == "WORKER_CRASHED"
            assert "exited with code 3" in died.info().failed_reason
        assert "template process" not in process.log
        running = tasks.sleep.send(60)
        eventually(lambda: running.info().status is TaskStatus.RUNNING)
        running.cancel()
        assert running.get(20_000).err_value.error_code == "TASK_CANCELLED"
        assert len(process.children()) == 1
        process.terminate()
        assert process.wait() == 0


def test_an_app_that_wants_to_die_of_broken_pipes(db: Database, tmp_path: Path) -> None:
    """A lost connection of the worker, or of a child, is a broken pipe too."""
    with tasks_on(db) as tasks, ended(started_with(db, tmp_path, "pipe")) as process:
        process.wait_up()
        (child,) = process.children()
        for one in (*process.offspring(), process):
            (one.send_signal if isinstance(one, psutil.Process) else one.signal)(signal.SIGPIPE)
        assert tasks.sleep.send(0).get(20_000).ok == child.pid
        process.terminate()
        assert process.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGQUIT])
def test_a_scheduler_leaves_cleanly(db: Database, tmp_path: Path, number: int) -> None:
    with scheduler(db, {"s": 1}, tmp_path) as process:
        for harmless in (signal.SIGUSR1, signal.SIGUSR2):
            process.signal(harmless)
        process.wait_for_log("SIGUSR1: the stacks of this process")
        process.wait_for_log("SIGUSR2 has no meaning here")
        process.signal(number)
        assert process.wait() == 0
