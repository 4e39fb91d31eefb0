"""Beside a worker that does not know the task, and behind 100,000 tasks of an unknown name: as ratios to being alone.

BENCH_NAMES=500,1000,1 (tasks, tasks of an unknown name, rounds) makes it shorter.
"""

import contextlib
import statistics

from bench import support
from bench.compare.adverse import insert, rate
from bench.compare.system_under_test import SystemUnderTest
from tests.support.waiting import eventually

UNKNOWN = (
    "INSERT INTO horsies_tasks (id, task_name) SELECT 'unknown ' || i, 'unknown' FROM generate_series(1, <rows>) AS i"
)
WORKERS = "SELECT count(DISTINCT worker_id) FROM horsies_worker_states WHERE snapshot_at > now() - interval '10 s'"


def measure(sut: SystemUnderTest, tasks: int, *, beside: bool = False, unknown: int = 0) -> tuple[float, float]:
    """Known tasks per second, and the median of single round trips in milliseconds."""
    sut.broker.connection.execute("TRUNCATE horsies_tasks, horsies_task_attempts, horsies_worker_states")
    insert(sut, UNKNOWN, unknown)
    with contextlib.ExitStack() as stack:
        known = sut.call("commands", processes=2, slots=None)
        if beside:
            stack.enter_context(sut.started([[word.replace(":app", ":other") for word in known[0]]]))
        stack.enter_context(sut.started(known))
        eventually(lambda: sut.broker.value(WORKERS) == 1 + beside, timeout=60, describe="the workers are up")
        rate(sut, 500)
        return rate(sut, tasks), statistics.median(sut.call("round_trips", count=100)) * 1000


def main() -> None:
    tasks, unknown, rounds = support.numbers("BENCH_NAMES", "5000,100000,3")
    ratios: dict[str, list[float]] = {}
    with support.horsies() as sut:
        for number in range(1, rounds + 1):
            alone = measure(sut, tasks)
            for title, other in (
                ("beside a worker that does not know them", measure(sut, tasks, beside=True)),
                ("behind tasks of an unknown name", measure(sut, tasks, unknown=unknown)),
            ):
                ratios.setdefault(f"drain {title}", []).append(other[0] / alone[0])
                ratios.setdefault(f"round trip p50 {title}", []).append(other[1] / alone[1])
            print(f"round {number}: alone {alone[0]:,.0f} tasks/s, round trip p50 {alone[1]:.2f} ms", flush=True)
    for title, found in ratios.items():
        print(f"{title}: {statistics.median(found):.2f} of alone ({min(found):.2f} to {max(found):.2f})")
