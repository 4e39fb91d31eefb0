"""The scheduler: looks, fires what is due, sleeps until the next slot. Any number of them may run.

It trusts the database's clock and no other: a look brings the time there and the next slot, and the sleep until then
is measured on the monotonic clock. A change of the database's clock is noticed with the next look, at the latest after
`notify_poll_interval_ms`; a clock that was put back makes slots late, never doubled. No session state: a
transaction-mode pooler may stand in between.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from functools import partial
from itertools import islice
from typing import Any, Final

from horsies._text import plural
from horsies.app import Horsies
from horsies.schedule_state import LISTED_EVERY
from horsies.scheduled import ScheduledTask, settle_schedules
from horsies_worker.child.logs import about
from horsies_worker.finalizer import is_data_error
from horsies_worker.scheduler.local_times import cron_problem
from horsies_worker.scheduler.moves import Move, PlanReason, Why, move, plan_row
from horsies_worker.scheduler.next_run import Slots, slots_of
from horsies_worker.scheduler.state import Batch, Outlook, ScheduleState
from horsies_worker.service import Service
from horsies_worker.session import SET_LOCAL_LIMITS, Session
from horsies_worker.syncpoints import reached

_log = logging.getLogger("horsies.scheduler")

BATCH: Final = 1_000
"""Schedules per transaction. Their slots are computed between two statements: some 50 ms of this process."""
MAX_FIRES: Final = 5_000
"""Tasks per transaction; a long catch-up of many schedules takes several."""
FIRST_RETRY_S: Final = 0.05
EARLY_S: Final = 0.001
"""A timer may ring a little early; the database would say that nothing is due, and be asked again."""
_SPOKEN: Final = 20
"""Schedules that are named in the log for one batch; beyond that, how many more there are."""
_COUNTED: Final = 1_000


Write = Callable[[Any, list[Move], datetime], Awaitable[set[str]]]


def settled_schedules(app: Horsies) -> list[ScheduledTask]:
    """The app's schedules, ready to run; ConfigurationError with everything that is wrong with any of them."""
    return settle_schedules(app, cron_problem)


