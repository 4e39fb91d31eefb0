"""Withdrawn tasks: no claim reads them, and operators still see them."""

import json
from collections.abc import AsyncIterator
from typing import Any

import psycopg
import pytest

from horsies import PostgresBroker
from horsies._pg.statements import load
from tests.support import factories, postgres
from tests.support.apps import async_app_on
from tests.support.postgres import Database


@pytest.fixture
async def broker(db: Database) -> AsyncIterator[PostgresBroker]:
    async with async_app_on(db) as app:
        yield app.get_broker()


@pytest.fixture
def withdrawn(db: Database) -> str:
    return factories.task(db, "PENDING", id="paused", withdrawn=True)


async def test_operators_see_it(broker: PostgresBroker, withdrawn: str) -> None:
    assert [task.id for task in (await broker.list_tasks()).tasks] == [withdrawn]
    (queue,) = await broker.get_queues()
    assert (queue.ready, queue.delayed) == (0, 1)


async def test_cancelling_ends_it_and_takes_the_mark_away(broker: PostgresBroker, db: Database, withdrawn: str) -> None:
    await broker.cancel(withdrawn)
    row = factories.read(db, withdrawn)
    assert (row["status"], row["withdrawn"]) == ("CANCELLED", False)


def test_lists_of_live_tasks_do_not_scan_ended_ones() -> None:
    with postgres.database() as large, psycopg.connect(large.url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        for columns, values, count in (
            ("status, completed_at, terminal_at, result", "'COMPLETED', now(), now(), '{}'", 100_000),
            ("withdrawn", "false", 100),
            ("withdrawn", "true", 10),
        ):
            connection.execute(
                f"INSERT INTO horsies_tasks (id, task_name, {columns}) SELECT gen_random_uuid(), 't', {values}"
                f" FROM generate_series(1, {count})"  # type: ignore[arg-type]
            )
        connection.execute("ANALYZE horsies_tasks")
        connection.execute("SET plan_cache_mode = force_custom_plan")
        given = {"statuses": "ARRAY['PENDING']", "has_code": "false", "row_limit": "50", "bound": "2000"}
        for name in ("list_live_tasks", "count_live_tasks"):
            statement = load("horsies._pg", "operate.sql")[name]
            connection.execute(f"PREPARE {name} AS {statement.sql}")  # type: ignore[arg-type]
            literals = ", ".join(given.get(parameter, "NULL") for parameter in statement.params)
            ((plan,),) = connection.execute(
                f"EXPLAIN (ANALYZE, BUFFERS, FORMAT json) EXECUTE {name} ({literals})"  # type: ignore[arg-type]
            ).fetchall()
            assert "Seq Scan" not in json.dumps(plan), name
            assert _buffers(plan) < 500, name


def _buffers(plan: Any) -> int:
    root = plan[0]["Plan"]
    return root["Shared Hit Blocks"] + root["Shared Read Blocks"]
