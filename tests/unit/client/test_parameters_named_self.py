"""A parameter of a task may be called `self`, and is given by name like any other."""

import asyncio
from typing import Any

from horsies import Horsies, TaskError, TaskResult, testing
from tests.support.apps import UNREACHABLE, app_on


def shift_of(app: Horsies) -> Any:
    @app.task("shift")
    def shift(n: int, self: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=n + self)

    return shift


def test_a_task_is_called_by_name() -> None:
    with app_on(UNREACHABLE) as app:
        shift = shift_of(app)
        with testing.recorded(app) as sends:
            shift.send(1, self=2)
            asyncio.run(shift.send_async(1, self=2))
            shift.with_options(priority=5).send(1, self=2)
            shift.schedule(1, 1, self=2)
            app.send_many([shift.call(1, self=2)])
            assert [sent.arguments for sent in sends.sent(shift)] == [{"n": 1, "self": 2}] * 5
        assert shift(1, self=2).ok == 3
        assert testing.run(shift, 1, self=2).ok == 3


def test_a_node_is_called_by_name() -> None:
    with app_on(UNREACHABLE) as app, testing.inline(app):
        shift = shift_of(app)

        @app.task("listed")
        def listed() -> TaskResult[list[int], TaskError]:
            return TaskResult(ok=[1, 2])

        items = listed.node()()
        mapped = shift.node(node_id="mapped").map(items, self=2)
        partial = shift.node(node_id="partial").map_partial(items, self=2)
        one = shift.node(node_id="one")(1, self=2)
        found = app.workflow("shifts", [items, mapped, partial, one]).start().results()
        assert (found["mapped"].ok, found["one"].ok) == ([3, 4], 3)
        assert len(found["partial"].ok_value) == 2
