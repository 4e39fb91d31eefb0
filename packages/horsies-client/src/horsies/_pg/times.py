"""Reads every time that PostgreSQL can store.

PostgreSQL has the years 4713 BC to 294276 and infinities, Python's datetime the years 1 to 9999. asyncpg (read in 0.32)
raises OverflowError for the rest, which fails the whole batch that such a row comes in, and returns infinities without
a time zone. Here such a time becomes the nearest one that can still be converted to any time zone, and is written back
as it was read. The schema refuses such times (revision 0017); this is for a database without that rule.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

_EPOCH: Final = datetime(2000, 1, 1, tzinfo=UTC)
# Two days from the ends of datetime: any conversion to a local time stays inside.
_FIRST: Final = datetime(1, 1, 3, tzinfo=UTC)
_LAST: Final = datetime(9999, 12, 29, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)
_FIRST_US: Final = (_FIRST - _EPOCH) // _US
_LAST_US: Final = (_LAST - _EPOCH) // _US
_LONGEST_DAYS: Final = timedelta.max.days - 1


class Clamped(datetime):
    """A time that Python cannot hold, as the nearest one that it can."""

    microseconds: int
    """As PostgreSQL sent it: since 2000."""


def _time(sent: tuple[int]) -> datetime:
    (microseconds,) = sent
    if _FIRST_US <= microseconds <= _LAST_US:
        return _EPOCH + timedelta(0, 0, microseconds)
    near = _FIRST if microseconds < _FIRST_US else _LAST
    found = Clamped(near.year, near.month, near.day, tzinfo=UTC)
    found.microseconds = microseconds
    return found


def _sent_time(value: Any) -> tuple[int]:
    if isinstance(value, Clamped):
        return (value.microseconds,)
    if not isinstance(value, datetime):
        raise TypeError(f"expected a datetime, got {type(value).__name__!r}")
    since = value.astimezone(UTC) - _EPOCH
    return ((since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds,)


def _interval(sent: tuple[int, int, int]) -> timedelta:
    """A year has 365 days and a month 30, as in asyncpg; PostgreSQL 17 has infinite intervals."""
    months, days, microseconds = sent
    years, months = (months // 12, months % 12) if months >= 0 else (-(-months // 12), -(-months % 12))
    days += months * 30 + years * 365
    return timedelta(max(-_LONGEST_DAYS, min(_LONGEST_DAYS, days)), 0, microseconds if abs(days) < _LONGEST_DAYS else 0)


def _sent_interval(value: Any) -> tuple[int, int, int]:
    if not isinstance(value, timedelta):
        raise TypeError(f"expected a timedelta, got {type(value).__name__!r}")
    return (0, value.days, value.seconds * 1_000_000 + value.microseconds)


CODECS: Final[tuple[tuple[str, int, Callable[[Any], Any], Callable[[Any], Any]], ...]] = (
    ("timestamptz", 1184, _sent_time, _time),
    ("interval", 1186, _sent_interval, _interval),
)
"""By name and number of the type, both of which never change: what is sent, and what was received."""
