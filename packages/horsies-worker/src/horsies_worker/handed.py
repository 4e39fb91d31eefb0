"""What a child holds, the states it goes through, and what its owner hears of it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import inf
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from horsies_worker.child_process import ChildProcess
    from horsies_worker.forensics import Exit
    from horsies_worker.jobs import Job
    from horsies_worker.ladder import Stop
    from horsies_worker.wire import Report


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RETIRING = "retiring"
    """Finishes what it has, gets nothing new."""
    DEAD = "dead"


class Handed:
    """A job inside a child."""

    __slots__ = ("end", "estimate", "job", "near_end", "seq", "since", "stop")

    def __init__(self, job: Job, seq: int, estimate: float, since: float, end: int, near_end: float = inf) -> None:
        self.job = job
        self.seq = seq
        self.estimate = estimate
        """Seconds it will take at most, by experience; infinite when there is none."""
        self.since = since
        """When it was handed over; for an async job also its start."""
        self.end = end
        """Where its frame ends in the stream of bytes to the child."""
        self.near_end = near_end
        """So long after its start its successor may be handed over; infinite when its end cannot be foreseen."""
        self.stop: Stop | None = None


class ChildOwner(Protocol):
    """What the pool hears from its children."""

    def child_ready(self, child: ChildProcess) -> None: ...

    def child_finished(
        self, child: ChildProcess, handed: Handed, report: Report, started: float, finished: float, effort: float
    ) -> None: ...

    def child_progress(self, child: ChildProcess, handed: Handed, text: str) -> None: ...

    def near_end(self, task_name: str) -> float:
        """See `Estimates`."""
        ...

    def child_unstarted(self, child: ChildProcess, handed: Sequence[Handed], slow: str | None) -> None:
        """Taken back from behind `slow`, a task name that ran longer than it should (None: nothing ran)."""
        ...

    def child_moved(self, child: ChildProcess) -> None:
        """Something arrived from this child; there may be room."""
        ...

    def child_gone(
        self, child: ChildProcess, end: Exit, ran: Sequence[Handed], unstarted: Sequence[Handed]
    ) -> None: ...
