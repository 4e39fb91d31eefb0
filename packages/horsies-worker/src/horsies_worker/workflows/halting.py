"""Pauses and ends runs: because a node failed, because a workflow inside is paused, or because the run's own rows
cannot be processed. The caller's transaction has locked the run."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

from horsies._pg.transient import is_from_driver, is_transient
from horsies.codec import encode_error
from horsies.envelopes import PLAIN_ENVELOPES, Envelopes
from horsies.errors import OutcomeCode
from horsies.events import WorkflowEnded
from horsies.result import TaskError
from horsies.status import NodeStatus, WorkflowStatus
from horsies.workflow.control import lock_tree
from horsies.workflow.retrying import Tree
from horsies_worker.database.queries import Queries
from horsies_worker.database.split_batch import is_data_error
from horsies_worker.workflows.failures import stored_error, stored_form, told_first

_NEVER_STARTED: Final = encode_error(
    TaskError(OutcomeCode.TASK_CANCELLED, "its workflow failed before the task started")
)
_SKIPPED: Final = encode_error(TaskError(OutcomeCode.WORKFLOW_FAILED, "its workflow failed before the node started"))
_AROUND: Final = encode_error(TaskError(OutcomeCode.WORKFLOW_CANCELLED, "the workflow around it failed"))
_DEADLINE: Final = TaskError(OutcomeCode.WORKFLOW_DEADLINE, "the run had not ended by its deadline")


class BadRow(ValueError):
    """A row of the run is invalid, and repeating the step will not change that."""


def is_own_fault(error: BaseException) -> bool:
    """Whether a step failed because of its run's data and would fail again: the database refuses a value, or this code
    cannot interpret one. Other errors (an outage, missing rights, a timeout) have other causes."""
    if is_transient(error):
        return False
    if is_from_driver(error):
        return is_data_error(error)
    return isinstance(error, ValueError | TypeError | LookupError | ArithmeticError | RecursionError)


def is_partial(policy: str | None) -> bool:
    """Whether a run holds the items of a partial map, which always completes."""
    return policy is not None and '"partial"' in policy


def cases_of(policy: str | None) -> list[list[int]] | None:
    """The cases of a stored success policy: each is a list of node indexes."""
    if policy is None or is_partial(policy):
        return None
    try:
        found: Any = json.loads(policy)
        cases: Any = found["cases"]
    except (ValueError, TypeError, LookupError, RecursionError):
        raise BadRow(f"its success_policy has no list of cases: {policy[:200]}") from None
    if not _is_list(cases) or not all(_is_list(case) and all(map(_is_index, case)) for case in cases):
        raise BadRow(f"the cases of its success_policy are not lists of node indexes: {policy[:200]}")
    return [list(case) for case in cases]


def why_stuck(nodes: Sequence[Mapping[str, Any]]) -> str:
    """Why the waiting nodes of a run can never run: the first edge that is wrong, or a circle. Takes all its nodes."""
    by_index = {row["task_index"]: row for row in nodes}
    waiting = [row for row in nodes if not _has_ended(row)]
    for row in waiting:
        name, seen = row["node_id"], set[int | None]()
        for index in row["dependencies"]:
            before = by_index.get(index)
            if before is None:
                return f"the column dependencies of node {name!r} names node number {index}, which does not exist"
            if index in seen or row["task_index"] not in before["dependents"]:
                why = " twice" if index in seen else ", whose column dependents does not name it"
                return f"node {name!r} waits for node {before['node_id']!r}{why}"
            seen.add(index)
    path: list[int] = []
    at = waiting[0]["task_index"] if waiting else None
    while at is not None and at not in path:
        path.append(at)
        at = next((one for one in by_index[at]["dependencies"] if not _has_ended(by_index[one])), None)
    if at is None:
        return "their counters do not agree with what has ended"
    circle = [*path[path.index(at) :], at]
    told = [repr(by_index[one]["node_id"]) for one in circle]
    return "nodes wait for each other: " + " for ".join([*told[:20], "..."] if len(told) > 20 else told)


def _has_ended(node: Mapping[str, Any]) -> bool:
    return NodeStatus(node["status"]).is_terminal


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


async def pause(queries: Queries, connection: Any, workflow_id: str, envelopes: Envelopes = PLAIN_ENVELOPES) -> None:
    """Pause a run, and the runs inside it, because a node failed and its on_error is pause."""
    first = await queries.fetch(connection, "first_failure", workflow_id)
    message = f"{told_first(first, envelopes)}; on_error is pause"
    failed = {"failed": [row["node_id"] for row in first]}
    error = stored_form(TaskError(OutcomeCode.WORKFLOW_PAUSED, message, failed), envelopes)
    tree = Tree(await lock_tree(connection, queries.statements, workflow_id))
    for ids, why in tree.to_pause(workflow_id, error):
        await queries.fetch(connection, "pause_workflows", ids, why)


async def note_inside(
    queries: Queries, connection: Any, workflow_id: str, envelopes: Envelopes = PLAIN_ENVELOPES
) -> WorkflowStatus:
    """Pause a run while a workflow inside it is paused and no other node of it is under way; its error names that
    workflow. Returns the run's new status."""
    (facts,) = await queries.fetch(connection, "paused_inside", workflow_id)
    is_paused = facts["child_id"] is not None
    status = WorkflowStatus.PAUSED if is_paused and not facts["can_move"] else WorkflowStatus.RUNNING
    error = None
    if is_paused:
        message = f"the workflow in node {facts['node_id']!r} is paused: {_message(facts['error'], envelopes)}"
        data = {"node_id": facts["node_id"], "workflow_id": facts["child_id"]}
        error = stored_form(TaskError(OutcomeCode.WORKFLOW_PAUSED, message, data), envelopes)
    await queries.fetch(connection, "note_paused_inside", workflow_id, is_paused, status.value, error)
    return status


