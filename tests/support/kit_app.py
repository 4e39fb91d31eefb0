"""Workflows that wait, branch, continue and compensate, for the comparison of `testing.inline` with a real worker."""

import json
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

from horsies import (
    Continue,
    Horsies,
    RetryPolicy,
    TaskError,
    TaskResult,
    WorkflowSpec,
    current_task,
    either,
    from_node,
    map_workflow,
    result_from,
    sleep,
    snooze,
    wait_for_signal,
)
from tests.support.worker_app import VARIABLE, build

APP = "tests.support.kit_app:app"
Number = TaskResult[int, TaskError]
Text = TaskResult[str, TaskError]


def register(app: Horsies) -> SimpleNamespace:
    @app.task("number")
    def number(n: int) -> Number:
        return TaskResult(ok=n)

    @app.task("plus")
    def plus(a: int, b: int) -> Number:
        return TaskResult(ok=a + b)

    @app.task("fail")
    def fail(code: str = "BROKEN") -> Number:
        return TaskResult(err=TaskError(code, "as the test wanted"))

    @app.task("quiet", store_result=False, keep_for=timedelta(days=1))
    def quiet(n: int | None) -> TaskResult[int | None, TaskError]:
        return TaskResult(ok=n) if n != 13 else TaskResult(err=TaskError("UNLUCKY"))

    @app.task("is_large")
    def is_large(n: int) -> TaskResult[bool, TaskError]:
        return TaskResult(ok=n > 10)

    @app.task("spread")
    def spread(n: int) -> TaskResult[list[int], TaskError]:
        return TaskResult(ok=list(range(n)))

    @app.task("even")
    def even(x: int, base: int = 0) -> Number:
        return TaskResult(ok=x + base) if x % 2 == 0 else TaskResult(err=TaskError("ODD", f"{x} is odd"))

    @app.task("codes")
    def codes(results: list[TaskResult[int, TaskError]]) -> Text:
        return TaskResult(ok=",".join(str(one.ok if one.is_ok() else one.err_value.error_code) for one in results))

    @app.task("code_of")
    def code_of(result: Number) -> Text:
        return TaskResult(ok="ok" if result.is_ok() else str(result.err_value.error_code))

    @app.task("total")
    def total(numbers: list[int]) -> Number:
        return TaskResult(ok=sum(numbers))

    @app.task("countdown")
    def countdown(n: int) -> Number:
        if n == 0:
            return TaskResult(ok=100)
        return Continue(app.workflow("countdown", [again := countdown.node(node_id="again")(n - 1)], output=again))

    @app.task("branch_out")
    def branch_out(n: int, code: str | None = None) -> Number:
        one = number.node(node_id="one")(n)
        bad = [fail.node(node_id="bad", waits_for=[one])(code)] if code is not None else []
        return Continue(app.workflow("branch_out", [one, *bad], output=one))

    @app.task("book")
    def book(place: str, price: int = 5) -> Number:
        return TaskResult(ok=price)

    undone = RetryPolicy.intervals([0.01], auto_retry_for=["AGAIN"])

    @app.task("unbook", retry_policy=undone)
    def unbook(price: int, place: str) -> Text:
        if place == "nowhere":
            return TaskResult(err=TaskError("AGAIN", "cannot be undone"))
        return TaskResult(ok=f"{place} {price}")

    @app.task("unnumber")
    def unnumber(n: int) -> Text:
        return TaskResult(ok=f"un{n}")

    @app.task("told", metadata={"of": "task"}, group_by=lambda n, snoozes=0: f"g{n % 3}")
    def told(n: int, snoozes: int = 0) -> TaskResult[dict[str, Any], TaskError]:
        """What the attempt finds in its context."""
        task = current_task()
        if task.snoozes < snoozes:
            return snooze(seconds=0.01)
        found = {
            "group": task.group,
            "metadata": dict(task.metadata),
            "snoozes": task.snoozes,
            "queue": task.queue_name,
        }
        return TaskResult(ok={"n": n, "attempt": task.attempt, **found})

    @app.task("told_async")
    async def told_async(n: int) -> TaskResult[dict[str, Any], TaskError]:
        return TaskResult(ok={"n": n, "metadata": dict(current_task().metadata), "group": current_task().group})

    @app.task("asks", retry_policy=RetryPolicy.intervals([0.01], auto_retry_for=["AGAIN"]))
    def asks(n: int) -> TaskResult[dict[str, Any], TaskError]:
        """Sends a task and waits for it: the metadata that it inherits comes back."""
        if n % 2 and current_task().attempt == 1:
            return TaskResult(err=TaskError("AGAIN", retry_after_ms=20))
        found = told_async.send(n).get(timeout_ms=30_000)
        return TaskResult(ok={"attempt": current_task().attempt, "found": found.unwrap()})

    @app.batch_task("squares", max_size=4, max_wait_ms=20)
    def squares(items: list[int]) -> list[Number]:
        return [TaskResult(ok=n * n) if n % 5 else TaskResult(err=TaskError("FIVE", f"{n}")) for n in items]

    return SimpleNamespace(**{name: task for name, task in locals().items() if name not in ("app", "undone")})


