"""What the screens show: frozen values, with times as ages on the database's clock.

The views of tasks, workers, queues, schedules and findings are the client's (`horsies.operate.views`), and are extended
here where a screen shows more.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import ClassVar, Final, Generic, Self, TypeVar

from horsies._pg.rows import FromRow
from horsies.operate.doctor import Finding, Severity
from horsies.operate.groups import QueueGroups
from horsies.operate.policies import QueuePolicy, SharedLimit
from horsies.operate.schedule_views import ScheduleRun, StoredSchedule
from horsies.operate.stale import Verdict
from horsies.operate.views import QueueStatus, ScheduleInfo, StaleTask, TaskSummary, WorkerStatus
from horsies.status import TaskStatus, WorkflowStatus
from horsies.workflow.info import WorkflowInfo, WorkflowNodeInfo

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Rights:
    """The rights of the role behind the connection; an action without its right is not offered."""

    sees_arguments: bool = True
    may_cancel: bool = True
    may_retry: bool = True
    may_purge: bool = True
    may_requeue: bool = True
    may_fail: bool = True
    may_pause_queue: bool = True
    may_set_policy: bool = True
    may_pause_workflow: bool = True
    may_signal: bool = True
    may_run_schedule: bool = True
    may_remove_schedule: bool = True
    may_control_worker: bool = True

    @classmethod
    def none(cls) -> Self:
        return cls(**{field.name: False for field in fields(cls)})

    def has(self, name: str) -> bool:
        return bool(getattr(self, name))


@dataclass(frozen=True, slots=True)
class Session:
    """The database, and the role that is connected to it."""

    database: str
    role: str
    rights: Rights


@dataclass(frozen=True, slots=True)
class Count:
    """A number of tasks. Where counting would read too many rows, it is an estimate or a lower bound."""

    value: int
    is_estimate: bool = False
    is_least: bool = False


@dataclass(frozen=True, slots=True)
class Rate:
    """One rate per second: for each slot, the newest last, and for the newest moments."""

    curve: tuple[float, ...]
    counted_s: float = 0.0
    """How far back the slots are counted; older slots are 0 until a later refresh counts them."""
    now: float = 0.0
    span_s: float = 60.0
    """The time up to now that `now` covers."""


@dataclass(frozen=True, slots=True)
class Series:
    """The rates of a window, and the waits in seconds, which are counted as far back as the failures."""

    slot_s: float
    sent: Rate
    done: Rate
    failed: Rate
    wait_p95: tuple[float, ...]
    wait_p50_now: float = 0.0
    wait_p95_now: float = 0.0


@dataclass(frozen=True, slots=True)
class Ends:
    """The number of tasks that ended lately, and of those that failed."""

    tasks: int
    failed: int
    span: timedelta


@dataclass(frozen=True, slots=True)
class Alert:
    """A problem that an operator should look at, and the screen that shows it."""

    level: Severity
    text: str
    screen: str
    filter: str = ""
    """The filter of that screen, as it is typed."""


@dataclass(frozen=True, slots=True)
class Failing(FromRow):
    """A task and an error code among the newest failures of the window: how often, and when last."""

    task_name: str
    error_code: str
    tasks: int
    age: timedelta
    is_least: bool = False
    """There may be more, because only the newest failures were read."""


@dataclass(frozen=True, slots=True)
class QueueDetail:
    """The policy of one queue, its groups with the most waiting tasks, and all shared limits."""

    policy: QueuePolicy
    groups: QueueGroups
    limits: tuple[SharedLimit, ...]


@dataclass(frozen=True, slots=True)
class Overview:
    counts: Mapping[TaskStatus, Count]
    queues: tuple[QueueStatus, ...]
    workers: tuple[WorkerStatus, ...]
    series: Series
    alerts: tuple[Alert, ...]
    failing: tuple[Failing, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """The end of a page, in the order of its section."""

    section: str
    """`held`, `waiting` or `ended`."""
    id: str
    at: datetime
    queue_name: str = ""
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Page(Generic[R]):
    """A part of a list, and where the next one begins."""

    rows: tuple[R, ...]
    next: Place | None = None
    looked: int | None = None
    """How many rows were read, when the search stopped before the page was full."""


@dataclass(frozen=True, slots=True)
class TaskList(Page[TaskSummary]):
    more_waiting: bool = False
    """Ended tasks follow the waiting ones, though more tasks are waiting."""
    more_held: bool = False
    """The same for the tasks that workers hold."""


@dataclass(frozen=True, slots=True)
class Facet:
    """A value to narrow a list to, and the number of tasks in the list that have it."""

    field: str
    """The field of the filter: `queue`, `name` or `worker`."""
    value: str
    host: str | None
    """The host of a worker."""
    count: Count
    is_asked: bool
    """The list is already narrowed to it."""


@dataclass(frozen=True, slots=True)
class Breakdown:
    """The tasks of a list by state, queue, name and worker."""

    statuses: Mapping[TaskStatus, Count]
    facets: tuple[Facet, ...]


def worker_name(worker: WorkerStatus) -> str:
    """A name that people recognise; the id is a UUID."""
    return f"{worker.hostname}:{worker.pid}"


@dataclass(frozen=True, slots=True)
class WorkerLine:
    """One worker in the list, with its processor load in the last snapshots."""

    status: WorkerStatus
    cpu: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class WorkerMoment(FromRow):
    """One snapshot of a worker's past."""

    snapshot_at: datetime
    tasks_running: int
    memory_mb: float
    """Children included."""
    cpu_percent: float | None


