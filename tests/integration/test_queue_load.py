"""The view `horsies_queue_load`: right, cheap whatever has ended, and readable without any right on the tables."""

from typing import Any

import psycopg
import pytest

import horsies_schema
from tests.support import factories
from tests.support.apps import async_app_on
from tests.support.factories import ago, ahead
from tests.support.manifests import KUBERNETES, rendered
from tests.support.postgres import Database
from tests.support.roles import account, accounts, may

VIEW = "SELECT * FROM horsies_queue_load"
# What KEDA would ask: see deploy/kubernetes.
ONE_QUEUE = "SELECT coalesce(sum(load), 0) FROM horsies_queue_load WHERE queue_name = 'queue_1'"
BOUND = 10_000
FILL = """
INSERT INTO horsies_tasks (id, task_name, queue_name, priority, status, enqueued_at, completed_at, terminal_at, result,
                           claimed_at, started_at, claimed_by_worker_id, worker_pid, group_key)
SELECT status || '-' || grouped || '-' || n, 'load', 'queue_' || n %% 4, 1 + n %% 2, status,
       now() - n * interval '1 ms', ended, ended, CASE WHEN ended IS NOT NULL THEN '{"ok": 1}' END, claimed, claimed,
       CASE WHEN claimed IS NOT NULL THEN 'w' END, CASE WHEN claimed IS NOT NULL THEN 1 END,
       CASE WHEN grouped THEN 'g' || n %% 10 END
  FROM generate_series(1, %(rows)s) AS n, (VALUES (%(status)s, %(grouped)s)) AS v (status, grouped),
       LATERAL (SELECT CASE WHEN status = 'COMPLETED' THEN now() END AS ended,
                       CASE WHEN status <> 'PENDING' THEN now() END AS claimed) AS x
"""


def load(db: Database) -> dict[str, dict[str, Any]]:
    with psycopg.connect(db.url, row_factory=psycopg.rows.dict_row) as connection:
        return {row.pop("queue_name"): row for row in connection.execute(VIEW).fetchall()}


def test_an_empty_database_has_no_queue_and_the_question_of_an_autoscaler_has_an_answer(db: Database) -> None:
    assert load(db) == {}
    assert db.value(ONE_QUEUE) == 0


async def test_it_counts_what_the_queues_command_counts(db: Database) -> None:
    factories.task(db, queue_name="a", priority=1, enqueued_at=ago(minutes=3))
    factories.task(db, queue_name="a", priority=50, enqueued_at=ago(minutes=1))
    factories.task(db, queue_name="a", group_key="tenant", enqueued_at=ago(minutes=9))
    factories.task(db, queue_name="a", enqueued_at=ahead(hours=1))  # delayed: no worker could run it now
    factories.task(db, queue_name="a", withdrawn=True)  # of a paused workflow
    for status in ("CLAIMED", "RUNNING", "RUNNING", "COMPLETED", "FAILED"):
        factories.task(db, status, queue_name="a")
    factories.task(db, "RUNNING", queue_name="only running")
    factories.task(db, "COMPLETED", queue_name="only ended")
    factories.task(db, queue_name="stopped")
    factories.insert(db, "horsies_queue_state", queue_name="stopped", paused_at=ago(minutes=1))
    factories.insert(db, "horsies_queue_state", queue_name="empty")
    found = load(db)
    ages = {name: row.pop("oldest_ready_seconds") for name, row in found.items()}
    assert found == {
        "a": {"ready": 3, "claimed": 1, "running": 2, "load": 6, "paused": False, "capped": False},
        "only running": {"ready": 0, "claimed": 0, "running": 1, "load": 1, "paused": False, "capped": False},
        # more workers would not help a paused queue
        "stopped": {"ready": 1, "claimed": 0, "running": 0, "load": 0, "paused": True, "capped": False},
        "empty": {"ready": 0, "claimed": 0, "running": 0, "load": 0, "paused": False, "capped": False},
    }
    assert ages["a"] >= 9 * 60
    assert (ages["only running"], ages["empty"]) == (0, 0)
    async with async_app_on(db) as app:
        listed = {one.name: one for one in await app.get_broker().get_queues()}
    assert {name: (one.ready, one.claimed, one.running) for name, one in listed.items()} == {
        name: (row["ready"], row["claimed"], row["running"]) for name, row in found.items()
    }


