"""The tasks of the demo: an app that a worker runs and the demo sends to."""

import asyncio
import os

from horsies import (
    AppConfig,
    Horsies,
    PostgresConfig,
    RetryPolicy,
    TaskError,
    TaskResult,
    current_task,
)

# HORSIES_DATABASE_URL says where the database is
app = Horsies(AppConfig(PostgresConfig()))


@app.task("add")
def add(a: int, b: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a + b)


@app.task("greet")
async def greet(name: str) -> TaskResult[str, TaskError]:
    await asyncio.sleep(0.2)
    return TaskResult(ok=f"hello, {name}")


@app.task("flaky", retry_policy=RetryPolicy.fixed(0.2, max_retries=3, auto_retry_for=["NOT_YET"]))
def flaky() -> TaskResult[str, TaskError]:
    attempt = current_task().attempt
    if attempt < 3:
        return TaskResult(err=TaskError("NOT_YET", f"attempt {attempt} failed"))
    return TaskResult(ok=f"attempt {attempt} succeeded")


@app.task("crash")
def crash() -> TaskResult[None, TaskError]:
    os.kill(os.getpid(), 9)
    return TaskResult(ok=None)
