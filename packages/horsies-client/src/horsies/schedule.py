"""When tasks are to run by themselves: patterns and schedules as data, checked once.

Nothing here computes a time: that is the scheduler's part (`horsies_worker.scheduler`), which also knows whether the
task, the queue and the time zone exist. A web app that shares the configuration pays for none of it.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import time, timedelta
from enum import StrEnum
from typing import Any, Final, Literal, cast

from horsies._checks import Checks, shown

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
    """What happens when a slot is due and the task of the run before has not ended."""

    ALLOW = "allow"
    """It runs beside it."""
    SKIP = "skip"
    """The slot passes without a run, and the scheduler says so."""


class SkippedTime(StrEnum):
    """What happens to a local time that does not exist, because the clock was put forward over it."""

    FIRE = "fire"
    """It runs at the first instant after the gap."""
    SKIP = "skip"
    """It does not run that day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Every so often, by elapsed time: no time zone, no summer time.

    Slots are the multiples of the interval since 1970-01-01 00:00 UTC, so every scheduler, whenever it was started,
    means the same instants: 15 minutes are :00, :15, :30 and :45.
    """

    seconds: int = 0
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
    at: time | str

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
    """On this day of the month at this local time. Months that are too short are left out; -1 is the last day."""

    day: int
    at: time | str

    def __post_init__(self) -> None:
        checks = Checks("Monthly")
        if checks.integer("day", self.day, LAST_DAY, 31) and self.day == 0:
            checks.add("day", "0 is not a day", "choose 1 to 31, or -1 for the last day of each month")
        object.__setattr__(self, "at", _clock_time(checks, self.at))
        checks.finish()

    def __str__(self) -> str:
        return f"monthly on {'the last day' if self.day == LAST_DAY else f'day {self.day}'} at {self.at}"


@dataclass(frozen=True, slots=True)
class Cron:
    """Five fields of cron, read on the local clock: minute, hour, day of month, month, day of week.

    Here only its form is checked; the scheduler and `horsies check` have the library that knows the rest.
    """

    expression: str

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


@dataclass(frozen=True, slots=True)
class TaskSchedule:
    """One task or workflow, started whenever its pattern says so. A task's retries, time-out and priority are its own.

    `TaskSchedule("nightly", "report", Daily("02:30"))`, or `TaskSchedule("nightly", workflow="reports",
    pattern=Daily("02:30"))`.
    """

    name: str
    """Unique, and kept: the state of a schedule is stored under it, and the ids of its tasks are made from it."""

    task_name: str | None = None
    """The task to enqueue; or give `workflow`."""

    pattern: Pattern = cast("Pattern", None)  # noqa: RUF009  (checked below: `workflow=` leaves the second place empty)
    workflow: str | None = field(default=None, kw_only=True)
    """The name of the workflow to start instead; `kwargs` are then those of its definition's `build_with`."""

    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any], kw_only=True, hash=False)
    """The arguments of each call, by name."""

    queue_name: str | None = field(default=None, kw_only=True)
    """None: the task's own queue."""

    timezone: str = field(default="UTC", kw_only=True)
    """The IANA name of the zone whose clock the pattern is read on, such as `Europe/Berlin`."""

    skipped_times: SkippedTime | Literal["fire", "skip"] = field(default=SkippedTime.FIRE, kw_only=True)
    """What becomes of local times that a change of the clock leaves out: `fire` or `skip`."""

    catch_up_missed: bool = field(default=False, kw_only=True)
    """After a time without a scheduler: run the missed slots, up to `max_catch_up_runs`; else only the latest one."""

    max_catch_up_runs: int = field(default=100, kw_only=True)
    """How many missed slots are run at most: the latest ones, the oldest of them first. 1 to 1,000."""

    enabled: bool = field(default=True, kw_only=True)
    """False: runs only when somebody asks for it (`horsies schedules run-now`)."""

    overlap: Overlap | Literal["allow", "skip"] = field(default=Overlap.ALLOW, kw_only=True)
    """`allow` or `skip` a run while the task of the run before has not ended."""

    jitter: timedelta | float = field(default=0, kw_only=True)
    """Each run's task starts later by up to so many seconds: as much as its slot's own, fixed draw says."""

    def __post_init__(self) -> None:
        # those import the configuration, which imports this module
        from horsies.config.queues import queue_name_problem
        from horsies.options import check_task_name

        checks = Checks("TaskSchedule")
        if checks.text("name", self.name):
            checks.subject = f"TaskSchedule({self.name[:80]!r})"
            if len(self.name) > 255 or not self.name.isprintable():
                checks.add("name", "must be at most 255 printable characters", "give it a short, plain name")
        if self.workflow is None:
            check_task_name(checks, "task_name", self.task_name)
        else:
            self._check_workflow(checks)
        if not isinstance(self.pattern, _PATTERNS):  # pyright: ignore[reportUnnecessaryIsInstance]
            names = ", ".join(kind.__name__ for kind in _PATTERNS)
            checks.add("pattern", f"{shown(self.pattern)} is not a pattern", f"give one of: {names}")
        self._check_kwargs(checks)
        if self.queue_name is not None and (
            problem := queue_name_problem(self.queue_name, f"{checks.subject}.queue_name")
        ):
            checks.problems.append(problem)
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
        if not checks.text("workflow", self.workflow):
            return
        if self.task_name is not None:
            checks.add("workflow", f"a task ({shown(self.task_name)}) is given as well", "give one of the two")
        # both belong to tasks; a workflow's nodes say for themselves where they go, and begin when it is started
        if self.queue_name is not None:
            checks.add("queue_name", "a workflow has none of its own", "set it on the workflow's nodes")
        if self.jitter:
            checks.add("jitter", "a workflow begins when its slot comes", "leave it out")

    @property
    def target(self) -> str:
        """What it runs, for people."""
        return f"workflow {self.workflow}" if self.workflow is not None else str(self.task_name)

    def _check_kwargs(self, checks: Checks) -> None:
        given = cast("object", self.kwargs)
        if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in cast("Mapping[Any, Any]", given)):
            checks.add(
                "kwargs", f"must map names to values, got {shown(cast('object', given))}", 'write {"name": value}'
            )
            return
        # a copy, so that nobody changes it behind the checks
        object.__setattr__(self, "kwargs", dict(cast("Mapping[str, Any]", given)))

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
        """Of all that decides *when* it runs. What runs may change without the slots being counted anew."""
        pattern = {name: _stored(getattr(self.pattern, name)) for name in _names(self.pattern)}
        told = [type(self.pattern).__name__, pattern, self.timezone, str(self.skipped_times), self.enabled]
        return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class ScheduleConfig:
    """The schedules of an app: `AppConfig(schedule=ScheduleConfig([...]))`."""

    schedules: Sequence[TaskSchedule] = ()

    def __post_init__(self) -> None:
        checks = Checks("ScheduleConfig")
        given = cast("object", self.schedules)
        if isinstance(given, str | bytes | Mapping) or not isinstance(given, Iterable):
            checks.add(
                "schedules", f"must be a list, got {shown(cast('object', given))}", "give a list of TaskSchedule(...)"
            )
            checks.finish()
        listed = _listed(cast("object", given))
        seen: set[str] = set()
        for at, schedule in enumerate(listed):
            if not isinstance(schedule, TaskSchedule):
                checks.add(
                    f"schedules[{at}]", f"must be a TaskSchedule, got {shown(schedule)}", "give TaskSchedule(...)"
                )
            elif schedule.name in seen:
                checks.add(f"schedules[{at}]", f"the name {schedule.name!r} is taken", "give each a name of its own")
            else:
                seen.add(schedule.name)
        checks.finish()
        object.__setattr__(self, "schedules", tuple(listed))


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
    """The time that was meant; midnight, and a problem, when it cannot be told."""
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
