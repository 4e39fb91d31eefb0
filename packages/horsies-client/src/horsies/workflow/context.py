"""`WorkflowContext` and `WorkflowMeta`: a task's parameters of these types are filled when it runs in a workflow.

Both are plain data, so the same function can be called, sent and tested outside of a workflow.
"""

from __future__ import annotations

import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar, cast

from horsies.errors import OperationalErrorCode, RetrievalCode, UsageError
from horsies.result import TaskError, TaskResult

if TYPE_CHECKING:
    from horsies.codec import TaskCodec
    from horsies.workflow.summary import SubWorkflowSummary

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")
SUMMARIES: Final = ""
"""The key of the summaries of workflows among the results of a context."""


class NodeKey(Generic[T_co]):
    """The id of a node with the type of its result: `node.key`."""

    __slots__ = ("_codec", "node_id")

    def __init__(self, node_id: str, codec: TaskCodec) -> None:
        self.node_id = node_id
        self._codec = codec

    def __repr__(self) -> str:
        return f"NodeKey({self.node_id!r})"

    def decode(self, text: str) -> TaskResult[T_co, TaskError]:
        """Decode a stored result by this node's type; an err RESULT_DESERIALIZATION_ERROR when it does not fit."""
        from horsies.codec import DecodeError

        try:
            return self._codec.decode_result(text)
        except DecodeError as error:
            return TaskResult(err=TaskError(OperationalErrorCode.RESULT_DESERIALIZATION_ERROR, str(error)))


class HasKey(Protocol[T_co]):
    """A node."""

    @property
    def key(self) -> NodeKey[T_co]: ...


def key_of(node: HasKey[T] | NodeKey[T]) -> NodeKey[T]:
    """The key of a node, or the key itself."""
    if isinstance(node, NodeKey):
        return node
    key = getattr(cast("object", node), "key", None)
    if not isinstance(key, NodeKey):
        raise UsageError(f"{node!r:.80} is neither a node nor a node's key: give the node, or node.key")
    return cast("NodeKey[T]", key)


@dataclass(frozen=True)
class WorkflowMeta:
    """The place of a running task in its workflow."""

    workflow_id: str
    workflow_name: str
    node_id: str
    task_index: int


@dataclass(frozen=True)
class WorkflowContext:
    """The results of the nodes that `workflow_ctx_from` names. All these nodes have ended."""

    workflow_id: str
    node_id: str
    results: dict[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        # The worker sends them among the results, under a name that no node can have: children of an older release
        # refuse a context with another field.
        summaries: Mapping[str, Any] = self.results.get(SUMMARIES, {})
        if summaries:
            object.__setattr__(self, "results", {name: one for name, one in self.results.items() if name != SUMMARIES})
        object.__setattr__(self, "_summaries", summaries)

    def result_for(self, node: HasKey[T] | NodeKey[T]) -> TaskResult[T, TaskError]:
        """The typed result of one of the nodes, by the node or its key."""
        from pydantic_core import to_json

        key = key_of(node)
        if key.node_id not in self.results:
            known = ", ".join(sorted(self.results)) or "none"
            message = f"node {key.node_id!r} is not in this context; it has: {known}. Name it in workflow_ctx_from"
            return TaskResult(err=TaskError(RetrievalCode.RESULT_NOT_AVAILABLE, message))
        return key.decode(to_json(self.results[key.node_id]).decode())

    def has_result(self, node: HasKey[Any] | NodeKey[Any]) -> bool:
        """Whether this context has the result of the node, ok or err: whether `workflow_ctx_from` names it."""
        return key_of(node).node_id in self.results

    def summary_for(self, node: HasKey[T] | NodeKey[T]) -> SubWorkflowSummary[T]:
        """How the nodes of the workflow in this node ended. Raises `UsageError` when the context has no summary of it;
        `has_summary` asks for that."""
        from horsies.workflow.summary import summary_of

        node_id = key_of(node).node_id
        if node_id not in self._all_summaries:
            known = ", ".join(sorted(self._all_summaries)) or "none"
            why = f"there is no summary of node {node_id!r} in this context; it has: {known}"
            raise UsageError(f"{why}. Name a workflow in workflow_ctx_from; one that was skipped has no summary")
        return summary_of(self._all_summaries[node_id], self.result_for(node))

    def has_summary(self, node: HasKey[Any] | NodeKey[Any]) -> bool:
        """Whether the node is in this context and is a workflow that was started."""
        return key_of(node).node_id in self._all_summaries

    @property
    def _all_summaries(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = vars(self)["_summaries"]
        return found


def injected_by_type(annotations: Mapping[str, Any], wanted: type) -> str | None:
    """The parameter of type `WorkflowContext` or `WorkflowMeta`, possibly optional."""
    for name, annotation in annotations.items():
        if annotation is wanted or wanted in typing.get_args(annotation):
            return name
    return None
