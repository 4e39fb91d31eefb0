"""The read model of operators: views of tasks, workers, queues, stale tasks and schedules.

Broker, command line, doctor and dashboard call these functions. Each gets a `fetch` that runs a named statement, so the
caller decides which of them share a transaction.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, TypeVar

from horsies.config.recovery import RecoveryConfig
from horsies.envelopes import Envelopes
from horsies.operate.encoded import shown_attempt, shown_payload
from horsies.operate.filters import RETRYABLE_STATES, TaskCursor, TaskFilter, walk
from horsies.operate.schedule_state import LISTED_FOR
from horsies.operate.session import Fetch
from horsies.operate.stale import StaleRules, Verdict
from horsies.operate.views import (
    QueueStatus,
    RetryResult,
    ScheduleInfo,
    StaleTask,
    TaskDetail,
    TaskPage,
    TaskState,
    TaskSummary,
    WorkerLiveness,
    WorkerStatus,
)
from horsies.status import TaskStatus

Row = Mapping[str, Any]
S = TypeVar("S", bound=ScheduleInfo)

COUNT_BOUND: Final = 100_000
QUEUE_BOUND: Final = 10_000
SNAPSHOT_PERIOD: Final = timedelta(seconds=5)
LATE_AFTER: Final = 3
"""The number of missed snapshots after which a worker counts as late."""
DEAD_AFTER: Final = 9
"""The number after which it counts as dead, even if no other worker has declared it dead."""
RECENT: Final = timedelta(minutes=10)
"""A worker that is gone is shown for this long, and longer while it holds a task."""


# -- tasks ---------------------------------------------------------------------------------------


async def list_tasks(fetch: Fetch, filter: TaskFilter, limit: int, after: TaskCursor | None = None) -> TaskPage:
    """Live tasks first, the newest id first; then ended tasks, the last ended first."""
    found: list[TaskSummary] = []
    if filter.live and (after is None or after.terminal_at is None):
        rows = await fetch(*filter.call("list_live_tasks", filter.live), after.id if after else None, limit)
        found += map(TaskSummary.from_row, rows)
        after = None
    if filter.ended and len(found) < limit:
        place = (after.terminal_at, after.id) if after else (None, None)
        await follow_index(fetch, filter)
        rows = await fetch(*filter.call(f"list_{walk(filter)}_tasks", filter.ended), *place, limit - len(found))
        found += map(TaskSummary.from_row, rows)
    last = found[-1] if len(found) >= limit > 0 else None
    return TaskPage(tuple(found), TaskCursor(last.id, last.terminal_at) if last else None)


async def follow_index(fetch: Fetch, filter: TaskFilter) -> None:
    """Before a statement about ended tasks that follows the order of an index of its own (`walk`): where the
    planner expects few rows, it would read and sort all tasks of the state or code."""
    if walk(filter) != "ended":
        await fetch("plan_by_index")


async def count_tasks(fetch: Fetch, filter: TaskFilter, bound: int) -> int:
    """How many tasks match; counting stops at `bound`."""
    count = 0
    if filter.live:
        count += (await fetch(*filter.call("count_live_tasks", filter.live), bound))[0]["count"]
    if filter.ended and count < bound:
        count += await count_ended(fetch, filter, bound - count)
    return count


async def count_ended(fetch: Fetch, filter: TaskFilter, bound: int, *, purgeable: bool = False) -> int:
    """How many ended tasks match; `purgeable` leaves out those that a workflow keeps."""
    await follow_index(fetch, filter)
    return (await fetch(*filter.call(f"count_{walk(filter)}_tasks", filter.ended), purgeable, bound))[0]["count"]


async def list_purgeable(fetch: Fetch, filter: TaskFilter, limit: int) -> list[TaskSummary]:
    """The first tasks that a purge would delete."""
    rows = await fetch(*filter.call("list_purgeable_tasks", filter.ended), limit)
    return [TaskSummary.from_row(row) for row in rows]


async def task_states(fetch: Fetch, ids: Sequence[str], *, private: bool) -> dict[str, TaskState]:
    """The state of each existing task. Without `private` the unique keys are not compared."""
    taken = {row["id"] for row in await fetch("taken_keys", ids)} if private else set[str]()
    rows = await fetch("task_states", ids)
    return {row["id"]: TaskState.from_row({**row, "key_is_taken": row["id"] in taken}) for row in rows}


async def task_detail(
    fetch: Fetch,
    task_id: str,
    max_chars: int,
    heartbeats: int,
    *,
    private: bool,
    envelopes: Envelopes | None = None,
) -> TaskDetail | None:
    """Everything about one task; without `private` no messages, arguments and result. `envelopes`: those of the app,
    to decode what its payload codec has encoded; None shows which codec that was."""
    rows = await fetch("show_task", task_id)
    # a text that was cut cannot be decoded
    payload = await fetch("show_payload", task_id, max_chars if envelopes is None else 2**31 - 1) if private else [None]
    if not rows or not payload:  # there is no such task, or it was purged between the two statements
        return None
    attempts = await fetch("read_attempts" if private else "show_attempts", task_id)
    beats = await fetch("show_heartbeats", task_id, heartbeats)
    if payload[0] is None:
        return TaskDetail.of(rows[0], None, attempts, beats)
    shown = shown_payload(payload[0], envelopes, rows[0]["task_name"], max_chars)
    return TaskDetail.of(rows[0], shown, [shown_attempt(row, envelopes) for row in attempts], beats)


# -- workers, stale tasks, queues, schedules -----------------------------------------------------


async def workers(fetch: Fetch, seen_within: timedelta | None) -> list[WorkerStatus]:
    """Every worker that was seen within the window (None means ever), with the tasks that it holds."""
    return worker_statuses(await fetch("worker_snapshots", seen_within), await fetch("in_flight_counts"))


def worker_statuses(snapshots: Iterable[Row], in_flight: Iterable[Row]) -> list[WorkerStatus]:
    """The workers of the rows of `worker_snapshots` and `in_flight_counts`."""
    claimed, running = Counter[str](), Counter[str]()
    for row in in_flight:
        claimed[row["claimed_by_worker_id"]] += row["claimed"]
        running[row["claimed_by_worker_id"]] += row["running"]
    return [
        WorkerStatus.from_row(
            {
                **row,
                "liveness": liveness(row),
                "holds_claimed": claimed[row["worker_id"]],
                "holds_running": running[row["worker_id"]],
            }
        )
        for row in snapshots
    ]


def liveness(row: Row) -> WorkerLiveness:
    """By its own farewell, by the verdict of another worker, otherwise by the age of its newest snapshot."""
    if row["stopped_at"] is not None:
        return WorkerLiveness.STOPPED
    period = timedelta(milliseconds=row["period_ms"]) if row["period_ms"] is not None else SNAPSHOT_PERIOD
    if row["judged_dead_at"] is not None or row["age"] > DEAD_AFTER * period:
        return WorkerLiveness.DEAD
    return WorkerLiveness.LATE if row["age"] > LATE_AFTER * period else WorkerLiveness.ALIVE


def is_recent(worker: WorkerStatus) -> bool:
    """Whether lists and figures still include a worker that may be gone."""
    return worker.age <= RECENT or worker.holds_claimed > 0 or worker.holds_running > 0


@dataclass(frozen=True, slots=True)
class StaleTasks:
    """The stale tasks, the longest silent first, each with its verdict."""

    tasks: tuple[tuple[StaleTask, Verdict], ...]
    rules: StaleRules
    is_cut: bool
    """There may be more than were read."""


async def stale_tasks(
    fetch: Fetch, among: Sequence[WorkerStatus], limit: int, default: RecoveryConfig | None = None
) -> StaleTasks:
    """The tasks that are stale by the thresholds of these workers (see `operate.stale`)."""
    rules = StaleRules(among, default)
    rows = await fetch("stale_tasks", rules.smallest, rules.gone, limit)
    judged = ((task, rules.verdict(task)) for task in map(StaleTask.from_row, rows))
    return StaleTasks(tuple(pair for pair in judged if pair[1].is_stale), rules, is_cut=len(rows) >= limit)


async def queues(
    fetch: Fetch, bound: int, seen_within: timedelta | None = timedelta(hours=1)
) -> tuple[list[QueueStatus], list[WorkerStatus]]:
    """Every queue that has tasks, a pause mark or a live worker, by name; and the workers that were seen within the
    window. Counting stops at `bound` for each priority."""
    waiting = await fetch("waiting_pairs", bound)
    in_flight = await fetch("in_flight_counts")
    states = {row["queue_name"]: row for row in await fetch("queue_states")}
    among = worker_statuses(await fetch("worker_snapshots", seen_within), in_flight)
    live = [worker for worker in among if worker.liveness.is_there]
    names = {row["queue_name"] for row in (*waiting, *in_flight)} | states.keys()
    names.update(queue for worker in live for queue in worker.queues)
    found: list[QueueStatus] = []
    for name in sorted(names):
        mine = [row for row in waiting if row["queue_name"] == name]
        held = [row for row in in_flight if row["queue_name"] == name]
        state = states.get(name)
        found.append(
            QueueStatus(
                name=name,
                ready=sum(row["ready"] for row in mine),
                delayed=sum(row["delayed"] for row in mine),
                claimed=sum(row["claimed"] for row in held),
                running=sum(row["running"] for row in held),
                is_bounded=any(row["ready"] >= bound or row["delayed"] >= bound for row in mine),
                oldest_ready=max(
                    (row["oldest_ready"] for row in mine if row["oldest_ready"] is not None), default=None
                ),
                paused_at=state["paused_at"] if state is not None else None,
                paused_for=state["paused_for"] if state is not None else None,
                served_by=sum(name in worker.queues for worker in live),
                grouped=sum(row["ready"] + row["delayed"] for row in mine if row["is_grouped"]),
            )
        )
    return found, among


async def schedules(
    fetch: Fetch, view: type[S], limit: int | None = None, *, after: str | None = None,
    names: Sequence[str] | None = None, kind: str | None = None,
) -> list[S]:  # fmt: skip
    """The state of schedules by name: of those in code that a scheduler has ever served, and of those made at run time.
    `after`: those with later names; `names`: only these; `kind`: only `code` or `data`."""
    is_data = None if kind is None else kind == "data"
    return [view.from_row(row) for row in await fetch("list_schedules", limit, LISTED_FOR, after, names, is_data)]


def not_retried(state: TaskState | None) -> RetryResult:
    """Why a task was not retried."""
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
