"""What of an overview deserves a word, and where to look at it. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Final

from horsies._text import plural, span
from horsies.doctor import Finding, Severity
from horsies.info import QueueStatus, WorkerLiveness, WorkerStatus
from horsies_tui.data.models import Alert, AlertLevel, Ends, worker_name

LONG_READY: Final = timedelta(minutes=5)
UNSERVED: Final = timedelta(seconds=30)
"""A queue without a worker for that long: a deploy may be under way before."""
_RECENT: Final = timedelta(minutes=10)


FAILING_SPAN: Final = timedelta(minutes=5)
"""Failures are judged over this, or over the newest LOOK_ROWS_NOW ends."""
FAILURES: Final = 5
"""Fewer are no alert, whatever their share."""
FAILING_SHARE: Final = 0.1
FAILING_BADLY: Final = 0.5


def alerts(
    queues: Iterable[QueueStatus],
    workers: Sequence[WorkerStatus],
    ends: Ends | None = None,
    schedules: Iterable[Finding] = (),
) -> tuple[Alert, ...]:
    """The worst first. `schedules`: what the doctor finds about them."""
    found = [
        *_workers(workers), *_queues(queues, has_workers=any(one.liveness.is_there for one in workers)),
        *(_ends(ends) if ends is not None else ()), *_schedules(schedules),
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda alert: alert.level is AlertLevel.WARN))


def _ends(ends: Ends) -> Iterator[Alert]:
    if ends.failed < FAILURES or ends.failed < FAILING_SHARE * ends.tasks:
        return
    level = AlertLevel.PROBLEM if ends.failed >= FAILING_BADLY * ends.tasks else AlertLevel.WARN
    share = 100 * ends.failed / ends.tasks
    text = f"{share:.0f} % of tasks fail: {ends.failed:,} of {ends.tasks:,} in the last {span(ends.span)}"
    yield Alert(level, text, "tasks", "status:failed,expired")


def _schedules(findings: Iterable[Finding]) -> Iterator[Alert]:
    for one in findings:
        if one.severity in (Severity.PROBLEM, Severity.WARN):
            yield Alert(AlertLevel(one.severity.value), one.what, "schedules")


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
            why = "no worker serves it" if has_workers else "there is no worker"
            yield Alert(AlertLevel.PROBLEM, f"queue {one.name} waits for {span(waited)}: {why}", "workers")
        elif waited > LONG_READY:
            yield Alert(AlertLevel.WARN, f"queue {one.name} is {span(waited)} behind", "tasks")
