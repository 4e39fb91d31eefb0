"""`snooze`: what a task returns to run again later, without an error and without using up a retry."""

import math
from datetime import timedelta
from typing import Final, Never, cast

from horsies._checks import Checks, shown
from horsies._text import span
from horsies.errors import OutcomeCode
from horsies.result import TaskError, TaskResult

MAX_SNOOZE: Final = timedelta(days=30)
"""As for a retry. Use a schedule for longer delays."""
MAX_COUNT: Final = 32_767
"""Where the count of a task's snoozes ends. Further ones happen, and are not counted."""
_FIX: Final = "give more than 0 and at most 30 days, such as snooze(seconds=60) or snooze(timedelta(minutes=5))"


class Snooze(TaskError):
    """The error in the result of `snooze`. Only the worker reads it: no task ends with it."""

    __slots__ = ()

    def __init__(self, delay_ms: int) -> None:
        message = f"runs again in {span(timedelta(milliseconds=delay_ms))}"
        super().__init__(OutcomeCode.TASK_SNOOZED, message, retry_after_ms=delay_ms)


def snooze(
    delay: timedelta | None = None,
    /,
    *,
    seconds: float = 0,
    minutes: float = 0,
    hours: float = 0,
) -> TaskResult[Never, TaskError]:
    """Return this from a task to run it again after the delay: `return snooze(seconds=60)`.

    It is neither an error nor an attempt: no retry is used up, `current_task().attempt` stays and
    `current_task().snoozes` rises. The place of the task is free until then. A cancelled task ends CANCELLED, and one
    whose `good_until` passes before it runs again ends EXPIRED.
    """
    checks = Checks("snooze")
    parts = {"seconds": (seconds, 1), "minutes": (minutes, 60), "hours": (hours, 3600)}
    total = 0.0
    for name, (value, factor) in parts.items():
        if not _is_number(value):
            checks.add(name, f"must be a number, got {shown(value)}", _FIX)
        else:
            total += value * factor
    if delay is not None:
        if not isinstance(delay, timedelta):  # pyright: ignore[reportUnnecessaryIsInstance]
            checks.add("delay", f"must be a timedelta, got {shown(cast('object', delay))}", _FIX)
        else:
            total += delay.total_seconds()
    if not checks.problems and (not 0 < total <= MAX_SNOOZE.total_seconds()):
        why = "no delay is given" if delay is None and not (seconds or minutes or hours) else None
        checks.add("delay", why or f"{shown(total)} seconds is out of range", _FIX)
    checks.finish()
    return TaskResult(err=Snooze(max(1, round(total * 1000))))


def _is_number(value: object) -> bool:
    if isinstance(value, float):
        return math.isfinite(value)
    # an int beyond this would overflow as a float, and no delay is as long
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53
