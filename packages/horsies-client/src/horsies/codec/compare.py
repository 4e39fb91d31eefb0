"""Walks over values: finds values that JSON cannot represent, finds values that would change, and orders sets.

For the slow path only. The fast path (`record.py`) asks Rust whether there is a problem; these walks then find its
place and the reason. Values may be hostile: cycles, 100,000 levels, strings with half a surrogate pair.
"""

import dataclasses
import math
import re
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any, Final, cast

from pydantic import BaseModel
from pydantic.dataclasses import is_pydantic_dataclass
from pydantic_core import from_json, to_json

from horsies._checks import a_type
from horsies.codec.errors import Fault, Reason
from horsies.result import TaskError, TaskResult

#: pydantic's JSON reader stops at 201 levels, of which one is the object of the parameters. Text that is nested deeper
#: could be written but never read again.
MAX_DEPTH: Final = 200

Path = tuple[str | int, ...]

#: An escaped NUL, and not the text "\\u0000" after an escaped backslash.
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")


def has_nul(data: bytes) -> bool:
    """True if JSON text contains U+0000, which jsonb refuses."""
    return b"\\u0000" in data and _NUL.search(data) is not None


def safe_repr(value: object, limit: int = 80) -> str:
    """A bounded `repr` that never raises, even for user classes with a broken one."""
    try:
        text = repr(value)
    except Exception as error:  # a __repr__ is user code and may raise anything
        text = f"<{type(value).__name__}; its repr raised {type(error).__name__}>"
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def find_fault(root: Mapping[str, object], *, string_keys: bool = False) -> Fault | None:
    """The first thing in these parameters that strict JSON cannot carry, or None.

    Iterative, because the values may be deeper than Python's stack; each object is entered once, so a
    value that repeats itself (`x = [x, x]` 60 times) costs its distinct objects, not its expansion.
    """
    above: set[int] = set()
    done: set[int] = set()
    stack: list[tuple[object, Path, bool]] = [(value, (name,), False) for name, value in reversed(list(root.items()))]
    while stack:
        value, path, leaving = stack.pop()
        if leaving:
            above.discard(id(value))
            done.add(id(value))
            continue
        fault = _text_fault(value, path, "the text") if isinstance(value, str) else _number_fault(value, path)
        if fault is not None:
            return fault
        if id(value) in above:
            return Fault(path, Reason.CIRCULAR, "the value contains itself; JSON has no references")
        children = None if id(value) in done else _children(value)
        if children is None:
            continue
        if len(path) > MAX_DEPTH:
            return Fault(path[:1], Reason.TOO_DEEP, f"nested deeper than {MAX_DEPTH} levels, which no reader accepts")
        above.add(id(value))
        stack.append((value, path, True))
        inner: list[tuple[object, Path, bool]] = []
        for key, child in children:
            if isinstance(key, str):
                if (fault := _text_fault(key, path, "a key")) is not None:
                    return fault
            elif isinstance(value, Mapping) and string_keys:
                return _key_fault(key, path)
            part = key if isinstance(key, str | int) else safe_repr(key)
            inner.append((child, (*path, part), False))
        stack.extend(reversed(inner))
    return None


def _text_fault(text: str, path: Path, what: str) -> Fault | None:
    if "\0" in text:
        at = text.index("\0")
        return Fault(
            path, Reason.NUL, f"{what} contains the NUL character U+0000 (at {at}); PostgreSQL cannot store it"
        )
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError as error:
            code = f"U+{ord(text[error.start]):04X}"
            return Fault(
                path, Reason.SURROGATE, f"{what} contains the lone surrogate {code} (at {error.start}), not valid text"
            )
    return None


def _number_fault(value: object, path: Path) -> Fault | None:
    if isinstance(value, Decimal):  # math cannot take a signalling NaN
        is_finite, is_nan = value.is_finite(), value.is_nan()
    elif isinstance(value, float):
        is_finite, is_nan = math.isfinite(value), math.isnan(value)
    else:
        return None
    if is_finite:
        return None
    name = "NaN" if is_nan else "Infinity"
    return Fault(path, Reason(name.upper()), f"{name} has no JSON form; send None or a text instead")


def _key_fault(key: object, path: Path) -> Fault:
    why = f"a key is {a_type(key)}; keys of JSON objects are strings"
    return Fault(path, Reason.KEY_NOT_STRING, why, safe_repr(key))


def _children(value: object) -> Iterator[tuple[object, object]] | None:
    """The members of a value, each with its key or index; None for a leaf."""
    if isinstance(value, Mapping):
        return iter(cast("Mapping[object, object]", value).items())
    if isinstance(value, list | tuple | set | frozenset | deque):
        return iter(enumerate(cast("list[object]", value)))
    if isinstance(value, BaseModel):
        return iter(_model_fields(value).items())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return iter([(field.name, getattr(value, field.name, None)) for field in dataclasses.fields(value)])
    return None


def _model_fields(model: BaseModel) -> dict[object, object]:
    """Fields and extras. Private attributes are not part of a model's data."""
    known = type(model).model_fields
    fields: dict[object, object] = {name: value for name, value in vars(model).items() if name in known}
    fields.update(model.__pydantic_extra__ or {})
    return fields


