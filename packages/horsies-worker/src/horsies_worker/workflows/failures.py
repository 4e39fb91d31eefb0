"""Error messages of failed runs: which node failed, its path, and its own code and message.

A run's error names its first failed node. If that node is a workflow or a map, the path continues inside it, down to
the node whose task failed: `squares/item[3]`. `data["cause"]` holds path, code and message for programs.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from horsies.codec import DecodeError, decode_untyped_result, encode_error
from horsies.envelopes import PLAIN_ENVELOPES, Envelopes
from horsies.errors import OutcomeCode
from horsies.payload_codec import PayloadError
from horsies.result import TaskError
from horsies.status import NodeStatus
from horsies_worker.output.log_context import log

LISTED: Final = 100
"""Failed nodes that an error lists by their ids."""
SHOWN: Final = 500
"""Characters of a node's message that the run's message repeats."""
INSIDE: Final = (
    f'{{"err":{{"error_code":"{OutcomeCode.SUBWORKFLOW_FAILED}","message":"the workflow inside it failed","data":'
)
"""The beginning of a node's error; the whole error of the workflow inside it follows."""


def failure(
    facts: Sequence[Mapping[str, Any]],
    first: Sequence[Mapping[str, Any]],
    *,
    has_policy: bool,
    envelopes: Envelopes = PLAIN_ENVELOPES,
) -> str:
    """The error of a run: its failed nodes, and code and message of the first one; where none failed, the skipped nodes
    of its success policy. `facts`: the rows of `finish_facts`; `first`: the row of `first_failure`."""
    code = OutcomeCode.WORKFLOW_SUCCESS_CASE_NOT_MET if has_policy else OutcomeCode.WORKFLOW_FAILED
    told = "no case of its success policy was met" if has_policy else "a node failed"
    failed = [row for row in facts if row["failed_count"] is not None]
    data: dict[str, Any] = {"failed": [row["node_id"] for row in failed]}
    if first:
        cause = data["cause"] = _cause(first[0], envelopes)
        told += f": {_words(cause)}"
        if failed and failed[0]["failed_count"] > 1:
            told += f", and {failed[0]['failed_count'] - 1} more"
    elif skipped := [row["node_id"] for row in facts if row["status"] == NodeStatus.SKIPPED]:
        data["skipped"] = skipped[:LISTED]
        told += f": {skipped[0]} was skipped" + (f", and {len(skipped) - 1} more" if len(skipped) > 1 else "")
    return stored_form(TaskError(code, told, data), envelopes)


def told_first(first: Sequence[Mapping[str, Any]], envelopes: Envelopes = PLAIN_ENVELOPES) -> str:
    """The first failed node with its code and message. `first`: the row of `first_failure`."""
    return "a node failed" + (f": {_words(_cause(first[0], envelopes))}" if first else "")


def _words(cause: Mapping[str, str]) -> str:
    return f"{cause['path']}: {cause['error_code']}: {cause['message']}"


def inside(text: str | None, envelopes: Envelopes = PLAIN_ENVELOPES) -> str:
    """The error of a node whose workflow failed with `text`: the same message, and that error as its data."""
    error = stored_error(text, envelopes)
    told = "the workflow inside it failed" if error is None else f"inside it, {error.message}"
    fields = error and {"error_code": str(error.error_code), "message": error.message, "data": error.data}
    return stored_form(TaskError(OutcomeCode.SUBWORKFLOW_FAILED, told, fields and {"err": fields}), envelopes)


def _cause(row: Mapping[str, Any], envelopes: Envelopes) -> dict[str, str]:
    path = f"item[{row['task_index']}]" if row["is_item"] else str(row["node_id"])
    error = stored_error(row["error"], envelopes)
    if error is None:
        return {"path": path, "error_code": "", "message": (row["error"] or "no error is stored")[:SHOWN]}
    deeper = _cause_inside(error)
    if deeper is not None:
        return {**deeper, "path": f"{path}/{deeper['path']}"}
    return {"path": path, "error_code": str(error.error_code), "message": error.message[:SHOWN]}


def _cause_inside(error: TaskError) -> dict[str, str] | None:
    """The cause inside the workflow or map that failed with this error."""
    if error.error_code != OutcomeCode.SUBWORKFLOW_FAILED:
        return None
    found: object = error.data
    for key in ("err", "data", "cause"):
        found = fields_of(found).get(key)
    cause = {
        key: value for key in ("path", "error_code", "message") if isinstance(value := fields_of(found).get(key), str)
    }
    return cause if len(cause) == 3 else None


def fields_of(value: object) -> dict[str, object]:
    return cast("dict[str, object]", value) if isinstance(value, dict) else {}


def stored_error(text: str | None, envelopes: Envelopes = PLAIN_ENVELOPES) -> TaskError | None:
    """The error in a stored result; None if there is none, or horsies did not write it. Without the key of an encoded
    one there is its code, and a message that says so."""
    try:
        return decode_untyped_result(_readable(text or "", envelopes)).err
    except DecodeError:
        return None


def _readable(text: str, envelopes: Envelopes) -> str:
    try:
        return envelopes.unwrap(text)
    except PayloadError as error:
        log.warning("the message of a failed node cannot be read: %s", error)
        return text


def stored_form(error: TaskError, envelopes: Envelopes) -> str:
    """An error that repeats messages of tasks, as it is stored. If it cannot be encoded, its code alone is."""
    text = encode_error(error)
    try:
        return envelopes.wrap_error(text, "")
    except PayloadError as problem:
        return encode_error(TaskError(error.error_code, f"its message cannot be stored: {problem}"))
