"""Records which task names live workers know, and fails tasks whose name no live worker of their queue knows.

Claims leave tasks of unknown names in the queue, behind any number of known ones (a paused queue, a backlog). A lap
walks all ready tasks in windows, one window of each (queue, priority) in turn, and rests after each window: all workers
together spend at most a twentieth of the time on it. A sweep that meets its limit of windows leaves the rest of the lap
to the next one. Names and times are in the database, so a restart of a worker only begins the lap anew.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final

from horsies._text import plural
from horsies.codec import encode_error
from horsies.config import AppConfig
from horsies.errors import OperationalErrorCode
from horsies.result import TaskError
from horsies_worker.claim.name_grace import Graces, MissingName, Span, how_to_fix, ready_before, why_failed
from horsies_worker.database.checks import Checks
from horsies_worker.database.session import Session
from horsies_worker.output.log_context import log
from horsies_worker.service import Service

WINDOW: Final = 1_000
WINDOWS: Final = 100
"""The windows of one sweep: 100,000 tasks."""
SHARE: Final = 0.05
MIN_INTERVAL_S: Final = 1.0
FRESH: Final = timedelta(minutes=10)
"""`last_known_at` of a name is written again when it is this old, so that a sweep does not write a thousand names."""
LOGGED_NAMES: Final = 20
_BEGINNING: Final = datetime(1, 1, 2, tzinfo=UTC)


@dataclass
class _Position:
    """How far the sweep has walked a (queue, priority)."""

    queue_name: str
    priority: int
    at: datetime = _BEGINNING
    id: str = ""
    variant: str = ""
    """`_grouped` for tasks with a group, which other statements walk."""


@dataclass(frozen=True, slots=True)
class _Live:
    """The names that live workers know, by the queues that they serve."""

    names: Mapping[str, Set[str]]
    workers: int
    asked_at: datetime


class TaskNames(Service):
    name = "names"

    def __init__(
        self,
        session: Session,
        config: AppConfig,
        *,
        checks: Session | None = None,
        tasks_ended: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        """`checks`: a session whose connection is open anyway, for laps that find few tasks and no unknown name."""
        self._graces = Graces(
            timedelta(milliseconds=config.unknown_task_grace_ms),
            timedelta(milliseconds=config.recovery.retired_task_grace_ms),
        )
        shortest_s = min(self._graces.unknown, self._graces.retired).total_seconds()
        interval_s = min(config.recovery.check_interval_ms / 1000, max(MIN_INTERVAL_S, shortest_s / 4))
        super().__init__(session, config.resilience, interval_s)
        self._ask = session.ask
        self._check = Checks(checks, session).ask
        self._identity = session.queries.identity
        self._tasks_ended = tasks_ended
        self._logged: set[tuple[str, str]] = set()
        self._left: deque[_Position] = deque()
        """Where this lap goes on; empty between two laps."""
        self._lap_began = _BEGINNING
        self._met: set[tuple[str, str]] = set()
        """The (queue, name) pairs of this lap that are missing, or may be: in a queue that is not served, any name."""

    async def run_once(self) -> None:
        live, read_at = await self._live(), time.monotonic()
        if live is not None and not self._left:
            for variant in ("", "_grouped"):
                found = await self._check(f"waiting_queues{variant}")
                self._left.extend(_Position(row["queue_name"], row["priority"], variant=variant) for row in found)
            self._lap_began, self._met = live.asked_at, set()
        for _ in range(WINDOWS):
            if time.monotonic() - read_at > self._interval_s:  # in a long sweep, other workers may have started
                live, read_at = await self._live(), time.monotonic()
            if live is None:
                self._left.clear()
                return
            if not self._left:
                break
            reached = await self._walk(self._left[0], live)
            self._left.popleft()
            if reached is not None:
                self._left.append(reached)
        if not self._left:
            await self._check("clear_missing_names", list({name for _, name in self._met}), self._lap_began)
            self._logged &= self._met

    async def _live(self) -> _Live | None:
        """None while a worker of an older release is live: it may know any name, so none is missing."""
        rows = await self._check("live_names")
        if not rows or any(row["names"] is None for row in rows):
            return None
        names: dict[str, set[str]] = {}
        for row in rows:
            for queue in row["queues"] or ():
                names.setdefault(queue, set()).update(row["names"])
        known = sorted({name for row in rows for name in row["names"]})
        await self._check("refresh_known_names", known, min(FRESH, self._graces.retired / 4))
        return _Live(names, sum(row["workers"] for row in rows), rows[0]["asked_at"])

    async def _walk(self, position: _Position, live: _Live) -> _Position | None:
        """Walk one window and rest. Returns the next position, None at the end of the (queue, priority)."""
        began, queue = time.monotonic(), position.queue_name
        ask = self._check if position.at == _BEGINNING else self._ask
        rows = await ask(f"walk_waiting{position.variant}", queue, position.priority, position.at, position.id, WINDOW)
        reached = replace(position, at=rows[0]["enqueued_at"], id=rows[0]["id"]) if rows else position
        known = live.names.get(queue)
        found = {row["task_name"]: row["found"] for row in rows if known is None or row["task_name"] not in known}
        self._met.update((queue, name) for name in found)
        if found and known is not None:
            missing = await self._record(queue, list(found), live)
            self._warn(missing, found, queue)
            if await self._end(position, reached, missing, sorted(known)):
                began = time.monotonic()  # ended tasks are not walked again, so they need no rest
        await asyncio.sleep((time.monotonic() - began) * (live.workers / SHARE - 1))
        return reached if rows and rows[0]["walked"] == WINDOW else None

    async def _record(self, queue: str, names: Sequence[str], live: _Live) -> list[MissingName]:
        """Record that these names are missing. A name that another queue's workers know counts as known before if a
        worker of this queue knew it."""
        known_in = {name: tuple(sorted(one for one, known in live.names.items() if name in known)) for name in names}
        recorded = {row["task_name"]: row for row in await self._ask("record_missing_names", names)}
        last_known = {name: row["last_known_at"] for name, row in recorded.items()}
        if elsewhere := [name for name in names if known_in[name]]:
            last_known.update(dict.fromkeys(elsewhere))
            last_known.update(await self._ask("last_known_in_queue", queue, elsewhere))
        return [
            MissingName(name, queue, last_known[name], row["missing_since"], known_in[name])
            for name, row in recorded.items()
        ]

    async def _end(
        self, position: _Position, reached: _Position, missing: Sequence[MissingName], known: Sequence[str]
    ) -> int:
        """Fail the tasks of this stretch whose grace period is over; return how many."""
        rows = await self._ask("served_spans", position.queue_name)
        if not rows:
            return 0
        spans = [Span(row["began"], row["ended"]) for row in rows]
        cutoffs = {one: ready_before(one, spans, rows[0]["asked_at"], self._graces) for one in missing}
        over = {one: cutoff for one, cutoff in cutoffs.items() if cutoff is not None}
        if not over:
            return 0
        reasons = [why_failed(one, known) for one in over]
        results = [encode_error(TaskError(OperationalErrorCode.WORKER_RESOLUTION_ERROR, why)) for why in reasons]
        ended = await self._ask(
            f"fail_unknown_tasks{position.variant}", position.queue_name, position.priority, position.at, position.id,
            reached.at, reached.id, [one.task_name for one in over], list(over.values()), results, reasons,
            self._identity.worker_id, self._identity.hostname, self._identity.pid,
        )  # fmt: skip
        self._tasks_ended([row["id"] for row in ended])
        for one in over:
            if count := sum(row["task_name"] == one.task_name for row in ended):
                log.warning(
                    "names: failed %s named %r in queue %s: WORKER_RESOLUTION_ERROR, no live worker of the queue "
                    "knows the name", plural(count, "task"), one.task_name, position.queue_name,
                )  # fmt: skip
        return len(ended)

    def _warn(self, missing: Sequence[MissingName], found: Mapping[str, int], queue: str) -> None:
        """Warn once about each name of a queue, as long as it is missing."""
        new = [one for one in missing if (queue, one.task_name) not in self._logged]
        self._logged |= {(queue, one.task_name) for one in new}
        if len(new) > LOGGED_NAMES:
            log.warning(
                "names: tasks of %d more names wait in queue %s, and no live worker of the queue knows these names",
                len(new) - LOGGED_NAMES, queue,
            )  # fmt: skip
        for one in new[:LOGGED_NAMES]:
            if one.last_known_at is None:
                rule = f"none ever knew it: they fail after {self._graces.unknown.total_seconds():.0f} s"
            else:
                rule = (
                    f"last known at {one.last_known_at:%Y-%m-%d %H:%M:%S %Z}: they fail when they have waited for "
                    f"{self._graces.retired.total_seconds():.0f} s"
                )
            log.warning(
                "names: %s named %r in queue %s, and no live worker of the queue knows the name (%s). %s",
                plural(found[one.task_name], "waiting task"), one.task_name, queue, rule, how_to_fix(one),
            )  # fmt: skip
