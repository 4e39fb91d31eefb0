"""Does a value of this annotation always read as that one? Asked of the two ends of a workflow's edge, at definition.

The value crosses as JSON text and is built anew by the reader, so containers may differ in their element types as
long as every element fits (a `list[bool]` fits a `list[int]`), and two types that pydantic describes alike are alike.
"""

import types
import typing
from collections.abc import Mapping, Sequence, Set as AbstractSet
from functools import lru_cache
from typing import Any, Final

from pydantic import TypeAdapter

_NUMBERS: Final = {(int, float), (bool, int), (bool, float)}
_ARRAYS: Final = (list, tuple, set, frozenset, Sequence, AbstractSet)


def fits(produced: Any, wanted: Any) -> bool:
    """True when every value of type `produced` is one that a parameter of type `wanted` takes."""
    produced, wanted = _bare(produced), _bare(wanted)
    if wanted in (Any, object) or produced is Any or produced == wanted:
        return True
    sources, targets = _choices(produced), _choices(wanted)
    if len(sources) > 1 or len(targets) > 1:
        return all(any(fits(source, target) for target in targets) for source in sources)
    if typing.get_origin(produced) is typing.Literal:
        values = typing.get_args(produced)
        if typing.get_origin(wanted) is typing.Literal:
            return set(values) <= set(typing.get_args(wanted))
        return all(fits(type(value), wanted) for value in values)
    plain = isinstance(produced, type) and isinstance(wanted, type) and not typing.get_args(produced)
    if plain and ((produced, wanted) in _NUMBERS or (not typing.get_args(wanted) and _is_subclass(produced, wanted))):
        return True
    return _containers_fit(produced, wanted) or _described(produced) == _described(wanted) is not None


def _containers_fit(produced: Any, wanted: Any) -> bool:
    have = typing.get_origin(produced) or produced
    want = typing.get_origin(wanted) or wanted
    if not isinstance(have, type) or not isinstance(want, type) or not _is_subclass(have, want):
        return False
    given, asked = typing.get_args(produced), typing.get_args(wanted)
    if not asked:
        return issubclass(want, (*_ARRAYS, dict, Mapping))
    if issubclass(have, tuple) and not issubclass(want, tuple):
        given = (typing.Union[tuple(item for item in given if item is not Ellipsis)],) if given else ()  # noqa: UP007
    elif issubclass(have, tuple) and len(asked) == 2 and asked[1] is Ellipsis:
        return bool(given) and all(fits(item, asked[0]) for item in given if item is not Ellipsis)
    return len(given) == len(asked) and all(fits(one, other) for one, other in zip(given, asked, strict=True))


def shown(annotation: Any) -> str:
    """An annotation in a message."""
    return annotation.__name__ if isinstance(annotation, type) and not typing.get_args(annotation) else str(annotation)


def _bare(annotation: Any) -> Any:
    """Without Annotated, NewType and type aliases: what is left when the names are taken away."""
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


def _is_subclass(one: type, other: type) -> bool:
    try:
        return issubclass(one, other)
    except TypeError:  # a protocol, or a class of somebody's own metaclass
        return False


@lru_cache(maxsize=1024)
def _described(annotation: Any) -> str | None:
    try:
        described: Any = TypeAdapter(annotation).json_schema()
    except Exception:  # whatever pydantic, or a schema hook of a user type, has to say: then they are not alike
        return None
    if described == {}:
        return None
    return str(described)
