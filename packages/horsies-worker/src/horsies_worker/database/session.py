"""One database connection with one purpose, opened when needed and opened again when it broke.

Each session runs one statement at a time; a worker has several, so that a slow finalize never delays a heartbeat.
Errors go to the caller, and a connection that may be broken is dropped. An idle worker keeps two of these connections,
for claims and heartbeats; those for other work are closed when they are not used.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from horsies._pg.driver import connect
from horsies._pg.dsn import connect_arguments
from horsies._pg.refusals import worded
from horsies._pg.transient import is_notify_queue_full, is_transient
from horsies.config import PostgresConfig
from horsies.events import DatabaseLost, DatabaseRegained
from horsies_worker.database.queries import Queries
from horsies_worker.database.settings import LIMIT_TRANSACTIONS, SET_LOCAL, SETTINGS
from horsies_worker.events.bus import SILENT, EventBus

R = TypeVar("R")
# A statement that takes longer hangs on a lock or a dead connection; it is repeated under its fence.
STATEMENT_TIMEOUT_S: Final = 15.0
MAX_PATIENCE: Final = 4
MAX_CONNECT_PATIENCE: Final = 2
"""Smaller: a connection attempt into a silent partition is lost, and only the next one gets through when it ends."""
OUTLIVED_S: Final = 25.0
"""After this time no statement of a lost connection can still be running."""
IDLE_S: Final = 30.0
"""A connection that an idle worker does not need is closed after this time without use."""


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

    def __init__(
        self,
        config: PostgresConfig,
        purpose: str,
        queries: Queries,
        *,
        idle_s: float | None = None,
        lender: "Session | None" = None,
        bus: EventBus = SILENT,
    ) -> None:
        """`idle_s`: close the connection after this time without use. `lender`: use the connection of this session as
        long as neither gets in the other's way, and open one of its own otherwise."""
        self._config = config
        self._purpose = purpose
        self._bus = bus
        self._lost_at: float | None = None
        self.queries = queries
        self.pooled = config.pooler
        self._connection: Any = None
        self._lock = asyncio.Lock()
        self._wanted = 0
        """The actions that run or wait for their turn."""
        self._idle_s = idle_s
        self._used_at = 0.0
        self._idle_timer: asyncio.TimerHandle | None = None
        self._closing: asyncio.Future[None] | None = None
        self._lender = lender
        self._was_in_the_way = False
        self._failed_to_open: tuple[int, Exception | None] = (0, None)
        """How often that happened, and with which error the last time."""
        self._queue_was_full = False
        self.breaks = 0
        """How often a connection broke, or may have broken."""
        self.patience = 1
        """Factor on the usual timeouts: on a line with 3 s round trips, a retry with the same one would fail again."""

    async def run(self, action: Callable[[Any], Awaitable[R]]) -> R:
        """Run `action(connection)`. After an error that may have broken the session, the next run opens another."""
        lender = self._lender
        if lender is not None and not (self._is_open or self._was_in_the_way) and lender.is_free:
            try:
                answer = await lender.run(action)
            finally:
                self._was_in_the_way = lender.is_wanted
            if self._lost_at is not None:
                self._tell_regained()
            return answer
        self._was_in_the_way = False
        self._wanted += 1
        failures = self._failed_to_open[0]
        try:
            async with self._lock:
                count, error = self._failed_to_open
                if error is not None and count > failures:
                    # It was tried while this action waited for its turn. With a try for each of those that wait, and
                    # a silent network, heartbeats would not learn for minutes that they have no contact.
                    raise error.with_traceback(None)
                return await self._run(action)
        finally:
            self._wanted -= 1
            self._used_at = time.monotonic()

    async def _run(self, action: Callable[[Any], Awaitable[R]]) -> R:
        try:
            if not self._is_open:
                self.breaks += self._connection is not None
                await self._open_or_note()
            return await action(self._connection)
        except BaseException as error:
            if isinstance(error, TimeoutError):
                self.patience = min(2 * self.patience, MAX_PATIENCE)
            if isinstance(error, Exception) and not self._is_open:
                self._tell_lost(error)
            if isinstance(error, asyncio.CancelledError) or is_transient(error):
                self.breaks += 1
                self.drop()
                self._queue_was_full = is_notify_queue_full(error)
            if isinstance(error, Exception) and is_cancelled():
                # A cancelled service must end, even if an error replaced its cancellation.
                raise asyncio.CancelledError from error
            raise

    async def _open_or_note(self) -> None:
        try:
            self._connection = await self._open()
        except Exception as error:
            self._failed_to_open = (self._failed_to_open[0] + 1, error)
            raise
        self._failed_to_open = (self._failed_to_open[0], None)
        self._tell_regained()
        if self._idle_s is not None:
            self._close_in(self._idle_s, self._idle_s)

    def _tell_lost(self, error: Exception) -> None:
        """Once per outage."""
        if self._lost_at is None:
            self._lost_at = time.monotonic()
            self._bus.emit(DatabaseLost(self._purpose, self._config.redact(worded(error))))

    def _tell_regained(self) -> None:
        if self._lost_at is not None:
            outage_s, self._lost_at = time.monotonic() - self._lost_at, None
            self._bus.emit(DatabaseRegained(self._purpose, outage_s))

    def end_outage_if_unused(self, quiet_s: float) -> None:
        """The database answers other sessions, and this one has not been used for so long: what it was needed for has
        been done elsewhere, so it does not have to be opened to tell that the outage is over."""
        if self.is_lost and not self.is_wanted and time.monotonic() - self._used_at >= quiet_s:
            self._tell_regained()

    @property
    def is_lost(self) -> bool:
        """Its last action found the connection broken, and it has not been opened again."""
        return self._lost_at is not None

    @property
    def _is_open(self) -> bool:
        return self._connection is not None and not self._connection.is_closed()

    @property
    def is_wanted(self) -> bool:
        """An action runs, or waits for its turn."""
        return self._wanted > 0

    @property
    def is_free(self) -> bool:
        """An action would run at once, without opening a connection."""
        return self._is_open and not self.is_wanted

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

    def another(self, purpose: str) -> "Session":
        """A session with a connection of its own to the same database. Its maker closes it."""
        return Session(self._config, purpose, self.queries)

    async def close(self, timeout_s: float = 2.0) -> None:
        async with self._lock:
            connection = self._forget()
            await close(connection, timeout_s)
            if self._closing is not None:
                await self._closing

    def drop(self) -> None:
        """Terminate the connection; an action that uses it fails."""
        connection = self._forget()
        if connection is not None:
            connection.terminate()

    def _forget(self) -> Any:
        connection, self._connection = self._connection, None
        self._stop_timer()
        return connection

    def _stop_timer(self) -> None:
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _close_in(self, seconds: float, idle_s: float) -> None:
        """One timer for as long as the connection is open: a timer per statement would cost more than it is worth."""
        self._stop_timer()
        self._idle_timer = asyncio.get_running_loop().call_later(seconds, self._close_if_idle, idle_s)

    def _close_if_idle(self, idle_s: float) -> None:
        left_s = idle_s if self.is_wanted else self._used_at + idle_s - time.monotonic()
        if left_s > 0:
            self._close_in(left_s, idle_s)
        else:
            self._closing = asyncio.ensure_future(close(self._forget()))

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
        try:
            if not self.pooled:
                await connection.execute(LIMIT_TRANSACTIONS)
                await self.queries.check_leader(connection)
            if self._queue_was_full:
                # The server frees what has been read only when a notification is added, which it refuses, or here.
                await connection.execute("SELECT pg_catalog.pg_notification_queue_usage()")
        except BaseException:
            connection.terminate()
            raise
        return connection


