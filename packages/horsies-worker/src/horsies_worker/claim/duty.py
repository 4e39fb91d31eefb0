"""The duty to listen: the workers of a group take turns, so that a new task wakes one of them.

A notification costs every listening session of the database 45 to 125 µs, and each worker that claims for it about a
millisecond. So of all workers with the same queues and task names only one listens. The others wait for its lock, and
PostgreSQL wakes exactly one of them when the worker on duty leaves or dies. A worker on duty that is frozen keeps its
lock: three backups look every 150 ms whether tasks are late, and act for it. The other workers look less often. The
procedure `horsies_wait_for_duty` does all of that in the server; docs/decisions/0013-fleet.md has the protocol.

All of this is on the direct connection of the worker, which also holds its session lock (`liveness/instance.py`).
"""

import asyncio
import hashlib
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Final, Protocol

from horsies._pg.listener import PROBE_EVERY_S, PROBE_TIMEOUT_S, Listener, OnNotify
from horsies._pg.refusals import worded
from horsies._pg.transient import is_lock_timeout
from horsies_worker.database.queries import Queries
from horsies_worker.database.settings import CLAIM_SETTINGS
from horsies_worker.output.log_context import log
from horsies_worker.syncpoints import reached

BACKUPS: Final = 3
"""So many workers beside the one on duty may be frozen before tasks wait for the slower looks."""
ACTING_S: Final = 2.0
"""A backup that found a late task listens for this long; if it soon finds another, for twice as long."""
MAX_ACTING_S: Final = 32.0
MAX_SLOWER: Final = 32
"""Late tasks that the backup could not take wait for another reason, such as a cap. It waits longer before the next."""
RESIGN_S: Final = 1.0
OVERLAP_S: Final = 0.1
"""A worker that left listens for this long, until the next one surely does: a step of a workflow is announced once."""
# The limits of a role are not meant for a statement that waits. A backend that waits for a lock notices the death of
# its client only when it is told to look.
_SETTINGS: Final = "; ".join(
    f"SET {name} = '{value}'" for name, value in {**CLAIM_SETTINGS, "statement_timeout": 0, "lock_timeout": 0}.items()
)
_RELEASE: Final = """
SELECT pg_advisory_unlock($1) FROM pg_locks
 WHERE locktype = 'advisory' AND pid = pg_backend_pid() AND objsubid = 1
   AND ((classid::bigint << 32) | objid::bigint) = $1
"""
_NOTICE_DEATH: Final = "SET client_connection_check_interval = 500"


@dataclass(frozen=True, slots=True)
class Group:
    """Workers that can replace each other: they serve the same queues and know the same names."""

    schema: str | None
    queues: Sequence[str]
    names: Sequence[str]

    @property
    def key(self) -> int:
        """The lock of the duty; the next keys are those of the backups."""
        words = ("horsies duty", self.schema or "", *sorted(self.queues), "", *sorted(self.names))
        return int.from_bytes(hashlib.sha256("\0".join(words).encode()).digest()[:8], signed=True) & ~0xFF


class Claims(Protocol):
    """The claimer, as far as it concerns the duty."""

    def on_duty(self) -> None: ...
    def off_duty(self) -> None: ...
    @property
    def was_useful(self) -> bool:
        """It has taken tasks since it went on duty."""
        ...


@dataclass(eq=False)
class _Connection:
    """A connection, and what this worker holds on it."""

    connection: Any
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    is_on: bool = False
    is_acting: bool = False
    """On duty beside another worker, which holds the lock of the duty."""
    is_awake: bool = False
    place: int | None = None
    """The backup's place that this worker holds."""

    async def ask(self, sql: str, *values: Any) -> Any:
        """Run one statement under the lock. A connection on which it fails cannot be relied on, and is terminated."""
        try:
            return await self.connection.fetchval(sql, *values, timeout=PROBE_TIMEOUT_S)
        except BaseException as error:
            self.is_on = False
            self.connection.terminate()
            if not isinstance(error, Exception):
                raise
            log.warning("duty: %s", worded(error))
            return None


