"""Which workers are declared dead, how heartbeats compete with that, and how their tasks are recovered."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from horsies import RecoveryConfig, RetryPolicy
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.identity import Identity
from horsies_worker.liveness import dead_workers, missed_beats
from horsies_worker.liveness.dead_workers import BATCH, DeadWorkers
from horsies_worker.liveness.instance import WorkerInstance
from horsies_worker.liveness.recovery import Recovery
from tests.support import factories
from tests.support.apps import add_task, make_app
from tests.support.factories import ago, ahead
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database

PERIOD_MS = 1_000
VICTIM = Identity(hostname="host-1", pid=4711)
HELD = {"claimed_by_worker_id": VICTIM.worker_id}
ONCE = {**HELD, "task_name": "once"}  # no registration, no policy


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second check makes a suspect: test_missed_beats.py covers the times."""
    monkeypatch.setattr(missed_beats, "MISSED", 0)
    monkeypatch.setattr(missed_beats, "MISSED_UNSEEN", 0)


@asynccontextmanager
async def checking(db: Database, name: str = "checker-1", **recovery: Any) -> AsyncIterator[DeadWorkers]:
    app = make_app(db, recovery=RecoveryConfig(**recovery))
    add_task(app, retry_policy=RetryPolicy.fixed(30, max_retries=2, auto_retry_for=["WORKER_CRASHED"]))
    queries = Queries(None, Identity(name, "host-9", 1))
    session, shared = Session(app.config.broker, "reaper", queries), Session(app.config.broker, "shared", queries)
    try:
        yield DeadWorkers(session, app.config, Recovery(queries, app.registry), checks=shared)
    finally:
        await session.close()
        await shared.close()


@asynccontextmanager
async def living(db: Database, identity: Identity = VICTIM) -> AsyncIterator[tuple[WorkerInstance, Any]]:
    """A worker's part in it: its row, its lock on a connection that dies with the block, one beat."""
    instance = WorkerInstance(Queries(None, identity), PERIOD_MS)
    connection = await asyncpg.connect(db.url)
    session = connection.get_server_pid()
    try:
        await instance.register(connection)
        await instance.take_lock(connection)
        await beat(db, instance, identity)
        yield instance, connection
    finally:
        connection.terminate()
        # of this very session: other tests hold advisory locks on the same server
        held = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = %s"
        await eventually_async(lambda: db.value(held, session) == 0)


async def beat(db: Database, instance: WorkerInstance, identity: Identity = VICTIM) -> str | None:
    """The reporter's statement; None when the worker was declared dead."""
    connection = await asyncpg.connect(db.url)
    try:
        return await connection.fetchval(
            Queries(None, identity).sql("insert_snapshot"), identity.worker_id, "host-1", 4711, 2, ["default"], 0, 0,
            1.0, 1.0, 1.0, 1.0, 500, None, None, "{}", "{}", "{}", await connection.fetchval("SELECT now()"),
            instance.lock_key, instance.backend_pid, "RUNNING", None,
        )  # fmt: skip
    finally:
        await connection.close()


def declared(db: Database) -> tuple[bool, bool]:
    """Whether the victim is declared dead, and whether its tasks are recovered."""
    ((dead, recovered),) = db.execute(
        "SELECT judged_dead_at IS NOT NULL, recovered_at IS NOT NULL FROM horsies_worker_instances "
        "WHERE worker_id = %s",
        VICTIM.worker_id,
    )
    return dead, recovered


async def check(checker: DeadWorkers, times: int = 2) -> None:
    for _ in range(times):
        await checker.run_once()


def status(db: Database, task: str) -> tuple[Any, ...]:
    row = factories.read(db, task)
    return row["status"], row["claimed_by_worker_id"], row["error_code"]


