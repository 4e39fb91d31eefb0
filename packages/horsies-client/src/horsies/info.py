"""What the database knows of a task, an attempt, a stale task, a worker: plain frozen values for people and tools."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Self, cast

from horsies.schedule_state import ScheduleState, schedule_state
from horsies.status import AttemptOutcome, TaskStatus, WorkflowStatus

if TYPE_CHECKING:
    from horsies.filters import TaskCursor


class _FromRow:
    """Built from a row by column name; an extra column is no error, a newer schema may have more."""

    __slots__ = ()

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        return cls(**{field.name: row[field.name] for field in fields(cls)})  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, slots=True)
class TaskInfo(_FromRow):
    """One row of `horsies_tasks`, without arguments and result. Times are the database's."""

    id: str
    task_name: str
    queue_name: str
    priority: int
    status: TaskStatus
    sent_at: datetime
    enqueued_at: datetime
    claimed_at: datetime | None
    started_at: datetime | None
    completed_at: datetime | None
    failed_at: datetime | None
    terminal_at: datetime | None
    cancel_requested_at: datetime | None
    good_until: datetime | None
    next_retry_at: datetime | None
    retry_count: int
    max_retries: int
    manual_retries: int
    claimed_by_worker_id: str | None
    worker_hostname: str | None
    worker_pid: int | None
    worker_process_name: str | None
    error_code: str | None
    failed_reason: str | None
    unique_key: str | None
    progress: Any
    is_workflow_task: bool
    created_at: datetime
    updated_at: datetime

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", TaskStatus(self.status))
        if isinstance(self.progress, str):
            import json

            object.__setattr__(self, "progress", json.loads(self.progress))


@dataclass(frozen=True, slots=True)
class TaskAttempt(_FromRow):
    """One finished attempt."""

    attempt: int
    outcome: AttemptOutcome
    will_retry: bool
    started_at: datetime
    finished_at: datetime
    error_code: str | None
    error_message: str | None
    failed_reason: str | None
    worker_id: str | None
    worker_hostname: str | None
    worker_pid: int | None
    worker_process_name: str | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "outcome", AttemptOutcome(self.outcome))


@dataclass(frozen=True, slots=True)
class StaleTask(_FromRow):
    """A task that is held or run by someone who has given no sign of life for too long."""

    id: str
    task_name: str
    queue_name: str
    status: TaskStatus
    claimed_by_worker_id: str | None
    worker_hostname: str | None
    worker_pid: int | None
    claimed_at: datetime | None
    started_at: datetime | None
    retry_count: int
    max_retries: int
    last_sign: datetime
    silence: timedelta
    """How long ago that is, on the database's clock."""
    is_finalizing: bool
    """Its result is in hand and not written."""
    is_workflow_task: bool
    held_for: timedelta
    """Since its claim, or since its start."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", TaskStatus(self.status))


@dataclass(frozen=True, slots=True)
class ExpiredTask(_FromRow):
    """A task whose `good_until` passed before it could start; still PENDING until a sweep has met it."""

    id: str
    task_name: str
    queue_name: str
    status: TaskStatus
    good_until: datetime
    enqueued_at: datetime
    terminal_at: datetime | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", TaskStatus(self.status))


@dataclass(frozen=True, slots=True)
class WorkerStats(_FromRow):
    """A worker's newest snapshot."""

    worker_id: str
    snapshot_at: datetime
    hostname: str
    pid: int
    processes: int
    queues: list[str]
    tasks_running: int
    tasks_claimed: int
    memory_usage_mb: float | None
    children_memory_mb: float | None
    cpu_percent: float | None
    memory_percent: float | None
    worker_started_at: datetime


@dataclass(frozen=True, slots=True)
class TaskSummary(_FromRow):
    """One line of a list of tasks."""

    id: str
    task_name: str
    queue_name: str
    priority: int
    status: TaskStatus
    since: datetime
    """When it came into its state; a waiting task, when it is due."""
    age: timedelta
    """How long ago that is, on the database's clock; negative for what is due later."""
    retry_count: int
    max_retries: int
    manual_retries: int
    claimed_by_worker_id: str | None
    worker_hostname: str | None
    error_code: str | None
    is_workflow_task: bool
    terminal_at: datetime | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", TaskStatus(self.status))


