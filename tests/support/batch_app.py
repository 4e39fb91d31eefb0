"""An app with batch tasks. Each call appends one line to a file per process: what it got, before it does anything."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import BaseModel

from horsies import Horsies, QueueMode, RetryPolicy, TaskError, TaskResult, current_call
from tests.support.worker_app import LEDGER_VARIABLE, VARIABLE, build, note

LOCATOR = "tests.support.batch_app:app"
ASYNC_TASKS = ("fetch",)
Text = TaskResult[str, TaskError]
AGAIN = RetryPolicy.fixed(0, 1, auto_retry_for=["BUSY", "UNHANDLED_EXCEPTION"])


class Item(BaseModel):
    key: str
    do: str = "ok"
    seconds: float = 0.0


class Line(BaseModel):
    """One call, as its process wrote it."""

    name: str
    keys: list[str]
    ids: list[str]
    attempts: list[int]
    pid: int
    at: float


def lines(folder: Path) -> list[Line]:
    """All calls so far, in their order."""
    found = [line for file in (folder / "ledger").iterdir() for line in file.read_text().splitlines()]
    return sorted((Line.model_validate_json(line) for line in found), key=lambda line: line.at)


def _begin(items: list[Item]) -> None:
    call = current_call()
    line = {
        "name": call.task_name, "keys": [item.key for item in items], "ids": [task.task_id for task in call.tasks],
        "attempts": [task.attempt for task in call.tasks], "pid": os.getpid(), "at": time.monotonic(),
    }  # fmt: skip
    for item, task in zip(items, call.tasks, strict=True):
        task.report_progress(item.key)
    note(str(Path(os.environ[LEDGER_VARIABLE]) / str(os.getpid())), json.dumps(line))


def _result(item: Item) -> Text:
    if item.do == "busy":
        return TaskResult(err=TaskError("BUSY", f"{item.key} is busy"))
    if item.do == "odd":
        return item.key  # type: ignore[return-value]  # no TaskResult
    if item.do == "busy_once":
        is_first = current_call().tasks[0].attempt == 1
        return TaskResult(err=TaskError("BUSY", "once")) if is_first else TaskResult(ok=f"{item.key} again")
    return TaskResult(ok=item.key.upper())


def _work(items: list[Item]) -> list[Text]:
    _begin(items)
    for item in items:
        time.sleep(item.seconds)
        if item.do == "die":
            os.kill(os.getpid(), signal.SIGKILL)
        if item.do == "raise":
            raise OSError(f"no disk for {item.key}")
    if any(item.do == "short" for item in items):
        return []
    return [_result(item) for item in items]


def register(app: Horsies) -> SimpleNamespace:
    queue: dict[str, Any] = {}
    if app.config.queue_mode is QueueMode.CUSTOM:
        queue = {"queue_name": app.config.queue_names[0]}

    @app.batch_task("index", max_size=100, max_wait_ms=50, **queue)
    def index(items: list[Item]) -> list[Text]:
        return _work(items)

    @app.batch_task("patient", max_size=5, max_wait_ms=400, retry_policy=AGAIN, **queue)
    def patient(items: list[Item]) -> list[Text]:
        return _work(items)

    @app.batch_task(
        "collected", max_size=5, max_wait_ms=60_000, store_result=False, keep_for=timedelta(hours=1), **queue
    )
    def collected(items: list[Item]) -> list[Text]:
        return _work(items)

    @app.batch_task("timed", max_size=10, max_wait_ms=100, timeout_ms=300, **queue)
    def timed(items: list[Item]) -> list[Text]:
        return _work(items)

    @app.batch_task("fetch", max_size=50, max_wait_ms=50, **queue)
    async def fetch(items: list[Item]) -> list[Text]:
        _begin(items)
        await asyncio.sleep(max(item.seconds for item in items))
        return [_result(item) for item in items]

    @app.batch_task("grouped", max_size=20, max_wait_ms=100, group_by=lambda item: item.key[0], **queue)
    def grouped(items: list[Item]) -> list[Text]:
        return _work(items)

    @app.task("single", **queue)
    def single(item: Item) -> Text:
        time.sleep(item.seconds)
        return TaskResult(ok=item.key.upper())

    return SimpleNamespace(
        app=app, index=index, patient=patient, collected=collected, timed=timed, fetch=fetch, grouped=grouped,
        single=single,
    )  # fmt: skip


def describe_app(described: Mapping[str, Any]) -> Horsies:
    made = build(described)
    register(made)
    return made


if VARIABLE in os.environ:
    app = describe_app(json.loads(os.environ[VARIABLE]))
