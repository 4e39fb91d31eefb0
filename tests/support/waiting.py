"""Waiting for a condition, with a deadline, instead of sleeping and hoping.

Both functions return the first truthy value of the predicate, so a test can wait for a thing and then use it.
On timeout they raise AssertionError naming what was awaited and the last value seen. They never swallow an
exception of the predicate: a predicate that may fail while things are starting has to say so itself.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    predicate: Callable[[], T], *, timeout: float = 30.0, interval: float = 0.02, describe: str | None = None
) -> T:
    """Call `predicate` until it is truthy and return that value; AssertionError after `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        value = predicate()
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(_failure(predicate, describe, timeout, value))
        time.sleep(interval)


async def eventually_async(
    predicate: Callable[[], Awaitable[T] | T],
    *,
    timeout: float = 30.0,
    interval: float = 0.02,
    describe: str | None = None,
) -> T:
    """Like `eventually`, on the running loop; `predicate` may be a plain or a coroutine function."""
    deadline = time.monotonic() + timeout
    while True:
        outcome = predicate()
        value: T = await outcome if inspect.isawaitable(outcome) else outcome
        if value:
            return value
        if time.monotonic() >= deadline:
            raise AssertionError(_failure(predicate, describe, timeout, value))
        await asyncio.sleep(interval)


def _failure(predicate: object, describe: str | None, timeout: float, last: object) -> str:
    return f"not within {timeout:g} s: {describe or _source(predicate)} (last value: {last!r})"


def _source(predicate: object) -> str:
    # The text of a lambda says more than "<lambda>"; it is not available in a REPL or a frozen test.
    try:
        lines = inspect.getsource(predicate)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return repr(predicate)
    return " ".join(lines.split())
