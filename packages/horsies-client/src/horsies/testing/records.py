"""What a test finds in `Sends`: the tasks that were sent, the runs that were started, how they ended, and the
signals to runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from horsies._text import short
from horsies.errors import UsageError
from horsies.handle import TaskHandle
from horsies.result import TaskError, TaskResult
from horsies.status import NodeStatus, TaskStatus, WorkflowStatus

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a task in inline mode."""

    number: int
    """From 1."""
    result: TaskResult[Any, TaskError]
    exception: BaseException | None
    """What the task raised; None when it returned."""
    retry_delay: timedelta | None
    """How long a worker would wait before the next attempt, which inline mode makes at once; None for the last one."""


@dataclass(slots=True, eq=False)
class SentTask:
    """A task that was sent."""

    id: str
    task_name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    """The arguments as the task gets them: encoded, stored, and decoded by its annotations. For a task that this app
    does not know, plain JSON data."""
    arguments: Mapping[str, Any]
    """The same by parameter, with the defaults of the parameters that were left out."""
    queue_name: str
    priority: int
    delay: timedelta | None
    eta: datetime | None
    good_until: datetime | timedelta | None
    unique_key: str | None
    metadata: Mapping[str, Any]
    group: str | None = None
    """Of the send, or of the task's `group_by`; for the task of a node, of the node or its run."""
    store_result: bool = True
    """False: a handle gets no value, but RESULT_NOT_AVAILABLE."""
    keep_for: timedelta | None = None
    workflow_id: str | None = None
    node_id: str | None = None
    """The run and the node of a workflow's task, in inline mode."""
    status: TaskStatus = TaskStatus.PENDING
    result: TaskResult[Any, TaskError] | None = None
    """Inline mode: what the task ended with; also a value that is not stored."""
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    """Inline mode: every attempt, first to last."""
    snoozes: list[timedelta] = field(default_factory=list[timedelta])
    """Inline mode: the delay of every `snooze` that the task returned; inline mode runs it again at once."""

    def __str__(self) -> str:
        return f"{self.task_name}({listed(self.arguments)})"


@dataclass(slots=True, eq=False)
class StartedWorkflow:
    """A run of a workflow that was started."""

    id: str
    name: str
    metadata: Mapping[str, Any]
    node_ids: tuple[str, ...]
    group: str | None = None
    priority: int | None = None
    unique_key: str | None = None
    start_at: datetime | timedelta | None = None
    """As it was given. Inline mode starts the run at once."""
    deadline: datetime | timedelta | None = None
    """As it was given; a timedelta counts from the start."""
    status: WorkflowStatus = WorkflowStatus.RUNNING
    nodes: Mapping[str, NodeStatus] = field(default_factory=dict[str, NodeStatus])
    """Inline mode: the state of each node of the run. `handle.results()` has the results of those that have ended."""
    sleeps: dict[str, timedelta] = field(default_factory=dict[str, timedelta])
    """Inline mode: how long each `sleep` is, from the moment at which it began; inside a workflow by its path
    (`"inner/nap"`)."""
    error: TaskError | None = None
    """Inline mode: why the run failed or is paused."""

    def __str__(self) -> str:
        return f"workflow {self.name}"


@dataclass(frozen=True, slots=True, eq=False)
class SentSignal:
    """A signal that was sent to a run."""

    id: str
    workflow_id: str
    name: str
    value: Any
    """Plain JSON data, as it is stored."""
    path: str | None = None
    """Of the workflow inside the run that it was sent to."""

    def __str__(self) -> str:
        return f"signal {self.name!r} with {told(self.value)}"


@dataclass(slots=True)
class DrainReport:
    """What one `drain` of a `TestDatabase` did."""

    attempts: int = 0
    completed: int = 0
    failed: int = 0
    """Tasks that ended without completing; expired ones included."""
    retried: int = 0
    """Attempts after which the task waits for its next one."""
    snoozed: int = 0
    """Runs after which the task waits, because it returned `snooze`. They are not among `attempts`."""
    crashed: int = 0
    """Attempts that `crash_at` has killed; they are among `attempts`."""
    results: dict[str, TaskResult[Any, TaskError]] = field(default_factory=dict[str, TaskResult[Any, TaskError]])
    """What each task that ended has ended with, by its id; also a value that is not stored."""

    def result(self, handle: TaskHandle[T]) -> TaskResult[T, TaskError]:
        """What the task of this handle ended with. For a test inside its own transaction: `handle.get()` asks on
        another connection, which does not see it."""
        try:
            return self.results[handle.task_id]
        except KeyError:
            raise UsageError(
                f"task {handle.task_id} did not end in this drain: it waits for a retry or a delay, it is in another "
                "queue, or it ended before"
            ) from None


def listed(arguments: Mapping[str, Any]) -> str:
    """Arguments for a message: `to='a@b.example', copies=2`."""
    return ", ".join(f"{name}={told(value)}" for name, value in arguments.items())


def told(value: object) -> str:
    try:
        return short(repr(value), 200)
    except Exception:  # a __repr__ of user code
        return f"<{type(value).__name__} without a repr>"
