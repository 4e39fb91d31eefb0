"""Every change of the clock from 2020 to 2040, in every zone there is, against an oracle that knows no algorithm.

The oracle looks at the clock on the wall minute by minute and writes down when it first shows a wanted time, or has
jumped over one. It goes from instants to local times only; the code under test goes the other way.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest

from horsies import Cron, Daily, Hourly, Monthly, SkippedTime, TaskSchedule, Weekday, Weekly
from horsies.schedule import Pattern
from horsies_worker.scheduler.next_run import slots_of

MINUTE = timedelta(minutes=1)
MARGIN = timedelta(minutes=45)
"""Looked at before and after what a change repeats or leaves out."""
FIRST, LAST = datetime(2020, 1, 1, tzinfo=UTC), datetime(2041, 1, 1, tzinfo=UTC)
STEP = timedelta(days=2)
"""No two changes are closer than a week; a test below would see if that became wrong."""


@dataclass(frozen=True)
class Change:
    at: datetime
    before: timedelta
    after: timedelta

    @property
    def edges(self) -> tuple[datetime, datetime]:
        """What the clock would show, and what it does show; the local times between come twice or never."""
        naive = self.at.replace(tzinfo=None)
        return naive + self.before, naive + self.after

    @property
    def shift(self) -> timedelta:
        return abs(self.after - self.before)


def changes(zone: ZoneInfo) -> Iterator[Change]:
    low, offset = FIRST, FIRST.astimezone(zone).utcoffset()
    while low < LAST:
        high = low + STEP
        found = high.astimezone(zone).utcoffset()
        if found != offset:
            left, right = low, high
            while right - left > MINUTE:
                middle = left + (right - left) / 2
                middle = middle.replace(second=0, microsecond=0)
                left, right = (middle, right) if middle.astimezone(zone).utcoffset() == offset else (left, middle)
            assert offset is not None
            assert found is not None
            yield Change(right, offset, found)
        low, offset = high, found


@cache
def distinct_zones() -> dict[str, tuple[Change, ...]]:
    """One name for each list of changes: most names are aliases of others, or agree with them since 2020."""
    found: dict[tuple[Change, ...], str] = {}
    for name in sorted(available_timezones()):
        listed = tuple(changes(ZoneInfo(name)))
        if listed:
            found.setdefault(listed, name)
    return {name: listed for listed, name in found.items()}


# -- the oracle ------------------------------------------------------------------------------------------------

Wanted = Callable[[datetime], bool]


def wall(change: Change, zone: ZoneInfo) -> list[tuple[datetime, list[datetime]]]:
    """Each minute around a change with the local minutes that the clock reached then for the first time."""
    instant = change.at - MARGIN - MINUTE
    reached = instant.astimezone(zone).replace(tzinfo=None)
    looks: list[tuple[datetime, list[datetime]]] = []
    while instant < change.at + change.shift + MARGIN:
        instant += MINUTE
        shown = instant.astimezone(zone).replace(tzinfo=None)
        fresh: list[datetime] = []
        while reached < shown:
            reached += MINUTE
            fresh.append(reached)
        looks.append((instant, fresh))
    return looks


def expected(looks: list[tuple[datetime, list[datetime]]], wanted: Wanted, skipped: SkippedTime) -> list[datetime]:
    if skipped is SkippedTime.SKIP:  # of those reached at once only the last was really on the clock
        return [instant for instant, fresh in looks if fresh and wanted(fresh[-1])]
    return [instant for instant, fresh in looks if any(map(wanted, fresh))]


# -- patterns that hurt around a change ------------------------------------------------------------------------


def patterns(change: Change) -> Iterator[tuple[Pattern, Wanted]]:
    low, high = sorted(change.edges)
    middle = (low + (high - low) / 2).replace(second=0)
    for moment in (low, middle, high):
        at = moment.time()
        yield Daily(at), lambda local, at=at: local.time() == at
    at, minute, hour, day = middle.time(), middle.minute, middle.hour, middle.day
    weekday = list(Weekday)[middle.weekday()]
    yield Hourly(minute), lambda local: local.minute == minute
    yield Weekly(weekday, at), lambda local: local.time() == at and local.isoweekday() == middle.isoweekday()
    yield Monthly(day, at), lambda local: local.day == day and local.time() == at
    yield Cron(f"{minute} {hour} * * *"), lambda local: (local.minute, local.hour) == (minute, hour)
    yield Cron("*/20 * * * *"), lambda local: local.minute in (0, 20, 40)
    yield (
        Cron(f"{minute} * {day} * {weekday[:3].upper()}"),
        lambda local: local.minute == minute and (local.day == day or local.weekday() == middle.weekday()),
    )


def test_the_zones_are_those_that_matter() -> None:
    zones = distinct_zones()
    assert len(zones) > 40
    assert sum(map(len, zones.values())) > 1_000
    every = [change for listed in zones.values() for change in listed]
    assert {change.after > change.before for change in every} == {True, False}
    assert {timedelta(minutes=30), timedelta(hours=1), timedelta(hours=2)} <= {change.shift for change in every}
    assert min(later.at - change.at for listed in zones.values() for change, later in pairwise(listed)) > 3 * STEP
    # a change within a minute would be beyond the oracle
    assert all(change.before % MINUTE == change.after % MINUTE == timedelta(0) for change in every)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 4))])
def test_every_change_of_the_clock_in_every_zone(part: int) -> None:
    for name, listed in list(distinct_zones().items())[part::4]:
        zone = ZoneInfo(name)
        for change in listed:
            looks = wall(change, zone)
            first, last = looks[0][0], looks[-1][0]
            for pattern, wanted in patterns(change):
                for skipped in SkippedTime:
                    slots = slots_of(TaskSchedule("s", "t", pattern, timezone=name, skipped_times=skipped))
                    found: list[datetime] = []
                    slot = slots.after(first - timedelta(microseconds=1))
                    while slot is not None and slot <= last:
                        found.append(slot)
                        slot = slots.after(slot)
                    told = (name, change, pattern, skipped)
                    assert found == expected(looks, wanted, skipped), told
                    assert list(slots_until(slots, last, first)) == found[::-1], told
                    for probe in probes(change) if skipped is SkippedTime.FIRE else ():
                        earlier = [slot for slot in found if slot <= probe]
                        later = [slot for slot in found if slot > probe]
                        assert not earlier or next(slots.until(probe)) == earlier[-1], (probe, *told)
                        assert not later or slots.after(probe) == later[0], (probe, *told)


def probes(change: Change) -> list[datetime]:
    """The change itself, and the middle of what it repeats or leaves out."""
    return [change.at, change.at + change.shift / 2]


def slots_until(slots, last: datetime, first: datetime) -> Iterator[datetime]:
    for slot in slots.until(last):
        if slot < first:
            return
        yield slot


def test_a_zone_without_changes_and_one_with_half_hours() -> None:
    for name, offset in (("Asia/Kolkata", "5:30"), ("Asia/Kathmandu", "5:45"), ("Etc/GMT+12", "-12:00")):
        hours, minutes = (int(part) for part in re.findall(r"-?\d+", offset))
        slots = slots_of(TaskSchedule("s", "t", Daily("00:10"), timezone=name))
        slot = slots.after(datetime(2026, 7, 1, tzinfo=UTC))
        assert slot is not None
        assert (slot + timedelta(hours=hours, minutes=minutes)).time().isoformat() == "00:10:00"
