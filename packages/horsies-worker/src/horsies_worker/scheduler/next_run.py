"""From a pattern and a time zone to slots: the instants at which a schedule runs. Pure.

One rule covers every calendar pattern, cron included. A local time stands for **the first instant at which the local
clock shows that time or a later one**. So

- an ordinary time has one instant;
- a time that occurs twice, because the clock was put back, means its first occurrence: the second fires nothing;
- a time that the clock jumps over means the instant of the jump. `skipped_times=skip` leaves it out instead.

The rule keeps the order of local times: walking the local calendar and translating each time gives the slots in order,
and several times in one gap are one slot. An Interval is elapsed time and has no zone.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Protocol
from zoneinfo import ZoneInfo

from horsies.schedule import Interval, SkippedTime, TaskSchedule
from horsies_worker.scheduler.local_times import LocalTimes, local_times

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NO_TIME = timedelta(0)


class Slots(Protocol):
    """The slots of one schedule; all instants are in UTC."""

    def after(self, instant: datetime) -> datetime | None:
        """The first slot later than `instant`; None when the calendar has none."""
        ...

    def until(self, instant: datetime) -> Iterator[datetime]:
        """The slots that are not later than `instant`, the latest first."""
        ...


def slots_of(schedule: TaskSchedule) -> Slots:
    pattern = schedule.pattern
    if isinstance(pattern, Interval):
        return _Multiples(pattern.every)
    return _Calendar(
        local_times(pattern), ZoneInfo(schedule.timezone), keep_skipped=schedule.skipped_times is SkippedTime.FIRE
    )


def latest(slots: Slots, first: datetime, now: datetime, count: int) -> list[datetime]:
    """The latest `count` slots from `first` to `now`, both included, in the order of time."""
    found: list[datetime] = []
    for slot in islice(slots.until(now), count):
        if slot < first:
            break
        found.append(slot)
    return found[::-1]


class _Multiples:
    def __init__(self, every: timedelta) -> None:
        self._every = every

    def after(self, instant: datetime) -> datetime | None:
        return self._at_or_before(instant) + self._every

    def until(self, instant: datetime) -> Iterator[datetime]:
        found = self._at_or_before(instant)
        while True:
            yield found
            found -= self._every

    def _at_or_before(self, instant: datetime) -> datetime:
        return EPOCH + (instant - EPOCH) // self._every * self._every


class _Calendar:
    def __init__(self, times: LocalTimes, zone: ZoneInfo, *, keep_skipped: bool) -> None:
        self._times = times
        self._zone = zone
        self._keep_skipped = keep_skipped

    def after(self, instant: datetime) -> datetime | None:
        # No local time up to the current one is later than now. Later local times can be earlier instants: those that
        # the clock showed before it was put back.
        shown = instant.astimezone(self._zone).replace(tzinfo=None)
        for local in self._times.after(shown):
            slot = self._slot(local)
            if slot is not None and slot > instant:
                return slot
        return None

    def until(self, instant: datetime) -> Iterator[datetime]:
        # The current local time, or what it would be without the last time the clock was put back.
        shown = instant.astimezone(self._zone)
        highest = (instant + _offset(shown, fold=0)).replace(tzinfo=None)
        previous: datetime | None = None
        for local in self._times.until(highest):
            slot = self._slot(local)
            if slot is not None and slot <= instant and slot != previous:
                yield slot
                previous = slot

    def _slot(self, local: datetime) -> datetime | None:
        placed = local.replace(tzinfo=self._zone)
        before, later = _offset(placed, fold=0), _offset(placed, fold=1)
        if before < later:
            # the clock jumped over this time
            return _jump(placed, before, later) if self._keep_skipped else None
        return (local - before).replace(tzinfo=UTC)


def _offset(placed: datetime, *, fold: int) -> timedelta:
    """The UTC offset. fold 0 uses the rules before a change of the clock, fold 1 those after it."""
    return placed.replace(fold=fold).utcoffset() or _NO_TIME


def _jump(placed: datetime, before: timedelta, later: timedelta) -> datetime:
    """The instant at which the clock jumped over this time."""
    local = placed.replace(tzinfo=None)
    # The jump lies between this time with the later offset and this time with the earlier one.
    low, high = (local - later).replace(tzinfo=UTC), (local - before).replace(tzinfo=UTC)
    while high - low > timedelta(seconds=1):
        middle = low + (high - low) // 2
        middle -= timedelta(microseconds=middle.microsecond)
        if (middle.astimezone(placed.tzinfo).utcoffset() or _NO_TIME) == before:
            low = middle
        else:
            high = middle
    return high
