"""The half of the broker that serves operators' tools: lists by filter, counts, purges, workers and queues.

Reads run in a read-only transaction of their own, bounded in time, with a plan made for their very parameters: an
operator's question must never hold up the queue, and most of its conditions are not asked.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

from horsies._checks import Checks
from horsies._pg.statements import Statement, load
from horsies._pg.transient import Doubt, is_from_driver, is_transient
from horsies.errors import BrokerError, HorsiesError
from horsies.filters import RETRYABLE_STATES, TaskCursor, TaskFilter
from horsies.info import (
    QueueStatus,
    RetryResult,
    StaleTask,
    TaskDetail,
    TaskPage,
    TaskState,
    TaskSummary,
    WorkerLiveness,
    WorkerStatus,
)
from horsies.stale import LISTED, SEEN_WITHIN, StaleRules, Verdict
from horsies.status import TaskStatus

if TYPE_CHECKING:
    from horsies._pg.pool import Database
    from horsies.config import AppConfig
    from horsies.doctor import Finding, Limits

R = TypeVar("R")

READ_TIMEOUT_MS: Final = 5_000
PURGE_TIMEOUT_MS: Final = 15_000
PURGE_BATCH: Final = 500
"""Rows of one purging statement: small enough that its locks and its commit are not felt."""
COUNT_BOUND: Final = 100_000
QUEUE_BOUND: Final = 10_000
SNAPSHOT_PERIOD: Final = timedelta(seconds=5)
LATE_AFTER: Final = 3
"""Snapshots that a worker misses before it counts as late; three times as many, as dead without a verdict."""
DEAD_AFTER: Final = 9

_PERMISSION_DENIED: Final = "42501"
NEEDS_OPERATOR: Final = "not visible to this role (messages, arguments and results need the operator role)"
"""What a role is told that may not see them."""
_UNIQUE_VIOLATION: Final = "23505"
_TIMED_OUT: Final = "57014"


class SlowAnswer(BrokerError):
    """An operator's question took longer than it may."""


