"""pgqueuer on PostgreSQL: its `run` once per process, uvloop, asyncpg, durable tables. Tasks share the worker's event loop, must be
`async def`, leave no result and are deleted when done; a round trip ends when its CompletionWatcher knows the status."""

import asyncio
import os
import sys
import time
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import pgqueuer
import uvloop
from driver import DATABASE_URL, stamp as note, text
from pgqueuer import PgQueuer
from pgqueuer.core.completion import CompletionWatcher
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

REMAINING = "SELECT count(*) FROM pgqueuer WHERE execute_after <= now()"
BATCH = int(os.environ.get("BENCH_PGQUEUER_BATCH", "100"))
"""Jobs per fetch; its default of 10 is slower here."""


@asynccontextmanager
async def worker():
    manager = PgQueuer(AsyncpgDriver(await asyncpg.connect(DATABASE_URL)))

    @manager.entrypoint("noop")
    async def noop(job):
        pass

    @manager.entrypoint("anoop")
    async def anoop(job):
        pass

    @manager.entrypoint("sleep1")
    async def sleep1(job):
        await asyncio.sleep(0.001)

    @manager.entrypoint("sleep50")
    async def sleep50(job):
        await asyncio.sleep(0.05)

    @manager.entrypoint("stamp")
    async def stamp(job):
        note(float(job.payload))

    @manager.entrypoint("load")
    async def load(job):
        pass

    yield manager


def prepare():
    asyncio.run(_prepare())


async def _prepare():
    connection = await asyncpg.connect(DATABASE_URL)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


def commands(processes, slots):
    # at most `slots` jobs at once; it wants room for two batches at least
    batch, most = (1, max(2, slots)) if slots else (BATCH, 0)
    return [[sys.executable, __file__, str(batch), str(most)]] * processes


def enqueue(kind, how, count, size=0):
    return asyncio.run(_enqueue(kind, how, [(text(size) if size else str(n)).encode() for n in range(count)]))


async def _enqueue(kind, how, values):
    connection = await asyncpg.connect(DATABASE_URL)
    queries = Queries(AsyncpgDriver(connection))
    await connection.execute("CREATE TABLE IF NOT EXISTS bench_orders (id bigserial PRIMARY KEY, note text)")
    await queries.enqueue(kind, values[0])
    began = time.perf_counter()
    if how == "many":
        await queries.enqueue([kind] * len(values), values, [0] * len(values))
    elif how == "transaction":
        for value in values:
            async with connection.transaction():
                await connection.execute("INSERT INTO bench_orders (note) VALUES ('an order')")
                await queries.enqueue(kind, value)
    else:
        for value in values:
            await queries.enqueue(kind, value)
    took = time.perf_counter() - began
    await connection.close()
    return took


def round_trips(count):
    return asyncio.run(_round_trips(count))


async def _round_trips(count):
    driver = AsyncpgDriver(await asyncpg.connect(DATABASE_URL))
    queries = Queries(AsyncpgDriver(await asyncpg.connect(DATABASE_URL)))
    times = []
    # no debounce: the default of 50 ms would be most of what is measured
    async with CompletionWatcher(driver, queries=queries, debounce=timedelta(0)) as watcher:
        for number in range(count + 5):
            began = time.perf_counter()
            (job_id,) = await queries.enqueue("noop", str(number).encode())
            await watcher.wait_for(job_id)
            times.append(time.perf_counter() - began)
    return times[5:]


def later(count, delay_s):
    asyncio.run(_later(count, delay_s))


async def _later(count, delay_s):
    connection = await asyncpg.connect(DATABASE_URL)
    queries = Queries(AsyncpgDriver(connection))
    for number in range(count):
        delay = delay_s + number * 0.05
        await queries.enqueue("stamp", str(time.time() + delay).encode(), execute_after=timedelta(seconds=delay))
    await connection.close()


if __name__ == "__main__":
    batch, most = int(sys.argv[1]), int(sys.argv[2])
    uvloop.run(pgqueuer.run(worker, batch_size=batch, max_concurrent_tasks=most or None))
