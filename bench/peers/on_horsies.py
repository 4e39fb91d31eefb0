"""horsies itself, through its public API only."""

import asyncio
import os
import sys
import time

from driver import DATABASE_URL, stamp as note, text

from horsies import AppConfig, Horsies, PostgresConfig, RetryPolicy, TaskError, TaskResult

REMAINING = (
    "SELECT count(*) FROM horsies_tasks WHERE status IN ('PENDING', 'CLAIMED', 'RUNNING') AND enqueued_at <= now()"
)
POOLER_URL = os.environ.get("BENCH_POOLER_URL")

app = Horsies(
    AppConfig(
        PostgresConfig(POOLER_URL, direct_url=DATABASE_URL, pooler=True) if POOLER_URL else PostgresConfig(DATABASE_URL)
    )
)
# what a worker's death interrupts is run again, so that the kill scenario can count losses
AGAIN = RetryPolicy.fixed(1, max_retries=3, auto_retry_for=["WORKER_CRASHED"])


@app.task("noop")
def noop(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=n)


@app.task("anoop")
async def anoop(n: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=n)


@app.task("sleep1", retry_policy=AGAIN)
def sleep1(n: int) -> TaskResult[int, TaskError]:
    time.sleep(0.001)
    return TaskResult(ok=n)


@app.task("sleep50", retry_policy=AGAIN)
def sleep50(n: int) -> TaskResult[int, TaskError]:
    time.sleep(0.05)
    return TaskResult(ok=n)


@app.task("stamp")
def stamp(due: float) -> TaskResult[int, TaskError]:
    note(due)
    return TaskResult(ok=1)


@app.task("load")
def load(payload: str) -> TaskResult[str, TaskError]:
    return TaskResult(ok=payload)


TASKS = {"noop": noop, "anoop": anoop, "sleep1": sleep1, "sleep50": sleep50, "load": load}


def prepare() -> None:
    import horsies_schema  # here, not above: a worker that imports its tasks does not need it

    horsies_schema.upgrade(DATABASE_URL)


def commands(processes: int, slots: int | None) -> list[list[str]]:
    # 300 async tasks at once in a child: pgqueuer, which this is compared with, has no such limit
    worker = [sys.executable, "-m", "horsies_worker", "on_horsies:app", "--processes", str(processes)]
    return [[*worker, "--async-concurrency", "300"]]


def enqueue(kind: str, how: str, count: int, size: int = 0) -> float | None:
    return asyncio.run(_enqueue(kind, how, count, size))


async def _enqueue(kind: str, how: str, count: int, size: int) -> float:
    import asyncpg

    task = TASKS[kind]
    values = [text(size) if size else n for n in range(count)]
    try:
        raw = await asyncpg.connect(DATABASE_URL)
        await raw.execute("CREATE TABLE IF NOT EXISTS bench_orders (id bigserial PRIMARY KEY, note text)")
        await task.send_async(values[0])  # opens the connection
        began = time.perf_counter()
        if how == "many":
            await task.send_many_async([(value,) for value in values])
        elif how == "transaction":
            for value in values:
                async with raw.transaction():
                    await raw.execute("INSERT INTO bench_orders (note) VALUES ('an order')")
                    await task.with_options(connection=raw).send_async(value)
        else:
            for value in values:
                await task.send_async(value)
        took = time.perf_counter() - began
        await raw.close()
        return took
    finally:
        await app.aclose()


def round_trips(count: int) -> list[float]:
    return asyncio.run(_round_trips(count))


async def _round_trips(count: int) -> list[float]:
    times: list[float] = []
    try:
        for number in range(count + 5):
            began = time.perf_counter()
            handle = await noop.send_async(number)
            (await handle.get_async(10_000)).unwrap()
            times.append(time.perf_counter() - began)
    finally:
        await app.aclose()
    return times[5:]


def later(count: int, delay_s: float) -> None:
    asyncio.run(_later(count, delay_s))


async def _later(count: int, delay_s: float) -> None:
    try:
        for number in range(count):
            delay = delay_s + number * 0.05
            await stamp.schedule_async(delay, time.time() + delay)
    finally:
        await app.aclose()
