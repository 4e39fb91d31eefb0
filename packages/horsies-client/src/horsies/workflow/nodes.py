"""The nodes of a workflow: a task, or one task per item of a list. A nested workflow is a node too, see `graph.py`.

`from_node(a)` as an argument, or `a` in `args_from`, makes an edge: a node waits for the nodes whose results it takes.
`waits_for` makes an edge without data, `when` and `unless` one that decides. Nodes that wait are in `waits.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from functools import cache
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    NoReturn,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    get_args,
)

from horsies._checks import shown
from horsies.errors import UsageError
from horsies.result import TaskError, TaskResult
from horsies.workflow.context import NodeKey

if TYPE_CHECKING:
    from horsies._runtime import AppRuntime
    from horsies.codec import TaskCodec
    from horsies.handle import TaskHandle
    from horsies.registry import TaskDefinition

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
Item = TypeVar("Item")

Join = Literal["all", "any", "quorum"]
MAX_WIDTH = 10_000
"""The default limit for the items of a `map`: each is a row and a task in the queue."""


class Task(Protocol[P, T_co]):
    """The part of a task that a node needs. `send` carries the types of the arguments and of the result."""

    @property
    def app(self) -> AppRuntime: ...
    @property
    def name(self) -> str: ...
    @property
    def definition(self) -> TaskDefinition: ...
    @property
    def has_options(self) -> bool: ...
    def send(self, *args: P.args, **kwargs: P.kwargs) -> TaskHandle[T_co]: ...


@dataclass(frozen=True, eq=False)
class FromNode:
    """The placeholder for a node's result among the arguments of another node. Its value exists only when the run has
    come so far: code that compares, computes, branches or prints would use the placeholder in its place."""

    node: Node[Any]
    others: tuple[Node[Any], ...] = ()
    """Of `either`: the further branches."""

    def __repr__(self) -> str:
        return f"FromNode(node={self.node!r})" if not self.others else f"either({self.node!r}, ...)"

    def _refuse(self, *_: object) -> NoReturn:
        raise UsageError(
            f"from_node(...) is the future result of {self.node!r}, which may only be handed on to nodes: there is no "
            "value while the workflow is built; branch on it or compute with it in a task"
        )

    def __eq__(self, other: object) -> bool:
        return self is other or self._refuse()

    __hash__ = object.__hash__

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_") or name in ("node", "others"):  # protocols of Python, such as those of copy
            raise AttributeError(name, name=name, obj=self)
        self._refuse()

    # Without __iter__, iteration comes to __getitem__; with it, every check for an Iterable would be true.
    __getitem__ = __len__ = __bool__ = __str__ = __format__ = _refuse
    __index__ = __int__ = __float__ = __complex__ = __round__ = __trunc__ = __floor__ = __ceil__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = _refuse
    __add__ = __sub__ = __mul__ = __matmul__ = __truediv__ = __floordiv__ = __mod__ = __divmod__ = __pow__ = _refuse
    __radd__ = __rsub__ = __rmul__ = __rmatmul__ = __rtruediv__ = __rfloordiv__ = __rmod__ = __rdivmod__ = _refuse
    __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = __rpow__ = _refuse
    __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = _refuse
    __neg__ = __pos__ = __abs__ = __invert__ = _refuse


def from_node(node: Node[T]) -> T:
    """As an argument of a node: the value that `node` returns. If `node` fails, the other node is skipped."""
    return cast("T", FromNode(node))


def result_from(node: Node[T]) -> TaskResult[T, TaskError]:
    """As an argument of a node, for a parameter of type `TaskResult`: the result of `node`, ok or err."""
    return cast("TaskResult[T, TaskError]", FromNode(node))


def either(first: Node[T], second: Node[T], /, *more: Node[T]) -> T:
    """As an argument of a node: the value of the branch that was taken. If several have completed, the first of
    them."""
    return cast("T", FromNode(first, (second, *more)))


@dataclass(frozen=True, kw_only=True)
class NodeOptions:
    """The options of all kinds of nodes."""

    node_id: str | None = None
    waits_for: Sequence[Node[Any]] = ()
    workflow_ctx_from: Sequence[Node[Any]] = ()
    join: Join = "all"
    min_success: int | None = None
    allow_failed_deps: bool = False
    queue_name: str | None = None
    priority: int | None = None
    good_until: datetime | timedelta | None = None
    group: str | None = None
    max_width: int = MAX_WIDTH
    when: Node[bool] | None = None
    unless: Node[bool] | None = None
    compensate: Task[Any, Any] | None = None
    partial: bool = False
    wrong: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]], init=False)
    """Why an argument of the node has a wrong form, and how to fix it; the validation reports them."""

    def __post_init__(self) -> None:
        for name in ("when", "unless"):
            given = getattr(self, name)
            if isinstance(given, FromNode) and not given.others:
                object.__setattr__(self, name, given.node)
            elif given is not None and not isinstance(given, Node):
                self.wrong.append(
                    (f"{name} is {shown(given)}, not a node", f"give a node that returns a bool: {name}=check")
                )
                object.__setattr__(self, name, None)
        if self.when is not None and self.unless is not None:
            self.wrong.append(("when and unless are both given", "give one of them"))
        for name in ("waits_for", "workflow_ctx_from"):
            given = getattr(self, name)
            nodes = listed(given)
            if nodes is None:
                self.wrong.append(not_a_list(name, given))
            if not isinstance(given, Sequence) or isinstance(given, str):  # a list may still grow
                object.__setattr__(self, name, nodes or ())


def listed(nodes: object) -> tuple[Any, ...] | None:
    """A copy of the list, or of another iterable; None for a single node or another value."""
    if isinstance(nodes, Iterable) and not isinstance(nodes, str):
        return tuple(cast("Iterable[Any]", nodes))
    return None


def is_by_name(values: object) -> bool:
    """True for a mapping of names to values."""
    return isinstance(values, Mapping) and all(isinstance(name, str) for name in cast("Mapping[object, Any]", values))


def not_a_list(name: str, given: object) -> tuple[str, str]:
    """Why this is no list of nodes, and how to fix it."""
    fix = f"wrap it in a list: {name}=[...]" if isinstance(given, Node) else f"give a list of nodes: {name}=[...]"
    return f"{name} is {shown(cast('object', given))}, not a list of nodes", fix


def node_options(kind: str, given: Mapping[str, Any]) -> NodeOptions:
    known = [option.name for option in fields(NodeOptions) if option.init]
    for name in given:
        if name not in known:
            raise TypeError(f"{kind}() got an unexpected keyword argument {name!r}; its options are {', '.join(known)}")
    return NodeOptions(**given)


class Node(Generic[T_co]):
    """The base of all nodes. A node is equal only to itself."""

    def __init__(self, options: NodeOptions) -> None:
        self.options = options
        self.node_id = options.node_id
        self.is_numbered = False
        """True if a workflow has made the id from the name of the task."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.node_id or self.title}>"

    @property
    def app(self) -> AppRuntime | None:
        """The app of the node's task or workflow; None for a node that only waits."""
        raise NotImplementedError

    @property
    def title(self) -> str:
        """The name that a node without an id gets."""
        raise NotImplementedError

    @property
    def codec(self) -> TaskCodec:
        """Decodes the node's stored result."""
        raise NotImplementedError

    @property
    def result_type(self) -> Any:
        return self.codec.signature.result

    @property
    def inner(self) -> Any:
        """The workflow in this node, if there is one."""
        return None

    @property
    def is_map(self) -> bool:
        """True if it runs something for each item of a list."""
        return False

    @property
    def levels(self) -> int:
        """How many levels of nested runs it adds."""
        if self.inner is None:
            return 0
        return self.inner.levels + self.is_map  # the items' runs are in a run of their own

    @property
    def decider(self) -> Node[bool] | None:
        """The node whose value decides whether this one runs."""
        return self.options.when if self.options.when is not None else self.options.unless

    @property
    def inputs(self) -> Mapping[str, tuple[Node[Any], bool]]:
        """The nodes of surrounding workflows whose results a nested workflow takes, and whether it takes the bare
        value."""
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
        task: Task[Any, T_co],
        *args: Any,
        kwargs: Mapping[str, Any] | None = None,
        args_from: Mapping[str, Node[Any]] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(node_options(type(self).__name__, options))
        if not hasattr(task, "definition"):
            raise UsageError(f"{type(self).__name__} takes a task, not {shown(task)}: decorate it with @app.task(...)")
        if task.has_options:
            raise UsageError(
                f"task {task.name!r}: the options of with_options(...) do not reach a workflow's node: use the task "
                "itself, and give the node its queue_name, priority, good_until or group"
            )
        self.task = task
        self.args = args
        given = self._by_name("kwargs", kwargs)
        injected = self._by_name("args_from", args_from)
        self._injected = injected.keys()
        self.doubled = {name: "by name and in args_from" for name in given if name in injected}
        """Parameters that are given twice, and how; the validation reports them."""
        self.kwargs = given | {name: FromNode(node) for name, node in injected.items()}
        signature = task.definition.codec.signature
        named = args[len(signature.positional_only) :]
        self._bind([parameter.name for parameter in signature.positional_or_keyword], named)

    def _bind(self, names: Sequence[str], args: Sequence[Any]) -> None:
        """Find the parameters that the arguments by position go to, and those of them that are given once more."""
        self.by_position = dict(zip(names, args, strict=False))
        """The arguments by position whose parameters can be named."""
        for name in self.by_position.keys() & self.kwargs.keys():
            self.doubled[name] = f"by position and {'in args_from' if name in self._injected else 'by name'}"

    def _by_name(self, what: str, given: object) -> dict[str, Any]:
        if given is None or is_by_name(given):
            return dict(cast("Mapping[str, Any]", given or {}))
        self.options.wrong.append((f"{what} is {shown(given)}", 'give a mapping by parameter: {"name": ...}'))
        return {}

    @property
    def app(self) -> AppRuntime:
        return self.task.app

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
    def sources(self) -> Mapping[str, FromNode]:
        """By parameter: the node whose result it takes."""
        return {name: value for name, value in self.bound().items() if isinstance(value, FromNode)}

    def bound(self) -> dict[str, Any]:
        """The arguments by parameter name. Positions without a name are left out."""
        return self.by_position | self.kwargs


