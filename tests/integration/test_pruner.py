"""Retention: what goes, what stays, and that nobody has to wait for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any

import asyncpg
import pytest

from horsies import RecoveryConfig
from horsies._pg.locks import PRUNE_LOCK
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.database.settings import CLAIM_SETTINGS
from horsies_worker.identity import Identity
from horsies_worker.retention import pruner
from horsies_worker.retention.pruner import BATCH, Pruner
from tests.support import factories, invariants
from tests.support.apps import make_app
from tests.support.factories import ago
from tests.support.postgres import Database
from tests.support.refusals import refusing

pytestmark = pytest.mark.shared_database

DAYS = 10
HOURS = 24 * DAYS
OLD = ago(days=DAYS, minutes=1)
YOUNG = ago(days=DAYS, minutes=-1)
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "EXPIRED")


@pytest.fixture(autouse=True)
def no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruner, "REST", 0.0)


@asynccontextmanager
async def pruning(db: Database, **recovery: Any) -> AsyncIterator[Pruner]:
    given = {
        "heartbeat_retention_hours": HOURS, "worker_state_retention_hours": HOURS,
        "terminal_record_retention_hours": HOURS, **recovery,
    }  # fmt: skip
    app = make_app(db, recovery=RecoveryConfig(**given))
    session = Session(app.config.broker, "pruner", Queries(None, Identity("worker-9", "host-9", 1)))
    try:
        yield Pruner(session, app.config)
    finally:
        await session.close()


async def prune(db: Database, **recovery: Any) -> None:
    async with pruning(db, **recovery) as one:
        await one.run_once()
    assert invariants.check(db) == []


def ids(db: Database, table: str = "horsies_tasks") -> set[str]:
    return {row[0] for row in db.execute(f"SELECT id FROM {table}")}


def ended(db: Database, status: str, at: str, **columns: Any) -> str:
    """A task that ended then; its other times are those of its whole life."""
    task = factories.task(db, status, **columns)
    db.execute(
        f"UPDATE horsies_tasks SET terminal_at = {at}, created_at = {at}, enqueued_at = {at}, "
        f"claimed_at = CASE WHEN claimed_at IS NOT NULL THEN {at} END, "
        f"started_at = CASE WHEN started_at IS NOT NULL THEN {at} END, "
        f"completed_at = CASE WHEN completed_at IS NOT NULL THEN {at} END, "
        f"failed_at = CASE WHEN failed_at IS NOT NULL THEN {at} END WHERE id = %s",
        task,
    )
    return task


def workflow(db: Database, workflow_id: str, completed_at: str | None, *tasks: str, **columns: Any) -> None:
    row = {"id": workflow_id, "name": "w", "root_workflow_id": workflow_id, **columns}
    row |= {"status": "COMPLETED", "completed_at": completed_at} if completed_at else {"status": "RUNNING"}
    factories.insert(db, "horsies_workflows", **row)
    for index, task in enumerate(tasks):
        factories.insert(
            db, "horsies_workflow_tasks", id=f"{workflow_id}-{index}", workflow_id=workflow_id, task_index=index,
            node_id=f"n{index}", task_name="add", status="COMPLETED", task_id=task, completed_at=factories.NOW,
        )  # fmt: skip


@pytest.mark.breaks("T8")
async def test_ended_tasks_go_by_the_age_of_their_end_and_live_ones_never(db: Database) -> None:
    gone = {ended(db, status, OLD) for status in ENDED}
    kept = {ended(db, status, YOUNG) for status in ENDED}
    # however old: one that waits, one that is held, one that runs
    live = {
        factories.task(db, "PENDING", enqueued_at=ago(days=90), created_at=ago(days=90)),
        factories.task(db, "CLAIMED", enqueued_at=ago(days=90), claimed_at=ago(days=80), created_at=ago(days=90)),
        factories.task(db, "RUNNING", enqueued_at=ago(days=90), claimed_at=ago(days=80), started_at=ago(days=80),
                       created_at=ago(days=90)),
    }  # fmt: skip
    async with pruning(db) as one:
        await one.run_once()
    assert ids(db) == kept | live
    assert not gone & {row[0] for row in db.execute("SELECT task_id FROM horsies_task_attempts")}
    assert db.value("SELECT count(*) FROM horsies_task_attempts") == 2  # of the completed and the failed one


async def test_beats_and_snapshots_go_by_their_own_settings(db: Database) -> None:
    for at in (OLD, YOUNG):
        factories.heartbeat(db, "gone", sent_at=at)
        factories.worker_state(db, snapshot_at=at)
        factories.insert(db, "horsies_worker_instances", worker_id=f"w {at}", period_ms=5_000, beat_at=at)
    await prune(db)
    for table in ("heartbeats", "worker_states", "worker_instances"):
        assert db.value(f"SELECT count(*) FROM horsies_{table}") == 1, table


async def test_workers_are_kept_for_the_grace_of_the_names_that_they_knew(db: Database) -> None:
    for hours in (30, 60):
        factories.insert(
            db, "horsies_worker_instances", worker_id=f"{hours} h", period_ms=5_000, beat_at=ago(hours=hours)
        )
    await prune(db, worker_state_retention_hours=1)
    assert db.execute("SELECT worker_id FROM horsies_worker_instances") == [("30 h",)]


@pytest.mark.parametrize(
    ("switch", "kept"),
    [
        ("heartbeat_retention_hours", {"heartbeats"}),
        ("worker_state_retention_hours", {"worker_states", "worker_instances"}),
        ("terminal_record_retention_hours", {"tasks", "workflows", "workflow_tasks"}),
    ],
)
async def test_none_keeps_everything_of_its_kind(db: Database, switch: str, kept: set[str]) -> None:
    factories.heartbeat(db, "gone", sent_at=OLD)
    factories.worker_state(db, snapshot_at=OLD)
    factories.insert(db, "horsies_worker_instances", worker_id="w", period_ms=5_000, beat_at=OLD)
    workflow(db, "w1", OLD, ended(db, "COMPLETED", OLD, is_workflow_task=True))
    await prune(db, **{switch: None})
    tables = ("heartbeats", "worker_states", "worker_instances", "tasks", "workflows", "workflow_tasks")
    assert {table for table in tables if db.value(f"SELECT count(*) FROM horsies_{table}")} == kept


@pytest.mark.breaks("W8")
async def test_the_tasks_of_a_workflow_stay_as_long_as_the_workflow(db: Database) -> None:
    def node() -> str:
        return ended(db, "COMPLETED", OLD, is_workflow_task=True)

    of_live, of_young, of_old, of_part, of_orphan = node(), node(), node(), node(), node()
    workflow(db, "live", None, of_live)
    workflow(db, "young", YOUNG, of_young)
    workflow(db, "old", OLD, of_old)
    # a part that ended long ago of a whole that has not
    workflow(db, "part", OLD, of_part, parent_workflow_id="live", parent_task_index=1, depth=1, root_workflow_id="live")
    async with pruning(db) as one:
        await one.run_once()
    assert ids(db) == {of_live, of_young, of_part}
    assert ids(db, "horsies_workflows") == {"live", "young", "part"}
    assert ids(db, "horsies_workflow_tasks") == {"live-0", "young-0", "part-0"}
    assert of_orphan not in ids(db)


async def test_a_whole_family_goes_innermost_first(db: Database) -> None:
    def node() -> str:
        return ended(db, "COMPLETED", OLD, is_workflow_task=True)

    workflow(db, "root", OLD, node())
    workflow(db, "child", OLD, node(), parent_workflow_id="root", parent_task_index=1, depth=1, root_workflow_id="root")
    workflow(db, "grandchild", OLD, node(), parent_workflow_id="child", parent_task_index=1, depth=2,
             root_workflow_id="root")  # fmt: skip
    await prune(db)
    assert (ids(db), ids(db, "horsies_workflows"), ids(db, "horsies_workflow_tasks")) == (set(), set(), set())


async def test_many_rows_go_in_batches(db: Database) -> None:
    task = ended(db, "COMPLETED", OLD)
    db.execute(
        """INSERT INTO horsies_tasks (id, task_name, status, result, completed_at, terminal_at, started_at, claimed_at,
                                      created_at, enqueued_at)
           SELECT gen_random_uuid()::text, 'add', status, result, completed_at, terminal_at - i * interval '1 ms',
                  started_at, claimed_at, created_at, enqueued_at
             FROM horsies_tasks, generate_series(1, %s) AS i WHERE id = %s""",
        2 * BATCH + 10,
        task,
    )
    db.execute(
        "INSERT INTO horsies_heartbeats (task_id, sender_id, role, sent_at) "
        f"SELECT 'x', 'w', 'runner', {OLD} FROM generate_series(1, {BATCH + 10})"
    )
    young = ended(db, "COMPLETED", YOUNG)
    async with pruning(db) as one:
        await one.run_once()
    assert ids(db) == {young}
    assert db.value("SELECT count(*) FROM horsies_heartbeats") == 0


async def test_a_locked_row_is_left_for_the_next_round(db: Database) -> None:
    held, free = ended(db, "COMPLETED", OLD), ended(db, "COMPLETED", OLD)
    connection = await asyncpg.connect(db.url)
    try:
        async with connection.transaction():
            await connection.execute("SELECT 1 FROM horsies_tasks WHERE id = $1 FOR UPDATE", held)
            async with pruning(db) as one:
                await asyncio.wait_for(one.run_once(), 30)
            assert ids(db) == {held}
            assert free not in ids(db)
    finally:
        await connection.close()
    async with pruning(db) as one:
        await one.run_once()
    assert ids(db) == set()


async def test_one_prunes_at_a_time(db: Database) -> None:
    task = ended(db, "COMPLETED", OLD)
    connection = await asyncpg.connect(db.url)
    try:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock($1, hashtext('public'))", PRUNE_LOCK)
            async with pruning(db) as one:
                await one.run_once()
            assert ids(db) == {task}
    finally:
        await connection.close()


async def test_nothing_is_kept_open_between_two_rounds(db: Database) -> None:
    async with pruning(db) as one:
        await one.run_once()
        sessions = (
            "SELECT count(*) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name LIKE '%pruner%'"
        )
        assert db.value(sessions) == 0


PLANS = {
    "prune_heartbeats": (timedelta(hours=1), 0, BATCH),
    "prune_worker_states": (timedelta(hours=1), 0, BATCH),
    "prune_tasks": (timedelta(hours=1), "2000-01-01+00", BATCH),
    "prune_workflow_nodes": (timedelta(hours=1), BATCH),
    "prune_workflows": (timedelta(hours=1), BATCH),
}


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.breaks("A2")
async def test_a_round_that_finds_nothing_old_reads_next_to_nothing(db: Database, name: str) -> None:
    """Through the session's own settings, on tables that were filled without ANALYZE."""
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, status, result, completed_at, terminal_at) "
        "SELECT gen_random_uuid()::text, 'add', 'COMPLETED', '{}', now(), now() FROM generate_series(1, 20000)"
    )
    db.execute("INSERT INTO horsies_heartbeats (task_id, sender_id, role) SELECT 'x', 'w', 'runner' "
               "FROM generate_series(1, 20000)")  # fmt: skip
    queries = Queries(None, Identity("worker-9", "host-9", 1))
    connection = await asyncpg.connect(db.url, server_settings=CLAIM_SETTINGS)
    try:
        literals = ", ".join(f"'{value}'" for value in PLANS[name])
        await connection.execute(f"PREPARE pruned AS {queries.sql(name)}")
        told = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) EXECUTE pruned ({literals})")
        plan = "\n".join(row[0] for row in told)
        await connection.execute("DEALLOCATE pruned")
    finally:
        await connection.close()
    assert "Seq Scan" not in plan, plan
    hits = int(plan.split("Buffers: shared hit=")[1].split()[0])
    # one page for each row that it looks at, and the visibility map as well where autovacuum was faster
    assert hits < 100 + 2 * BATCH, plan