def test_the_query_of_the_manifest_counts_the_default_queue(db: Database) -> None:
    (scaled,) = [one for one in rendered(KUBERNETES / "overlays/example") if one["kind"] == "ScaledObject"]
    (trigger,) = scaled["spec"]["triggers"]
    assert db.value(trigger["metadata"]["query"]) == 0
    factories.task(db)
    factories.task(db, "RUNNING")
    factories.task(db, queue_name="other")
    assert db.value(trigger["metadata"]["query"]) == 2


# -- cost ----------------------------------------------------------------------------------------


def explained(db: Database, query: str) -> tuple[int, list[dict[str, Any]]]:
    """The pages that a query touches, and the nodes of its plan."""
    top = db.value(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}")[0]["Plan"]
    return top["Shared Hit Blocks"] + top["Shared Read Blocks"], _nodes(top)


def _nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for part in plan.get("Plans", []) for node in _nodes(part))]


def whole_tables(nodes: list[dict[str, Any]]) -> set[str]:
    """Scans that read all waiting tasks, or all tasks, before they return a row."""
    return {
        node["Node Type"]
        for node in nodes
        if node.get("Relation Name") == "horsies_tasks"
        and node["Node Type"] in ("Seq Scan", "Bitmap Heap Scan")
        # of tasks in flight there are as many as workers have places
        and "'RUNNING'" not in str(node)
    }


def fill(db: Database, status: str, rows: int, *, grouped: bool = False) -> None:
    with psycopg.connect(db.url, autocommit=True) as connection:
        connection.execute(FILL, {"status": status, "rows": rows, "grouped": grouped})


@pytest.mark.breaks("A2")  # ended tasks without attempts
@pytest.mark.parametrize("kept_by", ["nothing", "ANALYZE", "VACUUM ANALYZE"])
def test_ended_tasks_cost_nothing(db: Database, kept_by: str) -> None:
    """Whatever the planner knows of the table."""
    db.execute("ALTER TABLE horsies_tasks SET (autovacuum_enabled = false)")
    for grouped in (False, True):
        fill(db, "PENDING", 200, grouped=grouped)
    fill(db, "RUNNING", 20)
    before = {query: explained(db, query)[0] for query in (VIEW, ONE_QUEUE)}
    fill(db, "COMPLETED", 30_000)
    if kept_by != "nothing":
        db.execute(f"{kept_by} horsies_tasks")
    pages = db.value("SELECT pg_relation_size('horsies_tasks') / 8192")
    for query, cost in before.items():
        now, nodes = explained(db, query)
        assert whole_tables(nodes) == set()
        assert now <= cost + 200 < pages / 2, (query, cost, now, pages)


@pytest.mark.parametrize("kept_by", ["nothing", "ANALYZE", "VACUUM ANALYZE"])
def test_a_long_queue_is_counted_up_to_the_bound_only(db: Database, kept_by: str) -> None:
    db.execute("ALTER TABLE horsies_tasks SET (autovacuum_enabled = false)")
    fill(db, "PENDING", 60_000)
    if kept_by != "nothing":
        db.execute(f"{kept_by} horsies_tasks")
    _, nodes = explained(db, VIEW)
    assert whole_tables(nodes) == set()
    rows = max(node["Actual Rows"] * node["Actual Loops"] for node in nodes if "Scan" in node["Node Type"])
    assert rows <= 4 * BOUND * 1.1  # four pairs of queue and priority
    found = load(db)
    assert {(row["ready"], row["capped"]) for row in found.values()} == {(BOUND, True)}


