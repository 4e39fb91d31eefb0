# pyright: strict
"""The signature of a task is the signature of its verbs, and a handle knows what the task returns."""

import asyncio
from collections.abc import Awaitable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from horsies import (
    CancelResult,
    TaskAttempt,
    TaskCall,
    TaskError,
    TaskHandle,
    TaskInfo,
    TaskResult,
    TaskSendError,
    as_completed,
    as_completed_async,
    gather,
    gather_async,
)
from tests.typing.tasks import Order, app, fetch, receipt, resize, total, touch, translate

order = Order(1)

# -- the plain verbs ------------------------------------------------------------------------------

assert_type(receipt.send(order), TaskHandle[str])
assert_type(receipt.send(order, copy=True), TaskHandle[str])
assert_type(receipt.send(order=order), TaskHandle[str])
assert_type(fetch.send("https://example.org"), TaskHandle[bytes])
assert_type(touch.send(), TaskHandle[None])
assert_type(total.send(1, 2.5, rate=3), TaskHandle[dict[str, float]])

assert_type(receipt.schedule(60, order), TaskHandle[str])
assert_type(receipt.schedule(0.5, order, copy=False), TaskHandle[str])
assert_type(receipt.schedule(timedelta(minutes=1), order), TaskHandle[str])
assert_type(receipt.schedule(datetime.now(UTC), order), TaskHandle[str])


async def asynchronous() -> None:
    assert_type(await receipt.send_async(order), TaskHandle[str])
    assert_type(await receipt.schedule_async(60, order, copy=True), TaskHandle[str])
    assert_type(await receipt.send_many_async([receipt.call(order)]), list[TaskHandle[str]])
    assert_type(await fetch.send_async("https://example.org", tries=1), TaskHandle[bytes])
    assert_type(await translate.send_async("horse", to="de"), TaskHandle[str | None])
    together = await asyncio.gather(receipt.send_async(order), fetch.send_async("https://example.org"))
    assert_type(together, tuple[TaskHandle[str], TaskHandle[bytes]])


# -- stubs ----------------------------------------------------------------------------------------

assert_type(resize.send(b"", 640), TaskHandle[list[int]])
assert_type(resize.send(b"", width=640), TaskHandle[list[int]])
assert_type(translate.send("horse", "de"), TaskHandle[str | None])
assert_type(translate.send("horse", "de").get().ok_value, str | None)

# -- many -----------------------------------------------------------------------------------------

assert_type(receipt.call(order, copy=True), TaskCall[str])
assert_type(receipt.send_many([receipt.call(order), receipt.call(order, copy=True)]), list[TaskHandle[str]])
assert_type(receipt.send_many(receipt.call(Order(n)) for n in range(10)), list[TaskHandle[str]])
assert_type(fetch.send_many([("https://example.org",), ("https://example.org", 2)]), list[TaskHandle[bytes]])
assert_type(fetch.send_many([{"url": "https://example.org"}]), list[TaskHandle[bytes]])
assert_type(translate.send_many([translate.call("a", "de"), ("b", "fr")]), list[TaskHandle[str | None]])

assert_type(app.send_many([receipt.call(order), receipt.with_options(priority=2).call(order)]), list[TaskHandle[str]])
several: list[TaskCall[str | bytes]] = [receipt.call(order), fetch.call("https://example.org")]
assert_type(app.send_many(several, connection=object()), list[TaskHandle[str | bytes]])
assert_type(app.send_many(translate.call(word, "de") for word in "ab"), list[TaskHandle[str | None]])


async def several_async() -> None:
    assert_type(await app.send_many_async(several), list[TaskHandle[str | bytes]])


# -- options --------------------------------------------------------------------------------------

late = receipt.with_options(priority=5, good_until=timedelta(hours=1), delay=10, unique_key="order-1")
assert_type(late.send(order, copy=True), TaskHandle[str])
assert_type(late.with_options(eta=datetime.now(UTC), connection=object()).schedule(1, order), TaskHandle[str])
assert_type(late.send_many([late.call(order)]), list[TaskHandle[str]])
assert_type(fetch.with_options(queue_name="default").send("https://example.org").get(), TaskResult[bytes, TaskError])
assert_type(resize.with_options(task_id="x").send(b"", 1), TaskHandle[list[int]])
kept = receipt.with_options(store_result=False, keep_for=timedelta(days=30))
assert_type(kept.send(order), TaskHandle[str])

