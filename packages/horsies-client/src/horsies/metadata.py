"""Metadata: small JSON values that travel with a task beside its arguments, such as the tenant or the trace context.

A task has the metadata of its registration, then what it inherits from the task that sends it, then what the send says,
then what middleware adds; later ones win. It is not part of the fingerprint: a repeated send may have another trace.
"""

import json
import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, Final, cast

MAX_BYTES: Final = 16_384
RESERVED: Final = "horsies."
TRACE: Final = "horsies.trace"
"""The trace context, which a task always inherits."""
WORKFLOW: Final = "horsies.workflow"
NODE: Final = "horsies.node"
"""The run and the node of a traced workflow's task; workers write both in SQL."""

_NUL: Final = re.compile(r"(?<!\\)(?:\\\\)*\\u0000")
"""An escaped NUL, and not the text "\\u0000" after an escaped backslash."""

NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


def encode(metadata: Mapping[str, Any]) -> str | None:
    """JSON for the column; None when there is nothing. Raises ValueError with the problem."""
    if not metadata:
        return None
    try:
        text = json.dumps(metadata, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"is not JSON: {error}") from None
    if has_nul(text):
        raise ValueError("holds a NUL character, which PostgreSQL cannot store")
    if size > MAX_BYTES:
        raise ValueError(f"is {size:,} bytes of JSON, the limit is {MAX_BYTES:,}: store large data elsewhere")
    return text


def has_nul(text: str) -> bool:
    """Whether this JSON holds a NUL character."""
    return "\\u0000" in text and _NUL.search(text) is not None


def decode(text: str | None) -> Mapping[str, Any]:
    """Read a row's metadata, which other programs may have written: anything but an object counts as none."""
    if not text:
        return NOTHING
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return NOTHING
    return MappingProxyType(cast("dict[str, Any]", found)) if isinstance(found, dict) else NOTHING


def inherited(found: Mapping[str, Any], keys: Iterable[str]) -> Mapping[str, Any]:
    """What a task that is sent from inside a task with this metadata inherits: these keys, and the trace context."""
    return {key: found[key] for key in (*keys, TRACE) if key in found} if found else NOTHING
