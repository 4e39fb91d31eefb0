"""Every statement of every .sql file is understood by the migrated schema, and those that look something up do so
by an index, however many finished tasks there are."""

import re
from collections.abc import Iterator

import asyncpg
import pytest

import horsies_schema
from tests.support import postgres, statements
from tests.support.postgres import Database


async def prepared(connection: asyncpg.Connection, schema: str | None) -> dict[str, str]:
    """What is wrong with which statement."""
    wrong: dict[str, str] = {}
    for name, statement in statements.statements(schema):
        try:
            found = await connection.prepare(statement.sql)
        except asyncpg.PostgresError as error:
            wrong[name] = f"{type(error).__name__}: {error}"
            continue
        columns = len(found.get_attributes())
        if len(found.get_parameters()) != len(statement.params):
            wrong[name] = f"{len(found.get_parameters())} parameters, not {len(statement.params)}"
        elif statement.kind == "value" and columns != 1:
            wrong[name] = f"a :value of {columns} columns"
        elif statement.kind in ("one", "many") and not columns:
            wrong[name] = f":{statement.kind} without any column"
    return wrong


async def test_every_statement_can_be_prepared(conn: asyncpg.Connection) -> None:
    assert await prepared(conn, None) == {}


async def test_also_in_a_schema_that_no_search_path_names(empty_db: Database) -> None:
    schema = 'my "jobs"'
    await horsies_schema.upgrade_async(empty_db.url, schema=schema)
    connection = await asyncpg.connect(empty_db.url, server_settings={"search_path": "pg_catalog"})
    try:
        assert await prepared(connection, schema) == {}
        assert len(await prepared(connection, None)) > 20  # the check can fail
    finally:
        await connection.close()


# -- plans ---------------------------------------------------------------------------------------

ROWS = 6_000


@pytest.fixture(scope="module")
def full() -> Iterator[Database]:
    """Thousands of finished tasks, a few hundred waiting, a few in flight; attempts, heartbeats and snapshots."""
    with postgres.database() as db:
        db.execute("ALTER TABLE horsies_tasks DISABLE TRIGGER USER")
        db.execute(f"""
            INSERT INTO horsies_tasks (id, task_name, status, kwargs, result, error_code, completed_at, failed_at,
                                       terminal_at, good_until, unique_key)
            SELECT gen_random_uuid()::text, 't', s, repeat('x', 200), '{{}}', CASE s WHEN 'COMPLETED' THEN NULL
                   WHEN 'EXPIRED' THEN 'TASK_EXPIRED' ELSE 'DOWN' END, CASE s WHEN 'COMPLETED' THEN now() END,
                   CASE WHEN s <> 'COMPLETED' THEN now() END, now() - i * interval '1 second', NULL, 'k' || i
              FROM generate_series(1, {ROWS}) AS i,
                   LATERAL (SELECT (ARRAY['COMPLETED','COMPLETED','COMPLETED','FAILED','EXPIRED'])[1 + i % 5] AS s) AS x
        """)
        db.execute("""
            INSERT INTO horsies_tasks (id, task_name, good_until, unique_key, group_key)
            SELECT gen_random_uuid()::text, 't', now() + (i - 20) * interval '1 minute', 'p' || i,
                   CASE WHEN i % 2 = 0 THEN 'group ' || i % 7 END
              FROM generate_series(1, 300) AS i
        """)
        db.execute("""
            INSERT INTO horsies_tasks (id, task_name, status, claimed_at, claimed_by_worker_id, started_at, worker_pid,
                                       group_key)
            SELECT gen_random_uuid()::text, 't', 'RUNNING', now(), 'w', now(), 1, CASE WHEN i % 2 = 0 THEN 'group 1' END
              FROM generate_series(1, 20) AS i
        """)
        db.execute("""
            INSERT INTO horsies_task_attempts (task_id, attempt, outcome, started_at, finished_at)
            SELECT id, 1, 'COMPLETED', now(), now() FROM horsies_tasks WHERE status = 'COMPLETED'
        """)
        db.execute("""
            INSERT INTO horsies_heartbeats (task_id, sender_id, role, sent_at)
            SELECT id, 'w', 'runner', now() - i * interval '1 second'
              FROM horsies_tasks, generate_series(1, 200) AS i WHERE status = 'RUNNING'
        """)
        db.execute("""
            INSERT INTO horsies_worker_states (worker_id, hostname, pid, processes, worker_started_at, snapshot_at)
            SELECT 'w' || (i % 4), 'h', 1, 1, now(), now() - i * interval '5 seconds' FROM generate_series(1, 6000) AS i
        """)
        for table in ("tasks", "task_attempts", "heartbeats", "worker_states"):
            db.execute(f"VACUUM ANALYZE horsies_{table}")
        yield db


