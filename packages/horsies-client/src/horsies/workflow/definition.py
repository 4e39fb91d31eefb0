"""`WorkflowDefinition`: a workflow as a class."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from types import FunctionType
from typing import Any, ClassVar, Final, ForwardRef, Generic, NoReturn, TypeVar, cast, get_args, get_origin

from horsies._checks import Checks, shown
from horsies._hints import DEFINITION, missing
from horsies._runtime import AppRuntime
from horsies.errors import Problem, UsageError
from horsies.options import check_name
from horsies.workflow.defined import Definition, workflows_of
from horsies.workflow.graph import OnErrorChoice, Place, SuccessPolicy, WorkflowDefinitionError, calling_place
from horsies.workflow.node_builder import NodeBuilder
from horsies.workflow.nodes import FromNode, Node, is_by_name
from horsies.workflow.spec import WorkflowSpec

F = TypeVar("F", bound=Callable[..., Any])
T_co = TypeVar("T_co", covariant=True)
_MISSING: Final = object()
_META: Final = ("output", "on_error", "success_policy")
"""Settings that can be attributes of the class or of its `Meta`."""
_SETTINGS: Final = ("name", "app", *_META, "check_with", "build_with", "Meta")
_OWN: Final = ("location", "_static", "_place", "_returns", "build", "workflow")
"""What every definition has; an attribute of the same name would hide it, or get lost."""
_METHODS: Final = (FunctionType, classmethod, staticmethod, property, type)


def _without_arguments(build: F) -> F:
    """Let `build` refuse arguments with a sentence."""

    @wraps(build)
    def checked(cls: type[WorkflowDefinition[Any]], *given: object, **named: object) -> Any:
        if given or named:
            fix = (
                "give them to" if hasattr(cls, "build_with") else "for a workflow with parameters, write a classmethod"
            )
            raise UsageError(f"{cls.__name__}.build() takes no arguments: {fix} {cls.__name__}.build_with(...)")
        return build(cls)

    return cast("F", checked)


class WorkflowDefinition(Generic[T_co]):
    """A workflow as a class: its nodes are attributes, whose names are the nodes' ids.

        class Nightly(WorkflowDefinition[int], app=app, name="nightly"):
            pages = fetch.node()(url="https://example.org")
            words = count.node()(from_node(pages))
            output = words

        Nightly.build().start()

    `name` may be an attribute; `output`, `on_error` and `success_policy` may be attributes of an inner `class Meta`. A
    class that extends another one inherits its nodes. Other attributes are refused, so that a misspelt setting is
    noticed; constants have names in capitals or with a leading underscore.

    For a workflow with parameters, write a classmethod `build_with(cls, ...)` that makes the nodes and returns
    `cls.workflow([...], output=...)`. A parameter may be `from_node(x)` of a surrounding workflow. `check_with` holds
    the keyword arguments that `horsies check` tries it with.
    """

    name: ClassVar[str]
    app: ClassVar[AppRuntime]
    location: ClassVar[str]
    output: ClassVar[Node[Any] | None] = None
    on_error: ClassVar[OnErrorChoice] = "fail"
    success_policy: ClassVar[SuccessPolicy | None] = None
    check_with: ClassVar[Sequence[Mapping[str, Any]]] = ()
    _static: ClassVar[WorkflowSpec[Any] | None] = None
    _place: ClassVar[Place]
    _returns: ClassVar[Any]

    def __init__(self, *_: object, **__: object) -> None:
        cls = type(self)
        raise UsageError(f"{cls.__name__} has no instances: the class is the workflow; write {_built(cls)}.start()")

    def __init_subclass__(cls, *, app: AppRuntime | None = None, name: str | None = None, **more: Any) -> None:
        super().__init_subclass__()
        problems = [Problem(given, "is not a keyword of a definition", "it takes app and name") for given in more]
        problems += _hiding(cls)
        cls._place = calling_place()
        cls.location = cls._place.location
        cls._static = None
        cls._returns = _type_argument(cls)
        cls.name = _name(cls, name, problems)
        problems += _unknown(cls)
        _settle(cls, problems)
        home = _app(cls, app, problems)
        nodes = _nodes(cls, problems)
        build_with = _builder(cls, problems)
        if home is not None and (nodes or build_with is None):
            try:
                cls._static = WorkflowSpec(
                    home, cls.name, list(nodes), output=cls.output, on_error=cls.on_error,
                    success_policy=cls.success_policy, place=cls._place, attributes=nodes, returns=cls._returns,
                )  # fmt: skip
            except WorkflowDefinitionError as error:
                problems += error.problems
        if problems or home is None:
            raise WorkflowDefinitionError(problems, subject=f"workflow {cls.name!r} ({cls.location})")
        workflows_of(home).add_definition(Definition(cls.name, cls.location, cls._static, build_with, cls.check_with))

    @classmethod
    @_without_arguments
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
        on_error: OnErrorChoice | None = None,
        success_policy: SuccessPolicy | None = None,
    ) -> WorkflowSpec[T_co]:
        """For `build_with`: make a workflow of these nodes. Settings that are not given come from the class."""
        spec = WorkflowSpec[T_co](
            cls.app, cls.name, tasks, output=cls.output if output is None else output,
            on_error=on_error or cls.on_error,
            success_policy=cls.success_policy if success_policy is None else success_policy,
            open_ended=True, place=cls._place, returns=cls._returns,
        )  # fmt: skip
        workflows_of(cls.app).add_built(spec)
        return spec


class _Missing:
    """Stands for a method that a definition does not have, and says what to write. A node of this name replaces it. Not
    a metaclass, which would exclude base classes that have one, such as ABC."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type[WorkflowDefinition[Any]]) -> NoReturn:
        raise missing(owner, self._name, DEFINITION, _built(owner))


