"""Middleware in real workers: the order of its calls, and what becomes of an attempt when it misbehaves."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from horsies import TaskHandle, gather
from tests.support import postgres, seams_app, workers
from tests.support.apps import app_on
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import check_invariants, ended

LONG_MS = 20_000
BOTH = pytest.mark.parametrize("kind", ["", "_async"], ids=["sync", "async"])


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SimpleNamespace]:
    """One database with one worker of two children, and the tasks of an app without middleware that sends to it."""
    folder = tmp_path_factory.mktemp("seams")
    with postgres.database() as db:
        process = seams_app.start(db, folder)
        with ended(process):
            process.wait_up()
            workers.shared.add(process.pid)
            try:
                with seams_app.tasks_on(db) as tasks:
                    yield SimpleNamespace(db=db, process=process, tasks=tasks)
                check_invariants(db, async_tasks=seams_app.ASYNC_TASKS)
            finally:
                workers.shared.discard(process.pid)


@pytest.fixture
def tasks(shared: SimpleNamespace) -> SimpleNamespace:
    return shared.tasks


numbers = itertools.count()


class Noted:
    """A task that was sent with a file for notes."""

    def __init__(self, task: Any, *args: Any, folder: Path, **metadata: Any) -> None:
        self.path = folder / f"notes-{next(numbers)}"
        self.handle: TaskHandle[Any] = task.with_options(metadata={"note": str(self.path), **metadata}).send(*args)

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def all_lines(self) -> list[str]:
        """With those of on_attempt_end of both middlewares, which come after the result."""
        eventually(lambda: any(line.startswith("outer ends") for line in self.lines()))
        return self.lines()

    def error(self) -> tuple[str, str]:
        result = self.handle.get(LONG_MS)
        assert result.err is not None, result
        return str(result.err.error_code), result.err.message

    def traceback(self) -> str:
        result = self.handle.get(LONG_MS)
        assert result.err is not None
        return result.err.data["traceback"]


def sent(tasks: SimpleNamespace, name: str, *args: Any, folder: Path, **metadata: Any) -> Noted:
    return Noted(getattr(tasks, name), *args, folder=folder, **metadata)


@BOTH
def test_the_order_is_that_of_an_onion(tasks: SimpleNamespace, tmp_path: Path, kind: str) -> None:
    noted = sent(tasks, f"add{kind}", 1, 2, folder=tmp_path)
    assert noted.handle.get(LONG_MS).ok == 3
    assert noted.all_lines() == [
        "outer enters", "outer calls", "inner enters", "inner calls", "task runs", "inner has TaskResult(ok=3)",
        "inner leaves", "outer has TaskResult(ok=3)", "outer leaves", "inner ends ok TaskResult(ok=3) retry=False",
        "outer ends ok TaskResult(ok=3) retry=False",
    ]  # fmt: skip


@BOTH
def test_an_exception_passes_through_all_layers(tasks: SimpleNamespace, tmp_path: Path, kind: str) -> None:
    noted = sent(tasks, f"fail{kind}", "broken", folder=tmp_path)
    assert noted.error() == ("UNHANDLED_EXCEPTION", "LookupError: broken")
    assert noted.all_lines() == [
        "outer enters", "outer calls", "inner enters", "inner calls", "inner leaves by LookupError",
        "outer leaves by LookupError", "inner ends error LookupError retry=False",
        "outer ends error LookupError retry=False",
    ]  # fmt: skip
    # frames of the task and of middleware, which is user code, and none of the worker's own
    assert "horsies_worker" not in noted.traceback()
    assert "in fail" in noted.traceback()


def test_attempts_that_are_retried(tasks: SimpleNamespace, tmp_path: Path) -> None:
    noted = sent(tasks, "flaky", 2, folder=tmp_path)
    assert noted.handle.get(LONG_MS).ok == 2
    eventually(lambda: sum(line.startswith("outer ends") for line in noted.lines()) == 2)
    first, second = [line for line in noted.lines() if line.startswith("outer ends")]
    assert first.startswith("outer ends error")
    assert (first[-4:], second[-5:]) == ("True", "False")
    gives_up = sent(tasks, "flaky", 9, folder=tmp_path)
    assert gives_up.error()[0] == "SMTP_DOWN"
    eventually(lambda: sum(line.startswith("outer ends") for line in gives_up.lines()) == 3)
    ends = [line.rpartition("=")[2] for line in gives_up.lines() if line.startswith("outer ends")]
    assert ends == ["True", "True", "False"]


@BOTH
def test_arguments_that_do_not_fit_reach_the_last_hook_only(shared: SimpleNamespace, tmp_path: Path, kind: str) -> None:
    path = tmp_path / "notes"
    with app_on(shared.db) as stranger:
        handle = stranger.with_options(metadata={"note": str(path)}).send(f"add{kind}", a="text")
        assert str(handle.get(LONG_MS).err_value.error_code) == "WORKER_SERIALIZATION_ERROR"
    eventually(lambda: path.exists() and path.read_text().count("\n") == 2)
    assert path.read_text().splitlines()[1] == "outer ends error DecodeError retry=False"


# -- what middleware may do to a result ---------------------------------------------------------------


@BOTH
def test_replaced_results_pass_the_codec(tasks: SimpleNamespace, tmp_path: Path, kind: str) -> None:
    replaced = sent(tasks, f"add{kind}", 1, folder=tmp_path, mischief="replaces")
    by_error = sent(tasks, f"add{kind}", 1, folder=tmp_path, mischief="replaces by an error")
    by_text = sent(tasks, f"add{kind}", 1, folder=tmp_path, mischief="replaces by a text")
    nothing = sent(tasks, f"add{kind}", 1, folder=tmp_path, mischief="returns nothing")
    assert replaced.handle.get(LONG_MS).ok == 1_001
    assert by_error.error() == ("REPLACED", "by middleware")
    assert by_text.error()[0] == "RETURN_TYPE_MISMATCH"
    code, message = nothing.error()
    assert code == "UNHANDLED_EXCEPTION"
    assert re.fullmatch(r"TypeError: Mischief\.run_task(_async)? returned None: return what call.*", message)
    # the inner one saw the task's own result
    assert "inner has TaskResult(ok=1)" in replaced.lines()
    assert "outer has TaskResult(ok=1001)" in replaced.lines()
    assert any(line.startswith("outer ends error") for line in by_text.all_lines())


def test_an_exception_is_translated(tasks: SimpleNamespace, tmp_path: Path) -> None:
    noted = sent(tasks, "fail", "hidden", folder=tmp_path, mischief="translates")
    assert noted.error() == ("UNHANDLED_EXCEPTION", "PermissionError: translated")
    trace = noted.traceback()
    assert "LookupError: hidden" in trace
    assert "direct cause" in trace
    assert "around.py" not in trace
    assert "execute.py" not in trace


# -- middleware that fails ------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("mischief", "message"),
    [
        ("scope raises", "LookupError: no scope"),
        ("enter raises", "LookupError: at enter"),
        ("exit raises", "LookupError: at exit"),
        ("raises before", "LookupError: before"),
        ("raises after", "LookupError: after"),
        ("returns None", "TypeError: Mischief.scope returned None (NoneType): decorate it with @contextmanager"),
        ("not decorated", "TypeError: Mischief.scope returned "),
        ("never yields", "RuntimeError: Mischief.scope must yield exactly once: generator didn't yield"),
        ("yields twice", "RuntimeError: Mischief.scope must yield exactly once: generator didn't stop"),
    ],
)
def test_a_failing_middleware_fails_the_attempt(
    tasks: SimpleNamespace, tmp_path: Path, kind: str, mischief: str, message: str
) -> None:
    noted = sent(tasks, f"add{kind}", 1, folder=tmp_path, mischief=mischief)
    code, text = noted.error()
    assert code == "UNHANDLED_EXCEPTION"
    assert text.startswith(message)
    lines = noted.all_lines()
    ran = mischief in ("exit raises", "raises after", "yields twice")
    assert ("task runs" in lines) == ran
    assert any(line.startswith("outer leaves by ") for line in lines)  # the outer layers see it as any exception


@BOTH
def test_a_scope_that_swallows_is_named(tasks: SimpleNamespace, tmp_path: Path, kind: str) -> None:
    noted = sent(tasks, f"fail{kind}", "gone", folder=tmp_path, mischief="swallows")
    code, text = noted.error()
    assert code == "UNHANDLED_EXCEPTION"
    assert text.startswith("RuntimeError: Mischief.scope swallowed an exception")
    fine = sent(tasks, f"add{kind}", 1, folder=tmp_path, mischief="swallows")
    assert fine.handle.get(LONG_MS).ok == 1


@BOTH
def test_a_process_that_middleware_ends(tasks: SimpleNamespace, tmp_path: Path, kind: str) -> None:
    noted = sent(tasks, f"add{kind}", 1, folder=tmp_path, mischief="dies")
    assert noted.error()[0] == "WORKER_CRASHED"
    assert not any("ends" in line for line in noted.lines())  # no hook sees the end of its process
    assert sent(tasks, f"add{kind}", 1, folder=tmp_path).handle.get(LONG_MS).ok == 1


# -- stops ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "by"), [("sleep", "TaskStopped"), ("nap", "CancelledError")])
def test_a_timeout_passes_through(tasks: SimpleNamespace, tmp_path: Path, name: str, by: str) -> None:
    noted = sent(tasks, name, 60.0, folder=tmp_path)
    assert noted.error()[0] == "TASK_TIMEOUT"
    lines = noted.all_lines()
    assert f"inner leaves by {by}" in lines
    assert f"outer leaves by {by}" in lines
    assert f"outer ends timeout {by} retry=False" in lines
    assert ("stopped by timeout" in lines) == (name == "nap")


@pytest.mark.parametrize("mischief", ["hangs before", "hangs after"])
@pytest.mark.parametrize("name", ["sleep", "nap"])
def test_the_timeout_includes_middleware(tasks: SimpleNamespace, tmp_path: Path, name: str, mischief: str) -> None:
    noted = sent(tasks, name, 0.0, folder=tmp_path, mischief=mischief)
    assert noted.error()[0] == "TASK_TIMEOUT"
    assert any(line.startswith("outer ends timeout") for line in noted.all_lines())


@pytest.mark.parametrize(("name", "by"), [("wait", "TaskStopped"), ("wait_async", "CancelledError")])
def test_a_cancel_passes_through(tasks: SimpleNamespace, tmp_path: Path, name: str, by: str) -> None:
    noted = sent(tasks, name, folder=tmp_path)
    eventually(lambda: "task sleeps" in noted.lines())
    noted.handle.cancel()
    assert noted.error()[0] == "TASK_CANCELLED"
    lines = noted.all_lines()
    assert f"outer leaves by {by}" in lines
    assert f"outer ends cancelled {by} retry=False" in lines
    assert ("stopped by cancelled" in lines) == (name == "wait_async")


@pytest.mark.parametrize("name", ["sleep", "nap"])
def test_middleware_that_catches_a_stop(tasks: SimpleNamespace, tmp_path: Path, name: str) -> None:
    """An ok result stands, as if the task had ended in time; another exception is the stop's effect."""
    noted = sent(tasks, name, 60.0, folder=tmp_path, mischief="catches the stop")
    assert noted.handle.get(LONG_MS).ok == -1
    if name == "sleep":
        turned = sent(tasks, name, 60.0, folder=tmp_path, mischief="turns the stop")
        assert turned.error()[0] == "TASK_TIMEOUT"
    swallowed = sent(tasks, name, 60.0, folder=tmp_path, mischief="swallows")
    assert swallowed.error()[0] == "TASK_TIMEOUT"
    assert sent(tasks, "add", 1, folder=tmp_path).handle.get(LONG_MS).ok == 1