# -- settings and failures ------------------------------------------------------------------------------------


async def test_the_longest_retention_ends_nothing(db: Database) -> None:
    """Counted back from now, the end of a span that is too long is no date: that ended the whole round."""
    longest = dict.fromkeys(
        ("heartbeat_retention_hours", "worker_state_retention_hours", "terminal_record_retention_hours"), 876_000
    )
    kept = ended(db, "COMPLETED", OLD)
    await prune(db, **longest, retired_task_grace_ms=30 * 24 * 3_600_000)
    assert ids(db) == {kept}


@pytest.mark.parametrize("table", ["heartbeats", "worker_states", "tasks"])
async def test_a_kind_that_fails_does_not_keep_the_others(
    db: Database, table: str, caplog: pytest.LogCaptureFixture
) -> None:
    ended(db, "COMPLETED", OLD)
    factories.insert(db, "horsies_heartbeats", task_id="t", sender_id="w", role="runner", sent_at=OLD)
    factories.worker_state(db, "w", snapshot_at=OLD)
    with refusing(db, f"BEFORE DELETE ON horsies_{table}", code="22008"):
        async with pruning(db) as pruner:
            await pruner.run_once()
    left = {one: db.value(f"SELECT count(*) FROM horsies_{one}") for one in ("heartbeats", "worker_states", "tasks")}
    assert left == {one: int(one == table) for one in left}
    assert f"pruner: old {table.replace('_', ' ')} cannot be deleted; other kinds continue" in caplog.text


