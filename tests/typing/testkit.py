# pyright: strict
"""The testing kit knows the signature of a task: a wrong argument is refused before the test runs."""

from typing import Any, assert_type

from horsies import TaskError, TaskResult, testing, wait_for_signal
from horsies.testing import OneTask, Sends, SentSignal, SentTask, StartedWorkflow
from tests.typing.tasks import Order, app, fetch, receipt, resize, touch

order = Order(1)
approve = wait_for_signal("approve", int)

assert_type(testing.run(receipt, order), TaskResult[str, TaskError])
assert_type(testing.run(receipt, order, copy=True), TaskResult[str, TaskError])
assert_type(testing.run(fetch, "https://example.org"), TaskResult[bytes, TaskError])
assert_type(testing.run(touch), TaskResult[None, TaskError])
assert_type(testing.run_as(receipt, attempt=2)(order), TaskResult[str, TaskError])
third: OneTask[[], None] = testing.run_as(touch, attempt=3, metadata={"tenant": "acme"})

testing.run(receipt)  # type: ignore[call-arg]
testing.run(receipt, "order")  # type: ignore[arg-type]
testing.run_as(receipt, attempt=2)("order")  # type: ignore[arg-type]


async def awaited() -> None:
    assert_type(await testing.run_async(fetch, "https://example.org", tries=1), TaskResult[bytes, TaskError])
    assert_type(await third.run_async(), TaskResult[None, TaskError])


with testing.recorded(app) as sends:
    assert_type(sends, Sends)
    assert_type(sends.sent(), list[SentTask])
    assert_type(sends.sent(receipt, queue="default", where=lambda sent: sent.delay is None), list[SentTask])
    assert_type(sends.assert_sent(receipt), SentTask)
    assert_type(sends.assert_sent(receipt, order, copy=True), SentTask)
    assert_type(sends.assert_sent(resize, b"", width=3), SentTask)
    assert_type(sends.assert_sent("receipt", 1, any_name=2), SentTask)
    assert_type(sends.started("nightly"), list[StartedWorkflow])
    sends.refute_sent(touch)
    assert_type(sends.signalled(approve), list[SentSignal])
    assert_type(sends.assert_signalled(approve, 3), SentSignal)
    assert_type(sends.assert_signalled("approve", {"any": "value"}), SentSignal)
    sends.refute_signalled("approve")
    sends.assert_sent(receipt, "order")  # type: ignore[call-overload]

with testing.inline(app, raise_errors=True) as ran:
    assert_type(ran.sent(touch)[0].result, TaskResult[Any, TaskError] | None)