def test_only_the_queue_that_is_asked_for_is_counted(db: Database) -> None:
    fill(db, "PENDING", 20_000)
    db.execute("VACUUM ANALYZE horsies_tasks")
    all_queues, _ = explained(db, VIEW)
    one, _ = explained(db, ONE_QUEUE)
    assert one < all_queues / 2


def test_many_pairs_share_the_bound(db: Database) -> None:
    """50 queues of two priorities each: 2,000 for each pair instead of 10,000."""
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, queue_name, priority)"
        " SELECT n::text, 't', 'q' || n % 50, CASE WHEN n % 50 = 0 THEN 1 ELSE 1 + n % 2 END"
        " FROM generate_series(1, 5000) AS n"
    )
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, queue_name, priority)"
        " SELECT 'deep-' || n, 't', 'q0', 100 - n % 51 FROM generate_series(1, 5000) AS n"
    )
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, queue_name, priority)"
        " SELECT 'one-' || n, 't', 'q1', 1 FROM generate_series(1, 3000) AS n"
    )
    pairs = db.value("SELECT count(DISTINCT (queue_name, priority)) FROM horsies_tasks")
    share = 200_000 // pairs
    found = load(db)
    assert 1_000 < share < 2_000
    assert found["q1"]["capped"]
    assert found["q1"]["ready"] == share + 100
    assert (found["q0"]["ready"], found["q0"]["capped"]) == (5_100, False)


# -- rights --------------------------------------------------------------------------------------


def test_who_may_read_it(db: Database) -> None:
    factories.task(db, queue_name="a")
    with accounts(db) as roles:
        readers = {name for name, who in roles.items() if may(who, VIEW)}
        assert readers == {"viewer", "operator", "worker"}
        # an autoscaler's account: the view, and nothing else
        autoscaler = roles["stranger"]
        db.execute(f'GRANT SELECT ON horsies_queue_load TO "{account(autoscaler)}"')
        assert autoscaler.value("SELECT load FROM horsies_queue_load WHERE queue_name = 'a'") == 1
        assert not may(autoscaler, "SELECT id FROM horsies_tasks")
        for change in ("DELETE FROM horsies_queue_load", "UPDATE horsies_queue_load SET ready = 0"):
            with pytest.raises((psycopg.errors.InsufficientPrivilege, psycopg.errors.ObjectNotInPrerequisiteState)):
                autoscaler.execute(change)


def test_grants_take_it_from_public(db: Database) -> None:
    db.execute("GRANT ALL ON horsies_queue_load TO PUBLIC")
    with accounts(db) as roles:
        assert not may(roles["stranger"], VIEW)
        assert not may(roles["producer"], VIEW)


def test_it_belongs_to_the_owner_of_the_tables_and_lies_beside_them(empty_db: Database) -> None:
    name = f"owner_{empty_db.name[-8:]}"
    empty_db.execute(f"CREATE ROLE {name} NOLOGIN")
    try:
        horsies_schema.upgrade(empty_db.url, "0028", schema="queue")
        for (table,) in empty_db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'queue'"):
            empty_db.execute(f'ALTER TABLE queue."{table}" OWNER TO {name}')
        empty_db.execute("CREATE TABLE horsies_tasks (mine int)")  # an application's table of the same name
        horsies_schema.upgrade(empty_db.url, schema="queue")
        assert empty_db.execute("SELECT schemaname, viewowner FROM pg_views WHERE viewname = 'horsies_queue_load'") == [
            ("queue", name)
        ]
        empty_db.execute(f"GRANT USAGE ON SCHEMA queue TO {name}")
        empty_db.execute("INSERT INTO queue.horsies_tasks (id, task_name, queue_name) VALUES ('a', 't', 'q')")
        assert empty_db.execute("SELECT queue_name, ready FROM queue.horsies_queue_load") == [("q", 1)]
    finally:
        empty_db.execute(f"DROP OWNED BY {name} CASCADE")
        empty_db.execute(f"DROP ROLE {name}")