def test_a_shutdown_passes_through(db: Database, tmp_path: Path) -> None:
    process = seams_app.start(db, tmp_path, "--shutdown-timeout=5", processes=1)
    with ended(process), seams_app.tasks_on(db) as tasks:
        process.wait_up()
        both = [sent(tasks, name, folder=tmp_path) for name in ("wait", "wait_async")]
        eventually(lambda: all("task sleeps" in noted.lines() for noted in both))
        assert process.stop() == 0
        for noted, by in zip(both, ("TaskStopped", "CancelledError"), strict=True):
            assert noted.error()[0] == "WORKER_CRASHED"
            lines = noted.lines()
            assert f"outer leaves by {by}" in lines
            assert f"outer ends interrupted {by} retry=False" in lines
            assert ("stopped by shutdown" in lines) == (by == "CancelledError")


# -- the end of an attempt ----------------------------------------------------------------------------------


@pytest.mark.parametrize("at_end", ["raise", "exit"])
def test_hooks_at_the_end_are_contained(
    shared: SimpleNamespace, tasks: SimpleNamespace, tmp_path: Path, at_end: str
) -> None:
    several = [sent(tasks, name, 1, folder=tmp_path, at_end=at_end) for name in ("add", "add_async") * 3]
    for noted in several:
        assert noted.handle.get(LONG_MS).ok == 1
        assert any(line.startswith("outer ends ok") for line in noted.all_lines())
    shared.process.wait_for_log("Mischief.on_attempt_end failed; the task is not affected")
    threaded = sent(tasks, "add", 1, folder=tmp_path, at_end="thread")
    assert f"horsies-attempt-ends {threaded.handle.task_id}" in threaded.all_lines()


