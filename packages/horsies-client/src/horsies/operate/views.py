"""What operators see of tasks, attempts, workers, queues and schedules: plain frozen values."""

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, ClassVar, Self

from horsies._pg.rows import FromRow, json_object, json_value
from horsies.operate.filters import TaskCursor
from horsies.operate.schedule_state import ScheduleState, schedule_state, stored_state
from horsies.status import AttemptOutcome, TaskStatus, WorkflowStatus


@dataclass(frozen=True, slots=True)
class _Task(FromRow):
    """The fields of every view of a task."""

    CONVERTED: ClassVar = {"status": TaskStatus}

    id: str
    task_name: str
    queue_name: str
    status: TaskStatus


@dataclass(frozen=True, slots=True)
class TaskInfo(_Task):
    """One row of `horsies_tasks`, without arguments and result. Times are the database's."""

    CONVERTED: ClassVar = {"status": TaskStatus, "progress": json_value, "metadata": json_object}

    priority: int
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
    metadata: Mapping[str, Any] | None
    """Empty when it has none; None when this role may not read it."""
    is_workflow_task: bool
    group: str | None
    """The key of its group."""
    snoozes: int
    """How often it has snoozed."""
    crash_count: int
    """How often its process died, counted where its policy has `max_crashes`."""
    created_at: datetime
    updated_at: datetime
    keep_for: timedelta | None = None
    """How long it stays after its end; None: as long as the retention says."""


@dataclass(frozen=True, slots=True)
class TaskAttempt(FromRow):
    """One finished attempt."""

    CONVERTED: ClassVar = {"outcome": AttemptOutcome}

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


@dataclass(frozen=True, slots=True)
class StaleTask(_Task):
    """A claimed or running task whose worker has given no sign of life for too long."""

    claimed_by_worker_id: str | None
    worker_hostname: str | None
    worker_pid: int | None
    claimed_at: datetime | None
    started_at: datetime | None
    retry_count: int
    max_retries: int
    last_sign: datetime
    silence: timedelta
    """The age of the last sign of life, on the database's clock."""
    is_finalizing: bool
    """Its result is staged and not written yet."""
    is_workflow_task: bool
    held_for: timedelta
    """The time since its claim or its start."""


@dataclass(frozen=True, slots=True)
class ExpiredTask(_Task):
    """A task whose `good_until` passed before it started; it stays PENDING until a sweep ends it."""

    good_until: datetime
    enqueued_at: datetime
    terminal_at: datetime | None


@dataclass(frozen=True, slots=True)
class TaskSummary(_Task):
    """One line of a list of tasks."""

    priority: int
    since: datetime
    """When it entered its state; for a waiting task, when it is due."""
    age: timedelta
    """The age of `since` on the database's clock; negative for a task that is due later."""
    retry_count: int
    max_retries: int
    manual_retries: int
    claimed_by_worker_id: str | None
    worker_hostname: str | None
    error_code: str | None
    is_workflow_task: bool
    withdrawn: bool
    """Its workflow is paused: no worker claims it until the workflow is resumed."""
    terminal_at: datetime | None
    group: str | None


@dataclass(frozen=True, slots=True)
class TaskPage:
    """A page of tasks, and the cursor of the next page when there may be more."""

    tasks: tuple[TaskSummary, ...]
    next: TaskCursor | None


@dataclass(frozen=True, slots=True)
class TaskState(FromRow):
    """The facts that allow or forbid an action on a task."""

    CONVERTED: ClassVar = {"status": TaskStatus}

    id: str
    status: TaskStatus
    is_workflow_task: bool
    workflow_id: str | None
    workflow_is_live: bool
    """Its workflow, or a workflow around that, has not ended."""
    key_is_taken: bool
    """A live task holds the same unique key, so this one cannot be retried now."""
    is_replaced: bool
    """It was a node's task until its workflow was retried; the node gets another task."""
    node_id: str | None
    node_task_id: str | None
    """The node's current task."""
    root_id: str | None
    """The outermost run around it, which is the one to retry."""
    root_status: str | None
    error_code: str | None

    @property
    def why_not_alone(self) -> str | None:
        """Why it cannot be retried by itself, and what to retry instead; None when it can be."""
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
        if (retried := self.retried_run) is None:
            return f"{told}; the workflow is COMPLETED, start a new run to repeat it"
        return f"{told}; `horsies workflows retry {retried}` runs again what failed in it"

    @property
    def retried_run(self) -> str | None:
        """What `horsies workflows retry` needs to run it again; None when no run can do that."""
        if self.root_id is None or self.root_status is None:
            return None
        return retried_run(self.root_id, self.root_status, self.node_id if self.workflow_id == self.root_id else None)


