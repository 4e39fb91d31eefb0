"""What the screens show: frozen values, times as ages on the database's clock.

Values that the client already has (`WorkerStatus`, `QueueStatus`, `TaskDetail`, `Finding`) are used as they are.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Self

from horsies.doctor import Finding
from horsies.info import QueueStatus, WorkerStatus
from horsies.schedule_state import ScheduleState, schedule_state
from horsies.stale import StaleKind
from horsies.status import NodeStatus, TaskStatus, WorkflowStatus


class _FromRow:
    """Built from a row by column name."""

    __slots__ = ()

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Self:
        return cls(**{field.name: row[field.name] for field in fields(cls)})  # pyright: ignore[reportArgumentType]


@dataclass(frozen=True, slots=True)
class Rights:
    """What the role behind the connection may do; an action without its right is not offered."""

    sees_arguments: bool = True
    may_cancel: bool = True
    may_retry: bool = True
    may_requeue: bool = True
    may_fail: bool = True
    may_pause_queue: bool = True
    may_pause_workflow: bool = True
    may_run_schedule: bool = True

    @classmethod
    def none(cls) -> Self:
        return cls(**{field.name: False for field in fields(cls)})

    def has(self, name: str) -> bool:
        return bool(getattr(self, name))


@dataclass(frozen=True, slots=True)
class Session:
    """Where we are connected, as whom."""

    database: str
    role: str
    version: str
    rights: Rights


@dataclass(frozen=True, slots=True)
class Count:
    """A number of tasks. Where counting would read too much it is an estimate, or what was seen before it stopped."""

    value: int
    is_estimate: bool = False
    is_least: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """Rates per second and waits in seconds, slot by slot, the newest last; and the same of the newest moments."""

    slot_s: float
    sent: tuple[float, ...]
    done: tuple[float, ...]
    failed: tuple[float, ...]
    wait_p50: tuple[float, ...]
    wait_p95: tuple[float, ...]
    sent_counted_s: float = 0.0
    """How far back the slots of `sent` are counted; those before that are 0 until a later look has counted them."""
    done_counted_s: float = 0.0
    failed_counted_s: float = 0.0
    """Of failures and waits."""
    sent_span_s: float = 60.0
    """The time up to now that `sent_now` covers."""
    done_span_s: float = 60.0
    failed_span_s: float = 60.0
    sent_now: float = 0.0
    done_now: float = 0.0
    failed_now: float = 0.0
    wait_p50_now: float = 0.0
    wait_p95_now: float = 0.0


@dataclass(frozen=True, slots=True)
class Ends:
    """What ended of late, and how much of it failed."""

    tasks: int
    failed: int
    span: timedelta


class AlertLevel(StrEnum):
    PROBLEM = "problem"
    WARN = "warn"


@dataclass(frozen=True, slots=True)
class Alert:
    """Something that an operator should look at, and on which screen."""

    level: AlertLevel
    text: str
    screen: str
    filter: str = ""
    """Of that screen, as it is typed."""


@dataclass(frozen=True, slots=True)
class Failing(_FromRow):
    """What fails, how often among the newest failures of the window, and when last."""

    task_name: str
    error_code: str
    tasks: int
    age: timedelta
    is_least: bool = False
    """There may be more: only the newest failures were looked at."""


@dataclass(frozen=True, slots=True)
class Overview:
    counts: Mapping[TaskStatus, Count]
    queues: tuple[QueueStatus, ...]
    workers: tuple[WorkerStatus, ...]
    series: Series
    alerts: tuple[Alert, ...]
    failing: tuple[Failing, ...]


@dataclass(frozen=True, slots=True)
class TaskRow(_FromRow):
    """One line of a list of tasks."""

    id: str
    task_name: str
    queue_name: str
    priority: int
    status: TaskStatus
    since: datetime
    age: timedelta
    """How long in its state; of a waiting task, how long due (negative: due later)."""
    retry_count: int
    max_retries: int
    claimed_by_worker_id: str | None
    error_code: str | None
    is_workflow_task: bool
    enqueued_at: datetime
    terminal_at: datetime | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", TaskStatus(self.status))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a page ended, in the order of its section."""

    section: str
    """`held`, `waiting` or `ended`."""
    id: str
    at: datetime
    queue_name: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class TaskList:
    """A page of tasks. `looked` is set when the search ended before the page was full."""

    rows: tuple[TaskRow, ...]
    next: Place | None = None
    looked: int | None = None
    more_waiting: bool = False
    """Not all waiting tasks are on this page, though others follow them."""
    more_held: bool = False
    """Likewise of what workers hold."""


