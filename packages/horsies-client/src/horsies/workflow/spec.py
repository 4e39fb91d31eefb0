"""`WorkflowSpec`: a validated graph, to be started or to be a node of another. `WorkflowDefinition`: as a class."""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, Literal, TypeVar, cast

from horsies.errors import ConfigurationError, Problem
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
        location: str | None = None,
    ) -> None:
        from horsies.workflow.wiring import Wiring  # only now: it loads pydantic

        self.app = app
        self.name = name
        self.on_error: OnError = on_error
        self.output = output
        self.location = location or _location()
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

    def _shape(self) -> Any:
        nodes = [
            [wired.node_id, wired.node.title, wired.dependencies,
             wired.node.spec.shape if isinstance(wired.node, SubWorkflowNode) else None]
            for wired in self.wired
        ]  # fmt: skip
        return [self.name, None if self.output is None else self.index[self.output], nodes]

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


class WorkflowDefinition(Generic[T_co]):
    """A workflow as a class: its nodes are attributes, whose names are the nodes' ids.

        class Nightly(WorkflowDefinition[int], app=app, name="nightly"):
            pages = fetch.node()(url="https://example.org")
            words = count.node()(from_node(pages))
            output = words

        Nightly.build().start()

    For one with parameters, write a classmethod `build_with(cls, ...)` that makes the nodes and returns
    `cls.workflow([...], output=...)`. A parameter may be `from_node(x)` of the workflow around it. `check_with` holds
    the keyword arguments that `horsies check` tries it with.
    """

    name: ClassVar[str]
    app: ClassVar[Horsies]
    location: ClassVar[str]
    output: ClassVar[Node[Any] | None] = None
    on_error: ClassVar[OnError] = "fail"
    success_policy: ClassVar[SuccessPolicy | None] = None
    check_with: ClassVar[Sequence[Mapping[str, Any]]] = ()
    _static: ClassVar[WorkflowSpec[Any] | None] = None

    def __init_subclass__(cls, *, app: Horsies, name: str | None = None, **more: Any) -> None:
        super().__init_subclass__(**more)
        cls.app = app
        cls.name = name or cls.__name__
        cls.location = _location()
        nodes: list[Node[Any]] = []
        for attribute, value in vars(cls).items():
            if isinstance(value, Node) and value not in nodes:
                found = cast("Node[Any]", value)
                found.node_id = found.node_id or attribute
                nodes.append(found)
        if nodes or not hasattr(cls, "build_with"):
            cls._static = WorkflowSpec(
                app, cls.name, nodes, output=cls.output, on_error=cls.on_error, success_policy=cls.success_policy,
                location=cls.location,
            )  # fmt: skip
            app.workflows.add(cls._static)
        app.workflows.add_definition(cls)

    @classmethod
    def build(cls) -> WorkflowSpec[T_co]:
        """The workflow of the class's own nodes."""
        if cls._static is None:
            fix = "call build_with(...) with its parameters"
            raise WorkflowDefinitionError([Problem(cls.name, "it has no nodes of its own", fix)], subject="workflow")
        return cls._static

    @classmethod
    def workflow(
        cls,
        tasks: Sequence[Node[Any]],
        *,
        output: Node[T_co] | None = None,
        on_error: OnError | None = None,
        success_policy: SuccessPolicy | None = None,
    ) -> WorkflowSpec[T_co]:
        """For `build_with`: the nodes become a workflow of this definition."""
        spec = WorkflowSpec[T_co](
            cls.app, cls.name, tasks, output=output, on_error=on_error or cls.on_error, success_policy=success_policy,
            open_ended=True, location=cls.location,
        )  # fmt: skip
        cls.app.workflows.add(spec)
        return spec


class Workflows:
    """The workflows that an app knows, by name: what types the output of a run that is known by its id only."""

    def __init__(self) -> None:
        self._specs: dict[str, WorkflowSpec[Any]] = {}
        self._definitions: dict[str, type[WorkflowDefinition[Any]]] = {}

    def add(self, spec: WorkflowSpec[Any]) -> None:
        self._specs[spec.name] = spec

    def add_definition(self, definition: type[WorkflowDefinition[Any]]) -> None:
        self._definitions[definition.name] = definition

    def get(self, name: str) -> WorkflowSpec[Any] | None:
        return self._specs.get(name)

    def known(self, name: str, definition_key: str | None) -> WorkflowSpec[Any] | None:
        """The one of this name, if it still has the shape that the run was started with."""
        spec = self._specs.get(name)
        return spec if spec is not None and spec.definition_key == definition_key else None

    def definitions(self) -> list[type[WorkflowDefinition[Any]]]:
        return list(self._definitions.values())

    def __iter__(self) -> Iterator[WorkflowSpec[Any]]:
        return iter(self._specs.values())

    def __len__(self) -> int:
        return len(self._specs)


def builder_of(definition: type[WorkflowDefinition[Any]]) -> Callable[..., WorkflowSpec[Any]] | None:
    """Its `build_with`, if it has one."""
    return getattr(definition, "build_with", None)


def _settle(
    wiring: Wiring, name: object, output: object, on_error: object, policy: SuccessPolicy | None
) -> list[list[int]] | None:
    if not isinstance(name, str) or not 1 <= len(name) <= 255 or "\0" in name:
        wiring.refuse("name", f"{name!r:.60} cannot be used", "give a text of 1 to 255 characters")
    if on_error not in ("fail", "pause"):
        wiring.refuse("on_error", f"{on_error!r} is unknown", 'use "fail" or "pause"')
    if output is not None and output not in wiring.index:
        wiring.refuse("output", f"{output!r} is not in this workflow", "list it in tasks")
    if policy is None:
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


def _location() -> str:
    """Of the first caller outside of this package."""
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage] # the documented way
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("horsies."):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
