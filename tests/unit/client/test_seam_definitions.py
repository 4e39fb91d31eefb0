"""Definitions of middleware and lifespans that cannot work are refused where they are made."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from horsies import AppConfig, ConfigurationError, Horsies, Middleware, PostgresConfig, UsageError

BROKER = PostgresConfig("postgresql://u@h/d")


class Awaits(Middleware):
    async def on_send(self, task: Any) -> None:  # type: ignore[override]
        pass

    async def run_task(self, ctx: Any, call: Any) -> Any:
        return call()

    async def on_attempt_end(self, end: Any) -> None:  # type: ignore[override]
        pass


def test_async_hooks_are_refused_all_at_once() -> None:
    with pytest.raises(ConfigurationError) as refused:
        AppConfig(BROKER, middleware=[Awaits()])
    text = str(refused.value)
    for name in ("on_send", "run_task", "on_attempt_end"):
        assert f"Awaits.{name} is `async def`: it would never be awaited" in text
    assert "run_task_async for async tasks" in text


def test_the_hook_of_async_tasks_is_async() -> None:
    class Fine(Middleware):
        async def run_task_async(self, ctx: Any, call: Any) -> Any:
            return await call()

    assert len(AppConfig(BROKER, middleware=[Fine()]).middleware) == 1


def test_a_lifespan_takes_no_arguments() -> None:
    app = Horsies(AppConfig(BROKER))

    def of_an_app(app: Horsies) -> Iterator[int]:
        yield 1

    async def with_two(a: int, b: int = 2, *rest: int) -> AsyncIterator[int]:
        yield 1

    def with_defaults(a: int = 1) -> Iterator[int]:
        yield a

    with pytest.raises(UsageError, match=r"lifespan 'of_an_app' .*takes app, and is called without arguments"):
        app.lifespan(of_an_app)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]
    with pytest.raises(UsageError, match=r"takes a, and is called"):
        app.lifespan(with_two)  # type: ignore[call-overload] # pyright: ignore[reportCallIssue, reportArgumentType]
    assert app.lifespan(with_defaults).name == "with_defaults"
    assert len(app.lifespans) == 1
