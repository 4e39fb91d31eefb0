"""One step of one workflow: a short transaction that applies everything that has ended, and starts what follows.

Locks are taken in one order, here and in the client: workflow rows from the root downwards, nodes by their index,
tasks. A step holds its workflow's row, so of two workers that end two parents of a join at the same instant one comes
second, and finds the counters of the first.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from horsies._pg.statements import load
from horsies.codec import encode_error
from horsies.errors import OperationalErrorCode, OutcomeCode, RetrievalCode
from horsies.ids import new_id, new_ids
from horsies.result import TaskError
from horsies.status import NodeStatus, WorkflowStatus
from horsies_worker.finalizer import is_data_error
from horsies_worker.session import SET_LOCAL_CLAIM_SETTINGS
from horsies_worker.syncpoints import reached
from horsies_worker.workflows.failures import INSIDE, LISTED, failure, inside
from horsies_worker.workflows.halting import BadRow, cases_of, fail_run, is_own_fault, note_inside, pause
from horsies_worker.workflows.resolve import Readiness, join_of, outcome, readiness

_log = logging.getLogger("horsies.worker")

CHUNK: Final = 1_000
"""Nodes per statement and, of those that wait to be enqueued, per step."""

SKIPPED: Final = encode_error(TaskError(OutcomeCode.UPSTREAM_SKIPPED, "a node that it waits for failed or was skipped"))
NOT_READY: Final = encode_error(TaskError(RetrievalCode.RESULT_NOT_READY, "had not ended when this node became ready"))
NOT_AVAILABLE: Final = encode_error(TaskError(RetrievalCode.RESULT_NOT_AVAILABLE, "it ended without a stored result"))
LOST: Final = encode_error(TaskError(OperationalErrorCode.WORKFLOW_ENQUEUE_FAILED, "the row of its task is gone"))


@dataclass
class Work:
    """What a step is told to look at: at tasks and at workflows inside that have ended. `ready`: at nodes that were
    left to be enqueued; `paused`: at workflows inside that are paused; `whole`: at everything that is under way."""

    task_ids: list[str] = field(default_factory=list[str])
    child_ids: list[str] = field(default_factory=list[str])
    ready: bool = False
    paused: bool = False
    whole: bool = False


Outcome = str | TaskError
"""Of a node that was ready: "enqueued", "launched", "skipped", or the error that it ends with."""


@dataclass
class _Node:
    index: int
    is_subworkflow: bool
    is_map: bool
    child_id: str | None


def _node(row: Mapping[str, Any]) -> _Node:
    return _Node(row["task_index"], row["is_subworkflow"], bool(row["is_map"]), row["sub_workflow_id"])


class Step:
    """Statements for one schema; `take` makes one step."""

    def __init__(self, schema: str | None, *, max_bytes: int, pooled: bool) -> None:
        self.statements = {
            **load("horsies._pg", "workflows.sql", schema),
            **load("horsies_worker", "workflows.sql", schema),
        }
        self._max_bytes = max_bytes
        self._pooled = pooled

    async def take(self, connection: Any, workflow_id: str, work: Work) -> dict[str, Work]:
        """Make the step; returns which workflows are to be stepped next, and why."""
        try:
            return await _OneStep(self, connection, workflow_id, careful=False).take(work)
        except Exception as error:
            if not is_own_fault(error):
                raise
        try:
            # one node that cannot be enqueued must not hold the others: again, with a savepoint around each
            return await _OneStep(self, connection, workflow_id, careful=True).take(work)
        except Exception as error:
            if not is_own_fault(error):
                raise
            _log.error(
                "workflow %s cannot go on for what its own rows hold: it ends FAILED", workflow_id, exc_info=error
            )
            reason = f"its rows cannot be processed: {type(error).__name__}: {error}"
        return await self.give_up(connection, workflow_id, reason[:2000])

    async def give_up(self, connection: Any, workflow_id: str, reason: str) -> dict[str, Work]:
        """End a run whose own data make its steps fail, so that it is not tried for ever."""
        async with connection.transaction(isolation="read_committed"):
            if self._pooled:
                await connection.execute(SET_LOCAL_CLAIM_SETTINGS)
            around = await fail_run(self, connection, workflow_id, reason)
        following = {workflow_id: Work(whole=True)}  # what ran to its end meanwhile is recorded
        return following if around is None else {**following, around: Work(child_ids=[workflow_id])}

    async def fetch(self, connection: Any, name: str, *values: Any) -> list[Any]:
        return await connection.fetch(self.statements[name].sql, *values)

    @property
    def max_bytes(self) -> int:
        return self._max_bytes

    @property
    def pooled(self) -> bool:
        return self._pooled


class _OneStep:
    def __init__(self, step: Step, connection: Any, workflow_id: str, *, careful: bool) -> None:
        self._step = step
        self._connection = connection
        self._id = workflow_id
        self._careful = careful
        self._next: dict[str, Work] = {}
        self._has_failed = False
        self._nodes_left = 0

    async def _fetch(self, name: str, *values: Any) -> list[Any]:
        return await self._step.fetch(self._connection, name, self._id, *values)

    async def take(self, work: Work) -> dict[str, Work]:
        async with self._connection.transaction(isolation="read_committed"):
            if self._step.pooled:
                await self._connection.execute(SET_LOCAL_CLAIM_SETTINGS)
            rows = await self._fetch("lock_workflow")
            if not rows:
                return {}
            await reached("workflow_locked")
            await self._advance(rows[0], work)
            await reached("before_workflow_commit")
        await reached("after_workflow_commit")
        return self._next

    async def _advance(self, workflow: Mapping[str, Any], work: Work) -> None:
        ended: list[Any] = []
        if work.whole or work.task_ids:
            ended = await self._fetch("settle_tasks", None if work.whole else work.task_ids, LOST)
        if work.whole or work.child_ids:
            ended += await self._settle_children(None if work.whole else work.child_ids)
        await reached("workflow_settled")
        status = WorkflowStatus(workflow["status"])
        if status.is_terminal:
            return  # it was stopped: what still ran is recorded, nothing follows from it
        self._nodes_left = workflow["nodes_left"]
        ready = await self._settle(ended)
        if status is WorkflowStatus.PAUSED and workflow["paused_inside"]:
            # paused for a workflow inside it and nothing else: that one may have ended, or go on
            status = WorkflowStatus.RUNNING if ready or not self._nodes_left else await self._note_inside(workflow)
        if self._has_failed and workflow["on_error"] == "pause" and status is WorkflowStatus.RUNNING:
            await self._pause(workflow)
            status = WorkflowStatus.PAUSED
        if status is not WorkflowStatus.RUNNING:
            if ready:
                await self._fetch("mark_ready", [node.index for node in ready])
            return
        if workflow["status"] == WorkflowStatus.PAUSED:
            await self._fetch("note_paused_inside", False, WorkflowStatus.RUNNING.value, None)
        if work.whole or work.ready:
            rows = await self._fetch("ready_nodes", CHUNK)
            ready += map(_node, rows)
            if len(rows) == CHUNK:
                self._next[self._id] = Work(ready=True)
        while ready:
            # what turns out to be impossible ends here, and may make others ready, or skip them
            ready = await self._settle(await self._start(ready))
            if self._has_failed and workflow["on_error"] == "pause":
                await self._pause(workflow)
                if ready:
                    await self._fetch("mark_ready", [node.index for node in ready])
                return
        await reached("workflow_enqueued")
        if not self._nodes_left:
            await self._finish(workflow)
        elif work.whole or work.paused or workflow["paused_inside"]:
            await self._note_inside(workflow)
            if work.whole:
                await self._unstick()

    # -- nodes that have ended -------------------------------------------------------------------

    async def _settle_children(self, child_ids: list[str] | None) -> list[Any]:
        """End the nodes whose workflows have ended; a failed one is told what failed inside."""
        rows = await self._fetch("settle_children", INSIDE, child_ids)
        failed = [row for row in rows if row["status"] == NodeStatus.FAILED]
        if failed:
            errors = [inside(row["inner_error"]) for row in failed]
            await self._fetch("word_errors", [row["task_index"] for row in failed], errors)
        return rows

    async def _settle(self, ended: Sequence[Mapping[str, Any]]) -> list[_Node]:
        """Count down what waits for these; skip what can no longer run, and so on. Returns what can run now."""
        # by index: an `any` that is ready may hear of another end, of a skip, before it is enqueued
        ready: dict[int, _Node] = {}
        while ended:
            self._has_failed |= any(row["status"] == NodeStatus.FAILED for row in ended)
            skipped: list[int] = []
            for row in await self._count_down(ended):
                match readiness(join_of(row)):
                    case Readiness.RUN:
                        ready[row["task_index"]] = _node(row)
                    case Readiness.SKIP:
                        skipped.append(row["task_index"])
                    case Readiness.WAIT:
                        pass
            ended = await self._end(skipped, NodeStatus.SKIPPED, SKIPPED) if skipped else []
        return list(ready.values())

    async def _count_down(self, ended: Sequence[Mapping[str, Any]]) -> list[Any]:
        rows = await self._fetch(
            "count_down",
            [row["task_index"] for row in ended],
            [row["status"] == NodeStatus.COMPLETED for row in ended],
        )
        self._nodes_left = rows[0]["nodes_left"]
        return [row for row in rows if row["task_index"] is not None]

    async def _end(self, indexes: Sequence[int], status: NodeStatus, error: str) -> list[Any]:
        count = len(indexes)
        return await self._fetch("end_nodes", list(indexes), [status.value] * count, [error] * count)

    # -- nodes that are ready --------------------------------------------------------------------

    async def _start(self, ready: Sequence[_Node]) -> list[Any]:
        """Enqueue or launch them; returns the ones that ended instead."""
        tasks = [node.index for node in ready if not node.is_subworkflow]
        inner = {node.index: node for node in ready if node.is_subworkflow}
        outcomes: dict[int, Outcome] = {}
        for at in range(0, len(tasks), CHUNK):
            outcomes |= await self._enqueue(tasks[at : at + CHUNK])
        # a retried node has its workflow already, with the values that it was given
        new = [index for index, node in inner.items() if node.child_id is None]
        for at in range(0, len(new), CHUNK):
            rows = await self._fetch("missing_values", new[at : at + CHUNK])
            outcomes |= {row["task_index"]: self._outcome(row) for row in rows}
        for index, node in inner.items():
            if index not in outcomes:
                outcomes[index] = await self._launch(node)
        ended: list[Any] = []
        if gaps := [index for index, what in outcomes.items() if what == "skipped"]:
            ended += await self._end(gaps, NodeStatus.SKIPPED, SKIPPED)
        for index, what in outcomes.items():
            if isinstance(what, TaskError):
                ended += await self._end([index], NodeStatus.FAILED, encode_error(what))
        return ended

    def _outcome(self, row: Mapping[str, Any]) -> Outcome:
        match row["outcome"]:
            case "no value":
                message = f"node {row['missing']!r}, whose value it takes, completed without a stored result"
                return TaskError(RetrievalCode.RESULT_NOT_AVAILABLE, message)
            case "too large":
                return _cannot(f"with what it is given its arguments are larger than {self._step.max_bytes:,} bytes")
            case what:
                return what

    async def _enqueue(self, indexes: Sequence[int]) -> dict[int, Outcome]:
        values = (list(indexes), new_ids(len(indexes)), NOT_READY, self._step.max_bytes, NOT_AVAILABLE)
        if not self._careful:
            rows = await self._fetch("enqueue_nodes", *values)
        else:
            try:
                async with self._connection.transaction():  # a savepoint
                    rows = await self._fetch("enqueue_nodes", *values)
            except Exception as error:
                if not is_data_error(error):
                    raise
                if len(indexes) == 1:
                    return {indexes[0]: _cannot(f"its arguments cannot be put together: {error}")}
                half = len(indexes) // 2
                return await self._enqueue(indexes[:half]) | await self._enqueue(indexes[half:])
        return {row["task_index"]: self._outcome(row) for row in rows}

    async def _launch(self, node: _Node) -> Outcome:
        if node.child_id is not None and (rows := await self._fetch("reopen_child", node.index)):
            # it was retried: the workflow in it goes on where it stopped, or is found to have ended
            child = rows[0]
            is_open = child["status"] == WorkflowStatus.PENDING
            following = {child["child_id"]: Work(ready=True)} if is_open else {self._id: Work(whole=True)}
            self._next |= following
            return "launched"
        child_id = new_id()
        name = "launch_map" if node.is_map else "launch_workflow"
        try:
            if self._careful:
                async with self._connection.transaction():  # a savepoint
                    rows = await self._fetch(name, node.index, child_id)
            else:
                rows = await self._fetch(name, node.index, child_id)
        except Exception as error:
            if not self._careful or not is_data_error(error):
                raise
            return _cannot(f"the workflow inside it cannot be made: {error}")
        match rows[0]["outcome"] if rows else None:
            case None:
                return "launched"  # another step has done it
            case "too wide":
                return _cannot("the list has more items than its max_width allows")
            case "not a list":
                return _cannot("what it should go through is not a list")
            case what:
                self._next[child_id] = Work(ready=True)
                return what

    # -- the workflow ----------------------------------------------------------------------------

    async def _pause(self, workflow: Mapping[str, Any]) -> None:
        await pause(self._step, self._connection, self._id)
        if workflow["parent_workflow_id"] is not None:
            self._next[workflow["parent_workflow_id"]] = Work(paused=True)

    async def _note_inside(self, workflow: Mapping[str, Any]) -> WorkflowStatus:
        status = await note_inside(self._step, self._connection, self._id)
        if workflow["parent_workflow_id"] is not None and status != workflow["status"]:
            self._next[workflow["parent_workflow_id"]] = Work(paused=True)
        return status

    async def _unstick(self) -> None:
        """If nothing of a run is under way although nodes wait, which no step leaves behind: count anew, and go on with
        what can run or never will. A run in which nothing can has dependencies that make no sense."""
        if await self._fetch("live_nodes"):
            return
        await self._step.fetch(self._connection, "recount_workflows", [self._id])
        rows = await self._fetch("waiting_nodes")
        decided = {row["task_index"]: readiness(join_of(row)) for row in rows}
        if rows and all(what is Readiness.WAIT for what in decided.values()):
            raise BadRow(f"no node is under way, and none of the {len(rows)} that wait can ever run")
        skipped = [index for index, what in decided.items() if what is Readiness.SKIP]
        if ready := await self._settle(await self._end(skipped, NodeStatus.SKIPPED, SKIPPED)):
            await self._fetch("mark_ready", [node.index for node in ready])
        self._next[self._id] = Work(ready=True)

    async def _finish(self, workflow: Mapping[str, Any]) -> None:
        error = None
        try:
            cases = cases_of(workflow["success_policy"])
            named = sorted({index for case in cases or () for index in case})
            facts = await self._fetch("finish_facts", named, LISTED)
            status = outcome(cases, {row["task_index"]: row["status"] for row in facts})
            if status is not WorkflowStatus.COMPLETED:
                error = failure(facts, await self._fetch("first_failure"), has_policy=cases is not None)
        except BadRow as bad:
            status, error = WorkflowStatus.FAILED, encode_error(TaskError(OutcomeCode.WORKFLOW_FAILED, str(bad)))
        large = TaskError(
            OperationalErrorCode.WORKFLOW_ENQUEUE_FAILED, f"the output is larger than {self._step.max_bytes:,} bytes"
        )
        await self._fetch("finish_workflow", status.value, error, self._step.max_bytes, encode_error(large))
        if workflow["parent_workflow_id"] is not None:
            self._next[workflow["parent_workflow_id"]] = Work(child_ids=[self._id])


def _cannot(why: str) -> TaskError:
    return TaskError(OperationalErrorCode.WORKFLOW_ENQUEUE_FAILED, why)
