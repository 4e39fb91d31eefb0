"""Operations on runs by their id: read, pause, resume, cancel, retry. `app.get_broker().workflows`.

Each operation is one short transaction: it locks the run and all runs nested in it from the top downwards, then acts. A
transaction that gets the locks later sees the change.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar

from horsies._checks import Checks
from horsies._pg.statements import Statement, load
from horsies._pg.transient import sqlstate
from horsies.envelopes import PLAIN_ENVELOPES, Envelopes
from horsies.errors import BrokerError, OutcomeCode, RetrievalCode, UsageError
from horsies.result import TaskError
from horsies.status import NodeStatus, WorkflowStatus
from horsies.workflow.info import PausedRun, WaitingNode, WorkflowInfo, WorkflowNodeInfo
from horsies.workflow.paths import Place, locate
from horsies.workflow.retrying import STOPPED, Row, Tree, missing_node, with_skipped
from horsies.workflow.run_options import Moment, check_moment, seconds_of

R = TypeVar("R")
Run = Callable[[Callable[[Any], Awaitable[Any]]], Awaitable[Any]]

_MAX_NODES: Final = 100_000
_MAX_PAUSED: Final = 20
_PERMISSION_DENIED: Final = "42501"
_UNIQUE_VIOLATION: Final = "23505"


class WorkflowControl:
    """The operations on runs, all coroutines; `WorkflowHandle` offers them without an event loop."""

    def __init__(self, run: Run, schema: str | None, envelopes: Envelopes = PLAIN_ENVELOPES) -> None:
        self._run = run
        self._envelopes = envelopes
        self._statements = load("horsies._pg", "workflows.sql", schema)

    # -- reading ---------------------------------------------------------------------------------

    async def info(self, workflow_id: str) -> WorkflowInfo | None:
        """One run; None when there is no such run."""
        try:
            rows = await self._rows("read_workflow", workflow_id)
        except BrokerError as error:
            if sqlstate(error) != _PERMISSION_DENIED:
                raise
            rows = await self._rows("show_workflow", workflow_id)  # a viewer may not read metadata
        return WorkflowInfo.from_row(rows[0]) if rows else None

    async def list(
        self, status: WorkflowStatus | Collection[WorkflowStatus] | None = None, limit: int = 50
    ) -> list[WorkflowInfo]:
        """Live runs first, then the newest ended ones; without the runs inside others. `status`: one state, or several
        of which each will do."""
        statuses = [status] if isinstance(status, str) else status
        rows = await self._rows("list_workflows", None if statuses is None else sorted(map(str, statuses)), limit)
        return [WorkflowInfo.from_row(row) for row in rows]

    async def nodes(self, workflow_id: str) -> list[WorkflowNodeInfo]:
        """The nodes of one run."""
        rows = await self._rows("read_nodes", workflow_id, _MAX_NODES)
        return [WorkflowNodeInfo.from_row(row) for row in rows]

    async def waiting(self, signal_name: str | None = None, limit: int = 100) -> list[WaitingNode]:
        """List nodes that wait for a signal, such as approvals that are still to be given; with `signal_name`, only for
        that signal. The node that has waited longest comes first."""
        return [WaitingNode.from_row(row) for row in await self._rows("waiting_nodes", signal_name, limit)]

    async def locate(self, workflow_id: str, path: str) -> list[Place]:
        """The nodes along a path such as `orders/item[3]`, the outermost first. Raises `UsageError`."""

        async def find(run: str, node_id: str) -> Sequence[Mapping[str, Any]]:
            return await self._rows("find_node", run, node_id)

        return await locate(find, workflow_id, path)

    async def run_at(self, workflow_id: str, path: str | None) -> str:
        """The id of the run in the node at this path; without a path, of the run itself."""
        if path is None or path == "":
            return workflow_id
        last = (await self.locate(workflow_id, path))[-1]
        if last.child_id is None:
            raise UsageError(f"there is no workflow in node {path!r} of workflow {workflow_id}, or it has not started")
        return last.child_id

    async def paused(self, workflow_id: str) -> list[PausedRun]:
        """Where a run is paused: itself, or workflows inside it, with the nodes that failed there."""
        rows = await self._rows("paused_runs", workflow_id, _MAX_PAUSED)
        nested = [row["id"] for row in rows if row["depth"]]
        along: dict[str, bool | None] = {}
        if nested:
            try:
                along = {row["id"]: row["is_along"] for row in await self._rows("paused_along", nested)}
            except BrokerError as error:
                if sqlstate(error) != _PERMISSION_DENIED:
                    raise
                along = dict.fromkeys(nested)  # a viewer may not read errors
        return [PausedRun.from_row(row, is_paused_along=along.get(row["id"], False)) for row in rows]

    async def results(self, workflow_id: str, node_ids: Sequence[str] | None = None) -> Mapping[str, str | None]:
        """The stored results by node; None for a node that has not ended, and an error RESULT_NOT_AVAILABLE for a node
        that ended without a stored result."""
        wanted = None if node_ids is None else list(node_ids)
        found = {row["node_id"]: row for row in await self._rows("read_node_results", workflow_id, wanted)}
        return {
            node_id: row["result"] or absent(row["node_id"], NodeStatus(row["status"]))
            for node_id, row in found.items()
        }

    async def inner_counts(self, workflow_id: str) -> Mapping[str, Mapping[str, Any]]:
        """By node: how the nodes of the workflow in it ended, for `summary_of`."""
        return {row["node_id"]: row for row in await self._rows("read_inner_counts", workflow_id)}

    async def error(self, workflow_id: str) -> str | None:
        """The stored error of a run that failed, was cancelled or is paused for a failure; None when it has none."""
        rows = await self._rows("read_workflow_error", workflow_id)
        return rows[0]["error"] if rows else None

    # -- acting ----------------------------------------------------------------------------------

    async def pause(self, workflow_id: str) -> bool:
        """See `WorkflowHandle.pause`."""

        async def act(connection: Any, tree: Tree, run: Row) -> bool:
            done = tree.to_pause(workflow_id, None)
            for ids, error in done:
                await self._fetch(connection, "pause_workflows", ids, error)
            if done and run["parent_workflow_id"] is not None:
                await self._fetch(connection, "tell_step", [run["parent_workflow_id"]])
            return bool(done)

        return await self._locked(workflow_id, act)

    async def resume(self, workflow_id: str) -> bool:
        """See `WorkflowHandle.resume`."""

        async def act(connection: Any, tree: Tree, run: Row) -> bool:
            ids = tree.to_resume_all(workflow_id)
            return bool(ids) and bool(await self._fetch(connection, "resume_workflows", ids))

        return await self._locked(workflow_id, act)

    async def cancel(self, workflow_id: str) -> bool:
        """See `WorkflowHandle.cancel`."""
        rows = await self._rows("cancel_workflow", workflow_id)
        return bool(rows[0]["is_cancelled"])

    async def signal(
        self, workflow_id: str, name: str, value: str, *, signal_id: str | None = None, path: str | None = None
    ) -> str:
        """Send a signal with this JSON text. Returns the outcome: DELIVERED, REPEATED, WORKFLOW_ENDED,
        WORKFLOW_NOT_FOUND, NODE_NOT_FOUND or NOT_STARTED (of the workflow at `path`)."""
        value = self._envelopes.wrap_value(value, "signal", name)
        rows = await self._rows("signal_workflow", workflow_id, name, value, signal_id, path)
        return rows[0]["outcome"]

    async def retry(self, workflow_id: str, node_id: str | None = None, deadline: Moment | None = None) -> bool:
        """See `WorkflowHandle.retry`."""
        checks = Checks(f"retry of workflow {workflow_id}")
        check_moment(checks, "deadline", deadline)
        if checks.problems:
            raise UsageError(str(checks.problems[0]))
        seconds = None if deadline is None or isinstance(deadline, datetime) else seconds_of(deadline)
        moment = deadline if isinstance(deadline, datetime) else None

        async def act(connection: Any, tree: Tree, run: Row) -> bool:
            done = await acted(connection, tree, run)
            if done and WorkflowStatus(run["status"]) in STOPPED:
                await self._fetch(connection, "set_deadline", workflow_id, moment, seconds)
            return done

        async def acted(connection: Any, tree: Tree, run: Row) -> bool:
            if WorkflowStatus(run["status"]).is_terminal and run["parent_workflow_id"] is not None:
                root = (tree.around(workflow_id) or [run])[-1]["id"]
                raise UsageError(f"workflow {workflow_id} is a part of workflow {root} and has ended: retry that one")
            if node_id is None:
                if await self._retry_compensations(connection, workflow_id):
                    return True
                return await self._retry(connection, tree, workflow_id, run, tree.failed_runs(workflow_id), None)
            return await self._retry_path(connection, tree, run, node_id)

        try:
            return await self._locked(workflow_id, act)
        except BrokerError as error:
            if sqlstate(error) != _UNIQUE_VIOLATION:
                raise
            why = "another live run has its unique key: wait until that has ended, or cancel it"
            raise UsageError(f"workflow {workflow_id} cannot be retried: {why}") from error

    async def _retry_path(self, connection: Any, tree: Tree, run: Row, path: str) -> bool:
        """Retry one node: of this run, or of a workflow inside it."""

        async def find(workflow_id: str, node_id: str) -> Sequence[Mapping[str, Any]]:
            return await self._fetch(connection, "find_node", workflow_id, node_id)

        try:
            places = await locate(find, run["id"], path)
        except UsageError:
            return await self._retry_node(connection, tree, run, path)  # says which nodes there are
        *around, last = places
        inner = tree.find(last.workflow_id)
        if inner is None or not around:
            return await self._retry_node(connection, tree, run, last.node_id)
        if not WorkflowStatus(inner["status"]).is_terminal:
            return await self._retry_node(connection, tree, inner, last.node_id)
        if inner["status"] == WorkflowStatus.COMPLETED:
            return False
        # the nodes around it failed with it, and run again up to a run that goes on
        for place in reversed(around):
            outer = tree.find(place.workflow_id)
            if outer is None or outer["status"] == WorkflowStatus.COMPLETED:
                return False
        moved: list[Row] = []
        reopened: list[str] = []
        for place in reversed(places):
            nodes = await self._fetch(connection, "read_graph", place.workflow_id)
            start = next(row for row in nodes if row["node_id"] == place.node_id)
            if start["status"] == NodeStatus.RUNNING:
                break  # this run goes on, and its node with it
            if start["status"] != NodeStatus.FAILED and not start["is_stopped"]:
                return False
            moved += await self._fetch(connection, "retry_nodes", [place.workflow_id], with_skipped(nodes, start))
            reopened.append(place.workflow_id)
        moved += [{"workflow_id": one} for one in await self._run_undone_again(connection, tree, reopened)]
        return await self._go_on(connection, tree, run["id"], None, reopened, moved)

    async def _retry_compensations(self, connection: Any, workflow_id: str) -> bool:
        """Go on undoing where a compensation failed."""
        if not await self._fetch(connection, "retry_compensations", workflow_id):
            return False
        await self._fetch(connection, "tell_step", [workflow_id])
        return True

    async def _retry_node(self, connection: Any, tree: Tree, run: Row, node_id: str) -> bool:
        nodes = await self._fetch(connection, "read_graph", run["id"])
        start = next((row for row in nodes if row["node_id"] == node_id), None)
        if start is None:
            raise UsageError(f"workflow {run['id']} has no {missing_node([row['node_id'] for row in nodes], node_id)}")
        if run["status"] == WorkflowStatus.COMPLETED:
            return False
        if start["undoes"]:
            return await self._retry_compensations(connection, run["id"])
        if start["status"] == NodeStatus.RUNNING:  # a live workflow: retry what failed in it, if it is paused
            inside = tree.failed_runs(start["sub_workflow_id"])
            return bool(inside) and await self._retry(connection, tree, run["id"], None, inside, None)
        if start["status"] != NodeStatus.FAILED and not start["is_stopped"]:
            return False
        if WorkflowStatus(run["status"]) not in STOPPED and run["ends_as"] is not None:
            return False  # it undoes what it did
        indexes = with_skipped(nodes, start)
        await self._refuse_takers(connection, tree, run, nodes, node_id, indexes)
        return await self._retry(connection, tree, run["id"], run, [run["id"]], indexes)

    async def _retry(
        self,
        connection: Any,
        tree: Tree,
        top: str,
        reopened: Row | None,
        runs: Sequence[str],
        indexes: Sequence[int] | None,
    ) -> bool:
        """Run the failed nodes of these runs again; with `indexes`, these nodes of the only run. The run `reopened`
        goes on even if none of its nodes failed (its output was too large, or its rows could not be processed)."""
        undone = await self._run_undone_again(connection, tree, runs)
        moved = list(await self._fetch(connection, "retry_nodes", list(runs), indexes)) if runs else []
        if indexes is not None:  # the workflows in these nodes continue where they stopped
            stopped = tree.stopped_below({row["sub_workflow_id"] for row in moved} - {None})
            if stopped:
                undone |= await self._run_undone_again(connection, tree, stopped)
                moved += await self._fetch(connection, "retry_nodes", stopped, None)
            runs = [*runs, *stopped]
        moved += [{"workflow_id": one} for one in undone]
        return await self._go_on(connection, tree, top, reopened, runs, moved)

    async def _go_on(
        self, connection: Any, tree: Tree, top: str, reopened: Row | None, runs: Sequence[str], moved: list[Row]
    ) -> bool:
        """Let runs go on whose nodes have been moved back."""
        from horsies.codec import encode_error

        if stopping := [row["id"] for row in tree.rows if _has_stopped_in(row, runs)]:
            moved += await self._fetch(connection, "retry_stopped_tasks", stopping)
        touched = {row["workflow_id"] for row in moved}
        if reopened is not None and WorkflowStatus(reopened["status"]) in STOPPED:
            touched.add(reopened["id"])
        if not touched:
            return False
        again = "a node that it depends on is run again: its node gets another task when that has ended"
        error = encode_error(TaskError(OutcomeCode.TASK_CANCELLED, again))
        await self._fetch(connection, "take_back_nodes", sorted(touched), error)
        if to_resume := tree.to_resume(top, touched):
            await self._fetch(connection, "resume_workflows", to_resume)
        recounted = [row["id"] for row in tree.rows if row["id"] in touched or _has_stopped_in(row, runs)]
        await self._fetch(connection, "recount_workflows", recounted)
        await self._fetch(connection, "tell_step", recounted)
        return True

    async def _run_undone_again(self, connection: Any, tree: Tree, runs: Sequence[str]) -> set[str]:
        """Let the nodes run again that these runs have undone, also those of workflows inside that had completed.
        Returns the runs that change."""
        stopped = [row["id"] for row in tree.rows if _has_stopped_in(row, runs)]
        if not stopped:
            return set()
        rows = await self._fetch(connection, "forget_compensations", stopped, _ids(tree.rows))
        homes = {row["workflow_id"] for row in rows}
        if not homes:
            return set()
        around = await self._fetch(connection, "reopen_around", sorted(homes), stopped)
        return homes | {row["id"] for row in around} | {row["workflow_id"] for row in around}

    async def _refuse_takers(
        self,
        connection: Any,
        tree: Tree,
        run: Row,
        nodes: Sequence[Row],
        node_id: str,
        indexes: Sequence[int],
    ) -> None:
        """Refuse the retry while a workflow that started after these nodes failed still has to read their results."""
        begun = {row["sub_workflow_id"]: row["node_id"] for row in nodes if row["status"] == NodeStatus.RUNNING}
        for child_id, name in begun.items():
            inside = tree.below([child_id])
            levels = [row["depth"] - run["depth"] for row in inside]
            if taker := await self._fetch(connection, "takers_inside", _ids(inside), levels, list(indexes)):
                raise UsageError(
                    f"node {node_id!r} cannot be retried now: the workflow in node {name!r} has begun with its failure,"
                    f" and {taker[0]['node_id']!r} in there still has to take it; let the run go on (resume) and retry "
                    "the node when that workflow has ended"
                )

    # -- statements ------------------------------------------------------------------------------

    async def _locked(self, workflow_id: str, act: Callable[[Any, Tree, Row], Awaitable[bool]]) -> bool:
        """Act on a run under the locks of its whole tree, taken from the outermost run inwards: an action on an inner
        run may concern the runs around it."""

        async def action(connection: Any) -> bool:
            async with connection.transaction(isolation="read_committed"):
                root = await connection.fetchval(self._statements["find_root"].sql, workflow_id)
                if root is None:
                    return False
                tree = Tree(await lock_tree(connection, self._statements, root))
                run = tree.find(workflow_id)
                return run is not None and await act(connection, tree, run)

        return await self._run(action)

    async def _fetch(self, connection: Any, name: str, *values: Any) -> Sequence[Mapping[str, Any]]:
        return await connection.fetch(self._statements[name].sql, *values)

    async def _rows(self, name: str, *values: Any) -> Sequence[Mapping[str, Any]]:
        return await self._run(lambda connection: self._fetch(connection, name, *values))


def absent(node_id: str, status: NodeStatus) -> str | None:
    """What stands for the result of a node that has none: None before its end, and an error after it."""
    if not status.is_terminal:
        return None
    from horsies.codec import encode_error

    message = f"node {node_id!r} is {status} without a stored result"
    return encode_error(TaskError(RetrievalCode.RESULT_NOT_AVAILABLE, message))


async def lock_tree(connection: Any, statements: Mapping[str, Statement], workflow_id: str) -> list[Mapping[str, Any]]:
    """Lock a run and all runs nested in it; also for the worker. Repeats until it finds no more: a transaction that
    held one of the locks may have started another nested run."""
    found: list[Mapping[str, Any]] = []
    while True:
        rows = list(await connection.fetch(statements["lock_workflow_tree"].sql, workflow_id))
        if len(rows) == len(found):
            return rows
        found = rows


def _has_stopped_in(row: Row, runs: Sequence[str]) -> bool:
    return row["id"] in runs and WorkflowStatus(row["status"]) in STOPPED


def _ids(rows: Sequence[Row]) -> list[str]:
    return [row["id"] for row in rows]
