"""Runs that must not go on: paused because a node failed, paused because a workflow inside them is, or ended because
their own rows cannot be processed. Each function works on a run that the caller's transaction has locked."""

import json
from collections.abc import Mapping
from typing import Any, Final, Protocol, TypeGuard

from horsies._pg.transient import is_from_driver, is_transient
from horsies.codec import DecodeError, decode_untyped_result, encode_error
from horsies.errors import OutcomeCode
from horsies.result import TaskError
from horsies.status import WorkflowStatus
from horsies.workflow.control import lock_tree
from horsies.workflow.retrying import Tree
from horsies_worker.finalizer import is_data_error
from horsies_worker.workflows.failures import told_first

_NEVER_STARTED: Final = encode_error(
    TaskError(OutcomeCode.TASK_CANCELLED, "its workflow failed before the task started")
)
_SKIPPED: Final = encode_error(TaskError(OutcomeCode.WORKFLOW_FAILED, "its workflow failed before the node started"))
_AROUND: Final = encode_error(TaskError(OutcomeCode.WORKFLOW_CANCELLED, "the workflow around it failed"))


class Statements(Protocol):
    """What is needed of a `Step`."""

    @property
    def statements(self) -> Mapping[str, Any]: ...

    async def fetch(self, connection: Any, name: str, *values: Any) -> list[Any]: ...


class BadRow(ValueError):
    """Something that a run's own rows say makes no sense: no repetition of a step will change that."""


def is_own_fault(error: BaseException) -> bool:
    """True for a step that fails for the data of its run and would fail again: a value that the database refuses, or
    that this code cannot interpret. Anything else (an outage, missing rights, a time-out) says nothing of the run."""
    if is_transient(error):
        return False
    if is_from_driver(error):
        return isinstance(error, Exception) and is_data_error(error)
    return isinstance(error, ValueError | TypeError | LookupError | ArithmeticError | RecursionError)


def cases_of(policy: str | None) -> list[list[int]] | None:
    """The cases of a success policy, as the row has it: each a list of nodes, by index."""
    if policy is None:
        return None
    try:
        found: Any = json.loads(policy)
        cases: Any = found["cases"]
    except (ValueError, TypeError, LookupError, RecursionError):
        raise BadRow(f"its success_policy has no list of cases: {policy[:200]}") from None
    if not _is_list(cases) or not all(_is_list(case) and all(map(_is_index, case)) for case in cases):
        raise BadRow(f"the cases of its success_policy are not lists of node indexes: {policy[:200]}")
    return [list(case) for case in cases]


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return isinstance(value, list)


def _is_index(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31


async def pause(step: Statements, connection: Any, workflow_id: str) -> None:
    """A node failed, and the run's on_error is pause: it and everything inside it starts nothing more."""
    first = await step.fetch(connection, "first_failure", workflow_id)
    message = f"{told_first(first)}; on_error is pause"
    error = encode_error(TaskError(OutcomeCode.WORKFLOW_PAUSED, message, {"failed": [row["node_id"] for row in first]}))
    tree = await lock_tree(connection, step.statements, workflow_id)
    await step.fetch(connection, "pause_workflows", [row["id"] for row in tree], error)


async def note_inside(step: Statements, connection: Any, workflow_id: str) -> WorkflowStatus:
    """Look for paused workflows inside a run. The run is paused as well while nothing else of it can move, and says
    where; returns what it is now."""
    (facts,) = await step.fetch(connection, "paused_inside", workflow_id)
    is_paused = facts["child_id"] is not None
    status = WorkflowStatus.PAUSED if is_paused and not facts["can_move"] else WorkflowStatus.RUNNING
    error = None
    if is_paused:
        message = f"the workflow in node {facts['node_id']!r} is paused: {_message(facts['error'])}"
        data = {"node_id": facts["node_id"], "workflow_id": facts["child_id"]}
        error = encode_error(TaskError(OutcomeCode.WORKFLOW_PAUSED, message, data))
    await step.fetch(connection, "note_paused_inside", workflow_id, is_paused, status.value, error)
    return status


async def fail_run(step: Statements, connection: Any, workflow_id: str, reason: str) -> str | None:
    """End a run FAILED for this reason, and everything inside it; returns the run around it."""
    error = encode_error(TaskError(OutcomeCode.WORKFLOW_FAILED, reason))
    tree = Tree(await lock_tree(connection, step.statements, workflow_id))
    run = tree.find(workflow_id)
    if run is None:
        return None
    inside = [row["id"] for row in tree.rows if row["id"] != workflow_id]
    failed = WorkflowStatus.FAILED.value
    await step.fetch(connection, "stop_workflows", [workflow_id], failed, _NEVER_STARTED, _SKIPPED, error)
    if inside:
        cancelled = WorkflowStatus.CANCELLED.value
        await step.fetch(connection, "stop_workflows", inside, cancelled, _NEVER_STARTED, _AROUND, _AROUND)
    return run["parent_workflow_id"]


def _message(text: str | None) -> str:
    try:
        error = decode_untyped_result(text or "").err
    except DecodeError:
        error = None
    return error.message[:1000] if error is not None and error.message else "by request"
