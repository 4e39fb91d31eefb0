"""`WorkflowSpec`: a validated graph, to be started or to be a node of another."""

from __future__ import annotations

import hashlib
import inspect
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, TypeVar, cast

from horsies._hints import WORKFLOW, missing
from horsies.errors import ConfigurationError
from horsies.workflow.nodes import Join, Node, SubWorkflowNode

if TYPE_CHECKING:
    from horsies.app import Horsies
    from horsies.codec import TaskCodec
    from horsies.workflow.handle import WorkflowHandle
    from horsies.workflow.wiring import Wired, Wiring

T_co = TypeVar("T_co", covariant=True)
MAX_LEVELS: Final = 64
"""Workflows in workflows: a run's graph is written out again, less one level, by every level that starts."""
MAX_NODES: Final = 100_000
"""Of one workflow, those of the workflows inside it counted as often as they stand there."""
OnError = Literal["fail", "pause"]


@dataclass(frozen=True)
class SuccessCase:
    """Met when all of these have completed."""

    required: Sequence[Node[Any]]


@dataclass(frozen=True)
class SuccessPolicy:
    """A run succeeds when one of the cases is met, whatever else failed. Without a policy every failure counts."""

    cases: Sequence[SuccessCase]


class WorkflowDefinitionError(ConfigurationError):
    """A workflow that cannot work as written; all its problems at once."""


class WorkflowSpec(Generic[T_co]):
    """A workflow that can be started. Made by `app.workflow(...)` or a `WorkflowDefinition`."""

    def __init__(
        self,
        app: Horsies,
        name: str,
        tasks: Sequence[Node[Any]],
        *,
        output: Node[T_co] | None = None,
        on_error: OnError = "fail",
        success_policy: SuccessPolicy | None = None,
        open_ended: bool = False,
        place: Place | None = None,
    ) -> None:
        from horsies.workflow.wiring import Wiring  # only now: it loads pydantic

        self.app = app
        self.name = name
        self.on_error: OnError = on_error
        self.output = output
        self.place = place or calling_place()
        wiring = Wiring(app, name, tasks, open_ended=open_ended)
        cases = _settle(wiring, name, output, on_error, success_policy)
        inner = [node.spec for node in wiring.nodes if isinstance(node, SubWorkflowNode)]
        self.levels: int = 1 + max((spec.levels for spec in inner), default=0)
        """How deep workflows stand in workflows; 1 without any inside."""
        self.total_nodes: int = len(wiring.nodes) + sum(spec.total_nodes for spec in inner)
        self.least_bytes: int = _least_bytes(wiring.wired) + sum(spec.least_bytes for spec in inner)
        """A lower bound of what a start writes, known before anything is put together."""
        _refuse_size(wiring, self.levels, self.total_nodes)
        if wiring.problems:
            raise WorkflowDefinitionError(wiring.problems, subject=f"workflow {name!r} ({self.location})")
        wiring.collect_free()
        self.wired: Sequence[Wired] = wiring.wired
        self.index: Mapping[Node[Any], int] = wiring.index
        self.free: Mapping[Node[Any], bool] = wiring.free
        self.cases: list[list[int]] | None = cases
        self.codec: TaskCodec = output.codec if output is not None else _none_codec(name)
        self.shape = self._shape()
        """What makes two graphs the same, arguments aside. Those of workflows inside are shared, not copied."""
        self.definition_key = hashlib.sha256(json.dumps(self.shape).encode()).hexdigest()

    def __repr__(self) -> str:
        return f"<WorkflowSpec {self.name!r}, {len(self.wired)} nodes>"

    if not TYPE_CHECKING:  # a type checker would take every name for known

        def __getattr__(self, name: str) -> Any:
            raise missing(self, name, WORKFLOW, "workflow")

    def _shape(self) -> Any:
        nodes = [
            [wired.node_id, wired.node.title, wired.dependencies,
             wired.node.spec.shape if isinstance(wired.node, SubWorkflowNode) else None]
            for wired in self.wired
        ]  # fmt: skip
        return [self.name, None if self.output is None else self.index[self.output], nodes]

    @property
    def location(self) -> str:
        return self.place.location

    def same_definition(self, other: WorkflowSpec[Any]) -> bool:
        """True if they differ in nothing but the arguments of their nodes."""
        return self._traits() == other._traits()

    def same_content(self, other: WorkflowSpec[Any]) -> bool:
        """True if a run of one is a run of the other."""
        return self.same_definition(other) and self._calls() == other._calls()

    def _traits(self) -> list[Any]:
        nodes = [
            [wired.node.options.join, wired.node.options.min_success, wired.node.options.allow_failed_deps,
             sorted((name, source.node_id or source.title, bare) for name, (source, bare) in wired.sources.items()),
             [source.node_id for source in wired.node.options.workflow_ctx_from],
             wired.node.spec._traits() if isinstance(wired.node, SubWorkflowNode) else None]
            for wired in self.wired
        ]  # fmt: skip
        return [self.shape, self.on_error, self.cases, nodes]

    def _calls(self) -> list[Any]:
        return [
            wired.node.spec._calls() if isinstance(wired.node, SubWorkflowNode) else (wired.call, wired.plan)
            for wired in self.wired
        ]

    def node(
        self,
        *,
        node_id: str | None = None,
        waits_for: Sequence[Node[Any]] = (),
        join: Join = "all",
        min_success: int | None = None,
        allow_failed_deps: bool = False,
    ) -> SubWorkflowNode[T_co]:
        """This workflow as a node of another one."""
        return SubWorkflowNode(self, node_id=node_id, waits_for=tuple(waits_for), join=join, min_success=min_success,
                               allow_failed_deps=allow_failed_deps)  # fmt: skip

    def start(self, *, workflow_id: str | None = None, connection: Any = None) -> WorkflowHandle[T_co]:
        """Start a run. `workflow_id`: an id of your own, to make a start that you may repeat. `connection`: your own
        connection or session; the run exists if and only if your transaction commits. Raises `TaskSendError`."""
        from horsies.workflow.start import Starting

        return Starting(self, workflow_id, connection).start()

    async def start_async(self, *, workflow_id: str | None = None, connection: Any = None) -> WorkflowHandle[T_co]:
        """See `start`."""
        from horsies.workflow.start import Starting

        return await Starting(self, workflow_id, connection).start_async()

    def start_statement(self, workflow_id: str) -> tuple[str, tuple[Any, ...]]:
        """For the scheduler, which starts it in a transaction of its own: SQL and values. No row back means that this
        run exists."""
        from horsies.workflow.start import Starting

        return Starting(self, workflow_id, None).statement()


