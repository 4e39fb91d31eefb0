"""The options of a run: what `start(...)` takes besides its id and connection."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from horsies._checks import Checks
from horsies.groups import check_group, plain
from horsies.options import MAX_DELAY, check_metadata

Moment = float | timedelta | datetime
"""Seconds or a timedelta from now, by the database's clock, or an aware datetime."""
_TIMES: Final = {"start_at": ("start_at", "start_in"), "deadline": ("deadline", "deadline_in")}
_MAX_KEY: Final = 255


@dataclass(frozen=True, slots=True)
class RunOptions:
    metadata: Mapping[str, Any] | None = None
    group: str | None = None
    priority: int | None = None
    unique_key: str | None = None
    start_at: Moment | None = None
    deadline: Moment | None = None

    def check(self, checks: Checks) -> None:
        check_metadata(checks, self.metadata)
        check_group(checks, self.group)
        checks.integer("priority", self.priority, 1, 100, optional=True)
        if not is_short_text(self.unique_key, _MAX_KEY):
            checks.add("unique_key", f"is {self.unique_key!r:.60}", f"give a text of 1 to {_MAX_KEY} characters")
        for name in _TIMES:
            check_moment(checks, name, getattr(self, name))

    def columns(self) -> dict[str, Any]:
        """For the row of the run."""
        made: dict[str, Any] = {"priority": self.priority, "unique_key": self.unique_key}
        for name, (moment, seconds) in _TIMES.items():
            value = getattr(self, name)
            if isinstance(value, datetime):
                made[moment] = value.isoformat()
            elif value is not None:
                made[seconds] = seconds_of(value)
        return made

    def identity(self) -> dict[str, Any]:
        """What tells one start from another; nothing for an option that is not given. The group as older releases
        named it."""
        found = {name: value for name, value in self.columns().items() if value is not None}
        return found if self.group is None else {**found, "group": plain(self.group)}


def is_short_text(value: object, longest: int) -> bool:
    """None, or a text of 1 to so many characters that the database can store."""
    return value is None or (isinstance(value, str) and 1 <= len(value) <= longest and "\x00" not in value)


def seconds_of(value: float | timedelta) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def check_moment(checks: Checks, name: str, value: object) -> None:
    """Refuse what is neither a time from now nor an aware datetime."""
    if value is None:
        return
    if isinstance(value, datetime):
        if value.tzinfo is None:
            checks.add(name, f"{value.isoformat()} has no time zone", "use datetime.now(timezone.utc) + timedelta(...)")
    elif isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        checks.add(name, f"is a {type(value).__name__}", "give seconds, a timedelta or an aware datetime")
    elif not 0 < seconds_of(value) <= MAX_DELAY.total_seconds():
        checks.add(name, f"{seconds_of(value):g} seconds are not between 0 and ten years", "give a time in that range")