class Duty:
    """`claims` is told of every change that it did not ask for with `offer` or `resign`."""

    def __init__(self, listener: Listener, queries: Queries, group: Group) -> None:
        self._listener = listener
        self._queries = queries
        self._key = group.key
        self._queues = list(group.queues)
        self._names = list(group.names)
        self._session: _Connection | None = None
        self._is_sought = False
        self._has_resigned = False
        self._changed = asyncio.Event()
        self._slower = 1
        self._acting_s = ACTING_S
        self._acted_until = 0.0

    @property
    def is_listening(self) -> bool:
        """This worker hears every notification."""
        return self._session is not None and self._session.is_on

    # -- what the claimer asks for ---------------------------------------------------------------

    def seek(self, is_sought: bool) -> None:
        """Wait for the duty, or not: a worker without room could not answer a notification."""
        if is_sought is not self._is_sought:
            self._is_sought = is_sought
            self._changed.set()

    async def offer(self) -> bool:
        """Leave if another worker waits for the duty; returns whether one does."""
        return await self._leave(only_if_awaited=True)

    @property
    def is_connected(self) -> bool:
        """There is a connection on which this worker takes turns."""
        return self._session is not None

    @property
    def has_resigned(self) -> bool:
        return self._has_resigned

    def rejoin(self) -> None:
        """Take turns again after `resign`."""
        self._has_resigned = False
        self._changed.set()

    async def resign(self) -> None:
        """Leave: this worker claims nothing more. On a silent connection its end has the same effect."""
        self._has_resigned = True
        self._changed.set()
        try:
            async with asyncio.timeout(RESIGN_S):
                await self._leave(only_if_awaited=False)
        except TimeoutError:
            if self._session is not None:
                self._session.connection.terminate()

    async def stay_awake(self) -> None:
        """Let producers leave out notifications."""
        await self._set_awake(True)

    async def go_to_sleep(self) -> None:
        """Have producers notify again."""
        await self._set_awake(False)

    async def _leave(self, *, only_if_awaited: bool) -> bool:
        session = self._session
        if session is None:
            return False
        async with session.lock:
            if not session.is_on:
                return False
            values = (self._key, self._queues, not session.is_acting, only_if_awaited, session.is_awake)
            if not await session.ask(self._queries.sql("leave_duty"), *values):
                return False
            session.is_on = False
        self._changed.set()
        return True

    async def _set_awake(self, is_awake: bool) -> None:
        session = self._session
        if session is None:
            return
        async with session.lock:
            if session.is_on and session.is_awake is not is_awake:
                await session.ask(self._queries.sql("set_awake"), self._queues, is_awake)
                session.is_awake = is_awake

    # -- the connection --------------------------------------------------------------------------

    async def run(
        self, handlers: Mapping[str, OnNotify], claims: Claims, prepare: Callable[[Any], Awaitable[bool]]
    ) -> None:
        """Take turns until cancelled. `handlers`: the channels, and what to do with their notifications. `prepare` gets
        each new connection, and returns False if notifications do not arrive on it."""

        async def take_turns(connection: Any) -> None:
            await self._take_turns(connection, list(handlers), claims, prepare)

        def lost() -> None:
            # without a connection there is no line to wait in: this worker polls
            if self._session is not None and not self._has_resigned:
                claims.on_duty()
            self._session = None

        await self._listener.run(handlers, on_live=take_turns, on_down=lost)

    async def _take_turns(
        self, connection: Any, channels: list[str], claims: Claims, prepare: Callable[[Any], Awaitable[bool]]
    ) -> None:
        connection.add_termination_listener(self._on_lost)
        await connection.execute(_SETTINGS)
        try:
            await connection.execute(_NOTICE_DEATH)
        except Exception as error:  # not every platform has it
            log.debug("duty: %s", worded(error))
        session = _Connection(connection)
        if not await prepare(connection):
            await self._keep(session, lambda: False)
        self._session = session
        claims.off_duty()
        while True:
            await self._until_sought(session)
            answer = await self._wait_in_line(session, channels)
            if answer:
                session.is_on, session.is_awake, session.is_acting = True, False, answer == "late"
                await self._serve(session, claims)

    def _on_lost(self, _connection: object) -> None:
        self._changed.set()

    async def _until_sought(self, session: _Connection) -> None:
        """Listen a little longer; after that this worker hears nothing until it is on duty again."""
        if await self._keep(session, self._may_wait, OVERLAP_S):
            return
        async with session.lock:
            await session.ask("UNLISTEN *")
            if session.place is not None:
                await session.ask("SELECT pg_advisory_unlock($1)", self._key + session.place)
                session.place = None
        await self._keep(session, self._may_wait)

    def _may_wait(self) -> bool:
        return self._is_sought and not self._has_resigned

    async def _wait_in_line(self, session: _Connection, channels: list[str]) -> str:
        await reached("before_duty")
        place = session.place or random.randint(1, BACKUPS)
        values = (
            self._key, place, channels, self._queues, self._names, self._slower, timedelta(seconds=PROBE_EVERY_S),
            session.place is not None,
        )  # fmt: skip
        calling = asyncio.ensure_future(
            session.connection.fetchrow(
                self._queries.sql("wait_for_duty"), *values, timeout=PROBE_EVERY_S + PROBE_TIMEOUT_S
            )
        )
        try:
            await asyncio.wait({calling})
        except asyncio.CancelledError:
            session.connection.terminate()  # asyncpg would open another connection, to cancel the statement
            await asyncio.gather(calling, return_exceptions=True)
            raise
        if isinstance(error := calling.exception(), Exception) and is_lock_timeout(error):
            # Another session has locked horsies_tasks, in which `horsies_wait_for_duty` looks for late tasks. Keep the
            # connection: it holds the lock by which other workers know that this one lives.
            await session.ask(_RELEASE, self._key + place)
            session.place = None
            return ""
        is_backup, answer = calling.result()
        session.place = place if is_backup else None
        return answer

    async def _serve(self, session: _Connection, claims: Claims) -> None:
        """On duty, until the claimer leaves; a worker that acts for another one leaves by itself."""
        if self._has_resigned:
            await self._leave(only_if_awaited=False)
            return
        await reached("on_duty")
        claims.on_duty()
        if not session.is_acting:
            self._slower = 1
            await self._keep(session, lambda: not session.is_on)
            return
        is_again = time.monotonic() < self._acted_until + ACTING_S
        self._acting_s = min(2 * self._acting_s, MAX_ACTING_S) if is_again else ACTING_S
        has_left = await self._keep(session, lambda: not session.is_on, self._acting_s)
        if not has_left and await self._leave(only_if_awaited=False):
            claims.off_duty()
        self._acted_until = time.monotonic()
        self._slower = 1 if claims.was_useful else min(2 * self._slower, MAX_SLOWER)

    async def _keep(self, session: _Connection, condition: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Wait until the condition holds, and probe the connection meanwhile. False when the time is over."""
        until = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            if session.connection.is_closed():
                raise ConnectionError("the connection was lost")
            self._changed.clear()
            if condition():
                return True
            left_s = PROBE_EVERY_S if until is None else min(PROBE_EVERY_S, until - time.monotonic())
            try:
                async with asyncio.timeout(max(0.0, left_s)):
                    await self._changed.wait()
            except TimeoutError:
                if until is not None and time.monotonic() >= until:
                    return False
                async with session.lock:
                    await session.ask("SELECT 1")
