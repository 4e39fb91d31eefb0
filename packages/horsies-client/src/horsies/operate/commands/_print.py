"""Output for a terminal or a script. Any text may come from a row, and rows are hostile input: control characters,
escapes and bidirectional marks are spelled out, cells are cut, and no text is used as a format string."""

import json
import sys
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any, Final, TextIO

from horsies._colours import Colour, colour_of, painted, uses_colours
from horsies._output import silence
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
    "say_safe",
    "say_table",
    "short",
    "span",
    "state",
    "text_width",
]

CELL: Final = 200
"""The length of the longest cell; a cut cell ends with three dots."""
_STATES: Final = ("STATUS", "STATE", "ITS STATUS", "OUTCOME")
"""The columns whose cells have colours."""
DEPTH: Final = 100
"""JSON is printed so many levels deep; a row may have more than the printer can follow."""


def say(text: str = "") -> None:
    """Print one line or several."""
    _write(sys.stdout, printable(text))


def complain(text: str) -> None:
    """Print an error, or the reason why something was not done. It must not stop the work when stderr is closed."""
    try:
        _write(sys.stderr, f"horsies: {printable(text)}")
    except BrokenPipeError:
        silence(sys.stderr)


def say_json(value: object) -> None:
    """Print one JSON document in ASCII, so that control characters of rows become escapes."""
    text = json.dumps(as_json(value), indent=2, allow_nan=False)
    _write(sys.stdout, text.replace("\x7f", "\\u007f"))


def say_table(head: Sequence[str], rows: Iterable[Sequence[object]], *, right: Sequence[str] = ()) -> None:
    """Print aligned columns; those named in `right`, such as numbers, to the right."""
    lines = [[*head], *([cell(value) for value in row] for row in rows)]
    widths = [max(text_width(line[at]) for line in lines) for at in range(len(head))]
    is_coloured = uses_colours(sys.stdout)
    for number, line in enumerate(lines):
        padded: list[str] = []
        for text, width, name in zip(line, widths, head, strict=True):
            space = " " * (width - text_width(text))
            shown = printable(text)
            if is_coloured:
                shown = _coloured(shown, name, is_head=number == 0)
            padded.append(space + shown if name in right else shown + space)
        _write(sys.stdout, "  ".join(padded).rstrip())


def _coloured(text: str, column: str, *, is_head: bool) -> str:
    if is_head:
        return painted(text, Colour.BOLD)
    if text == "-":
        return painted(text, Colour.DIM)
    colour = colour_of(text) if column.strip() in _STATES else None
    return text if colour is None else painted(text, colour)


def state(word: str, width: int = 0) -> str:
    """A state or a severity, padded, in its colour; for `say_safe`."""
    safe = printable(word)
    colour = colour_of(safe) if uses_colours(sys.stdout) else None
    return (safe if colour is None else painted(safe, colour)) + " " * (width - len(safe))


def say_safe(text: str) -> None:
    """Print text whose parts are all made safe, such as by `state` and `one_line`."""
    _write(sys.stdout, text)


def say_pairs(pairs: Iterable[tuple[str, object]], *, indent: str = "", limit: int | None = CELL) -> None:
    """Print names and values in two columns; pairs without a value are left out."""
    kept = [(name, value) for name, value in pairs if value is not None]
    width = max((len(name) for name, _ in kept), default=0)
    for name, value in kept:
        text = cell(value, limit)
        say_safe(f"{indent}{printable(name):<{width}}  {state(text) if name == 'status' else printable(text)}")


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


def text_width(text: str) -> int:
    """The width on a terminal: East Asian wide characters take two columns, combining marks none."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(char) else 2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text
    )
