"""The workflows of the soak: one of each kind, with the end that a run of it must have."""

import time
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

from horsies import (
    BatchSummary,
    Continue,
    Horsies,
    RetryPolicy,
    SuccessCase,
    SuccessPolicy,
    TaskError,
    TaskResult,
    WorkflowSpec,
    from_node,
    result_from,
    sleep,
    wait_for_signal,
)

Number = TaskResult[int, TaskError]
AGAIN = RetryPolicy.fixed(0.1, 50, auto_retry_for=["WORKER_CRASHED"])


class Batch(NamedTuple):
    """A batch of calls, which is started like a workflow."""

    app: Horsies
    calls: list[Any]
    then: Any

    async def start_async(self, *, workflow_id: str) -> Any:
        return await self.app.batch_async(self.calls, then=self.then, batch_id=workflow_id)


class Flow(NamedTuple):
    spec: WorkflowSpec[Any] | Batch
    status: str
    """How a run must end; a run that is cancelled may also have ended before."""
    value: int | None = None
    """What it must return."""
    undone: int = 0
    """How many compensations it must have."""


def register(app: Horsies) -> SimpleNamespace:
    common: dict[str, Any] = {"queue_name": "flows", "retry_policy": AGAIN}

    @app.task("number", **common)
    def number(n: int, seconds: float = 0.0) -> Number:
        time.sleep(seconds)
        return TaskResult(ok=n)

    @app.task("plus", **common)
    def plus(a: int, b: int) -> Number:
        return TaskResult(ok=a + b)

    @app.task("fails", **common)
    def fails(n: int = 0) -> Number:
        return TaskResult(err=TaskError("WANTED", "as the workflow wants it"))

    @app.task("count_ok", **common)
    def count_ok(a: Number, b: Number, c: Number) -> Number:
        return TaskResult(ok=100)

    @app.task("spread", **common)
    def spread(n: int) -> TaskResult[list[int], TaskError]:
        return TaskResult(ok=list(range(n)))

    @app.task("square", **common)
    def square(x: int) -> Number:
        return TaskResult(ok=x * x)

    @app.task("total", **common)
    def total(numbers: list[int]) -> Number:
        return TaskResult(ok=sum(numbers))

    @app.task("book", **common)
    def book(n: int) -> Number:
        return TaskResult(ok=n)

    @app.task("unbook", **common)
    def unbook(booking: int) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    @app.task("tally", **common)
    def tally(summary: BatchSummary) -> Number:
        return TaskResult(ok=summary.completed)

    @app.task("countdown", **common)
    def countdown(n: int, value: int) -> Number:
        if not n:
            return TaskResult(ok=value)
        again = countdown.node(node_id="again")(n - 1, value)
        return Continue(app.workflow("looping", [again], output=again))

    tasks = SimpleNamespace(**{name: task for name, task in locals().items() if name not in ("app", "common")})
    tasks.app = app
    return tasks


def diamond(t: SimpleNamespace, k: int) -> Flow:
    top = t.number.node(node_id="top")(k, 0.02)
    left = t.plus.node(node_id="left")(from_node(top), 1)
    right = t.plus.node(node_id="right")(from_node(top), 2)
    end = t.plus.node(node_id="end")(from_node(left), from_node(right))
    return Flow(t.app.workflow("diamond", [top, left, right, end], output=end), "COMPLETED", 2 * k + 3)


def first_of(t: SimpleNamespace, k: int) -> Flow:
    fast = t.number.node(node_id="fast")(1, 0.02)
    slow = t.number.node(node_id="slow")(2, 0.5)
    end = t.number.node(node_id="end", waits_for=[fast, slow], join="any")(k)
    return Flow(t.app.workflow("first_of", [fast, slow, end], output=end), "COMPLETED", k)


