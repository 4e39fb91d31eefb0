"""A worker with `--metrics-port`, scraped every second, beside one with nothing hung on: as ratios.

BENCH_SEAMS=500,1 (tasks, rounds) makes it shorter.
"""

import statistics
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial

from bench import support
from bench.compare import observe
from bench.compare.adverse import rate
from bench.compare.system_under_test import SystemUnderTest
from bench.unknown_names import WORKERS
from tests.support.waiting import eventually

PORT = 10_995


@contextmanager
def scraped() -> Iterator[None]:
    ended = threading.Event()

    def scrape() -> None:
        while not ended.wait(1.0):
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/metrics", timeout=10).read()

    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def measure(sut: SystemUnderTest, tasks: int, *, with_metrics: bool) -> dict[str, float]:
    sut.broker.connection.execute("TRUNCATE horsies_tasks, horsies_task_attempts, horsies_worker_states")
    commands = sut.call("commands", processes=2, slots=None)
    if with_metrics:
        commands = [[*command, "--metrics-port", str(PORT), "--metrics-host", "127.0.0.1"] for command in commands]
    with sut.started(commands) as workers:
        eventually(lambda: sut.broker.value(WORKERS) == 1, timeout=60, describe="the worker is up")
        rate(sut, 500)
        with scraped() if with_metrics else nullcontext():
            worker, server = observe.cpu_s(workers.processes()), sut.broker.cpu_s()
            drained = rate(sut, tasks)
            worker, server = observe.cpu_s(workers.processes()) - worker, sut.broker.cpu_s() - server
            trips = sut.call("round_trips", count=200)
        return {
            "tasks drained/s": drained,
            "CPU of the worker per task, µs": worker / tasks * 1e6,
            "CPU of worker and server, µs": (worker + server) / tasks * 1e6,
            "round trip p50, ms": statistics.median(trips) * 1000,
        }


def main() -> None:
    tasks, rounds = support.numbers("BENCH_SEAMS", "20000,5")
    with support.horsies() as sut:
        calls = {
            "nothing hung on": partial(measure, sut, tasks, with_metrics=False),
            "with metrics": partial(measure, sut, tasks, with_metrics=True),
        }
        support.in_turns(calls, rounds, warm_up=1)
