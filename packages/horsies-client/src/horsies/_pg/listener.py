"""Keeps one LISTEN connection: connect, LISTEN, probe, and reconnect when it breaks.

Used by the client's waiters and by the worker. Notifications are lost while the connection is down, so `on_live` is
called after every (re)connect, once LISTEN is active, and the caller reads the tables. A read before that would miss
changes between the read and the LISTEN. The same holds for a channel that is added while the connection is live, for
which `on_added` is called.
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
LISTEN_TIMEOUT_S = 10.0
"""For LISTEN and UNLISTEN, which asyncpg prepares first: two round trips."""


class Listener:
    """Listens to channels while `run` runs. The owner of the mapping of channels may change it meanwhile, and calls
    `follow`."""

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
        self._stirred = asyncio.Event()
        """The connection was lost, or the channels have changed."""
        self._in_force: set[str] = set()
        self.is_live = False

    def hears(self, channel: str) -> bool:
        """LISTEN is active for this channel."""
        return channel in self._in_force

    def follow(self) -> None:
        """LISTEN to the channels that were added to the mapping, and UNLISTEN those that were removed from it."""
        self._stirred.set()

    async def run(
        self,
        channels: Mapping[str, OnNotify],
        *,
        on_live: Callable[[Any], Awaitable[None] | None],
        on_added: Callable[[str], None] | None = None,
        on_down: Callable[[], None] | None = None,
    ) -> None:
        """Listen until cancelled; reconnects with backoff."""
        while True:
            try:
                await self._session(channels, on_live, on_added)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.warning("listener: %s", self._redact(worded(error)))
            finally:
                self.is_live = False
                self._in_force.clear()
                if on_down is not None:
                    on_down()
            await asyncio.sleep(self._backoff.next())

    async def _session(
        self,
        channels: Mapping[str, OnNotify],
        on_live: Callable[[Any], Awaitable[None] | None],
        on_added: Callable[[str], None] | None,
    ) -> None:
        connection = await self._connect()
        lost = asyncio.Event()
        try:

            def ended(_connection: object) -> None:
                lost.set()
                self._stirred.set()

            def received(_connection: object, _pid: int, channel: str, payload: object) -> None:
                on_notify = channels.get(channel)  # a removed channel is heard until UNLISTEN is active
                if on_notify is not None:
                    on_notify(str(payload))

            connection.add_termination_listener(ended)
            await self._adjust(connection, channels, received)
            self.is_live = True
            told = on_live(connection)
            if told is not None:
                await told
            self._backoff.reset()  # not before: a server that accepts the session may refuse what follows
            while True:
                self._stirred.clear()
                if lost.is_set():
                    raise ConnectionError("the connection was lost")
                await self._adjust(connection, channels, received, on_added)
                try:
                    # wait_for would swallow a cancellation at the moment of the loss
                    async with asyncio.timeout(PROBE_EVERY_S):
                        await self._stirred.wait()
                except TimeoutError:
                    # the simple query protocol needs one round trip
                    await connection.execute("SELECT 1", timeout=PROBE_TIMEOUT_S)
        except (asyncio.CancelledError, TimeoutError):
            connection.terminate()  # close() would wait for a server that may not answer
            raise
        finally:
            await _close(connection)

    async def _adjust(
        self,
        connection: Any,
        channels: Mapping[str, OnNotify],
        received: Callable[..., None],
        on_added: Callable[[str], None] | None = None,
    ) -> None:
        """LISTEN to the channels of the mapping and to no other. It may change during each round trip."""
        for channel in [one for one in channels if one not in self._in_force]:
            async with asyncio.timeout(LISTEN_TIMEOUT_S):
                await connection.add_listener(channel, received)
            self._in_force.add(channel)
            if on_added is not None:
                on_added(channel)
        for channel in [one for one in self._in_force if one not in channels]:
            if channel not in channels:
                self._in_force.discard(channel)  # first: from here on it may not be heard
                async with asyncio.timeout(LISTEN_TIMEOUT_S):
                    await connection.remove_listener(channel, received)


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
