"""Time that passes for horsies when a test says so: every time in its tables moves back, and schedules fire the slots
that lie in between.

The tables stay in the time of the server's clock. Slots are times of the calendar: a schedule computes them in the
time that the test has reached, which is ahead of the server's by all that has passed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from horsies._pg.statements import load
from horsies.app import Horsies
from horsies.errors import UsageError
from horsies.scheduled import ScheduledTask
from horsies_worker.database.session import Session
from horsies_worker.scheduler.next_run import Slots
from horsies_worker.scheduler.scheduler import Scheduler, settled_schedules
from horsies_worker.scheduler.state import Served, serve

MAX_SLOTS: Final = 1_000
"""Runs of one schedule in one step of time, the latest ones: a schedule of every second has 86,400 a day."""
FURTHEST: Final = timedelta(days=14_610)
"""The tables take no time before 1970."""


class Timeline:
    """How much time has passed in one test database."""

    def __init__(self) -> None:
        self.passed = timedelta(0)


async def let_pass(app: Horsies, session: Session, line: Timeline, time: timedelta) -> None:
    """Let time pass, and enqueue the runs of schedules whose slots have come."""
    has_schedules = bool(app.config.schedule.schedules) or await _ask(app, session, "has_stored_schedules")
    if has_schedules:  # schedules that are new count from now
        await run_schedules(app, session, line)
    await move_times(app, session, line, time)
    if has_schedules:
        await run_schedules(app, session, line)


async def move_times(app: Horsies, session: Session, line: Timeline, time: timedelta) -> None:
    """Move every time in the tables of horsies back. The step is given in microseconds, because PostgreSQL counts an
    interval of one day as 23 or 25 hours where the session's time zone changes its clocks."""
    if time > FURTHEST - line.passed:
        raise UsageError("advance: in one test at most 40 years can pass, because horsies stores no time before 1970")

    async def move(connection: Any) -> None:
        async with session.transaction(connection):
            for row in await connection.fetch(_sql(app, "columns_of_times"), app.schema):
                moved = ", ".join(f"{name} = {name} - interval '1 microsecond' * $1::bigint" for name in row["columns"])
                await connection.fetch(f"UPDATE {row['in_table']} SET {moved}", time // timedelta(microseconds=1))

    await session.run(move)
    line.passed += time


async def run_schedules(app: Horsies, session: Session, line: Timeline) -> None:
    """What a scheduler does in one round: plan new schedules, and fire those that are due or were asked to run."""
    scheduler = Scheduler(session, app, settled_schedules(app), serve=_Later(line.passed).serve, waits_for_locks=True)
    await scheduler.run_once()


async def is_run_asked_for(app: Horsies, session: Session) -> bool:
    """Whether an operator has asked for a run of a schedule."""
    return await _ask(app, session, "schedules_asked_to_run")


async def time_of_server(app: Horsies, session: Session) -> datetime:
    return await _ask(app, session, "time_of_server")


async def next_due(
    app: Horsies, session: Session, queues: list[str], names: list[str], looked_at: datetime
) -> timedelta | None:
    """The time until the next task, sleep or start of a run that comes by itself. What came after `looked_at`, the
    time before the last look at ready tasks, may have been too late for that look."""
    seconds = await _ask(app, session, "next_due", queues, names, looked_at)
    return None if seconds is None else timedelta(seconds=max(0.0, float(seconds)) + 0.001)


async def _ask(app: Horsies, session: Session, name: str, *values: Any) -> Any:
    return await session.run(lambda connection: connection.fetchval(_sql(app, name), *values))


def _sql(app: Horsies, name: str) -> str:
    return load("horsies.testing", "real.sql", app.schema)[name].sql


@dataclass(frozen=True, slots=True)
class _Later:
    """Gives schedules the slots of a time that is ahead of the server's."""

    by: timedelta

    def serve(self, task: ScheduledTask, version: int | None) -> Served:
        served = serve(task, version)
        # A scheduler was there all the time: slots that lie behind were not missed.
        schedule = replace(task.schedule, catch_up_missed=True, max_catch_up_runs=MAX_SLOTS)
        return replace(
            served, task=_LaterTask(schedule, task.target, self.by), slots=_LaterSlots(served.slots, self.by)
        )


@dataclass(frozen=True, slots=True)
class _LaterSlots:
    slots: Slots
    by: timedelta

    def after(self, instant: datetime) -> datetime | None:
        found = self.slots.after(instant + self.by)
        return None if found is None else found - self.by

    def until(self, instant: datetime) -> Iterator[datetime]:
        for slot in self.slots.until(instant + self.by):
            yield slot - self.by


@dataclass(frozen=True, slots=True)
class _LaterTask(ScheduledTask):
    """Two slots may fall on the same time of the server: ids are made from the time that the test has reached."""

    by: timedelta

    def id_of(self, slot: datetime) -> str:
        return ScheduledTask.id_of(self, slot + self.by)

    def id_of_request(self, requested_at: datetime) -> str:
        return ScheduledTask.id_of_request(self, requested_at + self.by)