def equal(left: object, right: object) -> bool:
    """`==` for values of user classes, where it may raise or return an array."""
    try:
        return bool(left == right)
    except Exception:  # user code decides what == does
        return False


def first_difference(sent: object, back: object, path: Path, *, same_text: bool) -> Fault | None:
    """The place where a value would change between sender and task; None when nothing relevant changes.

    Reached when `==` said no, which is not always a change: a class without `__eq__` compares by
    identity (then `same_text`, both encode alike, decides), a model's private attributes are not data,
    and a datetime in the repeated hour of a DST change is by PEP 495 unequal to every other zone.
    """
    if sent is back or equal(sent, back):
        return None
    if (fault := _number_fault(sent, path)) is not None:
        return fault
    if isinstance(sent, datetime | time) and isinstance(back, datetime | time) and _same_clock(sent, back):
        return None
    ours, theirs = _ordered_children(sent), _ordered_children(back)
    kind = type(sent)
    if ours is not None and theirs is not None and (kind is type(back) or _both_dicts(sent, back)):
        if _both_dicts(sent, back) or ours.keys() == theirs.keys():
            return _dict_difference(ours, theirs, path, same_text=same_text)
    elif kind is type(back) and kind.__eq__ is object.__eq__ and same_text:
        return None
    other = "another value" if kind is type(back) else a_type(back)
    why = f"{a_type(sent)} would arrive as {other}"
    return Fault(path, Reason.NOT_EXACT, why, f"{safe_repr(sent)} would arrive as {safe_repr(back)}")


_Dict = dict[object, object]


def _both_dicts(sent: object, back: object) -> bool:
    return isinstance(sent, dict) and isinstance(back, dict)


def _same_clock(sent: datetime | time, back: datetime | time) -> bool:
    return sent.utcoffset() == back.utcoffset() and sent.replace(tzinfo=None) == back.replace(tzinfo=None)


def _ordered_children(value: object) -> _Dict | None:
    if isinstance(value, set | frozenset):
        return None
    children = _children(value)
    return None if children is None else dict(children)


def _dict_difference(sent: _Dict, back: _Dict, path: Path, *, same_text: bool) -> Fault | None:
    for key, value in sent.items():
        if key not in back:
            if not isinstance(key, str):
                return _key_fault(key, path)
            lost = Fault(path, Reason.NOT_EXACT, "a key would be lost on the way", safe_repr(key))
            return _text_fault(key, path, "a key") or lost
        part = key if isinstance(key, str | int) else safe_repr(key)
        if (fault := first_difference(value, back[key], (*path, part), same_text=same_text)) is not None:
            return fault
    for key in back:
        if key not in sent:
            return Fault(path, Reason.NOT_EXACT, "a key would be added on the way", safe_repr(key))
    return None


def first_conversion(returned: object, checked: object, path: Path) -> Fault | None:
    """Where validation had to turn a returned value into another type; an int is taken for a float that is equal."""
    if returned is checked or isinstance(returned, type(checked)):
        ours, theirs = _ordered_children(returned), _ordered_children(checked)
        if returned is checked or ours is None or theirs is None:
            return None
        for key in ours.keys() & theirs.keys():
            part = key if isinstance(key, str | int) else safe_repr(key)
            if (fault := first_conversion(ours[key], theirs[key], (*path, part))) is not None:
                return fault
        return None
    if isinstance(checked, float) and type(returned) is int and equal(returned, checked):
        return None
    return Fault(path, Reason.INVALID, f"it is {a_type(returned)}, not {a_type(checked)}", safe_repr(returned))


_PLAIN: Final = (str, int, float, bool, bytes)
_TEMPORAL: Final = (date, time, timedelta)
_SETS: Final = (set, frozenset)
_SEQUENCES: Final = (list, tuple, deque)


def first_plain_conversion(given: object, checked: object, path: Path, *, only_rounded: bool = False) -> Fault | None:
    """Where pydantic made a value of something that does not stand for it: an int of "5", a datetime of 5. An int is
    taken for a float that is equal to it. Stops at models: what they take is theirs to say.

    `only_rounded`: only where a number became a float that is not equal to it.
    """
    if given is checked:
        return None
    is_rounded = isinstance(checked, float) and isinstance(given, int | Decimal) and given != checked
    if is_rounded or not (only_rounded or _stands_for(given, checked)):
        why = f"it is {a_type(given)}, not {a_type(checked)}: it would arrive as another value"
        return Fault(path, Reason.INVALID, why, f"{safe_repr(given)} would arrive as {safe_repr(checked)}")
    for key, one, other in _pairs(given, checked):
        if (fault := first_plain_conversion(one, other, (*path, key), only_rounded=only_rounded)) is not None:
            return fault
    return None


