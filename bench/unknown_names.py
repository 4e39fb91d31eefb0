"""Beside a worker that does not know the task, and behind 100,000 tasks of an unknown name: as ratios to being alone.

BENCH_NAMES=500,1000,1 (tasks, tasks of an unknown name, rounds) makes it shorter.
"""

import contextlib
import statistics
from functools import partial

from bench import support
from bench.compare.adverse import insert, rate
from bench.compare.system_under_test import SystemUnderTest
from tests.support.waiting import eventually

UNKNOWN = (
    "INSERT INTO horsies_tasks (id, task_name) SELECT 'unknown ' || i, 'unknown' FROM generate_series(1, <rows>) AS i"
)
WORKERS = "SELECT count(DISTINCT worker_id) FROM horsies_worker_states WHERE snapshot_at > now() - interval '10 s'"


def measure(sut: SystemUnderTest, tasks: int, *, beside: bool = False, unknown: int = 0) -> dict[str, float]:
    sut.broker.connection.execute("TRUNCATE horsies_tasks, horsies_task_attempts, horsies_worker_states")
    insert(sut, UNKNOWN, unknown)
    with contextlib.ExitStack() as stack:
        known = sut.call("commands", processes=2, slots=None)
        if beside:
            stack.enter_context(sut.started([[word.replace(":app", ":other") for word in known[0]]]))
        stack.enter_context(sut.started(known))
        eventually(lambda: sut.broker.value(WORKERS) == 1 + beside, timeout=60, describe="the workers are up")
        rate(sut, 500)
        drained, trips = rate(sut, tasks), sut.call("round_trips", count=100)
        return {"known tasks drained/s": drained, "round trip p50, ms": statistics.median(trips) * 1000}


def main() -> None:
    tasks, unknown, rounds = support.numbers("BENCH_NAMES", "5000,100000,3")
    with support.horsies() as sut:
        variants = {
            "alone": {},
            "beside a worker of other names": {"beside": True},
            "behind tasks of other names": {"unknown": unknown},
        }
        calls = {name: partial(measure, sut, tasks, **options) for name, options in variants.items()}
        support.in_turns(calls, rounds)
