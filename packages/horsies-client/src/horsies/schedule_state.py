"""What an operator is told of a schedule: active, overdue, removed. Pure; the only place that says so.

A running scheduler confirms the rows of its schedules every few seconds (`horsies_schedule_state.updated_at`). So a row
that is old while another is fresh belongs to no live scheduler, and rows that are all old say that none is running.
"""

from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

LISTED_EVERY: Final = timedelta(seconds=10)
"""A running scheduler says so often which schedules it lists."""
LISTED_FOR: Final = timedelta(seconds=30)
"""A schedule that was not named for longer is listed by no live scheduler."""
OVERDUE_AFTER: Final = timedelta(seconds=5)
"""A slot may be so late: the scheduler polls, and fires in batches."""
FORGOTTEN_AFTER: Final = timedelta(days=1)
"""A removed schedule leaves the lists, and the doctor's page, after this."""


class ScheduleState(StrEnum):
    """What an operator is told of a schedule."""

    ACTIVE = "active"
    OVERDUE = "overdue"
    """Its slot has come and no scheduler has run it."""
    PAUSED = "paused"
    BY_HAND = "by hand only"
    """It is not enabled."""
    REMOVED = "removed"
    """A scheduler is there, and none lists it: it is gone from the code, or its app's scheduler is down."""


def schedule_state(
    next_run_at: datetime | None,
    paused_at: datetime | None,
    overdue_by: timedelta | None,
    unlisted_for: timedelta,
    scheduler_seen: timedelta,
) -> ScheduleState:
    """The one meaning of overdue and of removed, for lists and alarms alike."""
    if scheduler_seen <= LISTED_FOR < unlisted_for:
        return ScheduleState.REMOVED
    if paused_at is not None:
        return ScheduleState.PAUSED
    if overdue_by is not None and overdue_by > OVERDUE_AFTER:
        return ScheduleState.OVERDUE
    return ScheduleState.BY_HAND if next_run_at is None else ScheduleState.ACTIVE
