"""Lists of tasks that did not succeed read as much as they show, however many successes lie between.

Pages are counted, not times, and with every statistics that the planner may have: none, and those of another time.
"""

from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from horsies import PostgresConfig
from horsies.operate import reading
from horsies.operate.filters import TaskFilter
from horsies.status import TaskStatus
from horsies_tui.data.filters import Query
from tests.support.explaining import ExplainingSource
from tests.support.postgres import Database

FEW, MANY = 3_000, 30_000
"""Successes that ended after the failures: 500 and 5,000 pages."""
FAILED, EXPIRED = 4_000, 4_000
SHOWN = 50
MOST_PAGES = 700
"""The most pages that one statement reads: rows, and the way to them in the indexes."""

OTHERS = {"ended_counts", "ended_ranges", "failed_ranges", "sent_ranges", "ended_now", "failed_now", "sent_now"}

Read = Callable[[ExplainingSource], Awaitable[Any]]


def listed(text: str) -> Read:
    return lambda source: source.tasks(Query.parse(text)[0], since=None, after=None, limit=SHOWN)


def counted(text: str) -> Read:
    return lambda source: source.breakdown(Query.parse(text)[0], since=None)


def asked(**conditions: Any) -> Read:
    """The list of `horsies tasks list`, its second page, and a count up to a bound."""

    async def read(source: ExplainingSource) -> Any:
        found = TaskFilter(**conditions)
        page = await source.read(lambda fetch: reading.list_tasks(fetch, found, SHOWN))
        assert len(page.tasks) in (0, 5, SHOWN)
        if page.next is not None:
            await source.read(lambda fetch: reading.list_tasks(fetch, found, SHOWN, page.next))
        await source.read(lambda fetch: reading.count_tasks(fetch, found, 100))
        return page

    return read


READS: dict[str, Read] = {
    "list failed": asked(statuses=[TaskStatus.FAILED]),
    "list failed and expired": asked(statuses=[TaskStatus.FAILED, TaskStatus.EXPIRED]),
    "list cancelled, of which there is none": asked(statuses=[TaskStatus.CANCELLED]),
    "list a frequent code": asked(error_codes=["DOWN"]),
    "list a rare code": asked(error_codes=["RARE"]),
    "list two codes": asked(error_codes=["DOWN", "RARE"]),
    "list failed of a queue": asked(statuses=[TaskStatus.FAILED], queues=["default"]),
    "dashboard, failed": listed("status:failed"),
    "dashboard, part of a code": listed("error:dow"),
    "dashboard, cancelled": listed("status:cancelled"),
    "counts beside all": counted(""),
    "counts beside failed": counted("status:failed"),
    "overview of a day": lambda source: source.overview(timedelta(hours=24)),
}


def insert(db: Database, status: str, count: int, age: str, code: str | None = None) -> None:
    """Ended one second apart, the newest at this age; without triggers."""
    with psycopg.connect(db.url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            """INSERT INTO horsies_tasks (id, task_name, status, kwargs, result, error_code, enqueued_at, started_at,
                                          claimed_at, worker_pid, completed_at, failed_at, terminal_at)
               SELECT gen_random_uuid()::text, 't', s, repeat('x', 900), '{}', %s, t, t, t, 1,
                      CASE WHEN s = 'COMPLETED' THEN t END, CASE WHEN s <> 'COMPLETED' THEN t END, t
                 FROM generate_series(1, %s) AS i,
                      LATERAL (SELECT %s::text AS s, now() - %s::interval - i * interval '1 s' AS t) AS x""",
            (code, count, status, age),
        )


def fill(db: Database, statistics: str) -> None:
    """Failures of hours ago, and a few successes since; the planner knows of what was there when it looked."""
    db.execute("ALTER TABLE horsies_tasks SET (autovacuum_enabled = false)")
    if statistics == "of successes":
        insert(db, "COMPLETED", FEW, "20 hours")
        db.execute("ANALYZE horsies_tasks")
    insert(db, "FAILED", FAILED, "12 hours", "DOWN")
    insert(db, "EXPIRED", EXPIRED, "13 hours", "TASK_EXPIRED")
    insert(db, "FAILED", 5, "14 hours", "RARE")
    if statistics == "of failures":
        db.execute("ANALYZE horsies_tasks")
    insert(db, "COMPLETED", FEW, "1 hour")
    if statistics == "of all":
        db.execute("ANALYZE horsies_tasks")


def pages(plans: list[Any]) -> int:
    return max(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] for plan in plans)


async def read_pages(db: Database, read: Read) -> dict[str, int]:
    """The most pages that each statement about failures reads. Those about all ends have bounds of their own."""
    source = ExplainingSource(PostgresConfig(db.url, pool_max_size=1), analyze=True)
    try:
        await read(source)
        return {name: pages(plans) for name, plans in source.plans.items() if name not in OTHERS}
    finally:
        await source.close()


@pytest.mark.parametrize("statistics", ["none", "of successes", "of failures", "of all"])
@pytest.mark.breaks("A2", "T7")
async def test_successes_after_failures_cost_lists_of_failures_nothing(db: Database, statistics: str) -> None:
    fill(db, statistics)
    before = {name: await read_pages(db, read) for name, read in READS.items()}
    insert(db, "COMPLETED", MANY, "1 minute")
    guilty = [
        f"{name}: {statement}: {before[name].get(statement)} -> {found} pages"
        for name, read in READS.items()
        for statement, found in (await read_pages(db, read)).items()
        if found > MOST_PAGES
    ]
    assert not guilty, "\n".join(guilty)