class MapNode(TaskNode[T_co], Generic[Item, T_co]):
    """One call of a task per item of a list that another node returns. Its result is the list of their results."""

    def __init__(self, task: Task[Any, Any], items_from: Node[Any], *args: Any, kwargs: Any, **options: Any) -> None:
        super().__init__(task, kwargs=kwargs, **options)
        if isinstance(items_from, FromNode):
            items_from = items_from.node
        self.items_from = items_from
        signature = task.definition.codec.signature
        names = [] if signature.positional_only else [one.name for one in signature.positional_or_keyword]
        self.item_parameter = names[0] if names else None
        """The parameter that takes the item: the first one of the task."""
        self._bind(names[1:], args)
        self.kwargs = self.bound()
        self.surplus = len(args) - len(names[1:])

    @property
    def is_map(self) -> bool:
        return True

    @property
    def codec(self) -> TaskCodec:
        return list_codec(self.definition.codec, self.options.partial)

    @property
    def sources(self) -> Mapping[str, FromNode]:
        return {**super().sources, ITEMS: FromNode(self.items_from)}


class ItemNode(Node[T_co]):
    """Stands for the item in a workflow that a map runs for each item of a list."""

    def __init__(self, items_from: Node[Sequence[T_co]]) -> None:
        super().__init__(NodeOptions())
        self.items_from = items_from

    @property
    def app(self) -> AppRuntime | None:
        return None

    @property
    def title(self) -> str:
        return "item"

    @property
    def codec(self) -> TaskCodec:
        listed_type = self.items_from.result_type
        return result_codec("item", next(iter(get_args(listed_type)), Any))


ITEMS = "*"
"""The key in `sources` for the list whose items a map runs over."""


@cache
def list_codec(codec: TaskCodec, partial: bool = False) -> TaskCodec:
    """Decodes the result of a map over the task or workflow of this codec."""
    signature = codec.signature
    item = TaskResult[signature.result, TaskError] if partial else signature.result
    return result_codec(f"{signature.task_name}[]", list[item], signature.location)


def result_codec(name: str, result: Any, location: str | None = None) -> TaskCodec:
    """Decodes results of this type; it has no call."""
    from horsies.codec.signature import TaskSignature
    from horsies.codec.task_codec import TaskCodec

    return TaskCodec(TaskSignature(name, location, (), (), (), None, None, result))
