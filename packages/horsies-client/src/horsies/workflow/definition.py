"""`WorkflowDefinition`: a workflow as a class."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic, TypeVar, cast

from horsies.errors import Problem
from horsies.workflow.nodes import FromNode, Node, NodeBuilder
from horsies.workflow.spec import OnError, Place, SuccessPolicy, WorkflowDefinitionError, WorkflowSpec, calling_place

if TYPE_CHECKING:
    from horsies.app import Horsies

T_co = TypeVar("T_co", covariant=True)
_MISSING: Final = object()
_META: Final = ("output", "on_error", "success_policy")
"""Settings that stand in the class or in its `Meta`."""
_SETTINGS: Final = ("name", "app", "location", *_META, "check_with", "Meta")
_METHODS: Final = (FunctionType, classmethod, staticmethod, property, type)


class WorkflowDefinition(Generic[T_co]):
    """A workflow as a class: its nodes are attributes, whose names are the nodes' ids.

        class Nightly(WorkflowDefinition[int], app=app, name="nightly"):
            pages = fetch.node()(url="https://example.org")
            words = count.node()(from_node(pages))
            output = words

        Nightly.build().start()

    `name` may be an attribute, and `output`, `on_error` and `success_policy` may stand in an inner `class Meta`. A
    class that extends another one has its nodes too. Other attributes are refused, so that a misspelt one is not
    lost; constants have names in capitals or with a leading underscore.

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
    _place: ClassVar[Place]

    def __init_subclass__(cls, *, app: Horsies | None = None, name: str | None = None, **more: Any) -> None:
        super().__init_subclass__()
        cls._place = calling_place()
        cls.location = cls._place.location
        cls._static = None
        problems = [Problem(given, "is not a keyword of a definition", "it takes app and name") for given in more]
        cls.name = _name(cls, name, problems)
        problems += _unknown(cls)
        _settle(cls, problems)
        home = _app(cls, app, problems)
        nodes = _nodes(cls)
        if home is not None and (nodes or not hasattr(cls, "build_with")):
            try:
                cls._static = WorkflowSpec(
                    home, cls.name, nodes, output=cls.output, on_error=cls.on_error, success_policy=cls.success_policy,
                    place=cls._place,
                )  # fmt: skip
            except WorkflowDefinitionError as error:
                problems += error.problems
        if problems or home is None:
            raise WorkflowDefinitionError(problems, subject=f"workflow {cls.name!r} ({cls.location})")
        home.workflows.add_definition(cls)

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
        """For `build_with`: the nodes become a workflow of this definition. What is not given is the class's own."""
        spec = WorkflowSpec[T_co](
            cls.app, cls.name, tasks, output=cls.output if output is None else output,
            on_error=on_error or cls.on_error,
            success_policy=cls.success_policy if success_policy is None else success_policy,
            open_ended=True, place=cls._place,
        )  # fmt: skip
        cls.app.workflows.add_built(spec)
        return spec


def builder_of(definition: type[WorkflowDefinition[Any]]) -> Callable[..., WorkflowSpec[Any]] | None:
    """Its `build_with`, if it has one."""
    return getattr(definition, "build_with", None)


# -- what the class says -------------------------------------------------------------------------


def _layers(cls: type) -> Iterator[type]:
    """The class and what it extends, nearest first."""
    return (layer for layer in cls.__mro__ if layer not in (WorkflowDefinition, Generic, object))


def _name(cls: type[WorkflowDefinition[Any]], given: str | None, problems: list[Problem]) -> str:
    """From the keyword, else from the class's own attribute, else the class's name. Not inherited: names are unique."""
    own: object = vars(cls).get("name", _MISSING)
    if own is not _MISSING and given is not None and own != given:
        problems.append(Problem("name", f"is given twice: {given!r} and {own!r:.60}", "give it once"))
    chosen: Any = given if given is not None else cls.__name__ if own is _MISSING else own
    if not isinstance(chosen, str) or not chosen:
        problems.append(Problem("name", f"{chosen!r:.60} is not a name", "give a text of 1 to 255 characters"))
        return cls.__name__
    return chosen


