"""The figures of a whole installation, as `horsies exporter` reads them: right, bounded, and with a viewer's rights."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

import horsies_schema
from horsies import SchemaError, TaskStatus, WorkflowStatus
from horsies._pg.schema_guard import HEAD_REVISION
from horsies.operate import cluster
from horsies.operate.cluster import ClusterFigures, cluster_figures, is_behind
from horsies.operate.session import bounded, statements
from horsies.operate.stale import StaleKind
from horsies.operate.views import QueueStatus, WorkerLiveness
from horsies_schema import embedded
from tests.support import factories, places
from tests.support.apps import async_app_on
from tests.support.factories import ago, ahead
from tests.support.findings import RECOVERY
from tests.support.large_tables import fill_for_dashboard
from tests.support.operator import Operator
from tests.support.postgres import Database
from tests.support.roles import accounts

LARGE = {"horsies_tasks", "horsies_task_attempts", "horsies_workflows", "horsies_heartbeats"}
OLD = {"claimed_at": ago(hours=1), "enqueued_at": ago(hours=1), "claimed_by_worker_id": "worker-1"}


async def read(where: Database | str, bound: int = 10_000, **config: Any) -> ClusterFigures:
    async with async_app_on(where, **config) as app:
        return await app.get_broker().get_figures(bound)


def queue(figures: ClusterFigures, name: str = "default") -> QueueStatus:
    (found,) = [one for one in figures.queues if one.name == name]
    return found


def schedule(db: Database, name: str, **columns: Any) -> None:
    row = {"schedule_name": name, "next_run_at": ahead(hours=1), "config_hash": "x", **columns}
    factories.insert(db, "horsies_schedule_state", **row)


async def test_an_empty_database_has_figures_of_nothing(db: Database) -> None:
    figures = await read(db)
    assert (figures.queues, figures.workers, figures.revision) == ((), (), HEAD_REVISION)
    assert figures.stale == dict.fromkeys(StaleKind, 0)
    assert figures.workflows == {
        WorkflowStatus.PENDING: 0, WorkflowStatus.RUNNING: 0, WorkflowStatus.PAUSED: 0,
    }  # fmt: skip
    assert figures.ended.tasks == {status: 0 for status in TaskStatus if status.is_terminal}
    assert (figures.schedules.known, figures.schedules.has_scheduler) == (0, False)


async def test_queues_are_those_of_the_command(db: Database, operator: Operator) -> None:
    factories.worker_state(db, recovery_config=RECOVERY, queues=["default", "mail"])
    for priority in (1, 2, 3):
        factories.task(db, priority=priority, enqueued_at=ago(minutes=priority))
    factories.task(db, enqueued_at=ahead(hours=1), queue_name="mail")
    factories.task(db, "CLAIMED", queue_name="mail")
    factories.task(db, "RUNNING", queue_name="mail")
    db.execute("INSERT INTO horsies_queue_state (queue_name, paused_at) VALUES ('bills', now())")
    figures = await read(db)
    assert (queue(figures).ready, queue(figures).delayed, queue(figures).is_bounded) == (3, 0, False)
    assert queue(figures).oldest_ready is not None
    assert queue(figures).oldest_ready >= timedelta(minutes=3)
    mail = queue(figures, "mail")
    assert (mail.ready, mail.delayed, mail.claimed, mail.running, mail.oldest_ready) == (0, 1, 1, 1, None)
    assert queue(figures, "bills").paused_at is not None
    listed = await asyncio.to_thread(operator.json, "queues")
    assert [(one["name"], one["ready"], one["served_by"]) for one in listed["queues"]] == [
        (one.name, one.ready, one.served_by) for one in figures.queues
    ]


@pytest.mark.breaks("T8")
async def test_stale_tasks_and_dead_workers(db: Database, operator: Operator) -> None:
    factories.worker_state(db, "worker-1", snapshot_at=ago(minutes=5))
    factories.worker_state(db, "worker-2", recovery_config=RECOVERY)
    factories.worker_state(db, "worker-3", snapshot_at=ago(hours=3))  # long dead, and holds nothing
    factories.task(db, "CLAIMED", **OLD)
    for _ in range(2):
        factories.task(db, "RUNNING", **OLD, started_at=ago(hours=1))
    factories.task(db, "RUNNING", claimed_by_worker_id="worker-2")
    figures = await read(db)
    assert figures.stale == {StaleKind.CLAIMED: 1, StaleKind.RUNNING: 2, StaleKind.FINALIZING: 0}
    assert sorted(one.liveness for one in figures.workers) == [WorkerLiveness.ALIVE, WorkerLiveness.DEAD]
    assert len((await asyncio.to_thread(operator.json, "stale", "list"))["tasks"]) == 3
    assert len((await asyncio.to_thread(operator.json, "workers"))["workers"]) == 2


async def test_schedules_with_and_without_a_scheduler(db: Database) -> None:
    schedule(db, "fine")
    schedule(db, "paused", paused_at=ago(minutes=1))
    schedule(db, "late", next_run_at=ago(minutes=2))
    found = (await read(db)).schedules
    assert (found.known, found.runs, found.overdue, found.has_scheduler) == (3, 2, 1, True)
    assert found.longest is not None
    assert found.longest >= timedelta(minutes=2)
    db.execute("UPDATE horsies_schedule_state SET updated_at = now() - interval '5 minutes'")
    found = (await read(db)).schedules
    assert (found.runs, found.has_scheduler) == (2, False)


@pytest.mark.breaks("W8")
async def test_live_workflows_by_state_outermost_only(db: Database) -> None:
    outer = factories.workflow(db, "RUNNING", node_status="PENDING")
    factories.workflow(
        db,
        "RUNNING",
        node_status="PENDING",
        parent_workflow_id=outer,
        root_workflow_id=outer,
        parent_task_index=0,
        depth=1,
    )
    factories.workflow(db, "PAUSED", node_status="PENDING")
    factories.workflow(db, "COMPLETED")
    figures = await read(db)
    assert figures.workflows == {
        WorkflowStatus.PENDING: 0, WorkflowStatus.RUNNING: 1, WorkflowStatus.PAUSED: 1,
    }  # fmt: skip
    assert not figures.workflows_are_bounded


async def test_recent_ends_by_state(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    factories.task(db, "COMPLETED")
    times = ("enqueued_at", "claimed_at", "started_at", "completed_at", "terminal_at")
    factories.task(db, "COMPLETED", **dict.fromkeys(times, ago(minutes=2)))
    factories.task(db, "FAILED")
    factories.task(db, "CANCELLED")
    found = (await read(db)).ended
    assert found.tasks == {
        TaskStatus.COMPLETED: 1, TaskStatus.FAILED: 1, TaskStatus.CANCELLED: 1, TaskStatus.EXPIRED: 0,
    }  # fmt: skip
    assert (found.span, found.is_bounded) == (timedelta(minutes=1), False)
    monkeypatch.setattr(cluster, "ENDED_BOUND", 2)
    found = (await read(db)).ended
    assert (sum(found.tasks.values()), found.is_bounded) == (2, True)
    assert found.span < timedelta(minutes=1)


async def test_counting_stops_at_the_bound(db: Database) -> None:
    for priority in (1, 1, 1, 2):
        factories.task(db, priority=priority)
    found = queue(await read(db, bound=2))
    assert (found.ready, found.is_bounded) == (3, True)
    assert (queue(await read(db, bound=4)).ready, queue(await read(db, bound=4)).is_bounded) == (4, False)


async def test_many_pairs_of_queue_and_priority_share_the_bound(db: Database) -> None:
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, queue_name, priority, kwargs)"
        " SELECT gen_random_uuid(), 'add', 'q' || (n / 100) % 4, 1 + n % 100, '{}' FROM generate_series(1, 80000) AS n"
    )
    found = await read(db, bound=2_000)
    assert {(one.ready, one.is_bounded) for one in found.queues} == {(100 * 100, True)}


# -- rights, schemas, servers --------------------------------------------------------------------


async def test_a_viewer_is_enough(db: Database) -> None:
    factories.task(db, "RUNNING")
    factories.task(db)
    schedule(db, "fine")
    factories.workflow(db, "COMPLETED")
    with accounts(db) as who:
        figures = await read(who["viewer"])
        async with async_app_on(who["viewer"]) as app:
            assert await app.get_broker().get_revision() == HEAD_REVISION
    assert (queue(figures).ready, queue(figures).running, figures.schedules.known) == (1, 1, 1)


async def test_in_a_schema_of_its_own(empty_db: Database) -> None:
    schema = "o'brien jobs"
    await horsies_schema.upgrade_async(empty_db.url, schema=schema)
    factories.task(empty_db, schema=schema)
    assert queue(await read(empty_db, broker={"schema": schema})).ready == 1


async def test_on_a_standby() -> None:
    """A server in recovery, as a read replica is."""
    with places.temporary_directory() as directory:
        with embedded.start(directory) as primary:
            db = Database("postgres", primary.url)
            await horsies_schema.upgrade_async(db.url)
            factories.task(db)
            signal_file = Path(db.value("SHOW data_directory")) / "standby.signal"
        signal_file.touch()
        owner = signal_file.parent.stat()
        os.chown(signal_file, owner.st_uid, owner.st_gid)
        with embedded.start(directory, settings={"hot_standby": "on", "restore_command": "/bin/false"}) as standby:
            assert queue(await read(standby.url)).ready == 1


async def test_the_revision_of_a_database_that_cannot_be_used(db: Database, empty_db: Database) -> None:
    db.execute("UPDATE horsies_alembic_version SET version_num = '0007'")
    async with async_app_on(db) as app:
        with pytest.raises(SchemaError):
            await app.get_broker().get_figures()
        assert await app.get_broker().get_revision() == "0007"
    assert is_behind("0007")
    assert not is_behind(HEAD_REVISION)
    async with async_app_on(empty_db) as app:
        assert await app.get_broker().get_revision() is None
    db.execute("UPDATE horsies_alembic_version SET version_num = %s", HEAD_REVISION)


# -- cost ----------------------------------------------------------------------------------------


@asynccontextmanager
async def connected(db: Database) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(db.url)
    try:
        yield connection
    finally:
        await connection.close()


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(node for part in plan.get("Plans", []) for node in nodes(part))]


async def explained(db: Database, bound: int) -> dict[str, list[dict[str, Any]]]:
    """The nodes of the plans of every statement that was run."""
    known = statements(None)
    plans: dict[str, list[dict[str, Any]]] = {}

    async def read_figures(fetch: Any) -> None:
        async def run(name: str, *values: Any) -> Any:
            (row,) = await connection.fetch(f"EXPLAIN (ANALYZE, FORMAT JSON) {known[name].sql}", *values)
            plans[name] = nodes(json.loads(row["QUERY PLAN"])[0]["Plan"])
            return await fetch(name, *values)

        await cluster_figures(run, bound)

    async with connected(db) as connection:
        await bounded(known, read_figures, 30_000)(connection)
    assert {"waiting_pairs", "in_flight_counts", "stale_tasks", "recent_ends", "live_workflow_counts"} <= plans.keys()
    return plans


def unbounded(plans: dict[str, list[dict[str, Any]]]) -> set[tuple[str, str]]:
    """Statements that read the whole of a large table, or of an index of it, before they return a row."""
    return {
        (name, node["Relation Name"])
        for name, plan in plans.items()
        for node in plan
        if node["Node Type"] in ("Seq Scan", "Bitmap Heap Scan") and node["Relation Name"] in LARGE
    }


@pytest.mark.parametrize("bound", [100, 1_000_000])
async def test_no_statement_reads_a_whole_table(db: Database, bound: int) -> None:
    with psycopg.connect(db.url, autocommit=True) as filling:
        fill_for_dashboard(filling, tasks=20_000, running=40, workers=5)
    assert unbounded(await explained(db, bound)) == set()


async def test_a_long_queue_that_vacuum_has_not_seen_is_counted_up_to_the_bound_only(db: Database) -> None:
    db.execute("ALTER TABLE horsies_tasks SET (autovacuum_enabled = false)")
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, queue_name, priority, kwargs)"
        " SELECT gen_random_uuid(), 'add', 'q' || n % 2, 1, '{}' FROM generate_series(1, 60000) AS n"
    )
    db.execute("ANALYZE horsies_tasks")
    plans = await explained(db, 10_000)
    assert unbounded(plans) == set()
    read_rows = [node["Actual Rows"] for node in plans["waiting_pairs"] if "Scan" in node["Node Type"]]
    assert max(read_rows) <= 10_000
