"""The error of a run that has undone what it did. Pure.

The statement `plan_compensations` adds a node for each compensation, behind the one before it, so that a step runs them
like any other nodes; `finishing.py` calls it."""

from collections.abc import Mapping
from typing import Any

from horsies.codec import encode_error
from horsies.envelopes import MARK, PLAIN_ENVELOPES, Envelopes
from horsies.errors import OutcomeCode
from horsies.result import TaskError
from horsies_worker.workflows.failures import fields_of, stored_error, stored_form


def with_failed_compensation(
    error: str | None, facts: Mapping[str, Any], envelopes: Envelopes = PLAIN_ENVELOPES
) -> str | None:
    """The error of a run that has undone what it could: the original one, with the compensation that failed in its
    data. The failure of an earlier try, which a retry continued, is taken out."""
    stored = stored_error(error, envelopes)
    original = _without_failed(stored)
    if facts["failed"] is None:
        return error if original is None or original is stored else _kept(original, error, envelopes)
    original = original or TaskError(OutcomeCode.WORKFLOW_FAILED, "the workflow failed")
    cause = stored_error(facts["error"], envelopes)
    failed = {
        "error_code": str(OutcomeCode.COMPENSATION_FAILED), "node_id": facts["failed"],
        "cause": None if cause is None else {"error_code": str(cause.error_code), "message": cause.message},
    }  # fmt: skip
    data = fields_of(original.data)
    if not data and original.data is not None:
        data = {"data": original.data}
    message = f"{original.message}{_told(facts['failed'])}"
    return stored_form(TaskError(original.error_code, message, {**data, "compensation": failed}), envelopes)


def _kept(original: TaskError, error: str | None, envelopes: Envelopes) -> str:
    """An error that is stored again; one that was plain, such as that of a cancelled run, stays so."""
    return stored_form(original, envelopes) if MARK in (error or "") else encode_error(original)


def _told(node_id: object) -> str:
    return f"; its compensation {node_id!r} failed, and those behind it have not run"


def _without_failed(error: TaskError | None) -> TaskError | None:
    data = dict(fields_of(error and error.data))
    failed = fields_of(data.pop("compensation", None))
    if error is None or not failed:
        return error
    return TaskError(error.error_code, error.message.removesuffix(_told(failed.get("node_id"))), data or None)
