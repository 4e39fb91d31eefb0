"""Conditions in an app with a payload codec: the value of a node that decides whether others run.

SQL compares such a value with `when` or `unless`, so that a step stores it decoded. The states of the nodes behind it
show what it was in any case. In the step's transaction.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from horsies.envelopes import Envelopes
from horsies.payload_codec import PayloadError
from horsies.status import NodeStatus
from horsies_worker.output.log_context import log


async def decode_conditions(
    fetch: Callable[..., Awaitable[list[Any]]], envelopes: Envelopes, ended: Sequence[Mapping[str, Any]]
) -> None:
    """Decode the values of those nodes, of the ones that have just ended, on which others depend by `when` or `unless`.
    A value that cannot be decoded, or is no bool, stays: the nodes behind it fail."""
    completed = [row["task_index"] for row in ended if row["status"] == NodeStatus.COMPLETED]
    found: dict[int, str] = {}
    for row in await fetch("encoded_conditions", completed) if completed else ():
        try:
            text = envelopes.unwrap(row["result"])
        except PayloadError as error:
            log.error("node %r: the condition that it decides cannot be read: %s", row["node_id"], error)
            continue
        if text in ('{"ok":true}', '{"ok":false}'):
            found[row["task_index"]] = text
    if found:
        await fetch("store_conditions", list(found), list(found.values()))
