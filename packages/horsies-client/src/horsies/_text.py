"""Makes text safe for a terminal. Tracebacks, names and rows are untrusted: an escape sequence could retitle the
window, rewrite earlier output, or hide what follows."""

import json
import re
from datetime import timedelta
from typing import Final, NamedTuple, cast

# C0 but tab and newline, DEL, C1, zero-width, invisible and bidirectional controls, line separators, halves of
# surrogate pairs, tags
_UNFIT: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e0fff]"
)


def printable(text: str) -> str:
    """The text with every control character but tab and newline spelled out, such as `\\x1b`."""
    return _UNFIT.sub(_spelled, text)


def short(text: str, limit: int = 80) -> str:
    """The text, cut to `limit` characters with three dots at the end: an id or a name may have megabytes."""
    return text if len(text) <= limit else text[: limit - 3] + "..."


def one_line(text: str) -> str:
    """The text with line breaks and tabs spelled out as well, so that a name cannot forge a line of output."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


class Lines(str):
    """Text of several lines, such as a traceback, which a log message may contain unchanged."""

    __slots__ = ()


def _spelled(found: re.Match[str]) -> str:
    code = ord(found.group())
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def span(value: timedelta) -> str:
    """A duration in its two largest units: `4 d 2 h`, `35 s`, `20 ms`; with a minus if it is negative."""
    seconds = value.total_seconds()
    sign = "-" if seconds < 0 else ""
    seconds = abs(seconds)
    if seconds < 1:
        return f"{sign}{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{sign}{seconds:.1f} s"
    left = int(seconds)
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or parts:
            parts.append(f"{count} {unit}")
    return sign + " ".join(part for part in parts[:2] if not part.startswith("0 "))


def plural(count: int, noun: str, many: str | None = None) -> str:
    """`1 task`, `2,000 tasks`; `many` where an s is not enough."""
    return f"{count:,} {noun if count == 1 else many or noun + 's'}"


_ERROR_HEAD: Final = re.compile(
    r'\{"err":\{"error_code":("(?:[^"\\]|\\.){1,400}"),"message":("(?:[^"\\]|\\.){0,50000}")', re.DOTALL
)


class StoredError(NamedTuple):
    """The readable parts of a stored error."""

    code: str
    message: str
    traceback: str | None

    @property
    def raised(self) -> str | None:
        """The last line of the traceback: the exception."""
        lines = (self.traceback or "").strip().splitlines()
        return lines[-1].strip() if lines else None


def error_in(stored: str | None) -> StoredError | None:
    """The error in the stored text of a result. The text may be cut: code and message are at its beginning."""
    try:
        fields = _fields(_fields(json.loads(stored or "null")).get("err"))
    except (ValueError, RecursionError):  # cut, or not JSON
        fields = {}
    if fields:
        trace = _fields(fields.get("data")).get("traceback")
        code, message = (_text_or_none(fields.get(name)) or "" for name in ("error_code", "message"))
        return StoredError(code, message, _text_or_none(trace))
    head = _ERROR_HEAD.match(stored or "")
    if head is None:
        return None
    try:
        return StoredError(json.loads(head[1]), json.loads(head[2]), None)
    except ValueError:
        return None


def _fields(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None