def random_send(t: Any, chance: random.Random) -> Any:
    """Send a random task with random options; returns its handle."""
    n = chance.randint(0, 20)
    options: dict[str, Any] = {}
    if chance.random() < 0.4:
        options["metadata"] = {"tenant": chance.choice(["acme", "\u4e2d\u6587"]), "n": [n, None, {"deep": 1.5}]}
    if chance.random() < 0.3:
        options["group"] = chance.choice(["g1", "other"])
    if chance.random() < 0.3:
        options |= {"unique_key": f"key-{chance.randint(0, 3)}", "unique_for": timedelta(hours=1)}
    task, args = chance.choice(
        [(t.told, (n,)), (t.told, (n, chance.randint(1, 3))), (t.told_async, (n,)), (t.asks, (n,)), (t.squares, (n,)),
         (t.quiet, (n,)), (t.fail, ("MINE",)), (t.even, (n,)), (t.countdown, (0,)), (t.countdown, (2,))]
    )  # fmt: skip
    sender = task.with_options(**options) if options else task
    return sender.schedule(0.02, *args) if chance.random() < 0.15 else sender.send(*args)


@dataclass
class Case:
    build: Callable[[Horsies, Any], WorkflowSpec[Any]]
    signals: list[tuple[str, Any, str | None]] = field(default_factory=list[tuple[str, Any, str | None]])
    """Name, value and path of the signals that it gets once it waits."""
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    """Of its start."""


def _branches(n: int) -> Callable[[Horsies, Any], WorkflowSpec[Any]]:
    def make(app: Horsies, t: Any) -> WorkflowSpec[Any]:
        given = t.number.node(node_id="given")(n)
        large = t.is_large.node(node_id="large")(from_node(given))
        yes = t.plus.node(node_id="yes", when=large)(from_node(given), 1000)
        no = t.plus.node(node_id="no", unless=large)(from_node(given), 1)
        after = t.plus.node(node_id="after")(from_node(yes), 1)
        both = t.number.node(node_id="both", waits_for=[yes, no])(1)
        some = t.number.node(node_id="some", waits_for=[yes, no], join="any")(2)
        two = t.number.node(node_id="two", waits_for=[yes, no], join="quorum", min_success=2)(3)
        anyway = t.code_of.node(node_id="anyway", allow_failed_deps=True)(result_from(after))
        chosen = t.plus.node(node_id="chosen")(either(yes, no), 0)
        nodes = [given, large, yes, no, after, both, some, two, anyway, chosen]
        return app.workflow(f"branches-{n}", nodes, output=after if n == 3 else chosen)

    return make


def _bad_decision(app: Horsies, t: Any) -> WorkflowSpec[Any]:
    bad = t.fail.node(node_id="bad")()
    large = t.is_large.node(node_id="large")(from_node(bad))
    yes = t.number.node(node_id="yes", when=large, allow_failed_deps=True)(1)
    inner = app.workflow("decided", [n := t.number.node(node_id="n")(1)], output=n)
    no = inner.node(node_id="no", unless=large)
    return app.workflow("bad_decision", [bad, large, yes, no], output=yes)


def _maps(app: Horsies, t: Any) -> WorkflowSpec[Any]:
    items = t.spread.node(node_id="items")(4)
    base = t.number.node(node_id="base")(10)
    partial = t.even.node(node_id="partial").map_partial(items, base=from_node(base))
    told = t.codes.node(node_id="told")(from_node(partial))

    def one(item: Any) -> WorkflowSpec[int]:
        first = t.plus.node(node_id="first")(item, 10)
        second = t.plus.node(node_id="second")(from_node(first), item)
        return app.workflow("each", [first, second], output=second)

    def odd(item: Any) -> WorkflowSpec[int]:
        return app.workflow("odd", [it := t.even.node(node_id="it")(item)], output=it)

    runs = map_workflow(items, one, node_id="runs")
    total = t.total.node(node_id="total")(from_node(runs))
    some = map_workflow(items, odd, node_id="some", partial=True)
    most = t.codes.node(node_id="most")(from_node(some))
    broken = map_workflow(items, odd, node_id="broken")
    return app.workflow("maps", [items, base, partial, told, runs, total, some, most, broken], output=told)


def _continued(app: Horsies, t: Any) -> WorkflowSpec[Any]:
    count = t.countdown.node(node_id="count")(3)
    return app.workflow("continued", [count], output=count)


