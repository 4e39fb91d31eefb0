"""Events of a worker, for `app.on_event`. Its own logs and metrics are made from the same events.

A worker creates them in its parent process, so that they also tell of child processes that crash. Times are in seconds.
`docs/reference/events.md` is generated from the docstrings here (`just reference`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

ExitReason = Literal["requested", "killed", "crashed", "start_failed"]
RecoveryAction = Literal["requeued", "ended", "expired"]
DropReason = Literal["claim_lost", "refused"]
FailureKind = Literal["error", "timeout", "cancelled", "crashed", "interrupted"]


@dataclass(frozen=True, slots=True)
class Event:
    """The base of all events. A handler of this class gets every event."""


# -- the worker ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerStarted(Event):
    """The worker is up and claims tasks."""

    worker_id: str
    hostname: str
    pid: int
    queues: Sequence[str]
    processes: int
    """Child processes."""


@dataclass(frozen=True, slots=True)
class WorkerDraining(Event):
    """An operator wants the worker to claim no more tasks; those that run go on."""

    worker_id: str
    requested_by: str | None
    """Who asked, as the request says."""


@dataclass(frozen=True, slots=True)
class WorkerDrained(Event):
    """The worker has no task any more, and claims none until it is resumed."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class WorkerResumed(Event):
    """The worker claims tasks again."""

    worker_id: str
    requested_by: str | None
    """Who asked, as the request says."""


@dataclass(frozen=True, slots=True)
class WorkerResized(Event):
    """An operator has changed the number of child processes. Further ones start now; those that are too many leave when
    they have no task."""

    worker_id: str
    processes: int
    """Child processes from now on."""
    before: int
    """Child processes until now."""
    requested_by: str | None
    """Who asked, as the request says."""


@dataclass(frozen=True, slots=True)
class WorkerStopping(Event):
    """The worker claims no more tasks."""

    worker_id: str
    drain_s: float
    """How long running tasks have to end."""


@dataclass(frozen=True, slots=True)
class WorkerStopped(Event):
    """The worker has stopped. The last event of a worker that is not killed."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class DatabaseLost(Event):
    """A session of the worker lost its connection, or could not open one."""

    session: str
    """What it is for: `claim`, `heartbeat`, `finalize`, `reaper`, `pruner`, `scheduler`, `workflows`."""
    reason: str
    """The error, without the password."""


@dataclass(frozen=True, slots=True)
class DatabaseRegained(Event):
    """That session has a connection again, or needs none any more and the others have one."""

    session: str
    """As for `DatabaseLost`."""
    outage_s: float


# -- tasks ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TasksClaimed(Event):
    """One claim took tasks."""

    count: int


@dataclass(frozen=True, slots=True)
class AttemptStarted(Event):
    """A task goes to a child process. A very short one may come back unstarted, when the task before it takes long, and
    go to another (`TasksReturned` tells when it goes back to the queue)."""

    task_id: str
    task_name: str
    queue_name: str
    attempt: int
    wait_s: float
    """How long the task could have started before."""


@dataclass(frozen=True, slots=True)
class AttemptSucceeded(Event):
    """An attempt returned an ok result."""

    task_id: str
    task_name: str
    queue_name: str
    attempt: int
    duration_s: float
    wait_s: float
    """From when the task could have started to when user code began."""
    metadata: str | None
    """The task's metadata as JSON."""
    pid: int | None
    """The child process."""


@dataclass(frozen=True, slots=True)
class AttemptFailed(Event):
    """An attempt ended in any other way."""

    task_id: str
    task_name: str
    queue_name: str
    attempt: int
    kind: FailureKind
    """`error`: the task returned an err, raised, or could not be called. `crashed`: the child process died.
    `interrupted`: the worker stopped before the task had ended."""
    error_code: str | None
    message: str | None
    """At most a few thousand characters."""
    traceback: str | None
    """Of an exception; None for an err that the task returned."""
    will_retry: bool
    """The worker's decision. The row may still change it: a cancelled or expired task is not retried,
    nor one in quarantine (`TaskQuarantined`)."""
    retry_delay_s: float
    duration_s: float | None
    """None: user code never began."""
    wait_s: float | None
    """As for `AttemptSucceeded`."""
    metadata: str | None
    """The task's metadata as JSON."""
    pid: int | None
    """The child process; None when the task never reached one."""


