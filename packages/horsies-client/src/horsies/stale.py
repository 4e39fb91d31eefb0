"""What makes a task stale, and what it takes to act on one. The only place that says so; pure.

A task that is claimed or runs is stale when its worker is gone (it said good-bye, was judged dead, or its snapshots
have stopped for long), or when the task has been silent for longer than the threshold of its state. Every worker
reports its own thresholds. For a worker that reports none, the longest that a live worker reports counts; without one,
the configuration at hand.

The reaper asks for `threshold_of` its own configuration; `horsies stale`, the doctor and the dashboard ask
`StaleRules`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from horsies.config.recovery import RecoveryConfig
from horsies.info import StaleTask, WorkerLiveness, WorkerStatus
from horsies.status import TaskStatus

SEEN_WITHIN: Final = timedelta(days=1)
"""Workers whose last snapshot is older are not looked at: nothing is known of them any more."""
LISTED: Final = 10_000
"""Stale tasks that one question returns at most."""
SLACK: Final = timedelta(seconds=2)
"""Between the look and the act: an action demands the silence that was seen, less this."""
_LEAST: Final = timedelta(seconds=1)


class StaleKind(StrEnum):
    """The state in which a task is silent; each has a threshold."""

    CLAIMED = "claimed"
    RUNNING = "running"
    FINALIZING = "finalizing"
    """Its result is in hand and not written."""


def kind_of(status: TaskStatus, *, is_finalizing: bool) -> StaleKind:
    return StaleKind.FINALIZING if is_finalizing else StaleKind(status.lower())


def threshold_of(recovery: RecoveryConfig, kind: StaleKind) -> timedelta:
    """How long the silence of such a task may last under this configuration."""
    return timedelta(milliseconds=getattr(recovery, f"{kind}_stale_threshold_ms"))


@dataclass(frozen=True, slots=True)
class Verdict:
    """How a task stands."""

    kind: StaleKind
    threshold: timedelta
    worker_is_gone: bool
    is_over: bool
    """Silent beyond the threshold."""
    guard: timedelta
    """The silence that an action must find again: a worker that came back in the meantime keeps its task."""

    @property
    def is_stale(self) -> bool:
        return self.worker_is_gone or self.is_over


class StaleRules:
    """For these workers. `default` counts where no live worker has told its thresholds."""

    def __init__(self, workers: Sequence[WorkerStatus], default: RecoveryConfig | None = None) -> None:
        self._by_id = {one.worker_id: one for one in workers}
        self._default = default or RecoveryConfig()
        self._live = [one for one in workers if one.liveness.is_there]
        self.gone = [one.worker_id for one in workers if not one.liveness.is_there]
        """For `stale_tasks`: what they hold is stale, however short its silence."""

    @property
    def dead(self) -> list[WorkerStatus]:
        return [one for one in self._by_id.values() if one.liveness is WorkerLiveness.DEAD]

    @property
    def smallest(self) -> timedelta:
        """For `stale_tasks`: no task of a worker that is there is stale sooner."""
        return min(self.threshold(kind, worker_id) for kind in StaleKind for worker_id in (None, *self._by_id))

    def threshold(self, kind: StaleKind, worker_id: str | None) -> timedelta:
        name = f"{kind}_stale_threshold_ms"
        worker = self._by_id.get(worker_id) if worker_id is not None else None
        told = worker.recovery(name) if worker is not None else None
        if told is None:
            told = max((value for one in self._live if (value := one.recovery(name)) is not None), default=None)
        return timedelta(milliseconds=told) if told is not None else threshold_of(self._default, kind)

    def verdict(self, task: StaleTask) -> Verdict:
        kind = kind_of(task.status, is_finalizing=task.is_finalizing)
        threshold = self.threshold(kind, task.claimed_by_worker_id)
        worker = self._by_id.get(task.claimed_by_worker_id or "")
        is_over = task.silence > threshold
        return Verdict(
            kind, threshold, worker is not None and not worker.liveness.is_there, is_over,
            guard=threshold if is_over else max(task.silence - SLACK, _LEAST),
        )  # fmt: skip
