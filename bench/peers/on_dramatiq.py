"""Dramatiq on Redis: results on, its default eight threads per process unless a scenario asks for one slot each."""

import sys
from pathlib import Path

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from driver import BROKER_URL, RESULTS_URL, SYNC_BODIES

REMAINING = None

broker = RedisBroker(url=BROKER_URL)
broker.add_middleware(Results(backend=RedisBackend(url=RESULTS_URL), store_results=True))
dramatiq.set_broker(broker)
TASKS = {kind: dramatiq.actor(body, actor_name=kind) for kind, body in SYNC_BODIES.items()}


def commands(processes, slots):
    threads = ["--threads", str(slots)] if slots else []
    return [[str(Path(sys.executable).parent / "dramatiq"), "on_dramatiq", "--processes", str(processes), *threads]]


async def send(kind, value):
    return TASKS[kind].send(value)


async def wait(sent):
    sent.get_result(block=True, timeout=10_000)
