# pyright: strict
"""Batch tasks: a send takes one item of the list that the function takes. Read by pyright and mypy, never run."""

from collections.abc import Sequence
from typing import Any, assert_type

from horsies import (
    AsyncBatchTaskFunction,
    BatchCall,
    BatchTaskFunction,
    TaskError,
    TaskHandle,
    TaskResult,
    current_call,
    testing,
)
from tests.typing.tasks import Order, app


@app.batch_task("index_orders", max_size=100, max_wait_ms=50, group_by=lambda order: order.number)
def index_orders(orders: list[Order]) -> list[TaskResult[int, TaskError]]:
    assert_type(current_call(), BatchCall)
    return [TaskResult(ok=order.number) for order in orders]


@app.batch_task("fetch_pages")
async def fetch_pages(urls: Sequence[str]) -> Sequence[TaskResult[bytes, TaskError]]:
    return [TaskResult(ok=url.encode()) for url in urls]


assert_type(index_orders, BatchTaskFunction[Order, int])
assert_type(fetch_pages, AsyncBatchTaskFunction[str, bytes])
assert_type(index_orders.send(Order(1)), TaskHandle[int])
assert_type(index_orders.with_options(delay=5).send(Order(1)), TaskHandle[int])
assert_type(index_orders.send_many([index_orders.call(Order(1)), (Order(2),)]), list[TaskHandle[int]])
assert_type(index_orders([Order(1)]), Sequence[TaskResult[int, TaskError]])
assert_type(testing.run(index_orders, Order(1)), TaskResult[int, TaskError])
index_orders.send("one")  # type: ignore[arg-type]
index_orders.send([Order(1)])  # type: ignore[arg-type]
index_orders.send()  # type: ignore[call-arg]
index_orders.send(Order(1), Order(2))  # type: ignore[call-arg]
fetch_pages.send(7)  # type: ignore[arg-type]


async def called_directly() -> None:
    assert_type(await fetch_pages(["a"]), Sequence[TaskResult[bytes, TaskError]])
    assert_type(await fetch_pages.send_async("a"), TaskHandle[bytes])


def in_a_workflow(orders: Any) -> None:
    node = index_orders.node()(Order(1))
    assert_type(app.workflow("one", [node], output=node).start().get().ok_value, int)


@app.batch_task("no_list")  # type: ignore[arg-type]
def no_list(order: Order) -> list[TaskResult[int, TaskError]]:
    return []


@app.batch_task("no_list_of_results")  # type: ignore[arg-type]
def no_list_of_results(orders: list[Order]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=1)