@dataclass(frozen=True, slots=True)
class Facet:
    """A value that a list can be narrowed to, and how many of its tasks have it."""

    field: str
    """As the filter calls it: `queue`, `name`, `worker`."""
    value: str
    host: str | None
    """Of a worker."""
    count: Count
    is_asked: bool
    """The list is narrowed to it already."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """How the tasks of a list divide."""

    statuses: Mapping[TaskStatus, Count]
    facets: tuple[Facet, ...]


def worker_name(worker: WorkerStatus) -> str:
    """For people: an id is a UUID, and says nothing to anybody."""
    return f"{worker.hostname}:{worker.pid}"


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """One worker in the list: its newest snapshot, and processor load over the last few."""

    status: WorkerStatus
    cpu: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class WorkerMoment(_FromRow):
    """One snapshot of a worker's past."""

    snapshot_at: datetime
    tasks_running: int
    tasks_claimed: int
    memory_usage_mb: float | None
    children_memory_mb: float | None
    cpu_percent: float | None


@dataclass(frozen=True, slots=True)
class WorkerAttempt(_FromRow):
    """Something that a worker finished."""

    task_id: str
    task_name: str
    outcome: str
    error_code: str | None
    age: timedelta
    took: timedelta


@dataclass(frozen=True, slots=True)
class WorkerDetail:
    status: WorkerStatus
    history: tuple[WorkerMoment, ...]
    """The oldest first."""
    holds: tuple[TaskRow, ...]
    finished: tuple[WorkerAttempt, ...]


@dataclass(frozen=True, slots=True)
class StaleTask:
    """A task that nobody has vouched for beyond its worker's own threshold, or that a dead worker holds."""

    id: str
    task_name: str
    queue_name: str
    status: TaskStatus
    kind: StaleKind
    worker_id: str | None
    worker_name: str | None
    retry_count: int
    max_retries: int
    held_for: timedelta
    silence: timedelta
    threshold: timedelta
    guard: timedelta
    """The silence that an action demands to find again."""
    worker_is_dead: bool
    in_workflow: bool

    @property
    def is_over(self) -> bool:
        """Beyond the threshold; otherwise it is here for its worker's sake."""
        return self.silence > self.threshold


@dataclass(frozen=True, slots=True)
class LostAttempt(_FromRow):
    """What a dead worker was running, recovered since."""

    worker_id: str
    task_id: str
    task_name: str
    queue_name: str
    status: TaskStatus
    will_retry: bool
    age: timedelta
    failed_reason: str | None

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", TaskStatus(self.status))


@dataclass(frozen=True, slots=True)
class Stale:
    tasks: tuple[StaleTask, ...]
    dead: tuple[WorkerStatus, ...]
    lost: tuple[LostAttempt, ...]
    is_cut: bool
    lost_is_cut: bool = False


NODES_COUNTED: Final = 5_000
"""Of a run; the statements stop counting there."""


@dataclass(frozen=True, slots=True)
class WorkflowRow(_FromRow):
    id: str
    name: str
    status: WorkflowStatus
    on_error: str
    parent_workflow_id: str | None
    completed_at: datetime | None
    age: timedelta
    took: timedelta | None
    nodes: int
    ended: int
    failed: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", WorkflowStatus(self.status))

    @property
    def progress(self) -> str:
        """`3/7`; `+` where there are more nodes than were counted."""
        return f"{self.ended:,}/{self.nodes:,}{'+' if self.nodes >= NODES_COUNTED else ''}"


@dataclass(frozen=True, slots=True)
class WorkflowList:
    rows: tuple[WorkflowRow, ...]
    next: Place | None = None
    looked: int | None = None
    counts: Mapping[WorkflowStatus, Count] = field(default_factory=dict[WorkflowStatus, Count])
    """Of all that the filter means, whichever states it asks for."""


@dataclass(frozen=True, slots=True)
class WorkflowNode(_FromRow):
    task_index: int
    node_id: str
    task_name: str
    queue_name: str
    dependencies: list[int]
    join_type: str
    is_subworkflow: bool
    sub_workflow_id: str | None
    task_id: str | None
    status: NodeStatus
    error_code: str | None
    took: timedelta | None
    error_message: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "status", NodeStatus(self.status))


@dataclass(frozen=True, slots=True)
class WorkflowDetail:
    run: WorkflowRow
    nodes: tuple[WorkflowNode, ...]
    error: str | None = None
    """Why the run failed or is paused, in one line: which node, its code and its message."""


@dataclass(frozen=True, slots=True)
class ScheduleRow(_FromRow):
    schedule_name: str
    next_run_at: datetime | None
    last_run_at: datetime | None
    last_task_id: str | None
    run_count: int
    paused_at: datetime | None
    run_requested_at: datetime | None
    due_in: timedelta | None
    last_age: timedelta | None
    late: timedelta | None
    last_status: str | None
    last_name: str | None
    is_workflow: bool
    drift: timedelta | None
    unlisted_for: timedelta
    scheduler_seen: timedelta

    @property
    def state(self) -> ScheduleState:
        return schedule_state(self.next_run_at, self.paused_at, self.late, self.unlisted_for, self.scheduler_seen)


@dataclass(frozen=True, slots=True)
class TableFacts(_FromRow):
    name: str
    table_bytes: int
    index_bytes: int
    rows: float
    dead: int | None
    vacuumed: timedelta | None
    analyzed: timedelta | None


@dataclass(frozen=True, slots=True)
class Maintenance:
    findings: tuple[Finding, ...]
    tables: tuple[TableFacts, ...]
