"""One step of one workflow: a short transaction that ends the nodes of ended tasks and starts the nodes that follow.

Locks are taken in one order, here and in the client: workflow rows from the root downwards, nodes by their index,
tasks. A step holds its workflow's row: when two workers end two parents of a join at the same time, the second one sees
the counters of the first.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from horsies._pg.refusals import worded
from horsies._pg.transient import is_from_driver
from horsies.codec import encode_error
from horsies.envelopes import PLAIN_ENVELOPES, Envelopes
from horsies.events import WorkflowEnded
from horsies.result import TaskError
from horsies.status import NodeStatus, WorkflowStatus
from horsies_worker.database.session import Session
from horsies_worker.events.bus import SILENT, EventBus
from horsies_worker.output.log_context import log
from horsies_worker.syncpoints import reached
from horsies_worker.workflows.conditions import decode_conditions
from horsies_worker.workflows.failures import INSIDE, inside
from horsies_worker.workflows.finishing import Finisher
from horsies_worker.workflows.halting import (
    BadRow,
    fail_run,
    is_own_fault,
    note_inside,
    pause,
    stop_overdue,
    why_stuck,
)
from horsies_worker.workflows.refused import (
    LOST,
    NOT_TAKEN,
    SKIPPED,
    STOPPED,
    no_condition,
)
from horsies_worker.workflows.resolve import Readiness, join_of, readiness
from horsies_worker.workflows.starting import CHUNK, GAPS, ReadyNode, Starter, ready_node, refusal_to_continue
from horsies_worker.workflows.waiting import Waits
from horsies_worker.workflows.work import RunStatements, Work

UPSTREAM: Final = ("upstream", SKIPPED)
BRANCH: Final = ("not_taken", NOT_TAKEN)


async def take_step(
    session: Session,
    connection: Any,
    workflow_id: str,
    work: Work,
    *,
    max_bytes: int,
    bus: EventBus = SILENT,
    on_clock: Callable[[float], None] = lambda _: None,
    envelopes: Envelopes = PLAIN_ENVELOPES,
    lock_wait: str | None = None,
) -> dict[str, Work]:
    """Take one step; returns the workflows to step next, and what to check in each. `on_clock` is told in how many
    seconds the next clock of the run comes. `envelopes`: those of the app, for conditions, lists and errors.
    `lock_wait`: the longest wait for a lock; None for the limit that the connection has."""
    run = RunStatements(session.queries, connection, workflow_id, envelopes)
    try:
        return await _Step(session, run, max_bytes, bus, on_clock, lock_wait, careful=False).take(work)
    except Exception as error:
        if not is_own_fault(error):
            raise
    try:
        # one node cannot be enqueued: repeat the step with savepoints, so that the others can
        return await _Step(session, run, max_bytes, bus, on_clock, lock_wait, careful=True).take(work)
    except Exception as error:
        if not is_own_fault(error):
            raise
        told = f"{error}" if isinstance(error, BadRow) else worded(error)
        reason = f"its rows cannot be processed: {told}".replace("\n", "; ")[:2000]
        # the message of the database or of a BadRow names the value; any other error may be a bug of this code
        is_clear = isinstance(error, BadRow) or is_from_driver(error)
        log.error("workflow %s ends FAILED: %s", workflow_id, reason, exc_info=None if is_clear else error)
    return await give_up(session, connection, workflow_id, reason, bus, lock_wait)


async def give_up(
    session: Session,
    connection: Any,
    workflow_id: str,
    reason: str,
    bus: EventBus = SILENT,
    lock_wait: str | None = None,
) -> dict[str, Work]:
    """End a run whose own data make its steps fail: it would fail for ever."""
    async with session.transaction(connection):
        await session.queries.fetch(connection, "limit_lock_waits", lock_wait)
        around, ended = await fail_run(session.queries, connection, workflow_id, reason)
    for event in ended:
        bus.emit(event)
    following = {workflow_id: Work(whole=True)}  # record tasks that ended meanwhile
    return following if around is None else {**following, around: Work(child_ids=[workflow_id])}


class _Step:
    def __init__(
        self,
        session: Session,
        run: RunStatements,
        max_bytes: int,
        bus: EventBus,
        on_clock: Callable[[float], None],
        lock_wait: str | None,
        *,
        careful: bool,
    ) -> None:
        self._bus = bus
        self._lock_wait = lock_wait
        self._on_clock = on_clock
        self._ended: list[WorkflowEnded] = []
        self._session = session
        self._queries = session.queries
        self._connection = run.connection
        self._id = run.workflow_id
        self._envelopes = run.envelopes
        self._max_bytes = max_bytes
        self._has_failed = False
        self._nodes_left = 0
        self._ended_count = 0
        self._is_still = False
        self._rerun: list[int] = []
        self._continued: list[int] = []
        self._fetch = run.fetch
        self._waits = Waits(run)
        self._starter = Starter(run, max_bytes, careful=careful)
        self._next = self._starter.following
        self._finisher = Finisher(run, max_bytes, self._next)

    async def take(self, work: Work) -> dict[str, Work]:
        async with self._session.transaction(self._connection):
            rows = await self._fetch("lock_workflow", self._lock_wait)
            if not rows:
                return {}
            await reached("workflow_locked")
            clock = None
            await self._advance(rows[0], work)
            is_open = not WorkflowStatus(rows[0]["status"]).is_terminal
            if is_open and (work.whole or self._waits.have_changed):
                clock = await self._waits.next_clock()
            await reached("before_workflow_commit")
        for event in self._ended:
            self._bus.emit(event)
        if clock is not None:
            self._on_clock(clock)
        await reached("after_workflow_commit")
        return self._next

    async def _advance(self, workflow: Mapping[str, Any], work: Work) -> None:
        status = WorkflowStatus(workflow["status"])
        self._ended_count = workflow["ended_count"]
        ended: list[Any] = []
        if work.whole or work.task_ids:
            ended = await self._settle_tasks(None if work.whole else work.task_ids, workflow)
        if work.whole or work.child_ids:
            ended += await self._settle_children(None if work.whole else work.child_ids, len(ended))
        if work.whole or work.signals:
            is_begun, more = await self._settle_waits(status, work, workflow, len(ended))
            ended += more
            if is_begun:
                status, work = WorkflowStatus.RUNNING, replace(work, whole=True)
        await self._decode_conditions(ended)  # also in a run that was stopped, and may be retried
        await reached("workflow_settled")
        if status.is_terminal:
            return  # the run was stopped: its last tasks are recorded, and nothing follows
        self._nodes_left = workflow["nodes_left"]
        ready = await self._settle(ended, is_whole=work.whole and status is not WorkflowStatus.PENDING)
        if workflow["is_overdue"]:
            await self._stop_overdue()
            return
        if self._continued and await self._continue(workflow, ready):
            self._waits.have_changed = True
            return
        if status is WorkflowStatus.PAUSED and workflow["paused_inside"]:
            # paused only for a workflow inside, which may have ended or been resumed
            status = WorkflowStatus.RUNNING if ready or not self._nodes_left else await self._note_inside(workflow)
        is_held_for_itself = status is not WorkflowStatus.RUNNING and not workflow["paused_along"]
        pauses = workflow["on_error"] == "pause" and workflow["ends_as"] is None
        if self._has_failed and pauses and not is_held_for_itself:
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
            ready += map(ready_node, rows)
            if len(rows) == CHUNK:
                self._next[self._id] = Work(ready=True)
        has_started = bool(ready or self._continued)
        while ready:
            # nodes that cannot start end here, which may make others ready or skip them
            ready = await self._settle(await self._start(ready))
            if self._has_failed and pauses:
                await self._pause(workflow)
                if ready:
                    await self._fetch("mark_ready", [node.index for node in ready])
                return
        await reached("workflow_enqueued")
        if not self._nodes_left:
            self._ended += await self._finisher.finish(workflow)
        else:
            if work.whole or work.paused or workflow["paused_inside"]:
                await self._note_inside(workflow)
            if work.whole or (self._is_still and not has_started):
                await self._unstick()

    # -- nodes that have ended -------------------------------------------------------------------

    async def _settle_tasks(self, task_ids: list[str] | None, workflow: Mapping[str, Any]) -> list[Any]:
        """End the nodes whose tasks have ended. A node whose run was retried while its task was being stopped runs
        again, unless the task completed. A node whose task returned Continue goes on as a workflow."""
        is_open = not WorkflowStatus(workflow["status"]).is_terminal
        refusal = (
            refusal_to_continue(workflow["ends_as"], workflow["continues"], workflow["depth"]) if is_open else STOPPED
        )
        values = (LOST, is_open, refusal is None, refusal, self._ended_count)
        rows = await self._fetch("settle_tasks", task_ids, *values)
        self._rerun = [row["task_index"] for row in rows if row["status"] == NodeStatus.ENQUEUED]
        self._continued = [row["task_index"] for row in rows if row["status"] == NodeStatus.RUNNING]
        ended = [row for row in rows if row["status"] not in (NodeStatus.ENQUEUED, NodeStatus.RUNNING)]
        if kept := [row["task_id"] for row in ended if row["is_retried"]]:
            await self._queries.fetch(self._connection, "keep_tasks", kept)
        return ended

    async def _settle_waits(
        self, status: WorkflowStatus, work: Work, workflow: Mapping[str, Any], before: int
    ) -> tuple[bool, list[Any]]:
        """End waits: signals have come, or their time. A signal wins over a timeout. Also whether the run begins now,
        which was to start later. `before`: how many nodes have ended in this step."""
        if status.is_terminal:
            await self._waits.notice()
            return False, []
        if status is WorkflowStatus.PENDING:
            await self._waits.notice()  # kept for the nodes that wait when the run has begun
            return workflow["may_start"] and bool(await self._fetch("begin_run")), []
        count = self._ended_count + before
        ended = await self._waits.consume(count)
        if work.whole:
            is_paused = status is WorkflowStatus.PAUSED
            ended += await self._waits.end_due(count + len(ended), is_paused=is_paused)
        return False, ended

    async def _settle_children(self, child_ids: list[str] | None, before: int) -> list[Any]:
        """End the nodes whose workflows have ended; a failed node's error names what failed inside."""
        rows = await self._fetch("settle_children", INSIDE, child_ids, self._ended_count + before)
        failed = [row for row in rows if row["status"] == NodeStatus.FAILED]
        if failed:
            errors = [inside(row["inner_error"], self._envelopes) for row in failed]
            await self._fetch("word_errors", [row["task_index"] for row in failed], errors)
        return rows

    async def _settle(self, ended: Sequence[Mapping[str, Any]], *, is_whole: bool = False) -> list[ReadyNode]:
        """Count down the dependents of ended nodes and skip those that can no longer run, repeatedly. Returns the nodes
        that can run now."""
        # by index: an `any` node that is ready may be counted down again before it is enqueued
        ready: dict[int, ReadyNode] = {}
        while ended or self._rerun or is_whole:
            self._has_failed |= any(row["status"] == NodeStatus.FAILED for row in ended)
            rows = await self._count_down(ended) if ended else []
            if self._rerun:  # after the count: it is exact for what waits, and these have not waited
                rows += await self._fetch("rerun_nodes", self._rerun)
                self._rerun = []
            if is_whole:
                rows += await self._fetch("undecided_nodes")
                is_whole = False
            skipped: dict[int, tuple[str, str]] = {}
            broken: list[int] = []
            for row in rows:
                match readiness(join_of(row)):
                    case Readiness.RUN:
                        ready[row["task_index"]] = ready_node(row)
                    case Readiness.SKIP:
                        skipped[row["task_index"]] = UPSTREAM
                    case Readiness.NOT_TAKEN:
                        skipped[row["task_index"]] = BRANCH
                    case Readiness.FAIL:
                        broken.append(row["task_index"])
                    case Readiness.WAIT:
                        pass
            ended = await self._skip(skipped) if skipped else []
            for index in broken:
                ended += await self._fail_node(index, no_condition())
        return list(ready.values())

    async def _count_down(self, ended: Sequence[Mapping[str, Any]]) -> list[Any]:
        rows = await self._fetch(
            "count_down",
            [row["task_index"] for row in ended],
            [row["status"] == NodeStatus.COMPLETED for row in ended],
            [row.get("skip_reason") == "not_taken" for row in ended],
        )
        self._nodes_left = rows[0]["nodes_left"]
        self._is_still = rows[0]["is_still"]
        self._ended_count += len(ended)
        return [row for row in rows if row["task_index"] is not None]

    async def _skip(self, reasons: Mapping[int, tuple[str, str]]) -> list[Any]:
        """Skip nodes, each with the reason and the error that it gets."""
        words = [reason for reason, _ in reasons.values()]
        errors = [error for _, error in reasons.values()]
        return await self._fetch("end_nodes", list(reasons), [NodeStatus.SKIPPED.value] * len(words), errors, words)

    async def _fail_node(self, index: int, error: TaskError) -> list[Any]:
        return await self._fetch("end_nodes", [index], [NodeStatus.FAILED.value], [encode_error(error)], [None])

    # -- nodes that are ready --------------------------------------------------------------------

    async def _start(self, ready: Sequence[ReadyNode]) -> list[Any]:
        """Start ready nodes; returns those that ended instead."""
        outcomes = await self._starter.start(ready)
        ended: list[Any] = []
        if gaps := {
            index: UPSTREAM if what == "skipped" else BRANCH for index, what in outcomes.items() if what in GAPS
        }:
            ended += await self._skip(gaps)
        for index, what in outcomes.items():
            if isinstance(what, TaskError):
                ended += await self._fail_node(index, what)
        if waits := [index for index, what in outcomes.items() if what == "waits"]:
            ended += await self._waits.begin(waits, self._ended_count + len(ended))
            await self._decode_conditions(ended)
        return ended

    async def _decode_conditions(self, ended: Sequence[Mapping[str, Any]]) -> None:
        if ended and self._envelopes.codec is not None:
            await decode_conditions(self._fetch, self._envelopes, ended)

    async def _continue(self, workflow: Mapping[str, Any], ready: Sequence[ReadyNode]) -> bool:
        """Tasks returned Continue. True: the run itself goes on in its own place with other nodes, because its output
        continues and nothing else is open."""
        is_alone = self._nodes_left == 1 and not ready and len(self._continued) == 1
        # the new nodes decide how a run ends that goes on in its place: not while a failed node or a policy does, as
        # that of a batch, which keeps its members
        is_output = is_alone and self._continued[0] == workflow["output_task_index"]
        if is_output and workflow["success_policy"] is None and not await self._fetch("first_failure"):
            await self._starter.continue_in_place(self._continued[0])
            return True
        is_paused = workflow["status"] == WorkflowStatus.PAUSED
        await self._starter.continue_inside(self._continued, is_paused=is_paused)
        return False

    # -- the workflow ----------------------------------------------------------------------------

    async def _stop_overdue(self) -> None:
        """The deadline has passed: what has not started never will, what runs is asked to stop."""
        around, ended = await stop_overdue(self._queries, self._connection, self._id)
        self._ended += ended
        self._next[self._id] = Work(whole=True)  # record tasks that ended meanwhile, and undo
        if around is not None and any(event.workflow_id == self._id for event in ended):
            self._next[around] = Work(child_ids=[self._id])

    async def _pause(self, workflow: Mapping[str, Any]) -> None:
        await pause(self._queries, self._connection, self._id, self._envelopes)
        if workflow["parent_workflow_id"] is not None:
            self._next[workflow["parent_workflow_id"]] = Work(paused=True)

    async def _note_inside(self, workflow: Mapping[str, Any]) -> WorkflowStatus:
        status = await note_inside(self._queries, self._connection, self._id, self._envelopes)
        if workflow["parent_workflow_id"] is not None and status != workflow["status"]:
            self._next[workflow["parent_workflow_id"]] = Work(paused=True)
        return status

    async def _unstick(self) -> None:
        """Repair a run in which nodes wait and nothing is under way, which no step leaves behind: count dependencies
        anew and continue. If no node can ever run, the dependencies are wrong, and the run fails."""
        if await self._fetch("live_nodes"):
            return
        await self._queries.fetch(self._connection, "recount_workflows", [self._id])
        rows = await self._fetch("waiting_nodes")
        decided = {row["task_index"]: readiness(join_of(row)) for row in rows}
        if rows and all(what is Readiness.WAIT for what in decided.values()):
            waiting = f"no node is under way, and none of the {len(rows)} that wait can ever run"
            raise BadRow(f"{waiting}: {why_stuck(await self._fetch('edges'))}")
        skipped = {index: UPSTREAM for index, what in decided.items() if what is Readiness.SKIP}
        skipped |= {index: BRANCH for index, what in decided.items() if what is Readiness.NOT_TAKEN}
        ready = [index for index, what in decided.items() if what is Readiness.RUN]
        ready += [node.index for node in await self._settle(await self._skip(skipped))]
        await self._fetch("mark_ready", ready)
        self._next[self._id] = Work(ready=True)
