"""Which slots of a due schedule run, which pass without a run, and when the schedule is due next. Pure.

`move` decides for a due row that this scheduler has locked; `plan_row` for a row that is missing or was written for
another configuration.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from itertools import product
from typing import Final

from horsies.schedule import Interval, Overlap, TaskSchedule
from horsies.scheduled import ScheduledTask
from horsies_worker.scheduler.next_run import Slots, latest

ORPHANED_AFTER: Final = timedelta(minutes=1)
"""A row of another deploy's configuration is left to that deploy's schedulers, until it is overdue by this much."""
WRONG_CLOCK: Final = timedelta(days=1)
"""A last run that lies further in the future than this is one of a database whose clock was wrong."""


@dataclass(frozen=True, slots=True)
class DueRow:
    """A row of horsies_schedule_state that is due or has a request to run."""

    name: str
    next_run_at: datetime | None
    is_ours: bool
    """The row was written for this scheduler's configuration. Otherwise only a request to run is served."""
    is_paused: bool
    run_requested_at: datetime | None
    is_previous_live: bool
    """The previous run has not ended. Read only for schedules with overlap=skip."""
    entries: int = 0
    """The number of the newest entry in its history."""
    last_skipped: "Why | None" = None
    """Why the slots of that entry were skipped; None if it is a run."""
    last_skipped_slot: datetime | None = None
    """The first slot of that entry."""
    last_run_at: datetime | None = None


class Why(StrEnum):
    """Why slots passed without a run."""

    MISSED = "missed"
    OVERLAP = "overlap"
    PAUSED = "paused"
    REFUSED = "refused"
    """By the app's middleware."""


@dataclass(frozen=True, slots=True)
class Fire:
    """One task to enqueue for a slot; it may start at `not_before`."""

    task_id: str
    slot: datetime
    not_before: datetime


@dataclass(frozen=True, slots=True)
class Passed:
    """Slots from `first` on, before `until`, that are not run."""

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
    """Settle all slots up to `now`, so that the next one is always in the future."""
    schedule = task.schedule
    alone = schedule.overlap is Overlap.SKIP
    fires: list[Fire] = []
    passed: Passed | None = None
    next_run_at = row.next_run_at
    due = row.next_run_at
    if row.is_ours and due is not None and due <= now:
        # Nearly always exactly one slot is due, and no others need to be computed.
        following = slots.after(due)
        is_only_one = following is None or following > now
        next_run_at = following if is_only_one else slots.after(now)
        if row.is_paused:
            passed = Passed(Why.PAUSED, due, now)
        elif alone and row.is_previous_live:
            passed = Passed(Why.OVERLAP, due, now)
        else:
            count = schedule.max_catch_up_runs if schedule.catch_up_missed and not alone else 1
            # The row's own date is run, also when an operator has set it by hand.
            wanted = [due] if is_only_one else latest(slots, due, now, count)
            fires = [Fire(task.id_of(slot), slot, slot + task.delay_of(slot)) for slot in wanted]
            if due < wanted[0]:
                passed = Passed(Why.MISSED, due, wanted[0])
    requested = row.run_requested_at
    # With overlap=skip, a request waits until the previous run has ended.
    is_fulfilled = requested is not None and not (alone and (row.is_previous_live or fires))
    if requested is not None and is_fulfilled:
        fires.append(Fire(task.id_of_request(requested), requested, requested))
        ran_at = row.last_run_at
        if row.is_ours and schedule.enabled and ran_at is not None and ran_at > now + WRONG_CLOCK:
            # This run becomes the last one; the next slot must not stay behind the one of the wrong clock.
            next_run_at = slots.after(now)
    return Move(row.name, row.next_run_at, next_run_at, tuple(fires), is_fulfilled, passed)


