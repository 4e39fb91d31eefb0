"""Collects what is wrong with a configuration, so that its author sees all of it at once.

Every check takes `object`: a configuration is often filled from environment variables and files,
so the annotation is a wish and the value may be anything. Values of secret fields are never shown.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Final

from horsies.errors import ConfigurationError, Problem

LONGEST: Final = timedelta(days=36_500)
"""A hundred years: what counts back from now must not end before the first day of PostgreSQL's calendar."""
MANY: Final = 1_000_000
"""Of tasks at once: more than any server runs, and far from the end of an integer."""


def shown(value: object) -> str:
    """A value for an error text: short, on one line, with its type unless that is plain to see."""
    try:
        text = repr(value)
    except Exception:  # a hostile __repr__, or an int of more than 4,300 digits
        text = "<unprintable>"
    if len(text) > 80:
        text = text[:77] + "..."
    return text if type(value) in (int, float) else f"{text} ({type(value).__name__})"


class Checks:
    """Problems of one object, named `<subject>.<field>`; `finish` raises them together."""

    __slots__ = ("problems", "subject")

    def __init__(self, subject: str) -> None:
        self.subject = subject
        self.problems: list[Problem] = []

    def add(self, field: str, why: str, fix: str) -> None:
        self.problems.append(Problem(where=f"{self.subject}.{field}", why=why, fix=fix))

    def integer(
        self, field: str, value: object, low: int, high: int, *, optional: bool = False, unit: str = ""
    ) -> bool:
        """True when the value is an int in the range (None counts as such when optional).

        Every setting has an upper bound, far above what is of use: 10**15 ms would overflow an interval of PostgreSQL
        in the middle of a sweep, years after it was set.
        """
        if value is None and optional:
            return True
        span = f"{low:_} to {high:_}"
        unit = f" {unit}" if unit else ""
        none = ", or None" if optional else ""
        # bool is an int in Python; `max_retries=True` is a slip, not a 1.
        if isinstance(value, bool) or not isinstance(value, int):
            self.add(field, f"must be a whole number, got {shown(value)}", f"give an int of {span}{unit}{none}")
            return False
        if not low <= value <= high:
            self.add(field, f"{shown(value)}{unit} is out of range", f"choose {span}{unit}{none}")
            return False
        return True

    def seconds(self, field: str, value: object, low: float, high: float, *, optional: bool = False) -> bool:
        """True when the value is a finite number in the range."""
        if value is None and optional:
            return True
        if isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high:  # NaN is not
            return True
        none = ", or None" if optional else ""
        self.add(field, f"{shown(value)} s is out of range", f"choose {low:_} to {high:_} seconds{none}")
        return False

    def span(self, field: str, value: object, *, optional: bool = False) -> bool:
        """True when the value is a timedelta that PostgreSQL can count back from now."""
        if value is None and optional:
            return True
        if isinstance(value, timedelta) and timedelta(0) <= value <= LONGEST:
            return True
        none = ", or None" if optional else ""
        self.add(field, f"{shown(value)} is not a span of 0 to 100 years", f"give a timedelta in that range{none}")
        return False

    def boolean(self, field: str, value: object) -> bool:
        if isinstance(value, bool):
            return True
        self.add(
            field, f"must be True or False, got {shown(value)}", "give a bool; the text 'false' would count as true"
        )
        return False

    def text(self, field: str, value: object, *, optional: bool = False, secret: bool = False) -> bool:
        """True when the value is a non-empty string without NUL, which PostgreSQL cannot carry."""
        if value is None and optional:
            return True
        none = ", or None" if optional else ""
        if not isinstance(value, str):
            got = type(value).__name__ if secret else shown(value)
            self.add(field, f"must be a string, got {got}", f"give a non-empty str{none}")
            return False
        if not value or "\0" in value:
            why = "contains a NUL character" if value else "is empty"
            self.add(field, why, f"give a non-empty str without NUL{none}")
            return False
        return True

    def word(self, field: str, value: object, words: Sequence[str], *, optional: bool = False) -> bool:
        if (value is None and optional) or (isinstance(value, str) and value in words):
            return True
        self.add(field, f"unknown value {shown(value)}", f"choose one of {', '.join(words)}")
        return False

    def finish(self) -> None:
        if self.problems:
            raise ConfigurationError(self.problems, subject=self.subject)
