"""Runs a workflow in this process. When a node runs or is skipped, how a run ends and what its errors say is decided by
the worker's own functions (`horsies_worker.workflows`); this module has what they do with rows in SQL.

Ready nodes run one after the other, in the order in which they became ready.
"""

import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from horsies.app import Horsies
from horsies.codec import decode_untyped_result, encode_error
from horsies.errors import OutcomeCode
from horsies.ids import new_id
from horsies.metadata import NODE, TRACE, WORKFLOW, decode
from horsies.result import TaskError
from horsies.status import NodeStatus, TaskStatus, WorkflowStatus
from horsies.testing.calls import Call, read_call
from horsies.testing.node_values import InlineNode, InlineRun, compose, gap_of, items_of
from horsies.testing.records import SentTask
from horsies.testing.store import RunRow, Store, TaskRow
from horsies_worker.workflows.failures import LISTED, failure, inside, told_first
from horsies_worker.workflows.halting import cases_of
from horsies_worker.workflows.refused import SKIPPED, large_output, not_a_list, too_large, too_wide
from horsies_worker.workflows.resolve import Join, Readiness, outcome, readiness

RunTask = Callable[[TaskRow], BaseException | None]


class Runs:
    """A run and the runs inside it."""

    def __init__(self, app: Horsies, store: Store, run_task: RunTask) -> None:
        self._app = app
        self._store = store
        self._run_task = run_task
        self._max_bytes = app.config.payload_max_bytes
        self._queue: deque[tuple[InlineRun, InlineNode, TaskRow] | InlineRun] = deque()
        """Tasks that wait for their turn, and runs inside that have not begun."""
        self._all: list[InlineRun] = []
        self.first_error: BaseException | None = None
        """Of the first task that failed."""

    def run(self, row: RunRow) -> None:
        """Run it until it ends, or until nothing of it can move because it is paused."""
        top = InlineRun(row.data["id"], row.data, row.data["metadata"], row.data["group_key"])
        self._add(top)
        while self._queue:
            first = self._queue.popleft()
            run = first if isinstance(first, InlineRun) else first[0]
            if run.status is not WorkflowStatus.RUNNING:
                continue  # withdrawn: the run is paused
            if isinstance(first, InlineRun):
                self._proceed(run, [node for node in run.nodes if not node.data["dependencies"]])
                continue
            _, node, task = first
            error = self._run_task(task)
            self.first_error = self.first_error or error
            is_ok = task.sent.status is TaskStatus.COMPLETED
            node.status = NodeStatus.COMPLETED if is_ok else NodeStatus.FAILED
            node.result, node.error = (task.result, None) if is_ok else (None, task.result)
            self._ended(run, [node])
        for run in reversed(self._all):  # a run with a paused run inside is paused when nothing else of it moves
            if run.status is WorkflowStatus.RUNNING:
                run.status = WorkflowStatus.PAUSED
        self._fill_in(row, top)

    def _fill_in(self, row: RunRow, top: InlineRun) -> None:
        row.result, row.error = top.result, top.error
        row.node_texts = {node.node_id: node.result or node.error for node in top.nodes}
        row.started.status = top.status
        row.started.nodes = {node.node_id: node.status for node in top.nodes}
        row.started.error = decode_untyped_result(top.error).err if top.error else None

    def _add(self, run: InlineRun) -> None:
        """Let a run begin, in a turn of its own: the run around it is in the middle of a step."""
        self._all.append(run)
        self._queue.append(run)

    # -- nodes that have ended -------------------------------------------------------------------

    def _ended(self, run: InlineRun, nodes: Sequence[InlineNode]) -> None:
        ready = self._settle(run, nodes)
        if run.status is WorkflowStatus.RUNNING and run.has_failed and run.data["on_error"] == "pause":
            self._pause(run)
        if run.status is WorkflowStatus.RUNNING:
            self._proceed(run, ready)
        else:
            _hold(ready)

    def _settle(self, run: InlineRun, ended: Sequence[InlineNode]) -> list[InlineNode]:
        """Count down the dependents of ended nodes and skip those that can no longer run, repeatedly. Returns the nodes
        that can run now."""
        ready: dict[InlineNode, None] = {}
        while ended:
            counted: dict[InlineNode, None] = {}
            for node in ended:
                run.left -= 1
                run.has_failed |= node.status is NodeStatus.FAILED
                dependents: list[int] = node.data["dependents"]
                for dependent in [run.nodes[index] for index in dependents]:
                    if dependent.status is NodeStatus.PENDING:
                        dependent.left -= 1
                        dependent.ok += node.status is NodeStatus.COMPLETED
                        counted[dependent] = None
            skipped: list[InlineNode] = []
            for node in counted:
                match readiness(_join(run, node)):
                    case Readiness.RUN:
                        ready[node] = None
                    case Readiness.SKIP:
                        node.status, node.error = NodeStatus.SKIPPED, SKIPPED
                        skipped.append(node)
                    case Readiness.WAIT:
                        pass
            ended = skipped
        return list(ready)

    # -- nodes that are ready --------------------------------------------------------------------

    def _proceed(self, run: InlineRun, ready: Sequence[InlineNode]) -> None:
        while ready:
            # nodes that cannot start end here, which may make others ready or skip them
            ended = [node for node in ready if self._start(run, node)]
            ready = self._settle(run, ended)
            if run.has_failed and run.data["on_error"] == "pause":
                self._pause(run)
                _hold(ready)
                return
        if not run.left:
            self._finish(run)

    def _start(self, run: InlineRun, node: InlineNode) -> bool:
        """Enqueue or launch a ready node. True: it has ended instead."""
        problem = gap_of(run, node)
        if problem is None:
            problem = self._enqueue(run, node) if node.kind == "task" else self._launch(run, node)
        if problem is None:
            return False
        is_skipped = problem == "skipped"
        node.status = NodeStatus.SKIPPED if is_skipped else NodeStatus.FAILED
        node.error = encode_error(problem) if isinstance(problem, TaskError) else SKIPPED
        return True

    def _enqueue(self, run: InlineRun, node: InlineNode) -> TaskError | None:
        data = node.data
        kwargs = compose(run, node)
        if len((kwargs or "").encode()) > self._max_bytes:
            return too_large(self._max_bytes)
        definition = self._app.registry.get(data["task_name"])
        found: dict[str, Any] = {**(data["metadata"] or {}), **(run.metadata or {})}
        if TRACE in found:
            found |= {WORKFLOW: run.id, NODE: node.node_id}
        metadata = json.dumps(found) if found else None
        try:
            call = read_call(definition, data["args"], kwargs)
        except Exception:  # the attempt itself will tell
            call = Call((), {}, {}, {})
        sent = SentTask(
            id=new_id(), task_name=data["task_name"], args=call.args, kwargs=call.kwargs, arguments=call.arguments,
            queue_name=data["queue_name"], priority=data["priority"], delay=None, eta=None, good_until=None,
            unique_key=None, metadata=decode(metadata), group=data.get("group_key") or run.group,
            workflow_id=run.id, node_id=node.node_id,
        )  # fmt: skip
        task = TaskRow(sent, definition, data["args"], kwargs, data["task_options"], data["max_retries"], metadata)
        self._store.add(task, call)
        node.status = NodeStatus.ENQUEUED
        self._queue.append((run, node, task))
        return None

    def _launch(self, run: InlineRun, node: InlineNode) -> TaskError | None:
        inner: Any = node.data["kwargs"]
        graph: dict[str, Any] = json.loads(inner) if isinstance(inner, str) else inner
        is_map = node.kind == "map"
        if is_map:
            items, pattern = items_of(run, node), graph["map"]
            if items is None:
                return not_a_list()
            if len(items) > pattern["max_width"]:
                return too_wide(len(items), pattern["max_width"])
            graph = _map_graph(node.data["sub_name"], pattern, items)
        node.status = NodeStatus.RUNNING
        group = node.data.get("group_key") or run.group
        self._add(InlineRun(new_id(), graph, run.metadata, group, (run, node), is_map=is_map))
        return None

    # -- the run ---------------------------------------------------------------------------------

    def _pause(self, run: InlineRun) -> None:
        """Pause the run because a node failed, and everything inside it along with it."""
        first = run.first_failure()
        message = f"{told_first(first)}; on_error is pause"
        failed = {"failed": [row["node_id"] for row in first]}
        run.error = encode_error(TaskError(OutcomeCode.WORKFLOW_PAUSED, message, failed))
        for one in self._all:
            if one.is_inside(run) and one.status is WorkflowStatus.RUNNING:
                one.status = WorkflowStatus.PAUSED

    def _finish(self, run: InlineRun) -> None:
        policy = run.data["success_policy"]
        cases = cases_of(None if policy is None else json.dumps(policy))
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
        run.status = outcome(cases, {row["task_index"]: row["status"] for row in facts})
        if run.status is not WorkflowStatus.COMPLETED:
            run.error = failure(facts, run.first_failure(), has_policy=cases is not None)
        else:
            run.result = run.output()
            if run.result is not None and len(run.result.encode()) > self._max_bytes:
                run.status, run.result = WorkflowStatus.FAILED, None
                run.error = encode_error(large_output(self._max_bytes))
        if run.around is not None:
            parent, node = run.around
            is_ok = run.status is WorkflowStatus.COMPLETED
            node.status = NodeStatus.COMPLETED if is_ok else NodeStatus.FAILED
            node.result, node.error = (run.result, None) if is_ok else (None, inside(run.error))
            self._ended(parent, [node])


