"""Celery on Redis: prefork, results on, early acknowledgement (its default), prefetch as its guide advises for short tasks."""

import sys
import time
from pathlib import Path

from celery import Celery
from driver import BROKER_URL, RESULTS_URL, stamp as note, text

REMAINING = None

app = Celery("on_celery", broker=BROKER_URL, backend=RESULTS_URL)
app.conf.worker_prefetch_multiplier = 64
app.conf.broker_connection_retry_on_startup = True


@app.task(name="noop")
def noop(n):
    return n


@app.task(name="sleep1")
def sleep1(n):
    time.sleep(0.001)
    return n


@app.task(name="sleep50")
def sleep50(n):
    time.sleep(0.05)
    return n


@app.task(name="stamp")
def stamp(due):
    note(due)
    return 1


@app.task(name="load")
def load(payload):
    return payload


TASKS = {"noop": noop, "sleep1": sleep1, "sleep50": sleep50, "load": load}


def prepare():
    pass


def commands(processes, slots):
    program = str(Path(sys.executable).parent / "celery")
    lean = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    fetch = ["--prefetch-multiplier", "1"] if slots else []
    return [[program, "-A", "on_celery", "worker", "-c", str(processes), "-l", "WARNING", *lean, *fetch]]


def enqueue(kind, how, count, size=0):
    if how != "one" or kind not in TASKS:
        return None
    task = TASKS[kind]
    values = [text(size) if size else n for n in range(count)]
    task.delay(values[0])
    began = time.perf_counter()
    for value in values:
        task.delay(value)
    return time.perf_counter() - began


def round_trips(count):
    times = []
    for number in range(count + 5):
        began = time.perf_counter()
        noop.delay(number).get(timeout=10)
        times.append(time.perf_counter() - began)
    return times[5:]


def later(count, delay_s):
    for number in range(count):
        delay = delay_s + number * 0.05
        stamp.apply_async((time.time() + delay,), countdown=delay)
