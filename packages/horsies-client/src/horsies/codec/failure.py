"""Encodes errors. This is the last step of a failed task, so it must never fail itself.

Other queues left tasks RUNNING for ever because the text of the error could not be stored: a NUL in an exception
message, half a surrogate pair in a file name, a `__repr__` that raises. Here everything is bounded and made storable; a
value that cannot be stored is replaced by its `repr`.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, cast

from pydantic_core import from_json, to_json

from horsies.codec.compare import has_nul, safe_repr
from horsies.codec.errors import raised
from horsies.errors import OperationalErrorCode
from horsies.result import TaskError

MAX_CODE_CHARS: Final = 200
MAX_MESSAGE_CHARS: Final = 8 * 1024
#: A text inside `data`, such as a traceback: the last 3/4 of the kept part come from its end, where the cause is.
MAX_TEXT_CHARS: Final = 16 * 1024
#: Larger `data` is cut: its texts, containers and depth.
MAX_DATA_BYTES: Final = 256 * 1024
_MAX_ITEMS: Final = 100
_MAX_LEVELS: Final = 12

_UNSTORABLE: Final = re.compile("[\0\ud800-\udfff]")
#: Control characters in a message would reach terminals and logs; tabs and line ends may.
_CONTROL: Final = re.compile("[\x01-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def encode_error(error: TaskError) -> str:
    """The stored form `{"err": {...}}` of an error, always valid for jsonb and bounded."""
    message = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", clean(_text(error.message)))
    fields: dict[str, Any] = {
        "error_code": _cut_end(clean(_text(error.error_code)), MAX_CODE_CHARS) or "UNHANDLED_EXCEPTION",
        "message": _cut_end(message, MAX_MESSAGE_CHARS),
        "data": None,
    }
    after: object = error.retry_after_ms
    if isinstance(after, int) and 0 <= after < 2**63:
        fields["retry_after_ms"] = int(after)
    for data in (_whole, _shrink, _shown):
        try:
            fields["data"] = data(error.data)
            text = to_json({"err": fields})
            if len(text) <= MAX_DATA_BYTES + 8 * MAX_MESSAGE_CHARS and not has_nul(text):
                from_json(text)  # raises if it is nested too deep or has a number that is too long
                return text.decode()
        except Exception:  # serializers and reprs of user types may raise anything
            continue
    fields["data"] = None
    return to_json({"err": fields}).decode()


def serialization_error(error: Exception) -> TaskError:
    """The error for an unexpected failure of the codec."""
    return TaskError(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, f"the result cannot be stored: {raised(error)}")


def clean(text: str) -> str:
    """NUL and lone surrogates become U+FFFD: PostgreSQL stores neither."""
    return _UNSTORABLE.sub("\ufffd", text)


def _whole(data: object) -> object:
    if data is None or isinstance(data, bool):
        return data
    text = to_json(data, inf_nan_mode="strings", bytes_mode="base64", fallback=_shown)
    if len(text) > MAX_DATA_BYTES or has_nul(text):
        raise ValueError("to be cleaned")
    return from_json(text)


def _shrink(value: object, levels: int = _MAX_LEVELS) -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _cut_middle(clean(str(value)), MAX_TEXT_CHARS)
    if isinstance(value, int) and value.bit_length() <= 4096:
        return int(value)
    if levels > 0 and isinstance(value, Mapping):
        items = list(cast("Mapping[object, object]", value).items())
        kept = {_cut_end(clean(_text(key)), 200): _shrink(item, levels - 1) for key, item in items[:_MAX_ITEMS]}
        return {**kept, "…": f"{len(items) - _MAX_ITEMS} more"} if len(items) > _MAX_ITEMS else kept
    if levels > 0 and isinstance(value, list | tuple):
        members = cast("list[object]", value)
        kept = [_shrink(item, levels - 1) for item in members[:_MAX_ITEMS]]
        return [*kept, f"… {len(members) - _MAX_ITEMS} more"] if len(members) > _MAX_ITEMS else kept
    return _shown(value)


def _shown(value: object) -> str:
    return clean(safe_repr(value, 2_000))


def _text(value: object) -> str:
    """A plain str, also for a value that is not a str in spite of its annotation."""
    if isinstance(value, str):
        return str.__str__(value)
    return safe_repr(value, MAX_MESSAGE_CHARS)


def _cut_end(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[:limit]}… [{len(text) - limit} more characters]"


def _cut_middle(text: str, limit: int) -> str:
    if len(text) <= limit:
        return text
    head = limit // 4
    return f"{text[:head]}… [{len(text) - limit} characters cut] …{text[head - limit :]}"
