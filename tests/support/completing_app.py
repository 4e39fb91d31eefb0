"""Tasks that complete themselves: each writes a row of the table `business` and ends in the same transaction.

A task gets a list of steps, such as `["write", "complete", "commit", "wait:/path"]`, so that a test can stop or kill it
at any moment between them. Every end of an attempt is a line of the file of events.
"""

import asyncio
import json
import os
import random
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg

from horsies import Horsies, QueueMode, RetryPolicy, TaskError, TaskResult, current_task
from horsies.events import AttemptFailed, AttemptSucceeded, ResultDropped
from tests.support.postgres import Database
from tests.support.worker_app import VARIABLE, build, note

APP = "tests.support.completing_app:app"
EVENTS_VARIABLE = "HORSIES_TEST_EVENTS"
BUSINESS = "CREATE TABLE business (k int NOT NULL, task_id text NOT NULL, attempt int NOT NULL)"
WRITE = "INSERT INTO business VALUES ({}, '{}', {})"
AGAIN = RetryPolicy.fixed(0.05, 20, auto_retry_for=["WORKER_CRASHED", "COMPLETION_NOT_COMMITTED"])

Number = TaskResult[int, TaskError]
_open: list[Any] = []


def register(app: Horsies) -> SimpleNamespace:
    url = app.config.broker.url
    queue: dict[str, Any] = (
        {} if app.config.queue_mode is QueueMode.DEFAULT else {"queue_name": app.config.queue_names[0]}
    )

    @app.task("work", **queue)
    def work(k: int, steps: Sequence[str]) -> Number:
        return _work(url, k, steps)

    @app.task("work_again", retry_policy=AGAIN, **queue)
    def work_again(k: int, steps: Sequence[str]) -> Number:
        """Only its first attempt takes the steps that wait or kill."""
        if current_task().attempt > 1:
            steps = [step for step in steps if step in ("write", "complete", "commit")]
        return _work(url, k, steps)

    @app.task("work_briefly", timeout_ms=500, **queue)
    def work_briefly(k: int, steps: Sequence[str]) -> Number:
        return _work(url, k, steps)

    @app.task("work_async", **queue)
    async def work_async(k: int, steps: Sequence[str]) -> Number:
        return await _work_async(url, k, steps)

    @app.task("work_at_risk", retry_policy=AGAIN, **queue)
    def work_at_risk(k: int, longest_s: float) -> Number:
        """Takes its time before, between and after: a kill may come at any moment."""
        with psycopg.connect(url) as connection:
            time.sleep(random.random() * longest_s)
            _write(connection.execute, k)
            time.sleep(random.random() * longest_s)
            result = current_task().complete(connection, k)
            time.sleep(random.random() * longest_s)
        time.sleep(random.random() * longest_s)
        return result

    @app.task("double", **queue)
    def double(value: int) -> Number:
        return TaskResult(ok=2 * value)

    return SimpleNamespace(
        app=app, work=work, work_again=work_again, work_briefly=work_briefly, work_async=work_async,
        work_at_risk=work_at_risk, double=double,
    )  # fmt: skip


def _write(execute: Any, k: int) -> None:
    task = current_task()
    execute(WRITE.format(k, task.task_id, task.attempt))


def _work(url: str, k: int, steps: Sequence[str]) -> Number:
    connection = psycopg.connect(url)
    result: Number = TaskResult(ok=k)
    is_kept = False
    try:
        for step in steps:
            name, _, argument = step.partition(":")
            match name:
                case "write":
                    _write(connection.execute, k)
                case "complete":
                    result = current_task().complete(connection, k)
                case "commit":
                    connection.commit()
                case "rollback":
                    connection.rollback()
                case "thread":
                    context, found = current_task(), list[Number]()
                    thread = threading.Thread(target=lambda c=context, f=found: f.append(c.complete(connection, k)))
                    thread.start()
                    thread.join()
                    result = found[0]
                case "keep":  # the transaction is ended so many seconds later
                    seconds, how = argument.split(" ")
                    is_kept = True
                    _open.append(connection)
                    threading.Timer(float(seconds), lambda how=how: _end(connection, how)).start()
                case "sleep":
                    time.sleep(float(argument))
                case "wait":
                    Path(argument).touch()
                    while not Path(argument + ".go").exists():
                        time.sleep(0.005)
                case "raise":
                    raise ValueError("on purpose")
                case "err":
                    result = TaskResult(err=TaskError("MINE", "on purpose"))
                case "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                case _:
                    raise AssertionError(step)
        return result
    finally:
        if not is_kept:
            connection.close()


def _end(connection: Any, how: str) -> None:
    getattr(connection, how)()
    connection.close()


async def _work_async(url: str, k: int, steps: Sequence[str]) -> Number:
    connection = await asyncpg.connect(url)
    try:
        async with connection.transaction():
            task = current_task()
            await connection.execute(WRITE.format(k, task.task_id, task.attempt))
            result = await task.complete_async(connection, k)
            if "raise" in steps:
                raise ValueError("on purpose")
        await asyncio.sleep(0)
        return result
    finally:
        await connection.close()


# -- what must hold ------------------------------------------------------------------------------

DISAGREE = """
SELECT t.id, t.status, t.retry_count, w.written, a.completed, w.attempt AS wrote, a.attempt AS ended
  FROM horsies_tasks t
 CROSS JOIN LATERAL (SELECT count(*) AS written, min(attempt) AS attempt FROM business b WHERE b.task_id = t.id) AS w
 CROSS JOIN LATERAL (SELECT count(*) AS completed, min(attempt) AS attempt FROM horsies_task_attempts a
                      WHERE a.task_id = t.id AND a.outcome = 'COMPLETED') AS a
 WHERE t.task_name LIKE 'work%'
   AND (w.written <> (t.status = 'COMPLETED')::int OR a.completed <> w.written OR w.attempt IS DISTINCT FROM a.attempt)
"""


def disagreements(db: Database) -> list[tuple[Any, ...]]:
    """Tasks whose business rows and ends differ: there must be a row exactly for each that is COMPLETED, written by the
    attempt that completed it."""
    return db.execute(DISAGREE)


def _described() -> Mapping[str, Any]:
    return json.loads(os.environ[VARIABLE])


if VARIABLE in os.environ:
    app = build(_described())
    tasks = register(app)
    if EVENTS_VARIABLE in os.environ:
        for kind in (AttemptSucceeded, AttemptFailed, ResultDropped):
            app.on_event(
                kind, lambda event: note(os.environ[EVENTS_VARIABLE], f"{type(event).__name__} {event.task_id}")
            )
