"""`testing.run`: one attempt of one task, through codec, middleware and context, as on a worker."""

import contextlib
import contextvars
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from horsies import (
    AttemptEnd,
    ConfigurationError,
    ContractCode,
    Middleware,
    OperationalErrorCode,
    RetryPolicy,
    TaskContext,
    TaskError,
    TaskResult,
    UsageError,
    current_task,
    testing,
)
from horsies.codec import EncodeError
from tests.support.apps import UNREACHABLE, make_app

Number = TaskResult[int, TaskError]
Text = TaskResult[str, TaskError]
tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant", default="none")


@dataclass
class Point:
    x: int


class Scope(Middleware):
    """Sets the tenant around a task, doubles numbers, and keeps the ends."""

    def __init__(self) -> None:
        self.ends: list[AttemptEnd] = []

    @contextlib.contextmanager
    def scope(self, ctx: TaskContext) -> Iterator[None]:
        token = tenant.set(ctx.metadata.get("tenant", "unset"))
        yield
        tenant.reset(token)

    def run_task(self, ctx: TaskContext, call: Any) -> Any:
        return self.doubled(call())

    async def run_task_async(self, ctx: TaskContext, call: Any) -> Any:
        return self.doubled(await call())

    def doubled(self, result: TaskResult[Any, TaskError]) -> TaskResult[Any, TaskError]:
        return TaskResult(ok=result.ok * 2) if isinstance(result.ok, int) else result

    def on_attempt_end(self, end: AttemptEnd) -> None:
        self.ends.append(end)


def test_arguments_and_result_go_through_the_codec() -> None:
    app = make_app(UNREACHABLE)
    given: list[Point] = []

    @app.task("move")
    def move(point: Point, by: int = 1) -> TaskResult[Point, TaskError]:
        given.append(point)
        return TaskResult(ok=Point(point.x + by))

    start = Point(1)
    result = testing.run(move, start, by=2)
    assert result == TaskResult(ok=Point(3))
    assert given == [start]
    assert given[0] is not start
    with pytest.raises(EncodeError):
        testing.run(move, "no point")  # type: ignore[arg-type]


def test_errors_become_results() -> None:
    app = make_app(UNREACHABLE, exception_mapper={LookupError: "MISSING"})

    @app.task("find")
    def find(how: str) -> Number:
        match how:
            case "mapped":
                raise KeyError("k")
            case "raised":
                raise ValueError("v")
            case "returned":
                return TaskResult(err=TaskError("MINE", "m", {"a": 1}))
            case "reserved":
                return TaskResult(err=TaskError("TASK_TIMEOUT"))
            case _:
                return "no result"  # type: ignore[return-value]

    codes = {how: testing.run(find, how).err_value.error_code for how in ("mapped", "raised", "reserved", "wrong")}
    assert codes == {
        "mapped": "MISSING",
        "raised": OperationalErrorCode.UNHANDLED_EXCEPTION,
        "reserved": ContractCode.RESERVED_ERROR_CODE,
        "wrong": ContractCode.RETURN_TYPE_MISMATCH,
    }
    assert testing.run(find, "returned") == TaskResult(err=TaskError("MINE", "m", {"a": 1}))


@pytest.mark.parametrize("is_async", [False, True])
async def test_middleware_context_and_metadata(is_async: bool) -> None:
    middleware = Scope()
    app = make_app(UNREACHABLE, middleware=[middleware])
    options: dict[str, Any] = {
        "metadata": {"team": "a"}, "timeout_ms": 5_000,
        "retry_policy": RetryPolicy.fixed(1, 3, auto_retry_for=["AGAIN"]),
    }  # fmt: skip

    def body() -> Number:
        task = current_task()
        assert (task.task_name, task.metadata, tenant.get()) == ("it", {"team": "a", "tenant": "acme"}, "acme")
        assert task.deadline is not None
        task.report_progress({"done": 1})
        assert not task.is_cancelled()
        return TaskResult(ok=task.attempt) if task.attempt > 2 else TaskResult(err=TaskError("AGAIN"))

    if is_async:

        @app.task("it", **options)
        async def it() -> Number:
            return body()
    else:

        @app.task("it", **options)
        def it() -> Number:
            return body()

    tenant.set("of the test")
    second = testing.run_as(it, attempt=2, metadata={"tenant": "acme"})
    assert second().err_value.error_code == "AGAIN"
    third = testing.run_as(it, attempt=3, metadata={"tenant": "acme"})
    assert await third.run_async() == TaskResult(ok=6)
    assert tenant.get() == "of the test"
    assert [(end.outcome, end.retry_expected, end.context.attempt) for end in middleware.ends] == [
        ("error", True, 2),
        ("ok", False, 3),
    ]
    with pytest.raises(ConfigurationError, match="attempt"):
        testing.run_as(it, attempt=0)