class Sessions:
    """The sessions of one worker: one for each service that must not wait for another.

    An idle worker has two connections here, for claims and heartbeats; services that only look whether there is work
    for them look on the heartbeats' connection. Results of rare tasks are written on the claims' connection.
    """

    def __init__(self, broker: PostgresConfig, queries: Queries, bus: EventBus = SILENT) -> None:
        self._all: list[Session] = []

        def session(purpose: str, **options: Any) -> Session:
            self._all.append(Session(broker, purpose, queries, bus=bus, **options))
            return self._all[-1]

        self.claim = session("claim")
        self.heartbeat = session("heartbeat")
        self.finalize = session("finalize", idle_s=IDLE_S, lender=self.claim)
        self.reaper = session("reaper", idle_s=IDLE_S)
        self.pruner = session("pruner", idle_s=IDLE_S)
        self.scheduler = session("scheduler", idle_s=IDLE_S)
        self.workflows = session("workflows", idle_s=IDLE_S)

    @property
    def is_connected(self) -> bool:
        """Claims and heartbeats have the database. The others are opened only when there is work for them, so they
        may have lost it in an outage that ended long ago."""
        return not (self.claim.is_lost or self.heartbeat.is_lost)

    @property
    def breaks(self) -> int:
        """How often one of the connections broke: another server may lead now."""
        return sum(session.breaks for session in self._all)

    def end_unused_outages(self, quiet_s: float) -> None:
        """Call it when the database has answered. `quiet_s`: longer than the longest wait before a retry."""
        for session in self._all:
            session.end_outage_if_unused(quiet_s)

    async def close(self, timeout_s: float) -> None:
        """Close all of them at the same time: any of their servers may not answer."""
        closing = [asyncio.ensure_future(session.close(timeout_s)) for session in self._all]
        await asyncio.wait(closing, timeout=timeout_s)
        for session in self._all:
            session.drop()
