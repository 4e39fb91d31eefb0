"""Text from rows without control characters, and short numbers. Rows are hostile input: escapes, markup, megabytes.

`inert` spells out every control character; the caller must also keep the result away from markup (plain `Text`
and `Content`, `markup=False`).
"""

import json
import unicodedata
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from horsies._text import plural, printable
from horsies_tui.data.models import Count

T = TypeVar("T")
MAX_CELL: Final = 200
_BLOCKS: Final = "▁▂▃▄▅▆▇█"


def inert(value: object, limit: int = MAX_CELL) -> str:
    """One line without control characters, cut to `limit` characters."""
    text = str(value)
    cut = text[: limit + 1]
    shown = printable(cut.replace("\r\n", "\n")).replace("\n", "⏎").replace("\t", "⇥")
    shown = "".join(character if not unicodedata.combining(character) else "◌" for character in shown)
    return shown if len(text) <= limit and len(shown) <= limit else shown[: limit - 1] + "…"


def block(value: object, limit: int) -> str:
    """The same for several lines; tabs become spaces, and a cut text says how much is missing."""
    text = str(value)
    shown = printable(text[:limit].replace("\r\n", "\n").replace("\t", "    "))
    return shown if len(text) <= limit else f"{shown}\n… {plural(len(text) - limit, 'more character')}"


def pretty_json(text: str | None, chars: int | None) -> str:
    """Indented JSON; a text that is not JSON (or was cut) is returned unchanged."""
    if text is None:
        return ""
    if chars is not None and chars > len(text):
        return f"{block(text, len(text))}\n… not fetched: {plural(chars - len(text), 'more character')}"
    try:
        value = json.loads(text)
        return block(json.dumps(value, indent=2, ensure_ascii=False), 100_000)
    except (ValueError, RecursionError):
        return block(text, 100_000)


def fit(text: str, width: int) -> str:
    """The text cut to a width, with an ellipsis."""
    return text if len(text) <= width else (text[: max(0, width - 1)] + "…")


def span(value: timedelta | None) -> str:
    """A duration in at most six characters: `230ms`, `4.2s`, `12m`, `3h05`, `4d02h`."""
    if value is None:
        return "–"
    seconds = value.total_seconds()
    sign, seconds = ("-", -seconds) if seconds < 0 else ("", seconds)
    if seconds < 1:
        return f"{sign}{seconds * 1000:.0f}ms"
    if seconds < 10:
        return f"{sign}{seconds:.1f}s"
    if seconds < 60:
        return f"{sign}{seconds:.0f}s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{sign}{minutes}m{rest:02}" if minutes < 10 else f"{sign}{minutes}m"
    hours, minutes = divmod(minutes, 60)
    if hours < 24:
        return f"{sign}{hours}h{minutes:02}"
    days, hours = divmod(hours, 24)
    return f"{sign}{days}d{hours:02}h" if days < 100 else f"{sign}{days:,}d"


def number(value: float) -> str:
    """`950`, `12.3k`, `4.1M`."""
    if value < 10_000:
        return f"{value:,.0f}"
    for unit, size in (("k", 1e3), ("M", 1e6), ("G", 1e9), ("T", 1e12)):
        if value < size * 999.5 or unit == "T":
            short = value / size
            return f"{short:.1f}{unit}" if short < 100 else f"{short:.0f}{unit}"
    raise AssertionError


def counted(count: Count) -> str:
    """A count: `≈1.2M` is an estimate, `1,500+` a lower bound, `–` means that nothing was counted."""
    if count.is_least and not count.value:
        return "–"
    return f"{'≈' if count.is_estimate else ''}{number(count.value)}{'+' if count.is_least else ''}"


def rate(value: float) -> str:
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else number(value)


def size(value: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if value >= 10 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TB"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f}%"


def moment(value: datetime | None) -> str:
    """The date and time in UTC with milliseconds; a stale row may be days old."""
    return "–" if value is None else value.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]


def blocks(values: Sequence[float], top: float | None = None) -> str:
    """A small curve of block characters."""
    highest = max([top or 0.0, *values], default=0.0)
    if highest <= 0:
        return _BLOCKS[0] * len(values)
    return "".join(_BLOCKS[min(7, int(value / highest * 7.999))] for value in values)


def bar(done: int, total: int, width: int) -> str:
    """A progress bar in eighths of a character."""
    if total <= 0:
        return "░" * width
    eighths = round(min(1.0, done / total) * width * 8)
    full, rest = divmod(eighths, 8)
    return ("█" * full + (" ▏▎▍▌▋▊▉"[rest] if rest else "")).ljust(width, "░")[:width]


def dotted(value: T | None, shown: Callable[[T], str] = str) -> str:
    """The value as text, or a dot for None and 0."""
    return "·" if value is None or value == 0 else shown(value)


def short_id(value: str) -> str:
    """The start of an id, which is its time, and its end, which tells it from others."""
    return value if len(value) <= 17 else f"{value[:8]}…{value[-8:]}"


def as_json(value: Any) -> str:
    """Indented JSON for the clipboard."""
    return json.dumps(value, indent=2, default=str, ensure_ascii=True)
