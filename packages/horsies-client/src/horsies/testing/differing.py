"""Where two values differ, for messages: by the path of a field, a key or an index, and in a long text by the place."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

from horsies.testing.records import told

_MOST: Final = 10
_LONG: Final = 60
_BEFORE: Final = 20


def where_they_differ(name: str, wanted: object, found: object) -> list[str]:
    """One line for each place, the first ten of them."""
    lines = list(_places(name, wanted, found))
    return lines if len(lines) <= _MOST else [*lines[:_MOST], f"{name}: and {len(lines) - _MOST} more"]


def equal(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except Exception:  # an array of numpy has no truth value: the stored JSON decides
        return False


def _places(path: str, wanted: object, found: object) -> Iterator[str]:
    if isinstance(wanted, str) and isinstance(found, str):
        yield _of_texts(path, wanted, found)
        return
    ours, theirs = _parts(wanted), _parts(found)
    if type(wanted) is not type(found) or not ours or not theirs:
        yield f"{path}: was {told(found)}, expected {told(wanted)}"
        return
    lines: list[str] = []
    for part in dict.fromkeys((*ours, *theirs)):
        if part not in theirs:
            lines.append(f"{path}{part}: was missing, expected {told(ours[part])}")
        elif part not in ours:
            lines.append(f"{path}{part}: was {told(theirs[part])}, expected nothing")
        elif not equal(ours[part], theirs[part]):
            lines.extend(_places(f"{path}{part}", ours[part], theirs[part]))
    # values without __eq__ may differ by identity alone
    yield from lines or [f"{path}: was {told(found)}, expected {told(wanted)}"]


def _parts(value: Any) -> Mapping[str, object]:
    """The values inside this one, by what follows its path."""
    if isinstance(value, Mapping):
        return {f"[{told(key)}]": one for key, one in cast("Mapping[object, object]", value).items()}
    if isinstance(value, list | tuple):
        return {f"[{at}]": one for at, one in enumerate(cast("Sequence[object]", value))}
    # of a dataclass, or of a model of pydantic
    cls = cast("object", type(value))
    names: object = getattr(cls, "__dataclass_fields__", None) or getattr(cls, "model_fields", None)
    if not isinstance(names, dict):
        return {}
    return {f".{name}": getattr(value, name, None) for name in cast("dict[str, object]", names)}


def _of_texts(path: str, wanted: str, found: str) -> str:
    if max(len(wanted), len(found)) <= _LONG:
        return f"{path}: was {found!r}, expected {wanted!r}"
    shorter = min(len(wanted), len(found))
    at = next((at for at in range(shorter) if wanted[at] != found[at]), shorter)
    begin = max(0, at - _BEFORE)
    shown = (("..." if begin else "") + text[begin : at + _LONG - _BEFORE] for text in (found, wanted))
    return f"{path}: from character {at} on, was {told(next(shown))}, expected {told(next(shown))}"