IDS = "ARRAY['00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff']"
MINUTE = "interval '5 minutes'"
LOOKUPS = {
    "tasks.sql:read_ended_batch": (IDS,),
    "tasks.sql:find_conflict_batch": (IDS,),
    "tasks.sql:read_task": ("'x'",),
    "tasks.sql:read_attempts": ("'x'",),
    "control.sql:retry_batch": (IDS, "NULL"),
    "control.sql:requeue_claimed_batch": (IDS,),
    "recover.sql:stale_tasks": (MINUTE, "ARRAY['w']", "100"),
    "recover.sql:requeue_stale_claimed": (MINUTE, "NULL"),
    "recover.sql:fail_stale_running": (MINUTE, "'{}'", "'x'", "NULL"),
    "recover.sql:expired_tasks": ("100",),
}
LARGE = re.compile(r"Seq Scan on horsies_(?:tasks|task_attempts|heartbeats|worker_states)\b.*")


@pytest.mark.parametrize("mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("name", LOOKUPS)
@pytest.mark.breaks("A2", "T7")
async def test_a_lookup_does_not_read_the_whole_table(full: Database, name: str, mode: str) -> None:
    """Generic plans too: that is what a driver's statement cache ends up with."""
    statement = dict(statements.statements())[f"horsies._pg/{name}"]
    values = ", ".join(LOOKUPS[name])
    connection = await asyncpg.connect(full.url)
    try:
        await connection.execute(f"SET plan_cache_mode = {mode}")
        await connection.execute(f"PREPARE looked AS {statement.sql}")
        rows = await connection.fetch(f"EXPLAIN (COSTS OFF) EXECUTE looked ({values})")
    finally:
        await connection.close()
    plan = "\n".join(row[0] for row in rows)
    assert LARGE.findall(plan) == [], plan
    assert "Index" in plan


@pytest.mark.breaks("A2", "T7")
async def test_a_function_does_not_read_the_whole_table(full: Database) -> None:
    """With the plans that a session keeps after a few calls."""
    scans = """SELECT sum(seq_scan) FROM pg_stat_xact_user_tables
        WHERE relname IN ('horsies_tasks', 'horsies_workflow_tasks') AND schemaname = 'public'"""
    connection = await asyncpg.connect(full.url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        for _ in range(8):
            await connection.fetch(f"SELECT * FROM horsies_cancel_tasks({IDS})")
        assert await connection.fetchval(scans) == 0
        await transaction.rollback()
    finally:
        await connection.close()


LIVE = "ARRAY['PENDING', 'CLAIMED', 'RUNNING']"
HELD = "ARRAY['CLAIMED', 'RUNNING']"
RUNNING = "ARRAY['RUNNING']"
NONE = "ARRAY['NONE']"
WORKER = "'w'"
GROUP = "ARRAY['group 1']"
METADATA = """'{"tenant": "acme"}'"""
ENDED = "ARRAY['COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED']"


def filtered(statuses: str, **given: str) -> str:
    """The values of the fragment `task_filter`: NULL where no condition is given."""
    names = dict(statements.statements())["horsies._pg/operate.sql:list_purgeable_tasks"].params[:-1]
    assert given.keys() <= set(names)
    return ", ".join({"statuses": statuses, "has_code": "false", **given}.get(name, "NULL") for name in names)


LISTS = {
    "list_live_tasks": f"{filtered(LIVE)}, NULL, 50",
    "list_live_tasks of ids": f"{filtered(LIVE, ids=IDS)}, NULL, 50",
    "list_live_tasks that run": f"{filtered(RUNNING)}, NULL, 50",
    "list_live_tasks of a worker": f"{filtered(HELD, worker_id=WORKER)}, NULL, 50",
    "list_live_tasks of a group": f"{filtered(LIVE, group_keys=GROUP)}, NULL, 50",
    "count_live_tasks that wait": f"{filtered(LIVE)}, 1000",
    "list_ended_tasks": f"{filtered(ENDED)}, NULL, NULL, 50",
    "list_ended_tasks after": f"{filtered(ENDED)}, now() - interval '5 minutes', 'x', 50",
    "list_ended_tasks by code": f"{filtered(ENDED, error_codes=NONE)}, NULL, NULL, 50",
    "list_ended_tasks by age": f"{filtered(ENDED, older_than=MINUTE)}, NULL, NULL, 50",
    "list_purgeable_tasks": f"{filtered(ENDED)}, 50",
    "purge_batch": f"{filtered(ENDED)}, NULL, 50",
    "purge_batch of ids": f"{filtered(ENDED, ids=IDS)}, NULL, 50",
    "count_live_tasks": f"{filtered(HELD)}, 1000",
    "list_live_tasks_by_metadata": f"{filtered(LIVE, metadata=METADATA)}, NULL, 50",
    "list_live_tasks_by_metadata of ids": f"{filtered(LIVE, metadata=METADATA, ids=IDS)}, NULL, 50",
    "list_ended_tasks_by_metadata": f"{filtered(ENDED, metadata=METADATA, newer_than=MINUTE)}, NULL, NULL, 50",
    "list_purgeable_tasks_by_metadata": f"{filtered(ENDED, metadata=METADATA, newer_than=MINUTE)}, 50",
    "count_ended_tasks_by_metadata": f"{filtered(ENDED, metadata=METADATA, newer_than=MINUTE)}, false, 1000",
    "purge_batch_by_metadata": f"{filtered(ENDED, metadata=METADATA, newer_than=MINUTE)}, NULL, 50",
    "task_states": IDS,
    "taken_keys": IDS,
    "show_task": "'x'",
    "show_payload": "'x', 10",
    "show_heartbeats": "'x', 10",
    "waiting_pairs": "1000",
    "worker_snapshots": "NULL",
    "policies.sql:top_groups": "'default', 200, 1000, 300, 20, 100, 1000",
    "policies.sql:shared_limits": "NULL",
    "doctor.sql:missing_names": "",
    "doctor.sql:waiting_names": "",
}
"""Those without a file are in operate.sql."""


@pytest.mark.parametrize("name", LISTS)
@pytest.mark.breaks("A2", "T7")
async def test_an_operators_list_does_not_read_the_whole_table(full: Database, name: str) -> None:
    """With a plan made for its parameters, as the broker asks for it: most conditions are folded away."""
    word = name.partition(" ")[0]
    statement = dict(statements.statements())["horsies._pg/" + (word if ":" in word else f"operate.sql:{word}")]
    values = f"({LISTS[name]})" if LISTS[name] else ""
    connection = await asyncpg.connect(full.url)
    try:
        await connection.execute("SET plan_cache_mode = force_custom_plan")
        await connection.execute(f"PREPARE listed AS {statement.sql}")
        rows = await connection.fetch(f"EXPLAIN (COSTS OFF) EXECUTE listed {values}")
    finally:
        await connection.close()
    plan = "\n".join(row[0] for row in rows)
    assert LARGE.findall(plan) == [], plan


@pytest.mark.breaks("A2", "T7")
async def test_that_check_can_fail(full: Database) -> None:
    connection = await asyncpg.connect(full.url)
    try:
        plan = await connection.fetch("EXPLAIN SELECT * FROM horsies_tasks WHERE kwargs = 'x'")
    finally:
        await connection.close()
    assert LARGE.search(plan[0][0])
