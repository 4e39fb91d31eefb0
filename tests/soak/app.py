"""The app of the soak: its tasks leave lines in the ledger and return f(k), so that each result can be checked.

A worker or scheduler finds the URL in its environment; the harness builds an app of its own by `build`.
"""

import asyncio
import json
import os
import signal
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import psycopg
from pydantic import BaseModel

from horsies import (
    AppConfig,
    CustomQueueConfig,
    GroupPolicy,
    Horsies,
    Interval,
    Limit,
    PostgresConfig,
    QueueMode,
    Rate,
    RecoveryConfig,
    ResilienceConfig,
    RetryPolicy,
    ScheduleConfig,
    TaskError,
    TaskResult,
    TaskSchedule,
    current_task,
    snooze,
)
from tests.soak import settings
from tests.soak.ledger import note_run

VARIABLE = "HORSIES_TEST_APP"
Number = TaskResult[int, TaskError]
CRASHES = ["WORKER_CRASHED"]
AGAIN = RetryPolicy.fixed(0.1, 20, auto_retry_for=CRASHES)
BUSINESS = "CREATE TABLE business (k bigint NOT NULL, task_id text NOT NULL, attempt int NOT NULL)"


def f(k: int) -> int:
    """What a task with this key returns."""
    return 7 * k + 3


class Item(BaseModel):
    k: int


def schedule(name: str, seconds: int) -> TaskSchedule:
    """It owes every slot that it missed."""
    return TaskSchedule(
        name, "tick", Interval(seconds=seconds), kwargs={"name": name}, catch_up_missed=True, max_catch_up_runs=1_000
    )


def build(url: str) -> Horsies:
    queues = [
        CustomQueueConfig("main"),
        CustomQueueConfig("flows"),
        CustomQueueConfig("capped", max_concurrency=settings.QUEUE_CAPS["capped"]),
        CustomQueueConfig("grouped", groups=GroupPolicy(max_concurrency=settings.GROUP_CAP)),
        CustomQueueConfig("rated", limits=["api"]),
    ]
    broker = PostgresConfig(url, command_timeout_ms=10_000, connect_timeout_ms=5_000)
    return Horsies(
        AppConfig(
            broker,
            queue_mode=QueueMode.CUSTOM,
            custom_queues=queues,
            limits=[Limit("api", rate=Rate(*settings.RATE))],
            cluster_wide_cap=settings.CLUSTER_CAP,
            recovery=RecoveryConfig(**settings.RECOVERY),
            resilience=ResilienceConfig(**settings.RESILIENCE),
            schedule=ScheduleConfig([schedule(*each) for each in settings.SCHEDULES.items()]),
        )
    )


@contextmanager
def recorded(k: int, group: str = "-") -> Iterator[None]:
    """The start and, unless the body raises or dies, the end."""
    run = str(uuid.uuid4())
    note_run(k, run, "start", group)
    yield
    note_run(k, run, "end", group)


