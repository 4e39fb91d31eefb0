"""A node as a run stores it: a row, or a part of the graph that a workflow node keeps for the run inside it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, cast

_ENDED: Final = frozenset({"COMPLETED", "FAILED", "SKIPPED"})
ITEMS: Final = "*"
"""In `sources`: the list whose items a map runs over."""


class UnreadableGraph(ValueError):
    """A stored graph has another form than a client writes."""


@dataclass(frozen=True, slots=True)
class StoredNode:
    """One node of a run."""

    node_id: str
    kind: str
    task_name: str
    args: str | None = None
    kwargs: Any = None
    """The text of its arguments; for a workflow or a map, the graph or pattern, as an object or its text."""
    sources: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])
    """By parameter: where its value comes from. Other keys name the list of a map, or inputs of a workflow."""
    compensate: str | None = None
    """The name of the task that undoes it."""
    status: str = "PENDING"
    result: str | None = None
    is_expanded: bool = False
    """The run inside it exists, and has nodes of its own."""

    @property
    def is_open(self) -> bool:
        return self.status not in _ENDED

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> "StoredNode":
        return cls(
            row["node_id"], row["kind"], row["task_name"], row["args"], row["kwargs"],
            _sources(_loaded(row["args_from"])), _compensation(_loaded(row["compensate"])), row["status"],
            row["result"], row["sub_workflow_id"] is not None,
        )  # fmt: skip

    @classmethod
    def from_graph(cls, data: object) -> "StoredNode":
        """A node of a stored graph, or the pattern of a map's items. Older clients wrote no kind."""
        if not isinstance(data, Mapping):
            raise UnreadableGraph("a node is not an object")
        node = cast("Mapping[str, Any]", data)
        if not isinstance(node.get("task_name"), str):
            raise UnreadableGraph("a node has no task_name")
        kwargs: Any = node.get("kwargs")
        kind: str | None = node.get("kind")
        if kind is None:
            kind = "task" if node.get("sub_name") is None else "map" if "map" in _object(kwargs) else "workflow"
        return cls(
            str(node.get("node_id", "?")), kind, node["task_name"], node.get("args"), kwargs,
            _sources(node.get("args_from")), _compensation(node.get("compensate")),
        )  # fmt: skip

    def graph(self) -> Mapping[str, Any]:
        """The graph of the workflow in it. Raises UnreadableGraph."""
        return _object(self.kwargs)

    def inner_nodes(self) -> "dict[int, StoredNode]":
        """The nodes of that graph, by index. Raises UnreadableGraph."""
        nodes = self.graph().get("nodes")
        if not isinstance(nodes, list):
            raise UnreadableGraph("it has no list of nodes")
        return {index: StoredNode.from_graph(one) for index, one in enumerate(cast("list[object]", nodes))}

    def pattern(self) -> Mapping[str, Any]:
        """The pattern of a map's items. Raises UnreadableGraph."""
        return _object(self.graph().get("map"))


def _object(value: object) -> Mapping[str, Any]:
    found = _loaded(value)
    if not isinstance(found, Mapping):
        raise UnreadableGraph("it is not an object")
    return cast("Mapping[str, Any]", found)


def _loaded(value: object) -> object:
    """The value of a JSON text; anything else as it is."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError) as error:
        raise UnreadableGraph(f"it is not JSON: {error}") from error


def _sources(value: object) -> dict[str, Mapping[str, Any]]:
    if not isinstance(value, Mapping):
        return {}
    named = cast("Mapping[str, object]", value)
    return {name: cast("Mapping[str, Any]", source) for name, source in named.items() if isinstance(source, Mapping)}


def _compensation(value: object) -> str | None:
    name = cast("Mapping[str, object]", value).get("task_name") if isinstance(value, Mapping) else None
    return name if isinstance(name, str) else None