# -- by name, and by id ---------------------------------------------------------------------------

assert_type(app.send("receipt", order=1), TaskHandle[Any])
assert_type(app.with_options(priority=1).send("receipt", 1), TaskHandle[Any])
assert_type(app.handle("0190"), TaskHandle[Any])
assert_type(app.handle("0190", receipt), TaskHandle[str])
assert_type(app.handle("0190", fetch), TaskHandle[bytes])
assert_type(app.handle("0190", resize), TaskHandle[list[int]])
assert_type(app.handle("0190", translate).get(), TaskResult[str | None, TaskError])
assert_type(app.handle("0190", late), TaskHandle[str])

# -- handles --------------------------------------------------------------------------------------

handle = receipt.send(order)
assert_type(handle.get(), TaskResult[str, TaskError])
assert_type(handle.get(timeout_ms=5_000), TaskResult[str, TaskError])
assert_type(handle.info(), TaskInfo | None)
assert_type(handle.attempts(), list[TaskAttempt])
assert_type(handle.cancel(), CancelResult)
assert_type(handle.task_id, str)
assert_type(handle.is_duplicate, bool)
assert_type(gather(receipt.send_many([(order,)]), timeout_ms=10), list[TaskResult[str, TaskError]])
mixed: list[TaskHandle[str | bytes]] = [receipt.send(order), fetch.send("a")]
assert_type(gather(mixed), list[TaskResult[str | bytes, TaskError]])
for ended, result in as_completed([handle], timeout_ms=10):
    assert_type(ended, TaskHandle[str])
    assert_type(result, TaskResult[str, TaskError])


async def waiting() -> None:
    assert_type(await handle.get_async(timeout_ms=5_000), TaskResult[str, TaskError])
    assert_type(await handle.cancel_async(), CancelResult)
    assert_type(await gather_async([handle]), list[TaskResult[str, TaskError]])
    async for ended, result in as_completed_async([handle]):
        assert_type(ended, TaskHandle[str])
        assert_type(result, TaskResult[str, TaskError])


def held(one: TaskHandle[bool]) -> TaskHandle[int]:
    return one  # a handle only yields its value, so one of a bool is one of an int


def sent(work: Coroutine[Any, Any, TaskHandle[str]]) -> Awaitable[TaskHandle[str]]:
    return work


sent(receipt.send_async(order))

try:
    receipt.send(order)
except TaskSendError as error:
    if error.retryable:
        error.retry()
    assert_type(error.task_id, str | None)

# -- what both checkers refuse --------------------------------------------------------------------

receipt.send(1)  # type: ignore[arg-type]
receipt.with_options(keep_for=30)  # type: ignore[arg-type]
receipt.with_options(store_result="no")  # type: ignore[arg-type]
app.task("x", keep_for=30)  # type: ignore[call-overload]
app.task("x", store_result="no")  # type: ignore[call-overload]
app.send_many([(order,)])  # type: ignore[arg-type]
app.send_many(receipt.call(order))  # type: ignore[arg-type]
receipt.send()  # type: ignore[call-arg]
receipt.send(order, True)  # type: ignore[call-arg]
receipt.send(order, copies=1)  # type: ignore[call-arg]
receipt.send(order, copy="yes")  # type: ignore[arg-type]
receipt.schedule(order)  # type: ignore[call-arg, arg-type]
receipt.schedule("soon", order)  # type: ignore[arg-type]
receipt.call(1)  # type: ignore[arg-type]
receipt.send_many([fetch.call("a")])  # type: ignore[list-item]
receipt.send_many([order])  # type: ignore[list-item]
receipt.with_options(priority="high")  # type: ignore[arg-type]
receipt.with_options(retries=1)  # type: ignore[call-arg]
late.send("order")  # type: ignore[arg-type]
resize.send(image=b"", width=1)  # type: ignore[call-arg]
fetch.send("a", "b")  # type: ignore[arg-type]
handle.get(timeout="5")  # type: ignore[call-arg]
wrong: TaskHandle[int] = receipt.send(order)  # type: ignore[assignment]
app.handle(1)  # type: ignore[call-overload]


async def also_refused() -> None:
    await receipt.send_async("order")  # type: ignore[arg-type]
    await fetch.schedule_async(1, 2)  # type: ignore[arg-type]
