"""The scheduler: fires due slots and sleeps until the next one. Any number of schedulers may run.

It serves the schedules in its app's code, and those that were made at run time for tasks that the app has.

Only the database's clock counts: each check reads its time and the next slot, and the sleep until then is measured on
the monotonic clock. A change of the database's clock is noticed by the next check, at the latest after
`notify_poll_interval_ms`; a clock that was put back delays slots and never doubles them. The scheduler keeps no session
state, so it works behind a transaction-mode pooler.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final

from horsies._pg import channels
from horsies._pg.listener import Listener
from horsies._pg.refusals import worded
from horsies._pg.transient import is_lock_timeout
from horsies._text import plural
from horsies.app import Horsies
from horsies.config import PostgresConfig
from horsies.events import ScheduleFired
from horsies.operate.schedule_state import LISTED_EVERY
from horsies.scheduled import ScheduledTask, settle_schedules
from horsies_worker.database.connect import connect_listener
from horsies_worker.database.session import Session
from horsies_worker.database.split_batch import is_data_error, write_or_split
from horsies_worker.events.bus import SILENT, EventBus
from horsies_worker.output.log_context import about
from horsies_worker.scheduler.blocked import (
    BATCH_WAIT_MS,
    PART_WAIT_MS,
    PARTS_S,
    BlockedSchedules,
    Blockers,
    OutOfTime,
    SlotBlocked,
)
from horsies_worker.scheduler.local_times import cron_problem
from horsies_worker.scheduler.passed import LOGGED, log_ahead, log_passed, utc
from horsies_worker.scheduler.slots import Move, PlanReason, move, plan_row
from horsies_worker.scheduler.state import Batch, CodeSchedules, Outlook, Runs, Serve, Served, serve
from horsies_worker.scheduler.stored import StoredSchedules
from horsies_worker.service import Service
from horsies_worker.syncpoints import reached

_log = logging.getLogger("horsies.scheduler")

BATCH: Final = 1_000
"""Schedules per transaction. Their slots are computed between two statements: some 50 ms of this process."""
STORED_BATCH: Final = 500
"""The same for schedules that were made at run time, whose tasks are made ready in between when they are new here."""
MAX_FIRES: Final = 5_000
"""Tasks per transaction; a long catch-up of many schedules takes several."""
FIRST_RETRY_S: Final = 0.05
EARLY_S: Final = 0.001
"""Added to each sleep: a timer may fire a little early, and the check would find nothing due."""


Lock = Callable[[Any], Awaitable[Batch]]


@dataclass(frozen=True, slots=True)
class Fired:
    """What one transaction did."""

    moves: Sequence[Move] = ()
    served: Mapping[str, Served] = field(default_factory=dict[str, Served])
    fresh: frozenset[str] = frozenset()
    is_full: bool = False
    """There may be more."""


def settled_schedules(app: Horsies) -> list[ScheduledTask]:
    """The app's schedules, ready to run. Raises ConfigurationError with all problems of all schedules."""
    return settle_schedules(app, cron_problem)


