"""The Python API of operators on one app's database: read, cancel, retry, requeue, purge, pause, recover by hand.

Every method is a coroutine; `TaskHandle` and the command line offer the same without an event loop. A method that
changes rows returns how many it changed, or the outcome for each.
"""

from collections.abc import AsyncGenerator, Callable, Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Final, cast

from horsies._checks import Checks, queue_name_problem
from horsies._pg.transient import sqlstate
from horsies.envelopes import Envelopes
from horsies.errors import BrokerError, ConfigurationError, OperationalErrorCode, UsageError
from horsies.operate import reading
from horsies.operate.cancelling import WAIT_S, Cancelling
from horsies.operate.encoded import shown_attempt, shown_progress
from horsies.operate.filters import TaskCursor, TaskFilter, id_list
from horsies.operate.reading import COUNT_BOUND, QUEUE_BOUND
from horsies.operate.session import UNIQUE_VIOLATION, Fetch, OperatorSession
from horsies.operate.stale import LISTED, SEEN_WITHIN, StaleRules, Verdict
from horsies.operate.views import (
    ExpiredTask,
    QueueStatus,
    RetryResult,
    ScheduleInfo,
    StaleTask,
    TaskAttempt,
    TaskDetail,
    TaskInfo,
    TaskPage,
    TaskState,
    TaskSummary,
    WorkerStats,
    WorkerStatus,
)
from horsies.result import TaskError
from horsies.status import CancelResult

if TYPE_CHECKING:
    from horsies._pg.pool import Database
    from horsies.config import AppConfig
    from horsies.operate.cluster import ClusterFigures
    from horsies.operate.doctor import Finding, Limits
    from horsies.operate.policy_control import PolicyControl
    from horsies.operate.quarantine import Quarantine
    from horsies.operate.schedule_control import ScheduleControl
    from horsies.operate.unique_keys import KeyControl
    from horsies.operate.views import ReplicaState
    from horsies.operate.worker_control import WorkerControl
    from horsies.operate.workflow_check import WorkflowCheck
    from horsies.registry import Registry
    from horsies.schedule import TaskSchedule
    from horsies.workflow.batch_reading import BatchReading
    from horsies.workflow.control import WorkflowControl

PURGE_TIMEOUT_MS: Final = 15_000
PURGE_BATCH: Final = 500
"""Rows that one statement purges: few enough that its locks and its commit are short."""
_UNCUT: Final = 2**30