HISTORY: Final = 20
"""The entries that are kept for each schedule: the places of `horsies_schedule_runs`."""


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of the history: a run, or slots that were skipped for one reason."""

    number: int
    slot: datetime
    last_slot: datetime
    task_id: str | None
    skipped: Why | None
    is_request: bool = False


def history(
    made: Move, slots: Slots, row: DueRow, is_fresh: Callable[[str], bool], is_refused: Callable[[str], bool]
) -> list[Entry]:
    """What a move adds to the history, at most 20 entries. Slots that are skipped for the reason of the entry before
    extend that entry: a schedule that is paused for a week keeps the history of its runs."""
    found: list[Entry] = []
    number = row.entries
    if (passed := made.passed) is not None:
        first = passed.first
        if passed.why is row.last_skipped and row.last_skipped_slot is not None and row.last_skipped_slot < first:
            first = row.last_skipped_slot
        else:
            number += 1
        found.append(Entry(number, first, _last_passed(slots, passed), None, passed.why))
    for fire in made.fires:
        refused = is_refused(fire.task_id)
        if refused or is_fresh(fire.task_id):  # otherwise another scheduler has noted the run
            number += 1
            is_request = fire is made.fires[-1] and made.is_request_fulfilled
            why = Why.REFUSED if refused else None
            found.append(Entry(number, fire.slot, fire.slot, None if refused else fire.task_id, why, is_request))
    return found[-HISTORY:]


def _last_passed(slots: Slots, passed: Passed) -> datetime:
    for slot in slots.until(passed.until):
        # the end of missed slots is the first one that runs
        if passed.why is not Why.MISSED or slot < passed.until:
            return max(slot, passed.first)
    return passed.first


@dataclass(frozen=True, slots=True)
class KnownRow:
    """The stored row of a schedule, due or not."""

    name: str
    next_run_at: datetime | None
    last_run_at: datetime | None
    config_hash: str | None
    updated_at: datetime
    is_data: bool = False
    """A schedule that was made at run time has taken the name."""


class PlanReason(StrEnum):
    NEW = "is new"
    CHANGED = "has another timing than before"
    RESPELT = "has the interval of before in other units"
    GIVEN_BACK = "is that of the code again"
    """The schedule made at run time that had taken its name was deleted."""
    ORPHANED = "was left by the schedulers of another release"
    RULES = "falls on another time: the rules of its time zone have changed"


@dataclass(frozen=True, slots=True)
class PlannedRow:
    """A row to write. `was` is the row as it was read; None when there was none."""

    name: str
    config_hash: str
    next_run_at: datetime | None
    reason: PlanReason
    was: KnownRow | None


def plan_row(
    task: ScheduledTask, slots: Slots, row: KnownRow | None, now: datetime, *, at_start: bool
) -> PlannedRow | None:
    """The row to write for a schedule; None when the stored row is right.

    The scheduler that started last decides: an outgoing deploy does not change a row back.
    """
    reason = _plan_reason(task, slots, row, now, at_start=at_start)
    if reason is None:
        return None
    # never before the last run, even if the database's clock was put back
    if row is not None and reason is PlanReason.RESPELT:
        return PlannedRow(task.name, task.schedule.config_hash, row.next_run_at, reason, row)
    since = now if row is None or row.last_run_at is None else max(now, row.last_run_at)
    next_run_at = slots.after(since) if task.schedule.enabled else None
    return PlannedRow(task.name, task.schedule.config_hash, next_run_at, reason, row)


def _plan_reason(
    task: ScheduledTask, slots: Slots, row: KnownRow | None, now: datetime, *, at_start: bool
) -> PlanReason | None:
    if row is None:
        return PlanReason.NEW
    if row.config_hash is None:
        return PlanReason.GIVEN_BACK
    if row.config_hash != task.schedule.config_hash:
        if at_start:
            return PlanReason.RESPELT if row.config_hash in _other_spellings(task.schedule) else PlanReason.CHANGED
        served = row.next_run_at or row.updated_at
        return PlanReason.ORPHANED if served < now - ORPHANED_AFTER else None
    promised = row.next_run_at
    if at_start and promised is not None and promised > now and next(slots.until(promised), None) != promised:
        return PlanReason.RULES
    return None


def _other_spellings(schedule: TaskSchedule) -> set[str]:
    """The hashes of the same interval in other units: 90 minutes are 1 hour and 30 minutes, or 5,400 seconds.

    A hash covers the fields as they are written. Hashing the time they make would change the stored hashes of all
    intervals, and drop the slots that were missed during that upgrade.
    """
    if not isinstance(schedule.pattern, Interval):
        return set()
    found: set[str] = set()
    for days, hours, minutes in product((86_400, 0), (3_600, 0), (60, 0)):
        rest = int(schedule.pattern.every.total_seconds())
        parts: list[int] = []
        for unit in (days, hours, minutes):
            count, rest = divmod(rest, unit) if unit else (0, rest)
            parts.append(count)
        spelt = Interval(days=parts[0], hours=parts[1], minutes=parts[2], seconds=rest)
        found.add(replace(schedule, pattern=spelt).config_hash)
    return found
