"""Jobs, the settings of a pool of child processes, and its statistics. How a job ended is in `outcome.py`.

Arguments are JSON text; only the child decodes them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from horsies.batch_limits import BatchLimits


@dataclass(slots=True)
class Job:
    """One attempt of one task. Its row is RUNNING before the job goes to a child."""

    task_id: str
    generation: int
    attempt: int
    task_name: str
    args: str | None
    kwargs: str | None
    timeout_ms: int | None = None
    is_async: bool = False
    run_ahead: bool = True
    """Whether a busy child may get this job as its next one. The task and the worker can both switch that off."""
    queue_name: str = "default"
    ready_at: float = 0.0
    """When the task could have started: seconds since 1970, on the database's clock."""
    metadata: str | None = None
    """JSON."""
    group: str | None = None
    start_by: float | None = None
    """On the monotonic clock. A job with a rate that could only start later goes back: its token was for this time."""
    snoozes: int = 0
    """How often the task has snoozed before."""
    stores_result: bool = True
    """Whether its value is stored. The worker drops it otherwise; a task that completes itself has to know."""
    gather: BatchLimits | None = None
    """Of a batch task: the job runs as a member of a call (`call_of`), which the pool makes."""
    members: Sequence["Job"] = ()
    """Of a call: the jobs of its tasks, in the order of its items."""


def call_of(members: Sequence[Job]) -> Job:
    """The job that runs these members of a batch task in one call. Members of another release may have another timeout:
    the call has the shortest."""
    first, count = members[0], len(members)
    timeouts = [job.timeout_ms for job in members if job.timeout_ms is not None]
    return Job(
        task_id=first.task_id if count == 1 else f"{count} tasks",
        generation=0,
        attempt=first.attempt,
        task_name=first.task_name,
        args=None,
        kwargs=None,
        timeout_ms=min(timeouts, default=None),
        is_async=first.is_async,
        run_ahead=False,
        queue_name=first.queue_name,
        members=members,
    )


@dataclass(frozen=True, slots=True)
class Room:
    """How many jobs the pool can take now."""

    sync: int
    """Synchronous jobs of any length: one per idle child."""
    ahead: int
    """Very short jobs (`ChildPool.is_short`) that busy children may queue, beyond `sync`."""
    asynchronous: int
    """Async jobs: free places of the children's event loops, and more while only short ones run (`async_line.py`)."""


@dataclass(frozen=True, slots=True)
class ChildSpec:
    """The app that the children run, their number and their limits."""

    app_locator: str
    """`module:attribute`, importable in the child."""
    processes: int = 2
    async_concurrency: int = 100
    """Concurrent `async def` tasks per child."""
    max_tasks_per_child: int | None = None
    max_age_s: float | None = None
    max_memory_mb: int | None = None
    run_ahead: bool = True
    kill_grace_s: float = 2.0
    """Seconds between two rungs of the stop ladder: flag, exception, SIGTERM, SIGKILL."""
    start_timeout_s: float = 60.0
    """Seconds from the fork until the child is ready, for imports and start hooks."""
    start_attempts: int = 6
    """Consecutive failed starts before the pool gives up. It waits 0.1, 0.2, 0.4 ... s between them."""
    preload: bool = True
    """Import the app once, in the template that children are forked from. When the import leaves threads or sockets
    open, each child imports the app instead."""
    sys_path: Sequence[str] = ()
    """Entries in front of this process's own `sys.path`."""
    cwd: str | None = None
    name: str = "horsies"
    """Prefix of process names, as in `horsies-child-7`."""
    log_level: str = "INFO"
    log_format: str = "text"
    """`text` or `json`; ignored when importing the app configured logging."""
    worker_id: str = ""
    """For JSON log lines."""


@dataclass(frozen=True, slots=True)
class ChildStats:
    name: str
    pid: int
    state: str
    rss_kb: int
    tasks: int
    running: int


@dataclass(frozen=True, slots=True)
class PoolStats:
    children: tuple[ChildStats, ...]
    template_pid: int | None
    start_failures: int
    """Consecutive failures of the starts that are being tried now."""
    output_dropped_bytes: int
    """Bytes that children wrote to stdout or stderr while this process's own output was blocked."""
