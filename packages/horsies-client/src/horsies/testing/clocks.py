"""The virtual time of inline runs: which clock comes next, and whether the time may pass to it by itself."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from horsies.status import WorkflowStatus
from horsies.testing.inline_run import InlineNode, InlineRun


@dataclass(frozen=True, slots=True)
class Clock:
    when: datetime
    run: InlineRun
    node: InlineNode | None
    """That sleeps, or waits for a signal; None: the deadline of the run."""

    @property
    def is_sleep(self) -> bool:
        return self.node is not None and self.node.kind == "sleep"


def wake_at(node: InlineNode, now: datetime) -> datetime | None:
    """When a node that begins to wait ends by itself."""
    until, seconds = node.data["good_until"], node.data["ttl"]
    if until is not None:
        return datetime.fromisoformat(until)
    return None if seconds is None else now + timedelta(seconds=seconds)


def next_clock(runs: Sequence[InlineRun], deadline: datetime | None) -> Clock | None:
    """The earliest clock of the runs, of which the first one has this deadline. The timeout of a signal does not count
    while its run is paused."""
    found: list[Clock] = []
    for run in runs:
        if run.status.is_terminal:
            continue
        nodes = [*run.waiting("sleep"), *(() if run.status is WorkflowStatus.PAUSED else run.waiting("signal"))]
        found += [Clock(node.wake_at, run, node) for node in nodes if node.wake_at is not None]
    if deadline is not None and runs[0].is_open:
        found.append(Clock(deadline, runs[0], None))
    return min(found, key=lambda one: (one.when, one.node.index if one.node is not None else -1), default=None)


def passes_by_itself(clock: Clock, runs: Sequence[InlineRun]) -> bool:
    """A sleep ends at once, and the deadline of a run that sleeps beyond it passes. A test must get its chance to send
    a signal: the time stands still before a timeout, and before a deadline while a signal is waited for."""
    moving = [run for run in runs if run.status is WorkflowStatus.RUNNING]
    if clock.is_sleep:
        return clock.run in moving
    is_deadline = clock.node is None
    sleeps = any(True for run in moving for _ in run.waiting("sleep"))
    return is_deadline and sleeps and not any(True for run in moving for _ in run.waiting("signal"))
