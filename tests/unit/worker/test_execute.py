"""One attempt of user code becomes a report: reserved codes, and the size of results."""

import asyncio
import logging

import pytest

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
from horsies.codec import wire as sizes
from horsies_worker.execute import Executor
from horsies_worker.jobs import OutcomeKind
from horsies_worker.wire import ReceivedJob, Report


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

    @app.task("large")
    def large(size: int) -> TaskResult[str, TaskError]:
        return TaskResult(ok="x" * size)

    return app


def job(name: str, kwargs: str) -> ReceivedJob:
    return ReceivedJob(
        seq=1, generation=1, attempt=1, timeout_ms=None, task_id="t", task_name=name, args=None, kwargs=kwargs
    )


def call(app: Horsies, name: str, kwargs: str) -> Report:
    executor = Executor(app)
    if name.endswith("_async"):
        return asyncio.run(executor.call_async(job(name, kwargs)))
    return executor.call(job(name, kwargs))


@pytest.mark.parametrize("code", ["TASK_CANCELLED", "WORKER_CRASHED", "TASK_TIMEOUT", "RESERVED_ERROR_CODE"])
@pytest.mark.parametrize("name", ["fails", "fails_async", "passes_on"])
def test_a_task_cannot_end_with_a_built_in_code(name: str, code: str) -> None:
    kwargs = f'{{"code":"{code}"}}'
    if name == "passes_on":
        kwargs = f'{{"result":{{"err":{{"error_code":"{code}","message":"mine"}}}}}}'
    report = call(app_with(), name, kwargs)
    assert (report.kind, report.error_code) == (OutcomeKind.ERR, "RESERVED_ERROR_CODE")
    assert f'"data":{{"error_code":"{code}","message":"mine","data":null}}' in report.result


def test_a_code_of_its_own_stands() -> None:
    assert call(app_with(), "fails", '{"code":"SMTP_DOWN"}').error_code == "SMTP_DOWN"


def test_a_large_result_is_told_once(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(sizes, "_warned", set())
    app = app_with(payload_warn_bytes=1_000, payload_max_bytes=10_000)
    with caplog.at_level(logging.WARNING):
        assert call(app, "large", '{"size":900}').kind is OutcomeKind.OK
        assert caplog.text == ""
        for _ in range(3):
            assert call(app, "large", '{"size":1100}').kind is OutcomeKind.OK
        assert caplog.text.count("its result is 1109 bytes of JSON, more than payload_warn_bytes (1000") == 1
    assert call(app, "large", '{"size":11000}').error_code == "WORKER_SERIALIZATION_ERROR"