def _continued_inside(app: Horsies, t: Any) -> WorkflowSpec[Any]:
    count = t.countdown.node(node_id="count")(2)
    out = t.branch_out.node(node_id="out")(7)
    bad = t.branch_out.node(node_id="bad")(7, "INNER")
    items = t.spread.node(node_id="items")(3)
    mapped = t.countdown.node(node_id="mapped").map(items)
    total = t.total.node(node_id="total")(from_node(mapped))
    both = t.plus.node(node_id="both")(from_node(count), from_node(out))
    return app.workflow("continued_inside", [count, out, bad, items, mapped, total, both], output=both)


def _trip(places: list[str], ending: str) -> Callable[[Horsies, Any], WorkflowSpec[Any]]:
    def make(app: Horsies, t: Any) -> WorkflowSpec[Any]:
        nodes: list[Any] = []
        for at, place in enumerate(places):
            node = t.book.node(node_id=f"book-{at}", compensate=t.unbook, waits_for=nodes[-1:])
            nodes.append(node(place, at) if at else node(place=place, price=at))
        first = t.number.node(node_id="first", compensate=t.unnumber)(1)
        second = t.number.node(node_id="second", compensate=t.unnumber, waits_for=[first])(2)
        inner = app.workflow("inner", [first, second], output=second)
        sub = inner.node(node_id="sub", waits_for=nodes[-1:])
        items = t.spread.node(node_id="items", waits_for=[sub])(1)
        mapped = t.number.node(node_id="mapped", compensate=t.unnumber).map(items)
        more: list[Any] = [sub, items, mapped]
        if ending == "continue":
            more.append(t.branch_out.node(node_id="end", waits_for=[mapped])(3, "LATE"))
        elif ending == "fail":
            more.append(t.fail.node(node_id="end", waits_for=[mapped])())
        elif ending == "deadline":
            more.append(sleep(timedelta(hours=2), node_id="end", waits_for=[mapped]))
        else:
            own = t.number.node(node_id="own", compensate=t.unnumber)(9)
            bad = t.fail.node(node_id="bad", waits_for=[own])("INSIDE")
            failing = app.workflow("failing", [own, bad], output=own)
            more.append(failing.node(node_id="end", waits_for=[mapped]))
        return app.workflow(f"trip-{ending}", [*nodes, *more], output=more[-1])

    return make


def _waits(app: Horsies, t: Any) -> WorkflowSpec[Any]:
    amount = wait_for_signal("amount", int, node_id="amount")
    second = wait_for_signal("amount", int, node_id="second", waits_for=[amount])
    nap = sleep(0.05, node_id="nap")
    late = wait_for_signal("late", int, node_id="late", timeout=0.05)
    sees = t.code_of.node(node_id="sees", allow_failed_deps=True)(result_from(late))
    small = t.is_large.node(node_id="large")(from_node(amount))
    never = wait_for_signal("never", int, node_id="never", when=small)
    inner_go = wait_for_signal("go", int, node_id="go")
    inner = app.workflow("inner", [inner_go, x := t.plus.node(node_id="x")(from_node(inner_go), 1)], output=x)
    sub = inner.node(node_id="sub", waits_for=[nap])
    sum_ = t.plus.node(node_id="sum")(from_node(amount), from_node(second))
    end = t.plus.node(node_id="end")(from_node(sum_), from_node(sub))
    return app.workflow("waits", [amount, second, nap, late, sees, small, never, sub, sum_, end], output=end)


def _not_stored(app: Horsies, t: Any) -> WorkflowSpec[Any]:
    values = [t.quiet.node(node_id=f"quiet-{n}")(n) for n in (7, None, 13)]
    items = t.quiet.node(node_id="items").map(t.spread.node(node_id="three")(3))
    after = t.number.node(node_id="after", waits_for=[*values, items], allow_failed_deps=True)(1)
    return app.workflow("not_stored", [*values, items.items_from, items, after], output=after)


CASES: dict[str, Case] = {
    "not_stored": Case(_not_stored),
    "branch_no": Case(_branches(5)),
    "branch_yes": Case(_branches(50)),
    "branch_output": Case(_branches(3)),
    "bad_decision": Case(_bad_decision),
    "maps": Case(_maps),
    "continued": Case(_continued),
    "continued_inside": Case(_continued_inside),
    "undone": Case(_trip(["rome", "oslo"], "fail")),
    "undone_half": Case(_trip(["rome", "nowhere", "oslo"], "fail")),
    "undone_inside": Case(_trip(["rome"], "inside")),
    "undone_continued": Case(_trip(["rome"], "continue")),
    "undone_overdue": Case(_trip(["rome"], "deadline"), options={"deadline": 4.0}),
    "waits": Case(_waits, [("amount", 1, None), ("go", 40, "sub"), ("amount", 2, None)]),
}


if VARIABLE in os.environ:
    app = build(json.loads(os.environ[VARIABLE]))
    register(app)
