"""Celery on Redis: prefork, results on, early acknowledgement (its default), prefetch as its guide advises for short tasks."""

import sys
from pathlib import Path

from celery import Celery
from driver import BROKER_URL, RESULTS_URL, SYNC_BODIES

REMAINING = None

app = Celery("on_celery", broker=BROKER_URL, backend=RESULTS_URL)
app.conf.worker_prefetch_multiplier = 64
app.conf.broker_connection_retry_on_startup = True
TASKS = {kind: app.task(body, name=kind) for kind, body in SYNC_BODIES.items()}


def commands(processes, slots):
    program = str(Path(sys.executable).parent / "celery")
    lean = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    fetch = ["--prefetch-multiplier", "1"] if slots else []
    return [[program, "-A", "on_celery", "worker", "-c", str(processes), "-l", "WARNING", *lean, *fetch]]


async def send(kind, value):
    return TASKS[kind].delay(value)


async def wait(sent):
    sent.get(timeout=10)