class Operations:
    """Base of the broker: statements, and what operators' tools need of them."""

    def __init__(self, database: "Database", config: "AppConfig") -> None:
        self._database = database
        self._config = config
        self._redact = config.broker.redact
        schema = config.broker.schema
        self._statements: Mapping[str, Statement] = {
            name: statement
            for file in ("tasks.sql", "control.sql", "recover.sql", "operate.sql", "schedules.sql")
            for name, statement in load("horsies._pg", file, schema).items()
        }

    # -- tasks -----------------------------------------------------------------------------------

    async def list_tasks(
        self, filter: TaskFilter | None = None, limit: int = 100, after: TaskCursor | None = None
    ) -> TaskPage:
        """A page of tasks: live ones first, the newest id first; then ended ones, the last ended first.

        `after` is the `next` of the page before. Nothing of arguments or results is read.
        """
        filter = filter or TaskFilter()
        found: list[TaskSummary] = []
        if filter.live and (after is None or after.terminal_at is None):
            rows = await self._look(
                "list_live_tasks", *_common(filter, filter.live), after.id if after else None, limit
            )
            found += [TaskSummary.from_row(row) for row in rows]
            after = None
        if filter.ended and len(found) < limit:
            rows = await self._look(
                "list_ended_tasks", *_common(filter, filter.ended), *_codes(filter),
                after.terminal_at if after else None, after.id if after else None, limit - len(found),
            )  # fmt: skip
            found += [TaskSummary.from_row(row) for row in rows]
        last = found[-1] if len(found) >= limit > 0 else None
        return TaskPage(tuple(found), TaskCursor(last.id, last.terminal_at) if last else None)

    async def count_tasks(self, filter: TaskFilter | None = None, bound: int = COUNT_BOUND) -> int:
        """How many tasks match; counting stops at `bound`."""
        filter = filter or TaskFilter()
        count = 0
        if filter.live:
            count += (await self._look("count_live_tasks", *_common(filter, filter.live), bound))[0][0]
        if filter.ended and count < bound:
            count += await self._count_ended(filter, bound - count, purgeable=False)
        return count

    async def get_task_states(self, task_ids: Iterable[str]) -> dict[str, TaskState]:
        """The state of each of them, by id; what is not there is left out."""
        ids = sorted(set(task_ids))
        rows = await self._look("task_states", ids)
        taken = {row["id"] for row in await self._look_private("taken_keys", ids) or ()}
        return {row["id"]: TaskState.from_row({**row, "key_is_taken": row["id"] in taken}) for row in rows}

    async def get_task_detail(
        self, task_id: str, max_chars: int | None = 2_000, heartbeats: int = 5
    ) -> TaskDetail | None:
        """Everything about one task; None when there is no such task. Long texts are cut to `max_chars`."""
        rows = await self._look("show_task", task_id)
        if not rows:
            return None
        payload = await self._look_private("show_payload", task_id, max_chars if max_chars is not None else 2**30)
        if payload is not None and not payload:  # purged between the two looks
            return None
        attempts = await self._look("show_attempts" if payload is None else "read_attempts", task_id)
        beats = await self._look("show_heartbeats", task_id, heartbeats)
        return TaskDetail.of(rows[0], None if payload is None else payload[0], attempts, beats)

    async def get_time(self) -> datetime:
        """The time on the database's clock."""
        return (await self._look("database_time"))[0][0]

    async def retry_tasks(
        self, task_ids: Iterable[str], *, ended_before: datetime | None = None
    ) -> dict[str, RetryResult]:
        """Run ended tasks again, each that can be, and say what became of every one.

        `ended_before`, on the database's clock (`get_time`): when the caller looked. A task that somebody retried since
        then, and that failed again, is CHANGED.
        """
        left = set(task_ids)
        try:
            done = [row["id"] for row in await self._rows("retry_batch", sorted(left), ended_before)]
        except BrokerError as error:
            if getattr(error.__cause__, "sqlstate", None) != _UNIQUE_VIOLATION:
                raise
            done = [task_id for task_id in sorted(left) if await self._retry_alone(task_id, ended_before)]
        results = dict.fromkeys(done, RetryResult.RETRIED)
        left.difference_update(done)
        states = await self.get_task_states(left) if left else {}
        return {**results, **{task_id: _not_retried(states.get(task_id)) for task_id in sorted(left)}}

    async def purge_tasks(self, filter: TaskFilter, limit: int | None = None) -> int:
        """Delete ended tasks and their attempts, the oldest first, in small batches; returns how many.

        Live tasks are never touched, nor those of a workflow that has not ended, nor what somebody holds just now.
        """
        purged = 0
        async for count in self.purge_in_batches(filter, limit):
            purged += count
        return purged

    async def purge_in_batches(self, filter: TaskFilter, limit: int | None = None) -> AsyncGenerator[int]:
        """`purge_tasks`, told batch by batch: what was deleted stays deleted when the caller stops."""
        if not filter.ended:
            return
        from_at: datetime | None = None
        left = limit
        while left is None or left > 0:
            size = PURGE_BATCH if left is None else min(PURGE_BATCH, left)
            rows = await self._act(
                "purge_batch", *_common(filter, filter.ended), *_codes(filter), from_at, size,
                timeout_ms=PURGE_TIMEOUT_MS,
            )  # fmt: skip
            if rows:
                yield len(rows)
            if len(rows) < size:
                return
            from_at = max(row["terminal_at"] for row in rows)
            left = None if left is None else left - len(rows)

    async def count_purgeable(self, filter: TaskFilter, bound: int = COUNT_BOUND) -> int:
        """How many tasks `purge_tasks` would delete; counting stops at `bound`."""
        return await self._count_ended(filter, bound, purgeable=True) if filter.ended else 0

    async def list_purgeable(self, filter: TaskFilter, limit: int = 10) -> list[TaskSummary]:
        """The first tasks that `purge_tasks` would delete."""
        rows = await self._look("list_purgeable_tasks", *_common(filter, filter.ended), *_codes(filter), limit)
        return [TaskSummary.from_row(row) for row in rows]

    async def _count_ended(self, filter: TaskFilter, bound: int, *, purgeable: bool) -> int:
        values = (*_common(filter, filter.ended), *_codes(filter), purgeable, bound)
        return (await self._look("count_ended_tasks", *values))[0][0]

    async def _retry_alone(self, task_id: str, ended_before: datetime | None) -> bool:
        try:
            return bool(await self._rows("retry_batch", [task_id], ended_before))
        except BrokerError as error:
            if getattr(error.__cause__, "sqlstate", None) != _UNIQUE_VIOLATION:
                raise
            return False

    # -- workers and queues ----------------------------------------------------------------------

    async def get_workers(self, seen_within: timedelta | None = timedelta(hours=1)) -> list[WorkerStatus]:
        """Every worker that was seen within the window (None: ever), with what it holds now."""
        checks = Checks("broker")
        checks.span("seen_within", seen_within, optional=True)
        checks.finish()
        snapshots = await self._look("worker_snapshots", seen_within)
        return worker_statuses(snapshots, await self._look("in_flight_counts"))

    async def find_stale(self) -> list[tuple[StaleTask, Verdict]]:
        """What is stale by the one rule (`horsies.stale`), the longest silent first; each with how it stands."""
        rules = await self.stale_rules()
        rows = await self._look("stale_tasks", rules.smallest, rules.gone, LISTED)
        found = [(task, rules.verdict(task)) for task in map(StaleTask.from_row, rows)]
        return [(task, verdict) for task, verdict in found if verdict.is_stale]

    async def stale_rules(self) -> StaleRules:
        return StaleRules(await self.get_workers(SEEN_WITHIN), self._config.recovery)

    async def get_queues(self, bound: int = QUEUE_BOUND) -> list[QueueStatus]:
        """Every queue that has tasks, a live worker or a mark, by name. Counts stop at `bound` per priority."""
        waiting = await self._look("waiting_pairs", bound)
        flying = await self._look("in_flight_counts")
        states = {row["queue_name"]: row for row in await self._look("queue_states")}
        workers = [one for one in await self.get_workers() if one.liveness.is_there]
        names = {row["queue_name"] for row in (*waiting, *flying)} | states.keys()
        names.update(queue for worker in workers for queue in worker.queues)
        return [
            _queue(
                name,
                [row for row in waiting if row["queue_name"] == name],
                [row for row in flying if row["queue_name"] == name],
                states.get(name),
                served_by=sum(name in worker.queues for worker in workers),
                bound=bound,
            )
            for name in sorted(names)
        ]

    async def diagnose(self, *, limits: "Limits | None" = None, names: Iterable[str] | None = None) -> "list[Finding]":
        """What is wrong with the database and its workers, and how to fix it. Never raises for what it finds.

        `names`: the tasks that an app knows, to find waiting ones that it does not. Uses connections of its own.
        """
        from horsies.doctor import examine

        return await examine(self._config, limits=limits, names=names)

    # -- statements ------------------------------------------------------------------------------

    async def _rows(self, name: str, *values: Any) -> Sequence[Any]:
        sql = self._statements[name].sql
        return await self._run(lambda connection: connection.fetch(sql, *values))

    async def _row(self, name: str, *values: Any) -> Mapping[str, Any] | None:
        sql = self._statements[name].sql
        return await self._run(lambda connection: connection.fetchrow(sql, *values))

    async def _look(self, name: str, *values: Any) -> Sequence[Any]:
        """Read, bounded."""
        return await self._act(name, *values, timeout_ms=READ_TIMEOUT_MS, readonly=True)

    async def _look_private(self, name: str, *values: Any) -> Sequence[Any] | None:
        """Read what a viewer may not: None for such a role."""
        try:
            return await self._look(name, *values)
        except BrokerError as error:
            if not is_denied(error):
                raise
            return None

    async def _act(self, name: str, *values: Any, timeout_ms: int, readonly: bool = False) -> Sequence[Any]:
        """One statement in a transaction with bounds of its own: behind a pooler, a session keeps no settings."""
        sql = self._statements[name].sql
        bounds = f"SET LOCAL statement_timeout = {timeout_ms}; SET LOCAL plan_cache_mode = force_custom_plan"

        async def action(connection: Any) -> Sequence[Any]:
            async with connection.transaction(readonly=readonly):
                await connection.execute(bounds)
                return await connection.fetch(sql, *values)

        try:
            return await self._run(action)
        except BrokerError as error:
            if getattr(error.__cause__, "sqlstate", None) != _TIMED_OUT:
                raise
            raise SlowAnswer(
                f"no answer within {timeout_ms / 1000:g} s: somebody has locked the table, or the filter is too wide "
                "for an index; ids, states, error codes and ages narrow it best"
            ) from error

    async def _run(self, action: Callable[[Any], Awaitable[R]]) -> R:
        doubt = Doubt()
        try:
            return await self._database.here().run(action, doubt)
        except HorsiesError:
            raise
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            if is_denied(error):
                told += "; grant this role what it lacks: `horsies-migrate grants` prints who may do what"
            elif is_transient(error) or is_from_driver(error):
                told = doubt.describe(told)
                if doubt.may_be_done:
                    told += "; what it was to change may or may not be changed"
            raise BrokerError(self._redact(told)) from error


