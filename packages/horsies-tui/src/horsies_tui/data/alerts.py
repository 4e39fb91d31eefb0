"""The alerts of the overview, and the screen for each. Pure functions."""

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from typing import Final

from horsies._text import plural, span
from horsies.operate.doctor import Finding, Severity
from horsies.operate.reading import RECENT
from horsies.operate.views import QueueStatus, WorkerLiveness, WorkerStatus
from horsies_tui.data.models import Alert, Ends, worker_name

LONG_READY: Final = timedelta(minutes=5)
UNSERVED: Final = timedelta(seconds=30)
"""A queue has no worker for shorter times during a deploy."""
FAILING_SPAN: Final = timedelta(minutes=5)
"""The span over which failures are counted, or the newest LOOK_ROWS_NOW ends."""
FAILURES: Final = 5
"""Fewer failures are no alert, even if all tasks fail."""
FAILING_SHARE: Final = 0.1
FAILING_BADLY: Final = 0.5


def alerts(
    queues: Iterable[QueueStatus],
    workers: Sequence[WorkerStatus],
    ends: Ends | None = None,
    schedules: Iterable[Finding] = (),
    quarantined: int = 0,
) -> tuple[Alert, ...]:
    """The alerts, the worst first. `schedules` are the doctor's findings about schedules; `quarantined` counts
    the tasks that crashed too often, up to 1,000."""
    found = [
        *_workers(workers), *_queues(queues, workers),
        *(_ends(ends) if ends is not None else ()), *_schedules(schedules),
        *_quarantined(quarantined),
    ]  # fmt: skip
    return tuple(sorted(found, key=lambda alert: alert.level is Severity.WARN))


def _ends(ends: Ends) -> Iterator[Alert]:
    if ends.failed < FAILURES or ends.failed < FAILING_SHARE * ends.tasks:
        return
    level = Severity.PROBLEM if ends.failed >= FAILING_BADLY * ends.tasks else Severity.WARN
    share = 100 * ends.failed / ends.tasks
    text = f"{share:.0f} % of tasks fail: {ends.failed:,} of {ends.tasks:,} in the last {span(ends.span)}"
    yield Alert(level, text, "tasks", "status:failed,expired")


def _schedules(findings: Iterable[Finding]) -> Iterator[Alert]:
    for one in findings:
        if one.severity in (Severity.PROBLEM, Severity.WARN):
            yield Alert(one.severity, one.what, "schedules")


def _quarantined(count: int) -> Iterator[Alert]:
    if count:
        what = plural(count, "task") if count < 1_000 else "1,000 tasks or more"
        text = f"{what} in quarantine, crashed too often: R releases, X purges"
        yield Alert(Severity.WARN, text, "tasks", "status:failed error:crash_limit")


def _workers(workers: Sequence[WorkerStatus]) -> Iterator[Alert]:
    for one in workers:
        held = one.holds_running + one.holds_claimed
        name = worker_name(one)
        if one.liveness is WorkerLiveness.DEAD and held:
            yield Alert(Severity.PROBLEM, f"{name} is dead and still holds {plural(held, 'task')}", "stale")
        elif one.liveness is WorkerLiveness.DEAD and one.age < RECENT:
            had = one.tasks_running + one.tasks_claimed  # as its last snapshot says
            yield Alert(Severity.WARN, f"{name} died {span(one.age)} ago{'; tasks recovered' if had else ''}", "stale")
        elif one.liveness is WorkerLiveness.LATE:
            yield Alert(Severity.WARN, f"{name} is silent for {span(one.age)}", "workers")
        elif one.liveness is WorkerLiveness.ALIVE and (one.memory_percent or 0) > 90:
            yield Alert(Severity.WARN, f"{name} uses {one.memory_percent:.0f} % of its memory", "workers")


def _queues(queues: Iterable[QueueStatus], workers: Sequence[WorkerStatus]) -> Iterator[Alert]:
    has_workers = any(one.liveness.is_there for one in workers)
    served = {queue for one in workers if one.liveness.is_there for queue in one.queues}
    drained = served - {queue for one in workers if one.is_claiming for queue in one.queues}
    for one in queues:
        waited = one.oldest_ready
        if not one.ready or waited is None:
            continue
        if one.paused_at is not None:
            yield Alert(Severity.WARN, f"queue {one.name} is paused with {plural(one.ready, 'ready task')}", "tasks")
        elif not one.served_by and waited > UNSERVED:
            why = "no worker serves it" if has_workers else "there is no worker"
            yield Alert(Severity.PROBLEM, f"queue {one.name} waits for {span(waited)}: {why}", "workers")
        elif one.name in drained and waited > UNSERVED:
            text = f"queue {one.name} waits for {span(waited)}: its workers are drained"
            yield Alert(Severity.PROBLEM, text, "workers")
        elif waited > LONG_READY:
            yield Alert(Severity.WARN, f"queue {one.name} is {span(waited)} behind", "tasks")