@dataclass(frozen=True, slots=True)
class TaskPage:
    """Some tasks, and where to go on when there may be more."""

    tasks: tuple[TaskSummary, ...]
    next: "TaskCursor | None"


@dataclass(frozen=True, slots=True)
class TaskState(_FromRow):
    """Why something can or cannot be done with a task."""

    id: str
    status: TaskStatus
    is_workflow_task: bool
    workflow_id: str | None
    workflow_is_live: bool
    """Its workflow, or the one that this is a part of, has not ended."""
    key_is_taken: bool
    """A live task holds the same unique key: this one cannot be retried now."""
    is_replaced: bool
    """It was a node's task until its workflow was retried; the node has, or will have, another one."""
    node_id: str | None
    node_task_id: str | None
    """The task that the node has now."""
    root_id: str | None
    """The outermost run that it is a part of: what is retried."""
    root_status: str | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", TaskStatus(self.status))

    @property
    def why_not_alone(self) -> str | None:
        """Why it cannot be retried by itself, and what to retry instead; None when it can."""
        if not (self.is_workflow_task or self.is_replaced):
            return None
        where = f"node {self.node_id!r} of workflow {self.root_id}" if self.root_id else "a workflow that is gone"
        if self.workflow_id != self.root_id:
            where += f" (in workflow {self.workflow_id} inside it)"
        if self.is_replaced:
            now = f"has task {self.node_task_id}" if self.node_task_id else "will have another one"
            told = f"it belongs to a workflow, as a former task of {where}: that node {now} since it was retried"
        else:
            told = f"it belongs to a workflow: retry that, it is {where}"
        if self.root_id is None:
            return told
        if self.root_status == WorkflowStatus.COMPLETED:
            return f"{told}; the workflow is COMPLETED, start a new run to repeat it"
        is_live = not WorkflowStatus(self.root_status or "").is_terminal
        node = f" --node {self.node_id}" if is_live and self.workflow_id == self.root_id else ""
        return f"{told}; `horsies workflows retry {self.root_id}{node}` runs again what failed in it"


class RetryResult(StrEnum):
    """What became of an operator's retry of one task."""

    RETRIED = "RETRIED"
    NOT_ENDED = "NOT_ENDED"
    """It waits or runs."""
    SUCCEEDED = "SUCCEEDED"
    """It is COMPLETED; there is nothing to repeat."""
    IN_WORKFLOW = "IN_WORKFLOW"
    """It is a node of a workflow, and is retried through that."""
    REPLACED = "REPLACED"
    """It was a node's task until its workflow was retried, and is not run again; retry the workflow."""
    KEY_TAKEN = "KEY_TAKEN"
    """Another live task has its unique key."""
    CHANGED = "CHANGED"
    """It moved while it was looked at; ask again."""
    NOT_FOUND = "NOT_FOUND"


@dataclass(frozen=True, slots=True)
class Heartbeat(_FromRow):
    """One sign of life for a task."""

    role: str
    sender_id: str
    hostname: str | None
    pid: int | None
    sent_at: datetime
    age: timedelta


@dataclass(frozen=True, slots=True)
class TaskDetail:
    """Everything about one task. For a role that may not see messages, arguments and results `payload` is None, and so
    are the task's `failed_reason` and `unique_key` and the messages of its attempts."""

    task: Mapping[str, Any]
    """The row, by column, without what `payload` has."""
    payload: Mapping[str, Any] | None
    """args, kwargs, result, progress and task_options as text, each cut, and each one's length as `<name>_chars`."""
    attempts: tuple[TaskAttempt, ...]
    heartbeats: tuple[Heartbeat, ...]
    """The newest few, newest first."""

    @classmethod
    def of(
        cls,
        task: Mapping[str, Any],
        private: Mapping[str, Any] | None,
        attempts: Iterable[Mapping[str, Any]],
        heartbeats: Iterable[Mapping[str, Any]],
    ) -> Self:
        """From the rows of `show_task`, `show_payload` (None: not for this role), `read_attempts` or `show_attempts`,
        and `show_heartbeats`."""
        payload = None if private is None else dict(private.items())
        told = {name: None if payload is None else payload.pop(name) for name in ("failed_reason", "unique_key")}
        return cls(
            {**dict(task.items()), **told},
            payload,
            tuple(TaskAttempt.from_row(row) for row in attempts),
            tuple(Heartbeat.from_row(row) for row in heartbeats),
        )


