"""`TaskResult` and `TaskError`: one or the other, plain to take apart."""

from typing import Any

import pytest

from horsies.errors import BUILT_IN_CODES, OperationalErrorCode, OutcomeCode, RetrievalCode
from horsies.result import TaskError, TaskFailed, TaskResult

DOWN = TaskError("SMTP_DOWN", "no route", {"host": "mx1"})


def test_ok() -> None:
    result = TaskResult(ok=5)
    assert (result.is_ok(), result.is_err()) == (True, False)
    assert (result.ok, result.ok_value, result.unwrap(), result.unwrap_or(0)) == (5, 5, 5, 5)
    assert result.err is None
    with pytest.raises(ValueError, match="this result is ok, it has no err_value"):
        _ = result.err_value
    assert repr(result) == "TaskResult(ok=5)"


def test_err() -> None:
    result: TaskResult[int, TaskError] = TaskResult(err=DOWN)
    assert (result.is_ok(), result.is_err()) == (False, True)
    assert (result.err, result.err_value, result.unwrap_or(7)) == (DOWN, DOWN, 7)
    assert result.ok is None
    with pytest.raises(ValueError, match="this result is an err, it has no ok_value: TaskError"):
        _ = result.ok_value
    with pytest.raises(TaskFailed, match="SMTP_DOWN: no route") as raised:
        result.unwrap()
    assert raised.value.error is DOWN
    assert repr(result) == "TaskResult(err=TaskError('SMTP_DOWN', 'no route', data={'host': 'mx1'}))"


@pytest.mark.parametrize("value", [None, False, 0, "", []])
def test_a_falsy_value_is_ok(value: Any) -> None:
    result = TaskResult(ok=value)
    assert result.is_ok()
    assert result.ok_value is result.unwrap() is value
    assert result.unwrap_or("other") is value


@pytest.mark.parametrize("arguments", [{}, {"ok": 1, "err": DOWN}, {"ok": None, "err": DOWN}, {"err": None}])
def test_never_both_and_never_neither(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="exactly one of ok= and err="):
        TaskResult(**arguments)


def test_a_bare_value_is_refused() -> None:
    with pytest.raises(TypeError):
        TaskResult(5)  # type: ignore[misc]


def described(result: TaskResult[Any, TaskError]) -> str:
    match result:
        case TaskResult(err=TaskError(error_code=OutcomeCode.TASK_CANCELLED)):
            return "cancelled"
        case TaskResult(err=TaskError("SMTP_DOWN", message)):
            return f"down: {message}"
        case TaskResult(err=TaskError() as error):
            return f"failed: {error.error_code}"
        case TaskResult(ok=int() as number):
            return f"number {number}"
        case TaskResult(value, None):
            return f"value {value!r}"
    raise AssertionError("unmatched")


def test_match() -> None:
    assert described(TaskResult(ok=5)) == "number 5"
    assert described(TaskResult(ok=None)) == "value None"
    assert described(TaskResult(err=DOWN)) == "down: no route"
    assert described(TaskResult(err=TaskError(OutcomeCode.TASK_CANCELLED))) == "cancelled"
    assert described(TaskResult(err=TaskError("TASK_CANCELLED"))) == "cancelled"  # as it comes from a row
    assert described(TaskResult(err=TaskError("OTHER"))) == "failed: OTHER"


def test_equality_and_hash() -> None:
    assert TaskResult(ok=1) == TaskResult(ok=1) != TaskResult(ok=2)
    assert TaskResult(ok=None) != TaskResult(err=DOWN)
    assert TaskResult(err=DOWN) == TaskResult(err=TaskError("SMTP_DOWN", "no route", {"host": "mx1"}))
    assert TaskResult(ok=1) != 1
    assert len({TaskResult(ok=[1]), TaskResult(ok=[1]), TaskResult(err=DOWN)}) == 2  # the value need not be hashable
    assert DOWN != TaskError("SMTP_DOWN", "no route") != "SMTP_DOWN"
    assert hash(DOWN) == hash(TaskError("SMTP_DOWN", "no route"))
    assert TaskError("SMTP_DOWN", "no route", {"host": "mx1"}, retry_after_ms=5) != DOWN


def test_built_in_codes_come_back_as_themselves() -> None:
    assert TaskError("WAIT_TIMEOUT").error_code is RetrievalCode.WAIT_TIMEOUT
    assert TaskError(OperationalErrorCode.WORKER_CRASHED).error_code == "WORKER_CRASHED"
    assert type(TaskError("MY_OWN").error_code) is str
    assert all(BUILT_IN_CODES[code.value] is code for code in BUILT_IN_CODES.values())


@pytest.mark.parametrize("code", ["", None, 5])
def test_an_error_needs_a_code(code: Any) -> None:
    with pytest.raises(ValueError, match="error_code must be a non-empty string"):
        TaskError(code)


def test_retry_after_is_not_negative() -> None:
    assert TaskError("X", retry_after_ms=0).retry_after_ms == 0
    with pytest.raises(ValueError, match="must not be negative, got -1"):
        TaskError("X", retry_after_ms=-1)


def test_unwrapping_an_error_without_a_message() -> None:
    with pytest.raises(TaskFailed) as raised:
        TaskResult(err=TaskError("X")).unwrap()
    assert str(raised.value) == "X"


def test_results_are_not_changed_afterwards() -> None:
    result = TaskResult(ok=1)
    with pytest.raises(AttributeError):
        result.ok = 2  # type: ignore[misc]
    with pytest.raises(AttributeError):
        result.other = 2  # type: ignore[attr-defined]
