"""No screen reads the table of tasks from end to end: every statement of every look, planned on a filled table."""

import json
import re
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from horsies_tui.data.filters import Query
from horsies_tui.data.postgres import PostgresSource
from horsies_tui.data.windows import WINDOWS
from tests.support.dashboards import source_on
from tests.support.large_tables import fill_for_dashboard
from tests.support.postgres import Database

ROWS = 40_000
LARGE = {"horsies_tasks", "horsies_task_attempts", "horsies_workflows"}


class Explaining:
    """Stands in front of a connection, runs every statement, and keeps its plan."""

    def __init__(self, source: PostgresSource) -> None:
        self.plans: dict[str, list[Any]] = {}
        self._source = source
        self._read = source._read
        source._read = self.read  # type: ignore[method-assign]

    async def read(self, action: Any) -> Any:
        async def explained(fetch: Any) -> Any:
            async def run(name: str, *values: Any) -> Any:
                sql = self._source._statements[name].sql
                self._source._statements = {
                    **self._source._statements,
                    "explain": type(self._source._statements[name])(
                        "explain", "many", f"EXPLAIN (FORMAT JSON) {sql}", (), ()
                    ),
                }
                (row,) = await fetch("explain", *values)
                self.plans.setdefault(name, []).append(json.loads(row["QUERY PLAN"])[0]["Plan"])
                return await fetch(name, *values)

            return await action(run)

        return await self._read(explained)


def scans(plan: dict[str, Any]) -> list[str]:
    """Tables that a plan reads from end to end."""
    found = [plan["Relation Name"]] if plan["Node Type"] == "Seq Scan" else []
    for part in plan.get("Plans", []):
        found += scans(part)
    return found


@pytest.fixture
def filled(db: Database) -> Database:
    with psycopg.connect(db.url, autocommit=True) as connection:
        fill_for_dashboard(connection, tasks=ROWS, running=40, workers=5)
    return db


async def test_no_look_scans_the_tasks(filled: Database) -> None:
    source = source_on(filled.url)
    plans = Explaining(source)
    failed, everything = Query.parse("status:failed")[0], Query()
    try:
        await source.session()
        await source.overview(timedelta(minutes=15))
        for text in ("", "status:failed", "status:pending", "queue:queue_1", "name:task_3", "error:smtp",
                     "status:pending queue:queue_2", "id:000000000100", "worker:worker-2",
                     "status:completed"):  # fmt: skip
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
        await source.workers()
        await source.worker("worker-1", timedelta(hours=1))
        await source.stale()
        await source.workflow("none")
        await source.schedules()
    finally:
        await source.close()
    assert len(plans.plans) > 20
    guilty = {
        name: tables
        for name, found in plans.plans.items()
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
