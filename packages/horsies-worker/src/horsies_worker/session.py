"""One database connection with one purpose, opened when needed and opened again when it broke.

The parent holds a handful: claim, finalize, upkeep, reaper. Each serves one statement at a time, so that a slow
finalize never keeps a heartbeat waiting. Errors go to the caller; a connection that may be broken is dropped.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeVar

from horsies._pg.driver import connect
from horsies._pg.dsn import connect_arguments
from horsies._pg.transient import is_transient
from horsies.config import PostgresConfig

R = TypeVar("R")

# The plan of the claim is part of its contract: prepared on an empty table, it must still walk the index when the
# table is full and never analyzed. The same holds for whatever else a worker asks: all of it is a few rows by an index.
CLAIM_SETTINGS: Final = {
    "jit": "off",
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "enable_bitmapscan": "off",
    "enable_material": "off",
}
# A statement of ours that takes longer hangs on a lock or a dead connection; it is tried again under its fence.
STATEMENT_TIMEOUT_S: Final = 15.0
MAX_PATIENCE: Final = 4
MAX_CONNECT_PATIENCE: Final = 2
"""Less: what a silent partition swallowed is lost, and only the next try gets through when it is over."""
# The server's own bounds. A statement whose client has given up must not be carried out minutes later; and a worker
# that is frozen inside a transaction must not keep the lock of the caps or of the sweep from the whole fleet.
LIMITS: Final = {"statement_timeout": "20s", "idle_in_transaction_session_timeout": "5s"}
OUTLIVED_S: Final = 25.0
"""By then no statement of a connection that was lost can still be at work."""


def set_local(settings: Mapping[str, str]) -> str:
    """For a transaction through a pooler, whose sessions are everybody's."""
    return "; ".join(f"SET LOCAL {name} = '{value}'" for name, value in settings.items())


SET_LOCAL_LIMITS: Final = set_local(LIMITS)
SET_LOCAL_CLAIM_SETTINGS: Final = set_local({**LIMITS, **CLAIM_SETTINGS})


async def close(connection: Any, timeout_s: float = 2.0) -> None:
    """Close politely; a server that does not answer in time is left without a word."""
    if connection is None or connection.is_closed():
        return
    try:
        await connection.close(timeout=timeout_s)
    except Exception:  # broken already
        connection.terminate()


def is_cancelled() -> bool:
    """Whether the running task has been told to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Session:
    """`run` one action at a time on a connection of its own."""

    def __init__(self, config: PostgresConfig, purpose: str, *, settings: dict[str, str] | None = None) -> None:
        self._config = config
        self._purpose = purpose
        self._settings = settings or {}
        self._connection: Any = None
        self._lock = asyncio.Lock()
        self.patience = 1
        """How many times as long as usual to wait for an answer. A retry with the bound that was just too short would
        be too short again, on a line of 3 s round trips."""

    @property
    def pooled(self) -> bool:
        return self._config.pooler

    async def run(self, action: Callable[[Any], Awaitable[R]]) -> R:
        """Run `action(connection)`. After an error that may have broken the session, the next run opens another."""
        async with self._lock:
            try:
                if self._connection is None or self._connection.is_closed():
                    self._connection = await self._open()
                return await action(self._connection)
            except BaseException as error:
                if isinstance(error, TimeoutError):
                    self.patience = min(2 * self.patience, MAX_PATIENCE)
                if isinstance(error, asyncio.CancelledError) or is_transient(error):
                    self.drop()
                if isinstance(error, Exception) and is_cancelled():
                    # A service that is told to end must end, even if its cancellation met an error on the way out.
                    raise asyncio.CancelledError from error
                raise

    async def close(self, timeout_s: float = 2.0) -> None:
        async with self._lock:
            connection, self._connection = self._connection, None
            await close(connection, timeout_s)

    def drop(self) -> None:
        """End the connection without a word; an action that uses it fails."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _open(self) -> Any:
        arguments = connect_arguments(self._config)
        settings: dict[str, str] = arguments["server_settings"]
        settings["application_name"] = f"{self._config.application_name} worker {self._purpose}"[:63]
        if not self._config.pooler:
            settings.update(LIMITS)
            settings.update(self._settings)
        usual = arguments["timeout"]
        bound = min(arguments.get("command_timeout", STATEMENT_TIMEOUT_S), STATEMENT_TIMEOUT_S)
        arguments["command_timeout"] = self.patience * bound
        arguments["timeout"] = min(self.patience, MAX_CONNECT_PATIENCE) * usual
        began = time.monotonic()
        connection = await connect(arguments)
        if time.monotonic() - began < usual / 4:
            self.patience = 1  # the line is quick again
        return connection
