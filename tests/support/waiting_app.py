"""An app whose tasks wait for each other, which their worker warns of."""

import json
import os
from types import SimpleNamespace

from horsies import Horsies, TaskError, TaskResult, gather
from tests.support.worker_app import VARIABLE, build

APP = "tests.support.waiting_app:app"
Number = TaskResult[int, TaskError]


def register(app: Horsies) -> SimpleNamespace:
    @app.task("add")
    def add(a: int, b: int) -> Number:
        return TaskResult(ok=a + b)

    @app.task("waits")
    def waits(n: int) -> Number:
        return add.send(n, 1).get(timeout_ms=20_000)

    @app.task("waits_async")
    async def waits_async(n: int) -> Number:
        return await (await add.send_async(n, 1)).get_async(timeout_ms=20_000)

    @app.task("gathers")
    def gathers(n: int) -> Number:
        results = gather([add.send(n, 1), add.send(n, 2)], timeout_ms=20_000)
        return TaskResult(ok=sum(result.unwrap() for result in results))

    return SimpleNamespace(app=app, add=add, waits=waits, waits_async=waits_async, gathers=gathers)


if VARIABLE in os.environ:
    app = build(json.loads(os.environ[VARIABLE]))
    register(app)