def quorum(t: SimpleNamespace, k: int) -> Flow:
    branches = [t.number.node(node_id="a")(k, 0.02), t.number.node(node_id="b")(k, 0.1), t.fails.node(node_id="c")(k)]
    end = t.count_ok.node(node_id="end", join="quorum", min_success=2)(*map(result_from, branches))
    policy = SuccessPolicy([SuccessCase([end])])
    return Flow(t.app.workflow("quorum", [*branches, end], output=end, success_policy=policy), "COMPLETED", 100)


def nested(t: SimpleNamespace, k: int) -> Flow:
    one, two = t.number.node(node_id="one")(k), t.number.node(node_id="two")(k, 0.1)
    both = t.plus.node(node_id="both")(from_node(one), from_node(two))
    inner = t.app.workflow("inner", [one, two, both], output=both).node(node_id="inner")
    end = t.plus.node(node_id="end")(from_node(inner), 1)
    return Flow(t.app.workflow("nested", [inner, end], output=end), "COMPLETED", 2 * k + 1)


def mapped(t: SimpleNamespace, k: int) -> Flow:
    n = 3 + k % 5
    items = t.spread.node(node_id="items")(n)
    squares = t.square.node(node_id="squares").map(items_from=items)
    end = t.total.node(node_id="end")(from_node(squares))
    return Flow(t.app.workflow("mapped", [items, squares, end], output=end), "COMPLETED", sum(x * x for x in range(n)))


def signalled(t: SimpleNamespace, k: int) -> Flow:
    first = t.number.node(node_id="first")(k)
    answer = wait_for_signal("answer", int, waits_for=[first])
    end = t.plus.node(node_id="end")(from_node(first), from_node(answer))
    return Flow(t.app.workflow("signalled", [first, answer, end], output=end), "COMPLETED", 2 * k)


def sleeping(t: SimpleNamespace, k: int) -> Flow:
    first = t.number.node(node_id="first")(k)
    wait = sleep(1.5, node_id="wait", waits_for=[first])
    end = t.number.node(node_id="end", waits_for=[wait])(k)
    return Flow(t.app.workflow("sleeping", [first, wait, end], output=end), "COMPLETED", k)


def saga(t: SimpleNamespace, k: int) -> Flow:
    hotel = t.book.node(node_id="hotel", compensate=t.unbook)(k)
    car = t.book.node(node_id="car", compensate=t.unbook, waits_for=[hotel])(k + 1)
    end = t.fails.node(node_id="end", waits_for=[car])(k)
    return Flow(t.app.workflow("saga", [hotel, car, end], output=end), "FAILED", undone=2)


def cancelled(t: SimpleNamespace, k: int) -> Flow:
    first = t.book.node(node_id="first", compensate=t.unbook)(k)
    wait = sleep(20, node_id="wait", waits_for=[first])
    end = t.number.node(node_id="end", waits_for=[wait])(k)
    return Flow(t.app.workflow("cancelled", [first, wait, end], output=end), "CANCELLED")


def dated(t: SimpleNamespace, k: int) -> Flow:
    first = t.number.node(node_id="first")(k)
    answer = wait_for_signal("never", int, waits_for=[first])
    end = t.plus.node(node_id="end")(from_node(first), from_node(answer))
    return Flow(t.app.workflow("dated", [first, answer, end], output=end), "FAILED")


def batched(t: SimpleNamespace, k: int) -> Flow:
    n = 2 + k % 6
    return Flow(Batch(t.app, [t.square.call(x) for x in range(n)], t.tally), "COMPLETED", n)


def looping(t: SimpleNamespace, k: int) -> Flow:
    first = t.countdown.node(node_id="again")(3, k)
    return Flow(t.app.workflow("looping", [first], output=first), "COMPLETED", k)


FLOWS: Mapping[str, Callable[[SimpleNamespace, int], Flow]] = {
    "diamond": diamond, "first_of": first_of, "quorum": quorum, "nested": nested, "mapped": mapped,
    "signalled": signalled, "sleeping": sleeping, "saga": saga, "cancelled": cancelled, "dated": dated,
    "batched": batched, "looping": looping,
}  # fmt: skip
