"""The nodes of a graph: a task, a workflow inside the workflow, or one task per item of a list. Plain values.

An edge is made where it is used: `from_node(a)` as an argument, or by name in `args_from`; whoever takes a node's
result waits for it. `waits_for` is for order without data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, cast

from horsies.errors import UsageError
from horsies.result import TaskError, TaskResult
from horsies.workflow.context import NodeKey

if TYPE_CHECKING:
    from horsies.codec import TaskCodec
    from horsies.registry import TaskDefinition
    from horsies.tasks import Sender
    from horsies.workflow.spec import WorkflowSpec

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Item = TypeVar("Item")

Join = Literal["all", "any", "quorum"]
MAX_WIDTH = 10_000
"""Items of one `map`, unless the node says otherwise: each is a row, a task and a place in the queue."""


@dataclass(frozen=True, eq=False)
class FromNode:
    """Stands for a node's result among the arguments of another."""

    node: Node[Any]


def from_node(node: Node[T]) -> T:
    """As an argument of a node: the value that `node` will have returned. If it fails, the taker is skipped."""
    return cast("T", FromNode(node))


def result_from(node: Node[T]) -> TaskResult[T, TaskError]:
    """As an argument of a node, for a parameter of type `TaskResult`: how `node` ended, well or not."""
    return cast("TaskResult[T, TaskError]", FromNode(node))


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """What all kinds of nodes can be told."""

    node_id: str | None = None
    waits_for: Sequence[Node[Any]] = ()
    workflow_ctx_from: Sequence[Node[Any]] = ()
    join: Join = "all"
    min_success: int | None = None
    allow_failed_deps: bool = False
    queue_name: str | None = None
    priority: int | None = None
    good_until: datetime | timedelta | None = None
    max_width: int = MAX_WIDTH


def _options(kind: str, given: Mapping[str, Any]) -> NodeOptions:
    known = [option.name for option in fields(NodeOptions)]
    for name in given:
        if name not in known:
            raise TypeError(f"{kind}() got an unexpected keyword argument {name!r}; its options are {', '.join(known)}")
    return NodeOptions(**given)


class Node(Generic[T_co]):
    """What a workflow is made of. Equal only to itself."""

    def __init__(self, options: NodeOptions) -> None:
        self.options = options
        self.node_id = options.node_id

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.node_id or self.title}>"

    @property
    def title(self) -> str:
        """What it is called when it has no id of its own."""
        raise NotImplementedError

    @property
    def codec(self) -> TaskCodec:
        """Reads its stored result."""
        raise NotImplementedError

    @property
    def result_type(self) -> Any:
        return self.codec.signature.result

    @property
    def sources(self) -> Mapping[str, Node[Any]]:
        """Parameter, and whose result it is given."""
        return {}

    @property
    def key(self) -> NodeKey[T_co]:
        """For `WorkflowContext.result_for` and `WorkflowHandle.result_for`."""
        if self.node_id is None:
            raise UsageError(f"{self!r} has no id yet: give it node_id=..., or put it into a workflow first")
        return NodeKey(self.node_id, self.codec)


class TaskNode(Node[T_co]):
    """One call of a task. `task.node(...)(...)` makes one with typed arguments."""

    def __init__(
        self,
        task: Sender[Any, T_co],
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        args_from: Mapping[str, Node[Any]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(_options(type(self).__name__, options))
        self.task = task
        self.args = args
        given = dict(kwargs or {})
        self.doubled = sorted(given.keys() & (args_from or {}).keys())
        """Parameters that are given twice; the validation tells of them."""
        self.kwargs = given | {name: FromNode(node) for name, node in (args_from or {}).items()}

    @property
    def definition(self) -> TaskDefinition:
        return self.task.definition

    @property
    def title(self) -> str:
        return self.task.name

    @property
    def codec(self) -> TaskCodec:
        return self.definition.codec

    @property
    def sources(self) -> Mapping[str, Node[Any]]:
        return {name: value.node for name, value in self.bound().items() if isinstance(value, FromNode)}

    def bound(self) -> dict[str, Any]:
        """Arguments by parameter, as far as positions have names; the codec judges what is wrong with the rest."""
        names = [parameter.name for parameter in self.codec.signature.positional_or_keyword]
        if self.codec.signature.positional_only:
            names = []
        return dict(zip(names, self.args, strict=False)) | self.kwargs


class MapNode(TaskNode[T_co], Generic[Item, T_co]):
    """One call of a task per item of a list that another node returns; its own result is the list of theirs."""

    def __init__(self, task: Sender[Any, Any], items_from: Node[Any], *args: Any, kwargs: Any, **options: Any) -> None:
        super().__init__(task, kwargs=kwargs, **options)
        self.items_from = items_from
        names = [parameter.name for parameter in task.definition.codec.signature.positional_or_keyword]
        self.item_parameter = names[0] if names else None
        """The parameter that takes the item: the task's first."""
        self.args = ()
        self.kwargs = dict(zip(names[1:], args, strict=False)) | self.kwargs
        self.surplus = len(args) - len(names[1:])

    @property
    def codec(self) -> TaskCodec:
        return list_codec(self.definition)

    @property
    def sources(self) -> Mapping[str, Node[Any]]:
        return {**super().sources, ITEMS: self.items_from}

    def bound(self) -> dict[str, Any]:
        return dict(self.kwargs)


ITEMS = "*"
"""In place of a parameter: the list whose items a map goes through."""


class SubWorkflowNode(Node[T_co]):
    """A workflow as a node: `spec.node(...)`. Its result is that workflow's output."""

    def __init__(self, spec: WorkflowSpec[T_co], **options: Any) -> None:
        super().__init__(_options(type(self).__name__, options))
        self.spec = spec

    @property
    def title(self) -> str:
        return self.spec.name

    @property
    def codec(self) -> TaskCodec:
        return self.spec.codec

    @property
    def sources(self) -> Mapping[str, Node[Any]]:
        return {f"input {index}": node for index, node in enumerate(self.spec.free)}


@dataclass(frozen=True)
class NodeBuilder(Generic[P, T]):
    """What `task.node(...)` returns: call it with the task's own arguments."""

    task: Sender[P, T]
    args_from: Mapping[str, Node[Any]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> TaskNode[T]:
        return TaskNode(self.task, *args, kwargs=kwargs, args_from=self.args_from, **self.options)

    def map(
        self: NodeBuilder[Concatenate[Item, Q], T], items_from: Node[Sequence[Item]], *args: Q.args, **kwargs: Q.kwargs
    ) -> MapNode[Item, list[T]]:
        """One call per item of the list that `items_from` returns, all in parallel; the item is the first argument.
        The result is the list of their results, in the order of the items; it fails if one of them does."""
        return MapNode(self.task, items_from, *args, kwargs=kwargs, args_from=self.args_from, **self.options)


_lists: dict[Any, Any] = {}


def list_codec(definition: TaskDefinition) -> TaskCodec:
    """Reads what a map over this task returns."""
    from horsies.codec.signature import TaskSignature
    from horsies.codec.task_codec import TaskCodec

    known = _lists.get(definition.codec)
    if known is None:
        signature = definition.codec.signature
        known = _lists[definition.codec] = TaskCodec(
            TaskSignature(f"{definition.name}[]", signature.location, (), (), (), None, None, list[signature.result])
        )
    return known
