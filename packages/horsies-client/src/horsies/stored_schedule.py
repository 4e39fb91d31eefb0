"""A schedule as a row of `horsies_schedules`: patterns and arguments as JSON, and back. Pure.

The row may have been written by SQL, so reading it checks everything that the classes of `horsies.schedule` check.
"""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from datetime import time, timedelta
from typing import Any, Final, cast

from horsies._checks import Checks, shown
from horsies.envelopes import PLAIN_ENVELOPES, Envelopes, is_encoded
from horsies.errors import ConfigurationError
from horsies.payload_codec import PayloadError
from horsies.schedule import Cron, Daily, Hourly, Interval, Monthly, Pattern, TaskSchedule, Weekly

_KINDS: Final[Mapping[str, type[Any]]] = {
    "interval": Interval, "hourly": Hourly, "daily": Daily, "weekly": Weekly, "monthly": Monthly, "cron": Cron,
}  # fmt: skip
_NAMES: Final = {kind: name for name, kind in _KINDS.items()}


def pattern_json(pattern: Pattern) -> dict[str, Any]:
    """`{"kind": "daily", "at": "02:30:00"}`. Fields of their default value are left out."""
    found: dict[str, Any] = {"kind": _NAMES[type(pattern)]}
    for field in fields(pattern):
        value = getattr(pattern, field.name)
        if field.default is MISSING or value != field.default:
            found[field.name] = _plain(value)
    return found


def pattern_of(given: object) -> Pattern:
    """The pattern of such a document; raises ConfigurationError."""
    checks = Checks("pattern")
    names = ", ".join(_KINDS)
    document: Mapping[str, Any] = cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else {}
    kind = _KINDS.get(str(document.get("kind")))
    if kind is None:
        checks.add("kind", f"{shown(document.get('kind', given))} is not a kind of pattern", f"give one of: {names}")
        raise ConfigurationError(checks.problems, subject="pattern")
    values = {name: value for name, value in document.items() if name != "kind"}
    known = {field.name: field.default is MISSING for field in fields(kind)}
    for name in values.keys() - known.keys():
        checks.add(name, f"a pattern of the kind {document['kind']} has no such field", f"use {', '.join(known)}")
    for name in sorted(name for name, is_needed in known.items() if is_needed and name not in values):
        checks.add(name, "is missing", f"a pattern of the kind {document['kind']} needs it")
    checks.finish()
    return cast("Pattern", cast("Any", kind)(**values))


def plain_kwargs(schedule: TaskSchedule) -> str:
    """The arguments as JSON, for a task or workflow whose types are not known here; raises ConfigurationError."""
    checks = Checks(f"TaskSchedule({schedule.name!r})")
    if schedule.args:
        why = f"{schedule.target!r} is not known here, so that the names of its parameters are not"
        checks.add("args", why, "give them as kwargs, by name")
    try:
        text = json.dumps(schedule.kwargs, allow_nan=False)
        same = json.loads(text) == schedule.kwargs
    except (TypeError, ValueError, RecursionError):
        text, same = "{}", False
    if not same:
        checks.add(
            "kwargs", f"{schedule.target!r} is not known here, so that they are stored as they are, and are not JSON",
            "give text, numbers, booleans, lists, objects and None; or put it through the app that has the task",
        )  # fmt: skip
    checks.finish()
    return storable(schedule, text)


def stored_kwargs(schedule: TaskSchedule, envelopes: Envelopes = PLAIN_ENVELOPES) -> str:
    """The arguments of a schedule whose target is not known here; raises ConfigurationError. Those that another app has
    encoded stay as they are."""
    text = plain_kwargs(schedule)
    if has_encoded(schedule):
        return text
    try:
        return envelopes.wrap_call(None, text, schedule.target)[1] or "{}"
    except PayloadError as error:
        checks = Checks(f"TaskSchedule({schedule.name!r})")
        checks.add("kwargs", f"cannot be stored: {error}", "see the payload_codec of this app")
        raise ConfigurationError(checks.problems, subject="schedule") from error


def has_encoded(schedule: TaskSchedule) -> bool:
    """Whether an argument has the form in which a payload codec stores it."""
    return any(is_encoded(value) for value in schedule.kwargs.values())


def storable(schedule: TaskSchedule, text: str) -> str:
    """The JSON of the arguments; raises ConfigurationError if PostgreSQL cannot keep it."""
    if "\\u0000" in text:
        checks = Checks(f"TaskSchedule({schedule.name!r})")
        checks.add("kwargs", "they hold a NUL character, which PostgreSQL cannot store", "leave it out")
        checks.finish()
    return text


def columns_of(schedule: TaskSchedule, kwargs: str) -> dict[str, Any]:
    """The columns of the row that a caller decides. `kwargs` is JSON."""
    return {
        "name": schedule.name,
        "task_name": schedule.task_name,
        "workflow": schedule.workflow,
        "pattern": pattern_json(schedule.pattern),
        "kwargs": json.loads(kwargs),
        "queue_name": schedule.queue_name,
        "group_key": schedule.group,
        "timezone": schedule.timezone,
        "skipped_times": str(schedule.skipped_times),
        "overlap": str(schedule.overlap),
        "catch_up_missed": schedule.catch_up_missed,
        "max_catch_up_runs": schedule.max_catch_up_runs,
        "jitter_s": schedule.max_jitter.total_seconds(),
        "enabled": schedule.enabled,
    }


def schedule_of(row: Mapping[str, Any]) -> TaskSchedule:
    """The schedule of a row; raises ConfigurationError. Without the right to read arguments it has none."""
    pattern = row["pattern"]
    kwargs = row.get("kwargs")
    return TaskSchedule(
        row["name"],
        row["task_name"],
        pattern_of(json.loads(pattern) if isinstance(pattern, str) else pattern),
        workflow=row["workflow"],
        kwargs=(json.loads(kwargs) if isinstance(kwargs, str) else kwargs) or {},
        queue_name=row["queue_name"],
        group=row["group_key"],
        timezone=row["timezone"],
        skipped_times=row["skipped_times"],
        overlap=row["overlap"],
        catch_up_missed=row["catch_up_missed"],
        max_catch_up_runs=row["max_catch_up_runs"],
        jitter=timedelta(seconds=row["jitter_s"]),
        enabled=row["enabled"],
    )


def _plain(value: object) -> object:
    if isinstance(value, time):
        return value.isoformat()
    if isinstance(value, tuple):
        return [str(item) for item in cast("tuple[object, ...]", value)]
    return value
