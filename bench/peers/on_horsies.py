"""horsies itself, through its public API only, so that it also drives another commit of horsies (`bench against`)."""

import sys
from contextlib import asynccontextmanager

import driver
from driver import DATABASE_URL

from horsies import (
    AppConfig,
    CustomQueueConfig,
    Horsies,
    PostgresConfig,
    QueueMode,
    ResilienceConfig,
    TaskError,
    TaskResult,
)

REMAINING = (
    "SELECT count(*) FROM horsies_tasks WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING') AND enqueued_at <= now()"
)

app = Horsies(AppConfig(PostgresConfig(DATABASE_URL)))


def noop_body(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=n)


noop = app.task("noop")(noop_body)


@app.task("anoop")
async def anoop(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=n)


@app.task("sleep50")
def sleep50(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=driver.sleep50(n))


@app.task("spread")
def spread(n: int) -> TaskResult[list[int], TaskError]:
    return TaskResult(ok=list(range(n)))


@app.task("count")
def count(numbers: list[int]) -> TaskResult[int, TaskError]:
    return TaskResult(ok=len(numbers))


# Other apps of the same database, for single benches: one that does not know the tasks above, one that looks for tasks ten
# times a second, and one with a hundred queues.
_broker = PostgresConfig(DATABASE_URL)
other = Horsies(AppConfig(_broker))
polling = Horsies(AppConfig(_broker, resilience=ResilienceConfig(notify_poll_interval_ms=100)))
_queues = [CustomQueueConfig(f"q{number}") for number in range(100)]
queues = Horsies(AppConfig(_broker, queue_mode=QueueMode.CUSTOM, custom_queues=_queues))
other.task("elsewhere")(noop_body)
polling.task("noop")(noop_body)
queues.task("noop", queue_name="q0")(noop_body)

TASKS = {"noop": noop, "anoop": anoop, "sleep50": sleep50}


async def prepare():
    import horsies_schema  # not above: a worker that imports its tasks does not need it

    await horsies_schema.upgrade_async(DATABASE_URL)


def commands(processes, slots):
    # 300 async tasks at once in a child: pgqueuer, which this is compared with, has no such limit
    worker = [sys.executable, "-m", "horsies_worker", "on_horsies:app", "--processes", str(processes)]
    return [[*worker, "--async-concurrency", "300"]]


@asynccontextmanager
async def connect():
    yield
    await app.aclose()


async def send(kind, value):
    return await TASKS[kind].send_async(value)


async def wait(handle):
    (await handle.get_async(10_000)).unwrap()


async def send_many(kind, values):
    await TASKS[kind].send_many_async([(value,) for value in values])
