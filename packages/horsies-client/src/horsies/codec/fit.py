"""Checks that a value of one annotation can be read as another: the two ends of a workflow's edge, at definition.

The value crosses as JSON text and is built anew by the reader, so containers may differ in their element types as
long as every element fits (a `list[int]` fits a `list[float]`), and two types that pydantic describes alike are alike.
A value that would arrive as another one does not fit: a bool for an int, a datetime for a date, bytes for Any.
"""

import dataclasses
import types
import typing
from collections.abc import Mapping, Sequence, Set as AbstractSet
from datetime import date, datetime
from functools import lru_cache
from typing import Any, Final

from pydantic import BaseModel, TypeAdapter

from horsies.codec.schema import SchemaReader

_ARRAYS: Final = (list, tuple, set, frozenset, Sequence, AbstractSet)
#: Subclasses in Python, and yet other values: what takes a date would be given a day without its hour.
_CHANGED: Final = ((bool, int), (datetime, date))
#: What stands for itself in JSON, so that it arrives equal where no type says how to read it.
_JSON: Final = (str, int, float)


def fits(produced: Any, wanted: Any) -> bool:
    """True when every value of type `produced` is one that a parameter of type `wanted` takes.

    Where only the value can tell (Any, or an int for a float), it is True, and the worker's reader decides.
    """
    produced, wanted = _bare(produced), _bare(wanted)
    if produced is Any or produced == wanted:
        return True
    sources, targets = _choices(produced), _choices(wanted)
    if len(sources) > 1 or len(targets) > 1:
        return all(any(fits(source, target) for target in targets) for source in sources)
    if typing.get_origin(produced) is typing.Literal:
        values = typing.get_args(produced)
        if typing.get_origin(wanted) is typing.Literal:
            return {(type(value), value) for value in values} <= {(type(one), one) for one in typing.get_args(wanted)}
        return all(fits(type(value), wanted) for value in values)
    if wanted in (Any, object):
        return _is_json(produced)
    if (produced, wanted) == (int, float) or _subclass_fits(produced, wanted) or _containers_fit(produced, wanted):
        return True
    return described(produced) == described(wanted) is not None


def _is_json(produced: Any, inside: tuple[Any, ...] = ()) -> bool:
    """Arrives where nothing is declared as what it was: a bytes would be text, a model a dict, a tuple a list.

    `inside`: the types around it; one that contains itself is not looked into twice.
    """
    if any(produced is outer for outer in inside):
        return True
    inside = (*inside, produced)
    bare = _bare(produced)
    choices = _choices(bare)
    if len(choices) > 1:
        return all(_is_json(choice, inside) for choice in choices)
    origin, parts = typing.get_origin(bare) or bare, typing.get_args(bare)
    if origin is typing.Literal:
        return all(_is_json(type(value), inside) for value in parts)
    if origin in (Any, object, type(None)) or isinstance(bare, str | typing.ForwardRef):  # a name: of a type around it
        return True
    if not isinstance(origin, type):
        return False
    if _is_subclass(origin, dict) and hasattr(origin, "__total__"):  # a TypedDict, also of typing_extensions
        return all(_is_json(part, inside) for part in typing.get_type_hints(origin).values())
    if origin in (list, Sequence):
        return all(_is_json(part, inside) for part in parts)
    if _is_subclass(origin, (dict, Mapping)):
        return not parts or (_bare(parts[0]) in (str, Any) and all(_is_json(part, inside) for part in parts[1:]))
    return _is_subclass(origin, _JSON)


def _subclass_fits(produced: Any, wanted: Any) -> bool:
    if not isinstance(produced, type) or not isinstance(wanted, type):
        return False
    if typing.get_args(produced) or typing.get_args(wanted) or not _is_subclass(produced, wanted):
        return False
    if _is_subclass(wanted, (*_ARRAYS, dict, Mapping)):
        return False
    for sub, base in _CHANGED:
        if _is_subclass(produced, sub) and _is_subclass(wanted, base) and not _is_subclass(wanted, sub):
            return False
    ours, theirs = _fields(produced), _fields(wanted)
    if ours is None or theirs is None:
        return True
    keeps_more = getattr(wanted, "model_config", {}).get("extra") == "allow"
    return (keeps_more or ours.keys() == theirs.keys()) and all(
        name in ours and fits(ours[name], theirs[name]) for name in theirs
    )


def _fields(cls: type) -> dict[str, Any] | None:
    """The fields of a model or a dataclass. What a subclass adds, its base would lose."""
    if dataclasses.is_dataclass(cls):
        return {field.name: field.type for field in dataclasses.fields(cls)}
    if issubclass(cls, BaseModel):
        return {name: field.annotation for name, field in cls.model_fields.items()}
    return None


def _containers_fit(produced: Any, wanted: Any) -> bool:
    have = typing.get_origin(produced) or produced
    want = typing.get_origin(wanted) or wanted
    if not isinstance(have, type) or not isinstance(want, type) or not _is_subclass(have, want):
        return False
    given, asked = typing.get_args(produced), typing.get_args(wanted)
    if not asked:
        return issubclass(want, (*_ARRAYS, dict, Mapping)) and _parts_are_json(have, given)
    if issubclass(have, tuple) and not issubclass(want, tuple):
        given = (typing.Union[tuple(item for item in given if item is not Ellipsis)],) if given else ()  # noqa: UP007
    elif issubclass(have, tuple) and len(asked) == 2 and asked[1] is Ellipsis:
        return bool(given) and all(fits(item, asked[0]) for item in given if item is not Ellipsis)
    return len(given) == len(asked) and all(fits(one, other) for one, other in zip(given, asked, strict=True))


def _parts_are_json(have: type, given: tuple[Any, ...]) -> bool:
    if _is_subclass(have, (dict, Mapping)) and given and _bare(given[0]) not in (str, Any):
        return False
    if not given and hasattr(have, "_fields"):
        given = tuple(typing.get_type_hints(have).values())
    return all(_is_json(item) for item in given if item is not Ellipsis)


def _bare(annotation: Any) -> Any:
    """The annotation without Annotated, NewType and type aliases."""
    while True:
        if typing.get_origin(annotation) is typing.Annotated:
            annotation = typing.get_args(annotation)[0]
        elif isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return type(None) if annotation is None else annotation


def _choices(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _is_subclass(one: type, other: type | tuple[type, ...]) -> bool:
    try:
        return issubclass(one, other)
    except TypeError:  # a protocol, or a class with its own metaclass
        return False


@lru_cache(maxsize=1024)
def described(annotation: Any) -> str | None:
    """The JSON form of a type, or None when pydantic cannot describe it."""
    try:
        adapter = TypeAdapter[Any](annotation)
        described: Any = adapter.json_schema()
    except Exception:  # pydantic, or a schema hook of a user type, cannot describe it
        return None
    if described == {}:
        return None
    return f"{described} {SchemaReader(adapter.core_schema).key_kinds()}"  # JSON Schema says nothing of keys
