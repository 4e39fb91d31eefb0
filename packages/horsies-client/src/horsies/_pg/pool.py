"""Connections of one app on one event loop: a lazy pool, checked once, with bounded retries.

Nothing is opened before the first statement. A pool belongs to the loop and the process it was made in;
`Database` keeps one per loop, and a forked child starts with none (it must never touch its parent's sockets).
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
from horsies._pg.driver import Connection, connect
from horsies._pg.dsn import connect_arguments
from horsies._pg.embedded import resolve_async
from horsies._pg.enqueue import Write
from horsies._pg.listener import Listener
from horsies._pg.schema_guard import require_schema
from horsies._pg.transient import Doubt, is_transient
from horsies._pg.waiters import Waiters
from horsies.config.postgres import PostgresConfig
from horsies.config.resilience import ResilienceConfig
from horsies.errors import UsageError

R = TypeVar("R")
Action = Callable[[Any], Awaitable[R]]


class LoopDatabase:
    """The connections of one event loop."""

    def __init__(self, config: PostgresConfig, resilience: ResilienceConfig) -> None:
        self._config = config
        self._resilience = resilience
        self._pool: ConnectionPool | None = None
        self._opening = asyncio.Lock()
        self._schema_checked = False
        self._closed = False
        self._resolved: PostgresConfig | None = None
        self.waiters = Waiters(self, resilience, schema=config.schema)

    async def run(self, action: Action[R], doubt: Doubt | None = None) -> R:
        """Run `action(connection)`, again after transient errors, within the bounds of the configuration.

        Only for actions that may run twice: a statement whose answer was lost may have been committed. `doubt` is told
        what is known of them.
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
                log.info("database: %s; trying again in %.2f s", self._config.redact(repr(error)), delay)
                attempt += 1
                await asyncio.sleep(delay)

    def write(self, write: Write[R], doubt: Doubt) -> Awaitable[R]:
        """Write something of `enqueue`, from its start after a transient error."""
        return self.run(lambda connection: write(connection.fetch), doubt)

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
            connection.terminate()  # an answer is still to come, and nobody will read it
            raise
        except Exception as error:
            if pool.is_overdue(connection):
                raise TimeoutError(f"not done within {self._config.command_timeout_ms} ms") from error
            raise
        finally:
            pool.release(connection)

    async def connect(self, *, direct: bool = False) -> Connection:
        """A connection outside the pool; its user closes it. `direct`: for LISTEN, past a pooler if there is one."""
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
            if self._closed:  # a retry that slept through the close must not open everything again
                raise UsageError("the app was closed while this was under way")
            if self._pool is None:
                arguments = connect_arguments(await self._resolve())
                self._pool = ConnectionPool(
                    lambda: connect(arguments),
                    min_size=self._config.pool_min_size,
                    max_size=self._config.pool_max_size,
                    patience_s=arguments.pop("command_timeout", None),  # for the pool to keep
                )
            return self._pool

    async def _resolve(self) -> PostgresConfig:
        if self._resolved is None:
            self._resolved = await resolve_async(self._config)
        return self._resolved


class Database:
    """One app's database, from whichever loop or process it is used."""

    def __init__(self, config: PostgresConfig, resilience: ResilienceConfig) -> None:
        self._config = config
        self._resilience = resilience
        self._loops: dict[asyncio.AbstractEventLoop, LoopDatabase] = {}
        self._roads: set[str] = set()
        _databases.add(self)

    def is_new_road(self, library: str) -> bool:
        """Whether callers' connections of this library were never looked at. With a schema of its own every statement
        names it, and there is nothing to look at."""
        return self._config.schema is None and library not in self._roads

    def trust_road(self, library: str) -> None:
        """The tables that such connections find are the right ones."""
        self._roads.add(library)

    def here(self) -> LoopDatabase:
        """The connections of the running loop."""
        loop = asyncio.get_running_loop()
        found = self._loops.get(loop)
        if found is None:
            # a loop that was closed without aclose() took its connections along; only the entry is left
            for stale in [known for known in list(self._loops) if known.is_closed()]:  # other threads come here too
                self._loops.pop(stale, None)
            found = self._loops[loop] = LoopDatabase(self._config, self._resilience)
        return found

    async def close_here(self) -> None:
        """Close what the running loop holds."""
        found = self._loops.pop(asyncio.get_running_loop(), None)
        if found is not None:
            await found.close()

    def forget(self) -> None:
        """In a forked child: the parent's connections are not ours to use, nor to close."""
        _inherited.append(dict(self._loops))
        self._loops.clear()


_databases: "weakref.WeakSet[Database]" = weakref.WeakSet()
# kept for ever on purpose: a destructor would talk on sockets that belong to the parent
_inherited: Final[list[object]] = []


def _after_fork() -> None:
    for database in list(_databases):
        database.forget()


os.register_at_fork(after_in_child=_after_fork)
