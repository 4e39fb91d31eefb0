"""Arguments by parameter, and how two calls of a task differ. Both have gone through the codec."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from horsies.envelopes import Envelopes
from horsies.testing.differing import equal, where_they_differ
from horsies.testing.records import told

if TYPE_CHECKING:
    from horsies.registry import TaskDefinition

_MISSING: Final = object()


@dataclass(frozen=True, slots=True)
class Call:
    """A call as the task gets it. `stored` has the JSON of its named arguments: values of a class without `__eq__` are
    compared by that."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    arguments: Mapping[str, Any]
    stored: Mapping[str, Any]


def read_call(
    definition: "TaskDefinition | None",
    args: str | None,
    kwargs: str | None,
    envelopes: Envelopes | None = None,
    *,
    task_name: str = "",
) -> Call:
    """Decode a call. Without a definition its values are plain JSON data. `envelopes`: of a call as a row has it."""
    if envelopes is not None:
        args, kwargs = envelopes.unwrap_call(args, kwargs, task_name)
    stored: dict[str, Any] = json.loads(kwargs) if kwargs else {}
    if definition is None:
        positional = tuple(json.loads(args)) if args else ()
        named: dict[str, Any] = {f"args[{at}]": value for at, value in enumerate(positional)} | stored
        return Call(positional, stored, named, stored)
    given, named = definition.codec.decode_call(args, kwargs)
    bound = definition.signature().bind(*given, **named)
    bound.apply_defaults()
    return Call(given, named, bound.arguments, stored)


def differences(wanted: Call, found: Call) -> list[str]:
    """A line for each place in which an argument differs."""
    lines: list[str] = []
    for name in dict.fromkeys((*wanted.arguments, *found.arguments)):
        one, other = wanted.arguments.get(name, _MISSING), found.arguments.get(name, _MISSING)
        if one is _MISSING:
            lines.append(f"{name}: was {told(other)}, expected to be left out")
        elif other is _MISSING:
            lines.append(f"{name}: was left out, expected {told(one)}")
        elif not equal(one, other) and not _same_text(name, wanted, found):
            lines.extend(where_they_differ(name, one, other))
    return lines


def _same_text(name: str, wanted: Call, found: Call) -> bool:
    return name in wanted.stored and name in found.stored and wanted.stored[name] == found.stored[name]
