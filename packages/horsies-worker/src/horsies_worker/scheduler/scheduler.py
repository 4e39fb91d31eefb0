"""The scheduler: fires due slots and sleeps until the next one. Any number of schedulers may run.

Only the database's clock counts: each check reads its time and the next slot, and the sleep until then is measured on
the monotonic clock. A change of the database's clock is noticed by the next check, at the latest after
`notify_poll_interval_ms`; a clock that was put back delays slots and never doubles them. The scheduler keeps no session
state, so it works behind a transaction-mode pooler.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Final

from horsies._pg import channels
from horsies._pg.listener import Listener
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
from horsies_worker.scheduler.local_times import cron_problem
from horsies_worker.scheduler.next_run import Slots, slots_of
from horsies_worker.scheduler.slots import Move, PlanReason, Why, move, plan_row
from horsies_worker.scheduler.state import Batch, Outlook, ScheduleState
from horsies_worker.service import Service
from horsies_worker.syncpoints import reached

_log = logging.getLogger("horsies.scheduler")

BATCH: Final = 1_000
"""Schedules per transaction. Their slots are computed between two statements: some 50 ms of this process."""
MAX_FIRES: Final = 5_000
"""Tasks per transaction; a long catch-up of many schedules takes several."""
FIRST_RETRY_S: Final = 0.05
EARLY_S: Final = 0.001
"""Added to each sleep: a timer may fire a little early, and the check would find nothing due."""
_LOGGED: Final = 20
"""Schedules that the log names for one batch; it counts the others."""
_COUNTED: Final = 1_000


Write = Callable[[Any, list[Move], datetime], Awaitable[set[str]]]


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
    ) -> None:
        self._bus = bus
        resilience = app.config.resilience
        super().__init__(session, resilience, resilience.notify_poll_interval_ms / 1000)
        self._resilience = resilience
        self._tasks = {task.name: task for task in tasks}
        self._slots: dict[str, Slots] = {task.name: slots_of(task.schedule) for task in tasks}
        self._state = ScheduleState(app, session.queries, tasks)
        self._on_contact = on_contact
        self._has_planned = False
        self._outlook: Outlook | None = None
        self._outlook_mono = 0.0
        self._idle_fires = 0
        self._confirm_mono = 0.0

    async def hear(self, broker: PostgresConfig, who: str) -> None:
        """Listen to operators' requests until cancelled. Waking the scheduler finds those from before LISTEN."""
        listener = Listener(partial(connect_listener, broker, who), self._resilience, redact=broker.redact)
        await listener.run({channels.SCHEDULE_STATE: self.on_news}, on_live=lambda _: self.wake())

    def on_news(self, _name: str) -> None:
        """A schedule was paused, resumed or asked to run."""
        self.wake()

    # -- checking --------------------------------------------------------------------------------

    async def run_once(self) -> None:
        outlook = await self._check()
        if time.monotonic() >= self._confirm_mono:
            await self._session.run(self._state.confirm)
            self._confirm_mono = time.monotonic() + LISTED_EVERY.total_seconds()
        if not self._has_planned or outlook.known < len(self._tasks) or outlook.orphaned:
            await self._plan(outlook.now)
            outlook = await self._check()
        if not outlook.due:
            self._idle_fires = 0
            return
        moved = 0
        while True:
            count, is_full = await self._fire()
            moved += count
            if not is_full:
                break
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
        elif outlook.due:
            pause = 0.0
        if outlook.next_due is not None:
            ahead = (outlook.next_due - outlook.now).total_seconds()
            pause = min(pause, ahead - (time.monotonic() - self._outlook_mono) + EARLY_S)
        return max(pause, 0.0)

    async def _check(self) -> Outlook:
        began = time.monotonic()
        self._outlook = await self._session.run(self._state.outlook)
        self._outlook_mono = (began + time.monotonic()) / 2
        self._on_contact()
        return self._outlook

    # -- planning --------------------------------------------------------------------------------

    async def _plan(self, now: datetime) -> None:
        """Write rows for new and changed schedules."""
        known = await self._session.run(self._state.read)
        at_start = not self._has_planned
        plans = [
            plan
            for name, task in self._tasks.items()
            if (plan := plan_row(task, self._slots[name], known.get(name), now, at_start=at_start)) is not None
        ]
        written: set[str] = set()
        if plans:
            written = await self._session.run(lambda connection: self._state.write_plans(connection, plans))
            fresh = [plan for plan in plans if plan.name in written]
            for plan in fresh[:_LOGGED]:
                level = logging.WARNING if plan.reason is PlanReason.ORPHANED else logging.INFO
                _log.log(level, "schedule %r %s; next run %s", plan.name, plan.reason, _utc(plan.next_run_at))
            if len(fresh) > _LOGGED:
                _log.info("planned as well: %s", plural(len(fresh) - _LOGGED, "more schedule"))
        # rows that another scheduler changed meanwhile are planned again
        self._has_planned = self._has_planned or len(written) == len(plans)

    # -- firing ----------------------------------------------------------------------------------

    async def _fire(self) -> tuple[int, bool]:
        """Fire one batch in one transaction; returns how many schedules moved, and whether there may be more."""
        try:
            try:
                moves, is_full, fresh = await self._session.run(partial(self._fire_batch, write=self._write))
            except Exception as error:
                if not is_data_error(error):
                    raise
                # the database refuses one of the tasks: write the batch again without that one
                moves, is_full, fresh = await self._session.run(partial(self._fire_batch, write=self._write_accepted))
        except BaseException as error:
            await self._state.announcer.tell_sent(error)
            raise
        if moves:
            await reached("after_fire")
            self._log_moves(moves, fresh)
        await self._state.announcer.tell_sent()
        return len(moves), is_full

    async def _fire_batch(self, connection: Any, *, write: Write) -> tuple[list[Move], bool, set[str]]:
        async with self._session.transaction(connection):
            batch = await self._state.lock_due(connection, BATCH)
            if batch.now is None:
                return [], False, set()
            await reached("before_fire")
            moves = self._decide(batch)
            fires = sum(len(made.fires) for made in moves)
            fresh = await write(connection, moves, batch.now) if moves else set[str]()
            await reached("before_fire_commit")
        return moves, bool(moves) and (len(batch.rows) == BATCH or fires >= MAX_FIRES), fresh

    def _decide(self, batch: Batch) -> list[Move]:
        moves: list[Move] = []
        fires = 0
        for row in batch.rows:
            if batch.now is None or fires >= MAX_FIRES:
                break
            try:
                made = move(self._tasks[row.name], self._slots[row.name], row, batch.now)
            except Exception:  # a bug in one schedule must not stop the others
                _log.exception("schedule %r: its next run cannot be computed", row.name)
                continue
            if not made.changes_nothing:
                moves.append(made)
                fires += len(made.fires)
        return moves

    async def _write(self, connection: Any, moves: Sequence[Move], now: datetime) -> set[str]:
        """Write the tasks and rows of these moves; returns the ids of tasks that did not exist before."""
        fresh = await self._state.enqueue(connection, moves)
        await reached("after_enqueue")
        await self._state.write_moves(connection, moves, now, fresh)
        return fresh

    async def _write_accepted(self, connection: Any, moves: list[Move], now: datetime) -> set[str]:
        """The same without moves that the database refuses: they are logged and removed from the list."""

        def write(part: Sequence[Move]) -> Awaitable[set[str]]:
            return self._write(connection, part, now)

        def refuse(made: Move, error: Exception) -> set[str]:
            _log.critical("schedule %r: the database refuses its task: %s", made.name, error)
            moves.remove(made)
            self._state.announcer.note_refusal(made, error)
            return set()

        return set[str]().union(*await write_or_split(list(moves), write, refuse, transaction=connection))

    # -- logging ---------------------------------------------------------------------------------

    def _log_moves(self, moves: Sequence[Move], fresh: set[str]) -> None:
        for made in moves:
            for fire in made.fires:
                is_fresh = fire.task_id in fresh
                if is_fresh:
                    self._bus.emit(ScheduleFired(made.name, fire.task_id))
                if self._state.announcer.is_refused(fire.task_id) or (
                    is_fresh and not _log.isEnabledFor(logging.DEBUG)
                ):
                    continue
                extra = about(fire.task_id, self._tasks[made.name].schedule.target)
                _log.log(
                    logging.DEBUG if is_fresh else logging.WARNING,
                    "schedule %r: %s has its run %s%s", made.name, _utc(fire.slot), fire.task_id,
                    "" if is_fresh else " already", extra=extra,
                )  # fmt: skip
        passed = [made for made in moves if made.passed is not None and made.passed.why is not Why.PAUSED]
        for made in passed[:_LOGGED]:
            self._log_passed(made)
        if len(passed) > _LOGGED:
            _log.warning("slots not run as well: %s", plural(len(passed) - _LOGGED, "more schedule"))

    def _log_passed(self, made: Move) -> None:
        if made.passed is None:
            return
        first, until = made.passed.first, made.passed.until
        if made.passed.why is Why.OVERLAP:
            _log.warning(
                "schedule %r: the run of %s is skipped, the run before has not ended (overlap=skip)",
                made.name, _utc(first),
            )  # fmt: skip
            return
        count = 0
        for slot in islice(self._slots[made.name].until(until), _COUNTED + 1):
            if slot < first:
                break
            count += slot < until
        if not count:
            return  # the row was set by hand to a time between two slots
        number = f"at least {_COUNTED:,}" if count >= _COUNTED else str(count)
        ran = sum(fire.slot >= until for fire in made.fires)
        _log.warning(
            "schedule %r: %s missed slot%s not run (from %s on), the latest %s",
            made.name, number, " is" if count == 1 else "s are", _utc(first), "one is" if ran == 1 else f"{ran} are",
        )  # fmt: skip


def _utc(moment: datetime | None) -> str:
    return "never" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S UTC")
