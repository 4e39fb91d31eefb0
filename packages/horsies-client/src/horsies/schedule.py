"""Schedules and their patterns as validated data.

The scheduler (`horsies_worker.scheduler`) computes the times and checks that task, queue and time zone exist. A web app
that shares the configuration does not load that code.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field, fields
from datetime import time, timedelta
from enum import StrEnum
from typing import Any, Final, Literal, cast

from horsies._checks import Checks, shown
from horsies._hints import known_settings
from horsies.groups import check_group
from horsies.options import check_name

MAX_INTERVAL: Final = timedelta(days=366)
MAX_JITTER: Final = timedelta(days=1)
LAST_DAY: Final = -1

_CLOCK: Final = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\Z")
_CRON_FIELD: Final = re.compile(r"[0-9A-Za-z*,/#-]+\Z")
_ZONE: Final = re.compile(r"[A-Za-z0-9_+-]+(?:/[A-Za-z0-9_+-]+)*\Z")


class Weekday(StrEnum):
    MONDAY = "monday"
    TUESDAY = "tuesday"
    WEDNESDAY = "wednesday"
    THURSDAY = "thursday"
    FRIDAY = "friday"
    SATURDAY = "saturday"
    SUNDAY = "sunday"


class Overlap(StrEnum):
    """What happens when a slot is due and the task of the previous run has not ended."""

    ALLOW = "allow"
    """Both run at the same time."""
    SKIP = "skip"
    """The slot is skipped, and the scheduler logs it."""


class SkippedTime(StrEnum):
    """What happens to a local time that does not exist, because the clock was put forward."""

    FIRE = "fire"
    """The schedule runs at the first instant after the gap."""
    SKIP = "skip"
    """The schedule does not run that day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A fixed interval of elapsed time, independent of time zones.

    Slots are the multiples of the interval since 1970-01-01 00:00 UTC, so all schedulers agree on them: 15 minutes are
    :00, :15, :30 and :45.
    """

    seconds: int = 0
    """The four are added up: one second to 366 days in all."""
    minutes: int = 0
    hours: int = 0
    days: int = 0

    def __post_init__(self) -> None:
        checks = Checks("Interval")
        sound = [checks.integer(name, getattr(self, name), 0, 31_622_400) for name in _names(self)]
        if all(sound) and not timedelta(seconds=1) <= self.every <= MAX_INTERVAL:
            checks.add("seconds", f"{self.every} in all is out of range", "choose one second to 366 days")
        checks.finish()

    @property
    def every(self) -> timedelta:
        return timedelta(days=self.days, hours=self.hours, minutes=self.minutes, seconds=self.seconds)

    def __str__(self) -> str:
        return f"every {self.every}"


@dataclass(frozen=True, slots=True)
class Hourly:
    """At this minute and second of every hour of the local clock."""

    minute: int = 0
    second: int = 0

    def __post_init__(self) -> None:
        checks = Checks("Hourly")
        checks.integer("minute", self.minute, 0, 59)
        checks.integer("second", self.second, 0, 59)
        checks.finish()

    def __str__(self) -> str:
        return f"hourly at :{self.minute:02}:{self.second:02}"


@dataclass(frozen=True, slots=True)
class Daily:
    """Every day at this local time: `Daily("03:30")`, `Daily(time(3, 30))`."""

    at: time | str
    """`HH:MM` or `HH:MM:SS`, or a time without a zone."""

    def __post_init__(self) -> None:
        checks = Checks("Daily")
        object.__setattr__(self, "at", _clock_time(checks, self.at))
        checks.finish()

    def __str__(self) -> str:
        return f"daily at {self.at}"


@dataclass(frozen=True, slots=True)
class Weekly:
    """On these days of the week at this local time: `Weekly(["monday", "friday"], "08:00")`."""

    days: Sequence[Weekday | str] | Weekday | str
    """`monday` to `sunday`: one, or a list."""
    at: time | str
    """As of `Daily`."""

    def __post_init__(self) -> None:
        checks = Checks("Weekly")
        given = cast("object", self.days)
        listed: list[object] = [given] if isinstance(given, str) else _listed(given)
        if not listed:
            checks.add("days", f"{shown(given)} names no day", 'give a list such as ["monday", "friday"]')
        for day in listed:
            checks.word("days", day, tuple(Weekday))
        object.__setattr__(self, "at", _clock_time(checks, self.at))
        checks.finish()
        wanted = {str(day) for day in listed}
        object.__setattr__(self, "days", tuple(day for day in Weekday if day.value in wanted))

    def __str__(self) -> str:
        return f"weekly on {', '.join(self.days)} at {self.at}"


@dataclass(frozen=True, slots=True)
class Monthly:
    """On this day of the month at this local time. Shorter months are left out; -1 is the last day."""

    day: int
    """1 to 31, or -1 for the last day; not 0."""
    at: time | str
    """As of `Daily`."""

    def __post_init__(self) -> None:
        checks = Checks("Monthly")
        if checks.integer("day", self.day, LAST_DAY, 31) and self.day == 0:
            checks.add("day", "0 is not a day", "choose 1 to 31, or -1 for the last day of each month")
        object.__setattr__(self, "at", _clock_time(checks, self.at))
        checks.finish()

    def __str__(self) -> str:
        return f"monthly on {'the last day' if self.day == LAST_DAY else f'day {self.day}'} at {self.at}"


@known_settings
@dataclass(frozen=True, slots=True)
class Cron:
    """Five fields of cron, read on the local clock: minute, hour, day of month, month, day of week.

    Only the form is checked here; the scheduler and `horsies check` validate the rest.
    """

    expression: str
    """Such as `30 2 * * mon-fri`."""

    def __post_init__(self) -> None:
        checks = Checks("Cron")
        if checks.text("expression", self.expression):
            parts = self.expression.split()
            if len(parts) != 5:
                checks.add(
                    "expression",
                    f"{shown(self.expression)} has {len(parts)} fields",
                    "give five: minute hour day-of-month month day-of-week, such as '30 2 * * 1-5'",
                )
            elif wrong := [part for part in parts if not _CRON_FIELD.match(part)]:
                checks.add("expression", f"{shown(wrong[0])} is no field of cron", "use digits, names and * , - / # L")
            else:
                object.__setattr__(self, "expression", " ".join(parts))
        checks.finish()

    def __str__(self) -> str:
        return f"cron {self.expression}"


Pattern = Interval | Hourly | Daily | Weekly | Monthly | Cron
_PATTERNS: Final = (Interval, Hourly, Daily, Weekly, Monthly, Cron)


@known_settings
@dataclass(frozen=True, slots=True)
class TaskSchedule:
    """Starts a task or a workflow by a pattern. The task's registration decides retries, time-out and priority.

    `TaskSchedule("nightly", "report", Daily("02:30"))`, or `TaskSchedule("nightly", workflow="reports",
    pattern=Daily("02:30"))`.
    """

    name: str
    """Unique and permanent, 1 to 255 printable characters: the state of a schedule is stored under this name, and its
    tasks' ids derive from it."""

    task_name: str | None = None
    """The task to enqueue; or give `workflow`. Checked when a scheduler starts, and by `horsies check`."""

    pattern: Pattern = cast("Pattern", None)  # noqa: RUF009  (checked below: `workflow=` leaves the second place empty)
    """When: an `Interval`, `Hourly`, `Daily`, `Weekly`, `Monthly` or `Cron`. Required."""

    workflow: str | None = field(default=None, kw_only=True)
    """The name of the workflow to start instead; `kwargs` are then those of its definition's `build_with`. It excludes
    `queue_name` and `jitter`, which are options of tasks."""

    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any], kw_only=True, hash=False)
    """The arguments of each call, by name. Checked like `task_name`."""

    args: Sequence[Any] = field(default=(), kw_only=True, hash=False)
    """The first arguments of each call, by position. The task's parameters give them their names, so that a schedule
    that is stored has `kwargs` only."""

    queue_name: str | None = field(default=None, kw_only=True)
    """None: the task's own queue."""

    timezone: str = field(default="UTC", kw_only=True)
    """The time zone of the pattern by its IANA name, such as `Europe/Berlin`."""

    skipped_times: SkippedTime | Literal["fire", "skip"] = field(default=SkippedTime.FIRE, kw_only=True)
    """What happens to local times that a change of the clock leaves out: `fire` or `skip`."""

    catch_up_missed: bool = field(default=False, kw_only=True)
    """After a time without a scheduler: run the missed slots, up to `max_catch_up_runs`; otherwise only the latest."""

    max_catch_up_runs: int = field(default=100, kw_only=True)
    """At most this many missed slots run: the latest ones, in order. 1 to 1,000."""

    enabled: bool = field(default=True, kw_only=True)
    """False: the schedule runs only on request (`horsies schedules run-now`)."""

    overlap: Overlap | Literal["allow", "skip"] = field(default=Overlap.ALLOW, kw_only=True)
    """`allow` or `skip` a run while the task of the previous run has not ended."""

    group: str | None = field(default=None, kw_only=True)
    """The group of each task, or of each run of the workflow. None: what the task's `group_by` makes of `kwargs`, once
    when the scheduler starts."""

    jitter: timedelta | float = field(default=0, kw_only=True)
    """Delays each run's task by up to this many seconds. The delay is random, but fixed for a slot."""

    def __post_init__(self) -> None:
        checks = Checks("TaskSchedule")
        if isinstance(self.name, str) and self.name:  # pyright: ignore[reportUnnecessaryIsInstance]
            checks.subject = f"TaskSchedule({self.name[:80]!r})"
        check_name(checks, "name", self.name)
        if self.workflow is None:
            check_name(checks, "task_name", self.task_name)
        else:
            self._check_workflow(checks)
        if not isinstance(self.pattern, _PATTERNS):  # pyright: ignore[reportUnnecessaryIsInstance]
            names = ", ".join(kind.__name__ for kind in _PATTERNS)
            fix = f"{_pattern_like(self.pattern)}give one of: {names}"
            checks.add("pattern", f"{shown(self.pattern)} is not a pattern", fix)
        self._check_kwargs(checks)
        self._check_args(checks)
        checks.queue_name("queue_name", self.queue_name, optional=True)
        check_group(checks, self.group)
        if checks.text("timezone", self.timezone) and not _ZONE.match(self.timezone):
            checks.add("timezone", f"{shown(self.timezone)} is not the name of a zone", "give one like Europe/Berlin")
        for name, kind in (("skipped_times", SkippedTime), ("overlap", Overlap)):
            value = getattr(self, name)
            if checks.word(name, value, tuple(kind)):
                object.__setattr__(self, name, kind(value))
        checks.boolean("catch_up_missed", self.catch_up_missed)
        checks.integer("max_catch_up_runs", self.max_catch_up_runs, 1, 1_000)
        checks.boolean("enabled", self.enabled)
        self._check_jitter(checks)
        checks.finish()

    def _check_workflow(self, checks: Checks) -> None:
        check_name(checks, "workflow", self.workflow)
        if self.task_name is not None:
            checks.add("workflow", f"a task ({shown(self.task_name)}) is given as well", "give one of the two")
        # both are options of tasks: the nodes of a workflow have their own
        if self.queue_name is not None:
            checks.add("queue_name", "a workflow has none of its own", "set it on the workflow's nodes")
        if self.jitter:
            checks.add("jitter", "a workflow begins when its slot comes", "leave it out")

    @property
    def target(self) -> str:
        """The task or workflow, for messages."""
        return f"workflow {self.workflow}" if self.workflow is not None else str(self.task_name)

    def _check_kwargs(self, checks: Checks) -> None:
        given = cast("object", self.kwargs)
        if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in cast("Mapping[Any, Any]", given)):
            checks.add(
                "kwargs", f"must map names to values, got {shown(cast('object', given))}", 'write {"name": value}'
            )
            return
        # a copy, so that it cannot change after the checks
        object.__setattr__(self, "kwargs", dict(cast("Mapping[str, Any]", given)))

    def _check_args(self, checks: Checks) -> None:
        fix = "write args=(1, 2)"
        listed = checks.listed("args", self.args, fix)
        if isinstance(cast("object", self.args), AbstractSet):
            checks.add("args", f"{shown(self.args)} has no order", fix)
        object.__setattr__(self, "args", listed or ())
        if listed and self.workflow is not None:
            checks.add("args", "a workflow takes its arguments by name", "give them as kwargs")

    def _check_jitter(self, checks: Checks) -> None:
        given = cast("object", self.jitter)
        if isinstance(given, int | float) and not isinstance(given, bool):
            try:
                given = timedelta(seconds=given)
            except (OverflowError, ValueError):  # 1e300, NaN
                pass
        if not isinstance(given, timedelta) or not timedelta(0) <= given <= MAX_JITTER:
            checks.add("jitter", f"{shown(self.jitter)} is out of range", "give 0 to 86_400 seconds, or a timedelta")
            return
        object.__setattr__(self, "jitter", given)

    @property
    def max_jitter(self) -> timedelta:
        return self.jitter if isinstance(self.jitter, timedelta) else timedelta(seconds=self.jitter)

    @property
    def config_hash(self) -> str:
        """The hash of the settings that decide *when* it runs. A change of other settings keeps the slots."""
        pattern = {name: _stored(getattr(self.pattern, name)) for name in _names(self.pattern)}
        told = [type(self.pattern).__name__, pattern, self.timezone, str(self.skipped_times), self.enabled]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