def test_a_task_starts_with_an_empty_context() -> None:
    """As on a worker: what the sender has in a context variable must travel as an argument or as metadata."""
    app = make_app(UNREACHABLE)

    @app.task("whose")
    def whose() -> Text:
        before = tenant.get()
        tenant.set("of the task")
        return TaskResult(ok=before)

    tenant.set("of the test")
    assert testing.run(whose) == TaskResult(ok="none")
    assert tenant.get() == "of the test"


async def test_from_async_code() -> None:
    app = make_app(UNREACHABLE)

    @app.task("plain")
    def plain(x: int) -> Number:
        return TaskResult(ok=x)

    @app.task("awaited")
    async def awaited(x: int) -> Number:
        return TaskResult(ok=x + 1)

    assert (testing.run(plain, 1), testing.run(awaited, 1)) == (TaskResult(ok=1), TaskResult(ok=2))
    assert await testing.run_async(plain, 1) == TaskResult(ok=1)
    assert await testing.run_async(awaited, 1) == TaskResult(ok=2)


def test_a_send_inside_needs_a_mode() -> None:
    app = make_app(UNREACHABLE)

    @app.task("inner")
    def inner(x: int) -> Number:
        return TaskResult(ok=x + 1)

    @app.task("outer")
    def outer() -> Number:
        return TaskResult(ok=inner.send(1).get().unwrap())

    @app.task("forget")
    def forget() -> Number:
        inner.send(1)
        return TaskResult(ok=0)

    refused = testing.run(outer)
    assert refused.err is not None
    assert "testing.run runs one task without a database" in refused.err.message
    with testing.recorded(app) as sends:
        assert testing.run(forget) == TaskResult(ok=0)
    sends.assert_sent(inner, 1)
    with testing.inline(app):
        assert testing.run(outer) == TaskResult(ok=2)
    assert app.stand_in is None


def test_lifespans_open_once_in_the_process() -> None:
    app = make_app(UNREACHABLE)
    opened: list[str] = []

    @app.on_child_start
    def hook() -> None:
        opened.append("hook")

    @app.lifespan
    def pool() -> Iterator[str]:
        opened.append("pool")
        yield "a pool"

    @app.lifespan
    async def client() -> AsyncIterator[int]:
        opened.append("client")
        yield threading.get_ident()

    @app.task("use")
    def use() -> Text:
        return TaskResult(ok=pool.value)

    @app.task("use_async")
    async def use_async() -> TaskResult[bool, TaskError]:
        return TaskResult(ok=client.value == threading.get_ident())

    @app.task("misuse")
    def misuse() -> Number:
        return TaskResult(ok=client.value)

    assert [testing.run(use), testing.run(use)] == [TaskResult(ok="a pool")] * 2
    assert testing.run(use_async) == TaskResult(ok=True)
    assert "belongs to the event loop" in testing.run(misuse).err_value.message
    assert opened == ["hook", "pool", "client"]


AT_EXIT = """
from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult, testing

app = Horsies(AppConfig(PostgresConfig("postgresql://nobody@127.0.0.1:1/nowhere")))

@app.lifespan
def pool():
    yield 1
    print("pool closed")

@app.lifespan
async def client():
    yield 2
    print("client closed")

@app.task("use")
async def use() -> TaskResult[int, TaskError]:
    return TaskResult(ok=pool.value + client.value)

print(testing.run(use).ok)
"""


def test_lifespans_are_closed_when_the_process_ends() -> None:
    run = subprocess.run(
        [sys.executable, "-X", "dev", "-W", "error", "-c", AT_EXIT], check=True, capture_output=True, text=True
    )
    assert (run.stdout, run.stderr) == ("3\nclient closed\npool closed\n", "")


def test_a_lifespan_that_fails_is_told() -> None:
    app = make_app(UNREACHABLE)

    @app.lifespan
    def broken() -> Iterator[None]:
        raise ConnectionError("no server")
        yield

    @app.task("never")
    def never() -> Number:
        return TaskResult(ok=1)

    with pytest.raises(ConnectionError, match="no server"):
        testing.run(never)
    assert app.stand_in is None


def test_what_is_meant_for_the_test_reaches_it() -> None:
    app = make_app(UNREACHABLE)

    @app.task("raises")
    def raises(how: str) -> Number:
        if how == "fail":
            pytest.fail("the test is wrong")
        raise KeyboardInterrupt

    with pytest.raises(pytest.fail.Exception, match="the test is wrong"):
        testing.run(raises, "fail")
    with pytest.raises(KeyboardInterrupt):
        testing.run(raises, "interrupt")
    assert app.stand_in is None


def test_it_takes_a_task_with_a_body() -> None:
    app = make_app(UNREACHABLE)

    @app.declare("elsewhere")
    def elsewhere() -> Number: ...  # type: ignore[empty-body]

    with pytest.raises(UsageError, match="has no body here"):
        testing.run(elsewhere)
    with pytest.raises(UsageError, match="is no task"):
        testing.run(print)  # type: ignore[arg-type]