def is_denied(error: BaseException) -> bool:
    """Whether the database refused it for want of rights."""
    return _PERMISSION_DENIED in (getattr(error, "sqlstate", None), getattr(error.__cause__, "sqlstate", None))


def worker_statuses(snapshots: Sequence[Mapping[str, Any]], flying: Sequence[Mapping[str, Any]]) -> list[WorkerStatus]:
    """From the rows of `worker_snapshots` and `in_flight_counts`."""
    held: dict[str, tuple[int, int]] = {}
    for row in flying:
        claimed, running = held.get(row["claimed_by_worker_id"], (0, 0))
        held[row["claimed_by_worker_id"]] = (claimed + row["claimed"], running + row["running"])
    return [
        WorkerStatus.from_row(
            {
                **row,
                "liveness": _liveness(row),
                "holds_claimed": held.get(row["worker_id"], (0, 0))[0],
                "holds_running": held.get(row["worker_id"], (0, 0))[1],
            }
        )
        for row in snapshots
    ]


def _liveness(row: Mapping[str, Any]) -> WorkerLiveness:
    """By what it said itself, by the verdict of another, else by the age of its newest snapshot."""
    if row["stopped_at"] is not None:
        return WorkerLiveness.STOPPED
    period = timedelta(milliseconds=row["period_ms"]) if row["period_ms"] is not None else SNAPSHOT_PERIOD
    if row["judged_dead_at"] is not None or row["age"] > DEAD_AFTER * period:
        return WorkerLiveness.DEAD
    return WorkerLiveness.LATE if row["age"] > LATE_AFTER * period else WorkerLiveness.ALIVE


