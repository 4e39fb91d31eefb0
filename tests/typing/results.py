# pyright: strict
"""`TaskResult` in user code: made, asked, matched, unwrapped."""

from typing import Any, assert_type

from horsies import OperationalErrorCode, OutcomeCode, RetrievalCode, TaskError, TaskFailed, TaskResult


def made(flag: bool) -> TaskResult[int, TaskError]:
    good: TaskResult[int, TaskError] = TaskResult(ok=1)
    bad: TaskResult[int, TaskError] = TaskResult(err=TaskError("X", data={"any": [1]}))
    return good if flag else bad


def asked(result: TaskResult[int, TaskError]) -> int:
    if result.is_ok():
        assert_type(result.ok_value, int)
        return result.ok_value
    assert_type(result.is_err(), bool)
    assert_type(result.err_value, TaskError)
    assert_type(result.err_value.message, str)
    assert_type(result.ok, int | None)
    assert_type(result.err, TaskError | None)
    assert_type(result.unwrap_or(0), int)
    assert_type(result.unwrap_or(None), int | None)
    assert_type(result.unwrap_or("none"), int | str)
    return 0


def narrowed(result: TaskResult[int, TaskError]) -> str:
    if (error := result.err) is not None:
        assert_type(error, TaskError)
        if error.error_code == RetrievalCode.WAIT_TIMEOUT:
            return "later"
        return error.message
    return str(result.ok_value)


def matched(result: TaskResult[int, TaskError]) -> str:
    match result:
        case TaskResult(err=TaskError(error_code=OutcomeCode.TASK_EXPIRED)):
            return "too late"
        case TaskResult(err=TaskError() as error):
            assert_type(error, TaskError)
            return error.message
        case TaskResult(ok=int(value)):
            assert_type(value, int)
            return str(value)
        case _:
            return "never"


def unwrapped(result: TaskResult[list[str], TaskError]) -> list[str]:
    try:
        return result.unwrap()
    except TaskFailed as failed:
        assert_type(failed.error, TaskError)
        return []


def told(error: TaskError) -> None:
    assert_type(error.message, str)
    assert_type(error.retry_after_ms, int | None)
    if isinstance(error.error_code, OperationalErrorCode):
        assert_type(error.error_code, OperationalErrorCode)


def covariant(result: TaskResult[bool, TaskError]) -> TaskResult[int | str, TaskError]:
    return result


# -- what both checkers refuse --------------------------------------------------------------------


def wrong_value() -> TaskResult[int, TaskError]:
    return TaskResult(ok="1")  # type: ignore[arg-type]


def wrong_error() -> TaskResult[int, TaskError]:
    return TaskResult(err="broken")  # type: ignore[arg-type]


def positional() -> TaskResult[int, TaskError]:
    return TaskResult(1)  # type: ignore[call-arg]


def unread(result: TaskResult[int, TaskError], anything: Any) -> str:
    result.ok_value = anything  # type: ignore[misc]
    return result.unwrap()  # type: ignore[return-value]
