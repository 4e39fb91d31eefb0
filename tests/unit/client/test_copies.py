"""Results and exceptions keep their contents when they are copied or cross a process, as in a process pool."""

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import pytest

import horsies
from horsies import (
    AppConfig,
    BrokerError,
    ClaimLostError,
    ConfigurationError,
    HorsiesError,
    OutcomeCode,
    PayloadError,
    SchemaError,
    SendErrorCode,
    SignalError,
    TaskDefinitionError,
    TaskError,
    TaskFailed,
    TaskResult,
    TaskSendError,
    TaskStopped,
    UsageError,
    WorkflowDefinitionError,
)
from horsies.codec.errors import Fault, Reason, ResultError
from horsies.errors import Problem
from tests.support.apps import UNREACHABLE, add_task, app_on

COPIES: list[Callable[[Any], Any]] = [lambda one: pickle.loads(pickle.dumps(one)), copy.copy, copy.deepcopy]
copied = pytest.mark.parametrize("copied", COPIES, ids=["pickle", "copy", "deepcopy"])

PROBLEMS = [Problem("delay", "is too long", "give less")]
EXAMPLES = [
    HorsiesError("told"), BrokerError("told"), SchemaError("told"), UsageError("told"), PayloadError("told"),
    ConfigurationError(PROBLEMS, subject="send"), WorkflowDefinitionError(PROBLEMS, subject="workflow"),
    TaskDefinitionError("pay", "why", "fix", location="a.py:1"), ClaimLostError("id", "told"),
    TaskSendError(SendErrorCode.ENQUEUE_FAILED, "told", retryable=True, task_ids=["a", "b"]),
    SignalError(OutcomeCode.WORKFLOW_ENDED, "told"), TaskFailed(TaskError("BROKEN", "told", {"a": 1})),
    TaskStopped("timeout"),
    ResultError("pay", Fault(("return",), Reason.NAN, "told"), horsies.ContractCode.RETURN_TYPE_MISMATCH),
]  # fmt: skip


def test_there_is_an_example_of_every_public_exception() -> None:
    public = {
        one
        for name in horsies.__all__
        if isinstance(one := getattr(horsies, name), type)
        and issubclass(one, BaseException)
        and not issubclass(one, Warning)
    }
    assert public <= {type(error) for error in EXAMPLES}


@copied
@pytest.mark.parametrize("error", EXAMPLES, ids=lambda error: type(error).__name__)
def test_an_exception_keeps_its_message_and_attributes(error: BaseException, copied: Callable[[Any], Any]) -> None:
    error.add_note("a note")
    found = copied(error)
    assert type(found) is type(error)
    assert (str(found), found.args, vars(found)) == (str(error), error.args, vars(error))


@copied
def test_a_copied_send_error_is_not_sent_again(copied: Callable[[Any], Any]) -> None:
    with app_on(UNREACHABLE) as app:
        with pytest.raises(TaskSendError) as failed:
            add_task(app).send(1)
        assert failed.value.retryable
        found = copied(failed.value)
        assert (found.task_id, found.retryable) == (failed.value.task_id, True)
        with pytest.raises(TaskSendError, match="ENQUEUE_FAILED"):
            found.retry()


def refuse() -> None:
    AppConfig(5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_an_exception_leaves_a_process_pool() -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool, pytest.raises(ConfigurationError) as told:
        pool.submit(refuse).result()
    with pytest.raises(ConfigurationError) as here:
        refuse()
    assert str(told.value) == str(here.value)


@copied
def test_a_result_is_the_same_result(copied: Callable[[Any], Any]) -> None:
    refused: TaskResult[int, TaskError] = TaskResult(err=TaskError("BROKEN", "told", {"a": 1}, retry_after_ms=5))
    found = copied(refused)
    assert (found, found.ok, found.unwrap_or(7), found.is_err()) == (refused, None, 7, True)
    with pytest.raises(ValueError, match="has no ok_value"):
        _ = found.ok_value
    for value in (None, 1, {"a": [1]}):
        ok: TaskResult[Any, TaskError] = TaskResult(ok=value)
        assert (copied(ok), copied(ok).unwrap()) == (ok, value)
