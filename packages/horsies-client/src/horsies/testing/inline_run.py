"""The rows of an inline run: its nodes, and what happened to them."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from horsies.status import NodeStatus, WorkflowStatus
from horsies_worker.workflows.refused import NOT_AVAILABLE, NOT_READY

if TYPE_CHECKING:
    from horsies.testing.store import TaskRow


class InlineNode:
    """One node of a run; `data` is its part of the graph."""

    def __init__(self, index: int, data: Mapping[str, Any]) -> None:
        self.index = index
        self.data = data
        self.sources: Mapping[str, Mapping[str, Any]] = data["args_from"] or {}
        """By parameter: where its value comes from."""
        self.node_id: str = data["node_id"]
        self.kind: str = data["kind"]
        self.decider: int | None = data.get("when_index")
        """The node whose value decides whether this one runs."""
        self.undo: Mapping[str, Any] | None = data.get("compensate")
        self.is_undo: bool = data.get("is_undo", False)
        """Whether it undoes another node."""
        self.status = NodeStatus.PENDING
        self.skip_reason: str | None = None
        self.left = len(data["dependencies"])
        self.ok = 0
        self.void = 0
        """Dependencies that are in a branch that was not taken."""
        self.seq = 0
        """The order of the ends in its run."""
        self.result: str | None = None
        self.error: str | None = None
        self.task: TaskRow | None = None
        self.child: InlineRun | None = None
        """The run that it consists of."""
        self.wake_at: datetime | None = None
        """When its sleep is over, or its signal is overdue."""

    @property
    def text(self) -> str:
        """Its stored result or error, or why there is none."""
        return self.result or self.error or (NOT_AVAILABLE if self.status.is_terminal else NOT_READY)

    @property
    def is_not_taken(self) -> bool:
        return self.skip_reason == "not_taken"

    def end(self, status: NodeStatus, result: str | None = None, error: str | None = None) -> None:
        self.status, self.result, self.error, self.wake_at = status, result, error, None

    def skip(self, reason: str, error: str) -> None:
        self.end(NodeStatus.SKIPPED, error=error)
        self.skip_reason = reason


class InlineRun:
    """One run; `around` is the run and the node that it is inside of."""

    def __init__(
        self,
        run_id: str,
        data: Mapping[str, Any],
        metadata: Mapping[str, Any] | None,
        group: str | None,
        priority: int | None,
        around: "tuple[InlineRun, InlineNode] | None" = None,
        *,
        is_map: bool = False,
    ) -> None:
        self.id = run_id
        self.metadata = metadata
        self.group = group
        self.priority = priority
        self.around = around
        self.is_map = is_map
        self.depth: int = 0 if around is None else around[0].depth + 1
        self.status = WorkflowStatus.RUNNING
        self.ends_as: WorkflowStatus | None = None
        """How it ends once what it did is undone."""
        self.result: str | None = None
        self.error: str | None = None
        self.signals: dict[str, deque[str]] = {}
        """By name: the values that no node has taken."""
        self.past: list[list[InlineNode]] = []
        """The nodes of what it was before it continued, the newest first."""
        self._begin(data)

    def _begin(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.nodes: list[InlineNode] = []
        self.by_id: dict[str, InlineNode] = {}
        self.left = 0
        self.ended_count = 0
        self.has_failed = False
        self.add(data["nodes"])

    def add(self, nodes: Sequence[Mapping[str, Any]]) -> None:
        for data in nodes:
            node = InlineNode(len(self.nodes), data)
            self.nodes.append(node)
            self.by_id[node.node_id] = node
        self.left += len(nodes)

    def go_on(self, data: Mapping[str, Any]) -> None:
        """Go on in its own place with the nodes of another graph."""
        self.past.insert(0, self.nodes)
        self._begin({**data, "name": self.data["name"]})

    @property
    def is_open(self) -> bool:
        """Whether signals still reach it, and its clocks count."""
        return not self.status.is_terminal and self.ends_as is None

    @property
    def path(self) -> str:
        """The nodes that lead to it from the run that was started, each followed by a slash."""
        return "" if self.around is None else f"{self.around[0].path}{self.around[1].node_id}/"

    def is_inside(self, other: "InlineRun") -> bool:
        return self is other or (self.around is not None and self.around[0].is_inside(other))

    def at(self, indexes: Sequence[int]) -> list[InlineNode]:
        return [self.nodes[index] for index in indexes]

    def first_nodes(self) -> list[InlineNode]:
        """The nodes that wait for nothing."""
        return [
            node
            for node in self.nodes
            if node.status is NodeStatus.PENDING and not node.data["dependencies"] and node.decider is None
        ]

    def waiting(self, kind: str) -> Iterator[InlineNode]:
        return (node for node in self.nodes if node.status is NodeStatus.WAITING and node.kind == kind)

    def first_failure(self) -> list[Mapping[str, Any]]:
        """The row of the worker's statement `first_failure`."""
        failed = [node for node in self.nodes if node.status is NodeStatus.FAILED and not node.is_undo][:1]
        return [
            {"node_id": node.node_id, "error": node.error, "is_item": self.is_map, "task_index": node.index}
            for node in failed
        ]
