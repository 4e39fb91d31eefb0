"""Collects the problems of a configuration, so that its author sees all of them at once.

Every check takes `object`: a configuration is often filled from environment variables and files, so a value may have
any type in spite of its annotation. Values of secret fields are never shown.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, cast

from horsies._text import short
from horsies.errors import ConfigurationError, Problem

LONGEST: Final = timedelta(days=36_500)
"""A hundred years: now minus this span is still a date that PostgreSQL can represent."""
MANY: Final = 1_000_000
"""The upper bound of settings that count tasks: more than any server runs at once, and far below an integer's end."""

QUEUE_NAME_PATTERN: Final = re.compile(r"^[A-Za-z0-9_.-]{1,52}\Z")
r"""At most 52 characters: PostgreSQL silently cuts the channel name `task_queue_<name>` at 63 bytes, and two longer
names could share a channel. `\Z` and not `$`, which would accept a trailing newline."""


def shown(value: object) -> str:
    """A value for an error text: short, on one line, with its type unless it is an int or a float."""
    try:
        text = short(repr(value))
    except Exception:  # a hostile __repr__, or an int of more than 4,300 digits
        text = "<unprintable>"
    return text if type(value) in (int, float) else f"{text} ({type(value).__name__})"


def a_type(value: object) -> str:
    """The type of a value, for an error text that must not repeat the value because it may be logged: `an int`."""
    if value is None:
        return "None"
    name = type(value).__name__
    return f"an {name}" if name[:1].lower() in "aeiou" else f"a {name}"


def key_problem(key: object) -> str | None:
    """The problem of a text that stands in a key column, or None."""
    if not isinstance(key, str) or not 1 <= len(key) <= 255:
        return f"{key!r:.80} is not a text of 1 to 255 characters"
    if "\0" in key or (not key.isprintable() and any(0xD800 <= ord(char) <= 0xDFFF for char in key)):
        return "holds a character that PostgreSQL cannot store, NUL or a lone surrogate"
    return None


def queue_name_problem(name: object, where: str) -> Problem | None:
    """The problem of a queue name, or None. Configuration, tasks and sends apply the same rule."""
    if isinstance(name, str) and QUEUE_NAME_PATTERN.match(name):
        return None
    return Problem(
        where=where,
        why=f"{shown(name)} is not a queue name",
        fix="use 1 to 52 of A-Z a-z 0-9 _ . - (the channel name task_queue_<name> must fit 63 bytes)",
    )


class Checks:
    """Collects the problems of one object, each named `<subject>.<field>`; `finish` raises them together."""

    __slots__ = ("problems", "subject")

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.problems: list[Problem] = []

    def add(self, field: str, why: str, fix: str, *, optional: bool = False) -> bool:
        """Always False, which is what a check returns after a problem. `optional`: None would be right too."""
        self.problems.append(Problem(f"{self.subject}.{field}", why, f"{fix}, or None" if optional else fix))
        return False

    def integer(
        self, field: str, value: object, low: int, high: int, *, optional: bool = False, unit: str = ""
    ) -> bool:
        """True when the value is an int in the range, or None and `optional`.

        Every setting has an upper bound, far above useful values: 10**15 ms would overflow an interval of PostgreSQL
        in the middle of a sweep.
        """
        if value is None and optional:
            return True
        unit = f" {unit}" if unit else ""
        bounds = f"{low:_} to {high:_}{unit}"
        # bool is a subclass of int, but `max_retries=True` is a mistake.
        if isinstance(value, bool) or not isinstance(value, int):
            why, fix = f"must be a whole number, got {shown(value)}", f"give an int of {bounds}"
        elif low <= value <= high:
            return True
        else:
            why, fix = f"{shown(value)}{unit} is out of range", f"choose {bounds}"
        return self.add(field, why, fix, optional=optional)

    def seconds(self, field: str, value: object, low: float, high: float, *, optional: bool = False) -> bool:
        """True when the value is a finite number in the range."""
        if value is None and optional:
            return True
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:  # NaN is not
            return True
        why, fix = f"{shown(value)} s is out of range", f"choose {low:_} to {high:_} seconds"
        return self.add(field, why, fix, optional=optional)

    def span(self, field: str, value: object, *, optional: bool = False) -> bool:
        """True when the value is a timedelta that PostgreSQL can subtract from now."""
        if value is None and optional:
            return True
        if isinstance(value, timedelta) and timedelta(0) <= value <= LONGEST:
            return True
        why = f"{shown(value)} is not a span of 0 to 100 years"
        return self.add(field, why, "give a timedelta in that range", optional=optional)

    def boolean(self, field: str, value: object) -> bool:
        if isinstance(value, bool):
            return True
        why = f"must be True or False, got {shown(value)}"
        return self.add(field, why, "give a bool; the text 'false' would count as true")

    def text(self, field: str, value: object, *, optional: bool = False, secret: bool = False) -> bool:
        """True when the value is a non-empty string without NUL, which PostgreSQL cannot carry."""
        if value is None and optional:
            return True
        if not isinstance(value, str):
            got = type(value).__name__ if secret else shown(value)
            return self.add(field, f"must be a string, got {got}", "give a non-empty str", optional=optional)
        if value and "\0" not in value:
            return True
        why = "contains a NUL character" if value else "is empty"
        return self.add(field, why, "give a non-empty str without NUL", optional=optional)

    def word(self, field: str, value: object, words: Sequence[str], *, optional: bool = False) -> bool:
        if (value is None and optional) or (isinstance(value, str) and value in words):
            return True
        return self.add(field, f"unknown value {shown(value)}", f"choose one of {', '.join(words)}")

    def queue_name(self, field: str, value: object, *, optional: bool = False) -> None:
        if not (value is None and optional) and (problem := queue_name_problem(value, f"{self.subject}.{field}")):
            self.problems.append(problem)

    def listed(self, field: str, value: object, fix: str) -> tuple[Any, ...] | None:
        """The items of a list; None after a problem. A string is refused: it would count as a list of letters."""
        if isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping):
            return tuple(cast("Iterable[Any]", value))
        self.add(field, f"must be a list, got {shown(cast('object', value))}", fix)
        return None

    def named(self, field: str, items: Sequence[object], kind: type, example: str, fix: str) -> None:
        """Check that the items are of this kind, and that no two have the same name."""
        seen: set[str] = set()
        for at, item in enumerate(items):
            if not isinstance(item, kind):
                why = f"must be a {kind.__name__}, got {shown(item)}"
                self.add(f"{field}[{at}]", why, f"give {kind.__name__}({example})")
                continue
            name: str = getattr(item, "name")  # noqa: B009 # which every kind has
            if name in seen:
                self.add(f"{field}[{at}]", f"the name {name!r} is taken", fix)
            seen.add(name)

    def finish(self) -> None:
        if self.problems:
            raise ConfigurationError(self.problems, subject=self.subject)