@dataclass(frozen=True, slots=True)
class AttemptSnoozed(Event):
    """A task returned `snooze`: it runs again later, and this is neither a failure nor an attempt."""

    task_id: str
    task_name: str
    queue_name: str
    attempt: int
    """The number that its next run has again."""
    snoozes: int
    """How often it has snoozed, this time included."""
    delay_s: float
    """After which it runs again."""
    duration_s: float
    wait_s: float
    """As for `AttemptSucceeded`."""
    metadata: str | None
    """The task's metadata as JSON."""
    pid: int | None
    """The child process."""


@dataclass(frozen=True, slots=True)
class TaskQuarantined(Event):
    """A task has crashed as often as the `max_crashes` of its policy allows: it ended FAILED with CRASH_LIMIT, and an
    operator decides (`horsies quarantine`)."""

    task_id: str
    attempt: int
    crashes: int
    """How often its process has died."""
    reason: str
    """How its process died the last time."""


@dataclass(frozen=True, slots=True)
class TasksReturned(Event):
    """Claimed tasks that never started go back to the queue."""

    count: int


@dataclass(frozen=True, slots=True)
class ResultDropped(Event):
    """The result of an attempt is not written. An attempt that was stopped because its claim is lost has no other end;
    one that had ended was told of before (`AttemptSucceeded`, `AttemptFailed`)."""

    task_id: str
    attempt: int
    reason: DropReason
    """`claim_lost`: another worker owns the task by now, or may own it after an outage. `refused`: by the database."""


@dataclass(frozen=True, slots=True)
class TaskRecovered(Event):
    """This worker took a task from a worker that is dead or silent, or ended one that had expired."""

    task_id: str
    action: RecoveryAction
    """`requeued`: it had not started. `ended`: its attempt ended as a crash, or with the result that its worker could
    not write any more; it may be retried. `expired`: its `good_until` passed before it could start."""


# -- child processes -----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChildStarted(Event):
    """A child process is ready for tasks."""

    name: str
    pid: int


@dataclass(frozen=True, slots=True)
class ChildExited(Event):
    """A child process has ended."""

    name: str
    pid: int
    reason: ExitReason
    """`requested`: it was replaced, or the worker stops. `killed`: the worker killed it. `crashed`: it died by itself,
    or was killed because it had broken its connection to the worker. `start_failed`: it was never ready."""
    description: str
    """How it ended: its signal or exit code, and whether memory is the likely cause."""
    tasks: int
    """How many tasks it was running."""


# -- the cluster ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WorkerDeclaredDead(Event):
    """This worker found another one dead; its tasks are recovered."""

    worker_id: str


@dataclass(frozen=True, slots=True)
class RowsPruned(Event):
    """Old rows were deleted."""

    table: str
    """Which ones: `tasks`, `task_names`, `task_sets`, `heartbeats`, `worker_states`, `worker_instances`, `workflows`,
    `workflow_nodes`."""
    count: int


@dataclass(frozen=True, slots=True)
class ScheduleFired(Event):
    """A schedule enqueued a task or started a workflow."""

    schedule: str
    """Its name."""
    run_id: str
    """The id of the task or of the workflow."""


@dataclass(frozen=True, slots=True)
class WorkflowEnded(Event):
    """This worker wrote the end of a workflow, or of one inside another. One that is cancelled on request was ended by
    the client that asked."""

    workflow_id: str
    name: str
    status: str
    """`COMPLETED`, `FAILED`, or `CANCELLED` because the workflow around it could not go on."""
