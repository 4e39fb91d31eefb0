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
from tests.support.factories import worker_state
from tests.support.postgres import Database

ROWS = 40_000
LARGE = {"horsies_tasks", "horsies_task_attempts", "horsies_workflows"}

FILL = f"""
INSERT INTO horsies_tasks (id, task_name, queue_name, status, enqueued_at, claimed_at, started_at, completed_at,
                           failed_at, terminal_at, result, error_code, claimed_by_worker_id, worker_pid, priority)
SELECT to_char(n, 'FM000000000000'), 'task_' || n % 20, 'q' || n % 4,
       CASE WHEN n % 50 = 0 THEN 'FAILED' WHEN n % 10 = 0 THEN 'PENDING' WHEN n % 997 = 0 THEN 'RUNNING'
            ELSE 'COMPLETED' END,
       t, CASE WHEN n % 10 = 0 AND n % 50 <> 0 THEN NULL ELSE t END,
       CASE WHEN n % 10 = 0 AND n % 50 <> 0 THEN NULL ELSE t END,
       CASE WHEN n % 10 <> 0 AND n % 997 <> 0 THEN t END, CASE WHEN n % 50 = 0 THEN t END,
       CASE WHEN n % 50 = 0 OR (n % 10 <> 0 AND n % 997 <> 0) THEN t END,
       CASE WHEN n % 50 = 0 OR (n % 10 <> 0 AND n % 997 <> 0) THEN '{{}}' END,
       CASE WHEN n % 50 = 0 THEN 'SMTP_DOWN' END,
       CASE WHEN n % 10 = 0 AND n % 50 <> 0 THEN NULL ELSE 'worker-' || n % 5 END,
       CASE WHEN n % 10 = 0 AND n % 50 <> 0 THEN NULL ELSE 1 END, 1 + n % 3
  FROM (SELECT n, now() - (({ROWS} - n) * interval '50 ms') AS t FROM generate_series(1, {ROWS}) AS n) AS x;
INSERT INTO horsies_task_attempts (task_id, attempt, outcome, started_at, finished_at, error_code, worker_id)
SELECT id, 1, CASE status WHEN 'FAILED' THEN 'FAILED' ELSE 'COMPLETED' END, started_at, terminal_at, error_code,
       claimed_by_worker_id FROM horsies_tasks WHERE terminal_at IS NOT NULL;
INSERT INTO horsies_workflows (id, name, status, started_at, completed_at)
SELECT 'run-' || n, 'fulfil', CASE WHEN n % 200 = 0 THEN 'RUNNING' ELSE 'COMPLETED' END, now(),
       CASE WHEN n % 200 <> 0 THEN now() - n * interval '1 s' END FROM generate_series(1, {ROWS // 4}) AS n;
"""


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
        connection.execute(FILL)  # type: ignore[call-overload]
        connection.execute("ANALYZE")
    for number in range(5):
        worker_state(db, f"worker-{number}", recovery_config='{"running_stale_threshold_ms": 1000}')
    return db


async def test_no_look_scans_the_tasks(filled: Database) -> None:
    source = source_on(filled.url)
    plans = Explaining(source)
    failed, everything = Query.parse("status:failed")[0], Query()
    try:
        await source.session()
        await source.overview(timedelta(minutes=15))
        for text in ("", "status:failed", "status:pending", "queue:q1", "name:task_3", "error:smtp",
                     "status:pending queue:q2", "id:000000000100", "worker:worker-2", "status:completed"):  # fmt: skip
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