class PostgresBroker:
    """The operations of one app's database. Get it with `app.get_broker()`."""

    def __init__(
        self, database: "Database", config: "AppConfig", encode: "Callable[[TaskSchedule], str] | None" = None,
        session: OperatorSession | None = None,
    ) -> None:  # fmt: skip
        """`encode` checks a schedule against the app's tasks, and returns its arguments as JSON."""
        self._config = config
        self._encode_schedule = encode
        self._envelopes = Envelopes(config.payload_codec)
        self._database = database
        self._session = session or OperatorSession(database, config.broker)
        self._reader: PostgresBroker | None = None
        self._workflows: WorkflowControl | None = None

    def for_reading(self) -> "PostgresBroker":
        """A broker that reads from `replica_url`, and from the primary while the replica is away; this one without a
        `replica_url`. It refuses to change anything. Rows are as old as the lag of the replica (`replica_state`): what
        was changed a moment ago may be missing."""
        if self._config.broker.replica_url is None or self.replica_state is not None:
            return self
        if self._reader is None:
            from horsies.operate.replica import ReplicaSession

            session = ReplicaSession(self._database, self._config.broker)
            self._reader = PostgresBroker(self._database, self._config, self._encode_schedule, session)
        return self._reader

    @property
    def replica_state(self) -> "ReplicaState | None":
        """Of `for_reading()`: the lag that the last read found, or why the primary answered. None for other brokers."""
        return self._session.replica_state

    async def close_replica(self) -> None:
        """Close the connections to the replica; for `aclose` of the app."""
        if self._reader is not None:
            await self._reader._session.close()

    @property
    def batches(self) -> "BatchReading":
        """The progress of batches, and the results of their members."""
        from horsies.workflow.batch_reading import BatchReading

        return BatchReading(self._session.run, self._config.broker.schema)

    @property
    def workflows(self) -> "WorkflowControl":
        """The same for runs of workflows."""
        if self._workflows is None:
            from horsies.workflow.control import WorkflowControl

            # Not a cached_property: Python 3.11 holds one lock for all instances while it computes one.
            self._workflows = WorkflowControl(self._session.run, self._config.broker.schema, self._envelopes)
        return self._workflows

    @property
    def quarantine(self) -> "Quarantine":
        """The tasks that crashed as often as the `max_crashes` of their policy allows."""
        from horsies.operate.quarantine import Quarantine

        return Quarantine(self)

    @property
    def schedules(self) -> "ScheduleControl":
        """The same for schedules: those that are made at run time, and the state of all."""
        from horsies.operate.schedule_control import ScheduleControl
        from horsies.stored_schedule import stored_kwargs

        return ScheduleControl(self._session, self._encode_schedule or stored_kwargs, self._envelopes)

    @property
    def policies(self) -> "PolicyControl":
        """The same for the policies of queues, the limits that they share, and their groups."""
        from horsies.operate.policy_control import PolicyControl

        return PolicyControl(self._session)

    @property
    def unique_keys(self) -> "KeyControl":
        """The unique keys that are taken."""
        from horsies.operate.unique_keys import KeyControl

        return KeyControl(self._session)

    @property
    def workers(self) -> "WorkerControl":
        """Control of workers at run time: drain, resume, resize."""
        from horsies.operate.worker_control import WorkerControl

        return WorkerControl(self._session)

    # -- reading tasks ---------------------------------------------------------------------------

    async def list_tasks(
        self, filter: TaskFilter | None = None, limit: int = 100, after: TaskCursor | None = None
    ) -> TaskPage:
        """A page of tasks: live ones first, the newest id first; then ended ones, the last ended first.

        `after` is the `next` of the page before. Arguments and results are not read.
        """
        return await self._session.read(lambda fetch: reading.list_tasks(fetch, filter or TaskFilter(), limit, after))

    async def count_tasks(self, filter: TaskFilter | None = None, bound: int = COUNT_BOUND) -> int:
        """How many tasks match; counting stops at `bound`."""
        return await self._session.read(lambda fetch: reading.count_tasks(fetch, filter or TaskFilter(), bound))

    async def get_task_states(self, task_ids: Iterable[str]) -> dict[str, TaskState]:
        """The state of each task by id; an id without a task is left out."""
        ids = id_list(task_ids)
        return await self._session.read_shown(lambda fetch, private: reading.task_states(fetch, ids, private=private))

    async def get_task_detail(
        self, task_id: str, max_chars: int | None = 2_000, heartbeats: int = 5, *, decode: bool = False
    ) -> TaskDetail | None:
        """Everything about one task; None when there is no such task. Long texts are cut to `max_chars`. With `decode`,
        what the app's payload codec has encoded is decoded; otherwise it reads `<encoded by ...>`."""
        chars = max_chars if max_chars is not None else _UNCUT
        envelopes = self._envelopes if decode else None
        return await self._session.read_shown(
            lambda fetch, private: reading.task_detail(
                fetch, task_id, chars, heartbeats, private=private, envelopes=envelopes
            )
        )

    async def get_task_info(self, task_id: str) -> TaskInfo | None:
        """Everything about one task but its arguments and result; None when there is no such task. A role that may not
        read messages gets None for `failed_reason`, `unique_key`, `progress` and `metadata`."""
        hidden = dict.fromkeys(("failed_reason", "unique_key", "progress", "metadata"))
        rows = await self._session.rows_shown("read_task", "show_task", task_id)
        if not rows:
            return None
        return TaskInfo.from_row({**hidden, **shown_progress(rows[0], self._envelopes)})

    async def get_attempts(self, task_id: str) -> list[TaskAttempt]:
        """The finished attempts of one task, first to last; without messages for a role that may not read them."""
        rows = await self._session.rows_shown("read_attempts", "show_attempts", task_id)
        return [TaskAttempt.from_row(shown_attempt(row, self._envelopes)) for row in rows]

    async def get_stale_tasks(self, stale_threshold_minutes: float = 5) -> list[StaleTask]:
        """CLAIMED and RUNNING tasks whose worker has given no sign of life for that long, the longest silent first."""
        threshold = _span("stale_threshold_minutes", minutes=stale_threshold_minutes)
        rows = await self._session.rows("stale_tasks", threshold, [], 2**31 - 1)
        return [StaleTask.from_row(row) for row in rows]

    async def find_stale(self) -> list[tuple[StaleTask, Verdict]]:
        """The stale tasks (see `operate.stale`), the longest silent first, each with its verdict."""

        async def read(fetch: Fetch) -> reading.StaleTasks:
            workers = await reading.workers(fetch, SEEN_WITHIN)
            return await reading.stale_tasks(fetch, workers, LISTED, self._config.recovery)

        return list((await self._session.read(read)).tasks)

    async def stale_rules(self) -> StaleRules:
        """The thresholds of the workers that were seen lately."""
        return StaleRules(await self.get_workers(SEEN_WITHIN), self._config.recovery)

    async def get_expired_tasks(self, limit: int = 100) -> list[ExpiredTask]:
        """Tasks that missed their `good_until`: first those that no sweep has ended yet, then the newest ended."""
        return [ExpiredTask.from_row(row) for row in await self._session.rows("expired_tasks", limit)]

    # -- reading workers, queues, schedules, the database ----------------------------------------

    async def get_workers(self, seen_within: timedelta | None = timedelta(hours=1)) -> list[WorkerStatus]:
        """Every worker that was seen within the window (None means ever), with the tasks that it holds."""
        checks = Checks("broker")
        checks.span("seen_within", seen_within, optional=True)
        checks.finish()
        return await self._session.read(lambda fetch: reading.workers(fetch, seen_within))

    async def get_worker_stats(self, seen_within_minutes: float = 5) -> list[WorkerStats]:
        """The newest snapshot of every worker that was seen within the window."""
        window = _span("seen_within_minutes", minutes=seen_within_minutes)
        return [WorkerStats.from_row(row) for row in await self._session.rows("worker_snapshots", window)]

    async def get_queues(self, bound: int = QUEUE_BOUND) -> list[QueueStatus]:
        """Every queue that has tasks, a pause mark or a live worker, by name. Counting stops at `bound` for each
        priority."""
        return (await self._session.read(lambda fetch: reading.queues(fetch, bound)))[0]

    async def get_figures(self, bound: int = QUEUE_BOUND, groups: int = 1) -> "ClusterFigures":
        """The figures of the whole installation, for metrics, with so many groups of each queue. Counting stops at
        `bound` for each queue and priority."""
        from horsies.operate.cluster import cluster_figures

        return await self._session.read(lambda fetch: cluster_figures(fetch, bound, self._config.recovery, groups))

    async def get_revision(self) -> str | None:
        """The revision of the schema, also one that this release cannot work with; None without horsies tables."""
        return await self._session.revision()

    async def get_paused_queues(self) -> dict[str, datetime]:
        """The paused queues, and when each was paused."""
        return {row["queue_name"]: row["paused_at"] for row in await self._session.rows("paused_queues")}

    async def get_schedules(self) -> list[ScheduleInfo]:
        """The state of every schedule that was made at run time, or that a scheduler has ever served, by name; see
        `schedules.list` for pages."""
        return await reading.schedules(self._session.rows, ScheduleInfo)

    async def get_time(self) -> datetime:
        """The time on the database's clock."""
        rows = await self._session.read(lambda fetch: fetch("database_time"))
        return rows[0]["statement_timestamp"]

    async def diagnose(self, *, limits: "Limits | None" = None, names: Iterable[str] | None = None) -> "list[Finding]":
        """Problems of the database and its workers, and how to fix each. A problem is returned, never raised.

        `names` are the tasks that an app knows, to find waiting tasks with other names. Opens its own connections.
        """
        from horsies.operate.doctor import examine

        return await examine(self._config, limits=limits, names=names)

    async def check_workflows(
        self, tasks: "Registry", fingerprints: Mapping[str, Collection[str]] | None = None, limit: int = 10_000
    ) -> "WorkflowCheck":
        """Live runs, the oldest first, that need a task or a signature which `tasks` (`app.registry`) does not have.

        `fingerprints` (`app.workflows.fingerprints()`): runs whose definition has not changed need not be compared node
        by node. Needs the operator role, because it reads arguments and results.
        """
        from horsies.operate.workflow_check import check_runs

        return await check_runs(self._session, tasks, fingerprints or {}, limit, self._envelopes)

    # -- cancelling, retrying, requeueing --------------------------------------------------------

    async def cancel(self, task_id: str) -> CancelResult:
        """Stop one task: a waiting one for good, a running one by asking its worker. BrokerError if another
        transaction holds the task for ten seconds, such as that of a task that completes itself."""
        return (await self.cancel_many([task_id]))[task_id]

    async def cancel_many(self, task_ids: Iterable[str]) -> dict[str, CancelResult]:
        """`cancel` for many, in one statement."""
        return await Cancelling(self._session).cancel(task_ids)

    async def cancel_within(
        self, task_ids: Iterable[str], wait_s: float = WAIT_S, on_wait: Callable[[str], None] = lambda _: None
    ) -> tuple[dict[str, CancelResult], dict[str, str]]:
        """`cancel_many`, which waits for `wait_s` at most for tasks that another transaction holds, such as that of a
        task that completes itself. Returns the results, and the tasks that are still held, each with the reason.
        `on_wait` gets a text after a second of waiting."""
        return await Cancelling(self._session).cancel_within(task_ids, wait_s, on_wait)

    async def retry(self, task_id: str) -> bool:
        """Run a FAILED, CANCELLED or EXPIRED task again under the same id. False when it is in another state."""
        return bool(await self.retry_many([task_id]))

    async def retry_many(self, task_ids: Iterable[str]) -> int:
        """`retry` for many, all or none; returns how many will run again."""
        done = await self._retry_batch(task_ids, None)
        if isinstance(done, BrokerError):
            raise UsageError(
                "not retried: another task that has not ended holds the same unique_key, and two with one key must not "
                "be live at a time; cancel or await the other one first"
            ) from done
        return len(done)

    async def retry_tasks(
        self, task_ids: Iterable[str], *, ended_before: datetime | None = None
    ) -> dict[str, RetryResult]:
        """Run each ended task again that can be, and return the outcome for every one.

        `ended_before`, on the database's clock (`get_time`), is when the caller looked. A task that another operator
        retried since then, and that failed again, is CHANGED.
        """
        left = set(id_list(task_ids))
        done = await self._retry_batch(left, ended_before)
        if isinstance(done, BrokerError):
            done = [one for one in sorted(left) if await self._retry_batch([one], ended_before) == [one]]
        left.difference_update(done)
        states = await self.get_task_states(left) if left else {}
        refused = {task_id: reading.not_retried(states.get(task_id)) for task_id in sorted(left)}
        return dict.fromkeys(done, RetryResult.RETRIED) | refused

    async def _retry_batch(self, task_ids: Iterable[str], ended_before: datetime | None) -> list[str] | BrokerError:
        """The tasks that will run again; the error, when a live task holds the unique key of one of them."""
        try:
            return [row["id"] for row in await self._session.rows("retry_batch", id_list(task_ids), ended_before)]
        except BrokerError as error:
            if sqlstate(error) != UNIQUE_VIOLATION:
                raise
            return error

    async def requeue(self, task_id: str) -> bool:
        """Take a CLAIMED task from the worker that holds it. False when it is in another state."""
        return bool(await self.requeue_many([task_id]))

    async def requeue_many(self, task_ids: Iterable[str]) -> int:
        """`requeue` for many; returns how many went back to their queue."""
        return len(await self._session.rows("requeue_claimed_batch", id_list(task_ids)))

    # -- purging ---------------------------------------------------------------------------------

    async def purge_tasks(self, filter: TaskFilter, limit: int | None = None) -> int:
        """Delete ended tasks and their attempts, the oldest first, in small batches; returns how many.

        Live tasks stay, and so do the tasks of a workflow that has not ended and rows that are locked.
        """
        purged = 0
        async for count in self.purge_in_batches(filter, limit):
            purged += count
        return purged

    async def purge_in_batches(self, filter: TaskFilter, limit: int | None = None) -> AsyncGenerator[int]:
        """`purge_tasks`, with the count of each batch: deleted tasks stay deleted when the caller stops."""
        if not filter.ended:
            return
        from_at: datetime | None = None
        left = limit
        while left is None or left > 0:
            size = PURGE_BATCH if left is None else min(PURGE_BATCH, left)
            call = (*filter.call("purge_batch", filter.ended), from_at, size)
            rows = await self._session.bounded(lambda fetch, call=call: fetch(*call), PURGE_TIMEOUT_MS)
            if rows:
                yield len(rows)
            if len(rows) < size:
                return
            from_at = max(row["terminal_at"] for row in rows)
            left = None if left is None else left - len(rows)

    async def count_purgeable(self, filter: TaskFilter, bound: int = COUNT_BOUND) -> int:
        """How many tasks `purge_tasks` would delete; counting stops at `bound`."""
        if not filter.ended:
            return 0
        return await self._session.read(lambda fetch: reading.count_ended(fetch, filter, bound, purgeable=True))

    async def list_purgeable(self, filter: TaskFilter, limit: int = 10) -> list[TaskSummary]:
        """The first tasks that `purge_tasks` would delete."""
        return await self._session.read(lambda fetch: reading.list_purgeable(fetch, filter, limit))

    # -- recovering by hand ----------------------------------------------------------------------

    async def mark_stale_tasks_as_failed(
        self, stale_threshold_ms: int = 300_000, task_ids: Iterable[str] | None = None
    ) -> int:
        """End RUNNING tasks without a sign of life as FAILED, WORKER_CRASHED; returns how many.

        `task_ids` restricts it to those. The tasks are not retried, as the reaper of a live worker would do. Use it
        when no worker is left.
        """
        from horsies.codec import encode_error

        reason = f"no sign of life from its worker for {stale_threshold_ms} ms; failed by hand"
        result = encode_error(TaskError(OperationalErrorCode.WORKER_CRASHED, reason))
        threshold = _span("stale_threshold_ms", milliseconds=stale_threshold_ms)
        return len(await self._session.rows("fail_stale_running", threshold, result, reason, _ids(task_ids)))

    async def requeue_stale_claimed(
        self, stale_threshold_ms: int = 120_000, task_ids: Iterable[str] | None = None
    ) -> int:
        """Send CLAIMED tasks without a sign of life back to their queue; returns how many."""
        threshold = _span("stale_threshold_ms", milliseconds=stale_threshold_ms)
        return len(await self._session.rows("requeue_stale_claimed", threshold, _ids(task_ids)))

    # -- queues and schedules --------------------------------------------------------------------

    async def pause_queue(self, queue_name: str) -> None:
        """Workers stop claiming from it; running tasks go on."""
        await self._session.rows("pause_queue", _checked_queue(queue_name))

    async def resume_queue(self, queue_name: str) -> bool:
        """Workers claim from it again; False when it was not paused."""
        return (await self._session.rows("resume_queue", _checked_queue(queue_name)))[0]["was_paused"]

    async def run_schedule_now(self, name: str) -> bool:
        """See `schedules.run_now`."""
        return await self.schedules.run_now(name)

    async def pause_schedule(self, name: str) -> bool:
        """See `schedules.pause`."""
        return await self.schedules.pause(name)

    async def resume_schedule(self, name: str) -> bool:
        """See `schedules.resume`."""
        return await self.schedules.resume(name)


def _ids(task_ids: Iterable[str] | None) -> list[str] | None:
    return None if task_ids is None else id_list(task_ids)


def _span(field: str, **given: float) -> timedelta:
    """A checked span of time, from a number in one unit."""
    checks = Checks("broker")
    try:
        span = timedelta(**given)
    except (OverflowError, ValueError, TypeError):  # beyond a timedelta, NaN, not a number
        span = next(iter(given.values()))
    checks.span(field, span)
    checks.finish()
    return cast("timedelta", span)


def _checked_queue(name: str) -> str:
    if problem := queue_name_problem(name, "queue_name"):
        raise ConfigurationError([problem], subject="queue")
    return name
