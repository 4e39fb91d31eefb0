"""Waiting for a condition, with a deadline, instead of sleeping and hoping.

Both functions return the first truthy value of the predicate, so a test can wait for a thing and then use it.
The time between two looks grows with the time that was waited, up to a tenth of a second: a look is often a connection
to the database, and many tests look at the same time. On timeout they raise AssertionError naming what was awaited and
the last value seen. They never swallow an exception of the predicate: a predicate that may fail while things are
starting has to say so itself.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

T = TypeVar("T")


def eventually(
    predicate: Callable[[], T], *, timeout: float = 30.0, interval: float | None = None, describe: str | None = None
) -> T:
    """Call `predicate` until it is truthy and return that value; AssertionError after `timeout` seconds."""
    began = time.monotonic()
    while True:
        value = predicate()
        if value:
            return value
        waited = time.monotonic() - began
        if waited >= timeout:
            raise AssertionError(_failure(predicate, describe, timeout, value))
        time.sleep(_pause(waited) if interval is None else interval)


async def eventually_async(
    predicate: Callable[[], Awaitable[T] | T],
    *,
    timeout: float = 30.0,
    interval: float | None = None,
    describe: str | None = None,
) -> T:
    """Like `eventually`, on the running loop; `predicate` may be a plain or a coroutine function."""
    began = time.monotonic()
    while True:
        outcome = predicate()
        value: T = await outcome if inspect.isawaitable(outcome) else outcome
        if value:
            return value
        waited = time.monotonic() - began
        if waited >= timeout:
            raise AssertionError(_failure(predicate, describe, timeout, value))
        await asyncio.sleep(_pause(waited) if interval is None else interval)


def _pause(waited: float) -> float:
    return min(max(0.01, waited / 20), 0.1)


def _failure(predicate: object, describe: str | None, timeout: float, last: object) -> str:
    return f"not within {timeout:g} s: {describe or _source(predicate)} (last value: {last!r})"


def _source(predicate: object) -> str:
    # The text of a lambda says more than "<lambda>"; it is not available in a REPL or a frozen test.
    try:
        lines = inspect.getsource(predicate)  # type: ignore[arg-type]
    except (OSError, TypeError):
        return repr(predicate)
    return " ".join(lines.split())
