"""taskiq on Redis streams, the broker of its README (it acknowledges); results on; tasks are `async def` as its docs write them."""

import asyncio
import sys
import time
from pathlib import Path

from driver import BROKER_URL, RESULTS_URL, text
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

REMAINING = None
POLL_S = 0.002
"""It waits for a result by asking; its default of 200 ms would be all that a round trip shows."""

broker = RedisStreamBroker(url=BROKER_URL).with_result_backend(RedisAsyncResultBackend(redis_url=RESULTS_URL))


@broker.task("noop")
def noop(n: int) -> int:
    return n


@broker.task("anoop")
async def anoop(n: int) -> int:
    return n


@broker.task("sleep1")
def sleep1(n: int) -> int:
    time.sleep(0.001)
    return n


@broker.task("sleep50")
def sleep50(n: int) -> int:
    time.sleep(0.05)
    return n


@broker.task("load")
async def load(payload: str) -> str:
    return payload


TASKS = {"noop": noop, "anoop": anoop, "sleep1": sleep1, "sleep50": sleep50, "load": load}


def prepare() -> None:
    pass


def commands(processes, slots):
    limit = ["--max-async-tasks", str(slots), "--max-threadpool-threads", str(slots)] if slots else []
    program = str(Path(sys.executable).parent / "taskiq")
    return [[program, "worker", "on_taskiq:broker", "--workers", str(processes), "--log-level", "WARNING", *limit]]


def enqueue(kind, how, count, size=0):
    if how != "one" or kind not in TASKS:
        return None
    return asyncio.run(_enqueue(TASKS[kind], [text(size) if size else n for n in range(count)]))


async def _enqueue(task, values):
    await broker.startup()
    await task.kiq(values[0])
    began = time.perf_counter()
    for value in values:
        await task.kiq(value)
    took = time.perf_counter() - began
    await broker.shutdown()
    return took


def round_trips(count):
    return asyncio.run(_round_trips(count))


async def _round_trips(count):
    await broker.startup()
    times = []
    for number in range(count + 5):
        began = time.perf_counter()
        sent = await anoop.kiq(number)
        await sent.wait_result(check_interval=POLL_S, timeout=10)
        times.append(time.perf_counter() - began)
    await broker.shutdown()
    return times[5:]


later = None  # needs a scheduler process of its own, which looks once a minute or so
