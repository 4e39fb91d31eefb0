"""No statement of the dashboard scans the whole table of tasks; each is planned on a filled table."""

import re
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from horsies import PostgresConfig
from horsies_tui.data.filters import Query
from horsies_tui.data.windows import WINDOWS
from tests.support.explaining import ExplainingSource
from tests.support.large_tables import fill_for_dashboard
from tests.support.postgres import Database

ROWS = 40_000
LARGE = {"horsies_tasks", "horsies_task_attempts", "horsies_workflows"}


def scans(plan: dict[str, Any]) -> list[str]:
    """The tables that a plan scans sequentially."""
    found = [plan["Relation Name"]] if plan["Node Type"] == "Seq Scan" else []
    for part in plan.get("Plans", []):
        found += scans(part)
    return found


@pytest.fixture
def filled(db: Database) -> Database:
    with psycopg.connect(db.url, autocommit=True) as connection:
        fill_for_dashboard(connection, tasks=ROWS, running=40, workers=5)
    return db


async def test_no_read_scans_the_table_of_tasks(filled: Database) -> None:
    source = ExplainingSource(PostgresConfig(filled.url, pool_max_size=1))
    failed, everything = Query.parse("status:failed")[0], Query()
    try:
        await source.session()
        await source.overview(timedelta(minutes=15))
        for text in ("", "status:failed", "status:pending", "queue:queue_1", "name:task_3", "error:smtp",
                     "status:pending queue:queue_2", "id:000000000100", "worker:worker-2",
                     "status:completed", "meta:tenant=acme", "meta:tenant=acme status:pending",
                     "group:acme", "queue:queue_1 group:acme status:pending"):  # fmt: skip
            page = await source.tasks(Query.parse(text)[0], since=None, after=None, limit=50)
            if page.next is not None:
                await source.tasks(Query.parse(text)[0], since=None, after=page.next, limit=50)
            for since in (timedelta(minutes=5), None):
                await source.breakdown(Query.parse(text)[0], since=since)
        for window in WINDOWS:
            for query in (everything, failed):
                await source.tasks(query, since=window.since, after=None, limit=50)
            await source.overview(window.span)
            await source.workflows(everything, since=window.since, after=None, limit=50)
        await source.task("000000000100")
        await source.queue("queue_1")
        await source.workers()
        await source.worker("worker-1", timedelta(hours=1))
        await source.stale()
        await source.workflow("none")
        await source.schedules()
    finally:
        await source.close()
    assert len(source.plans) > 20
    guilty = {
        name: tables
        for name, found in source.plans.items()
        if (tables := {table for plan in found for table in scans(plan)} & LARGE)
    }
    assert not guilty, guilty


def test_the_dashboards_statements_write_nothing() -> None:
    from tests.support.statements import statements

    ours = {name: statement for name, statement in statements() if name.startswith("horsies_tui")}
    assert len(ours) > 10
    for name, statement in ours.items():
        writes = r"INSERT\s+INTO|UPDATE\s+horsies|DELETE\s+FROM|MERGE\s+INTO|FOR\s+(UPDATE|SHARE)|pg_notify"
        assert not re.search(writes, statement.sql), name
