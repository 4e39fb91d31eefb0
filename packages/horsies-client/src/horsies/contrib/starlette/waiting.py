"""Waits for a result for as long as the client does."""

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any, Final, TypeVar, cast

from starlette.requests import Request

from horsies._awaited import Awaited, err
from horsies._checks import shown
from horsies.errors import RetrievalCode, UsageError
from horsies.result import TaskError, TaskResult

T = TypeVar("T")
R = TypeVar("R")
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]

MAX_WAIT_S: Final = 3_600.0


async def wait_for(request: Request, handle: Awaited[T], timeout_s: float) -> TaskResult[T, TaskError]:
    """`handle.get_async` that ends when the client hangs up, then with an err WAIT_TIMEOUT, or after `timeout_s`.
    What is not read of the request's body by now is dropped."""
    if not isinstance(handle, Awaited):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(f"wait_for takes a handle, not {shown(handle)}: give what send() returned, or app.handle(id)")
    timeout_ms = round(seconds("wait_for", "timeout_s", timeout_s, 0, MAX_WAIT_S) * 1000)
    found = await while_connected(request.receive, handle.get_async(timeout_ms))
    if found is None:
        return err(RetrievalCode.WAIT_TIMEOUT, f"{handle!r} has not ended, and the client has hung up")
    return found


async def while_connected(receive: Receive, work: Coroutine[Any, Any, R]) -> R | None:
    """What `work` returns; None when the client hung up first, and `work` was cancelled."""
    working = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((working, gone), return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        for one in (working, gone):
            one.cancel()
        # `working` may still leave a connection or a waiter when it is cancelled
        await asyncio.gather(working, gone, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def seconds(verb: str, name: str, value: object, low: float, high: float) -> float:
    """The value, or UsageError when it is not a number of seconds within the bounds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise UsageError(f"{verb}: {name} is a number of seconds, not {shown(value)}")
    number = cast("float", value)
    if not low <= number <= high:
        raise UsageError(f"{verb}: {name} is {number:g}, and must be {low:g} to {high:g} seconds")
    return number
