"""taskiq on Redis streams, the broker of its README (it acknowledges); results on; round trips with `async def` as its docs
write tasks."""

import sys
from contextlib import asynccontextmanager
from pathlib import Path

from driver import BODIES, BROKER_URL, RESULTS_URL
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

REMAINING = None
TRIP_KIND = "anoop"
POLL_S = 0.002
"""Callers poll for results; the default of 200 ms would be nearly the whole round trip."""

broker = RedisStreamBroker(url=BROKER_URL).with_result_backend(RedisAsyncResultBackend(redis_url=RESULTS_URL))
TASKS = {kind: broker.task(kind)(body) for kind, body in BODIES.items()}


def commands(processes, slots):
    limit = ["--max-async-tasks", str(slots), "--max-threadpool-threads", str(slots)] if slots else []
    program = str(Path(sys.executable).parent / "taskiq")
    return [[program, "worker", "on_taskiq:broker", "--workers", str(processes), "--log-level", "WARNING", *limit]]


@asynccontextmanager
async def connect():
    await broker.startup()
    yield
    await broker.shutdown()


async def send(kind, value):
    return await TASKS[kind].kiq(value)


async def wait(sent):
    await sent.wait_result(check_interval=POLL_S, timeout=10)
