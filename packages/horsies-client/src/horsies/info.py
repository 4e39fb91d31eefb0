"""What the database knows of a task, an attempt, a stale task, a worker: plain frozen values for people and tools."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any, Self

from horsies.status import AttemptOutcome, TaskStatus


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