def _common(filter: TaskFilter, statuses: frozenset[TaskStatus]) -> tuple[Any, ...]:
    return (
        _listed(filter.ids), sorted(statuses), _listed(filter.queues), _listed(filter.task_names), filter.worker_id,
        filter.older_than, filter.newer_than, filter.in_workflow,
    )  # fmt: skip


def _codes(filter: TaskFilter) -> tuple[Any, ...]:
    return _listed(filter.error_codes), filter.has_code


def _listed(values: Iterable[str] | None) -> list[str] | None:
    return None if values is None else list(values)


def _not_retried(state: TaskState | None) -> RetryResult:
    if state is None:
        return RetryResult.NOT_FOUND
    if state.status is TaskStatus.COMPLETED:
        return RetryResult.SUCCEEDED
    if state.status not in RETRYABLE_STATES:
        return RetryResult.NOT_ENDED
    if state.is_replaced:
        return RetryResult.REPLACED
    if state.is_workflow_task:
        return RetryResult.IN_WORKFLOW
    return RetryResult.KEY_TAKEN if state.key_is_taken else RetryResult.CHANGED


def _queue(
    name: str, waiting: Sequence[Any], flying: Sequence[Any], state: Any, *, served_by: int, bound: int
) -> QueueStatus:
    return QueueStatus(
        name=name,
        ready=sum(row["ready"] for row in waiting),
        delayed=sum(row["delayed"] for row in waiting),
        claimed=sum(row["claimed"] for row in flying),
        running=sum(row["running"] for row in flying),
        is_bounded=any(row["ready"] >= bound or row["delayed"] >= bound for row in waiting),
        oldest_ready=max((row["oldest_ready"] for row in waiting if row["oldest_ready"] is not None), default=None),
        paused_at=state["paused_at"] if state is not None else None,
        paused_for=state["paused_for"] if state is not None else None,
        served_by=served_by,
    )
