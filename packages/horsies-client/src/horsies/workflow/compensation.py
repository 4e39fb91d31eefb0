"""The compensation of a node: the task that undoes it, checked at definition."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from horsies._checks import Checks, shown
from horsies.codec.errors import type_name
from horsies.codec.fit import fits
from horsies.codec.task_codec import without_parameters
from horsies.errors import HorsiesError
from horsies.new_tasks import Plan, checked_plan
from horsies.options import SendOptions
from horsies.workflow.context import WorkflowContext, WorkflowMeta
from horsies.workflow.nodes import MapNode, Node, Task, TaskNode

if TYPE_CHECKING:
    from horsies._runtime import AppRuntime
    from horsies.codec.signature import Parameter


@dataclass(frozen=True, slots=True)
class Undo:
    """How a node is undone."""

    plan: Plan
    value: str
    """The parameter that takes the node's value."""
    arguments: tuple[str, ...]
    """Parameters that take the node's arguments of the same names."""
    defaults: Mapping[str, Any]
    """The defaults of arguments that the node does not give, as JSON values."""

    def data(self) -> Mapping[str, Any]:
        """For the row of the node."""
        plan = self.plan
        return {
            "task_name": plan.task_name, "queue_name": plan.queue_name, "priority": plan.priority,
            "task_options": plan.task_options, "max_retries": plan.max_retries,
            "ttl": plan.ttl.total_seconds() if plan.ttl else None,
            "metadata": dict(plan.default_metadata) if plan.default_metadata else None,
            "value": self.value, "arguments": list(self.arguments),
            **({"defaults": dict(self.defaults)} if self.defaults else {}),
        }  # fmt: skip


def undo_of(app: AppRuntime, node: Node[Any]) -> tuple[Undo | None, list[tuple[str, str]]]:
    """The compensation of a node, and what is wrong with it: (why, fix)."""
    task: Any = node.options.compensate
    if not hasattr(task, "definition") or not hasattr(task, "name"):
        return None, [(f"is {shown(task)}, not a task", "give a task of this app: compensate=refund")]
    if task.has_options:
        return None, [("the options of with_options(...) do not reach it", "give the task itself")]
    if task.app is not app:
        return None, [(f"task {task.name!r} belongs to another app", "use tasks of this app")]
    problems: list[tuple[str, str]] = []
    undo = cast("Task[Any, Any]", task)
    parameters = _by_name(undo)
    given = _arguments(node) if isinstance(node, TaskNode) else {}
    unnamed = _by_position(node) if isinstance(node, TaskNode) else frozenset[str]()
    value = next(iter(parameters), None)
    if value is None:
        problems.append(
            (f"task {undo.name!r} takes no parameter for the value to undo", "let it take the node's value")
        )
    elif not fits(returned := _value_type(node), parameters[value].annotation):
        wanted = type_name(parameters[value].annotation)
        problems.append(
            (
                f"parameter {value!r} of task {undo.name!r} takes {wanted}, and the node returns {type_name(returned)}",
                "its first parameter takes the node's value: change one of the two types",
            )
        )
    taken: list[str] = []
    for name, parameter in list(parameters.items())[1:]:
        if name in unnamed:
            why = f"the node's argument {name!r} is stored by position, and task {undo.name!r} takes it by name"
            fix = f"let the node's task take it by name (no /, a list in place of *args), or rename it in {undo.name!r}"
            problems.append((why, fix))
        elif name in given and fits(given[name].annotation, parameter.annotation):
            taken.append(name)
        elif name in given:
            why = (
                f"parameter {name!r} of task {undo.name!r} takes {type_name(parameter.annotation)}, and the node's "
                f"argument of this name is {type_name(given[name].annotation)}"
            )
            problems.append((why, "change one of the two types, or the name"))
        elif parameter.required:
            why = f"parameter {name!r} of task {undo.name!r} is neither the node's value nor one of its arguments"
            known = ", ".join(given) or "none"
            problems.append((why, f"give it a default, or the name of an argument of the node: {known}"))
    checks = Checks("compensate")
    plan = checked_plan(app.config, undo.name, undo.definition, SendOptions(), checks)
    problems += [(f"{problem.where}: {problem.why}", problem.fix) for problem in checks.problems]
    if problems or plan is None or value is None:
        return None, problems
    try:
        return Undo(plan, value, tuple(taken), _defaults(undo, node, taken)), []
    except HorsiesError as error:
        return None, [(f"a default of the node's task cannot be given to it: {error}", "give the argument to the node")]


def _defaults(undo: Task[Any, Any], node: Node[Any], taken: Sequence[str]) -> Mapping[str, Any]:
    """The defaults of arguments that the node does not give, in the node's task: the compensation needs them too,
    and no row has them."""
    if not isinstance(node, TaskNode):
        return {}
    given = {*node.bound(), *([node.item_parameter] if isinstance(node, MapNode) else [])}
    signature = node.definition.signature()
    found = {
        name: signature.parameters[name].default
        for name in taken
        if name not in given
        and name in signature.parameters
        and signature.parameters[name].default is not inspect.Parameter.empty
    }
    others = frozenset(_names(undo) - found.keys())
    encoded = without_parameters(undo.definition.codec, others).encode_call((), found).kwargs_json if found else None
    return json.loads(encoded or "{}")


def _names(task: Task[Any, Any]) -> set[str]:
    signature = task.definition.codec.signature
    return {one.name for one in (*signature.positional_or_keyword, *signature.keyword_only)}


def _value_type(node: Node[Any]) -> Any:
    """What is undone: the value of a node, of a map that of each item."""
    return node.definition.codec.signature.result if isinstance(node, MapNode) else node.result_type


def _by_name(task: Task[Any, Any]) -> dict[str, Parameter]:
    """The parameters that have names and take values of callers."""
    signature = task.definition.codec.signature
    found = (*signature.positional_or_keyword, *signature.keyword_only)
    return {one.name: one for one in found if not _is_injected(one.annotation)}


def _arguments(node: TaskNode[Any]) -> dict[str, Parameter]:
    """The parameters of the node's task that have names, those of its `**kwargs` that the node gives included."""
    found = _by_name(node.task)
    if (extras := node.definition.codec.signature.var_keyword) is not None:
        found |= {name: extras for name in node.kwargs if name not in found}
    return found


def _by_position(node: TaskNode[Any]) -> frozenset[str]:
    """The parameters whose values the row of the node has without their names."""
    signature = node.definition.codec.signature
    found = list(signature.positional_only)
    if signature.var_positional is not None:
        found.append(signature.var_positional)
        if len(node.args) > len(signature.positional_only) + len(signature.positional_or_keyword):
            found += signature.positional_or_keyword
    return frozenset(parameter.name for parameter in found)


def _is_injected(annotation: Any) -> bool:
    from typing import get_args

    return any(one in (WorkflowContext, WorkflowMeta) for one in (annotation, *get_args(annotation)))