class Scheduler(Service):
    name = "scheduler"

    def __init__(
        self,
        session: Session,
        app: Horsies,
        tasks: Sequence[ScheduledTask],
        *,
        on_contact: Callable[[], None] = lambda: None,
        bus: EventBus = SILENT,
        serve: Serve = serve,
        waits_for_locks: bool = False,
    ) -> None:
        """`serve` gives a schedule its slots. `waits_for_locks`: as long as the session's own settings let it, for a
        caller without other work."""
        self._bus = bus
        resilience = app.config.resilience
        super().__init__(session, resilience, resilience.notify_poll_interval_ms / 1000)
        self._resilience = resilience
        self._served = {task.name: serve(task, None) for task in tasks}
        self._code = CodeSchedules(session.queries, self._served)
        self._blocked = BlockedSchedules()
        self._blockers = Blockers(session)
        self._waits_for_locks = waits_for_locks
        self._stored = StoredSchedules(app, session.queries, serve, blocked=self._blocked)
        self._runs = Runs(app, session.queries)
        self._on_contact = on_contact
        self._has_planned = False
        self._outlook: Outlook | None = None
        self._outlook_mono = 0.0
        self._idle_fires = 0
        self._confirm_mono = 0.0
        self._told_clashes: frozenset[str] = frozenset()
        self._checked_rules_to: str | None = ""
        """Up to this name the next slots were compared with the present rules of time zones; None: all."""

    async def hear(self, broker: PostgresConfig, who: str) -> None:
        """Listen to operators' requests until cancelled. Waking the scheduler finds those from before LISTEN."""
        listener = Listener(partial(connect_listener, broker, who), self._resilience, redact=broker.redact)
        await listener.run({channels.SCHEDULE_STATE: self.on_news}, on_live=lambda _: self.wake())

    def on_news(self, _name: str) -> None:
        """A schedule was made, changed, deleted, paused, resumed or asked to run."""
        self.wake()

    # -- checking --------------------------------------------------------------------------------

    async def run_once(self) -> None:
        began = time.monotonic()
        blocked = self._blocked.due(began)
        await self._fire_due()
        self._blocked.forget_untried(blocked, began)

    async def _fire_due(self) -> None:
        outlook = await self._check()
        if time.monotonic() >= self._confirm_mono:
            stored = self._stored
            await self._session.run(partial(self._code.confirm, tasks=stored.tasks, workflows=stored.workflows))
            self._confirm_mono = time.monotonic() + LISTED_EVERY.total_seconds()
        self._tell_clashes(outlook)
        is_code_planned = self._has_planned and outlook.known >= len(self._served) and not outlook.orphaned
        if not is_code_planned or outlook.stored_unplanned or self._checked_rules_to is not None:
            if not is_code_planned:
                await self._plan(outlook.now)
            await self._plan_stored()
            outlook = await self._check()
        if not outlook.is_due:
            self._idle_fires = 0
            return
        moved = 0
        for is_due, lock in (
            (outlook.due > 0, partial(self._code.lock_due, limit=BATCH, blocked=self._blocked)),
            (outlook.stored_due, partial(self._stored.lock_due, limit=STORED_BATCH)),
            (outlook.stored_requested, partial(self._stored.lock_due, limit=STORED_BATCH, requested=True)),
        ):
            is_full = is_due
            while is_full:
                fired = await self._fire(lock)
                moved += len(fired.moves)
                is_full = fired.is_full
        # Nothing was fired: another scheduler holds the due rows, or a request waits for the previous run. Back off.
        self._idle_fires = 0 if moved else self._idle_fires + 1
        await self._check()

    def pause_s(self) -> float:
        """Seconds until the next slot is due, or until the next poll."""
        outlook = self._outlook
        if outlook is None:
            return self._interval_s
        pause = min(self._interval_s, max(self._confirm_mono - time.monotonic(), EARLY_S))
        if self._idle_fires:
            pause = min(pause, FIRST_RETRY_S * 2 ** min(self._idle_fires - 1, 16))
        elif outlook.is_due:
            pause = 0.0
        if self._blocked:
            pause = min(pause, self._blocked.next_s(time.monotonic()))
        if outlook.stored_unplanned:  # another session holds their rows
            pause = min(pause, FIRST_RETRY_S)
        if outlook.next_slot is not None:
            ahead = (outlook.next_slot - outlook.now).total_seconds()
            pause = min(pause, ahead - (time.monotonic() - self._outlook_mono) + EARLY_S)
        return max(pause, 0.0)

    async def _check(self) -> Outlook:
        began = time.monotonic()
        self._outlook = await self._session.run(
            partial(self._code.outlook, stored=self._stored.wanted, blocked=self._blocked)
        )
        self._outlook_mono = (began + time.monotonic()) / 2
        self._on_contact()
        return self._outlook

    # -- planning --------------------------------------------------------------------------------

    async def _plan(self, now: datetime) -> None:
        """Write rows for new and changed schedules."""
        known = await self._session.run(self._code.read)
        taken = {name for name, row in known.items() if row.is_data}
        at_start = not self._has_planned
        plans = [
            plan
            for name, one in self._served.items()
            if name not in taken
            and (plan := plan_row(one.task, one.slots, known.get(name), now, at_start=at_start)) is not None
        ]
        written: set[str] = set()
        if plans:
            written = await self._session.run(lambda connection: self._code.write_plans(connection, plans))
            fresh = [plan for plan in plans if plan.name in written]
            for plan in fresh[:LOGGED]:
                level = logging.WARNING if plan.reason is PlanReason.ORPHANED else logging.INFO
                _log.log(level, "schedule %r %s; next run %s", plan.name, plan.reason, utc(plan.next_run_at))
            if len(fresh) > LOGGED:
                _log.info("planned as well: %s", plural(len(fresh) - LOGGED, "more schedule"))
        # rows that another scheduler changed meanwhile are planned again
        self._has_planned = self._has_planned or len(written) == len(plans)
        if at_start:
            log_ahead(known.values(), now)

    async def _plan_stored(self) -> None:
        """Plan schedules that were made or changed at run time; when this scheduler starts, also those whose time zone
        has other rules than before."""
        more = True
        while more:
            planned, more = await self._session.run(self._plan_batch)
            for name, slot in planned[:LOGGED]:
                _log.info("schedule %r was made or changed; next run %s", name, utc(slot))
            if len(planned) > LOGGED:
                _log.info("planned as well: %s", plural(len(planned) - LOGGED, "more schedule"))
        while (after := self._checked_rules_to) is not None:
            changed, self._checked_rules_to = await self._session.run(partial(self._check_rules_batch, after=after))
            for name in changed[:LOGGED]:
                _log.info("schedule %r %s", name, PlanReason.RULES)

    async def _plan_batch(self, connection: Any) -> tuple[list[tuple[str, datetime | None]], bool]:
        async with self._session.transaction(connection):
            found = await self._stored.plan(connection, STORED_BATCH)
            await reached("before_plan_commit")
        return found

    async def _check_rules_batch(self, connection: Any, *, after: str) -> tuple[list[str], str | None]:
        async with self._session.transaction(connection):
            return await self._stored.check_rules(connection, after, STORED_BATCH)

    def _tell_clashes(self, outlook: Outlook) -> None:
        clashes = frozenset(outlook.clashing or ())
        for name in sorted(clashes - self._told_clashes)[:LOGGED]:
            _log.warning(
                "schedule %r of the code is skipped: a schedule that was made at run time has its name, and is served "
                "in its place; `horsies schedules remove` gives the name back to the code", name,
            )  # fmt: skip
        for name in sorted(self._told_clashes - clashes)[:LOGGED]:
            _log.info("schedule %r of the code is served again", name)
        self._told_clashes = clashes

    # -- firing ----------------------------------------------------------------------------------

    async def _fire(self, lock: Lock) -> Fired:
        """Fire one batch in one transaction."""
        announcer = self._runs.announcer
        careful = bool(self._blocked)
        try:
            try:
                fired = await self._session.run(partial(self._fire_batch, lock=lock, careful=careful))
            except Exception as error:
                if careful or not (is_data_error(error) or isinstance(error, SlotBlocked)):
                    raise
                # one of the tasks cannot be written: write the batch again without that one
                fired = await self._session.run(partial(self._fire_batch, lock=lock, careful=True))
        except BaseException as error:
            await announcer.tell_sent(error)
            raise
        if fired.moves:
            await reached("after_fire")
            self._log_moves(fired)
        await announcer.tell_sent()
        return fired

    async def _fire_batch(self, connection: Any, *, lock: Lock, careful: bool) -> Fired:
        """`careful`: leave out what cannot be written, which takes longer."""
        try:
            async with self._session.transaction(connection):
                return await self._fire_locked(connection, lock, careful=careful)
        except Exception as error:
            # told apart here, inside the action: the connection is sound, and is not dropped as after an outage
            if not careful and not self._waits_for_locks and is_lock_timeout(error):
                raise SlotBlocked from error
            raise

    async def _fire_locked(self, connection: Any, lock: Lock, *, careful: bool) -> Fired:
        limit = None if self._waits_for_locks else f"{PART_WAIT_MS if careful else BATCH_WAIT_MS}ms"
        (limited,) = await self._queries.fetch(connection, "limit_lock_waits", limit)
        batch = await lock(connection)
        if batch.now is None:
            return Fired()
        await reached("before_fire")
        moves, problems = self._decide(batch)
        await self._stored.note(connection, problems)
        fires = sum(len(made.fires) for made in moves)
        fresh = set[str]()
        if moves and careful:
            fresh = await self._write_accepted(connection, moves, batch)
        elif moves and self._waits_for_locks:
            fresh = await self._write(connection, moves, batch)
        elif moves:
            fresh = await self._blockers.during(limited["pid"], self._write(connection, moves, batch))
        await reached("before_fire_commit")
        is_full = bool(moves or problems or batch.problems) and (batch.is_full or fires >= MAX_FIRES)
        return Fired(moves, batch.served, frozenset(fresh), is_full)

    def _decide(self, batch: Batch) -> tuple[list[Move], dict[str, str]]:
        """The moves, and why some schedules that were made at run time have none."""
        moves: list[Move] = []
        problems: dict[str, str] = {}
        fires = 0
        for row in batch.rows:
            if batch.now is None or fires >= MAX_FIRES:
                break
            try:
                one = batch.served[row.name]
                made = move(one.task, one.slots, row, batch.now)
            except Exception as error:  # a bug in one schedule must not stop the others
                _log.exception("schedule %r: its next run cannot be computed", row.name)
                if (version := batch.served[row.name].version) is not None:
                    problems[row.name] = self._stored.put_aside(row.name, version, error)
                continue
            if not made.changes_nothing:
                moves.append(made)
                fires += len(made.fires)
        return moves, problems

    async def _write(self, connection: Any, moves: Sequence[Move], batch: Batch) -> set[str]:
        """Write the tasks and rows of these moves; returns the ids of tasks that did not exist before."""
        fresh = await self._runs.enqueue(connection, moves, batch.served)
        await reached("after_enqueue")
        await self._runs.write_moves(connection, moves, batch, fresh)
        return fresh

    async def _write_accepted(self, connection: Any, moves: list[Move], batch: Batch) -> set[str]:
        """The same without moves that the database refuses: they are logged and removed from the list."""
        problems: dict[str, str] = {}

        blocked: list[str] = []
        give_up = time.monotonic() + PARTS_S

        async def write(part: Sequence[Move]) -> set[str]:
            if time.monotonic() > give_up:
                raise OutOfTime
            return await self._write(connection, part, batch)

        def refuse(made: Move, error: Exception) -> set[str]:
            moves.remove(made)
            self._runs.announcer.note_refusal(made, error)
            version = batch.served[made.name].version
            if not is_data_error(error):
                self._blocked.hold(made.name, version, time.monotonic())
                if not isinstance(error, OutOfTime):
                    blocked.append(made.name)
                return set()
            _log.critical("schedule %r: the database refuses its task: %s", made.name, worded(error))
            if version is not None:
                problems[made.name] = self._stored.put_aside(made.name, version, error)
            return set()

        fresh = set[str]().union(
            *await write_or_split(list(moves), write, refuse, transaction=connection, splits=_has_one_reason)
        )
        await self._stored.note(connection, problems)
        if told := self._blocked.to_tell(blocked, time.monotonic()):
            self._blockers.tell(told)
        return fresh

    # -- logging ---------------------------------------------------------------------------------

    def _log_moves(self, fired: Fired) -> None:
        for made in fired.moves:
            if self._blocked and (waited := self._blocked.release(made.name, time.monotonic())) is not None:
                _log.info("schedule %r: its slot could be written after %.0f s", made.name, waited)
            for fire in made.fires:
                is_fresh = fire.task_id in fired.fresh
                if is_fresh:
                    self._bus.emit(ScheduleFired(made.name, fire.task_id))
                if self._runs.announcer.is_refused(fire.task_id) or (is_fresh and not _log.isEnabledFor(logging.DEBUG)):
                    continue
                extra = about(fire.task_id, fired.served[made.name].task.schedule.target)
                _log.log(
                    logging.DEBUG if is_fresh else logging.WARNING,
                    "schedule %r: %s has its run %s%s", made.name, utc(fire.slot), fire.task_id,
                    "" if is_fresh else " already", extra=extra,
                )  # fmt: skip
        log_passed(fired.moves, fired.served)


def _has_one_reason(error: BaseException) -> bool:
    """Whether one schedule of a batch may be the reason that it cannot be written."""
    return is_data_error(error) or isinstance(error, OutOfTime) or is_lock_timeout(error)