def retried_run(root_id: str, root_status: str, node_id: str | None) -> str | None:
    """The arguments of `horsies workflows retry` for a failed node of an outermost run; `node_id` is None when the node
    is in a workflow inside it. A live run keeps what failed in it until it ends, unless its node is named. None when
    the run is COMPLETED, because then a failed node has done no harm."""
    status = WorkflowStatus(root_status)
    if status is WorkflowStatus.COMPLETED:
        return None
    return root_id if status.is_terminal or node_id is None else f"{root_id} --node {shlex.quote(node_id)}"


class RetryResult(StrEnum):
    """The outcome of an operator's retry of one task."""

    RETRIED = "RETRIED"
    NOT_ENDED = "NOT_ENDED"
    """It is waiting or running."""
    SUCCEEDED = "SUCCEEDED"
    """It is COMPLETED, so there is nothing to repeat."""
    IN_WORKFLOW = "IN_WORKFLOW"
    """It is a node of a workflow, which has to be retried instead."""
    REPLACED = "REPLACED"
    """It was a node's task until its workflow was retried; retry the workflow again."""
    KEY_TAKEN = "KEY_TAKEN"
    """Another live task holds its unique key."""
    NOT_QUARANTINED = "NOT_QUARANTINED"
    """`broker.quarantine.release` only: it has not ended with CRASH_LIMIT."""
    CHANGED = "CHANGED"
    """Its state changed during the retry; try again."""
    NOT_FOUND = "NOT_FOUND"


@dataclass(frozen=True, slots=True)
class Heartbeat(FromRow):
    """One heartbeat for a task."""

    role: str
    sender_id: str
    hostname: str | None
    pid: int | None
    sent_at: datetime
    age: timedelta


@dataclass(frozen=True, slots=True)
class TaskDetail:
    """Everything about one task. A role that may not read messages, arguments and results gets None for `payload`, for
    the task's `failed_reason`, `unique_key`, `unique_until` (the end of its `unique_for`) and `metadata`, and for the
    messages of its attempts."""

    task: Mapping[str, Any]
    """The row by column, without the columns in `payload`."""
    payload: Mapping[str, Any] | None
    """args, kwargs, result, progress and task_options as text, each cut, with its full length as `<name>_chars`."""
    attempts: tuple[TaskAttempt, ...]
    heartbeats: tuple[Heartbeat, ...]
    """The newest few, newest first."""

    @property
    def metadata(self) -> Mapping[str, Any] | None:
        """Empty when it has none; None when this role may not read it."""
        return self.task["metadata"]

    @property
    def group(self) -> str | None:
        return self.task["group"]

    @classmethod
    def of(
        cls,
        task: Mapping[str, Any],
        private: Mapping[str, Any] | None,
        attempts: Iterable[Mapping[str, Any]],
        heartbeats: Iterable[Mapping[str, Any]],
    ) -> Self:
        """Build it from the rows of `show_task`, `show_payload` (None for a role that may not read it), `read_attempts`
        or `show_attempts`, and `show_heartbeats`."""
        payload = None if private is None else dict(private.items())
        names = ("failed_reason", "unique_key", "unique_until", "metadata")
        told: dict[str, Any] = {name: None if payload is None else payload.pop(name) for name in names}
        if told["metadata"] is not None:
            told["metadata"] = json_object(told["metadata"])
        return cls(
            {**dict(task.items()), **told},
            payload,
            tuple(TaskAttempt.from_row(row) for row in attempts),
            tuple(Heartbeat.from_row(row) for row in heartbeats),
        )


class WorkerLiveness(StrEnum):
    """Whether a worker is running, judged by its newest snapshot."""

    ALIVE = "alive"
    LATE = "late"
    """It has missed a few snapshots: it is busy, disconnected, or dead."""
    DEAD = "dead"
    """It has been silent for long, or another worker declared it dead."""
    STOPPED = "stopped"
    """It has shut down."""

    @property
    def is_there(self) -> bool:
        return self in (WorkerLiveness.ALIVE, WorkerLiveness.LATE)


