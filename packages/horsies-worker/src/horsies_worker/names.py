"""Keeps the record of which task names live workers know, and ends tasks that no live worker will ever run.

Claims leave tasks of other names in line, so they stand at the front of their (queue, priority). Every sweep walks each
front in windows, on for as long as a window has such names. After each window it rests: at any time, all workers
together look for at most a twentieth of it.
Everything that is counted is in the database: a restart of any worker changes nothing.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from horsies._text import plural
from horsies.codec import encode_error
from horsies.config import AppConfig
from horsies.errors import OperationalErrorCode
from horsies.result import TaskError
from horsies_worker.grace import Graces, MissingName, Span, ready_before, why_failed
from horsies_worker.identity import Identity
from horsies_worker.queries import Queries
from horsies_worker.service import Service
from horsies_worker.session import SET_LOCAL_CLAIM_SETTINGS, Session

_log = logging.getLogger("horsies.worker")

WINDOW: Final = 1_000
SHARE: Final = 0.05
MIN_INTERVAL_S: Final = 1.0
FRESH: Final = timedelta(minutes=10)
"""How old `last_known_at` of a name may be before it is written again: a thousand names need not be every sweep."""
TOLD: Final = 20
"""Names that are logged one by one."""
_BEGINNING: Final = datetime(1, 1, 2, tzinfo=UTC)


@dataclass
class _Place:
    """How far one (queue, priority) has been walked."""

    queue_name: str
    priority: int
    at: datetime = _BEGINNING
    id: str = ""


@dataclass(frozen=True, slots=True)
class _Live:
    """What the live workers know."""

    names: Sequence[str]
    workers: int
    asked_at: datetime


class TaskNames(Service):
    name = "names"

    def __init__(
        self,
        config: AppConfig,
        session: Session,
        queries: Queries,
        identity: Identity,
        *,
        on_ended: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        self._graces = Graces(
            timedelta(milliseconds=config.unknown_task_grace_ms),
            timedelta(milliseconds=config.recovery.retired_task_grace_ms),
        )
        shortest_s = min(self._graces.unknown, self._graces.retired).total_seconds()
        interval_s = min(config.recovery.check_interval_ms / 1000, max(MIN_INTERVAL_S, shortest_s / 4))
        super().__init__(interval_s, config.resilience)
        self._session = session
        self._queries = queries
        self._identity = identity
        self._on_ended = on_ended
        self._told: set[str] = set()

    async def run_once(self) -> None:
        live = await self._live()
        if live is None:
            return
        began, read_at = live.asked_at, time.monotonic()
        met: set[str] = set()
        for row in await self._ask("waiting_queues"):
            place: _Place | None = _Place(row["queue_name"], row["priority"])
            while place is not None:
                if time.monotonic() - read_at > self._interval_s:  # a long walk: other workers may live now
                    live, read_at = await self._live(), time.monotonic()
                    if live is None:
                        return
                place = await self._walk(place, live, met)
        cleared = await self._ask("clear_missing_names", list(met), began)
        self._told -= {row["task_name"] for row in cleared}

    async def _live(self) -> _Live | None:
        """None while a worker of an older release lives, which may know any name: nothing is missing then."""
        (row,) = await self._ask("live_names")
        if not row["workers"] or row["without_names"]:
            return None
        await self._ask("refresh_known_names", row["names"], min(FRESH, self._graces.retired / 4))
        return _Live(row["names"], row["workers"], row["asked_at"])

    async def _walk(self, place: _Place, live: _Live, met: set[str]) -> _Place | None:
        """One window, and a rest after it; from where the walk goes on, None where it ends."""
        began = time.monotonic()
        rows = await self._ask("walk_waiting", place.queue_name, place.priority, place.at, place.id, WINDOW)
        known = frozenset(live.names)
        found = {row["task_name"]: row["found"] for row in rows if row["task_name"] not in known}
        if found:
            met.update(found)
            recorded = await self._ask("record_missing_names", list(found))
            missing = [MissingName(row["task_name"], row["last_known_at"], row["missing_since"]) for row in recorded]
            self._warn(missing, found, place.queue_name)
            reached = _Place(place.queue_name, place.priority, rows[0]["enqueued_at"], rows[0]["id"])
            if await self._end(place, reached, missing, live.names):
                began = time.monotonic()  # what is ended is not walked again: no rest
            place = reached
        await asyncio.sleep((time.monotonic() - began) * (live.workers / SHARE - 1))
        return place if found and rows[0]["walked"] == WINDOW else None

    async def _end(self, place: _Place, reached: _Place, missing: Sequence[MissingName], known: Sequence[str]) -> int:
        """End those of this stretch whose grace is over; how many."""
        rows = await self._ask("served_spans", place.queue_name)
        spans = [Span(row["began"], row["ended"]) for row in rows]
        if not rows:
            return 0
        cutoffs = {one: ready_before(one, spans, rows[0]["asked_at"], self._graces) for one in missing}
        over = {one: cutoff for one, cutoff in cutoffs.items() if cutoff is not None}
        if not over:
            return 0
        reasons = [why_failed(one, known) for one in over]
        results = [encode_error(TaskError(OperationalErrorCode.WORKER_RESOLUTION_ERROR, why)) for why in reasons]
        ended = await self._ask(
            "fail_unknown_tasks", place.queue_name, place.priority, place.at, place.id, reached.at, reached.id,
            [one.task_name for one in over], list(over.values()), results, reasons,
            self._identity.worker_id, self._identity.hostname, self._identity.pid,
        )  # fmt: skip
        self._on_ended([row["id"] for row in ended])
        for one in over:
            if count := sum(row["task_name"] == one.task_name for row in ended):
                _log.warning(
                    "names: ended %s named %r in queue %s: WORKER_RESOLUTION_ERROR, no live worker knows the "
                    "name", plural(count, "task"), one.task_name, place.queue_name,
                )  # fmt: skip
        return len(ended)

    def _warn(self, missing: Sequence[MissingName], found: Mapping[str, int], queue: str) -> None:
        """Once for each name, as long as it is missing."""
        new = [one for one in missing if one.task_name not in self._told]
        self._told |= {one.task_name for one in new}
        if len(new) > TOLD:
            _log.warning("names: tasks of %d further names wait that no live worker knows", len(new) - TOLD)
        for one in new[:TOLD]:
            if one.last_known_at is None:
                rule = f"no worker ever knew it: they fail after {self._graces.unknown.total_seconds():.0f} s"
            else:
                rule = (
                    f"last known at {one.last_known_at:%Y-%m-%d %H:%M:%S %Z}: they fail when they have waited for "
                    f"{self._graces.retired.total_seconds():.0f} s"
                )
            _log.warning(
                "names: %s named %r in queue %s, and no live worker knows the name (%s). Deploy a worker that "
                "registers it, or correct the name that is sent.",
                plural(found[one.task_name], "waiting task"), one.task_name, queue, rule,
            )  # fmt: skip

    async def _ask(self, name: str, *values: Any) -> list[Any]:
        return await self._session.run(lambda connection: self._ask_on(connection, name, values))

    async def _ask_on(self, connection: Any, name: str, values: tuple[Any, ...]) -> list[Any]:
        if not self._session.pooled:
            return await connection.fetch(self._queries.sql(name), *values)
        async with connection.transaction(isolation="read_committed"):
            await connection.execute(SET_LOCAL_CLAIM_SETTINGS)
            return await connection.fetch(self._queries.sql(name), *values)
