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
    """The error of a run that could not undo everything: the original one, with the compensation that failed in its
    data."""
    original = _without_compensation(_decoded(error))
    if facts["failed"] is None:
        return error if original is None else encode_error(original)
    original = original or TaskError(OutcomeCode.WORKFLOW_FAILED, "the workflow failed")
    cause = _decoded(facts["error"])
    failed = {
        "error_code": str(OutcomeCode.COMPENSATION_FAILED), "node_id": facts["failed"],
        "cause": None if cause is None else {"error_code": str(cause.error_code), "message": cause.message},
        "original": {"message": original.message, "data": original.data},
    }  # fmt: skip
    known: Any = original.data
    data = cast("dict[str, Any]", known) if isinstance(known, dict) else {"data": known}
    message = f"{original.message}; its compensation {facts['failed']!r} failed, and those behind it have not run"
    return encode_error(TaskError(original.error_code, message, {**data, "compensation": failed}))


def _without_compensation(error: TaskError | None) -> TaskError | None:
    """The original error, of a run whose compensations were retried."""
    original = _fields(_fields(_fields(error and error.data).get("compensation")).get("original"))
    if error is None or not original:
        return error
    return TaskError(error.error_code, str(original.get("message")), original.get("data"))


def _fields(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def _decoded(text: str | None) -> TaskError | None:
    try:
        return decode_untyped_result(text or "").err
    except (DecodeError, json.JSONDecodeError):
        return None
