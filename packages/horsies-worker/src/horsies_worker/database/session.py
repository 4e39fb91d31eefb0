"""One database connection with one purpose, opened when needed and opened again when it broke.

Each session runs one statement at a time; a worker has several, so that a slow finalize never delays a heartbeat.
Errors go to the caller, and a connection that may be broken is dropped.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from horsies._pg.driver import connect
from horsies._pg.dsn import connect_arguments
from horsies._pg.transient import is_transient
from horsies.config import PostgresConfig
from horsies_worker.database.queries import Queries
from horsies_worker.database.settings import SET_LOCAL, SETTINGS

R = TypeVar("R")
# A statement that takes longer hangs on a lock or a dead connection; it is repeated under its fence.
STATEMENT_TIMEOUT_S: Final = 15.0
MAX_PATIENCE: Final = 4
MAX_CONNECT_PATIENCE: Final = 2
"""Smaller: a connection attempt into a silent partition is lost, and only the next one gets through when it ends."""
OUTLIVED_S: Final = 25.0
"""After this time no statement of a lost connection can still be running."""


async def close(connection: Any, timeout_s: float = 2.0) -> None:
    """Close the connection, and terminate it if the server does not answer in time."""
    if connection is None or connection.is_closed():
        return
    try:
        await connection.close(timeout=timeout_s)
    except Exception:  # broken already
        connection.terminate()


def is_cancelled() -> bool:
    """Whether the running asyncio task has been cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


class Session:
    """`run` one action at a time on a connection of its own. `queries`: the statements that its actions make."""

    def __init__(self, config: PostgresConfig, purpose: str, queries: Queries) -> None:
        self._config = config
        self._purpose = purpose
        self.queries = queries
        self.pooled = config.pooler
        self._connection: Any = None
        self._lock = asyncio.Lock()
        self.patience = 1
        """Factor on the usual timeouts: on a line with 3 s round trips, a retry with the same one would fail again."""

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
                    # A cancelled service must end, even if an error replaced its cancellation.
                    raise asyncio.CancelledError from error
                raise

    async def ask(self, name: str, *values: Any) -> list[Any]:
        """Run one statement; return its rows."""
        return await self.run(lambda connection: self.queries.fetch(connection, name, *values, pooled=self.pooled))

    @asynccontextmanager
    async def transaction(self, connection: Any) -> AsyncGenerator[None]:
        """A transaction inside an action. Through a pooler it gets the session's settings."""
        async with connection.transaction(isolation="read_committed"):
            if self.pooled:
                await connection.execute(SET_LOCAL)
            yield

    async def close(self, timeout_s: float = 2.0) -> None:
        async with self._lock:
            connection, self._connection = self._connection, None
            await close(connection, timeout_s)

    def drop(self) -> None:
        """Terminate the connection; an action that uses it fails."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()

    async def _open(self) -> Any:
        arguments = connect_arguments(self._config)
        settings: dict[str, str] = arguments["server_settings"]
        settings["application_name"] = f"{self._config.application_name} worker {self._purpose}"[:63]
        if not self.pooled:
            settings.update(SETTINGS)
        usual = arguments["timeout"]
        bound = min(arguments.get("command_timeout", STATEMENT_TIMEOUT_S), STATEMENT_TIMEOUT_S)
        arguments["command_timeout"] = self.patience * bound
        arguments["timeout"] = min(self.patience, MAX_CONNECT_PATIENCE) * usual
        began = time.monotonic()
        connection = await connect(arguments)
        if time.monotonic() - began < usual / 4:
            self.patience = 1  # the line is quick again
        return connection


class Sessions:
    """The sessions of one worker: one for each service that must not wait for another."""

    def __init__(self, broker: PostgresConfig, queries: Queries) -> None:
        self._all: list[Session] = []

        def session(purpose: str) -> Session:
            self._all.append(Session(broker, purpose, queries))
            return self._all[-1]

        self.claim = session("claim")
        self.finalize = session("finalize")
        self.heartbeat = session("heartbeat")
        self.reaper = session("reaper")
        self.pruner = session("pruner")
        self.scheduler = session("scheduler")
        self.workflows = session("workflows")

    async def close(self, timeout_s: float) -> None:
        """Close all of them at the same time: any of their servers may not answer."""
        closing = [asyncio.ensure_future(session.close(timeout_s)) for session in self._all]
        await asyncio.wait(closing, timeout=timeout_s)
        for session in self._all:
            session.drop()