# -- tasks with a lifetime of their own -----------------------------------------------------------


@pytest.mark.parametrize("retention", [HOURS, None])
async def test_a_lifetime_of_its_own_counts_from_the_end_however_the_task_ended(
    db: Database, retention: int | None
) -> None:
    hour = {"keep_seconds": 3_600}
    gone = {ended(db, status, ago(hours=1, minutes=1), **hour) for status in ENDED}
    kept = {ended(db, status, ago(minutes=59), **hour) for status in ENDED}
    kept |= {ended(db, "COMPLETED", ago(days=DAYS + at), keep_seconds=86_400 * (DAYS + at + 1)) for at in range(1, 4)}
    kept.add(ended(db, "COMPLETED", ago(hours=1, minutes=1)))
    await prune(db, terminal_record_retention_hours=retention)
    assert ids(db) == kept
    assert not gone & ids(db)


async def test_a_live_task_stays_whatever_its_lifetime_and_zero_goes_at_once(db: Database) -> None:
    live = {factories.task(db, status, keep_seconds=0) for status in ("PENDING", "CLAIMED", "RUNNING")}
    ended(db, "COMPLETED", factories.NOW, keep_seconds=0)
    ended(db, "FAILED", factories.NOW, keep_seconds=-5)  # by hand: no sender writes it
    kept = ended(db, "FAILED", OLD, keep_seconds=2**31 - 1)
    await prune(db)
    assert ids(db) == live | {kept}


