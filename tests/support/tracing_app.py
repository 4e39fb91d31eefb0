"""The app of the tracing tests. Its children write spans as JSON lines to a file, which a lifespan opens; the test's
own spans stay in memory. `HORSIES_TEST_SPANS` names the file, `HORSIES_TEST_SENTRY` one for the envelopes of Sentry."""

import asyncio
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sentry_sdk
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from horsies import Horsies, Middleware, RetryPolicy, TaskError, TaskResult, current_task, from_node
from horsies.contrib.opentelemetry import Tracing
from horsies.contrib.sentry import Sentry
from tests.support.worker_app import VARIABLE, build, note

APP = "tests.support.tracing_app:app"
SPANS_VARIABLE = "HORSIES_TEST_SPANS"
SENTRY_VARIABLE = "HORSIES_TEST_SENTRY"
Number = TaskResult[int, TaskError]


def as_data(span: ReadableSpan) -> dict[str, Any]:
    """What the tests look at."""
    assert span.context is not None
    return {
        "name": span.name, "kind": span.kind.name, "trace": span.context.trace_id, "id": span.context.span_id,
        "parent": span.parent and span.parent.span_id, "links": [link.context.span_id for link in span.links],
        "attributes": dict(span.attributes or {}), "status": span.status.status_code.name,
        "described": span.status.description, "events": [event.name for event in span.events],
        "start": span.start_time, "end": span.end_time, "whole": span.to_json(),
    }  # fmt: skip


class ToFile(SpanExporter):
    def __init__(self, path: str) -> None:
        self.path = path

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            note(self.path, json.dumps(as_data(span)))
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        pass

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return True


class ToFileTransport(Transport):
    """Collects the envelopes of Sentry."""

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            if item.type in ("event", "transaction"):
                note(os.environ[SENTRY_VARIABLE], json.dumps({"type": item.type, **json.loads(item.get_bytes())}))

    def flush(self, timeout: float, callback: Any = None) -> None:
        note(os.environ[SENTRY_VARIABLE], json.dumps({"type": "flush", "pid": os.getpid(), "timeout": timeout}))


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def register(app: Horsies) -> SimpleNamespace:
    retried = RetryPolicy.fixed(0.1, 2, auto_retry_for=["SMTP_DOWN", "UNHANDLED_EXCEPTION"])

    @app.task("add")
    def add(a: int, b: int = 0) -> Number:
        return TaskResult(ok=a + b)

    @app.task("add_async")
    async def add_async(a: int, b: int = 0) -> Number:
        with trace.get_tracer("shop").start_as_current_span("inside"):
            await asyncio.sleep(0)
        return TaskResult(ok=a + b)

    @app.task("inside")
    def inside() -> TaskResult[dict[str, str], TaskError]:
        from opentelemetry import baggage

        with trace.get_tracer("shop").start_as_current_span("inside"):
            return TaskResult(ok={name: str(value) for name, value in baggage.get_all().items()})

    @app.task("fail")
    def fail(password: str) -> Number:
        sentry_sdk.add_breadcrumb(message="about to fail")
        raise LookupError("no such order")

    @app.task("vault")
    def vault(secret: str) -> TaskResult[str, TaskError]:
        local = f"local-{secret}"
        return TaskResult(ok=local.replace("local", "result"))

    @app.task("fail_async")
    async def fail_async(password: str) -> Number:
        raise LookupError("no such order")

    @app.task("refuse")
    def refuse() -> Number:
        return TaskResult(err=TaskError("OUT_OF_STOCK", "none left"))

    @app.task("flaky", retry_policy=retried)
    def flaky(until: int) -> Number:
        if current_task().attempt < until:
            raise ConnectionError("not yet")
        return TaskResult(ok=1)

    @app.task("sleep", timeout_ms=300)
    def sleep() -> Number:
        import time

        time.sleep(60)
        return TaskResult(ok=1)

    @app.task("nap", timeout_ms=300)
    async def nap() -> Number:
        await asyncio.sleep(60)
        return TaskResult(ok=1)

    @app.task("wait")
    def wait(path: str) -> Number:
        import time

        note(path, "waits")
        time.sleep(60)
        return TaskResult(ok=1)

    @app.task("wait_async")
    async def wait_async(path: str) -> Number:
        note(path, "waits")
        await asyncio.sleep(60)
        return TaskResult(ok=1)

    @app.task("spread")
    def spread(n: int) -> TaskResult[list[int], TaskError]:
        return TaskResult(ok=list(range(n)))

    @app.task("total")
    def total(numbers: list[int]) -> Number:
        return TaskResult(ok=sum(numbers))

    @app.task("start_five")
    def start_five() -> TaskResult[str, TaskError]:
        return TaskResult(ok=five().start().workflow_id)

    @app.task("send_child")
    async def send_child() -> TaskResult[str, TaskError]:
        return TaskResult(ok=(await add.send_async(1)).task_id)

    def five() -> Any:
        """Five nodes: three in a chain, a nested workflow, and one that waits for both."""
        first = add.node(node_id="first")(1)
        second = add.node(node_id="second")(from_node(first))
        third = flaky.node(node_id="third", waits_for=[second])(2)
        fourth = add_async.node(node_id="fourth")(from_node(first))
        fifth = add.node(node_id="fifth")(from_node(third), from_node(fourth))
        return app.workflow("five", [first, second, third, fourth, fifth], output=fifth)

    def wide() -> Any:
        """A map over two items, and a nested workflow."""
        listed = spread.node(node_id="listed")(2)
        items = add.node(node_id="items").map(listed)
        inner = app.workflow("inner", [add.node(node_id="deep")(1)])
        return app.workflow("wide", [listed, items, inner.node(node_id="nested")])

    return SimpleNamespace(**{name: task for name, task in locals().items() if name not in ("app", "retried")})


def build_app(described: dict[str, Any], middleware: list[Middleware]) -> Horsies:
    return build({**described, "middleware": middleware})


if VARIABLE in os.environ:
    middleware: list[Middleware] = []
    if SENTRY_VARIABLE in os.environ:
        # at import: before the fork of the children
        options = json.loads(os.environ.get("HORSIES_TEST_SENTRY_OPTIONS", "{}"))
        sentry_sdk.init("http://key@127.0.0.1:1/1", transport=ToFileTransport, traces_sample_rate=1.0)
        middleware.append(Sentry(**options))
    if SPANS_VARIABLE in os.environ:
        middleware.append(Tracing())
    app = build_app(json.loads(os.environ[VARIABLE]), middleware)
    tasks = register(app)

    if SPANS_VARIABLE in os.environ:

        @app.lifespan
        def spans() -> Iterator[None]:
            provider = TracerProvider()
            provider.add_span_processor(
                BatchSpanProcessor(ToFile(os.environ[SPANS_VARIABLE]), schedule_delay_millis=50)
            )
            trace.set_tracer_provider(provider)
            yield
            provider.shutdown()
