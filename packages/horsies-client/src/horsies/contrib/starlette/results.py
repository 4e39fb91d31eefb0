"""The answer to "what became of this task?", as JSON."""

import logging
from collections.abc import Callable
from typing import Any, Final, TypeVar
from urllib.parse import quote

from pydantic_core import to_json
from starlette.requests import Request
from starlette.responses import Response

from horsies._awaited import Awaited
from horsies.contrib.starlette.waiting import MAX_WAIT_S, seconds, wait_for
from horsies.errors import BrokerError, OperationalErrorCode, RetrievalCode
from horsies.result import TaskError, TaskResult
from horsies.watching import Progress, look

T = TypeVar("T")

_log = logging.getLogger("horsies")
RETRY_AFTER_S: Final = 1
OUTAGE_RETRY_AFTER_S: Final = 5
_NOT_FOUND: Final = (RetrievalCode.TASK_NOT_FOUND, RetrievalCode.WORKFLOW_NOT_FOUND)


async def result_response(
    request: Request,
    handle: Awaited[T],
    *,
    wait_s: float = 0,
    location: str | None = None,
    show_result: Callable[[T], Any] | None = None,
    show_error: Callable[[TaskError], Any] | None = None,
) -> Response:
    """The result of a task or a run; `wait_s` waits for it for as long as the client does.

    200 with `result` or `error` when it has ended; 202 with `Location` when it has not; 404 when there is no such id,
    or when it belongs to another task than that of the handle; 503 when the database cannot be reached. `location`:
    where to ask again, by default the path of this request. `show_result` makes what is shown of the value;
    `show_error` of the error, by default only `{"code": ...}`: messages and data may hold what clients must not see.
    """
    seconds("result_response", "wait_s", wait_s, 0, MAX_WAIT_S)
    try:
        state = await look(handle)
        if state is not None and not state.is_ended and wait_s:
            await wait_for(request, handle, wait_s)
            state = await look(handle)
        if state is None:
            return not_found()
        if not state.is_ended:
            return _not_yet(request, state, location)
    except BrokerError as error:
        return unavailable(handle, error)
    result = await handle.get_async(0)
    code = None if result.is_ok() else result.err_value.error_code
    if code == OperationalErrorCode.BROKER_ERROR:
        return unavailable(handle, result.err_value.message)
    if code in _NOT_FOUND:  # pruned meanwhile
        return not_found()
    if code == RetrievalCode.WAIT_TIMEOUT:  # a failed run, which is retried since
        return _not_yet(request, state, location)
    return _answer(200, ended(state, result, show_result, show_error))


def ended(
    state: Progress,
    result: TaskResult[T, TaskError],
    show_result: Callable[[T], Any] | None,
    show_error: Callable[[TaskError], Any] | None,
) -> dict[str, Any]:
    """What is told of an ended task or run."""
    told: dict[str, Any] = {"id": state.id, "status": state.status}
    if result.is_ok():
        told["result"] = result.ok_value if show_result is None else show_result(result.ok_value)
    elif result.err_value.error_code != RetrievalCode.RESULT_NOT_AVAILABLE or not _is_completed(state):
        error = result.err_value
        told["error"] = {"code": str(error.error_code)} if show_error is None else show_error(error)
    return told


def _is_completed(state: Progress) -> bool:
    """Also with `store_result=False`, where the value is missing and nothing is wrong."""
    return state.status == "COMPLETED"


def as_json(value: object) -> bytes:
    """Bytes are base64, as they are stored. What JSON has no number for is null, as in JavaScript."""
    return to_json(value, bytes_mode="base64", inf_nan_mode="null")


def _own_path(request: Request) -> str:
    """The path that the client has asked for: with the part that a proxy has cut off, where `root_path` names it."""
    scope = request.scope  # inside a Mount `root_path` has its path too
    path, prefix = str(scope["path"]), str(scope.get("app_root_path", scope.get("root_path", ""))).rstrip("/")
    is_cut = prefix and path != prefix and not path.startswith(f"{prefix}/")
    return quote(prefix + path if is_cut else path, safe="/:@!$&'()*+,;=~")


def _not_yet(request: Request, state: Progress, location: str | None) -> Response:
    where = location or (_own_path(request) if request.method in ("GET", "HEAD") else None)
    return _answer(202, {"id": state.id, "status": state.status}, RETRY_AFTER_S, where)


def not_found() -> Response:
    return _answer(404, {"error": {"code": "NOT_FOUND"}})


def unavailable(handle: Awaited[Any], why: object) -> Response:
    """The reason is for the log, not for the client."""
    _log.error("%r could not be read: %s", handle, why)
    return _answer(503, {"error": {"code": "UNAVAILABLE"}}, OUTAGE_RETRY_AFTER_S)


def _answer(status: int, body: object, retry_after_s: int | None = None, location: str | None = None) -> Response:
    headers = {"Cache-Control": "no-store"}
    if retry_after_s is not None:
        headers["Retry-After"] = str(retry_after_s)
    if location is not None:
        headers["Location"] = location
    return Response(as_json(body), status, headers, media_type="application/json")
