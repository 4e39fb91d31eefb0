"""Which times of the local clock a pattern names, walked forward and backward.

Plain calendar arithmetic on naive datetimes: no zone, no instant, no "now"; `next_run` applies the time zone. A walk
ends where the calendar ends.
"""

from collections.abc import Iterator
from datetime import MAXYEAR, MINYEAR, date, datetime, time, timedelta
from typing import Protocol, cast

from horsies.schedule import LAST_DAY, Cron, Daily, Hourly, Interval, Monthly, Pattern, Weekday, Weekly

_HOUR = timedelta(hours=1)
_DAY = timedelta(days=1)
_SECOND = timedelta(seconds=1)


class LocalTimes(Protocol):
    def after(self, local: datetime) -> Iterator[datetime]:
        """Times later than `local`, ascending."""
        ...

    def until(self, local: datetime) -> Iterator[datetime]:
        """Times not later than `local`, descending."""
        ...


def local_times(pattern: Pattern) -> LocalTimes:
    """The walker of a calendar pattern. An Interval has none: it counts elapsed time."""
    match pattern:
        case Hourly(minute, second):
            return _Steps(_HOUR, timedelta(minutes=minute, seconds=second))
        case Daily(at):
            return _Days(at)
        case Weekly(days, at):
            return _Days(at, weekdays=frozenset(list(Weekday).index(Weekday(day)) for day in days))
        case Monthly(day, at):
            return _Months(day, at)
        case Cron(expression):
            return _Cron(expression)
        case Interval():
            raise TypeError("an Interval is not read on the local clock")


def cron_problem(expression: str) -> str | None:
    """What is wrong with the expression; None when it is valid."""
    from cronsim import CronSim, CronSimError

    try:
        next(CronSim(expression, datetime(2024, 1, 1)))  # noqa: DTZ001  (the local clock has no zone)
    except CronSimError as error:
        return f"{str(error)[:1].lower()}{str(error)[1:]}"
    except StopIteration:
        return "names no time within fifty years"
    except Exception as error:  # its parser fails on expressions such as '1#2/3'
        return f"cannot be read ({type(error).__name__})"
    return None


class _Steps:
    """At an offset in every unit of time."""

    def __init__(self, unit: timedelta, offset: timedelta) -> None:
        self._unit = unit
        self._offset = offset

    def after(self, local: datetime) -> Iterator[datetime]:
        found = self._at_or_before(local)
        try:
            while True:
                found += self._unit
                yield found
        except OverflowError:
            return

    def until(self, local: datetime) -> Iterator[datetime]:
        found = self._at_or_before(local)
        try:
            while True:
                yield found
                found -= self._unit
        except OverflowError:
            return

    def _at_or_before(self, local: datetime) -> datetime:
        midnight = datetime.combine(local.date(), time())
        return midnight + (local - midnight - self._offset) // self._unit * self._unit + self._offset


class _Days:
    """On some days of the week, or all, at one time."""

    def __init__(self, at: time | str, *, weekdays: frozenset[int] = frozenset(range(7))) -> None:
        self._at = cast("time", at)  # the pattern has converted it
        self._weekdays = weekdays

    def after(self, local: datetime) -> Iterator[datetime]:
        for days in range(date.max.toordinal() - local.toordinal() + 1):
            found = self._on(date.fromordinal(local.toordinal() + days))
            if found is not None and found > local:
                yield found

    def until(self, local: datetime) -> Iterator[datetime]:
        for ordinal in range(local.toordinal(), 0, -1):
            found = self._on(date.fromordinal(ordinal))
            if found is not None and found <= local:
                yield found

    def _on(self, day: date) -> datetime | None:
        return datetime.combine(day, self._at) if day.weekday() in self._weekdays else None


class _Months:
    """On one day of each month that has it."""

    def __init__(self, day: int, at: time | str) -> None:
        self._day = day
        self._at = cast("time", at)

    def after(self, local: datetime) -> Iterator[datetime]:
        for month in range(local.year * 12 + local.month - 1, MAXYEAR * 12 + 12):
            found = self._in(month)
            if found is not None and found > local:
                yield found

    def until(self, local: datetime) -> Iterator[datetime]:
        for month in range(local.year * 12 + local.month - 1, MINYEAR * 12 - 1, -1):
            found = self._in(month)
            if found is not None and found <= local:
                yield found

    def _in(self, month: int) -> datetime | None:
        first = date(month // 12, month % 12 + 1, 1)
        following = first.replace(day=28) + timedelta(days=4)
        last = (following - timedelta(days=following.day)).day
        if self._day == LAST_DAY:
            return datetime.combine(first.replace(day=last), self._at)
        return datetime.combine(first.replace(day=self._day), self._at) if self._day <= last else None


class _Cron:
    """Times of a cron expression. The library gets naive times, to which it applies no zone rules of its own."""

    def __init__(self, expression: str) -> None:
        self._expression = expression

    def after(self, local: datetime) -> Iterator[datetime]:
        from cronsim import CronSim

        return _bounded(CronSim(self._expression, local.replace(microsecond=0)))

    def until(self, local: datetime) -> Iterator[datetime]:
        from cronsim import CronSim

        # its backward walk leaves out the time that it starts from
        return _bounded(CronSim(self._expression, local.replace(microsecond=0) + _SECOND, reverse=True))


def _bounded(walk: Iterator[datetime]) -> Iterator[datetime]:
    try:
        yield from walk
    except (OverflowError, ValueError):  # the end of the calendar
        return
