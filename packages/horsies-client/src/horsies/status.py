"""The states of tasks, workflows and workflow nodes, and the legal transitions between task states.

The CHECK constraints of the tables repeat these rules, and every statement that changes a task's state names its edge;
tests compare both with this module.
"""

from enum import StrEnum
from typing import Final, NamedTuple


class TaskStatus(StrEnum):
    """The state of a task. Stored as text, never as a native enum."""

    PENDING = "PENDING"
    """The task waits for its time (`enqueued_at`) and for a worker to claim it."""
    CLAIMED = "CLAIMED"
    """A worker owns the task ahead of a free slot; user code has not run, so it can always be returned."""
    RUNNING = "RUNNING"
    """The state is committed before user code starts. Only the owning worker or the reaper changes it."""
    COMPLETED = "COMPLETED"
    """User code returned `TaskResult(ok=...)`."""
    FAILED = "FAILED"
    """User code returned an err, raised, timed out, or its process died, and no retry is left; or no worker knows the
    task's name."""
    CANCELLED = "CANCELLED"
    """The task was cancelled, before or during its run."""
    EXPIRED = "EXPIRED"
    """`good_until` passed before the task could start."""

    @property
    def is_terminal(self) -> bool:
        """True for the states that only an operator's retry can leave."""
        return self in TASK_TERMINAL_STATES


TASK_TERMINAL_STATES: Final[frozenset[TaskStatus]] = frozenset(
    {TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.EXPIRED}
)


class AttemptOutcome(StrEnum):
    """How an attempt ended, stored in its immutable row of `horsies_task_attempts`."""

    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    WORKER_FAILURE = "WORKER_FAILURE"
    """User code did not end this attempt: its process died or was terminated."""


class CancelResult(StrEnum):
    """The effect of a cancellation."""

    CANCELLED = "CANCELLED"
    """The task had not started and never will."""
    REQUESTED = "REQUESTED"
    """The task is running and its worker was asked to stop it. `get()` returns how it ends."""
    ALREADY_ENDED = "ALREADY_ENDED"
    NOT_FOUND = "NOT_FOUND"


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
    """The state of a workflow's node."""

    PENDING = "PENDING"
    READY = "READY"
    WAITING = "WAITING"
    """For a signal, or for a time."""
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
    """A legal transition. `source` is None for a new task."""

    source: TaskStatus | None
    target: TaskStatus

    def __str__(self) -> str:
        return f"{self.source or 'new'} -> {self.target}"


def _edges(source: TaskStatus | None, *targets: TaskStatus) -> set[Edge]:
    return {Edge(source, target) for target in targets}


_S = TaskStatus

TRANSITIONS: Final[frozenset[Edge]] = frozenset(
    # a send, a schedule or a workflow
    _edges(None, _S.PENDING)
    # a claim may start the task in the same statement when a slot is free, and expires overdue tasks; FAILED: no live
    # worker has known the name for the grace period
    | _edges(_S.PENDING, _S.CLAIMED, _S.RUNNING, _S.EXPIRED, _S.CANCELLED, _S.FAILED)
    # PENDING: returned, or a stale claim; user code never ran
    | _edges(_S.CLAIMED, _S.RUNNING, _S.PENDING, _S.EXPIRED, _S.CANCELLED)
    # PENDING: a retry, or assigned ahead of time and provably never started
    | _edges(_S.RUNNING, _S.COMPLETED, _S.FAILED, _S.CANCELLED, _S.PENDING)
    # an operator's retry
    | _edges(_S.FAILED, _S.PENDING)
    | _edges(_S.CANCELLED, _S.PENDING)
    | _edges(_S.EXPIRED, _S.PENDING)
)