def _app(cls: type[WorkflowDefinition[Any]], given: Horsies | None, problems: list[Problem]) -> Horsies | None:
    from horsies.app import Horsies

    found: object = given if given is not None else getattr(cls, "app", None)
    if isinstance(found, Horsies):
        cls.app = found
        return found
    why = "is missing" if found is None else f"{found!r:.60} is not an app"
    problems.append(Problem("app", why, f"write class {cls.__name__}(WorkflowDefinition[...], app=app)"))
    return None


def _settle(cls: type[WorkflowDefinition[Any]], problems: list[Problem]) -> None:
    """Take each setting from the nearest class that has it, there from an attribute or from `Meta`."""
    for setting in _META:
        for layer in _layers(cls):
            here = [vars(layer).get(setting, _MISSING), getattr(vars(layer).get("Meta"), setting, _MISSING)]
            found = [value for value in here if value is not _MISSING]
            if len(found) == 2 and found[0] is not found[1]:
                problems.append(Problem(setting, "is given in the class and in its Meta", "give it once"))
            if found:
                setattr(cls, setting, found[0])
                break


def _unknown(cls: type[WorkflowDefinition[Any]]) -> Iterator[Problem]:
    for attribute, value in vars(cls).items():
        if attribute in _SETTINGS or attribute.startswith("_") or attribute.isupper():
            continue
        if not isinstance(value, (Node, *_METHODS)):
            yield Problem(attribute, *_misplaced(value))
    meta: object = vars(cls).get("Meta", type)
    if not isinstance(meta, type):
        yield Problem("Meta", f"is a {type(meta).__name__}, not a class", "write class Meta: with its settings inside")
    elif meta is not type:
        for attribute in vars(meta):
            if not attribute.startswith("_") and attribute not in _META:
                yield Problem(f"Meta.{attribute}", "is unknown", f"Meta takes {', '.join(_META)}")


def _misplaced(value: object) -> tuple[str, str]:
    """Why an attribute is none of a definition's, and what to write instead."""
    if isinstance(value, NodeBuilder):
        return "is a node without its arguments", "call it: task.node(...)(arguments)"
    if isinstance(value, FromNode):
        return "is the result of a node, not a node", "use from_node(...) as an argument"
    if isinstance(value, WorkflowSpec):
        return "is a workflow, not a node", "write .node() behind it, or begin the attribute with an underscore"
    if isinstance(value, list | tuple | set | dict):
        held = cast("dict[str, object]", value).values() if isinstance(value, dict) else cast("list[object]", value)
        if any(isinstance(member, Node) for member in held):
            return "holds nodes that would not be found", "give each an attribute of its own, or write build_with"
    known = ", ".join(setting for setting in _SETTINGS if setting not in ("app", "location"))
    return (
        f"is a {type(cast('Any', value)).__name__}: neither a node nor a setting of a definition",
        f"its settings are {known}; a constant has a name in capitals or with a leading underscore",
    )


def _nodes(cls: type[WorkflowDefinition[Any]]) -> list[Node[Any]]:
    """Those of the classes that it extends come first; an attribute that it has again stands in the old place."""
    found: dict[str, Node[Any]] = {}
    for layer in reversed(list(_layers(cls))):
        for attribute, value in vars(layer).items():
            if isinstance(value, Node) and attribute not in ("name", "app"):
                found[attribute] = cast("Node[Any]", value)
            elif attribute in found:
                del found[attribute]
    if "output" in found:  # the other name of a node, as a rule
        found["output"] = found.pop("output")
    nodes: list[Node[Any]] = []
    for attribute, node in found.items():
        if node not in nodes:
            node.node_id = node.node_id or attribute
            nodes.append(node)
    return nodes