def test_slow_hooks_hold_up_neither_tasks_nor_the_exit(db: Database, tmp_path: Path) -> None:
    process = seams_app.start(db, tmp_path, "--shutdown-timeout=20", processes=1)
    with ended(process), seams_app.tasks_on(db) as tasks:
        process.wait_up()
        slow = sent(tasks, "add", 1, folder=tmp_path, at_end="slow")
        assert slow.handle.get(LONG_MS).ok == 1
        eventually(lambda: "slow" in slow.lines())  # for a minute
        # more than may wait for the hook
        handles = tasks.add.send_many([(k,) for k in range(1_100)])
        assert [result.ok for result in gather(handles, timeout_ms=LONG_MS)] == list(range(1_100))
        process.wait_for_log("on_attempt_end is too slow: 1 calls left out in this process so far")
        assert process.stop(15) == 0
        assert not any(line.startswith("outer ends") for line in slow.lines())


# -- definitions ---------------------------------------------------------------------------------------------


def test_middleware_for_one_kind_of_tasks_is_refused(db: Database, tmp_path: Path) -> None:
    process = seams_app.start(db, tmp_path, middleware=["only sync"])
    with ended(process):
        assert process.wait(40) == 3
    assert "OnlySync has run_task and not run_task_async" in process.log
    assert "use scope" in process.log
