"""What can be wrong with a value on its way to or from the wire."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from horsies.errors import ContractCode, HorsiesError, OperationalErrorCode


class Reason(StrEnum):
    """Why a value was refused; each has its own sentence in the message."""

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
    #: The value fits, but JSON has no form for it (an unknown class, a serializer that raised).
    UNSERIALIZABLE = "UNSERIALIZABLE"
    #: The value can be written, but would be read back as another one.
    NOT_EXACT = "NOT_EXACT"
    MISSING = "MISSING"
    UNEXPECTED = "UNEXPECTED"
    #: Only when reading: not JSON, or not the shape that we write.
    MALFORMED = "MALFORMED"


@dataclass(frozen=True, slots=True)
class Fault:
    """One refusal, and where: the first part of `path` is the parameter, the rest leads into it."""

    path: tuple[str | int, ...]
    reason: Reason
    why: str


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
    """A value cannot cross the wire. `path` leads from the parameter to the very spot."""

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
    """What the task returned cannot be stored; `code` is the error that its row will carry."""

    def __init__(self, task_name: str, fault: Fault, code: ContractCode | OperationalErrorCode) -> None:
        self.code = code
        super().__init__(task_name, fault)

    def _where(self) -> str:
        inside = f" at {self.path}" if len(self.fault.path) > 1 else ""
        return f"the return value{inside}: "
