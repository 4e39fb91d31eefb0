"""The options of `horsies schedules add` and `edit`, and the schedule that they describe."""

import argparse
import json
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Final, cast

from horsies._text import short
from horsies.errors import ConfigurationError
from horsies.operate.commands._common import duration
from horsies.schedule import (
    LAST_DAY,
    MAX_INTERVAL,
    Cron,
    Daily,
    Hourly,
    Interval,
    Monthly,
    Overlap,
    Pattern,
    SkippedTime,
    Weekday,
    Weekly,
)
from horsies.stored_schedule import pattern_json

_SHORT_DAYS: Final = {day.value[:3]: day.value for day in Weekday}
_PATTERNS: Final = ("cron", "every", "hourly", "daily", "weekly", "monthly")
_FIELDS: Final = (
    "task_name", "workflow", "kwargs", "queue_name", "group_key", "timezone", "skipped_times", "overlap",
    "catch_up_missed", "max_catch_up_runs", "jitter_s", "enabled",
)  # fmt: skip


def add_schedule_options(to: argparse.ArgumentParser, *, is_new: bool) -> None:
    """Add what a schedule has. For a new one, target and pattern are required; for another, what is given changes."""
    target = to.add_mutually_exclusive_group(required=is_new)
    target.add_argument("--task", dest="task_name", metavar="NAME", help="the task to enqueue")
    target.add_argument("--workflow", metavar="NAME", help="the workflow to start instead")
    times = to.add_argument_group("pattern").add_mutually_exclusive_group(required=is_new)
    times.add_argument("--cron", type=_checked(Cron), metavar="FIELDS", help="five fields: '30 2 * * 1-5'")
    times.add_argument("--every", type=_every, metavar="SPAN", help="elapsed time: 90s, 15m, 2h, 7d or 1h30m")
    times.add_argument("--hourly", type=_hourly, metavar="MM[:SS]", help="at this minute of every hour")
    times.add_argument("--daily", type=_checked(Daily), metavar="HH:MM", help="every day; seconds may follow")
    times.add_argument("--weekly", type=_weekly, metavar="DAYS@HH:MM", help="on days of the week: mon,fri@08:00")
    times.add_argument("--monthly", type=_monthly, metavar="DAY@HH:MM", help="on a day: 15@08:00, or last@23:00")
    to.add_argument("--timezone", metavar="ZONE", help="of the pattern, such as Europe/Berlin (default: UTC)")
    to.add_argument("--kwargs", type=_object, metavar="JSON", help='the arguments by name: \'{"kind": "day"}\'')
    cleared = "" if is_new else "; '' for none"
    to.add_argument("--queue", dest="queue_name", metavar="NAME", help=f"instead of the task's own{cleared}")
    to.add_argument("--group", dest="group_key", metavar="KEY", help=f"the group of each task or run{cleared}")
    to.add_argument("--overlap", choices=tuple(Overlap), help="skip: no run while the run before has not ended")
    to.add_argument("--skipped-times", choices=tuple(SkippedTime), help="of local times that a clock jumps over")
    to.add_argument(
        "--catch-up", dest="catch_up_missed", action=argparse.BooleanOptionalAction, help="run all missed slots"
    )
    to.add_argument("--max-catch-up-runs", type=int, metavar="N", help="at most so many (default: 100)")
    to.add_argument("--jitter", dest="jitter_s", type=_seconds, metavar="SPAN", help="delay each task by up to this")
    to.add_argument("--enabled", action=argparse.BooleanOptionalAction, help="not enabled: it runs by hand only")


def given_columns(options: argparse.Namespace) -> dict[str, Any]:
    """The columns of `horsies_schedules` that the options give."""
    found = {name: value for name in _FIELDS if (value := getattr(options, name)) is not None}
    patterns = [value for name in _PATTERNS if (value := getattr(options, name)) is not None]
    if patterns:
        found["pattern"] = pattern_json(cast("Pattern", patterns[0]))
    return found


def merged(base: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a schedule after an edit. A task takes the place of a workflow, and the other way round; an empty
    queue or group takes away the one that was stored."""
    found = {**base, **given}
    for name in ("queue_name", "group_key"):
        if base is not NEW and found[name] == "":
            found[name] = None
    if "task_name" in given:
        found["workflow"] = None
    elif "workflow" in given:
        found["task_name"] = None
    return found


NEW: Final[Mapping[str, Any]] = {
    "task_name": None, "workflow": None, "pattern": None, "kwargs": {}, "queue_name": None, "group_key": None,
    "timezone": "UTC", "skipped_times": "fire", "overlap": "allow", "catch_up_missed": False,
    "max_catch_up_runs": 100, "jitter_s": 0, "enabled": True,
}  # fmt: skip


# -- parsing -------------------------------------------------------------------------------------


def _checked(make: Callable[[str], Pattern]) -> Callable[[str], Pattern]:
    def parse(text: str) -> Pattern:
        try:
            return make(text)
        except ConfigurationError as error:
            told = "; ".join(f"{problem.why}: {problem.fix}" for problem in error.problems)
            raise argparse.ArgumentTypeError(told) from None

    return parse


def _every(text: str) -> Pattern:
    span = duration(text)
    if span % timedelta(seconds=1) or not timedelta(seconds=1) <= span <= MAX_INTERVAL:
        raise argparse.ArgumentTypeError(f"{short(text)!r} is out of range: give whole seconds, from 1s to 366d")
    return Interval(seconds=span // timedelta(seconds=1))


def _hourly(text: str) -> Pattern:
    parts = text.split(":")
    if not 1 <= len(parts) <= 2 or not all(part.isascii() and part.isdigit() for part in parts):
        raise argparse.ArgumentTypeError(f"{short(text)!r} is not a minute: write 15, or 15:30 with seconds")
    return _checked(lambda _: Hourly(*map(int, parts)))(text)


def _weekly(text: str) -> Pattern:
    days, at, time = text.partition("@")
    if not at:
        raise argparse.ArgumentTypeError(f"{short(text)!r} has no time: write mon,fri@08:00")
    names = [_SHORT_DAYS.get(day.strip().lower(), day.strip().lower()) for day in days.split(",")]
    return _checked(lambda _: Weekly(names, time))(text)


def _monthly(text: str) -> Pattern:
    day, at, time = text.partition("@")
    if not at or not (day == "last" or (day.isascii() and day.isdigit())):
        raise argparse.ArgumentTypeError(f"{short(text)!r} is no day and time: write 15@08:00 or last@23:00")
    if day != "last" and not 1 <= int(day) <= 31:
        raise argparse.ArgumentTypeError(f"{short(day)!r} is no day of a month: choose 1 to 31, or last")
    return _checked(lambda _: Monthly(LAST_DAY if day == "last" else int(day), time))(text)


def _seconds(text: str) -> float:
    return duration(text).total_seconds()


def _object(text: str) -> dict[str, Any]:
    try:
        value: object = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{short(text)!r} is not JSON: {short(str(error))}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{short(text)!r} is not a JSON object: write {{"name": value}}')
    return cast("dict[str, Any]", value)
