"""How an inline run ends: by what its nodes ended with, or because its deadline has passed."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from horsies.codec import encode_error
from horsies.envelopes import Envelopes
from horsies.errors import OutcomeCode
from horsies.result import TaskError
from horsies.status import NodeStatus, TaskStatus, WorkflowStatus
from horsies.testing.inline_run import InlineRun
from horsies_worker.workflows.failures import LISTED, failure
from horsies_worker.workflows.halting import cases_of, is_partial
from horsies_worker.workflows.resolve import outcome

_DEADLINE = encode_error(TaskError(OutcomeCode.WORKFLOW_DEADLINE, "the run had not ended by its deadline"))
_AROUND = encode_error(TaskError(OutcomeCode.WORKFLOW_CANCELLED, "the workflow around it failed"))
_BEGUN = (NodeStatus.COMPLETED, NodeStatus.ENQUEUED, NodeStatus.RUNNING)


def outcome_of(run: InlineRun, envelopes: Envelopes) -> tuple[WorkflowStatus, str | None]:
    """How a run ends whose nodes have all ended, and why."""
    policy = run.data["success_policy"]
    text = None if policy is None else json.dumps(policy)
    cases = cases_of(text)
    named = {index for case in cases or () for index in case}
    failed = [node for node in run.nodes if node.status is NodeStatus.FAILED]
    facts: list[Mapping[str, Any]] = [
        {
            "task_index": node.index, "node_id": node.node_id, "status": node.status,
            "failed_count": len(failed) if node.status is NodeStatus.FAILED else None,
        }
        for node in run.nodes
        if node in failed[:LISTED] or (node.index in named and node.status is not NodeStatus.FAILED)
    ]  # fmt: skip
    status = outcome(cases, {row["task_index"]: row["status"] for row in facts})
    if status is WorkflowStatus.COMPLETED or is_partial(text):
        return WorkflowStatus.COMPLETED, None
    return status, failure(facts, run.first_failure(), has_policy=cases is not None, envelopes=envelopes)


def stop_overdue(top: InlineRun, runs: Sequence[InlineRun]) -> list[InlineRun]:
    """End the run and those inside it, as `horsies_stop_workflows` does with rows. Runs that have something to undo end
    when that is done: returns those of them with nothing left to wait for, the innermost first."""
    live = [run for run in runs if run.is_open]
    undoing = {
        around
        for run in live
        if run.past or any(node.undo is not None and node.status in _BEGUN for node in run.nodes)
        for around in live
        if run.is_inside(around)
    }
    for run in live:
        status = WorkflowStatus.FAILED if run is top else WorkflowStatus.CANCELLED
        run.error = _DEADLINE if run is top else _AROUND
        if run in undoing:
            run.status, run.ends_as = WorkflowStatus.RUNNING, status
        else:
            run.status = status
    for run in live:
        for node in run.nodes:
            if node.status.is_terminal or (node.status is NodeStatus.RUNNING and node.child in undoing):
                continue
            if node.status is NodeStatus.RUNNING:
                node.end(NodeStatus.FAILED, error=_DEADLINE)
            else:
                node.skip("deadline", _DEADLINE)
            if node.task is not None and not node.task.sent.status.is_terminal:
                node.task.sent.status = TaskStatus.CANCELLED
        run.left = sum(not node.status.is_terminal for node in run.nodes)
    return [run for run in reversed(live) if run in undoing and not run.left]
