"""The lists of tasks, workflows and stale tasks, a page at a time. Each page reads a bounded number of rows."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

from horsies._checks import LONGEST
from horsies._text import error_in
from horsies.operate import reading
from horsies.operate.filters import TaskFilter, walk
from horsies.operate.session import Fetch
from horsies.operate.stale import SEEN_WITHIN
from horsies.operate.views import TaskSummary
from horsies.status import TASK_TERMINAL_STATES, WORKFLOW_TERMINAL_STATES, TaskStatus, WorkflowStatus
from horsies_tui.data.filters import IN_FLIGHT, Query
from horsies_tui.data.models import (
    Count,
    LostAttempt,
    Place,
    Stale,
    StaleRow,
    TaskList,
    WorkflowDetail,
    WorkflowList,
    WorkflowRow,
    worker_name,
)

LOOK: Final = 2_500
"""The number of rows that one page of a filtered list reads at most."""
LOOK_UNSUCCESSFUL: Final = 400
"""The same, in each state, when no success can match: tasks that did not succeed lie far apart in the table."""
HELD_SHOWN: Final = 50
WAITING_SHOWN: Final = 25
"""An unfiltered list shows this many held and waiting tasks before the ended ones; one key shows the rest."""
RUNS_COUNTED: Final = 2_000
STALE_SHOWN: Final = 500
LOST_SHOWN: Final = 100
_LOST_WINDOW: Final = timedelta(days=1)

Rows = Sequence[Mapping[str, Any]]


# -- tasks ---------------------------------------------------------------------------------------


async def tasks(fetch: Fetch, query: Query, since: timedelta | None, after: Place | None, limit: int) -> TaskList:
    """The tasks that workers hold, then the waiting ones in claim order, then the ended ones, the newest first."""
    filter = query.filter
    if filter.ids is not None:
        return TaskList((await reading.list_tasks(fetch, filter, limit)).tasks)
    found = TaskList(())
    if filter.live & IN_FLIGHT and (after is None or after.section == "held"):
        found = await _held(fetch, filter, after, limit)
    if TaskStatus.PENDING in filter.live and (after is None or after.section == "waiting") and len(found.rows) < limit:
        page = await _waiting(fetch, filter, after, limit - len(found.rows))
        found = replace(page, rows=found.rows + page.rows, next=page.next or found.next, more_held=found.more_held)
    if filter.ended and (after is None or after.section == "ended") and len(found.rows) < limit:
        # the window of the screen and the number of rows that are read bound a search of metadata, not the filter's own
        whole = LONGEST if query.meta else None
        ended = replace(filter, newer_than=whole if query.id else since or whole)
        page = await _ended(fetch, ended, after, limit - len(found.rows), has_text=query.has_text)
        found = replace(found, rows=found.rows + page.rows, next=page.next, looked=page.looked)
    return found


async def _held(fetch: Fetch, filter: TaskFilter, after: Place | None, limit: int) -> TaskList:
    others_follow = bool((filter.live | filter.ended) - IN_FLIGHT)
    room = min(HELD_SHOWN, limit) if others_follow else limit
    key = (after.at, after.id) if after is not None else (None, None)
    rows = await fetch(*filter.call("tasks_held", filter.live & IN_FLIGHT), *key, room + 1)
    kept = tuple(TaskSummary.from_row(row) for row in rows[:room])
    if len(rows) <= room:
        return TaskList(kept)
    place = None if others_follow else Place("held", kept[-1].id, kept[-1].since)
    return TaskList(kept, place, more_held=others_follow)


async def _waiting(fetch: Fetch, filter: TaskFilter, after: Place | None, limit: int) -> TaskList:
    room = min(WAITING_SHOWN, limit) if filter.ended else limit
    key = (after.queue_name, after.priority, after.at, after.id) if after is not None else (None,) * 4
    # without these conditions every row matches
    look = LOOK if filter.name_part or filter.id_start or filter.group or filter.metadata else room
    rows = await fetch(*filter.call("tasks_waiting", {TaskStatus.PENDING}), *key, look, room)
    kept = _matching(rows)
    if filter.ended:
        return TaskList(kept, more_waiting=len(kept) >= room)
    if len(kept) >= room:
        last = kept[-1]
        return TaskList(kept, Place("waiting", last.id, last.since, last.queue_name, last.priority))
    return TaskList(kept, *_tail("waiting", rows, look))


async def _ended(fetch: Fetch, filter: TaskFilter, after: Place | None, room: int, *, has_text: bool) -> TaskList:
    is_exact = not has_text and (walk(filter) == "unsuccessful" or filter.ended == TASK_TERMINAL_STATES)
    look = room if is_exact else LOOK_UNSUCCESSFUL if walk(filter) == "unsuccessful" else LOOK
    key = (after.at, after.id) if after is not None else (None, None)
    await reading.follow_index(fetch, filter)
    rows = await fetch(*filter.call(f"tasks_{walk(filter)}", filter.ended), *key, look, room)
    kept = _matching(rows)
    if len(kept) >= room and (at := kept[-1].terminal_at) is not None:
        return TaskList(kept, Place("ended", kept[-1].id, at))
    return TaskList(kept, *_tail("ended", rows, look))


def _matching(rows: Rows) -> tuple[TaskSummary, ...]:
    return tuple(TaskSummary.from_row(row) for row in rows if row["id"] is not None)


def _tail(section: str, rows: Rows, look: int) -> tuple[Place | None, int | None]:
    """The last row that was read, when the search stopped there."""
    if not rows or rows[0]["walked"] < look:
        return None, None
    tail = rows[0]
    queue = (tail["tail_queue"], tail["tail_priority"]) if section == "waiting" else ()
    return Place(section, tail["tail_id"], tail["tail_at"], *queue), look


# -- workflows -----------------------------------------------------------------------------------


async def workflows(
    fetch: Fetch, query: Query, since: timedelta | None, after: Place | None, limit: int
) -> WorkflowList:
    """Live runs, then ended runs, the newest first."""
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
        found += map(WorkflowRow.from_row, rows)
    if not ended or len(found) >= limit:
        return WorkflowList(tuple(found), counts=counts)
    room = limit - len(found)
    key = (after.at, after.id) if after is not None else (None, None)
    rows = await fetch("workflows_ended", [*ended], *key, since, LOOK, name, start, room)
    kept = [WorkflowRow.from_row(row) for row in rows if row["id"] is not None]
    if len(kept) >= room and (at := kept[-1].completed_at) is not None:
        return WorkflowList((*found, *kept), Place("ended", kept[-1].id, at), None, counts)
    return WorkflowList((*found, *kept), *_tail("ended", rows, LOOK), counts)


async def _workflow_counts(fetch: Fetch, query: Query, since: timedelta | None) -> dict[WorkflowStatus, Count]:
    rows = await fetch("workflow_counts", since, query.name or None, query.id or None, RUNS_COUNTED)
    cut = {row["value"] for row in rows if row["field"] == "read" and row["runs"] >= RUNS_COUNTED}
    found = {row["value"]: row["runs"] for row in rows if row["field"] == "status"}
    return {
        status: Count(found.get(status, 0), is_least=("ended" if status.is_terminal else "live") in cut)
        for status in WorkflowStatus
    }


def with_errors(detail: WorkflowDetail, rows: Rows) -> WorkflowDetail:
    """The run and its nodes with their error messages. The row of the run itself has no `task_index`."""
    found = {row["task_index"]: error for row in rows if (error := error_in(row["error"])) is not None}
    nodes = tuple(
        replace(node, error_code=node.error_code or error.code, error_message=error.message)
        if (error := found.get(node.task_index)) is not None
        else node
        for node in detail.nodes
    )
    run = found.get(None)
    return replace(detail, nodes=nodes, error=None if run is None else f"{run.code}: {run.message}")


# -- stale tasks ---------------------------------------------------------------------------------


async def stale(fetch: Fetch, *, private: bool) -> Stale:
    """Stale tasks, dead workers, and the tasks that were recovered from them; reasons only with `private`."""
    workers = await reading.workers(fetch, SEEN_WITHIN)
    found = await reading.stale_tasks(fetch, workers, STALE_SHOWN)
    names = {one.worker_id: worker_name(one) for one in workers}
    rows = tuple(
        StaleRow(task, verdict, names.get(worker) or task.worker_hostname or worker)
        for task, verdict in found.tasks
        for worker in [task.claimed_by_worker_id or ""]
    )
    dead = sorted(found.rules.dead, key=lambda one: one.age)
    lost: Rows = ()
    if dead:
        name = "lost_attempts" if private else "lost_attempts_without_reasons"
        lost = await fetch(name, [one.worker_id for one in dead], _LOST_WINDOW, LOST_SHOWN)
    return Stale(
        rows, tuple(dead), tuple(LostAttempt.from_row(row) for row in lost), is_cut=found.is_cut,
        lost_is_cut=len(lost) >= LOST_SHOWN,
    )  # fmt: skip