class Scheduler(Service):
    name = "scheduler"

    def __init__(
        self,
        app: Horsies,
        tasks: Sequence[ScheduledTask],
        session: Session,
        *,
        on_contact: Callable[[], None] = lambda: None,
    ) -> None:
        self._poll_s = app.config.resilience.notify_poll_interval_ms / 1000
        super().__init__(self._poll_s, app.config.resilience)
        self._tasks = {task.name: task for task in tasks}
        self._slots: dict[str, Slots] = {task.name: slots_of(task.schedule) for task in tasks}
        self._session = session
        self._state = ScheduleState(app.schema, tasks)
        self._on_contact = on_contact
        self._has_planned = False
        self._outlook: Outlook | None = None
        self._outlook_mono = 0.0
        self._in_vain = 0
        self._confirm_mono = 0.0

    def on_news(self, _name: str) -> None:
        """A schedule was paused, resumed or asked to run."""
        self.wake()

    # -- looking ---------------------------------------------------------------------------------

    async def run_once(self) -> None:
        outlook = await self._look()
        if time.monotonic() >= self._confirm_mono:
            await self._session.run(self._state.confirm)
            self._confirm_mono = time.monotonic() + LISTED_EVERY.total_seconds()
        if not self._has_planned or outlook.known < len(self._tasks) or outlook.orphaned:
            await self._plan(outlook.now)
            outlook = await self._look()
        if not outlook.due:
            self._in_vain = 0
            return
        moved = 0
        while True:
            count, is_full = await self._fire()
            moved += count
            if not is_full:
                break
        # Nothing moved: others hold what is due, or a request waits for the run before. Come back less and less often.
        self._in_vain = 0 if moved else self._in_vain + 1
        await self._look()

    def pause_s(self) -> float:
        """Until the next slot is due, or somebody must look anyway."""
        outlook = self._outlook
        if outlook is None:
            return self._poll_s
        pause = min(self._poll_s, max(self._confirm_mono - time.monotonic(), EARLY_S))
        if self._in_vain:
            pause = min(pause, FIRST_RETRY_S * 2 ** min(self._in_vain - 1, 16))
        elif outlook.due:
            pause = 0.0
        if outlook.next_due is not None:
            ahead = (outlook.next_due - outlook.now).total_seconds()
            pause = min(pause, ahead - (time.monotonic() - self._outlook_mono) + EARLY_S)
        return max(pause, 0.0)

    async def _look(self) -> Outlook:
        asked = time.monotonic()
        self._outlook = await self._session.run(self._state.outlook)
        self._outlook_mono = (asked + time.monotonic()) / 2
        self._on_contact()
        return self._outlook

    # -- planning --------------------------------------------------------------------------------

    async def _plan(self, now: datetime) -> None:
        """Rows for schedules that have none, and for those that were changed."""
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
            for plan in fresh[:_SPOKEN]:
                level = logging.WARNING if plan.reason is PlanReason.ORPHANED else logging.INFO
                _log.log(level, "schedule %r %s; next run %s", plan.name, plan.reason, _told(plan.next_run_at))
            if len(fresh) > _SPOKEN:
                _log.info("planned as well: %s", plural(len(fresh) - _SPOKEN, "more schedule"))
        # what somebody else has changed meanwhile is looked at again
        self._has_planned = self._has_planned or len(written) == len(plans)

    # -- firing ----------------------------------------------------------------------------------

    async def _fire(self) -> tuple[int, bool]:
        """One transaction; how many schedules moved, and whether there may be more to do."""
        try:
            moves, is_full, fresh = await self._session.run(partial(self._fire_batch, write=self._write))
        except Exception as error:
            if not is_data_error(error):
                raise
            # one of them does not fit: again, so that it keeps only itself from its slot
            moves, is_full, fresh = await self._session.run(partial(self._fire_batch, write=self._write_what_fits))
        if moves:
            await reached("after_fire")
            self._tell(moves, fresh)
        return len(moves), is_full

    async def _fire_batch(self, connection: Any, *, write: Write) -> tuple[list[Move], bool, set[str]]:
        async with connection.transaction(isolation="read_committed"):
            if self._session.pooled:
                await connection.execute(SET_LOCAL_LIMITS)
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
            except Exception:  # a bug of ours or of the library: it must not stop all the others
                _log.exception("schedule %r: its next run cannot be found", row.name)
                continue
            if not made.changes_nothing:
                moves.append(made)
                fires += len(made.fires)
        return moves

    async def _write(self, connection: Any, moves: list[Move], now: datetime) -> set[str]:
        """Tasks and rows of these moves; the ids of the tasks that were not there already."""
        fresh = await self._state.enqueue(connection, moves)
        await reached("after_enqueue")
        await self._state.write_moves(connection, moves, now, fresh)
        return fresh

    async def _write_what_fits(self, connection: Any, moves: list[Move], now: datetime) -> set[str]:
        """The same, without those that the database refuses: they are told of, and taken out of the list."""
        try:
            async with connection.transaction():  # a savepoint
                return await self._write(connection, moves, now)
        except Exception as error:
            if not is_data_error(error):
                raise
            if len(moves) == 1:
                _log.critical("schedule %r: the database refuses its task: %s", moves[0].name, error)
                moves.clear()
                return set()
        half = len(moves) // 2
        first, second = moves[:half], moves[half:]
        fresh = await self._write_what_fits(connection, first, now)
        fresh |= await self._write_what_fits(connection, second, now)
        moves[:] = [*first, *second]
        return fresh

    # -- telling ---------------------------------------------------------------------------------

    def _tell(self, moves: Sequence[Move], fresh: set[str]) -> None:
        for made in moves:
            for fire in made.fires:
                is_fresh = fire.task_id in fresh
                if is_fresh and not _log.isEnabledFor(logging.DEBUG):
                    continue
                extra = about(fire.task_id, self._tasks[made.name].schedule.target)
                _log.log(
                    logging.DEBUG if is_fresh else logging.WARNING,
                    "schedule %r: %s has its run %s%s", made.name, _told(fire.slot), fire.task_id,
                    "" if is_fresh else " already", extra=extra,
                )  # fmt: skip
        passed = [made for made in moves if made.passed is not None and made.passed.why is not Why.PAUSED]
        for made in passed[:_SPOKEN]:
            self._tell_passed(made)
        if len(passed) > _SPOKEN:
            _log.warning("slots not run as well: %s", plural(len(passed) - _SPOKEN, "more schedule"))

    def _tell_passed(self, made: Move) -> None:
        if made.passed is None:
            return
        first, until = made.passed.first, made.passed.until
        if made.passed.why is Why.OVERLAP:
            _log.warning(
                "schedule %r: the run of %s is skipped, the run before has not ended (overlap=skip)",
                made.name, _told(first),
            )  # fmt: skip
            return
        count = 0
        for slot in islice(self._slots[made.name].until(until), _COUNTED + 1):
            if slot < first:
                break
            count += slot < until
        if not count:
            return  # the row was set by hand, to a moment between two slots
        number = f"at least {_COUNTED:,}" if count >= _COUNTED else str(count)
        ran = sum(fire.slot >= until for fire in made.fires)
        _log.warning(
            "schedule %r: %s missed slot%s not run (from %s on), the latest %s",
            made.name, number, " is" if count == 1 else "s are", _told(first), "one is" if ran == 1 else f"{ran} are",
        )  # fmt: skip


def _told(moment: datetime | None) -> str:
    return "never" if moment is None else moment.strftime("%Y-%m-%d %H:%M:%S UTC")
