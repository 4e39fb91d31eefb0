"""Dramatiq on Redis: results on, its default eight threads per process unless a scenario wants one slot each."""

import sys
import time
from pathlib import Path

import dramatiq
from dramatiq.brokers.redis import RedisBroker
from dramatiq.results import Results
from dramatiq.results.backends import RedisBackend
from driver import BROKER_URL, RESULTS_URL, stamp as note, text

REMAINING = None

broker = RedisBroker(url=BROKER_URL)
broker.add_middleware(Results(backend=RedisBackend(url=RESULTS_URL), store_results=True))
dramatiq.set_broker(broker)


@dramatiq.actor
def noop(n):
    return n


@dramatiq.actor
def sleep1(n):
    time.sleep(0.001)
    return n


@dramatiq.actor
def sleep50(n):
    time.sleep(0.05)
    return n


@dramatiq.actor
def stamp(due):
    note(due)
    return 1


@dramatiq.actor
def load(payload):
    return payload


TASKS = {"noop": noop, "sleep1": sleep1, "sleep50": sleep50, "load": load}


def prepare():
    pass


def commands(processes, slots):
    threads = ["--threads", str(slots)] if slots else []
    return [[str(Path(sys.executable).parent / "dramatiq"), "on_dramatiq", "--processes", str(processes), *threads]]


def enqueue(kind, how, count, size=0):
    if how != "one" or kind not in TASKS:
        return None
    task = TASKS[kind]
    values = [text(size) if size else n for n in range(count)]
    task.send(values[0])
    began = time.perf_counter()
    for value in values:
        task.send(value)
    return time.perf_counter() - began


def round_trips(count):
    times = []
    for number in range(count + 5):
        began = time.perf_counter()
        noop.send(number).get_result(block=True, timeout=10_000)
        times.append(time.perf_counter() - began)
    return times[5:]


def later(count, delay_s):
    for number in range(count):
        delay = delay_s + number * 0.05
        stamp.send_with_options(args=(time.time() + delay,), delay=int(delay * 1000))
