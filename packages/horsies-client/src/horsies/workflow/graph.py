"""`Graph`: the validated nodes of a workflow. `WorkflowSpec` adds the methods that start it or nest it."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, cast

from horsies._checks import shown
from horsies.errors import ConfigurationError, UsageError
from horsies.workflow.nodes import (
    ITEMS,
    FromNode,
    ItemNode,
    Node,
    list_codec,
    listed,
    node_options,
    not_a_list,
    result_codec,
)

if TYPE_CHECKING:
    from horsies._runtime import AppRuntime
    from horsies.codec import TaskCodec
    from horsies.workflow.wiring import Wired, Wiring

T_co = TypeVar("T_co", covariant=True)
MAX_LEVELS: Final = 64
"""How deep workflows may be nested. Each level that starts writes the graphs of the levels below it again."""
MAX_NODES: Final = 100_000
"""The nodes of one workflow, including those of every workflow nested in it."""


class OnError(StrEnum):
    """What a run does after one of its nodes has failed. The texts are as good as the members."""

    FAIL = "fail"
    """Nodes that do not depend on it go on; then the run ends FAILED."""
    PAUSE = "pause"
    """No further node starts until the run is resumed."""


OnErrorChoice = OnError | Literal["fail", "pause"]


@dataclass(frozen=True)
class SuccessCase:
    """Met when all of these nodes have completed."""

    required: Sequence[Node[Any]]


@dataclass(frozen=True)
class SuccessPolicy:
    """A run succeeds when one of the cases is met, even if other nodes failed. Without a policy all must complete."""

    cases: Sequence[SuccessCase]


class WorkflowDefinitionError(ConfigurationError):
    """A workflow is invalid; the error lists all its problems."""


class _WorkflowNode(Node[T_co]):
    """The base of nodes that run a workflow."""

    spec: Graph[Any]

    @property
    def app(self) -> AppRuntime:
        return self.spec.app

    @property
    def title(self) -> str:
        return self.spec.name

    @property
    def inner(self) -> Graph[Any]:
        return self.spec


class SubWorkflowNode(_WorkflowNode[T_co]):
    """A workflow as a node: `spec.node(...)`. Its result is that workflow's output."""

    def __init__(self, spec: Graph[T_co], **options: Any) -> None:
        super().__init__(node_options(type(self).__name__, options))
        if not isinstance(cast("object", spec), Graph):
            raise UsageError(f"{type(self).__name__} takes a workflow, not {shown(spec)}: of a class, give .build()")
        self.spec = spec

    @property
    def codec(self) -> TaskCodec:
        return self.spec.codec

    @property
    def inputs(self) -> Mapping[str, tuple[Node[Any], bool]]:
        return {f"input {number}": pair for number, pair in enumerate(self.spec.free.items())}


class MapWorkflowNode(_WorkflowNode[T_co]):
    """One run of a workflow per item of a list that another node returns; see `map_workflow`."""

    def __init__(self, spec: Graph[Any], item: ItemNode[Any], **options: Any) -> None:
        super().__init__(node_options(type(self).__name__, options))
        self.spec = spec
        self.item = item

    @property
    def is_map(self) -> bool:
        return True

    @property
    def codec(self) -> TaskCodec:
        return list_codec(self.spec.codec, self.options.partial)

    @property
    def inputs(self) -> Mapping[str, tuple[Node[Any], bool]]:
        free = [(node, bare) for node, bare in self.spec.free.items() if node is not self.item]
        return {ITEMS: (self.item.items_from, True), **{f"input {at}": pair for at, pair in enumerate(free)}}


