"""Words for a terminal or a script. Everything here may come from a row, and rows are hostile input: control
characters, escapes and bidirectional marks are spelled out, cells are cut, and no text is ever a format string."""

import json
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TextIO

from horsies._text import one_line, plural, printable, span

__all__ = ["as_json", "cell", "complain", "one_line", "plural", "say", "say_json", "say_pairs", "say_table", "span"]

CELL: Final = 200
"""The longest cell; what is cut off is told by three dots."""


def say(text: str = "") -> None:
    """One line or several, to the reader."""
    _write(sys.stdout, printable(text))


def complain(text: str) -> None:
    """Something went wrong, or was not done."""
    _write(sys.stderr, f"horsies: {printable(text)}")


def say_json(value: object) -> None:
    """One document, in ASCII: what is a control character in a row is an escape here."""
    text = json.dumps(as_json(value), indent=2, allow_nan=False)
    _write(sys.stdout, text.replace("\x7f", "\\u007f"))


def say_table(head: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Aligned columns; those named in `right` to the right, as numbers want it."""
    lines = [[*head], *([cell(value) for value in row] for row in rows)]
    widths = [max(_width(line[at]) for line in lines) for at in range(len(head))]
    for line in lines:
        padded = [
            (" " * (width - _width(text)) + text) if name in right else (text + " " * (width - _width(text)))
            for text, width, name in zip(line, widths, head, strict=True)
        ]
        say("  ".join(padded).rstrip())


def say_pairs(pairs: Iterable[tuple[str, object]], *, indent: str = "", limit: int | None = CELL) -> None:
    """Names and values in two columns; pairs without a value are left out."""
    kept = [(name, value) for name, value in pairs if value is not None]
    width = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        say(f"{indent}{name:<{width}}  {cell(value, limit)}")


def cell(value: object, limit: int | None = CELL) -> str:
    """One value on one line, inert and cut; None is a dash."""
    if value is None:
        return "-"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ", timespec="milliseconds")
    if isinstance(value, timedelta):
        return span(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value))  # pyright: ignore[reportUnknownArgumentType]
    text = str(value)
    if limit is not None and len(text) > limit:  # cut first: five megabytes are not looked at for one cell
        text = text[: limit - 3] + "..."
    return one_line(text)


def as_json(value: object) -> Any:
    """Values that json knows: moments as ISO 8601, durations in seconds, dataclasses by field."""
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(one) for key, one in value.items()}  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(one) for one in value]  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, float) and value != value:  # NaN has no JSON
        return None
    return value


def _write(stream: TextIO, text: str) -> None:
    try:
        stream.write(text + "\n")
    except UnicodeEncodeError:  # a terminal that cannot show it still gets to know it
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def _width(text: str) -> int:
    """Columns on a terminal: East Asian wide characters take two, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