async def test_the_tasks_of_a_dead_worker_are_recovered_at_once(db: Database) -> None:
    claimed = factories.task(db, "CLAIMED", **HELD)
    once = factories.task(db, "RUNNING", **ONCE)
    again = factories.task(db, "RUNNING", max_retries=2, **HELD)
    staged = factories.task(db, "RUNNING", finalizing_at=ago(seconds=0.5), finalizing_by_worker_id=VICTIM.worker_id,
                            result='{"ok":3}', **HELD)  # fmt: skip
    others = factories.task(db, "RUNNING", claimed_by_worker_id="another")
    async with checking(db) as checker:
        async with living(db):
            await check(checker, 3)
            assert declared(db) == (False, False)  # its lock is held: the process may be frozen
        await check(checker)
    assert declared(db) == (True, True)
    assert status(db, claimed) == ("PENDING", None, None)
    assert status(db, once) == ("FAILED", VICTIM.worker_id, "WORKER_CRASHED")
    assert "its worker died" in factories.read(db, once)["failed_reason"]
    assert status(db, again) == ("PENDING", None, None)
    assert factories.read(db, again)["retry_count"] == 1
    assert (status(db, staged)[0], factories.read(db, staged)["result"]) == ("COMPLETED", '{"ok":3}')
    assert status(db, others)[0] == "RUNNING"


async def test_a_connection_of_its_own_is_opened_only_to_recover_tasks(db: Database) -> None:
    own = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name = 'horsies worker reaper'"
    )
    async with checking(db) as checker:
        async with living(db):
            await check(checker, 3)  # a frozen worker is suspected again and again
        assert db.value(own) == 0
        await check(checker)
        assert declared(db) == (True, True)
        assert db.value(own) == 1


async def test_a_heartbeat_and_a_declaration_exclude_each_other(db: Database) -> None:
    async with checking(db) as checker:
        async with living(db) as (instance, _):
            pass  # the connection is lost, the worker lives
        await check(checker, 1)
        assert await beat(db, instance) == VICTIM.worker_id
        await check(checker, 1)
        assert declared(db) == (False, False)
        await check(checker, 1)
        assert declared(db) == (True, True)
        snapshots = db.value("SELECT count(*) FROM horsies_worker_states")
        assert await beat(db, instance) is None  # this is how it learns
        assert db.value("SELECT count(*) FROM horsies_worker_states") == snapshots