for _each in DEFINITION:
    setattr(WorkflowDefinition, _each, _Missing(_each))


# -- reading the class ---------------------------------------------------------------------------


def _layers(cls: type) -> Iterator[type]:
    """The class and its base classes, nearest first."""
    return (layer for layer in cls.__mro__ if layer not in (WorkflowDefinition, Generic, object))


def _built(cls: type[WorkflowDefinition[Any]]) -> str:
    """The expression that makes the workflow of a class."""
    only_parameters = vars(cls).get("_static") is None and hasattr(cls, "build_with")
    return f"{cls.__name__}.build_with(...)" if only_parameters else f"{cls.__name__}.build()"


def _type_argument(cls: type) -> Any:
    """What the class says that its workflow returns: the X of `WorkflowDefinition[X]`. Any if it does not say, or says
    it with a type variable or a name in quotes."""
    for base in (base for layer in _layers(cls) for base in vars(layer).get("__orig_bases__", ())):
        if get_origin(base) is WorkflowDefinition:
            (given,) = get_args(base)
            return Any if isinstance(given, TypeVar | ForwardRef) else given
    return Any


def _name(cls: type[WorkflowDefinition[Any]], given: str | None, problems: list[Problem]) -> str:
    """The keyword, else the class's own attribute, else the class's name. Never inherited, because names are unique."""
    own: object = vars(cls).get("name", _MISSING)
    if own is not _MISSING and given is not None and own != given:
        problems.append(Problem("name", f"is given twice: {given!r} and {own!r:.60}", "give it once"))
    chosen: Any = given if given is not None else cls.__name__ if own is _MISSING else own
    checks = Checks("workflow")
    check_name(checks, "name", chosen)
    problems += checks.problems
    return cls.__name__ if checks.problems else chosen


def _app(cls: type[WorkflowDefinition[Any]], given: AppRuntime | None, problems: list[Problem]) -> AppRuntime | None:
    found: object = given if given is not None else getattr(cls, "app", None)
    if isinstance(found, AppRuntime):
        cls.app = found
        return found
    why = "is missing" if found is None else f"{found!r:.60} is not an app"
    problems.append(Problem("app", why, f"write class {cls.__name__}(WorkflowDefinition[...], app=app)"))
    return None


