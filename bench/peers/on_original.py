"""The original horsies from PyPI, tuned: children are not recycled, which is its largest cost. Its import name is ours, so
this runs in an environment, and on a path, where ours is not."""

import asyncio
import sys
import time
from pathlib import Path

from driver import DATABASE_URL, stamp as note

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult

REMAINING = (
    "SELECT count(*) FROM horsies_tasks WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING') AND enqueued_at <= now()"
)

app = Horsies(
    AppConfig(broker=PostgresConfig(database_url=DATABASE_URL.replace("postgresql://", "postgresql+psycopg://")))
)


@app.task("noop")
def noop(*, n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=n)


@app.task("sleep1")
def sleep1(*, n: int) -> TaskResult[int, TaskError]:
    time.sleep(0.001)
    return TaskResult(ok=n)


@app.task("sleep50")
def sleep50(*, n: int) -> TaskResult[int, TaskError]:
    time.sleep(0.05)
    return TaskResult(ok=n)


@app.task("stamp")
def stamp(*, due: float) -> TaskResult[int, TaskError]:
    note(due)
    return TaskResult(ok=1)


TASKS = {"noop": noop, "sleep1": sleep1, "sleep50": sleep50}


def prepare():
    asyncio.run(app.get_broker().ensure_schema_initialized())


def commands(processes, slots):
    program = str(Path(sys.executable).parent / "horsies")
    kept = ["--max-tasks-per-child", "0"]
    return [[program, "worker", "on_original:app", "--processes", str(processes), "--loglevel", "WARNING", *kept]]


def enqueue(kind, how, count, size=0):
    if how != "one" or kind not in TASKS or size:
        return None
    return asyncio.run(_enqueue(TASKS[kind], count))


async def _enqueue(task, count):
    (await task.send_async(n=0)).unwrap()
    began = time.perf_counter()
    for number in range(count):
        (await task.send_async(n=number)).unwrap()
    return time.perf_counter() - began


def round_trips(count):
    return asyncio.run(_round_trips(count))


async def _round_trips(count):
    times = []
    for number in range(count + 5):
        began = time.perf_counter()
        handle = (await noop.send_async(n=number)).unwrap()
        result = await handle.get_async(10_000)
        if result.is_err():
            raise SystemExit(repr(result))
        times.append(time.perf_counter() - began)
    return times[5:]


later = None  # whole seconds only, and found by its poll
