"""Looks that take more than one statement: the overview, the lists, what is stale. `fetch` runs a named statement."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from horsies import info as client
from horsies._operations import worker_statuses
from horsies._text import error_in
from horsies.doctor import Finding
from horsies.doctor.work import schedule_findings
from horsies.info import QueueStatus, WorkerStatus
from horsies.schedule_state import FORGOTTEN_AFTER, LISTED_FOR, OVERDUE_AFTER
from horsies.stale import StaleRules
from horsies.status import TASK_TERMINAL_STATES, WORKFLOW_TERMINAL_STATES, TaskStatus, WorkflowStatus
from horsies_tui.data.alerts import FAILING_SPAN, alerts
from horsies_tui.data.filters import IN_FLIGHT, Query
from horsies_tui.data.models import (
    Count,
    Ends,
    Failing,
    LostAttempt,
    Overview,
    Place,
    Stale,
    StaleTask,
    TaskList,
    TaskRow,
    WorkflowDetail,
    WorkflowList,
    WorkflowRow,
    worker_name,
)
from horsies_tui.data.series import LOOK_ROWS_NOW, Fetch, Rates

COUNT_BOUND: Final = 5_000
SURELY_BEYOND: Final = 4
"""So many times the bound by the planner's estimate, and nobody counts up to the bound to find that it is reached."""
QUEUE_BOUND: Final = 500
FAILURES_SEEN: Final = 100
FAILING_SHOWN: Final = 12
LOOK: Final = 2_500
"""Rows that one page of a filtered list reads at most."""
LOOK_CODED: Final = 400
"""The same where only rows with an error code count: one in sixty may have one, and the others are walked past."""
LOOK_FAILED: Final = 200
"""The same where any failure will do: of what has a code only what was cancelled is walked past."""
HELD_SHOWN: Final = 50
WAITING_SHOWN: Final = 25
"""Of a list of everything: so many that are held, so many that wait, then what ended; the rest is one key away."""
RUNS_COUNTED: Final = 2_000
STALE_SHOWN: Final = 500
LOST_SHOWN: Final = 100
WORKERS_SEEN: Final = timedelta(hours=1)
_LOST_WINDOW: Final = timedelta(days=1)


async def overview(
    fetch: Fetch, window: timedelta, rates: Rates, estimates: Callable[[Fetch], Awaitable[Mapping[str, int]]]
) -> Overview:
    waiting = await fetch("waiting_pairs", QUEUE_BOUND)
    flying = await fetch("in_flight_counts")
    states = await fetch("queue_states")
    workers = worker_statuses(await fetch("worker_snapshots", WORKERS_SEEN), flying)
    queues = _queues(waiting, flying, states, workers)
    known = await estimates(fetch)
    ended: dict[str, int] = {}
    is_cut = sum(known.get(status, 0) for status in TASK_TERMINAL_STATES) > SURELY_BEYOND * COUNT_BOUND
    if not is_cut:
        ended = {row["status"]: row["tasks"] for row in await fetch("ended_counts", COUNT_BOUND)}
        is_cut = sum(ended.values()) >= COUNT_BOUND
    pending_is_cut = any(queue.is_bounded for queue in queues)
    counts = {
        TaskStatus.PENDING: Count(sum(queue.ready + queue.delayed for queue in queues), pending_is_cut),
        TaskStatus.CLAIMED: Count(sum(queue.claimed for queue in queues)),
        TaskStatus.RUNNING: Count(sum(queue.running for queue in queues)),
    }
    if pending_is_cut:
        seen = counts[TaskStatus.PENDING].value
        counts[TaskStatus.PENDING] = Count(max(seen, known.get("PENDING", 0)), True)
    for status in (TaskStatus.COMPLETED, TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.EXPIRED):
        seen = ended.get(status, 0)
        counts[status] = Count(max(seen, known.get(status, 0)) if is_cut else seen, is_cut)
    curves = await rates.look(fetch)
    failing = await fetch("failing", window, FAILURES_SEEN, FAILING_SHOWN)
    found = alerts(queues, workers, await _recent_ends(fetch), await _schedule_findings(fetch))
    return Overview(counts, queues, tuple(workers), curves, found, tuple(Failing.from_row(row) for row in failing))


async def _recent_ends(fetch: Fetch) -> Ends:
    (row,) = await fetch("failed_now", FAILING_SPAN.total_seconds(), LOOK_ROWS_NOW)
    span = timedelta(seconds=row["oldest_s"]) if row["tasks"] >= LOOK_ROWS_NOW else FAILING_SPAN
    return Ends(row["tasks"], row["failed"], span)


async def _schedule_findings(fetch: Fetch) -> list[Finding]:
    (row,) = await fetch("schedule_facts", LISTED_FOR, OVERDUE_AFTER, FORGOTTEN_AFTER)
    return list(schedule_findings(row))