def _pattern_like(given: object) -> str:
    """What was probably meant by a value that another scheduler takes as a schedule."""
    if isinstance(given, str) or hasattr(given, "day_of_week"):
        return 'write Cron("30 2 * * mon-fri"), or '
    is_span = isinstance(given, int | float | timedelta) and not isinstance(given, bool)
    return "write Interval(seconds=...), or " if is_span else ""


@known_settings
@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """The schedules of an app: `AppConfig(schedule=ScheduleConfig([...]))`."""

    schedules: Sequence[TaskSchedule] = ()
    """The schedules; their names are unique."""

    def __post_init__(self) -> None:
        checks = Checks("ScheduleConfig")
        listed = checks.listed("schedules", self.schedules, "give a list of TaskSchedule(...)") or ()
        checks.named("schedules", listed, TaskSchedule, "...", "give each a name of its own")
        checks.finish()
        object.__setattr__(self, "schedules", listed)


def _names(value: object) -> list[str]:
    return [item.name for item in fields(cast("Any", value))]


def _listed(given: object) -> list[object]:
    return list(cast("Iterable[object]", given)) if isinstance(given, Iterable) else []


def _stored(value: object) -> object:
    if isinstance(value, time):
        return value.isoformat()
    if isinstance(value, tuple):
        return [str(item) for item in cast("tuple[object, ...]", value)]
    return value


def _clock_time(checks: Checks, given: object) -> time:
    """The time of day; after a problem midnight."""
    if isinstance(given, time):
        if given.tzinfo is None and not given.microsecond:
            return given.replace(fold=0)
        checks.add("at", f"{given!r} has a time zone or a fraction", "give the zone as TaskSchedule(timezone=...)")
    elif isinstance(given, str) and (found := _CLOCK.match(given)):
        hour, minute, second = (int(part or 0) for part in found.groups())
        if hour < 24 and minute < 60 and second < 60:
            return time(hour, minute, second)
        checks.add("at", f"{shown(given)} is not a time of day", "give 00:00 to 23:59, with seconds if you like")
    else:
        checks.add("at", f"{shown(given)} is not a time of day", 'give "HH:MM", "HH:MM:SS" or a datetime.time')
    return time()
