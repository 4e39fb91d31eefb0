"""What the codec hands to its neighbours, and how large it may be."""

import logging
from dataclasses import dataclass
from typing import Final, NamedTuple

from horsies.result import TaskError

_log = logging.getLogger("horsies")

#: Which task and side has been warned about; bounded, because names can come from outside.
_warned: Final[set[tuple[str, str]]] = set()
_MAX_WARNED: Final = 10_000


@dataclass(frozen=True, slots=True)
class PayloadLimits:
    """Sizes in bytes of UTF-8 text, for the arguments of one call (together) and for one result."""

    warn_bytes: int = 1024 * 1024
    max_bytes: int = 8 * 1024 * 1024


DEFAULT_LIMITS: Final = PayloadLimits()


class EncodedCall(NamedTuple):
    """The two columns of a call; None where there is nothing to say."""

    args_json: str | None
    kwargs_json: str | None


@dataclass(frozen=True, slots=True)
class EncodedResult:
    """What the child hands to the parent: the text to store, and the error in it when it is one."""

    json: str
    error: TaskError | None


def warn_large(task_name: str, what: str, size: int, limits: PayloadLimits) -> None:
    """Once per task and process, not per call: a hot task must not fill the log."""
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
