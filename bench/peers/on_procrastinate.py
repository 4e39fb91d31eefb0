"""procrastinate on PostgreSQL: one worker command per process, LISTEN on, jobs kept (its default). It has no results:
a round trip ends when the job's status says so, polled every 2 ms."""

import asyncio
import sys
from pathlib import Path

from driver import BODIES, DATABASE_URL
from procrastinate import App, PsycopgConnector

REMAINING = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing') AND scheduled_at IS NULL"
TRIP_KIND = "anoop"
CONCURRENCY = 10
POLL_S = 0.002

app = App(connector=PsycopgConnector(conninfo=DATABASE_URL))
TASKS = {kind: app.task(body, name=kind) for kind, body in BODIES.items()}


async def prepare():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


def commands(processes, slots):
    program = str(Path(sys.executable).parent / "procrastinate")
    one = [program, "--app", "on_procrastinate.app", "worker", "--concurrency", str(slots or CONCURRENCY)]
    return [one] * processes


def connect():
    return app.open_async()


async def send(kind, value):
    return await TASKS[kind].defer_async(n=value)


async def wait(job_id):
    while (await app.job_manager.get_job_status_async(job_id)).value != "succeeded":
        await asyncio.sleep(POLL_S)


async def send_many(kind, values):
    await TASKS[kind].batch_defer_async(*({"n": value} for value in values))
