"""pgqueuer on PostgreSQL: its `run` once per process, uvloop, asyncpg, durable tables. Tasks share the worker's event loop,
must be `async def`, leave no result and are deleted when done; a round trip ends when its CompletionWatcher knows the status."""

import asyncio
import sys
from contextlib import asynccontextmanager
from datetime import timedelta

import asyncpg
import pgqueuer
import uvloop
from driver import DATABASE_URL
from pgqueuer import PgQueuer
from pgqueuer.core.completion import CompletionWatcher
from pgqueuer.db import AsyncpgDriver
from pgqueuer.queries import Queries

REMAINING = "SELECT count(*) FROM pgqueuer WHERE execute_after <= now()"
BATCH = 100  # jobs per fetch; its default of 10 is slower here


async def noop(job):
    pass


async def sleep50(job):
    await asyncio.sleep(0.05)


TASKS = {"noop": noop, "anoop": noop, "sleep50": sleep50}


@asynccontextmanager
async def worker():
    manager = PgQueuer(AsyncpgDriver(await asyncpg.connect(DATABASE_URL)))
    for kind, body in TASKS.items():
        manager.entrypoint(kind)(body)
    yield manager


async def prepare():
    connection = await asyncpg.connect(DATABASE_URL)
    await Queries(AsyncpgDriver(connection)).install()
    await connection.close()


def commands(processes, slots):
    # at most `slots` jobs at once; pgqueuer insists on room for two batches
    batch, most = (1, max(2, slots)) if slots else (BATCH, 0)
    return [[sys.executable, __file__, str(batch), str(most)]] * processes


@asynccontextmanager
async def connect():
    global raw, queries, watcher
    raw, listening = await asyncpg.connect(DATABASE_URL), await asyncpg.connect(DATABASE_URL)
    queries = Queries(AsyncpgDriver(raw))
    # no debounce: the default of 50 ms would be most of a round trip
    async with CompletionWatcher(AsyncpgDriver(listening), queries=queries, debounce=timedelta(0)) as watcher:
        yield
    await raw.close()
    await listening.close()


async def send(kind, value):
    (job_id,) = await queries.enqueue(kind, str(value).encode())
    return job_id


async def wait(job_id):
    await watcher.wait_for(job_id)


async def send_many(kind, values):
    await queries.enqueue([kind] * len(values), [str(value).encode() for value in values], [0] * len(values))


if __name__ == "__main__":
    batch, most = int(sys.argv[1]), int(sys.argv[2])
    uvloop.run(pgqueuer.run(worker, batch_size=batch, max_concurrent_tasks=most or None))