def map_workflow_node(items_from: Any, build: Callable[[Any], Any], **options: Any) -> MapWorkflowNode[Any]:
    """Build the workflow of the items once, with a placeholder for the item."""
    source = items_from.node if isinstance(items_from, FromNode) else items_from
    if not isinstance(source, Node):
        raise UsageError(f"map_workflow goes through the list that a node returns, not through {shown(source)}")
    if not callable(build):
        raise UsageError(
            f"map_workflow takes a function of the item that returns a workflow, not {shown(build)}: "
            "lambda item: Order.build_with(item)"
        )
    item = ItemNode[Any](cast("Node[Any]", source))
    spec: object = build(FromNode(item))
    if not isinstance(spec, Graph):
        raise UsageError(
            f"the function of map_workflow returned {shown(spec)}, not a workflow: of a class, give .build()"
        )
    return MapWorkflowNode(cast("Graph[Any]", spec), item, **options)


class Graph(Generic[T_co]):
    """A workflow's nodes, numbered and validated."""

    def __init__(
        self,
        app: AppRuntime,
        name: str,
        tasks: Sequence[Node[Any]],
        *,
        output: Node[T_co] | None = None,
        on_error: OnErrorChoice = "fail",
        success_policy: SuccessPolicy | None = None,
        open_ended: bool = False,
        place: Place | None = None,
        attributes: Mapping[Node[Any], str] | None = None,
        returns: Any = Any,
    ) -> None:
        from horsies.workflow.wiring import Wiring  # loads pydantic

        self.app = app
        self.name = name
        self.on_error: OnErrorChoice = "pause" if on_error == "pause" else "fail"
        self.output = output
        self.returns = returns
        """What a definition class says that its workflow returns."""
        self.place = place or calling_place()
        wiring = Wiring(app, tasks, attributes=attributes or {}, open_ended=open_ended)
        cases = _settle(wiring, name, output, on_error, success_policy)
        wiring.check_output(output, returns)
        inner = [spec for node in wiring.nodes if (spec := node.inner) is not None]
        self.levels: int = 1 + max((node.levels for node in wiring.nodes), default=0)
        """The depth of nested workflows; 1 without any."""
        self.total_nodes: int = len(wiring.nodes) + sum(spec.total_nodes for spec in inner)
        self.least_bytes: int = _least_bytes(wiring.wired) + sum(spec.least_bytes for spec in inner)
        """A lower bound of the bytes that a start writes, known before its statement is built."""
        _refuse_size(wiring, self.levels, self.total_nodes)
        if wiring.problems:
            wiring.take_names_back()
            raise WorkflowDefinitionError(wiring.problems, subject=f"workflow {name!r} ({self.location})")
        wiring.collect_free()
        self.wired: Sequence[Wired] = wiring.wired
        self.index: Mapping[Node[Any], int] = wiring.index
        self.free: Mapping[Node[Any], bool] = wiring.free
        self.cases: list[list[int]] | None = cases
        self.codec: TaskCodec = output.codec if output is not None else result_codec(name, type(None))
        self.shape = self._shape()
        """Equal for graphs that differ only in arguments. Shapes of nested workflows are shared, not copied."""
        self.definition_key = hashlib.sha256(json.dumps(self.shape).encode()).hexdigest()
        self._fingerprint: str | None = None

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}, {len(self.wired)} nodes>"

    def _shape(self) -> Any:
        nodes = [
            [wired.node_id, wired.node.title, wired.dependencies,
             None if wired.node.inner is None else wired.node.inner.shape, *_waits_of(wired)]
            for wired in self.wired
        ]  # fmt: skip
        return [self.name, None if self.output is None else self.index[self.output], nodes]

    @property
    def location(self) -> str:
        return self.place.location

    @property
    def fingerprint(self) -> str:
        """A hash of the definition and of the signatures of its tasks; the arguments of its nodes do not change it."""
        if self._fingerprint is None:
            from horsies.workflow.signatures import fingerprint

            inner = [spec.fingerprint for w in self.wired if (spec := w.node.inner) is not None]
            self._fingerprint = fingerprint(self._traits(), [w.node for w in self.wired], inner)
        return self._fingerprint

    def same_definition(self, other: Graph[Any]) -> bool:
        """True if the two differ at most in the arguments of their nodes."""
        return self._traits() == other._traits()

    def same_content(self, other: Graph[Any]) -> bool:
        """True if the two are equal, including the arguments of their nodes."""
        return self.same_definition(other) and self._calls() == other._calls()

    def _traits(self) -> list[Any]:
        nodes = [
            [wired.node.options.join, wired.node.options.min_success, wired.node.options.allow_failed_deps,
             sorted((name, source.node_id or source.title, bare) for name, (source, bare) in wired.sources.items()),
             [source.node_id for source in wired.node.options.workflow_ctx_from],
             None if wired.node.inner is None else wired.node.inner._traits()]
            for wired in self.wired
        ]  # fmt: skip
        return [self.shape, self.on_error, self.cases, nodes]

    def _calls(self) -> list[Any]:
        return [
            (wired.call, wired.plan, wired.wait)
            if (inner := wired.node.inner) is None
            else (wired.node.options.group, inner._calls())
            for wired in self.wired
        ]


