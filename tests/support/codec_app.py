"""An app with a payload codec, for workers and tests: tasks, schedules and workflows of every kind. All that they are
given, return and complain about has the canary in it, which no row may show."""

import asyncio
import os
import signal
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg

from horsies import (
    AppConfig,
    Continue,
    Horsies,
    Interval,
    PayloadCodec,
    PostgresConfig,
    RecoveryConfig,
    ResilienceConfig,
    RetryPolicy,
    ScheduleConfig,
    TaskError,
    TaskResult,
    TaskSchedule,
    WorkflowContext,
    WorkflowDefinition,
    WorkflowSpec,
    current_call,
    current_task,
    either,
    from_node,
    map_workflow,
    result_from,
    snooze,
    wait_for_signal,
)
from tests.support.payload_codecs import SealCodec

CANARY = "kanarienvogel"
Text = TaskResult[str, TaskError]
TWO_CRASHES = RetryPolicy.fixed(0.1, 0, max_crashes=2)
ONCE_MORE = RetryPolicy.fixed(0.1, 1, auto_retry_for=["TASK_FAILED_ONCE"])


def make(url: str, codec: PayloadCodec | None = None, **config: Any) -> Horsies:
    schedules = [
        TaskSchedule(name="tick", pattern=Interval(seconds=1), task_name="echo", kwargs={"text": f"tick {CANARY}"}),
    ]
    return Horsies(
        AppConfig(
            PostgresConfig(url), payload_codec=SealCodec() if codec is None else codec,
            schedule=ScheduleConfig(schedules),
            recovery=RecoveryConfig(runner_heartbeat_interval_ms=1_000, check_interval_ms=1_000),
            resilience=ResilienceConfig(notify_poll_interval_ms=1_000), **config,
        )
    )  # fmt: skip


def register(app: Horsies) -> SimpleNamespace:
    @app.task("echo")
    def echo(text: str, times: int = 1) -> Text:
        return TaskResult(ok=text * times)

    @app.task("aecho")
    async def aecho(text: str, /, *more: str) -> Text:
        return TaskResult(ok=text + "".join(more))

    @app.task("watch")
    async def watch(text: str) -> Text:
        """Reports progress until it is cancelled."""
        while True:
            current_task().report_progress({"at": text})
            await asyncio.sleep(0.1)

    @app.task("refuse", retry_policy=ONCE_MORE)
    def refuse(text: str) -> Text:
        code = "TASK_FAILED_ONCE" if current_task().attempt == 1 else "TASK_FAILED_TWICE"
        return TaskResult(err=TaskError(code, f"refused: {text}", {"why": [text]}))

    @app.task("explode")
    def explode(text: str) -> Text:
        raise RuntimeError(f"exploded: {text}")

    @app.task("split")
    def split(text: str, count: int = 3) -> TaskResult[list[str], TaskError]:
        return TaskResult(ok=[f"{text}-{at}" for at in range(count)])

    @app.task("is_long")
    def is_long(text: str) -> TaskResult[bool, TaskError]:
        return TaskResult(ok=len(text) > 3)

    @app.task("weigh")
    def weigh(ctx: WorkflowContext, first: Text, either_one: str) -> Text:
        told = [str(result) for result in ctx.results.values()]
        return TaskResult(ok=f"{first.ok or first.err_value.message}|{either_one}|{len(told)}")

    @app.task("join")
    def join(parts: list[str]) -> Text:
        return TaskResult(ok="+".join(parts))

    @app.task("join_all")
    def join_all(parts: list[Text]) -> Text:
        return TaskResult(ok="+".join(part.ok if part.is_ok() else part.err_value.message for part in parts))

    @app.task("book")
    def book(text: str, note: str = CANARY) -> Text:
        return TaskResult(ok=f"booked {text} {note}")

    @app.task("unbook")
    def unbook(booked: str, text: str, note: str) -> Text:
        assert booked == f"booked {text} {note}"
        return TaskResult(ok=f"unbooked {text}")

    @app.task("go_on")
    def go_on(text: str, left: int) -> Text:
        if not left:
            return TaskResult(ok=f"done {text}")
        node = go_on.node(node_id="again")(text, left - 1)
        return Continue(app.workflow("again", [node], output=node))

    @app.task("odd")
    def odd(text: str) -> Text:
        return TaskResult(err=TaskError("ODD", f"odd: {text}")) if text.endswith("1") else TaskResult(ok=text)

    @app.batch_task("shout", max_size=10, max_wait_ms=100)
    def shout(texts: list[str]) -> list[Text]:
        for task, text in zip(current_call().tasks, texts, strict=True):
            task.report_progress(f"shouting {text}")
        if any("raise" in text for text in texts):
            raise RuntimeError(f"nothing is shouted: {texts}")
        return [
            TaskResult(err=TaskError("ODD", f"odd: {text}", {"text": text})) if "odd" in text
            else text if "wrong" in text else TaskResult(ok=text * 2)
            for text in texts
        ]  # type: ignore[misc]  # fmt: skip

    @app.batch_task("ashout", max_size=10, max_wait_ms=100)
    async def ashout(texts: list[str]) -> list[Text]:
        return [TaskResult(ok=text * 2) for text in texts]

    @app.task("pay")
    def pay(text: str, then: str = "") -> Text:
        """Completes itself, in a transaction of its own."""
        with psycopg.connect(app.config.broker.url) as connection:
            result = current_task().complete(connection, f"paid {text}")
            if then == "roll back":
                raise RuntimeError(f"not paid: {text}")
        if then == "fail":
            raise RuntimeError(f"paid, and then: {text}")
        return result

    @app.task("apay")
    async def apay(text: str) -> Text:
        connection = await asyncpg.connect(app.config.broker.url)
        try:
            async with connection.transaction():
                return await current_task().complete_async(connection, f"paid {text}")
        finally:
            await connection.close()

    @app.task("nap")
    def nap(text: str) -> Text:
        """Reports progress, and snoozes once."""
        current_task().report_progress({"at": text})
        return TaskResult(ok=text) if current_task().snoozes else snooze(seconds=0.1)

    @app.task("poison", retry_policy=TWO_CRASHES)
    def poison(text: str) -> Text:
        os.kill(os.getpid(), signal.SIGKILL)
        return TaskResult(ok=text)

    @app.task("picky")
    def picky(text: str, number: int) -> Text:
        return TaskResult(ok=f"{text}{number}")

    class Reports(WorkflowDefinition[str], app=app, name="reports"):
        @classmethod
        def build_with(cls, text: str) -> WorkflowSpec[str]:
            if "refuse" in text:
                raise ValueError(f"there is no report about {text}")
            return cls.workflow([only := echo.node(node_id="only")(text)], output=only)

    return SimpleNamespace(**{name: task for name, task in locals().items() if name != "app"})


