"""The state of a schedule: active, overdue, paused or removed. Pure functions; no other module decides it.

A running scheduler confirms the rows of the schedules in its code every few seconds
(`horsies_schedule_state.updated_at`), and its own row in `horsies_schedulers`, which has the tasks that it knows. So no
live scheduler lists a row that is old while another is fresh, and when all rows are old, no scheduler is running.
"""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

LISTED_EVERY: Final = timedelta(seconds=10)
"""The interval at which a running scheduler confirms the schedules that it lists."""
LISTED_FOR: Final = timedelta(seconds=30)
"""No live scheduler lists a schedule that was not confirmed for this long."""
OVERDUE_AFTER: Final = timedelta(seconds=5)
"""A slot may be this late, because the scheduler polls and fires in batches."""
FORGOTTEN_AFTER: Final = timedelta(days=1)
"""Lists and doctor leave out a schedule that was removed this long ago."""


class ScheduleState(StrEnum):
    """The state of a schedule."""

    ACTIVE = "active"
    OVERDUE = "overdue"
    """Its slot is due and no scheduler has run it."""
    PAUSED = "paused"
    BY_HAND = "by hand only"
    """It is not enabled."""
    BROKEN = "cannot run"
    """A scheduler could not read it, or its task does not take its arguments."""
    UNKNOWN = "unknown task"
    """A scheduler is running, but none that knows its task or workflow."""
    REMOVED = "removed"
    """A scheduler is running, but none lists it: it was removed from the code, or its app's scheduler is down."""


def is_scheduler_seen(ago: timedelta | None) -> bool:
    """Whether a scheduler is running; `ago` is the age of the last sign of any, None when there never was one."""
    return ago is not None and ago <= LISTED_FOR


def schedule_state(
    next_run_at: datetime | None,
    paused_at: datetime | None,
    overdue_by: timedelta | None,
    unlisted_for: timedelta,
    scheduler_seen: timedelta | None,
) -> ScheduleState:
    """The state of a schedule in code, for lists and alarms alike."""
    if is_scheduler_seen(scheduler_seen) and unlisted_for > LISTED_FOR:
        return ScheduleState.REMOVED
    if paused_at is not None:
        return ScheduleState.PAUSED
    if overdue_by is not None and overdue_by > OVERDUE_AFTER:
        return ScheduleState.OVERDUE
    return ScheduleState.BY_HAND if next_run_at is None else ScheduleState.ACTIVE


def stored_state(
    paused_at: datetime | None, overdue_by: timedelta | None, scheduler_seen: timedelta | None, *,
    is_enabled: bool, is_known: bool, is_broken: bool,
) -> ScheduleState:  # fmt: skip
    """The same for a schedule that was made at run time. Pausing it silences its alarms, so that state comes first."""
    if paused_at is not None:
        return ScheduleState.PAUSED
    if is_scheduler_seen(scheduler_seen) and not is_known:
        return ScheduleState.UNKNOWN
    if is_broken:
        return ScheduleState.BROKEN
    if overdue_by is not None and overdue_by > OVERDUE_AFTER:
        return ScheduleState.OVERDUE
    return ScheduleState.ACTIVE if is_enabled else ScheduleState.BY_HAND
