"""The dashboard on a million tasks and a hundred workers: each screen's queries (p95 at most 50 ms), and memory (200 MB).

The maintenance screen may take 500 ms: the doctor runs some twenty statements, and only when that screen is opened.
BENCH_TASKS=10000 makes it shorter.
"""

import asyncio
import resource
import statistics
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

from bench import support
from horsies import PostgresConfig
from horsies_tui.app import Dashboard
from horsies_tui.data.filters import Query
from horsies_tui.data.postgres import PostgresSource
from tests.support.large_tables import fill_for_dashboard

ROUNDS, BAR_MS, DOCTOR_BAR_MS, MEMORY_MB = 40, 50.0, 500.0, 200.0
HOUR = timedelta(hours=1)
FILTERS = ("", "status:failed", "queue:queue_3", "name:no_such_task", "status:pending", "error:smtp")


def queries(source: PostgresSource, task_id: str) -> dict[str, Callable[[], Awaitable[Any]]]:
    found: dict[str, Callable[[], Awaitable[Any]]] = {
        "overview 5 min": lambda: source.overview(HOUR / 12),
        "overview 24 h": lambda: source.overview(24 * HOUR),
        "task": lambda: source.task(task_id),
        "workers": source.workers,
        "worker 24 h": lambda: source.worker("worker-7", 24 * HOUR),
        "stale": source.stale,
        "workflows": lambda: source.workflows(Query(), since=None, after=None, limit=100),
        "workflow": lambda: source.workflow("run-20"),
        "schedules": source.schedules,
        "maintenance": source.maintenance,
    }
    for text in FILTERS:
        for since in (None, HOUR):
            name, query = f"{text} {'1 h' if since else ''}", Query.parse(text)[0]
            found[f"tasks {name}"] = lambda q=query, s=since: source.tasks(q, since=s, after=None, limit=100)
            found[f"numbers {name}"] = lambda q=query, s=since: source.breakdown(q, since=s)
    return found


async def measure(source: PostgresSource, task_id: str) -> None:
    print(f"{'queries of':32} {'p50 ms':>8} {'p95 ms':>8}")
    for name, ask in queries(source, task_id).items():
        spent: list[float] = []
        for _ in range(ROUNDS):
            began = time.perf_counter()
            await ask()
            spent.append((time.perf_counter() - began) * 1000)
        p95 = statistics.quantiles(spent, n=20)[18]
        verdict = "" if p95 <= (DOCTOR_BAR_MS if name == "maintenance" else BAR_MS) else "   above the limit"
        print(f"{name:32} {statistics.median(spent):8.1f} {p95:8.1f}{verdict}", flush=True)
    async with Dashboard(source).run_test(size=(160, 50)) as pilot:
        for key in "1234567" * 2:
            await pilot.press(key)
            await asyncio.sleep(1.0)
            await pilot.press("down", "down")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"memory after every screen, twice: {peak:.0f} MB (at most {MEMORY_MB:.0f})")


def main() -> None:
    (tasks,) = support.numbers("BENCH_TASKS", "1000000")
    with support.horsies(fsync="off") as sut:
        fill_for_dashboard(sut.broker.connection, tasks=tasks)
        task_id = sut.broker.value("SELECT id FROM horsies_tasks WHERE status = 'FAILED' LIMIT 1")
        print(f"{tasks:,} tasks, 100 workers\n", flush=True)
        config = PostgresConfig(sut.url, pool_max_size=1, application_name="horsies tui")
        asyncio.run(measure(PostgresSource(config), task_id))
