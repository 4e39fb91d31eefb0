"""The tasks that the workflow tests make their graphs of, for real workers and for tests that send."""

import json
import os
import time
from types import SimpleNamespace
from typing import Any

from horsies import (
    BatchSummary,
    Continue,
    Horsies,
    QueueMode,
    RetryPolicy,
    TaskError,
    TaskResult,
    WorkflowContext,
    WorkflowMeta,
)
from tests.support.worker_app import LEDGER_VARIABLE, VARIABLE, build, note

Number = TaskResult[int, TaskError]
APP = "tests.support.workflow_app:app"


def _trace(text: str) -> None:
    folder = os.environ.get(LEDGER_VARIABLE)
    if folder:
        note(os.path.join(folder, f"trace-{os.getpid()}"), text)  # noqa: PTH118  (note takes a text)


def register(app: Horsies) -> SimpleNamespace:
    common: dict[str, Any] = {"retry_policy": RetryPolicy.fixed(0.1, 20, auto_retry_for=["WORKER_CRASHED"])}
    if app.config.queue_mode is QueueMode.CUSTOM:
        common["queue_name"] = app.config.queue_names[0]

    @app.task("number", **common)
    def number(n: int) -> Number:
        return TaskResult(ok=n)

    @app.task("plus", **common)
    def plus(a: int, b: int) -> Number:
        return TaskResult(ok=a + b)

    @app.task("fail", **common)
    def fail(code: str = "BROKEN") -> Number:
        return TaskResult(err=TaskError(code, "as the test wanted"))

    @app.task("total", **common)
    def total(numbers: list[int]) -> Number:
        return TaskResult(ok=sum(numbers))

    @app.task("spread", **common)
    def spread(n: int) -> TaskResult[list[int], TaskError]:
        return TaskResult(ok=list(range(n)))

    @app.task("square", **common)
    def square(x: int, offset: int = 0) -> Number:
        return TaskResult(ok=x * x + offset)

    @app.task("code_of", **common)
    def code_of(result: Number) -> TaskResult[str, TaskError]:
        return TaskResult(ok="ok" if result.err is None else str(result.err.error_code))

    @app.task("where", **common)
    def where(meta: WorkflowMeta | None = None) -> TaskResult[list[str], TaskError]:
        assert meta is not None
        return TaskResult(ok=[meta.workflow_id, meta.workflow_name, meta.node_id, str(meta.task_index)])

    @app.task("gathered", **common)
    def gathered(ctx: WorkflowContext | None = None) -> TaskResult[dict[str, int], TaskError]:
        assert ctx is not None
        return TaskResult(ok={name: result.get("ok", -1) for name, result in ctx.results.items()})

    @app.task("work", **common)
    def work(n: int, a: int = 0, fails: bool = False) -> Number:
        time.sleep(n / 100)
        return TaskResult(err=TaskError("WANTED")) if fails else TaskResult(ok=n + a)

    @app.task("judge", **common)
    def judge(n: int, r: Number, fails: bool = False) -> Number:
        if fails:
            return TaskResult(err=TaskError("WANTED"))
        return TaskResult(ok=n + (r.ok_value if r.is_ok() else 1000))

    @app.task("weigh", **common)
    def weigh(n: int, fails: bool = False, ctx: WorkflowContext | None = None) -> Number:
        if fails:
            return TaskResult(err=TaskError("WANTED"))
        assert ctx is not None
        return TaskResult(ok=n + sum(result.get("ok", 1000) for result in ctx.results.values()))

    @app.task("listed", **common)
    def listed(n: int, fails: bool = False) -> TaskResult[list[int], TaskError]:
        return TaskResult(err=TaskError("WANTED")) if fails else TaskResult(ok=list(range(n % 4)))

    @app.task("each", **common)
    def each(item: int, n: int, a: int = 0, fails: bool = False) -> Number:
        return TaskResult(err=TaskError("WANTED")) if fails else TaskResult(ok=item + n + a)

    @app.task("join", **common)
    def join(label: str) -> TaskResult[str, TaskError]:
        _trace(label)
        return TaskResult(ok=label)

    @app.task("traced", **common)
    def traced(label: str, seconds: float = 0.0) -> TaskResult[str, TaskError]:
        _trace(label)
        time.sleep(seconds)
        return TaskResult(ok=label)

    @app.task("at_same_time", **common)
    def at_same_time(label: str, moment: float) -> TaskResult[str, TaskError]:
        while time.time() < moment:
            time.sleep(0.0005)
        return TaskResult(ok=label)

    @app.task("tally", **common)
    def tally(summary: BatchSummary) -> TaskResult[list[int], TaskError]:
        _trace(f"tally-{summary.batch_id}")
        return TaskResult(ok=[summary.total, summary.completed, summary.failed, summary.cancelled])

    @app.task("fails_until", **common)
    def fails_until(path: str) -> Number:
        return TaskResult(ok=1) if os.path.exists(path) else TaskResult(err=TaskError("NOT_YET"))  # noqa: PTH110

    @app.task("is_true", **common)
    def is_true(value: bool) -> TaskResult[bool, TaskError]:
        return TaskResult(ok=value)

    @app.task("unbook", **common)
    def unbook(value: int, n: int = 0, seconds: float = 0.0) -> Number:
        _trace(f"unbook-{n}")
        time.sleep(seconds)
        return TaskResult(ok=value)

    @app.task("book", **common)
    def book(n: int, seconds: float = 0.0) -> Number:
        _trace(f"book-{n}")
        return TaskResult(ok=n * 10)

    @app.task("countdown", **common)
    def countdown(n: int) -> Number:
        _trace(f"countdown-{n}")
        if not n:
            return TaskResult(ok=0)
        following = countdown.node(node_id="again")(n - 1)
        return Continue(app.workflow("countdown", [following], output=following))

    @app.task("continue_as_text", **common)
    def continue_as_text() -> Number:
        wrong = traced.node(node_id="wrong")("text")
        return Continue(app.workflow("texts", [wrong], output=wrong))  # type: ignore[return-value]

    return SimpleNamespace(**{name: task for name, task in locals().items() if name not in ("app", "common")})


if VARIABLE in os.environ:
    app = build(json.loads(os.environ[VARIABLE]))
    tasks = register(app)
