"""How long a task waits when no live worker of its queue knows its name. Pure.

A name that no worker of the queue ever registered is probably misspelled or sent to the wrong queue, or belongs to a
release that is being deployed: its tasks have a short grace period, counted only while live workers serve their queue.
A name that was known before belongs to an app that may come back (a deploy rolled back, workers scaled to zero): its
tasks wait much longer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

SHOWN_NAMES: Final = 20


@dataclass(frozen=True, slots=True)
class MissingName:
    """The name of tasks that wait in a queue whose live workers do not know it."""

    task_name: str
    queue_name: str
    last_known_at: datetime | None
    missing_since: datetime
    known_in: tuple[str, ...] = ()
    """The queues whose live workers know it."""


@dataclass(frozen=True, slots=True)
class Span:
    """A period in which live workers served a queue."""

    began: datetime
    ended: datetime


@dataclass(frozen=True, slots=True)
class Graces:
    unknown: timedelta
    retired: timedelta


def ready_before(name: MissingName, spans: Sequence[Span], now: datetime, graces: Graces) -> datetime | None:
    """The grace period is over for tasks of this name that were ready at the returned time or before; None for no task.

    `spans`: when the queue was served, ordered and disjoint. No task fails in a queue that is not served.
    """
    if not spans or spans[-1].ended < now:
        return None
    if name.last_known_at is not None:
        # Each task has the whole period: a task sent a week after its app was scaled to zero must not fail at once.
        cutoff = now - graces.retired
        return cutoff if name.last_known_at <= cutoff else None
    counted_from = _counted_from(spans, graces.unknown)
    return counted_from if counted_from is not None and name.missing_since <= counted_from else None


def _counted_from(spans: Sequence[Span], grace: timedelta) -> datetime | None:
    """The time from which on the queue was served for `grace` in all; None when it was served for less."""
    left = grace
    for span in reversed(spans):
        length = span.ended - span.began
        if length >= left:
            return span.ended - left
        left -= length
    return None


def why_failed(name: MissingName, known: Sequence[str]) -> str:
    """The message of the task's error. `known`: the names that live workers of its queue know."""
    shown = ", ".join(repr(one) for one in known[:SHOWN_NAMES])
    more = f" and {len(known) - SHOWN_NAMES} more" if len(known) > SHOWN_NAMES else ""
    last = f" (last known at {name.last_known_at:%Y-%m-%d %H:%M:%S %Z})" if name.last_known_at is not None else ""
    return (
        f"no live worker of queue {name.queue_name!r} has a task named {name.task_name!r}{last}; they know: "
        f"{shown or 'none'}{more}. {how_to_fix(name)}"
    )


def how_to_fix(name: MissingName) -> str:
    if name.known_in:
        queues = ", ".join(repr(one) for one in name.known_in[:SHOWN_NAMES])
        return f"Live workers of {queues} know it: send it there, or start one of them with --queues {name.queue_name}."
    return "Deploy a worker that registers it, or correct the name that is sent."
