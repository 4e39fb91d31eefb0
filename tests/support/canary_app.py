"""An app of tasks that mishandle what they are given, with OpenTelemetry and Sentry as in the tracing app: what horsies
says of their mistakes must not repeat the values."""

import json
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Annotated, Any, Literal, cast

import sentry_sdk
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from pydantic import BaseModel, Field

from horsies import Horsies, TaskError, TaskResult, current_task, from_node, wait_for_signal
from horsies.contrib.opentelemetry import Tracing
from horsies.contrib.sentry import Sentry
from tests.support.tracing_app import SPANS_VARIABLE, ToFile, ToFileTransport
from tests.support.worker_app import VARIABLE, build

LOCATOR = "tests.support.canary_app:app"
Number = TaskResult[int, TaskError]
Text = TaskResult[str, TaskError]


class Cash(BaseModel):
    kind: Literal["cash"]


class Card(BaseModel):
    kind: Literal["card"]
    number: int


class Base(BaseModel):
    a: int


class Sub(Base):
    secret: str


def register(app: Horsies) -> SimpleNamespace:
    @app.task("takes")
    def takes(n: int) -> Number:
        return TaskResult(ok=n)

    @app.task("pays")
    def pays(by: Annotated[Cash | Card, Field(discriminator="kind")]) -> Number:
        return TaskResult(ok=1)

    @app.task("takes_result")
    def takes_result(n: Number) -> Number:
        return TaskResult(ok=1)

    @app.task("echoes")
    def echoes(s: str) -> Text:
        return TaskResult(ok=s)

    @app.task("bare")
    def bare(s: str) -> Text:
        return cast("Text", s)

    @app.task("wrong_ok")
    def wrong_ok(s: str) -> Number:
        return TaskResult(ok=cast("Any", s))

    @app.task("wrong_err")
    def wrong_err(s: str) -> Number:
        return TaskResult(err=cast("Any", s))

    @app.task("odd_key")
    def odd_key(s: str) -> TaskResult[Any, TaskError]:
        return TaskResult(ok={(s,): 1})

    @app.task("loses")
    def loses(s: str) -> TaskResult[Base, TaskError]:
        return TaskResult(ok=Sub(a=1, secret=s))

    @app.task("half_pair")
    def half_pair(s: str) -> Text:
        return TaskResult(ok=s + "\ud800")

    @app.task("sends_wrong")
    def sends_wrong(s: str) -> Number:
        takes.send(cast("Any", s)).unwrap()  # type: ignore[attr-defined]
        return TaskResult(ok=1)

    @app.task("completes_wrong")
    def completes_wrong(s: str) -> Number:
        import psycopg

        with psycopg.connect(os.environ["HORSIES_TEST_OWN_URL"]) as connection:
            current_task().complete(connection, cast("Any", s))
        return TaskResult(ok=1)

    @app.batch_task("bare_batch", max_size=4, max_wait_ms=20)
    def bare_batch(items: list[str]) -> list[Text]:
        return cast("Any", items[0])

    @app.batch_task("bare_items", max_size=4, max_wait_ms=20)
    def bare_items(items: list[str]) -> list[Text]:
        return cast("Any", list(items))

    def edge() -> Any:
        """The signal's value does not fit what waits for it."""
        signal = wait_for_signal("go", int)
        after = takes_result.node(waits_for=[signal])(n=cast("Any", from_node(signal)))
        return app.workflow("edge", [signal, after])

    def kept() -> Any:
        """The second node's row can be refused."""
        first = echoes.node()("nothing")
        return app.workflow("kept", [first, echoes.node(waits_for=[first], node_id="second")("CANARY_node")])

    return SimpleNamespace(**{name: task for name, task in locals().items() if name != "app"})


if VARIABLE in os.environ:
    # at import: before the fork of the children
    sentry_sdk.init("http://key@127.0.0.1:1/1", transport=ToFileTransport, traces_sample_rate=1.0)
    app = build({**json.loads(os.environ[VARIABLE]), "middleware": [Sentry(), Tracing()]})
    tasks = register(app)

    @app.lifespan
    def spans() -> Iterator[None]:
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(ToFile(os.environ[SPANS_VARIABLE])))
        trace.set_tracer_provider(provider)
        yield
        provider.shutdown()