def register(app: Horsies) -> SimpleNamespace:
    url = app.config.broker.url

    @app.task("steady", queue_name="main", retry_policy=AGAIN)
    def steady(k: int, seconds: float = 0.0) -> Number:
        with recorded(k):
            time.sleep(seconds)
        return TaskResult(ok=f(k))

    @app.task("once", queue_name="main")
    def once(k: int, seconds: float = 0.0) -> Number:
        """Never repeated."""
        with recorded(k):
            time.sleep(seconds)
        return TaskResult(ok=f(k))

    @app.task("nap", queue_name="main", retry_policy=AGAIN)
    async def nap(k: int, seconds: float = 0.0) -> Number:
        with recorded(k):
            await asyncio.sleep(seconds)
        return TaskResult(ok=f(k))

    @app.task("burn", queue_name="main", retry_policy=AGAIN)
    def burn(k: int, seconds: float) -> Number:
        with recorded(k):
            until = time.process_time() + seconds
            while time.process_time() < until:
                pass
        return TaskResult(ok=f(k))

    @app.task("in_c", queue_name="main", retry_policy=AGAIN)
    def in_c(k: int, seconds: float) -> Number:
        with recorded(k):
            _hold_gil(seconds)
        return TaskResult(ok=f(k))

    @app.task("flaky", queue_name="main", retry_policy=RetryPolicy.fixed(0.2, 20, auto_retry_for=["BUSY", *CRASHES]))
    def flaky(k: int) -> Number:
        with recorded(k):
            fails = current_task().attempt == 1
        return TaskResult(err=TaskError("BUSY", "the first attempt")) if fails else TaskResult(ok=f(k))

    @app.task("dies_once", queue_name="main", retry_policy=AGAIN)
    def dies_once(k: int) -> Number:
        with recorded(k):
            if current_task().attempt == 1:
                os.kill(os.getpid(), signal.SIGKILL)
        return TaskResult(ok=f(k))

    @app.task("poison", queue_name="main", retry_policy=RetryPolicy.fixed(0.1, 2, auto_retry_for=CRASHES))
    def poison(k: int) -> Number:
        with recorded(k):
            os.kill(os.getpid(), signal.SIGKILL)
        return TaskResult(ok=f(k))

    @app.task("snoozes", queue_name="main", retry_policy=AGAIN)
    def snoozes(k: int) -> Number:
        with recorded(k):
            is_early = current_task().snoozes < 2
        return snooze(seconds=0.3) if is_early else TaskResult(ok=f(k))

    @app.task("in_group", queue_name="grouped", group_by="group", retry_policy=AGAIN)
    def in_group(k: int, group: str, seconds: float = 0.0) -> Number:
        with recorded(k, f"grouped:{group}"):
            time.sleep(seconds)
        return TaskResult(ok=f(k))

    @app.task("rated", queue_name="rated", retry_policy=AGAIN)
    def rated(k: int) -> Number:
        with recorded(k, "rated:"):
            pass
        return TaskResult(ok=f(k))

    @app.batch_task("bulk", queue_name="main", max_size=10, max_wait_ms=200, retry_policy=AGAIN)
    def bulk(items: list[Item]) -> list[Number]:
        runs = [(item.k, str(uuid.uuid4())) for item in items]
        for k, run in runs:
            note_run(k, run, "start")
        time.sleep(0.02)
        for k, run in runs:
            note_run(k, run, "end")
        return [TaskResult(ok=f(item.k)) for item in items]

    completes = RetryPolicy.fixed(
        0.2, 20, auto_retry_for=[*CRASHES, "COMPLETION_NOT_COMMITTED", "UNHANDLED_EXCEPTION", "NO_DATABASE"]
    )

    @app.task("completes", queue_name="main", retry_policy=completes)
    def completes_itself(k: int, secret: str) -> Number:
        """Its row of `business` and its end are one transaction."""
        assert secret == settings.SECRET
        task, run = current_task(), str(uuid.uuid4())
        note_run(k, run, "start")
        try:
            with psycopg.connect(url, connect_timeout=5) as connection:
                connection.execute("INSERT INTO business VALUES (%s, %s, %s)", (k, task.task_id, task.attempt))
                result = task.complete(connection, f(k))
                note_run(k, run, "end")  # before the commit: a kill after it leaves a task that has COMPLETED
            return result
        except psycopg.Error as error:
            return TaskResult(err=TaskError("NO_DATABASE", type(error).__name__))

    @app.task("tick", queue_name="main", retry_policy=AGAIN)
    def tick(name: str) -> TaskResult[str, TaskError]:
        return TaskResult(ok=name)

    return SimpleNamespace(**{name: task for name, task in locals().items() if name not in ("app", "url")})


def _hold_gil(seconds: float) -> None:
    """C code that keeps the interpreter's lock."""
    import ctypes

    libc = ctypes.PyDLL(None)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    libc.usleep(int(seconds * 1_000_000))
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


def build_all(url: str) -> tuple[Horsies, Any, Any]:
    from tests.soak import flows

    made = build(url)
    return made, register(made), flows.register(made)


if VARIABLE in os.environ:
    app, tasks, flow_tasks = build_all(json.loads(os.environ[VARIABLE])["url"])
