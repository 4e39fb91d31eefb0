# pyright: strict
"""Middleware is checked against the class that it derives from, and a lifespan knows what it yields."""

from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, assert_type

from horsies import (
    AppConfig,
    AttemptEnd,
    Horsies,
    Lifespan,
    Middleware,
    Outgoing,
    PostgresConfig,
    TaskContext,
    TaskError,
    TaskResult,
    TaskSendError,
    current_task,
)
from horsies.contrib.opentelemetry import Tracing
from horsies.contrib.sentry import Sentry
from tests.typing.tasks import app, touch


class Everything(Middleware):
    def on_send(self, task: Outgoing) -> None:
        assert_type(task.metadata, dict[str, Any])
        assert_type(task.from_task, TaskContext | None)

    def on_sent(self, task: Outgoing, error: TaskSendError | None) -> None: ...

    @contextmanager
    def scope(self, ctx: TaskContext) -> Generator[None]:
        assert_type(ctx.attempt, int)
        yield

    def run_task(self, ctx: TaskContext, call: Callable[[], TaskResult[Any, TaskError]]) -> TaskResult[Any, TaskError]:
        return call()

    async def run_task_async(
        self, ctx: TaskContext, call: Callable[[], Awaitable[TaskResult[Any, TaskError]]]
    ) -> TaskResult[Any, TaskError]:
        return await call()

    def on_attempt_end(self, end: AttemptEnd) -> None:
        assert_type(end.duration_s, float)
        assert_type(end.exception, BaseException | None)


assert_type(Middleware().scope(current_task()), AbstractContextManager[None])
AppConfig(
    PostgresConfig(), middleware=[Everything(), Tracing(), Sentry(capture_retried=True)], propagate_metadata=["a"]
)
touch.with_options(metadata={"tenant": "acme", "tags": [1, None]}).send()


@app.lifespan
def number() -> Iterator[int]:
    yield 1


@app.lifespan
def text() -> Generator[str, None, None]:
    yield "a"


@app.lifespan
async def data() -> AsyncIterator[bytes]:
    yield b""


assert_type(number, Lifespan[int])
assert_type(number.value, int)
assert_type(text.value, str)
assert_type(data.value, bytes)


# -- what both checkers refuse --------------------------------------------------------------------


class Wrong(Middleware):
    def on_send(self, task: str) -> None: ...  # type: ignore[override]

    async def run_task(self, ctx: TaskContext, call: Any) -> Any: ...  # type: ignore[override]


@app.lifespan  # type: ignore[arg-type]
def opened() -> int:
    return 1


AppConfig(PostgresConfig(), middleware=[Everything])  # type: ignore[list-item]
Horsies().task("a", metadata=["tenant"])  # type: ignore[call-overload]
touch.with_options(metadata="tenant")  # type: ignore[arg-type]
