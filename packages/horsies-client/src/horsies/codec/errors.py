"""The errors of encoding and decoding."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, get_args

from horsies.errors import ContractCode, HorsiesError, OperationalErrorCode


class Reason(StrEnum):
    """Why a value was refused."""

    NUL = "NUL"
    SURROGATE = "SURROGATE"
    NAN = "NAN"
    INFINITY = "INFINITY"
    TOO_DEEP = "TOO_DEEP"
    TOO_LARGE = "TOO_LARGE"
    KEY_NOT_STRING = "KEY_NOT_STRING"
    CIRCULAR = "CIRCULAR"
    #: The value does not fit its annotation.
    INVALID = "INVALID"
    #: The value fits, but JSON cannot represent it (an unknown class, a serializer that raised).
    UNSERIALIZABLE = "UNSERIALIZABLE"
    #: The value can be written, but would be read back as another value.
    NOT_EXACT = "NOT_EXACT"
    MISSING = "MISSING"
    UNEXPECTED = "UNEXPECTED"
    #: Only when reading: not JSON, or not the expected shape.
    MALFORMED = "MALFORMED"


@dataclass(frozen=True, slots=True)
class Fault:
    """A refusal with its place: `path` starts with the parameter and leads into its value.

    `why` says the types of what was refused. It never quotes the value, because workers and
    applications log the text of the error. `value` is what was refused, for the stored error.
    """

    path: tuple[str | int, ...]
    reason: Reason
    why: str
    value: str | None = None


def raised(error: BaseException) -> str:
    """An exception in a message. Not its repr: that of a UnicodeError has the whole text, its `str` the place."""
    try:
        text = str(error)
    except Exception as failure:  # a __str__ is user code and may raise anything
        text = f"its __str__ raised {type(failure).__name__}"
    return f"{type(error).__name__}: {text[:500]}"


def type_name(annotation: Any) -> str:
    """An annotation in a message."""
    is_plain = isinstance(annotation, type) and not get_args(annotation)
    return annotation.__name__ if is_plain else str(annotation).replace("horsies.result.", "")[:200]


def format_path(parts: Sequence[str | int]) -> str:
    """`("order", "items", 2, "name")` as `order.items[2].name`."""
    text = ""
    for part in parts:
        if isinstance(part, int):
            text += f"[{part}]"
        elif part.isidentifier() or not text:
            text += f".{part}" if text else part
        else:
            text += f"[{part[:60]!r}]"
    return text


class CodecError(HorsiesError, ValueError):
    """A value cannot be encoded or decoded. `path` leads from the parameter to the place. The text does not quote the
    value."""

    def __init__(self, task_name: str, fault: Fault) -> None:
        self.task_name = task_name
        self.fault = fault
        self.reason = fault.reason
        self.parameter = str(fault.path[0]) if fault.path else None
        self.path = format_path(fault.path)
        super().__init__(f"task {task_name!r}: {self._where()}{fault.why}")

    def _where(self) -> str:
        if self.parameter is None:
            return ""
        inside = f" at {self.path}" if self.path != self.parameter else ""
        return f"parameter {self.parameter!r}{inside}: "


class EncodeError(CodecError):
    """An argument was refused at send; nothing was written."""


class DecodeError(CodecError):
    """A stored call or result does not fit the declared types."""


class ResultError(CodecError):
    """The task's return value cannot be stored; `code` is the error code of its row."""

    def __init__(self, task_name: str, fault: Fault, code: ContractCode | OperationalErrorCode) -> None:
        self.code = code
        super().__init__(task_name, fault)

    def _where(self) -> str:
        inside = f" at {self.path}" if len(self.fault.path) > 1 else ""
        return f"the return value{inside}: "
