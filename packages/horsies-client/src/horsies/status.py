"""The states of tasks, workflows and workflow nodes, and the legal moves between task states.

This file is the law; the table's CHECK constraints repeat it (a test compares the two) and every
statement that moves a task names its edge (a test compares those as well). Nothing here does I/O.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class TaskStatus(StrEnum):
    """Where a task is in its life. Stored as text, never as a native enum."""

    PENDING = "PENDING"
    """Waiting for its time (`enqueued_at`) and for a worker. A worker's claim moves it on."""
    CLAIMED = "CLAIMED"
    """Held by one worker ahead of a free slot; user code has not run. Always safe to hand back."""
    RUNNING = "RUNNING"
    """Durably marked before user code starts. Only its owner, or the reaper, moves it on."""
    COMPLETED = "COMPLETED"
    """User code returned `TaskResult(ok=...)`."""
    FAILED = "FAILED"
    """User code returned an err, raised, timed out, or its process died, and no retry is left; or no worker knows its
    name."""
    CANCELLED = "CANCELLED"
    """Somebody asked for it to stop, before or during its run."""
    EXPIRED = "EXPIRED"
    """`good_until` passed before it could start."""

    @property
    def is_terminal(self) -> bool:
        """True for the states that a task leaves only by an operator's retry."""
        return self in TASK_TERMINAL_STATES


TASK_TERMINAL_STATES: Final[frozenset[TaskStatus]] = frozenset(
    {TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.EXPIRED}
)


class AttemptOutcome(StrEnum):
    """How one attempt ended, as its immutable row in `horsies_task_attempts` says."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    WORKER_FAILURE = "WORKER_FAILURE"
    """User code did not end this attempt itself: its process died or was taken away."""


class WorkflowStatus(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def is_terminal(self) -> bool:
        return self in WORKFLOW_TERMINAL_STATES


WORKFLOW_TERMINAL_STATES: Final[frozenset[WorkflowStatus]] = frozenset(
    {WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED}
)


class NodeStatus(StrEnum):
    """One node of a workflow."""

    PENDING = "PENDING"
    READY = "READY"
    ENQUEUED = "ENQUEUED"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"

    @property
    def is_terminal(self) -> bool:
        return self in NODE_TERMINAL_STATES


NODE_TERMINAL_STATES: Final[frozenset[NodeStatus]] = frozenset(
    {NodeStatus.COMPLETED, NodeStatus.FAILED, NodeStatus.SKIPPED}
)


class Edge(NamedTuple):
    """One legal move. `source` is None for the birth of a task."""

    source: TaskStatus | None
    target: TaskStatus

    def __str__(self) -> str:
        return f"{self.source or 'new'} -> {self.target}"


def _edges(source: TaskStatus | None, *targets: TaskStatus) -> set[Edge]:
    return {Edge(source, target) for target in targets}


_S = TaskStatus

TRANSITIONS: Final[frozenset[Edge]] = frozenset(
    # the client's send, also by a schedule or a workflow
    _edges(None, _S.PENDING)
    # a claim may start the task in the same write when a slot is free, and ends what is overdue; FAILED: no live
    # worker has known its name for the grace
    | _edges(_S.PENDING, _S.CLAIMED, _S.RUNNING, _S.EXPIRED, _S.CANCELLED, _S.FAILED)
    # PENDING: hand-back or a stale claim; user code never ran
    | _edges(_S.CLAIMED, _S.RUNNING, _S.PENDING, _S.EXPIRED, _S.CANCELLED)
    # PENDING: a retry, or handed ahead and provably never started
    | _edges(_S.RUNNING, _S.COMPLETED, _S.FAILED, _S.CANCELLED, _S.PENDING)
    # an operator's retry
    | _edges(_S.FAILED, _S.PENDING)
    | _edges(_S.CANCELLED, _S.PENDING)
    | _edges(_S.EXPIRED, _S.PENDING)
)
