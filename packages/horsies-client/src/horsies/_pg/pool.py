"""The connections of an app: a pool per event loop, a schema check at the first use, and bounded retries.

Nothing is opened before the first statement. A pool belongs to the loop and the process in which it was made;
`Database` keeps one per loop, and a forked child starts without any (it must never use its parent's sockets).
"""

import asyncio
import os
import time
import weakref
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

from horsies._pg import log
from horsies._pg.backoff import Backoff
from horsies._pg.connections import ConnectionPool
from horsies._pg.driver import Connection, connect, told_silent
from horsies._pg.dsn import connect_arguments
from horsies._pg.embedded import resolve_async
from horsies._pg.enqueue import Write
from horsies._pg.listener import Listener
from horsies._pg.refusals import worded
from horsies._pg.schema_guard import require_schema
from horsies._pg.statements import load
from horsies._pg.transient import Doubt, is_transient
from horsies._pg.waiters import Waiters
from horsies.config.postgres import PostgresConfig
from horsies.config.resilience import ResilienceConfig
from horsies.errors import UsageError

R = TypeVar("R")
Action = Callable[[Any], Awaitable[R]]


class LoopDatabase:
    """The connections of one event loop."""

    def __init__(self, config: PostgresConfig, resilience: ResilienceConfig, *, replica: bool = False) -> None:
        self._config = config
        self._resilience = resilience
        self._replica = replica
        self._pool: ConnectionPool | None = None
        self._opening = asyncio.Lock()
        self._schema_checked = False
        self._closed = False
        self._resolved: PostgresConfig | None = None
        self.waiters = Waiters(self, resilience, schema=config.schema)
        self.feed: object = None
        """Of `horsies.watching`, which makes it at its first use."""

    async def run(self, action: Action[R], doubt: Doubt | None = None) -> R:
        """Run `action(connection)`, and repeat it after transient errors within the bounds of the configuration.

        Only for actions that may run twice: a statement whose answer was lost may have been committed. `doubt` records
        what is known about it.
        """
        give_up = time.monotonic() + self._resilience.send_retry_budget_ms / 1000
        backoff: Backoff | None = None
        attempt = 1
        while True:
            try:
                return await self.run_once(action, doubt)
            except Exception as error:
                backoff = backoff or Backoff(self._resilience)
                delay = backoff.next()
                out_of_bounds = attempt >= self._resilience.send_attempts or time.monotonic() + delay > give_up
                if out_of_bounds or not is_transient(error):
                    raise
                log.info("database: %s; trying again in %.2f s", self._config.redact(worded(error)), delay)
                attempt += 1
                await asyncio.sleep(delay)

    def write(self, write: Write[R], doubt: Doubt) -> Awaitable[R]:
        """Run a write of `enqueue`, again from its start after a transient error.

        After a lost answer the rows of the first attempt may be found. With synchronous replication they can be visible
        although no standby has them: the session that waited for one was ended, or the server was restarted. To see
        them is no acknowledgement, so a commit of this attempt waits for the standby.
        """

        async def confirmed(connection: Connection) -> R:
            in_doubt = doubt.may_be_done
            written = await write(connection.fetch)
            if in_doubt:
                await connection.fetch(load("horsies._pg", "tasks.sql")["await_replication"].sql)
            return written

        return self.run(confirmed, doubt)

    async def run_once(self, action: Action[R], doubt: Doubt | None = None) -> R:
        """Run `action(connection)` on a pooled connection, once."""
        if doubt is not None:
            doubt.was_sent = False
        pool = self._pool or await self._open()
        connection = pool.take() or await pool.acquire(timeout_s=self._config.connect_timeout_ms / 1000)
        try:
            if not self._schema_checked:
                await require_schema(connection, self._config.schema)
                self._schema_checked = True
            if doubt is None:
                return await action(connection)
            doubt.was_sent = True
            try:
                return await action(connection)
            except BaseException as error:
                doubt.note(error)
                raise
        except (asyncio.CancelledError, TimeoutError):
            connection.terminate()  # its answer is still to come, and must not be read by the next user
            raise
        except Exception as error:
            if pool.is_overdue(connection):
                raise TimeoutError(f"not done within {self._config.command_timeout_ms} ms") from error
            raise
        finally:
            pool.release(connection)

    async def connect(self, *, direct: bool = False) -> Connection:
        """Open a connection outside of the pool; the caller closes it. `direct`: for LISTEN, past a pooler."""
        return await connect(connect_arguments(await self._resolve(), direct=direct))

    def listener(self) -> Listener:
        return Listener(partial(self.connect, direct=True), self._resilience, redact=self._config.redact)

    async def close(self) -> None:
        await self.waiters.close()
        async with self._opening:
            pool, self._pool, self._closed = self._pool, None, True
        if pool is not None:
            await pool.close(grace_s=5)

    async def _open(self) -> ConnectionPool:
        async with self._opening:
            if self._closed:  # a retry that slept during close() must not open a new pool
                raise UsageError("the app was closed while this was under way")
            if self._pool is None:
                arguments = connect_arguments(await self._resolve(), replica=self._replica)
                self._pool = ConnectionPool(
                    lambda: connect(arguments),
                    min_size=self._config.pool_min_size,
                    max_size=self._config.pool_max_size,
                    patience_s=arguments.pop("command_timeout", None),  # the pool bounds the time itself
                    late=partial(told_silent, arguments),
                )
            return self._pool

    async def _resolve(self) -> PostgresConfig:
        if self._resolved is None:
            # the replica of an embedded server has a URL of its own
            self._resolved = self._config if self._replica else await resolve_async(self._config)
        return self._resolved


class Database:
    """The database of an app, for all its event loops and processes. `replica`: the one of `replica_url`."""

    def __init__(self, config: PostgresConfig, resilience: ResilienceConfig, *, replica: bool = False) -> None:
        self._config = config
        self._replica = replica
        self._resilience = resilience
        self.loops: dict[asyncio.AbstractEventLoop, LoopDatabase] = {}
        self._checked: set[str] = set()
        _databases.add(self)

    def is_unchecked(self, library: str) -> bool:
        """True until a caller's connection of this library was found to see the right tables. With a configured schema
        every statement names it, and there is nothing to check."""
        return self._config.schema is None and library not in self._checked

    def mark_checked(self, library: str) -> None:
        self._checked.add(library)

    def here(self) -> LoopDatabase:
        """The connections of the running loop."""
        loop = asyncio.get_running_loop()
        found = self.loops.get(loop)
        if found is None:
            self.forget_closed_loops()
            found = self.loops[loop] = LoopDatabase(self._config, self._resilience, replica=self._replica)
        return found

    def forget_closed_loops(self) -> None:
        """Remove the entries of loops that were closed without aclose(); with them their connections are gone."""
        for stale in [known for known in list(self.loops) if known.is_closed()]:  # a copy: other threads change it
            self.loops.pop(stale, None)

    async def close_here(self) -> None:
        """Close the connections of the running loop."""
        found = self.loops.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.close()

    def forget(self) -> None:
        """In a forked child: drop the parent's connections without closing them."""
        _inherited.append(dict(self.loops))
        self.loops.clear()


_databases: "weakref.WeakSet[Database]" = weakref.WeakSet()
# never freed: a destructor would write to sockets that belong to the parent
_inherited: Final[list[object]] = []


def _after_fork() -> None:
    for database in list(_databases):
        database.forget()


os.register_at_fork(after_in_child=_after_fork)
