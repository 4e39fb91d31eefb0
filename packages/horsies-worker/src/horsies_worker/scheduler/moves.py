"""What becomes of a schedule that is due: which slots are run, which pass, when it is due again. Pure.

`move` is for a row that somebody else may serve as well and that this scheduler holds locked; `plan_row` for a row
that is missing, or was written for another configuration.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

from horsies.schedule import Overlap
from horsies.scheduled import ScheduledTask
from horsies_worker.scheduler.next_run import Slots, latest

ORPHANED_AFTER: Final = timedelta(minutes=1)
"""A row that follows the configuration of another deploy is left to that deploy's schedulers, until it is plain that
none of them is there."""


@dataclass(frozen=True, slots=True)
class DueRow:
    """A row of horsies_schedule_state that is due, or that somebody asked to run."""

    name: str
    next_run_at: datetime | None
    is_ours: bool
    """Written for the configuration that this scheduler has; otherwise only a request to run concerns us."""
    is_paused: bool
    run_requested_at: datetime | None
    is_previous_live: bool
    """The task of the run before has not ended. Only looked at where two must not run."""


class Why(StrEnum):
    """Why slots passed without a run."""

    MISSED = "missed"
    OVERLAP = "overlap"
    PAUSED = "paused"


@dataclass(frozen=True, slots=True)
class Fire:
    """One task to be enqueued. `slot` is what it stands for, `not_before` when it may start."""

    task_id: str
    slot: datetime
    not_before: datetime


@dataclass(frozen=True, slots=True)
class Passed:
    """Slots from `first` on, before `until`, that nobody will run."""

    why: Why
    first: datetime
    until: datetime


@dataclass(frozen=True, slots=True)
class Move:
    name: str
    was: datetime | None
    next_run_at: datetime | None
    fires: tuple[Fire, ...]
    is_request_fulfilled: bool
    passed: Passed | None

    @property
    def changes_nothing(self) -> bool:
        return self.next_run_at == self.was and not self.fires and not self.is_request_fulfilled


def move(task: ScheduledTask, slots: Slots, row: DueRow, now: datetime) -> Move:
    """All slots up to `now` are settled at once, so that the next one is always in the future."""
    schedule = task.schedule
    alone = schedule.overlap is Overlap.SKIP
    fires: list[Fire] = []
    passed: Passed | None = None
    next_run_at = row.next_run_at
    due = row.next_run_at
    if row.is_ours and due is not None and due <= now:
        # Nearly always one slot has come, and the one after it is the next: nothing else needs to be computed.
        following = slots.after(due)
        is_only_one = following is None or following > now
        next_run_at = following if is_only_one else slots.after(now)
        if row.is_paused:
            passed = Passed(Why.PAUSED, due, now)
        elif alone and row.is_previous_live:
            passed = Passed(Why.OVERLAP, due, now)
        else:
            count = schedule.max_catch_up_runs if schedule.catch_up_missed and not alone else 1
            # The row's own word counts: what was promised is run, also when somebody has set it by hand.
            wanted = [due] if is_only_one else latest(slots, due, now, count)
            fires = [Fire(task.id_of(slot), slot, slot + task.delay_of(slot)) for slot in wanted]
            if due < wanted[0]:
                passed = Passed(Why.MISSED, due, wanted[0])
    requested = row.run_requested_at
    # A request waits until the run before has ended, where two must not run at a time.
    is_fulfilled = requested is not None and not (alone and (row.is_previous_live or fires))
    if requested is not None and is_fulfilled:
        fires.append(Fire(task.id_of_request(requested), requested, requested))
    return Move(row.name, row.next_run_at, next_run_at, tuple(fires), is_fulfilled, passed)


@dataclass(frozen=True, slots=True)
class KnownRow:
    """What is stored of a schedule, due or not."""

    name: str
    next_run_at: datetime | None
    last_run_at: datetime | None
    config_hash: str | None
    updated_at: datetime


class PlanReason(StrEnum):
    NEW = "is new"
    CHANGED = "has another timing than before"
    ORPHANED = "was left by the schedulers of another release"
    RULES = "falls on another time: the rules of its time zone have changed"


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row to be written. `was`: as it was read; None when there was none."""

    name: str
    config_hash: str
    next_run_at: datetime | None
    reason: PlanReason
    was: KnownRow | None


def plan_row(
    task: ScheduledTask, slots: Slots, row: KnownRow | None, now: datetime, *, at_start: bool
) -> PlannedRow | None:
    """What to write for a schedule; None when its row is as it should be.

    The scheduler that started last decides: a deploy that is on its way out does not change a row back.
    """
    reason = _plan_reason(task, slots, row, now, at_start=at_start)
    if reason is None:
        return None
    # never before the last run, also when the database's clock was put back
    since = now if row is None or row.last_run_at is None else max(now, row.last_run_at)
    next_run_at = slots.after(since) if task.schedule.enabled else None
    return PlannedRow(task.name, task.schedule.config_hash, next_run_at, reason, row)


def _plan_reason(
    task: ScheduledTask, slots: Slots, row: KnownRow | None, now: datetime, *, at_start: bool
) -> PlanReason | None:
    if row is None:
        return PlanReason.NEW
    if row.config_hash != task.schedule.config_hash:
        if at_start:
            return PlanReason.CHANGED
        served = row.next_run_at or row.updated_at
        return PlanReason.ORPHANED if served < now - ORPHANED_AFTER else None
    promised = row.next_run_at
    if at_start and promised is not None and promised > now and next(slots.until(promised), None) != promised:
        return PlanReason.RULES
    return None