def everything(app: Horsies, t: SimpleNamespace) -> WorkflowSpec[str]:
    """All ways of values from node to node in one run that completes."""
    listed = t.split.node(node_id="listed")(CANARY)
    mapped = t.echo.node(node_id="mapped").map(listed, times=2)
    partial = t.odd.node(node_id="partial").map_partial(listed)
    long = t.is_long.node(node_id="long")(CANARY)
    yes = t.echo.node(node_id="yes", when=long)(f"yes {CANARY}")
    no = t.echo.node(node_id="no", unless=long)(f"no {CANARY}")
    fails = t.refuse.node(node_id="fails")(CANARY)
    approval = wait_for_signal("approval", bool, timeout=timedelta(minutes=5), node_id="approval")
    note = wait_for_signal("note", list[str], timeout=timedelta(minutes=5), node_id="note")
    noted = t.echo.node(node_id="noted", when=approval).map(note)

    def each(item: Any) -> WorkflowSpec[str]:
        one = t.echo.node(node_id="one")(item)
        two = t.echo.node(node_id="two")(from_node(one), times=1)
        return app.workflow("each", [one, two], output=two)

    nested = map_workflow(listed, each, node_id="nested")
    weighed = t.weigh.node(
        node_id="weighed", workflow_ctx_from=[yes, fails], allow_failed_deps=True, waits_for=[approval]
    )(first=result_from(fails), either_one=either(yes, no))
    parts = t.join_all.node(node_id="parts")(from_node(partial))
    inner = app.workflow("inner", [made := t.echo.node(node_id="made")(CANARY)], output=made).node(node_id="inner")
    going = t.go_on.node(node_id="going")(CANARY, 2)
    end = t.join.node(node_id="end", waits_for=[weighed, parts, inner, going, nested, noted], join="all")(
        from_node(mapped)
    )
    from horsies import SuccessCase, SuccessPolicy

    nodes = [
        listed, mapped, partial, long, yes, no, fails, approval, note, noted, nested, weighed, parts, inner, going, end,
    ]  # fmt: skip
    return app.workflow("everything", nodes, output=end, success_policy=SuccessPolicy([SuccessCase([end])]))


def saga(app: Horsies, t: SimpleNamespace) -> WorkflowSpec[str]:
    """A run that fails and is undone."""
    first = t.book.node(node_id="first", compensate=t.unbook)(f"flight {CANARY}")
    second = t.book.node(node_id="second", compensate=t.unbook, waits_for=[first])(from_node(first), note=f"n {CANARY}")
    last = t.explode.node(node_id="last")(from_node(second))
    return app.workflow("saga", [first, second, last], output=last)


def paused(app: Horsies, t: SimpleNamespace) -> WorkflowSpec[str]:
    """A run that pauses because a workflow inside it fails."""
    inside = app.workflow("inside", [node := t.explode.node(node_id="node")(CANARY)], output=node, on_error="pause")
    outer = inside.node(node_id="outer")
    return app.workflow("paused", [outer], output=outer)


if "HORSIES_CODEC_URL" in os.environ:
    app = make(os.environ["HORSIES_CODEC_URL"])
    tasks = register(app)
