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
    with sut.started(commands):
        eventually(lambda: sut.broker.value(WORKERS) == 1, timeout=60, describe="the worker is up")
        rate(sut, 500)
        with scraped() if with_metrics else nullcontext():
            drained, trips = rate(sut, tasks), sut.call("round_trips", count=200)
        return {"tasks drained/s": drained, "round trip p50, ms": statistics.median(trips) * 1000}


def main() -> None:
    tasks, rounds = support.numbers("BENCH_SEAMS", "20000,5")
    with support.horsies() as sut:
        calls = {
            "nothing hung on": partial(measure, sut, tasks, with_metrics=False),
            "with metrics": partial(measure, sut, tasks, with_metrics=True),
        }
        support.in_turns(calls, rounds, warm_up=1)
