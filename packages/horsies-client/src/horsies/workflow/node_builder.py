"""`NodeBuilder`: what `task.node(...)` returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from horsies.result import TaskError, TaskResult
from horsies.workflow.nodes import MapNode, Node, Task, TaskNode

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")
Item = TypeVar("Item")


@dataclass(frozen=True)
class NodeBuilder(Generic[P, T]):
    """What `task.node(...)` returns: call it with the task's arguments."""

    task: Task[P, T]
    args_from: Mapping[str, Node[Any]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> TaskNode[T]:
        return TaskNode(self.task, *args, kwargs=kwargs, args_from=self.args_from, **self.options)

    def map(
        self: NodeBuilder[Concatenate[Item, Q], T],
        /,
        items_from: Node[Sequence[Item]],
        *args: Q.args,
        **kwargs: Q.kwargs,
    ) -> MapNode[Item, list[T]]:
        """One call per item of the list that `items_from` returns, all in parallel; the item is the first argument.
        The result is the list of their results, in the order of the items; the node fails if one of them fails."""
        return MapNode(self.task, items_from, *args, kwargs=kwargs, args_from=self.args_from, **self.options)

    def map_partial(
        self: NodeBuilder[Concatenate[Item, Q], T],
        /,
        items_from: Node[Sequence[Item]],
        *args: Q.args,
        **kwargs: Q.kwargs,
    ) -> MapNode[Item, list[TaskResult[T, TaskError]]]:
        """As `map`, but the node always completes: its result is the list of the items' `TaskResult`s, ok and err."""
        options = {**self.options, "partial": True}
        return MapNode(self.task, items_from, *args, kwargs=kwargs, args_from=self.args_from, **options)
