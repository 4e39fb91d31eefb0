"""Ends a run whose nodes have all ended, or begins to undo what it did. In the step's transaction."""

from collections.abc import Mapping
from typing import Any

from horsies.codec import encode_error
from horsies.errors import OutcomeCode
from horsies.events import WorkflowEnded
from horsies.result import TaskError
from horsies.status import WorkflowStatus
from horsies_worker.output.log_context import log
from horsies_worker.workflows.failures import LISTED, failure
from horsies_worker.workflows.halting import BadRow, cases_of, is_partial
from horsies_worker.workflows.refused import NO_OUTPUT, NOT_AVAILABLE, large_output
from horsies_worker.workflows.resolve import outcome
from horsies_worker.workflows.undoing import with_failed_compensation
from horsies_worker.workflows.work import RunStatements, Work


class Finisher:
    """The end of one run, in one step. `following`: the runs to step next."""

    def __init__(self, run: RunStatements, max_bytes: int, following: dict[str, Work]) -> None:
        self._fetch = run.fetch
        self._envelopes = run.envelopes
        self._id = run.workflow_id
        self._max_bytes = max_bytes
        self._following = following

    async def finish(self, workflow: Mapping[str, Any]) -> list[WorkflowEnded]:
        """End the run, or begin to undo what it did. Returns the events to tell after the commit."""
        if workflow["ends_as"] is not None:
            # a retried run may have undone what it did before it continued, and has more to undo now
            if await self._undo(workflow["ends_as"], workflow["error"]):
                return []
            (facts,) = await self._fetch("compensations")
            status = WorkflowStatus(workflow["ends_as"])
            return await self._end(
                workflow, status, with_failed_compensation(workflow["error"], facts, self._envelopes)
            )
        error = None
        try:
            if not workflow["nodes_left"] and (await self._fetch("lacks_nodes"))[0]["lacks_nodes"]:
                raise BadRow("it has no nodes")
            cases = cases_of(workflow["success_policy"])
            named = sorted({index for case in cases or () for index in case})
            facts = await self._fetch("finish_facts", named, LISTED)
            status = outcome(cases, {row["task_index"]: row["status"] for row in facts})
            if is_partial(workflow["success_policy"]):
                status = WorkflowStatus.COMPLETED
            if status is not WorkflowStatus.COMPLETED:
                first = await self._fetch("first_failure")
                error = failure(facts, first, has_policy=cases is not None, envelopes=self._envelopes)
        except BadRow as bad:
            log.error("workflow %s ends FAILED: %s", self._id, bad)
            status, error = WorkflowStatus.FAILED, encode_error(TaskError(OutcomeCode.WORKFLOW_FAILED, str(bad)))
        if status is WorkflowStatus.FAILED and await self._undo(status.value, error):
            return []
        return await self._end(workflow, status, error)

    async def _undo(self, ends_as: str, error: str | None) -> bool:
        """Begin to undo what the run did. False: there is nothing to undo."""
        planned = bool(await self._fetch("plan_compensations", ends_as, error))
        if planned:
            self._following[self._id] = Work(ready=True)
        return planned

    async def _end(self, workflow: Mapping[str, Any], status: WorkflowStatus, error: str | None) -> list[WorkflowEnded]:
        large = encode_error(large_output(self._max_bytes))
        rows = await self._fetch(
            "finish_workflow", status.value, error, self._max_bytes, large, NO_OUTPUT, NOT_AVAILABLE
        )
        if workflow["parent_workflow_id"] is not None:
            self._following[workflow["parent_workflow_id"]] = Work(child_ids=[self._id])
        # the status of the row: FAILED for an output that is too large
        return [WorkflowEnded(self._id, workflow["name"], row["status"]) for row in rows]
