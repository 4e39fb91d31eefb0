"""Output for a terminal or a script. Any text may come from a row, and rows are hostile input: control characters,
escapes and bidirectional marks are spelled out, cells are cut, and no text is used as a format string."""

import json
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TextIO

from horsies._text import one_line, plural, printable, short, span

__all__ = [
    "as_json",
    "cell",
    "complain",
    "one_line",
    "plural",
    "say",
    "say_json",
    "say_pairs",
    "say_table",
    "short",
    "span",
]

CELL: Final = 200
"""The length of the longest cell; a cut cell ends with three dots."""
DEPTH: Final = 100
"""JSON is printed so many levels deep; a row may have more than the printer can follow."""


def say(text: str = "") -> None:
    """Print one line or several."""
    _write(sys.stdout, printable(text))


def complain(text: str) -> None:
    """Print an error, or the reason why something was not done."""
    _write(sys.stderr, f"horsies: {printable(text)}")


def say_json(value: object) -> None:
    """Print one JSON document in ASCII, so that control characters of rows become escapes."""
    text = json.dumps(as_json(value), indent=2, allow_nan=False)
    _write(sys.stdout, text.replace("\x7f", "\\u007f"))


def say_table(head: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Print aligned columns; those named in `right`, such as numbers, to the right."""
    lines = [[*head], *([cell(value) for value in row] for row in rows)]
    widths = [max(_width(line[at]) for line in lines) for at in range(len(head))]
    for line in lines:
        padded = [
            (" " * (width - _width(text)) + text) if name in right else (text + " " * (width - _width(text)))
            for text, width, name in zip(line, widths, head, strict=True)
        ]
        say("  ".join(padded).rstrip())


def say_pairs(pairs: Iterable[tuple[str, object]], *, indent: str = "", limit: int | None = CELL) -> None:
    """Print names and values in two columns; pairs without a value are left out."""
    kept = [(name, value) for name, value in pairs if value is not None]
    width = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        say(f"{indent}{name:<{width}}  {cell(value, limit)}")


def cell(value: object, limit: int | None = CELL) -> str:
    """A value as one cut line without control characters; None is a dash."""
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
    return one_line(text if limit is None else short(text, limit))  # cut first: a text may have megabytes


def as_json(value: object, depth: int = DEPTH) -> Any:
    """The value in JSON types: times as ISO 8601, durations in seconds, dataclasses by field. Lists and objects nested
    deeper than `depth` become "…"."""
    if depth <= 0 and isinstance(value, Mapping | list | tuple | set | frozenset):
        return "…"
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name), depth - 1) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(one, depth - 1) for key, one in value.items()}  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(one, depth - 1) for one in value]  # pyright: ignore[reportUnknownArgumentType,reportUnknownVariableType]
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
    except UnicodeEncodeError:  # the terminal's encoding lacks a character
        encoding = stream.encoding or "ascii"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding) + "\n")


def _width(text: str) -> int:
    """The width on a terminal: East Asian wide characters take two columns, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
