"""What a claim of grouped tasks costs on a table that was never analyzed."""

import json

import asyncpg
import psycopg

from horsies_worker.database.settings import CLAIM_SETTINGS
from tests.support.postgres import Database

CLAIM = """SELECT id FROM horsies_claim_grouped('{mail}', '{}', '{}', true, '{}', '{}', '{}', '{}', '{}', 100, 20,
    0, 20, 0, '{}', '{}', '{t}', '{}', '{}', NULL, 1, 'w', 'h', '{}', NULL)"""

ONE = "INSERT INTO horsies_tasks (id, task_name, queue_name, group_key) VALUES ('x', 't', 'mail', 'g')"


def fill(db: Database, tasks: int) -> None:
    """So many tasks of one group, and 1,000 younger ones of 100 others, without triggers."""
    with psycopg.connect(db.url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            f"""INSERT INTO horsies_tasks (id, task_name, queue_name, group_key, enqueued_at)
                SELECT lpad(i::text, 36, 'g'), 't', 'mail', CASE WHEN i > {tasks} THEN 'g' || i % 100 ELSE 'large' END,
                       now() - interval '1 day' + i * interval '1 ms'
                  FROM generate_series(1, {tasks} + 1000) AS i"""  # type: ignore[arg-type]
        )


async def claim_buffers(connection: asyncpg.Connection) -> int:
    text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {CLAIM}")
    plan = json.loads(text)[0]["Plan"]
    assert plan["Actual Rows"] == 21  # and the report
    return plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]


async def test_a_group_costs_the_same_however_many_older_tasks_others_have(db: Database) -> None:
    """By equality of the key, the planner took the index by age and read all older tasks for each group:
    116,000 buffers instead of 800."""
    db.execute("ALTER TABLE horsies_tasks SET (autovacuum_enabled = false)")
    for is_planned_before in (True, False):
        costs = []
        for tasks in (10_000, 40_000):
            db.execute("TRUNCATE horsies_tasks CASCADE")
            connection = await asyncpg.connect(db.url, server_settings=dict(CLAIM_SETTINGS))
            try:
                if is_planned_before:
                    db.execute(ONE)
                    await connection.fetch(CLAIM)
                fill(db, tasks)
                await connection.fetch(CLAIM)
                costs.append(await claim_buffers(connection))
            finally:
                await connection.close()
        assert costs[1] < 1.3 * costs[0]
        assert costs[1] < 4_000


async def test_a_claim_from_ten_thousand_groups_costs_what_it_takes(db: Database) -> None:
    """The figures are those of a million tasks; a walk through all groups would read 80,000 buffers."""
    with psycopg.connect(db.url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(
            """INSERT INTO horsies_tasks (id, task_name, queue_name, group_key, enqueued_at)
               SELECT gen_random_uuid(), 't', 'mail', 'g' || i % 10000, now() - interval '1 day' + i * interval '1 ms'
                 FROM generate_series(1, 100000) AS i"""
        )
        connection.execute("VACUUM ANALYZE horsies_tasks")
    rate = {"limit": 10, "per_seconds": 3600, "burst": 1}
    for policy in ({}, {"max_concurrency": 2}, {"max_concurrency": 2, "rate": rate}):
        db.execute(
            "INSERT INTO horsies_queue_state (queue_name, declared) VALUES ('mail', %s)"
            " ON CONFLICT (queue_name) DO UPDATE SET declared = excluded.declared", json.dumps(policy),
        )  # fmt: skip
        connection = await asyncpg.connect(db.url, server_settings=dict(CLAIM_SETTINGS))
        try:
            for limit, most in ((1, 150), (64, 64 * 110)):
                claim = CLAIM.replace("100, 20,\n    0, 20,", f"100, {limit},\n    0, {limit},")
                await connection.fetch(claim)
                text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {claim}")
                plan = json.loads(text)[0]["Plan"]
                assert plan["Actual Rows"] == limit + 1
                assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= most
        finally:
            await connection.close()


async def test_a_claim_looks_at_a_hundred_groups_at_most(db: Database) -> None:
    """Also when every group is full: the next claim goes on behind them."""
    keys = "FROM generate_series(1, 5000) AS i"
    with psycopg.connect(db.url, autocommit=True) as connection:
        for statement in (
            "SET session_replication_role = replica",
            "INSERT INTO horsies_queue_state (queue_name, declared)"
            """ VALUES ('mail', '{"rate": {"limit": 1, "per_seconds": 3600, "burst": 1}}')""",
            f"INSERT INTO horsies_rate_limits SELECT 'mail', 'g' || i, now() + interval '1 h' {keys}",
            f"INSERT INTO horsies_tasks (id, task_name, queue_name, group_key)"
            f" SELECT gen_random_uuid(), 't', 'mail', 'g' || i {keys}",
            "VACUUM ANALYZE horsies_tasks, horsies_rate_limits",
        ):
            connection.execute(statement)  # type: ignore[arg-type]
    connection = await asyncpg.connect(db.url, server_settings=dict(CLAIM_SETTINGS))
    try:
        await connection.fetch(CLAIM)
        text = await connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {CLAIM}")
        plan = json.loads(text)[0]["Plan"]
        assert plan["Actual Rows"] == 1
        assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] <= 100 * 40
    finally:
        await connection.close()