def _settle(cls: type[WorkflowDefinition[Any]], problems: list[Problem]) -> None:
    """Take each setting from the nearest class that has it, as an attribute or in its `Meta`."""
    for setting in _META:
        for layer in _layers(cls):
            here = [vars(layer).get(setting, _MISSING), getattr(vars(layer).get("Meta"), setting, _MISSING)]
            found = [value for value in here if value is not _MISSING]
            if len(found) == 2 and found[0] is not found[1]:
                problems.append(Problem(setting, "is given in the class and in its Meta", "give it once"))
            if found:
                setattr(cls, setting, found[0])
                break


def _hiding(cls: type[WorkflowDefinition[Any]]) -> Iterator[Problem]:
    """Attributes of the class, and of mixins, in the place of the definition's own. Definitions that it extends were
    checked before. A classmethod may override one."""
    mixins = [layer for layer in _layers(cls) if WorkflowDefinition not in layer.__mro__]
    for attribute, value in (pair for layer in (cls, *mixins) for pair in vars(layer).items()):
        is_override = attribute in ("build", "workflow") and isinstance(value, classmethod)
        if (attribute in _OWN and not is_override) or (attribute == "app" and isinstance(value, Node)):
            why = "is the name of something that every definition has: the two would hide each other"
            yield Problem(attribute, why, "rename the attribute; node_id=... sets the id of a node")


def _builder(cls: type[WorkflowDefinition[Any]], problems: list[Problem]) -> Callable[..., Any] | None:
    """The `build_with` of the class, if it has one. Also checks `check_with`."""
    tries: Any = cls.check_with
    if not isinstance(tries, list | tuple) or not all(map(is_by_name, cast("list[object]", tries))):
        why = f"{shown(cast('object', tries))} is not a list of arguments by name"
        problems.append(Problem("check_with", why, 'write check_with = ({"parameter": value},)'))
    found: object = inspect.getattr_static(cls, "build_with", None)
    if found is not None and not isinstance(found, classmethod | staticmethod):
        why = f"is a {type(found).__name__}, not a classmethod"
        problems.append(Problem("build_with", why, "write @classmethod above def build_with(cls, ...)"))
    return getattr(cls, "build_with", None)


def _unknown(cls: type[WorkflowDefinition[Any]]) -> Iterator[Problem]:
    for attribute, value in vars(cls).items():
        if attribute in (*_SETTINGS, *_OWN) or attribute.startswith("_") or attribute.isupper():
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
    """Why a definition cannot have this attribute, and what to write instead."""
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
    known = ", ".join(setting for setting in _SETTINGS if setting != "app")
    return (
        f"is a {type(cast('Any', value)).__name__}: neither a node nor a setting of a definition",
        f"its settings are {known}; a constant has a name in capitals or with a leading underscore",
    )


def _nodes(cls: type[WorkflowDefinition[Any]], problems: list[Problem]) -> dict[Node[Any], str]:
    """The nodes with their attributes. Those of base classes come first; an attribute that is overridden keeps its
    place. Only `output` may be a second name of a node."""
    found: dict[str, Node[Any]] = {}
    for layer in reversed(list(_layers(cls))):
        for attribute, value in vars(layer).items():
            if isinstance(value, Node) and attribute not in ("name", "app"):
                found[attribute] = cast("Node[Any]", value)
            elif attribute in found:
                del found[attribute]
    if "output" in found:  # usually a second name of another attribute's node
        found["output"] = found.pop("output")
    nodes: dict[Node[Any], str] = {}
    for attribute, node in found.items():
        first = nodes.setdefault(node, attribute)
        if attribute not in (first, *_SETTINGS):
            fix = "write output = ..." if get_close_matches(attribute, ["output"]) else "remove one of the two names"
            problems.append(Problem(attribute, f"is a second name of the node {first!r}, and would be lost", fix))
    return nodes
