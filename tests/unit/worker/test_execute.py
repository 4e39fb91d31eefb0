"""The executor turns an attempt of user code into an outcome: reserved codes, and the size of results."""

import asyncio
import logging

import pytest

from horsies import AppConfig, Horsies, PostgresConfig, TaskContext, TaskError, TaskResult
from horsies.ids import new_id
from horsies_worker.child.execute import Executor
from horsies_worker.child.jobs import Job
from horsies_worker.child.outcome import Outcome, OutcomeKind


def app_with(**config: int) -> Horsies:
    app = Horsies(AppConfig(PostgresConfig("postgresql://u@h/d"), **config))  # type: ignore[arg-type]

    @app.task("fails")
    def fails(code: str) -> TaskResult[int, TaskError]:
        return TaskResult(err=TaskError(code, "mine"))

    @app.task("fails_async")
    async def fails_async(code: str) -> TaskResult[int, TaskError]:
        return TaskResult(err=TaskError(code, "mine"))

    @app.task("passes_on")
    def passes_on(result: TaskResult[int, TaskError]) -> TaskResult[int, TaskError]:
        return result

    return app


def job(name: str, kwargs: str) -> Job:
    return Job(task_id="t", generation=1, attempt=1, task_name=name, args=None, kwargs=kwargs)


def call(app: Horsies, name: str, kwargs: str) -> Outcome:
    executor = Executor(app)
    context = TaskContext(
        task_id="t", task_name=name, attempt=1, deadline=None, fencing_token=1,
    )  # fmt: skip
    if name.endswith("_async"):
        return asyncio.run(executor.call_async(job(name, kwargs), context))
    return executor.call(job(name, kwargs), context)


@pytest.mark.parametrize("code", ["TASK_CANCELLED", "WORKER_CRASHED", "TASK_TIMEOUT", "RESERVED_ERROR_CODE"])
@pytest.mark.parametrize("name", ["fails", "fails_async", "passes_on"])
def test_a_task_cannot_end_with_a_built_in_code(name: str, code: str) -> None:
    kwargs = f'{{"code":"{code}"}}'
    if name == "passes_on":
        kwargs = f'{{"result":{{"err":{{"error_code":"{code}","message":"mine"}}}}}}'
    outcome = call(app_with(), name, kwargs)
    assert (outcome.kind, outcome.error_code) == (OutcomeKind.ERR, "RESERVED_ERROR_CODE")
    assert f'"data":{{"error_code":"{code}","message":"mine","data":null}}' in outcome.result


def test_a_task_may_end_with_its_own_code() -> None:
    assert call(app_with(), "fails", '{"code":"SMTP_DOWN"}').error_code == "SMTP_DOWN"


def test_a_large_result_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    app = app_with(payload_warn_bytes=1_000, payload_max_bytes=10_000)
    name = f"large {new_id()}"  # "once" means once per name and process

    @app.task(name)
    def large(size: int) -> TaskResult[str, TaskError]:
        return TaskResult(ok="x" * size)

    with caplog.at_level(logging.WARNING):
        assert call(app, name, '{"size":900}').kind is OutcomeKind.OK
        assert caplog.text == ""
        for _ in range(3):
            assert call(app, name, '{"size":1100}').kind is OutcomeKind.OK
        assert caplog.text.count("its result is 1109 bytes of JSON, more than payload_warn_bytes (1000") == 1
    assert call(app, name, '{"size":11000}').error_code == "WORKER_SERIALIZATION_ERROR"
