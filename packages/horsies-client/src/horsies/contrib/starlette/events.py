"""Server-sent events: the progress of a task or a run, until its end.

The events are states, not a log: a client that comes back gets the current state, unless it has that already
(`Last-Event-ID`). A stream ends after `max_s`, and browsers come back by themselves: so a server that stops does not
wait for a stream for ever, and a permission is checked again now and then.
"""

import asyncio
import hashlib
import logging
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from horsies._awaited import Awaited
from horsies.contrib.starlette.results import as_json, ended, not_found, unavailable
from horsies.contrib.starlette.waiting import seconds, while_connected
from horsies.errors import BrokerError
from horsies.result import TaskError
from horsies.watching import Progress, look, watch

T = TypeVar("T")

KEEPALIVE_S: Final = 15.0
MAX_S: Final = 300.0
RETRY_MS: Final = 2_000
_KEEPALIVE: Final = b": keepalive\n\n"
_log = logging.getLogger("horsies")


async def event_stream(
    request: Request,
    handle: Awaited[T],
    *,
    describe: Callable[[Progress], Any] | None = None,
    result: bool = False,
    show_result: Callable[[T], Any] | None = None,
    show_error: Callable[[TaskError], Any] | None = None,
    interval_s: float = 1.0,
    keepalive_s: float = KEEPALIVE_S,
    max_s: float = MAX_S,
) -> Response:
    """A stream of events: `progress` now and after each change, `end` when the task or the run has ended. 404 and 503
    as `result_response`.

    The data is `{"id", "status", "attempt", "progress"}` of a task, `{"id", "status", "nodes": {"total", "ended"}}` of
    a run, or what `describe` makes of it. With `result`, the `end` has the result or the error too, by `show_result`
    and `show_error` of `result_response`. A client that has seen the `end` and comes back gets 204, which tells a
    browser to stay away.
    """
    interval_s = seconds("event_stream", "interval_s", interval_s, 0.1, 3_600)
    keepalive_s = seconds("event_stream", "keepalive_s", keepalive_s, 0.1, 3_600)
    max_s = seconds("event_stream", "max_s", max_s, 1, 86_400)
    try:
        state = await look(handle)
    except BrokerError as error:
        return unavailable(handle, error)
    if state is None:
        return not_found()

    async def event_of(state: Progress) -> _Event:
        body = _described(state) if describe is None else describe(state)
        if state.is_ended and result:
            told = ended(state, await handle.get_async(0), show_result, show_error)
            body = {**(cast("dict[str, Any]", body) if isinstance(body, dict) else {"progress": body}), **told}
        return _Event("end" if state.is_ended else "progress", as_json(body))

    seen = request.headers.get("last-event-id")
    if state.is_ended and (await event_of(state)).id == seen:
        return Response(status_code=204)

    async def send_all(send: Send) -> None:
        async def write(chunk: bytes) -> None:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})

        await write(b"retry: %d\n\n" % RETRY_MS)
        until, last = time.monotonic() + max_s, seen
        async with watch(handle, interval_ms=round(interval_s * 1000)) as states:
            while (left := until - time.monotonic()) > 0:
                try:
                    async with asyncio.timeout(min(left, keepalive_s)):
                        change = await states.next()
                except TimeoutError:
                    await write(_KEEPALIVE)
                    continue
                if change is None:
                    break
                event = await event_of(change)
                if event.id != last:
                    await write(event.text)
                    last = event.id
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return _EventStream(send_all)


def _described(state: Progress) -> dict[str, Any]:
    body: dict[str, Any] = {"id": state.id, "status": state.status}
    if state.nodes_total is not None:
        body["nodes"] = {"total": state.nodes_total, "ended": state.nodes_ended}
    else:
        body |= {"attempt": state.attempt, "progress": state.value}
    if state.error_code is not None:
        body["error"] = {"code": state.error_code}
    return body


class _Event:
    def __init__(self, name: str, data: bytes) -> None:
        self.id = hashlib.sha256(name.encode() + data).hexdigest()[:16]
        self.text = b"id: %b\nevent: %b\ndata: %b\n\n" % (self.id.encode(), name.encode(), data)


class _EventStream(Response):
    """Like Starlette's StreamingResponse, which learns of a client that hung up only at its next write, from servers
    that speak ASGI 2.4: here the watch ends at once."""

    media_type = "text/event-stream"

    def __init__(self, send_all: Callable[[Send], Any]) -> None:
        # X-Accel-Buffering: nginx and others would hold events back until their buffer is full
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._send_all = send_all

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        if scope["method"] == "HEAD":  # its answer has no body, and the client's connection is free for the next one
            await send({"type": "http.response.body", "body": b"", "more_body": False})
            return
        try:
            await while_connected(receive, self._send_all(send))
        except OSError:  # the client hung up during a write
            pass
        except BrokerError as error:
            # The status has been sent. The client sees a broken stream and comes back.
            _log.error("a stream of events has ended: %s", error)
        if self.background is not None:
            await self.background()
