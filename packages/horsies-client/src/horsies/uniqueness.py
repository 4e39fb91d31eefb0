"""What further sends of a unique key do: the options of a task and of a send, merged and checked. Pure.

`unique_key` alone needs none of this: an index holds the key while its task lives. `unique_for`, `debounce` and
`on_conflict="replace"` go through the function `horsies_send_unique` (`_pg/unique_sends.py`).
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final, Literal, Protocol

from horsies._checks import Checks, shown

OnConflict = Literal["keep", "replace"]
"""What a send does when a task that has not started holds its key."""
Mode = Literal["keep", "replace", "debounce"]

LONGEST: Final = timedelta(days=3650)
SHORTEST: Final = timedelta(milliseconds=1)
FIELDS: Final = ("unique_for", "unique_by_args", "debounce", "max_wait", "on_conflict")
_NEEDS_KEY: Final = ("unique_for", "debounce", "on_conflict")


class UniqueOptions(Protocol):
    """The options that a task and a send have in common."""

    @property
    def unique_for(self) -> timedelta | None: ...
    @property
    def unique_by_args(self) -> bool | None: ...
    @property
    def debounce(self) -> timedelta | None: ...
    @property
    def max_wait(self) -> timedelta | None: ...
    @property
    def on_conflict(self) -> OnConflict | None: ...


class KeyedOptions(UniqueOptions, Protocol):
    """Those of a send."""

    @property
    def unique_key(self) -> str | None: ...
    @property
    def delay(self) -> timedelta | None: ...
    @property
    def eta(self) -> datetime | None: ...


@dataclass(frozen=True, slots=True)
class Uniqueness:
    """What a send with a key does when the key is taken."""

    mode: Mode
    unique_for: timedelta | None = None
    debounce: timedelta | None = None
    max_wait: timedelta | None = None
    delay: timedelta | None = None
    """`delay` of the send; None when it has none, so that a replaced task keeps its start."""


def check_unique(checks: Checks, options: UniqueOptions, *, is_whole: bool = False) -> None:
    """Add the problems of each option, and of those that contradict each other. `is_whole`: of a task, which no other
    options complete."""
    for name in ("unique_for", "debounce", "max_wait"):
        _check_span(checks, name, getattr(options, name))
    checks.word("on_conflict", options.on_conflict, ("keep", "replace"), optional=True)
    if options.unique_by_args is not None:
        checks.boolean("unique_by_args", options.unique_by_args)
    if not checks.problems:
        _check_pairs(checks, {name: getattr(options, name) for name in FIELDS}, is_whole=is_whole)


def _check_span(checks: Checks, name: str, value: object) -> None:
    if value is None:
        return
    if not isinstance(value, timedelta):
        checks.add(name, f"must be a timedelta, got {shown(value)}", f"write {name}=timedelta(seconds=...)")
    elif not SHORTEST <= value <= LONGEST:
        told = f"{value.total_seconds():g} seconds"
        checks.add(name, f"{told} is not between a millisecond and ten years", "give a timedelta in that range")


def _check_pairs(checks: Checks, given: dict[str, Any], *, is_whole: bool = False) -> None:
    """`is_whole`: these are all options of a send, those of its task included."""
    debounce, max_wait, unique_for, on_conflict = (
        given["debounce"],
        given["max_wait"],
        given["unique_for"],
        given["on_conflict"],
    )
    if max_wait is not None and debounce is not None and max_wait < debounce:
        why = f"{max_wait} is shorter than debounce ({debounce}): the task would never wait for its debounce"
        checks.add("max_wait", why, "give a longer max_wait, or a shorter debounce")
    if is_whole and max_wait is not None and debounce is None:
        checks.add("max_wait", "bounds the wait of debounce, which is not given", "give debounce=..., or leave it out")
    if debounce is not None and unique_for is not None:
        why = "cannot be combined with debounce: that runs the last call, and unique_for drops all but the first"
        checks.add("unique_for", why, "give one of them")
    if on_conflict == "replace" and unique_for is not None:
        why = "cannot be combined with on_conflict='replace': unique_for drops the calls that it would take"
        checks.add("unique_for", why, "give one of them")
    if on_conflict == "keep" and debounce is not None:
        checks.add("on_conflict", "'keep' contradicts debounce, which replaces", "leave one of them out")


def merged(
    checks: Checks, options: KeyedOptions, known: UniqueOptions, *, is_typed: bool
) -> tuple[bool, Uniqueness | None]:
    """Of a send: whether its arguments are its key, and what it does when the key is taken (None: what `unique_key`
    alone does). An option of the send wins over that of the task. `is_typed`: the task's signature is known here."""
    given = {name: _either(getattr(options, name), getattr(known, name)) for name in FIELDS}
    if options.unique_key is not None:
        if options.unique_by_args:
            why = "cannot be combined with unique_key: both say what the key is"
            checks.add("unique_by_args", why, "give one of them")
        given["unique_by_args"] = False
    by_args = bool(given["unique_by_args"])
    if by_args and not is_typed:
        why = "the parameters of the task are not known here, so that equal calls cannot be told"
        checks.add("unique_by_args", why, "declare the task (@app.declare), or give a unique_key")
    _check_pairs(checks, given, is_whole=True)
    if options.unique_key is None and not by_args:
        for name in [name for name in _NEEDS_KEY if given[name] not in (None, "keep")]:
            checks.add(name, "needs a key", "give unique_key=..., or unique_by_args=True for one made of the arguments")
    if given["debounce"] is not None:
        for name in [name for name in ("delay", "eta") if getattr(options, name) is not None]:
            checks.add(name, "cannot be combined with debounce, which says when the task starts", "give one of them")
    if checks.problems:
        return by_args, None
    if given["debounce"] is not None:
        return by_args, Uniqueness("debounce", debounce=given["debounce"], max_wait=given["max_wait"])
    if given["on_conflict"] == "replace":
        return by_args, Uniqueness("replace", delay=options.delay)
    if given["unique_for"] is not None:
        return by_args, Uniqueness("keep", unique_for=given["unique_for"], delay=options.delay)
    return by_args, None


def asked_unique(options: UniqueOptions) -> tuple[str, ...]:
    """What the fingerprint of a send has of these options: nothing without one, as before there were any."""
    given = {name: value for name in FIELDS if (value := getattr(options, name)) is not None}
    return (f"unique {given}",) if given else ()


def _either(one: Any, other: Any) -> Any:
    return other if one is None else one
