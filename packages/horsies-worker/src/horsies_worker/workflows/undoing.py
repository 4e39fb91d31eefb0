"""Compensations: a run that fails or is stopped undoes what it did, the last node first. Each compensation is a node of
its own, behind the one before it, so that a step runs them as any other nodes."""

import json
from collections.abc import Mapping
from typing import Any, cast

from horsies.codec import DecodeError, decode_untyped_result, encode_error
from horsies.errors import OutcomeCode
from horsies.result import TaskError
from horsies_worker.database.queries import Queries


async def plan_compensations(
    queries: Queries, connection: Any, workflow_id: str, ends_as: str, error: str | None
) -> int:
    """Add the nodes that undo what the run did; the run will end like this when they have ended. Returns how many."""
    rows = await queries.fetch(connection, "plan_compensations", workflow_id, ends_as, error)
    return rows[0]["nodes_left"] if rows else 0


def with_failed_compensation(error: str | None, facts: Mapping[str, Any]) -> str | None:
    """The error of a run that has undone what it could: the original one, with the compensation that failed in its
    data. The failure of an earlier try, which a retry continued, is taken out."""
    original = _without_failed(_decoded(error))
    if facts["failed"] is None:
        return error if original is None else encode_error(original)
    original = original or TaskError(OutcomeCode.WORKFLOW_FAILED, "the workflow failed")
    cause = _decoded(facts["error"])
    failed = {
        "error_code": str(OutcomeCode.COMPENSATION_FAILED), "node_id": facts["failed"],
        "cause": None if cause is None else {"error_code": str(cause.error_code), "message": cause.message},
    }  # fmt: skip
    data = _fields(original.data)
    if data is None:
        data = {} if original.data is None else {"data": original.data}
    message = f"{original.message}{_told(facts['failed'])}"
    return encode_error(TaskError(original.error_code, message, {**data, "compensation": failed}))


def _told(node_id: object) -> str:
    return f"; its compensation {node_id!r} failed, and those behind it have not run"


def _without_failed(error: TaskError | None) -> TaskError | None:
    data = None if error is None else _fields(error.data)
    failed = None if data is None else _fields(data.pop("compensation", None))
    if error is None or failed is None:
        return error
    return TaskError(error.error_code, (error.message or "").removesuffix(_told(failed.get("node_id"))), data or None)


def _fields(value: object) -> dict[str, Any] | None:
    return dict(cast("dict[str, Any]", value)) if isinstance(value, dict) else None


def _decoded(text: str | None) -> TaskError | None:
    try:
        return decode_untyped_result(text or "").err
    except (DecodeError, json.JSONDecodeError):
        return None
