"""A task that waits for another one is warned, once per process and task name."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from horsies import (
    Horsies,
    TaskError,
    TaskResult,
    as_completed,
    as_completed_async,
    gather,
    gather_async,
    testing,
)
from horsies.context import TaskContext, enter_task, leave_task
from horsies.ids import new_id
from tests.support.apps import UNREACHABLE, add_task, make_app


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="horsies")


@pytest.fixture
def outer() -> str:
    """A task's name that this process has not warned of."""
    return f"outer {new_id()}"


@pytest.fixture
def app() -> Iterator[Horsies]:
    with make_app(UNREACHABLE) as made:
        yield made


@contextmanager
def inside(name: str) -> Iterator[None]:
    """As a worker runs a task of this name."""
    context = TaskContext(
        task_id=new_id(), task_name=name, attempt=1, deadline=None, fencing_token=1,
    )  # fmt: skip
    token = enter_task(context)
    try:
        yield
    finally:
        leave_task(token)


async def _listed(handles: list[Any]) -> list[Any]:
    return [one async for one in as_completed_async(handles, timeout_ms=50)]


WAITS: dict[str, Callable[[Any], Any]] = {
    "get": lambda handle: handle.get(50),
    "get_async": lambda handle: asyncio.run(handle.get_async(50)),
    "gather": lambda handle: gather([handle], timeout_ms=50),
    "gather_async": lambda handle: asyncio.run(gather_async([handle], timeout_ms=50)),
    "as_completed": lambda handle: list(as_completed([handle], timeout_ms=50)),
    "as_completed_async": lambda handle: asyncio.run(_listed([handle])),
}


@pytest.mark.parametrize("verb", WAITS)
@pytest.mark.parametrize("is_workflow", [False, True])
def test_a_wait_inside_a_task_is_warned_of_once(
    app: Horsies, caplog: pytest.LogCaptureFixture, outer: str, verb: str, is_workflow: bool
) -> None:
    made: Any = app.workflow_handle(new_id()) if is_workflow else app.handle(new_id())
    WAITS[verb](made)
    assert "waits" not in caplog.text  # not in a task
    other = f"another {outer}"
    for name in (outer, outer, other):
        with inside(name):
            WAITS[verb](made)
    told = [record for record in caplog.records if "waits inside a worker" in record.getMessage()]
    assert [record.args[0] for record in told if isinstance(record.args, tuple)] == [outer, other]
    what = f"workflow {made.workflow_id}" if is_workflow else f"task {made.task_id}"
    assert told[0].getMessage() == (
        f"task {outer!r} waits inside a worker for the result of {what}: its slot stays occupied meanwhile, and once "
        "all slots wait, none is left to run what they wait for; make both nodes of a workflow, or return Continue"
    )
    assert (told[0].levelname, told[0].name) == ("WARNING", "horsies")


def test_a_look_is_no_wait(app: Horsies, caplog: pytest.LogCaptureFixture, outer: str) -> None:
    handle = app.handle(new_id())
    with inside(outer):
        assert handle.get(0).is_err()
        assert asyncio.run(handle.get_async(0)).is_err()
        assert gather([handle], timeout_ms=0)[0].is_err()
        assert list(as_completed([])) == gather([]) == []
    assert "waits" not in caplog.text


@pytest.mark.parametrize("verb", WAITS)
def test_a_result_that_the_handle_has_is_no_wait(
    app: Horsies, caplog: pytest.LogCaptureFixture, outer: str, verb: str
) -> None:
    add = add_task(app)
    with testing.inline(app):
        handle = add.send(1, 2)
        assert handle.get() == TaskResult(ok=3)
    with inside(outer):
        WAITS[verb](handle)
        assert handle.get() == TaskResult(ok=3)
    assert "waits" not in caplog.text


def test_inline_tests_are_not_warned(app: Horsies, caplog: pytest.LogCaptureFixture) -> None:
    add = add_task(app)

    @app.task("outer")
    def outer() -> TaskResult[int, TaskError]:
        (result,) = gather([add.send(1, 2)])
        assert add.send(1, 1).get() == TaskResult(ok=2)
        return result

    with testing.inline(app):
        assert outer.send().get() == TaskResult(ok=3)
    assert "waits" not in caplog.text