async def test_the_task_of_a_run_stays_as_long_as_the_run(db: Database) -> None:
    tasks = [ended(db, "COMPLETED", at, keep_seconds=seconds, is_workflow_task=True)
             for at, seconds in ((YOUNG, 60), (OLD, 10**9))]  # fmt: skip
    workflow(db, "young", YOUNG, tasks[0])
    workflow(db, "old", OLD, tasks[1])
    await prune(db)
    assert ids(db) == {tasks[0]}


async def test_more_than_one_batch_of_several_lifetimes(db: Database) -> None:
    db.execute(
        f"""INSERT INTO horsies_tasks (id, task_name, status, enqueued_at, sent_at, created_at, completed_at,
                                      terminal_at, result, keep_seconds)
            SELECT gen_random_uuid(), 'add', 'COMPLETED', {OLD}, {OLD}, {OLD}, {OLD}, {OLD}, '{{"ok":1}}',
                   60 * (1 + i % 7)
              FROM generate_series(1, {BATCH + 200}) AS i"""
    )
    await prune(db, terminal_record_retention_hours=None)
    assert ids(db) == set()


async def test_the_pruner_forgets_keys_that_are_free(db: Database) -> None:
    live = factories.task(db)
    ended = factories.task(db, "COMPLETED")
    for key, holder, until in (
        ("live", live, ago(hours=3)), ("ended", ended, ago(hours=3)), ("fresh", ended, ago(minutes=3)),
        ("kept", ended, factories.ahead(hours=3)), ("missing", "gone", ago(hours=3)),
    ):  # fmt: skip
        factories.insert(
            db, "horsies_unique_keys", task_name="add", key=key, task_id=holder, first_at=ago(hours=4), until=until
        )
    await prune(db)
    assert db.execute("SELECT key FROM horsies_unique_keys ORDER BY key") == [("fresh",), ("kept",), ("live",)]