def _waits_of(wired: Wired) -> list[Any]:
    """What waits, decides and undoes; nothing for other nodes, so that their shape is that of older releases."""
    options = wired.node.options
    undo = None if options.compensate is None else options.compensate.name
    name = getattr(wired.node, "signal_name", None)
    found = [name, wired.decider, options.unless is not None, undo, options.partial]
    return [found] if any(part not in (None, False) for part in found) else []


def _settle(
    wiring: Wiring, name: object, output: object, on_error: object, given: SuccessPolicy | None
) -> list[list[int]] | None:
    wiring.check_name("workflow", "name", name)
    if on_error not in ("fail", "pause"):
        wiring.refuse("on_error", f"{on_error!r} is unknown", 'use "fail" or "pause"')
    if output is not None and not wiring.has(output):
        wiring.refuse("output", f"{output!r} is not in this workflow", "list it in tasks")
    policy = cast("Any", given)
    if policy is None:
        return None
    given_cases = listed(policy.cases) if isinstance(policy, SuccessPolicy) else None
    if given_cases is None or not all(isinstance(one, SuccessCase) for one in given_cases):
        fix = "write SuccessPolicy([SuccessCase([node, ...]), ...])"
        wiring.refuse("success_policy", f"{policy!r:.60} is not a policy of cases", fix)
        return None
    required = [listed(case.required) for case in given_cases]
    if not required or () in required:
        wiring.refuse("success_policy", "a case without nodes, or no case at all", "name what must complete")
    cases: list[list[int]] = []
    for number, nodes in enumerate(required):
        where = f"success_policy.cases[{number}]"
        if nodes is None:
            wiring.refuse(where, *not_a_list("required", given_cases[number].required))
        for node in nodes or ():
            if not wiring.has(node):
                wiring.refuse(where, f"{node!r} is not in this workflow", "list it in tasks")
        cases.append([wiring.index[node] for node in nodes or () if wiring.has(node)])
    return cases


def _refuse_size(wiring: Wiring, levels: int, total: int) -> None:
    if levels > MAX_LEVELS:
        why = f"workflows stand in workflows {levels} levels deep, the limit is {MAX_LEVELS}"
        wiring.refuse("tasks", why, "start the inner workflow from a task, or put its nodes into this one")
    if total > MAX_NODES:
        why = f"with the workflows inside it has {total:,} nodes, the limit is {MAX_NODES:,}"
        wiring.refuse("tasks", why, "use a map, or start parts of it as workflows of their own")


def _least_bytes(wired: Sequence[Wired]) -> int:
    calls = [one.call for one in wired if one.call is not None]
    return sum(len(call.args_json or "") + len(call.kwargs_json or "") for call in calls)


@dataclass(frozen=True, slots=True)
class Place:
    """The place in the code where a workflow is defined."""

    location: str
    scope: str
    """The function, class or module around it."""
    is_built: bool
    """True inside a function, which may build a workflow for each run; at import it is built once."""


def calling_place() -> Place:
    """The place of the first caller outside of this package."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] # the documented way
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("horsies."):
        frame = frame.f_back
    code = frame.f_code
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)  # bodies of modules and classes are not
    return Place(f"{code.co_filename}:{frame.f_lineno}", f"{code.co_filename}:{code.co_qualname}", is_function)