def _stands_for(given: object, checked: object) -> bool:
    kind = type(checked)
    if isinstance(checked, Enum):
        return isinstance(given, kind) or _stands_for(given, checked.value)
    if kind in _PLAIN:
        is_one = isinstance(given, kind) and (kind is bool or not isinstance(given, bool))
        return is_one or (kind is float and type(given) is int)
    if isinstance(checked, Decimal):
        return isinstance(given, Decimal | str | int) and not isinstance(given, bool)
    if isinstance(checked, _TEMPORAL):
        is_day = type(given) is date
        return isinstance(given, str) or (isinstance(given, kind) and is_day == (kind is date))
    return True


def _pairs(given: object, checked: object) -> Iterator[tuple[str | int, object, object]]:
    """What validation made of each part of a container; nothing where the parts cannot be matched."""
    if isinstance(given, Mapping):
        yield from _members_of_mapping(cast("Mapping[object, object]", given), checked)
    elif isinstance(given, TaskResult) and isinstance(checked, TaskResult):
        ours, theirs = cast("TaskResult[Any, TaskError]", given), cast("TaskResult[Any, TaskError]", checked)
        if ours.is_ok() and theirs.is_ok():
            yield "ok", ours.ok_value, theirs.ok_value
    elif isinstance(given, _SETS) or isinstance(checked, _SETS):
        yield from _members(given, checked)
    elif isinstance(given, _SEQUENCES) and isinstance(checked, _SEQUENCES):
        ours, theirs = cast("Collection[object]", given), cast("Collection[object]", checked)
        if len(ours) == len(theirs):
            for at, (one, other) in enumerate(zip(ours, theirs, strict=True)):
                yield at, one, other


def _members_of_mapping(given: Mapping[object, object], checked: object) -> Iterator[tuple[str | int, object, object]]:
    if isinstance(checked, Mapping):
        theirs = cast("Mapping[object, object]", checked)
        kept = {key: key for key in theirs}  # as they are now: True finds 1
        if len(given) == len(theirs):
            by_name = all(key in theirs for key in given)  # a TypedDict has the order of its fields
            keys = [kept[key] for key in given] if by_name else list(theirs)
            for (key, value), other in zip(given.items(), keys, strict=True):
                part = key if isinstance(key, str | int) else safe_repr(key)
                yield part, value, theirs[other]
                yield part, key, other
    elif isinstance(checked, TaskResult):
        result = cast("TaskResult[Any, TaskError]", checked)
        if result.is_ok() and "ok" in given:
            yield "ok", given["ok"], result.ok_value
    elif not isinstance(checked, BaseModel) and not is_pydantic_dataclass(type(checked)):
        names = getattr(checked, "__dataclass_fields__", None) or getattr(checked, "_fields", ())
        for name in names:
            if name in given:
                yield name, given[name], getattr(checked, name, None)


def _members(given: Any, checked: Any) -> Iterator[tuple[int, object, object]]:
    """Match the members of a set: each with an equal one, or with a member that is no longer in the set."""
    try:
        sources, kept = {item: item for item in given}, set(checked)
    except TypeError:  # not iterable, or not hashable before it was converted
        return
    stray = next((item for item in sources if item not in kept), None)
    for at, member in enumerate(kept):
        source = sources.get(member, stray)
        if source is not None:
            yield at, source, member


def with_ordered_sets(values: object, data: bytes) -> bytes:
    """The same JSON with the elements of every set ordered by their JSON text.

    A set of strings iterates in another order in every process (hash randomisation), and the hash of the text tells a
    repeated send from a conflict. pydantic's serializers of models are prebuilt and cannot sort, so this walks value
    and text side by side. Measured for two small sets: 12 µs, only for tasks whose types contain a set.
    """
    return to_json(_order(values, from_json(data)))


def _order(value: Any, tree: Any) -> Any:
    if isinstance(value, BaseModel) and "root" in type(value).model_fields and not isinstance(tree, dict):
        return _order(getattr(value, "root", None), tree)
    if isinstance(tree, list):
        items = cast("list[Any]", tree)
        if isinstance(value, list | tuple | set | frozenset | deque) and len(cast("list[Any]", value)) == len(items):
            ordered = [_order(inner, item) for inner, item in zip(cast("list[Any]", value), items, strict=True)]
            return sorted(ordered, key=to_json) if isinstance(value, set | frozenset) else ordered
        return items
    if isinstance(tree, dict):
        members = cast("dict[str, Any]", tree)
        inside = _members_by_key(value, members)
        return {key: _order(inside[key], item) if key in inside else item for key, item in members.items()}
    return tree


def _members_by_key(value: Any, tree: dict[str, Any]) -> dict[str, Any]:
    """The value of each key of the JSON object; keys that cannot be matched are left out."""
    if isinstance(value, Mapping):
        mapping = cast("Mapping[Any, Any]", value)
        return dict(zip(tree, mapping.values(), strict=True)) if len(mapping) == len(tree) else {}
    if isinstance(value, BaseModel):
        fields = type(value).model_fields.items()
        named = {field.serialization_alias or field.alias or name: getattr(value, name, None) for name, field in fields}
        return {**(value.__pydantic_extra__ or {}), **named}
    children = _children(value)
    return {} if children is None else {str(key): child for key, child in children}
