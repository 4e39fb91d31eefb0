# pyright: strict
"""Waits, branches, continuations and compensations are typed: a wrong signal or compensation is a type error."""

from datetime import timedelta
from typing import assert_type

from horsies import (
    Continue,
    MapNode,
    MapWorkflowNode,
    SignalNode,
    SignalReceipt,
    SleepNode,
    TaskError,
    TaskNode,
    TaskResult,
    WorkflowSpec,
    either,
    from_node,
    map_workflow,
    sleep,
    wait_for_signal,
)
from tests.typing.tasks import app


@app.task("is_large")
def is_large(amount: int) -> TaskResult[bool, TaskError]:
    return TaskResult(ok=amount > 100)


@app.task("charge")
def charge(amount: int, *, currency: str = "EUR") -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{amount} {currency}")


@app.task("refund")
def refund(receipt: str, amount: int, reason: str = "") -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@app.task("forget")
def forget(number: int) -> TaskResult[None, TaskError]:
    return TaskResult(ok=None)


@app.task("amounts")
def amounts() -> TaskResult[list[int], TaskError]:
    return TaskResult(ok=[1])


@app.task("failures")
def failures(results: list[TaskResult[str, TaskError]]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=sum(result.is_err() for result in results))


def poll(attempt: int) -> WorkflowSpec[int]:
    pause = sleep(timedelta(seconds=attempt))
    again = look.node(waits_for=[pause])(attempt + 1)
    return app.workflow("poll", [pause, again], output=again)


@app.task("look")
def look(attempt: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=attempt) if attempt > 3 else Continue(poll(attempt))


@app.task("look_wrong")
def look_wrong(attempt: int) -> TaskResult[str, TaskError]:
    return Continue(poll(attempt))  # type: ignore[arg-type]


approved = wait_for_signal("approve", bool, timeout=60)
assert_type(approved, SignalNode[bool])
assert_type(from_node(approved), bool)
assert_type(sleep(5), SleepNode)
paid = charge.node(when=approved, compensate=refund)(5)
assert_type(paid, TaskNode[str])
later = charge.node(unless=approved)(6)
assert_type(either(paid, later), str)
count = is_large.node()(5)
charge.node(when=paid)(5)  # type: ignore[arg-type]
charge.node(compensate=forget)(5)  # type: ignore[arg-type]
is_large.node()(either(paid, later))  # type: ignore[arg-type]

many = amounts.node()()
assert_type(charge.node().map_partial(many), MapNode[int, list[TaskResult[str, TaskError]]])
failed = failures.node()(from_node(charge.node().map_partial(many)))


def one(amount: int) -> WorkflowSpec[str]:
    node = charge.node()(amount)
    return app.workflow("one", [node], output=node)


def one_text(text: str) -> WorkflowSpec[str]:
    raise NotImplementedError


assert_type(map_workflow(many, one), MapWorkflowNode[list[str]])
assert_type(map_workflow(many, one, partial=True), MapWorkflowNode[list[TaskResult[str, TaskError]]])
map_workflow(many, one_text)  # type: ignore[arg-type]

spec = app.workflow("order", [approved, paid, later], output=paid)
handle = spec.start(deadline=timedelta(days=1), start_at=5.0, unique_key="order-1", priority=3)
assert_type(handle.signal(approved, True), SignalReceipt)
assert_type(handle.signal("approve", True, signal_id="webhook-1"), SignalReceipt)
handle.signal(approved, "yes")  # type: ignore[misc]
assert_type(handle.result_for(paid), TaskResult[str, TaskError])
handle.retry("orders/item[3]", deadline=60)
