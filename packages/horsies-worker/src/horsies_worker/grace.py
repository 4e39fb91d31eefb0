"""When a task whose name no live worker knows has waited for long enough. Pure.

A name that no worker ever registered is probably misspelled, or of a release that is being deployed: its tasks have a
short grace, counted only while live workers serve their queue. A name that was known before belongs to an app that may
come back (a deploy rolled back, workers scaled to zero): its tasks wait for much longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

SHOWN_NAMES: Final = 20


@dataclass(frozen=True, slots=True)
class MissingName:
    """A name that tasks wait for, and that no live worker knows."""

    task_name: str
    last_known_at: datetime | None
    missing_since: datetime


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time in which live workers served a queue."""

    began: datetime
    ended: datetime


@dataclass(frozen=True, slots=True)
class Graces:
    unknown: timedelta
    retired: timedelta


def ready_before(name: MissingName, spans: Sequence[Span], now: datetime, graces: Graces) -> datetime | None:
    """Tasks of this name that were ready at this time or before have had their grace; None: no task has.

    `spans`: when the queue was served, in order and apart from each other. Nothing ends in a queue that is not served.
    """
    if not spans or spans[-1].ended < now:
        return None
    if name.last_known_at is not None:
        # Each task has the whole grace: one that is sent a week after its app was scaled to zero must not end at once.
        cutoff = now - graces.retired
        return cutoff if name.last_known_at <= cutoff else None
    counted_from = _counted_from(spans, graces.unknown)
    return counted_from if counted_from is not None and name.missing_since <= counted_from else None


def _counted_from(spans: Sequence[Span], grace: timedelta) -> datetime | None:
    """The time since when the queue was served for as long as `grace`; None when it was not."""
    left = grace
    for span in reversed(spans):
        length = span.ended - span.began
        if length >= left:
            return span.ended - left
        left -= length
    return None


def why_failed(name: MissingName, known: Sequence[str]) -> str:
    """For the task's error: what is missing, what there is, what to do."""
    shown = ", ".join(repr(one) for one in known[:SHOWN_NAMES])
    more = f" and {len(known) - SHOWN_NAMES} more" if len(known) > SHOWN_NAMES else ""
    last = f" (last known at {name.last_known_at:%Y-%m-%d %H:%M:%S %Z})" if name.last_known_at is not None else ""
    return (
        f"no live worker has a task named {name.task_name!r}{last}; live workers know: {shown or 'none'}{more}. "
        "Deploy a worker that registers it and retry the task, or correct the name that is sent."
    )