async def fail_run(
    queries: Queries, connection: Any, workflow_id: str, reason: str
) -> tuple[str | None, list[WorkflowEnded]]:
    """End a run FAILED for this reason, and cancel the runs inside it. Returns the id of the run around it, and the
    events to tell after the commit. Nothing is undone: its rows cannot be processed."""
    return await _fail(queries, connection, workflow_id, TaskError(OutcomeCode.WORKFLOW_FAILED, reason), "cancelled")


async def stop_overdue(queries: Queries, connection: Any, workflow_id: str) -> tuple[str | None, list[WorkflowEnded]]:
    """Stop a run whose deadline has passed; what it did is undone first. See `fail_run`."""
    return await _fail(queries, connection, workflow_id, _DEADLINE, "deadline")


async def _fail(
    queries: Queries, connection: Any, workflow_id: str, why: TaskError, reason: str
) -> tuple[str | None, list[WorkflowEnded]]:
    error = encode_error(why)
    tree = Tree(await lock_tree(connection, queries.statements, workflow_id))
    run = tree.find(workflow_id)
    if run is None:
        return None, []
    ids = [workflow_id, *(row["id"] for row in tree.rows if row["id"] != workflow_id)]
    is_overdue = why is _DEADLINE
    skipped = error if is_overdue else _SKIPPED
    failed = WorkflowStatus.FAILED.value
    values = (failed, _NEVER_STARTED, skipped, error, _AROUND, reason, is_overdue)
    await queries.fetch(connection, "stop_workflows", ids, *values)
    stopped = {row["id"] for row in await queries.fetch(connection, "ended_workflows", ids)}
    ended = [
        WorkflowEnded(row["id"], row["name"], failed if row is run else WorkflowStatus.CANCELLED.value)
        for row in tree.rows
        if row["id"] in stopped and not WorkflowStatus(row["status"]).is_terminal
    ]
    return run["parent_workflow_id"], ended


def _message(text: str | None, envelopes: Envelopes) -> str:
    error = stored_error(text, envelopes)
    return error.message[:1000] if error is not None and error.message else "by request"