async def test_a_heartbeat_just_before_the_declaration_prevents_it(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats: list[str | None] = []

    async def reached(name: str) -> None:
        if name == "before_declared_dead":
            beats.append(await beat(db, instance))

    async with living(db) as (instance, _):
        pass
    async with checking(db) as checker:
        await check(checker, 1)
        monkeypatch.setattr(dead_workers, "reached", reached)
        await check(checker, 1)
    assert beats == [VICTIM.worker_id]
    assert declared(db) == (False, False)


async def test_a_worker_that_left_is_not_declared_dead(db: Database) -> None:
    async with checking(db) as checker, living(db) as (instance, connection):
        await instance.close(connection)
        connection.terminate()
        await check(checker, 3)
        assert declared(db) == (False, False)
        assert await beat(db, instance) == VICTIM.worker_id  # a last snapshot is still accepted


async def test_a_worker_without_a_lock_is_left_to_the_thresholds(db: Database) -> None:
    task = factories.task(db, "RUNNING", **HELD)
    instance = WorkerInstance(Queries(None, VICTIM), PERIOD_MS)
    async with checking(db) as checker:
        connection = await asyncpg.connect(db.url)
        await instance.register(connection)
        await connection.close()
        assert await beat(db, instance) == VICTIM.worker_id
        await check(checker, 3)
    assert declared(db) == (False, False)
    assert status(db, task)[0] == "RUNNING"


async def test_tasks_claimed_after_the_declaration_are_kept(db: Database) -> None:
    """The worker is alive after all, and does not know yet that it was declared dead."""
    async with living(db):
        pass
    async with checking(db) as checker:
        await check(checker)
        db.execute("UPDATE horsies_worker_instances SET recovered_at = NULL")
        late = factories.task(db, "RUNNING", **HELD, **dict.fromkeys(("claimed_at", "started_at"), factories.NOW))
        await check(checker, 1)
    assert status(db, late)[0] == "RUNNING"
    assert declared(db) == (True, True)


async def test_another_worker_recovers_the_tasks_if_the_first_dies(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(Exception):
        pass

    async def reached(name: str) -> None:
        if name == "after_declared_dead":
            raise Killed

    task = factories.task(db, "RUNNING", **ONCE)
    async with living(db):
        pass
    monkeypatch.setattr(dead_workers, "reached", reached)
    async with checking(db) as first:
        with pytest.raises(Killed):
            await check(first)
    assert (status(db, task)[0], declared(db)) == ("RUNNING", (True, False))
    async with checking(db, "checker-2") as second:
        await check(second, 1)
    assert status(db, task)[0] == "FAILED"
    assert declared(db) == (True, True)


async def test_a_locked_row_is_recovered_when_it_is_free(db: Database) -> None:
    task = factories.task(db, "RUNNING", **ONCE)
    async with living(db):
        pass
    async with checking(db) as checker:
        connection = await asyncpg.connect(db.url)
        try:
            async with connection.transaction():
                await connection.execute("SELECT 1 FROM horsies_tasks FOR UPDATE")
                await check(checker)
                assert declared(db) == (True, False)
        finally:
            await connection.close()
        await check(checker, 1)
    assert declared(db) == (True, True)
    assert status(db, task)[0] == "FAILED"


async def test_many_tasks_go_in_batches(db: Database) -> None:
    task = factories.task(db, "RUNNING", **ONCE)
    db.execute(
        """INSERT INTO horsies_tasks (id, task_name, status, enqueued_at, claimed_at, started_at, claimed_by_worker_id,
                claim_generation, worker_pid)
           SELECT gen_random_uuid()::text, task_name, status, enqueued_at, claimed_at, started_at,
                  claimed_by_worker_id, 1, 1
             FROM horsies_tasks, generate_series(1, %s) WHERE id = %s""",
        BATCH + 10,
        task,
    )
    async with living(db):
        pass
    async with checking(db) as checker:
        await check(checker)
    assert declared(db) == (True, True)
    assert db.value("SELECT count(*) FROM horsies_tasks WHERE status <> 'FAILED'") == 0


async def test_claims_are_left_where_the_switch_says_so(db: Database) -> None:
    claimed = factories.task(db, "CLAIMED", claim_expires_at=ahead(hours=1), **HELD)
    running = factories.task(db, "RUNNING", **ONCE)
    async with living(db):
        pass
    async with checking(db, auto_requeue_stale_claimed=False) as checker:
        await check(checker)
    assert (status(db, claimed)[0], status(db, running)[0]) == ("CLAIMED", "FAILED")
    assert declared(db) == (True, True)


async def test_two_checkers_recover_each_task_once(db: Database) -> None:
    tasks = [factories.task(db, "RUNNING", max_retries=2, **HELD) for _ in range(20)]
    async with living(db):
        pass
    async with checking(db, "checker-1") as one, checking(db, "checker-2") as two:
        await asyncio.gather(check(one), check(two))
        await check(one, 1)
    assert {factories.read(db, task)["retry_count"] for task in tasks} == {1}
    assert declared(db) == (True, True)


async def test_a_lost_connection_does_not_keep_the_lock_from_its_owner(db: Database) -> None:
    """Half-open: the server still has the former session, which holds our key."""
    async with living(db) as (instance, former):
        fresh = await asyncpg.connect(db.url)
        try:
            await instance.take_lock(fresh)
            assert instance.backend_pid == fresh.get_server_pid()
            await eventually_async(former.is_closed)
        finally:
            fresh.terminate()


async def test_an_unknown_session_that_holds_the_key_is_not_ended(db: Database, caplog: Any) -> None:
    """For example, a worker that is about to declare this one dead."""
    async with living(db) as (former, _):
        key = former.lock_key
    instance = WorkerInstance(Queries(None, VICTIM), PERIOD_MS)
    holder = await asyncpg.connect(db.url)
    fresh = await asyncpg.connect(db.url)
    try:
        await holder.fetchval("SELECT pg_try_advisory_lock($1)", key)
        await instance.take_lock(fresh)
        assert instance.lock_key is None
        assert not holder.is_closed()
        assert "held by another session" in caplog.text
    finally:
        await holder.close()
        await fresh.close()
