"""The arguments of a node: which of them are known now, and which forms no run could fill in.

A run gives the results of other nodes by name. So a result needs a parameter that has a name, and no values for
`*rest`, which go by position, can follow it.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

from horsies.workflow.nodes import FromNode, Node, TaskNode

if TYPE_CHECKING:
    from horsies.workflow.node_checks import Refuse

_LISTS: Final = (list, tuple, set, frozenset, deque)


def check_arguments(node: TaskNode[Any], at: str, refuse: Refuse) -> bool:
    """Refuse parameters that are given twice, and results in places without a name. True if nothing is wrong."""
    signature = node.definition.codec.signature
    problems = [
        (f"parameter {name!r} is given twice: {how}", "give it once") for name, how in sorted(node.doubled.items())
    ]
    unnamed = len(signature.positional_only)
    end = unnamed + len(signature.positional_or_keyword)
    for parameter, value in zip(signature.positional_only, node.args, strict=False):
        if isinstance(value, FromNode):
            why = f"a result cannot be given to parameter {parameter.name!r}, which takes values by position only"
            problems.append((why, f"remove the / from the parameters of task {node.task.name!r}"))
    rest = signature.var_positional
    if rest is not None and any(isinstance(value, FromNode) for value in node.args[end:]):
        why = f"a result cannot be given to *{rest.name}, whose values have no names"
        problems.append((why, f"let task {node.task.name!r} take a list, or a parameter for the result"))
    shifted = next((name for name, value in node.by_position.items() if isinstance(value, FromNode)), None)
    if shifted is not None and len(node.args) > end:
        if rest is None:
            why = f"task {node.task.name!r} takes {end} positional arguments, and {len(node.args)} are given"
            problems.append((why, "leave the others out"))
        else:
            why = f"parameter {shifted!r} takes a result, and a result cannot stand before values for *{rest.name}"
            problems.append((why, f"let task {node.task.name!r} take a list in place of *{rest.name}"))
    for why, fix in problems:
        refuse(at, why, fix)
    return not problems


def constants(node: TaskNode[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments that are known now, for a codec without the parameters that take results."""
    kwargs = {name: value for name, value in node.kwargs.items() if not isinstance(value, FromNode)}
    if not any(isinstance(value, FromNode) for value in node.args):
        return node.args, kwargs
    # without the results the positions would shift: pass by name
    unnamed = len(node.definition.codec.signature.positional_only)
    named = {name: value for name, value in node.by_position.items() if not isinstance(value, FromNode)}
    return node.args[:unnamed], named | kwargs


def inner_placeholder(node: TaskNode[Any]) -> tuple[str, str] | None:
    """Why a call could not be encoded, and how to fix it, if a node or its placeholder stands among the values."""
    args, kwargs = constants(node)
    names = (*(one.name for one in node.definition.codec.signature.positional_only), *node.by_position)
    places = [(f"parameter {name!r}", value) for name, value in (*zip(names, args, strict=False), *kwargs.items())]
    places += [(f"argument {at}", value) for at, value in enumerate(args, 1) if at > len(names)]
    for where, value in places:
        found = _placeholder_in(value)
        if isinstance(found, FromNode):
            why = f"{where} holds a from_node(...) inside of another value, and it has to be a whole argument"
            return why, "give the task a parameter for it, or build the value in a task"
        if found is not None:
            why = f"{where} holds the node {found!r}, and the result of a node is given by from_node(...)"
            return why, "write from_node(...) around the node, as a whole argument"
    return None


def _placeholder_in(root: object) -> FromNode | Node[Any] | None:
    """The first node or placeholder in these values. Objects are known by id: values may contain themselves, and a
    placeholder refuses to be compared."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, FromNode | Node):
            return cast("FromNode | Node[Any]", value)
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Mapping):
            waiting += cast("Mapping[Any, Any]", value).values()
        elif isinstance(value, _LISTS):
            waiting += cast("list[Any]", value)
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            waiting += [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return None
