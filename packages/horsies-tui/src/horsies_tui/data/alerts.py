"""What of an overview deserves a word, and where to look at it. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Final

from horsies._text import plural, span
from horsies.info import QueueStatus, WorkerLiveness, WorkerStatus
from horsies_tui.data.models import Alert, AlertLevel, worker_name

LONG_READY: Final = timedelta(minutes=5)
UNSERVED: Final = timedelta(seconds=30)
"""A queue without a worker for that long: a deploy may be under way before."""
_RECENT: Final = timedelta(minutes=10)


def alerts(queues: Iterable[QueueStatus], workers: Sequence[WorkerStatus]) -> tuple[Alert, ...]:
    """The worst first."""
    found = [*_workers(workers), *_queues(queues, has_workers=any(one.liveness.is_there for one in workers))]
    return tuple(sorted(found, key=lambda alert: alert.level is AlertLevel.WARN))


def _workers(workers: Sequence[WorkerStatus]) -> Iterator[Alert]:
    for one in workers:
        held = one.holds_running + one.holds_claimed
        name = worker_name(one)
        if one.liveness is WorkerLiveness.DEAD and held:
            yield Alert(AlertLevel.PROBLEM, f"{name} is dead and still holds {plural(held, 'task')}", "stale")
        elif one.liveness is WorkerLiveness.DEAD and one.age < _RECENT:
            had = one.tasks_running + one.tasks_claimed  # by its last word
            yield Alert(
                AlertLevel.WARN, f"{name} died {span(one.age)} ago{'; tasks recovered' if had else ''}", "stale"
            )
        elif one.liveness is WorkerLiveness.LATE:
            yield Alert(AlertLevel.WARN, f"{name} is silent for {span(one.age)}", "workers")
        elif one.liveness is WorkerLiveness.ALIVE and (one.memory_percent or 0) > 90:
            yield Alert(AlertLevel.WARN, f"{name} uses {one.memory_percent:.0f} % of its memory", "workers")


def _queues(queues: Iterable[QueueStatus], *, has_workers: bool) -> Iterator[Alert]:
    for one in queues:
        waited = one.oldest_ready
        if not one.ready or waited is None:
            continue
        if one.paused_at is not None:
            yield Alert(AlertLevel.WARN, f"queue {one.name} is paused with {plural(one.ready, 'ready task')}", "tasks")
        elif not one.served_by and waited > UNSERVED:
            nobody = "no worker serves it" if has_workers else "there is no worker"
            yield Alert(AlertLevel.PROBLEM, f"queue {one.name} waits for {span(waited)}: {nobody}", "workers")
        elif waited > LONG_READY:
            yield Alert(AlertLevel.WARN, f"queue {one.name} is {span(waited)} behind", "tasks")
