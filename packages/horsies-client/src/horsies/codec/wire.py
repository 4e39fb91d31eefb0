"""The encoded call and result, and their size limits."""

import logging
from dataclasses import dataclass
from typing import Final, NamedTuple

from horsies.result import TaskError

_log = logging.getLogger("horsies")

#: The tasks and sides that a warning was logged for; bounded, because names can come from outside.
_warned: Final[set[tuple[str, str]]] = set()
_MAX_WARNED: Final = 10_000


@dataclass(frozen=True, slots=True)
class PayloadLimits:
    """Sizes in bytes of UTF-8 text, for the arguments of one call (together) and for one result."""

    warn_bytes: int = 1024 * 1024
    max_bytes: int = 8 * 1024 * 1024


DEFAULT_LIMITS: Final = PayloadLimits()


class EncodedCall(NamedTuple):
    """The two columns of a call; None for an empty one."""

    args_json: str | None
    kwargs_json: str | None


class EncodedResult(NamedTuple):
    """A result for the parent process: the text to store, and its error if it has one."""

    json: str
    error: TaskError | None


def warn_large(task_name: str, what: str, size: int, limits: PayloadLimits) -> None:
    """Log a warning once per task and process, so that a frequent task does not fill the log."""
    if (task_name, what) in _warned or len(_warned) >= _MAX_WARNED:
        return
    _warned.add((task_name, what))
    _log.warning(
        "task %r: its %s is %d bytes of JSON, more than payload_warn_bytes (%d; payload_max_bytes is %d); store large "
        "data elsewhere and send its address",
        task_name,
        what,
        size,
        limits.warn_bytes,
        limits.max_bytes,
    )
