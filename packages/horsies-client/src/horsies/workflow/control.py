"""What is done to runs by their id: look, pause, resume, cancel, retry. `app.get_broker().workflows`.

Each verb is one short transaction: lock the run and everything inside it from the top downwards, then act. Whoever
gets the lock later sees what was done.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from horsies._pg.statements import Statement, load
from horsies.errors import RetrievalCode, UsageError
from horsies.result import TaskError
from horsies.status import NodeStatus, WorkflowStatus
from horsies.workflow.info import WorkflowInfo, WorkflowNodeInfo

R = TypeVar("R")
Run = Callable[[Callable[[Any], Awaitable[Any]]], Awaitable[Any]]

_MAX_NODES: Final = 100_000
_STOPPED: Final = (WorkflowStatus.FAILED, WorkflowStatus.CANCELLED)


class WorkflowControl:
    """The operations on runs. Coroutines all; `WorkflowHandle` offers them to people without a loop."""

    def __init__(self, run: Run, schema: str | None) -> None:
        self._run = run
        self._statements = load("horsies._pg", "workflows.sql", schema)

    # -- looking ---------------------------------------------------------------------------------

    async def info(self, workflow_id: str) -> WorkflowInfo | None:
        """One run; None when there is no such."""
        rows = await self._rows("read_workflow", workflow_id)
        return WorkflowInfo.from_row(rows[0]) if rows else None

    async def list(self, status: WorkflowStatus | None = None, limit: int = 50) -> list[WorkflowInfo]:
        """Live runs first, then the newest that ended; without the runs inside others."""
        rows = await self._rows("list_workflows", None if status is None else str(status), limit)
        return [WorkflowInfo.from_row(row) for row in rows]

    async def nodes(self, workflow_id: str) -> list[WorkflowNodeInfo]:
        """The nodes of one run."""
        rows = await self._rows("read_nodes", workflow_id, _MAX_NODES)
        return [WorkflowNodeInfo.from_row(row) for row in rows]

    async def results(self, workflow_id: str, node_ids: Sequence[str] | None = None) -> Mapping[str, str | None]:
        """The stored results by node; None for a node that has not ended, err RESULT_NOT_AVAILABLE for one that ended
        without a stored result."""
        wanted = None if node_ids is None else list(node_ids)
        found = {row["node_id"]: row for row in await self._rows("read_node_results", workflow_id, wanted)}
        return {node_id: row["result"] or _absent(row) for node_id, row in found.items()}

    async def error(self, workflow_id: str) -> str | None:
        """The stored error of a run that failed, was cancelled or is paused for a failure; None when it has none."""
        rows = await self._rows("read_workflow_error", workflow_id)
        return rows[0]["error"] if rows else None

    # -- acting ----------------------------------------------------------------------------------

    async def pause(self, workflow_id: str) -> bool:
        """See `WorkflowHandle.pause`."""

        async def act(connection: Any, tree: Sequence[Mapping[str, Any]]) -> bool:
            return bool(await self._fetch(connection, "pause_workflows", _ids(tree), None))

        return await self._locked(workflow_id, act)

    async def resume(self, workflow_id: str) -> bool:
        """See `WorkflowHandle.resume`."""

        async def act(connection: Any, tree: Sequence[Mapping[str, Any]]) -> bool:
            return bool(await self._fetch(connection, "resume_workflows", _ids(tree)))

        return await self._locked(workflow_id, act)

    async def cancel(self, workflow_id: str) -> bool:
        """See `WorkflowHandle.cancel`."""
        rows = await self._rows("cancel_workflow", workflow_id)
        return bool(rows[0]["is_cancelled"])

    async def retry(self, workflow_id: str, node_id: str | None = None) -> bool:
        """See `WorkflowHandle.retry`."""

        async def act(connection: Any, tree: Sequence[Mapping[str, Any]]) -> bool:
            if not tree:
                return False
            root = tree[0]
            if root["parent_workflow_id"] is not None:
                raise UsageError(
                    f"workflow {workflow_id} is a node of workflow {root['parent_workflow_id']}: retry that one"
                )
            return await self._retry(connection, tree, node_id)

        return await self._locked(workflow_id, act)

    async def _retry(self, connection: Any, tree: Sequence[Mapping[str, Any]], node_id: str | None) -> bool:
        root = tree[0]
        if node_id is None:
            if WorkflowStatus(root["status"]) not in _STOPPED:
                return False
            ids = [row["id"] for row in tree if WorkflowStatus(row["status"]) in _STOPPED]
            moved = await self._fetch(connection, "retry_nodes", ids, None)
        else:
            if WorkflowStatus(root["status"]) is WorkflowStatus.COMPLETED:
                return False
            nodes = await self._fetch(connection, "read_nodes", root["id"], _MAX_NODES)
            names = _to_retry(nodes, node_id)
            if not names:
                return False
            await self._fetch(connection, "resume_workflows", _ids(tree))
            moved = list(await self._fetch(connection, "retry_nodes", [root["id"]], names))
            inside = _below(tree, {row["sub_workflow_id"] for row in moved})
            ids = [root["id"], *inside]
            if inside:
                moved += await self._fetch(connection, "retry_nodes", inside, None)
        await self._fetch(connection, "recount_workflows", ids)
        await self._fetch(connection, "tell_step", ids)
        return bool(moved)

    # -- statements ------------------------------------------------------------------------------

    async def _locked(
        self, workflow_id: str, act: Callable[[Any, Sequence[Mapping[str, Any]]], Awaitable[bool]]
    ) -> bool:
        async def action(connection: Any) -> bool:
            async with connection.transaction(isolation="read_committed"):
                return await act(connection, await lock_tree(connection, self._statements, workflow_id))

        return await self._run(action)

    async def _fetch(self, connection: Any, name: str, *values: Any) -> Sequence[Mapping[str, Any]]:
        return await connection.fetch(self._statements[name].sql, *values)

    async def _rows(self, name: str, *values: Any) -> Sequence[Mapping[str, Any]]:
        return await self._run(lambda connection: self._fetch(connection, name, *values))


def _absent(row: Mapping[str, Any]) -> str | None:
    if not NodeStatus(row["status"]).is_terminal:
        return None
    from horsies.codec import encode_error

    message = f"node {row['node_id']!r} is {row['status']} without a stored result"
    return encode_error(TaskError(RetrievalCode.RESULT_NOT_AVAILABLE, message))


async def lock_tree(connection: Any, statements: Mapping[str, Statement], workflow_id: str) -> list[Mapping[str, Any]]:
    """Lock a run and everything inside it; also for the worker. Whoever was waited for may have launched more."""
    found: list[Mapping[str, Any]] = []
    while True:
        rows = list(await connection.fetch(statements["lock_workflow_tree"].sql, workflow_id))
        if len(rows) == len(found):
            return rows
        found = rows


def _to_retry(nodes: Sequence[Mapping[str, Any]], node_id: str) -> list[str]:
    """A failed node and everything that was skipped behind it."""
    by_index = {row["task_index"]: row for row in nodes}
    start = next((row for row in nodes if row["node_id"] == node_id), None)
    if start is None or start["status"] != NodeStatus.FAILED:
        return []
    chosen = {start["task_index"]}
    grown = True
    while grown:
        behind = {
            index
            for index, row in by_index.items()
            if index not in chosen and row["status"] == NodeStatus.SKIPPED and chosen & set(row["dependencies"])
        }
        chosen |= behind
        grown = bool(behind)
    return [by_index[index]["node_id"] for index in sorted(chosen)]


def _below(tree: Sequence[Mapping[str, Any]], tops: set[Any]) -> list[str]:
    """Stopped workflows of the tree that are one of these, or inside of one."""
    found: list[str] = []
    inside = set(tops) - {None}
    for row in tree:  # parents come before their children
        if row["id"] in inside or row["parent_workflow_id"] in inside:
            inside.add(row["id"])
            if WorkflowStatus(row["status"]) in _STOPPED:
                found.append(row["id"])
    return found


def _ids(tree: Sequence[Mapping[str, Any]]) -> list[str]:
    return [row["id"] for row in tree]