def _hold(ready: Sequence[InlineNode]) -> None:
    """The run is paused: these would be enqueued when it is resumed."""
    for node in ready:
        node.status = NodeStatus.READY


def _join(run: InlineRun, node: InlineNode) -> Join:
    data = node.data
    sources = data["ctx_from"] or ()
    is_open = any(not run.by_id[source].status.is_terminal for source in sources)
    return Join(data["join_type"], data["min_success"], data["allow_failed"], len(data["dependencies"]), node.left,
                node.ok, is_open)  # fmt: skip


def _map_graph(name: str, pattern: Mapping[str, Any], items: Sequence[Any]) -> dict[str, Any]:
    """One node per item, as `launch_map` writes them."""
    given = json.loads(pattern["kwargs"] or "{}")
    alone: dict[str, Any] = {
        "dependencies": [], "dependents": [], "ctx_from": None, "join_type": "all", "min_success": None,
        "allow_failed": False, "kind": "task",
    }  # fmt: skip
    nodes: list[dict[str, Any]] = [
        {
            **pattern, **alone, "node_id": f"item-{at}",
            "kwargs": json.dumps({**given, pattern["parameter"]: item}, ensure_ascii=False),
        }
        for at, item in enumerate(items)
    ]  # fmt: skip
    return {"name": name, "on_error": "fail", "output": None, "success_policy": None, "definition_key": "map",
            "nodes": nodes}  # fmt: skip
