# pyright: strict
"""Options of unique keys are those of tasks and of sends, and change nothing in the types."""

from datetime import timedelta
from typing import assert_type

from horsies import Horsies, TaskError, TaskHandle, TaskResult
from tests.typing.tasks import Order, app, receipt

SECOND = timedelta(seconds=1)


def define(app: Horsies) -> None:
    @app.task("page", unique_by_args=True, debounce=SECOND, max_wait=60 * SECOND)
    def page(number: int) -> TaskResult[str, TaskError]:
        return TaskResult(ok=str(number))

    @app.declare("bill", unique_for=60 * SECOND, group_by="number")
    def bill(number: int) -> TaskResult[None, TaskError]:
        raise NotImplementedError

    assert_type(page.send(1), TaskHandle[str])
    assert_type(bill.with_options(unique_key="k").send(1), TaskHandle[None])


assert_type(receipt.with_options(unique_key="k", unique_for=SECOND).send(Order(1)), TaskHandle[str])
assert_type(receipt.with_options(unique_key="k", on_conflict="replace").send(Order(1)), TaskHandle[str])
app.with_options(unique_key="k", debounce=SECOND, max_wait=SECOND).send("elsewhere")