def status_estimates(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Tasks by state, as the planner knows them; empty before the first ANALYZE."""
    if not rows or rows[0]["statuses"] is None or rows[0]["rows"] < 0:
        return {}
    row = rows[0]
    return {status: round(row["rows"] * share) for status, share in zip(row["statuses"], row["shares"], strict=True)}


def _queues(
    waiting: Sequence[Mapping[str, Any]],
    flying: Sequence[Mapping[str, Any]],
    states: Sequence[Mapping[str, Any]],
    workers: Sequence[WorkerStatus],
) -> tuple[QueueStatus, ...]:
    by_name = {row["queue_name"]: row for row in states}
    there = [one for one in workers if one.liveness.is_there]
    names = {row["queue_name"] for row in (*waiting, *flying, *states)}
    names.update(queue for worker in there for queue in worker.queues)
    found: list[QueueStatus] = []
    for name in sorted(names):
        mine = [row for row in waiting if row["queue_name"] == name]
        held = [row for row in flying if row["queue_name"] == name]
        state = by_name.get(name)
        found.append(
            QueueStatus(
                name=name,
                ready=sum(row["ready"] for row in mine),
                delayed=sum(row["delayed"] for row in mine),
                claimed=sum(row["claimed"] for row in held),
                running=sum(row["running"] for row in held),
                is_bounded=any(max(row["ready"], row["delayed"]) >= QUEUE_BOUND for row in mine),
                oldest_ready=max((row["oldest_ready"] for row in mine if row["oldest_ready"]), default=None),
                paused_at=state["paused_at"] if state else None,
                paused_for=state["paused_for"] if state else None,
                served_by=sum(name in worker.queues for worker in there),
            )
        )
    return tuple(found)


async def tasks(fetch: Fetch, query: Query, since: timedelta | None, after: Place | None, limit: int) -> TaskList:
    """What workers hold, what waits in the order of the claim, what ended, the newest first."""
    wanted = query.tasks
    if query.whole_id is not None:
        rows = [TaskRow.from_row(row) for row in await fetch("tasks_by_id", [query.whole_id])]
        return TaskList(tuple(row for row in rows if row.status in wanted))
    found: list[TaskRow] = []
    ended = wanted & TASK_TERMINAL_STATES
    since = None if query.id else since
    name, start, worker = query.name or None, query.id or None, query.worker or None
    place: Place | None = None
    more_held = False
    if wanted & IN_FLIGHT and (after is None or after.section == "held"):
        is_first = bool(wanted - IN_FLIGHT)
        room = min(HELD_SHOWN, limit) if is_first else limit
        values = ([*(wanted & IN_FLIGHT)], query.queue or None, name, start, worker)
        key = (after.at, after.id) if after is not None else (None, None)
        found += [TaskRow.from_row(row) for row in await fetch("tasks_in_flight", *values, *key, room + 1)]
        if len(found) > room:
            found = found[:room]
            more_held = is_first
            place = Place("held", found[-1].id, found[-1].since) if not is_first else None
    looked: int | None = None
    more_waiting = False
    if TaskStatus.PENDING in wanted and (after is None or after.section == "waiting") and len(found) < limit:
        room = limit - len(found) if not ended else min(WAITING_SHOWN, limit - len(found))
        key = (after.queue_name, after.priority, after.at, after.id) if after is not None else (None,) * 4
        look = LOOK if name or start else room  # without a condition every row that is walked is shown
        rows = await fetch("tasks_waiting", query.queue or None, *key, look, name, start, room)
        kept = [TaskRow.from_row(row) for row in rows if row["id"] is not None]
        found += kept
        if len(kept) >= room and not ended:
            last = kept[-1]
            place = Place("waiting", last.id, last.enqueued_at, last.queue_name, last.priority)
        elif rows and rows[0]["walked"] >= look and not ended:
            tail = rows[0]
            place = Place("waiting", tail["tail_id"], tail["tail_at"], tail["tail_queue"], tail["tail_priority"])
            looked = look
        more_waiting = bool(ended) and len(kept) >= room
    if ended and (after is None or after.section == "ended") and len(found) < limit:
        room = limit - len(found)
        look = _look(query, ended, room)
        rows = await fetch(
            "tasks_ended", [*ended], query.has_code, after.at if after else None, after.id if after else None, since,
            look, query.queue or None, name, query.error or None, start, worker, room,
        )  # fmt: skip
        kept = [TaskRow.from_row(row) for row in rows if row["id"] is not None]
        found += kept
        place, looked = _ended_place(rows, kept[-1] if kept else None, full=len(kept) >= room, look=look)
    return TaskList(tuple(found), place, looked, more_waiting, more_held)


def _look(query: Query, ended: frozenset[TaskStatus], room: int) -> int:
    """How many ended rows are walked at most: no more than are shown, where each of them matches."""
    if query.has_code:
        return LOOK_CODED if query.has_text else max(room, LOOK_FAILED)
    return LOOK if query.has_text or ended != TASK_TERMINAL_STATES else room


def _ended_place(
    rows: Sequence[Mapping[str, Any]], last: TaskRow | WorkflowRow | None, *, full: bool, look: int = LOOK
) -> tuple[Place | None, int | None]:
    if full and last is not None:
        at = last.terminal_at if isinstance(last, TaskRow) else last.completed_at
        return (Place("ended", last.id, at), None) if at is not None else (None, None)
    if rows and rows[0]["walked"] >= look:
        return Place("ended", rows[0]["tail_id"], rows[0]["tail_at"]), look
    return None, None


async def workflows(
    fetch: Fetch, query: Query, since: timedelta | None, after: Place | None, limit: int
) -> WorkflowList:
    """Live runs, then what ended, the newest first."""
    wanted = query.workflows
    since = None if query.id else since
    if query.whole_id is not None:
        rows = [WorkflowRow.from_row(row) for row in await fetch("workflow_by_id", query.whole_id)]
        return WorkflowList(tuple(row for row in rows if row.status in wanted))
    counts = await _workflow_counts(fetch, query, since) if after is None else {}
    found: list[WorkflowRow] = []
    ended = wanted & WORKFLOW_TERMINAL_STATES
    name, start = query.name or None, query.id or None
    if after is None and wanted - ended:
        rows = await fetch("workflows_live", [*(wanted - ended)], name, start, limit)
        found += [WorkflowRow.from_row(row) for row in rows]
    if not ended or len(found) >= limit:
        return WorkflowList(tuple(found), counts=counts)
    room = limit - len(found)
    key = (after.at, after.id) if after is not None else (None, None)
    rows = await fetch("workflows_ended", [*ended], *key, since, LOOK, name, start, room)
    kept = [WorkflowRow.from_row(row) for row in rows if row["id"] is not None]
    place, looked = _ended_place(rows, kept[-1] if kept else None, full=len(kept) >= room)
    return WorkflowList((*found, *kept), place, looked, counts)


def with_errors(detail: WorkflowDetail, rows: Sequence[Mapping[str, Any]]) -> WorkflowDetail:
    """The run and its nodes with what their errors say. `task_index` None: the run's own."""
    found = {row["task_index"]: error for row in rows if (error := error_in(row["error"])) is not None}
    nodes = tuple(
        replace(node, error_code=node.error_code or error.code, error_message=error.message)
        if (error := found.get(node.task_index)) is not None
        else node
        for node in detail.nodes
    )
    run = found.get(None)
    return replace(detail, nodes=nodes, error=None if run is None else f"{run.code}: {run.message}")


async def _workflow_counts(fetch: Fetch, query: Query, since: timedelta | None) -> dict[WorkflowStatus, Count]:
    rows = await fetch("workflow_counts", since, query.name or None, query.id or None, RUNS_COUNTED)
    cut = {row["value"] for row in rows if row["field"] == "read" and row["runs"] >= RUNS_COUNTED}
    found = {row["value"]: row["runs"] for row in rows if row["field"] == "status"}
    return {
        status: Count(found.get(status, 0), is_least=("ended" if status in WORKFLOW_TERMINAL_STATES else "live") in cut)
        for status in WorkflowStatus
    }


async def stale(fetch: Fetch, workers: Sequence[WorkerStatus], *, with_reasons: bool = True) -> Stale:
    """By the client's one rule: each worker's own thresholds, and all that a worker holds that is gone."""
    rules = StaleRules(workers)
    rows = await fetch("stale_tasks", rules.smallest, rules.gone, STALE_SHOWN)
    by_id = {one.worker_id: one for one in workers}
    judged = [(task, rules.verdict(task)) for task in map(client.StaleTask.from_row, rows)]
    found = [
        StaleTask(
            id=task.id, task_name=task.task_name, queue_name=task.queue_name, status=task.status, kind=verdict.kind,
            worker_id=task.claimed_by_worker_id,
            worker_name=worker_name(by_id[worker]) if (worker := task.claimed_by_worker_id) in by_id
            else task.worker_hostname,
            retry_count=task.retry_count, max_retries=task.max_retries, held_for=task.held_for, silence=task.silence,
            threshold=verdict.threshold, guard=verdict.guard, worker_is_dead=verdict.worker_is_gone,
            in_workflow=task.is_workflow_task,
        )
        for task, verdict in judged
        if verdict.is_stale
    ]  # fmt: skip
    dead = sorted(rules.dead, key=lambda one: one.age)
    lost: Sequence[Mapping[str, Any]] = ()
    if dead:
        name = "lost_attempts" if with_reasons else "lost_attempts_without_reasons"
        lost = await fetch(name, [one.worker_id for one in dead], _LOST_WINDOW, LOST_SHOWN)
    return Stale(
        tuple(found), tuple(dead), tuple(LostAttempt.from_row(row) for row in lost),
        is_cut=len(rows) >= STALE_SHOWN, lost_is_cut=len(lost) >= LOST_SHOWN,
    )  # fmt: skip
