"""The nodes of an inline run, and the values that they take from each other: what `enqueue_nodes`, `missing_values` and
`finish_workflow` in the worker's workflows.sql do with rows."""

import json
from collections.abc import Mapping
from typing import Any, cast

from horsies.result import TaskError
from horsies.status import NodeStatus, WorkflowStatus
from horsies_worker.workflows.refused import NOT_AVAILABLE, NOT_READY, no_value


class InlineNode:
    """One node of a run; `data` is its part of the graph."""

    def __init__(self, index: int, data: Mapping[str, Any]) -> None:
        self.index = index
        self.data = data
        self.sources: Mapping[str, Mapping[str, Any]] = data["args_from"] or {}
        """By parameter: where its value comes from."""
        self.node_id: str = data["node_id"]
        self.kind: str = data["kind"]
        self.status = NodeStatus.PENDING
        self.left = len(data["dependencies"])
        self.ok = 0
        self.result: str | None = None
        self.error: str | None = None

    @property
    def text(self) -> str:
        """Its stored result or error, or why there is none."""
        return self.result or self.error or (NOT_AVAILABLE if self.status.is_terminal else NOT_READY)


class InlineRun:
    """One run; `around` is the run and the node that it is inside of."""

    def __init__(
        self,
        run_id: str,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None,
        group: str | None,
        around: "tuple[InlineRun, InlineNode] | None" = None,
        *,
        is_map: bool = False,
    ) -> None:
        self.id = run_id
        self.data = data
        self.metadata = metadata
        self.group = group
        self.around = around
        self.is_map = is_map
        self.nodes = [InlineNode(index, node) for index, node in enumerate(data["nodes"])]
        self.by_id = {node.node_id: node for node in self.nodes}
        self.left = len(self.nodes)
        self.status = WorkflowStatus.RUNNING
        self.has_failed = False
        self.result: str | None = None
        self.error: str | None = None

    def is_inside(self, other: "InlineRun") -> bool:
        return self is other or (self.around is not None and self.around[0].is_inside(other))

    def first_failure(self) -> list[Mapping[str, Any]]:
        """The row of the worker's statement `first_failure`."""
        failed = [node for node in self.nodes if node.status is NodeStatus.FAILED][:1]
        return [
            {"node_id": node.node_id, "error": node.error, "is_item": self.is_map, "task_index": node.index}
            for node in failed
        ]

    def output(self) -> str | None:
        """The result of the run: that of its output node, or the list of a map's values."""
        if self.is_map:
            values = [_bare(node) for node in self.nodes]
            if any(value is None for value in values):
                return None
            return '{"ok":[' + ",".join(value for value in values if value is not None) + "]}"
        index: int | None = self.data["output"]
        if index is None:
            return '{"ok":null}'
        node = self.nodes[index]
        return node.result or node.error


def gap_of(run: InlineRun, node: InlineNode) -> TaskError | str | None:
    """Why a bare value that the node takes does not exist: "skipped", or the error that the node ends with."""
    missing: TaskError | None = None
    for source in node.sources.values():
        if source.get("bare") is not True:
            continue
        found = _source(run, source)
        if found.status is not NodeStatus.COMPLETED or (found.result is not None and _bare(found) is None):
            return "skipped"
        if found.result is None:
            missing = missing or no_value(found.node_id)
    return missing


def compose(run: InlineRun, node: InlineNode) -> str | None:
    """The node's keyword arguments, with the values that it takes."""
    given: str | None = node.data["kwargs"]
    members: list[str] = []
    for parameter, source in node.sources.items():
        if "meta" in source:
            text = _dumped({"workflow_id": run.id, "workflow_name": run.data["name"], "node_id": node.node_id,
                            "task_index": node.index})  # fmt: skip
        elif "ctx" in source:
            results = ",".join(
                f"{_dumped(one)}:{run.by_id[one].text}" for one in node.data["ctx_from"] or () if one in run.by_id
            )
            text = f'{{"workflow_id":{_dumped(run.id)},"node_id":{_dumped(node.node_id)},"results":{{{results}}}}}'
        elif "batch" in source:
            text = _summary(run, node)
        elif source.get("bare") is True:
            text = _bare(_source(run, source)) or "null"
        else:
            text = _source(run, source).text
        members.append(f"{_dumped(parameter)}:{text}")
    if not members:
        return given
    inner = (given or "{}")[1:-1]
    return "{" + ",".join([inner, *members] if inner else members) + "}"


def _summary(run: InlineRun, then: InlineNode) -> str:
    """How the members of a batch ended."""
    ended = [node for node in run.nodes if node is not then]
    cancelled = sum(node.status is NodeStatus.SKIPPED or _is_cancelled(node) for node in ended)
    completed = sum(node.status is NodeStatus.COMPLETED for node in ended)
    return _dumped({"batch_id": run.id, "total": len(ended), "completed": completed,
                    "failed": len(ended) - completed - cancelled, "cancelled": cancelled})  # fmt: skip


def _is_cancelled(node: InlineNode) -> bool:
    return (node.error or "").startswith('{"err":{"error_code":"TASK_CANCELLED"')


def items_of(run: InlineRun, node: InlineNode) -> list[Any] | None:
    """The list that a map goes through; None when the value is none."""
    value: Any = json.loads(_bare(_source(run, node.sources["*"])) or "null")
    return cast("list[Any]", value) if isinstance(value, list) else None


def _source(run: InlineRun, source: Mapping[str, Any]) -> InlineNode:
    for _ in range(source.get("up", 0)):
        assert run.around is not None
        run = run.around[0]
    index: int = source["at"]
    return run.nodes[index]


def _bare(node: InlineNode) -> str | None:
    """The text of the value in the node's result; None when the result is an err, or missing."""
    if node.result is None:
        return None
    if node.result.startswith('{"ok":'):
        return node.result[6:-1]
    found: Any = json.loads(node.result)
    return _dumped(found["ok"]) if "ok" in found else None


def _dumped(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