@dataclass(frozen=True, slots=True)
class WorkerAttempt(FromRow):
    """An attempt that a worker finished."""

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
    holds: tuple[TaskSummary, ...]
    finished: tuple[WorkerAttempt, ...]


@dataclass(frozen=True, slots=True)
class StaleRow:
    """A stale task, why it is stale, and a name for its worker."""

    task: StaleTask
    verdict: Verdict
    worker_name: str


@dataclass(frozen=True, slots=True)
class LostAttempt(FromRow):
    """A task that a dead worker was running and that was recovered since."""

    CONVERTED: ClassVar = {"status": TaskStatus}

    worker_id: str
    task_id: str
    task_name: str
    status: TaskStatus
    age: timedelta
    failed_reason: str | None


@dataclass(frozen=True, slots=True)
class Stale:
    tasks: tuple[StaleRow, ...]
    dead: tuple[WorkerStatus, ...]
    lost: tuple[LostAttempt, ...]
    is_cut: bool
    lost_is_cut: bool = False


NODES_COUNTED: Final = 5_000
"""The number of nodes of a run at which the statements stop counting."""


@dataclass(frozen=True, slots=True)
class WorkflowRow(WorkflowInfo):
    """A run with its progress."""

    age: timedelta
    """How long it has been in progress, or how long ago it ended."""
    took: timedelta | None
    nodes: int
    ended: int
    failed: int

    @property
    def progress(self) -> str:
        """`3/7`, with a `+` when the run has more nodes than were counted."""
        return f"{self.ended:,}/{self.nodes:,}{'+' if self.nodes >= NODES_COUNTED else ''}"

    @property
    def now(self) -> datetime:
        """The database's time when the row was read."""
        return (self.completed_at or self.started_at or self.created_at) + self.age


@dataclass(frozen=True, slots=True)
class WorkflowList(Page[WorkflowRow]):
    counts: Mapping[WorkflowStatus, Count] = field(default_factory=dict[WorkflowStatus, Count])
    """The runs that match the filter in each state, also in states that it does not select."""


@dataclass(frozen=True, slots=True)
class WorkflowNode(WorkflowNodeInfo):
    """A node with its error."""

    error_code: str | None = None
    error_message: str | None = None
    took: timedelta | None = None


@dataclass(frozen=True, slots=True)
class WorkflowDetail:
    run: WorkflowRow
    nodes: tuple[WorkflowNode, ...]
    error: str | None = None
    """Why the run failed or is paused, in one line: the node, its error code and its message."""

    @property
    def names(self) -> dict[int, str]:
        """The names of the nodes by their index."""
        return {node.task_index: node.node_id for node in self.nodes}


@dataclass(frozen=True, slots=True)
class ScheduleRow(ScheduleInfo):
    """A schedule with its last run."""

    due_in: timedelta | None
    last_age: timedelta | None
    last_status: str | None
    """The state of the last run's task or workflow."""
    is_workflow: bool
    drift: timedelta | None
    """How long after its slot the last run was enqueued."""

    @property
    def target_state(self) -> str:
        """Its state for actions: one that was made at run time can be removed as well."""
        return ("data " if self.is_data else "") + ("paused" if self.paused_at else "active")


@dataclass(frozen=True, slots=True)
class ScheduleDetail:
    row: ScheduleRow
    stored: StoredSchedule | None
    """What it is, if it was made at run time."""
    problem: str | None
    history: tuple[ScheduleRun, ...]

    @property
    def is_workflow(self) -> bool:
        return self.row.is_workflow or (self.stored is not None and self.stored.workflow is not None)


@dataclass(frozen=True, slots=True)
class TableFacts(FromRow):
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
