"""The definition of a stale task, and the condition for acting on one. Pure functions; no other module decides it.

A claimed or running task is stale when its worker is gone (it has shut down, another worker declared it dead, or it has
sent no snapshot for long), or when the task has been silent for longer than the threshold of its state. Each worker
reports its own thresholds. For a worker that reports none, the longest threshold of a live worker counts; without a
live worker, that of the app's configuration.

The reaper uses `threshold_of` with its own configuration; `horsies stale`, the doctor and the dashboard use
`StaleRules`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Final

from horsies.config.recovery import RecoveryConfig
from horsies.operate.views import StaleTask, WorkerLiveness, WorkerStatus
from horsies.status import TaskStatus

SEEN_WITHIN: Final = timedelta(days=1)
"""Workers with an older last snapshot are ignored."""
LISTED: Final = 10_000
"""The number of stale tasks that one statement returns at most."""
SLACK: Final = timedelta(seconds=2)
"""An action requires the silence that was seen, less this."""
_LEAST: Final = timedelta(seconds=1)


class StaleKind(StrEnum):
    """The state of a silent task; each state has a threshold."""

    CLAIMED = "claimed"
    RUNNING = "running"
    FINALIZING = "finalizing"
    """Its result is staged and not written yet."""


def kind_of(status: TaskStatus, *, is_finalizing: bool) -> StaleKind:
    return StaleKind.FINALIZING if is_finalizing else StaleKind(status.lower())


def threshold_of(recovery: RecoveryConfig, kind: StaleKind) -> timedelta:
    """How long a task in this state may be silent under this configuration."""
    return timedelta(milliseconds=getattr(recovery, f"{kind}_stale_threshold_ms"))


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a task is stale, and why."""

    kind: StaleKind
    threshold: timedelta
    worker_is_gone: bool
    is_over: bool
    """It has been silent for longer than the threshold."""
    guard: timedelta
    """The silence that an action requires: a worker that came back in the meantime keeps its task."""

    @property
    def is_stale(self) -> bool:
        return self.worker_is_gone or self.is_over


class StaleRules:
    """The thresholds of these workers. `default` counts where no live worker has reported its own."""

    def __init__(self, workers: Sequence[WorkerStatus], default: RecoveryConfig | None = None) -> None:
        self._by_id = {one.worker_id: one for one in workers}
        self._default = default or RecoveryConfig()
        self._live = [one for one in workers if one.liveness.is_there]
        self.gone = [one.worker_id for one in workers if not one.liveness.is_there]
        """For `stale_tasks`: their tasks are stale after any silence."""

    @property
    def dead(self) -> list[WorkerStatus]:
        return [one for one in self._by_id.values() if one.liveness is WorkerLiveness.DEAD]

    @property
    def smallest(self) -> timedelta:
        """For `stale_tasks`: no task of a live worker is stale sooner."""
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