@dataclass(frozen=True, slots=True)
class WorkerStats(FromRow):
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
class WorkerStatus(WorkerStats):
    """A worker's newest snapshot, whether it is running, and the tasks that it holds."""

    CONVERTED: ClassVar = {"queue_max_concurrency": json_object, "recovery_config": json_object}

    age: timedelta
    max_claim_batch: int | None
    max_claim_per_worker: int | None
    cluster_wide_cap: int | None
    queue_max_concurrency: Mapping[str, Any]
    recovery_config: Mapping[str, Any]
    """The worker's RecoveryConfig; empty when the worker did not report it."""
    up_for: timedelta
    stopped_at: datetime | None
    judged_dead_at: datetime | None
    judged_by: str | None
    liveness: WorkerLiveness
    holds_claimed: int
    """Counted in the task table, which stays true when the worker is dead."""
    holds_running: int
    state: str | None = None
    """`RUNNING`, `DRAINING` or `DRAINED`, as the worker wrote it; None for a worker of an older release."""
    reached_at: datetime | None = None
    """The `wanted_at` of the last wish that the worker has carried out completely."""
    wanted_state: str | None = None
    wanted_processes: int | None = None
    wanted_at: datetime | None = None
    """When an operator last asked it to drain, to resume or to change its size."""
    wanted_by: str | None = None

    @property
    def standing(self) -> str:
        """Its liveness in one word; `draining` or `drained` for a live worker that claims nothing."""
        if self.liveness is WorkerLiveness.ALIVE and self.state in ("DRAINING", "DRAINED"):
            return self.state.lower()
        return str(self.liveness)

    @property
    def is_claiming(self) -> bool:
        """It is alive or late, and was not drained."""
        return self.liveness.is_there and self.state not in ("DRAINING", "DRAINED")

    def recovery(self, name: str) -> int | None:
        """One number of its RecoveryConfig, as it reported it."""
        value = self.recovery_config.get(name)
        return value if isinstance(value, int) else None


@dataclass(frozen=True, slots=True)
class QueueStatus:
    """The tasks of one queue. Counting stops at a bound; `is_bounded` says that there may be more."""

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
    """The number of live workers that serve it."""
    grouped: int = 0
    """How many of its waiting tasks, ready or delayed, have a group."""


@dataclass(frozen=True, slots=True)
class ScheduleInfo(FromRow):
    """The state of one schedule, even if no app has it any more."""

    CONVERTED: ClassVar = {"last_task_status": TaskStatus, "last_workflow_status": WorkflowStatus}

    schedule_name: str
    next_run_at: datetime | None
    """None when it is not enabled and runs only by hand, or when no scheduler has served it yet."""
    last_run_at: datetime | None
    last_task_id: str | None
    last_task_status: TaskStatus | None
    """None when it never ran, its task was deleted, or it starts a workflow."""
    last_workflow_status: WorkflowStatus | None
    """The status of its last run, whose id is `last_task_id`, when it starts a workflow."""
    run_count: int
    paused_at: datetime | None
    run_requested_at: datetime | None
    """When an operator requested a run that no scheduler has started yet."""
    updated_at: datetime
    """When a scheduler last listed it."""
    overdue_by: timedelta | None
    """How long its slot has been due; None when it is not due, or is paused."""
    unlisted_for: timedelta
    """The age of `updated_at`, on the database's clock."""
    scheduler_seen: timedelta | None
    """How long ago any scheduler was running; None when there never was one."""
    is_data: bool
    """It was made at run time (`app.schedules`); otherwise it is in an app's code."""
    is_enabled: bool | None
    """None for a schedule in code: the code decides."""
    is_known: bool | None
    """A running scheduler knows the task of a schedule that was made at run time; None for one in code."""
    problem_at: datetime | None
    """When a scheduler found that it cannot run; `broker.schedules.problem(name)` says why."""

    @property
    def state(self) -> ScheduleState:
        if self.is_data:
            return stored_state(
                self.paused_at, self.overdue_by, self.scheduler_seen, is_enabled=self.is_enabled is not False,
                is_known=self.is_known is True, is_broken=self.problem_at is not None,
            )  # fmt: skip
        return schedule_state(self.next_run_at, self.paused_at, self.overdue_by, self.unlisted_for, self.scheduler_seen)


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """What the last read found."""

    lag: timedelta | None
    """How old the rows of the replica were; None before the first answer, and while it is away."""
    away: str | None
    """Why the primary answered instead."""

    @property
    def is_worth_telling(self) -> bool:
        """Whether what was read may surprise a reader who knows nothing of the replica."""
        return self.away is not None or (self.lag is not None and self.lag >= timedelta(seconds=1))

    @property
    def told(self) -> str:
        """One line for people; empty before the first read."""
        if self.away is not None:
            return f"replica away, read from the primary: {self.away}"
        if self.lag is None:
            return ""
        return f"replica, {self.lag.total_seconds():.1f} s behind"
