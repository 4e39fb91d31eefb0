"""One LISTEN connection, kept alive: connect, LISTEN, tell, probe, and all over again when it breaks.

Used by the client's waiters and by the worker. A notification is only a hint, and hints get lost while
the connection is down: after every (re)connect `on_live` is called, *after* LISTEN is in force, and the
caller looks for itself. Polling before the new LISTEN is live would lose what falls into the gap.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from horsies._pg import log
from horsies._pg.backoff import Backoff
from horsies.config.resilience import ResilienceConfig

OnNotify = Callable[[str], None]

# A half-open connection looks healthy for ever; a round trip in the same session is what tells. Both together are the
# longest time that a dead LISTEN goes unnoticed: less than ten seconds. Round trips may take up to the second.
PROBE_EVERY_S = 4.0
PROBE_TIMEOUT_S = 5.0


class Listener:
    """Holds LISTEN on some channels while `run` runs."""

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
        """Listen until cancelled; reconnects by itself, with backoff."""
        while True:
            try:
                await self._session(channels, on_live)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                log.warning("listener: %s", self._redact(f"{type(error).__name__}: {error}"))
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
                    async with asyncio.timeout(PROBE_EVERY_S):  # wait_for would swallow a cancel that meets the loss
                        await lost.wait()
                except TimeoutError:
                    # by the simple protocol, in one round trip
                    await connection.execute("SELECT 1", timeout=PROBE_TIMEOUT_S)
            raise ConnectionError("the connection was lost")
        except (asyncio.CancelledError, TimeoutError):
            connection.terminate()  # a goodbye would wait for a server that may not answer
            raise
        finally:
            await _close(connection)


async def _close(connection: Any) -> None:
    if connection.is_closed():
        return
    try:
        await connection.close(timeout=2)
    except Exception:  # broken anyway; terminate only drops the socket
        connection.terminate()
