"""horsies itself, through its public API only, so that it also drives another commit of horsies (`bench against`)."""

import sys
from contextlib import asynccontextmanager

import driver
from driver import DATABASE_URL

from horsies import AppConfig, CustomQueueConfig, Horsies, PostgresConfig, ResilienceConfig, TaskError, TaskResult

REMAINING = (
    "SELECT count(*) FROM horsies_tasks WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING') AND enqueued_at <= now()"
)

app = Horsies(AppConfig(PostgresConfig(DATABASE_URL)))


@app.task("noop")
def noop(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=n)


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


# More apps on the same database: one that knows none of the tasks above, one whose workers look for tasks ten times a
# second without being told, and one with a hundred queues.
other = Horsies(AppConfig(PostgresConfig(DATABASE_URL)))
polling = Horsies(AppConfig(PostgresConfig(DATABASE_URL), resilience=ResilienceConfig(notify_poll_interval_ms=100)))
QUEUES = [f"q{number}" for number in range(100)]
queues = Horsies(
    AppConfig(PostgresConfig(DATABASE_URL), queue_mode="custom", custom_queues=[*map(CustomQueueConfig, QUEUES)])
)
for another, name, queue in ((other, "elsewhere", None), (polling, "noop", None), (queues, "noop", QUEUES[0])):

    @another.task(name, queue_name=queue)
    def same(n: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=n)


TASKS = {"noop": noop, "anoop": anoop, "sleep50": sleep50}


async def prepare():
    import horsies_schema  # not above: a worker that imports its tasks does not need it

    await horsies_schema.upgrade_async(DATABASE_URL)


def commands(processes, slots):
    return [[sys.executable, "-m", "horsies_worker", "on_horsies:app", "--processes", str(processes)]]


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