def _settle(
    wiring: Wiring, name: object, output: object, on_error: object, given: SuccessPolicy | None
) -> list[list[int]] | None:
    if not isinstance(name, str) or not 1 <= len(name) <= 255 or "\0" in name:
        wiring.refuse("name", f"{name!r:.60} cannot be used", "give a text of 1 to 255 characters")
    if on_error not in ("fail", "pause"):
        wiring.refuse("on_error", f"{on_error!r} is unknown", 'use "fail" or "pause"')
    if output is not None and output not in wiring.index:
        wiring.refuse("output", f"{output!r} is not in this workflow", "list it in tasks")
    policy = cast("Any", given)
    if policy is None:
        return None
    if not isinstance(policy, SuccessPolicy) or not all(
        isinstance(one, SuccessCase) for one in cast("Any", policy.cases)
    ):
        fix = "write SuccessPolicy([SuccessCase([node, ...]), ...])"
        wiring.refuse("success_policy", f"{policy!r:.60} is not a policy of cases", fix)
        return None
    if not policy.cases or not all(case.required for case in policy.cases):
        wiring.refuse("success_policy", "a case without nodes, or no case at all", "name what must complete")
    cases: list[list[int]] = []
    for number, case in enumerate(policy.cases):
        for node in case.required:
            if node not in wiring.index:
                wiring.refuse(
                    f"success_policy.cases[{number}]", f"{node!r} is not in this workflow", "list it in tasks"
                )
        cases.append([wiring.index[node] for node in case.required if node in wiring.index])
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


def _none_codec(name: str) -> TaskCodec:
    from horsies.codec import TaskCodec
    from horsies.codec.signature import TaskSignature

    return TaskCodec(TaskSignature(name, None, (), (), (), None, None, type(None)))


@dataclass(frozen=True, slots=True)
class Place:
    """Where something is defined."""

    location: str
    scope: str
    """The function, class or module around it."""
    is_built: bool
    """Inside a function, which may build it for each run; else once, at import."""


def calling_place() -> Place:
    """Of the first caller outside of this package."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] # the documented way
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("horsies."):
        frame = frame.f_back
    code = frame.f_code
    is_function = bool(code.co_flags & inspect.CO_OPTIMIZED)  # bodies of modules and classes are not
    return Place(f"{code.co_filename}:{frame.f_lineno}", f"{code.co_filename}:{code.co_qualname}", is_function)
