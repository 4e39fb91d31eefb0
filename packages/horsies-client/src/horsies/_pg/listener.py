"""Keeps one LISTEN connection: connect, LISTEN, probe, and reconnect when it breaks.

Used by the client's waiters and by the worker. Notifications are lost while the connection is down, so `on_live` is
called after every (re)connect, once LISTEN is active, and the caller reads the tables. A read before that would miss
changes between the read and the LISTEN.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from horsies._pg import log
from horsies._pg.backoff import Backoff
from horsies._pg.refusals import worded
from horsies.config.resilience import ResilienceConfig
from horsies.ids import new_id

OnNotify = Callable[[str], None]

# Only a round trip in the same session detects a half-open connection. A dead LISTEN goes unnoticed for at most the sum
# of both values, which is below ten seconds.
PROBE_EVERY_S = 4.0
PROBE_TIMEOUT_S = 5.0


class Listener:
    """Listens to channels while `run` runs."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[Any]],
        resilience: ResilienceConfig,
        *,
        redact: Callable[[str], str] = str,
    ) -> None:
        self._connect = connect
        self._backoff = Backoff(resilience)
        self._redact = redact
        self.is_live = False

    async def run(
        self,
        channels: Mapping[str, OnNotify],
        *,
        on_live: Callable[[Any], Awaitable[None] | None],
        on_down: Callable[[], None] | None = None,
    ) -> None:
        """Listen until cancelled; reconnects with backoff."""
        while True:
            try:
                await self._session(channels, on_live)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.warning("listener: %s", self._redact(worded(error)))
            finally:
                self.is_live = False
                if on_down is not None:
                    on_down()
            await asyncio.sleep(self._backoff.next())

    async def _session(
        self, channels: Mapping[str, OnNotify], on_live: Callable[[Any], Awaitable[None] | None]
    ) -> None:
        connection = await self._connect()
        lost = asyncio.Event()
        try:

            def ended(_connection: object) -> None:
                lost.set()

            connection.add_termination_listener(ended)

            def received(_connection: object, _pid: int, channel: str, payload: object) -> None:
                channels[channel](str(payload))

            for channel in channels:
                await connection.add_listener(channel, received)
            self.is_live = True
            self._backoff.reset()
            told = on_live(connection)
            if told is not None:
                await told
            while not lost.is_set():
                try:
                    async with asyncio.timeout(
                        PROBE_EVERY_S
                    ):  # wait_for would swallow a cancellation at the moment of the loss
                        await lost.wait()
                except TimeoutError:
                    # the simple query protocol needs one round trip
                    await connection.execute("SELECT 1", timeout=PROBE_TIMEOUT_S)
            raise ConnectionError("the connection was lost")
        except (asyncio.CancelledError, TimeoutError):
            connection.terminate()  # close() would wait for a server that may not answer
            raise
        finally:
            await _close(connection)


async def _close(connection: Any) -> None:
    if connection.is_closed():
        return
    try:
        await connection.close(timeout=2)
    except Exception:  # the connection is broken; terminate only closes the socket
        connection.terminate()


async def notify_round_trip(connection: Any, listening: Any, patience_s: float) -> float | None:
    """Milliseconds that a notification takes from one connection to the other; None when it does not arrive in time."""
    channel = f"horsies_check_{new_id()[-12:]}"
    heard = asyncio.Event()

    def received(*_: object) -> None:
        heard.set()

    await listening.add_listener(channel, received)  # removed when the connection closes
    began = time.monotonic()
    async with connection.transaction():  # without it a pooler may send Parse and Bind to two sessions
        await connection.execute("SELECT pg_notify($1, '')", channel)
    try:
        async with asyncio.timeout(patience_s):
            await heard.wait()
    except TimeoutError:
        return None
    return (time.monotonic() - began) * 1000