class WorkerLiveness(StrEnum):
    """What a worker's newest snapshot says of it."""

    ALIVE = "alive"
    LATE = "late"
    """It has missed a few snapshots: busy, cut off, or about to be judged."""
    DEAD = "dead"
    """Silent for long, or judged dead by another worker."""
    STOPPED = "stopped"
    """It said good-bye."""

    @property
    def is_there(self) -> bool:
        return self in (WorkerLiveness.ALIVE, WorkerLiveness.LATE)


@dataclass(frozen=True, slots=True)
class WorkerStatus(_FromRow):
    """A worker's newest snapshot, and what it says of the worker now."""

    worker_id: str
    snapshot_at: datetime
    age: timedelta
    hostname: str
    pid: int
    processes: int
    queues: list[str]
    tasks_running: int
    tasks_claimed: int
    memory_usage_mb: float | None
    children_memory_mb: float | None
    cpu_percent: float | None
    memory_percent: float | None
    max_claim_batch: int | None
    max_claim_per_worker: int | None
    cluster_wide_cap: int | None
    queue_max_concurrency: Mapping[str, Any]
    recovery_config: Mapping[str, Any]
    """As the worker was set; empty when it did not say."""
    worker_started_at: datetime
    up_for: timedelta
    stopped_at: datetime | None
    judged_dead_at: datetime | None
    judged_by: str | None
    liveness: WorkerLiveness
    holds_claimed: int
    """What the task table says it holds, which is the truth when it is dead."""
    holds_running: int

    def __post_init__(self) -> None:
        for name in ("queue_max_concurrency", "recovery_config"):
            object.__setattr__(self, name, _mapping(getattr(self, name)))

    def recovery(self, name: str) -> int | None:
        """One of its RecoveryConfig's numbers, as it told it."""
        value = self.recovery_config.get(name)
        return value if isinstance(value, int) else None


def _mapping(value: object) -> Mapping[str, Any]:
    """A jsonb column as asyncpg gives it; whatever else stands there is nothing."""
    if isinstance(value, str):
        import json

        value = json.loads(value)
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """One queue: what waits and runs in it. Counts stop at a bound; `is_bounded` says that there may be more."""

    name: str
    ready: int
    delayed: int
    claimed: int
    running: int
    is_bounded: bool
    oldest_ready: timedelta | None
    paused_at: datetime | None
    paused_for: timedelta | None
    served_by: int
    """Live workers that serve it."""


@dataclass(frozen=True, slots=True)
class ScheduleInfo(_FromRow):
    """The state of one schedule, whether or not the app at hand still has it."""

    schedule_name: str
    next_run_at: datetime | None
    """None: only by hand (it is not enabled), or no scheduler has seen it yet."""
    last_run_at: datetime | None
    last_task_id: str | None
    last_task_status: TaskStatus | None
    """None: never ran, or its task is gone already."""
    run_count: int
    paused_at: datetime | None
    run_requested_at: datetime | None
    """When a run was asked for that no scheduler has made yet."""
    updated_at: datetime
    """When a scheduler that lists it was last there."""
    overdue_by: timedelta | None
    """How long its slot has been due; None when it is not, or is paused."""
    unlisted_for: timedelta
    """The age of `updated_at`, on the database's clock."""
    scheduler_seen: timedelta
    """How long ago any scheduler was there."""

    def __post_init__(self) -> None:
        if self.last_task_status is not None:
            object.__setattr__(self, "last_task_status", TaskStatus(self.last_task_status))

    @property
    def state(self) -> ScheduleState:
        return schedule_state(self.next_run_at, self.paused_at, self.overdue_by, self.unlisted_for, self.scheduler_seen)
