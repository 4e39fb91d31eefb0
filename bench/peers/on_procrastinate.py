"""procrastinate on PostgreSQL: one worker command per process, LISTEN on, jobs kept (its default). It has no results:
a round trip ends when the job's status says so, asked every 2 ms."""

import asyncio
import sys
import time
from pathlib import Path

import psycopg
from driver import DATABASE_URL, stamp as note, text
from procrastinate import App, PsycopgConnector

REMAINING = "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing') AND scheduled_at IS NULL"
CONCURRENCY = 10
POLL_S = 0.002

app = App(connector=PsycopgConnector(conninfo=DATABASE_URL))


@app.task(name="noop")
def noop(n):
    return n


@app.task(name="anoop")
async def anoop(n):
    return n


@app.task(name="sleep1")
def sleep1(n):
    time.sleep(0.001)


@app.task(name="sleep50")
def sleep50(n):
    time.sleep(0.05)


@app.task(name="stamp")
def stamp(n):
    note(n)


@app.task(name="load")
async def load(n):
    return n


TASKS = {"noop": noop, "anoop": anoop, "sleep1": sleep1, "sleep50": sleep50, "load": load}


def prepare():
    asyncio.run(_prepare())


async def _prepare():
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


def commands(processes, slots):
    program = str(Path(sys.executable).parent / "procrastinate")
    one = [program, "--app", "on_procrastinate.app", "worker", "--concurrency", str(slots or CONCURRENCY)]
    return [one] * processes


def enqueue(kind, how, count, size=0):
    return asyncio.run(_enqueue(TASKS[kind], how, [text(size) if size else n for n in range(count)]))


async def _enqueue(task, how, values):
    async with app.open_async():
        raw = await psycopg.AsyncConnection.connect(DATABASE_URL)
        await raw.execute("CREATE TABLE IF NOT EXISTS bench_orders (id bigserial PRIMARY KEY, note text)")
        await raw.commit()
        await task.defer_async(n=values[0])
        began = time.perf_counter()
        if how == "many":
            await task.batch_defer_async(*({"n": value} for value in values))
        elif how == "transaction":
            for value in values:
                async with raw.transaction():
                    await raw.execute("INSERT INTO bench_orders (note) VALUES ('an order')")
                    await task.configure(connection=raw).defer_async(n=value)
        else:
            for value in values:
                await task.defer_async(n=value)
        took = time.perf_counter() - began
        await raw.close()
        return took


def round_trips(count):
    return asyncio.run(_round_trips(count))


async def _round_trips(count):
    times = []
    async with app.open_async():
        for number in range(count + 5):
            began = time.perf_counter()
            job_id = await anoop.defer_async(n=number)
            while (await app.job_manager.get_job_status_async(job_id)).value != "succeeded":
                await asyncio.sleep(POLL_S)
            times.append(time.perf_counter() - began)
    return times[5:]


def later(count, delay_s):
    asyncio.run(_later(count, delay_s))


async def _later(count, delay_s):
    async with app.open_async():
        for number in range(count):
            delay = delay_s + number * 0.05
            await stamp.configure(schedule_in={"milliseconds": int(delay * 1000)}).defer_async(n=time.time() + delay)
