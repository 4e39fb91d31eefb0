"""Which task names live workers know, and how tasks end whose name none of them knows."""

import logging
import time
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import pytest

from horsies import RecoveryConfig
from horsies.codec import decode_untyped_result
from horsies_worker.claim import unknown_names as names_module
from horsies_worker.claim.unknown_names import WINDOW, TaskNames
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.identity import Identity
from horsies_worker.liveness.instance import WorkerInstance
from horsies_worker.retention.pruner import Pruner
from tests.support import factories, invariants
from tests.support.apps import make_app
from tests.support.factories import ago, ahead
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database

PERIOD_MS = 1_000
SHORT = {"unknown_task_grace_ms": 1_000}


def id_of(worker: str) -> str:
    return str(uuid.uuid5(uuid.NAMESPACE_OID, worker))


async def live(db: Database, worker_id: str, names: Sequence[str], queues: Sequence[str] = ("default",)) -> None:
    """A worker registers, as one does when it starts, and has been there for ten minutes."""
    identity = Identity(id_of(worker_id), "host-1", 1)
    instance = WorkerInstance(Queries(None, identity), PERIOD_MS, queues=queues, names=names)
    connection = await asyncpg.connect(db.url)
    try:
        await instance.register(connection)
    finally:
        await connection.close()
    change(db, worker_id, "started_at = now() - interval '10 minutes', beat_at = now() + interval '1 minute'")


def change(db: Database, worker_id: str, what: str) -> None:
    db.execute(f"UPDATE horsies_worker_instances SET {what} WHERE worker_id = '{id_of(worker_id)}'")


def stop(db: Database, worker_id: str, when: str = "now()") -> None:
    change(db, worker_id, f"stopped_at = {when}, beat_at = {when}")


@asynccontextmanager
async def keeping(
    db: Database, *, ended: list[str] | None = None, retired_ms: int = 86_400_000, **config: Any
) -> AsyncIterator[TaskNames]:
    app = make_app(db, recovery=RecoveryConfig(retired_task_grace_ms=retired_ms), **{**SHORT, **config})
    queries = Queries(None, Identity("keeper", "host-9", 99))
    session, shared = Session(app.config.broker, "reaper", queries), Session(app.config.broker, "shared", queries)
    heard = ended if ended is not None else []
    try:
        yield TaskNames(session, app.config, checks=shared, tasks_ended=heard.extend)
    finally:
        await session.close()
        await shared.close()


def status(db: Database, task: str) -> str:
    return factories.read(db, task)["status"]


def names(db: Database) -> dict[str, tuple[bool, bool]]:
    """By name: was it ever known, is it missing?"""
    rows = db.execute("SELECT task_name, first_known_at IS NOT NULL, missing_since IS NOT NULL FROM horsies_task_names")
    return {name: (known, missing) for name, known, missing in rows}


def missing_for(db: Database, name: str, span: str) -> None:
    db.execute(f"UPDATE horsies_task_names SET missing_since = now() - interval '{span}' WHERE task_name = '{name}'")


# -- the record ------------------------------------------------------------------------------------------------


async def test_a_worker_that_registers_records_its_names_and_queues(db: Database) -> None:
    await live(db, "w1", ["add", "mail"], ["default", "video"])
    await live(db, "w2", ["mail", "add"])
    assert names(db) == {"add": (True, False), "mail": (True, False)}
    assert db.execute("SELECT names FROM horsies_task_sets") == [(["add", "mail"],)]
    rows = db.execute("SELECT queues, names_sha = (SELECT sha FROM horsies_task_sets) FROM horsies_worker_instances")
    assert sorted(rows) == [(["default"], True), (["default", "video"], True)]


async def test_names_of_live_workers_stay_known_and_those_of_dead_ones_do_not(db: Database) -> None:
    await live(db, "w1", ["add"])
    await live(db, "w2", ["mail"])
    stop(db, "w2")
    old = "now() - interval '1 hour'"
    db.execute(f"UPDATE horsies_task_names SET first_known_at = {old}, last_known_at = {old}")
    async with keeping(db) as keeper:
        await keeper.run_once()
        fresh = db.execute("SELECT task_name FROM horsies_task_names WHERE last_known_at > now() - interval '1 minute'")
        assert fresh == [("add",)]
        before = db.execute("SELECT xmin, task_name FROM horsies_task_names")
        await keeper.run_once()
    assert db.execute("SELECT xmin, task_name FROM horsies_task_names") == before  # fresh ones are not written again


async def test_a_name_that_a_worker_registers_is_no_longer_missing(db: Database) -> None:
    await live(db, "w1", ["add"])
    task = factories.task(db, task_name="new", enqueued_at=ago(hours=1))
    async with keeping(db) as keeper:
        await keeper.run_once()
        assert names(db)["new"] == (False, True)
        missing_for(db, "new", "1 hour")
        await live(db, "w2", ["add", "new"])
        await keeper.run_once()
    assert (status(db, task), names(db)["new"]) == ("PENDING", (True, False))


async def test_a_name_without_waiting_tasks_is_forgotten_or_no_longer_missing(db: Database) -> None:
    await live(db, "w1", ["add"])
    await live(db, "w2", ["old"])
    stop(db, "w2")
    for name in ("ghost", "old"):
        factories.task(db, task_name=name)
    async with keeping(db) as keeper:
        await keeper.run_once()
        assert (names(db)["ghost"], names(db)["old"]) == ((False, True), (True, True))
        db.execute("DELETE FROM horsies_tasks")
        await keeper.run_once()
    assert names(db) == {"add": (True, False), "old": (True, False)}


# -- how they end ----------------------------------------------------------------------------------------------


async def test_a_task_whose_name_no_worker_ever_knew_ends_after_the_grace(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await live(db, "w1", ["add", "mail"])
    task = factories.task(db, task_name="ghost", retry_count=1, enqueued_at=ago(minutes=5))
    known = factories.task(db, task_name="mail", enqueued_at=ago(minutes=5))
    young = factories.task(db, task_name="ghost")
    later = factories.task(db, task_name="ghost", enqueued_at=ahead(hours=1))
    ended: list[str] = []
    async with keeping(db, ended=ended, unknown_task_grace_ms=60_000) as keeper:
        with caplog.at_level(logging.WARNING):
            await keeper.run_once()
        assert status(db, task) == "PENDING"  # met for the first time
        assert (
            "2 waiting tasks named 'ghost' in queue default, and no live worker of the queue knows the name"
            in caplog.text
        )
        missing_for(db, "ghost", "2 minutes")
        await keeper.run_once()
        assert caplog.text.count("waiting tasks") == 1
    stored = factories.read(db, task)
    assert (stored["status"], stored["error_code"]) == ("FAILED", "WORKER_RESOLUTION_ERROR")
    assert (
        "no live worker of queue 'default' has a task named 'ghost'; they know: 'add', 'mail'."
        in stored["failed_reason"]
    )
    error = decode_untyped_result(stored["result"], task_name="ghost").err
    assert error is not None
    assert (error.error_code, error.message) == ("WORKER_RESOLUTION_ERROR", stored["failed_reason"])
    assert db.execute(
        "SELECT attempt, outcome, error_code, worker_id FROM horsies_task_attempts"
        " WHERE task_id = %s AND NOT will_retry",
        task,
    ) == [(2, "FAILED", "WORKER_RESOLUTION_ERROR", "keeper")]
    assert ended == [task]
    assert [status(db, one) for one in (known, young, later)] == ["PENDING"] * 3
    assert invariants.check(db) == []


async def test_ten_thousand_of_them_end_too(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names_module, "SHARE", 1.0)  # no rest
    await live(db, "w1", ["add"])
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, enqueued_at)"
        f" SELECT i, 'ghost', now() - interval '1 hour' FROM generate_series(1, {12 * WINDOW + 7}) AS i"
    )
    async with keeping(db, unknown_task_grace_ms=0) as keeper:
        await keeper.run_once()
    assert db.execute("SELECT status, count(*) FROM horsies_tasks GROUP BY 1") == [("FAILED", 12 * WINDOW + 7)]


async def test_a_walk_rests_after_each_window(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two workers, each looks for a fortieth of the time; what it ends costs no rest."""
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr("horsies_worker.claim.unknown_names.asyncio.sleep", rest)
    for worker in ("w1", "w2"):
        await live(db, worker, ["add"])
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, enqueued_at, priority) SELECT i, 'ghost', now() - interval '1 hour',"
        f" 1 + i % 2 FROM generate_series(1, {4 * WINDOW}) AS i"
    )
    async with keeping(db) as keeper:
        began = time.monotonic()
        await keeper.run_once()
        took_s = time.monotonic() - began
        assert len(rests) == 2 * 3  # two full windows of each priority, and what is behind them
        assert 0 < sum(rests) <= took_s * (2 / names_module.SHARE - 1)


def fill(db: Database, count: int, name: str = "add", queue: str = "default") -> None:
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, queue_name, enqueued_at)"
        " SELECT gen_random_uuid(), %s, %s, now() - interval '1 hour' FROM generate_series(1, %s)",
        name, queue, count,
    )  # fmt: skip


async def test_unknown_names_behind_many_known_tasks_are_found(db: Database) -> None:
    """Claims do not take what is in front: the queue is paused, or its workers are busy for hours."""
    await live(db, "w1", ["add"])
    factories.insert(db, "horsies_queue_state", queue_name="default", paused_at=ago(hours=1))
    fill(db, 2 * WINDOW + 200)
    task = factories.task(db, task_name="ghost")
    async with keeping(db, unknown_task_grace_ms=0) as keeper:
        await keeper.run_once()
    assert status(db, task) == "FAILED"


async def test_a_sweep_walks_so_far_and_the_next_one_goes_on(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each queue in turn: a large one does not keep a sweep from the others."""
    monkeypatch.setattr(names_module, "SHARE", 1.0)  # no rest
    monkeypatch.setattr(names_module, "WINDOWS", 2)
    await live(db, "w1", ["add"], ["default", "video"])
    fill(db, 2 * WINDOW + 200)
    tasks = [factories.task(db, task_name="ghost", queue_name=queue) for queue in ("video", "default")]
    async with keeping(db, unknown_task_grace_ms=0) as keeper:
        await keeper.run_once()
        assert [status(db, task) for task in tasks] == ["FAILED", "PENDING"]
        await keeper.run_once()
    assert [status(db, task) for task in tasks] == ["FAILED", "FAILED"]


async def test_a_restart_does_not_begin_the_grace_anew(db: Database) -> None:
    """Four seconds of the first worker and four of the second; ten minutes in between do not count."""
    await live(db, "w1", ["add"])
    task = factories.task(db, task_name="ghost", enqueued_at=ago(hours=1))
    async with keeping(db, unknown_task_grace_ms=7_000) as keeper:
        await keeper.run_once()
    missing_for(db, "ghost", "11 minutes")
    change(db, "w1", "started_at = now() - interval '604 s'")
    stop(db, "w1", "now() - interval '600 s'")
    await live(db, "w2", ["add"])
    async with keeping(db, unknown_task_grace_ms=7_000) as keeper:
        change(db, "w2", "started_at = now() - interval '1 s'")
        await keeper.run_once()
        assert status(db, task) == "PENDING"
        change(db, "w2", "started_at = now() - interval '4 s'")
        await keeper.run_once()
    assert status(db, task) == "FAILED"


async def test_a_killed_worker_counts_until_it_would_be_missed(db: Database) -> None:
    await live(db, "w1", ["add"])
    task = factories.task(db, task_name="ghost", enqueued_at=ago(hours=1))
    async with keeping(db, unknown_task_grace_ms=5_000) as keeper:
        await keeper.run_once()
        missing_for(db, "ghost", "1 hour")
        # alive for two seconds, silent for ten: three periods of those count
        change(db, "w1", "started_at = now() - interval '12 s', beat_at = now() - interval '10 s'")
        await live(db, "w2", ["add"])
        change(db, "w2", "started_at = now()")
        await keeper.run_once()
    assert status(db, task) == "FAILED"


async def test_nothing_ends_in_a_queue_that_no_live_worker_serves(db: Database) -> None:
    await live(db, "w1", ["add"], ["default"])
    task = factories.task(db, task_name="ghost", queue_name="video", enqueued_at=ago(hours=1))
    async with keeping(db, unknown_task_grace_ms=0) as keeper:
        await keeper.run_once()
        await keeper.run_once()
        assert status(db, task) == "PENDING"
        await live(db, "w2", ["add"], ["video"])
        await keeper.run_once()
    assert status(db, task) == "FAILED"


async def test_a_name_that_only_workers_of_another_queue_know_ends_after_the_grace(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    await live(db, "w1", ["add"], ["a"])
    await live(db, "w2", ["add", "report"], ["b"])
    wrong, right = (factories.task(db, task_name="report", queue_name=q, enqueued_at=ago(hours=1)) for q in "ab")
    async with keeping(db) as keeper:
        await keeper.run_once()
        assert (status(db, wrong), names(db)["report"]) == ("PENDING", (True, True))
        assert "1 waiting task named 'report' in queue a, and no live worker of the queue knows the name" in caplog.text
        assert "Live workers of 'b' know it: send it there, or start one of them with --queues a." in caplog.text
        missing_for(db, "report", "2 seconds")
        await live(db, "w3", ["add", "report"], ["b"])  # a restart there does not begin the grace anew
        await keeper.run_once()
    stored = factories.read(db, wrong)
    assert (stored["status"], stored["error_code"]) == ("FAILED", "WORKER_RESOLUTION_ERROR")
    assert "no live worker of queue 'a' has a task named 'report'; they know: 'add'." in stored["failed_reason"]
    assert status(db, right) == "PENDING"


async def test_a_name_that_workers_of_its_queue_knew_waits_for_the_long_grace_beside_another_queue(
    db: Database,
) -> None:
    """An app scaled to zero, of which another app has some tasks too."""
    await live(db, "w1", ["add"], ["a"])
    await live(db, "w2", ["report"], ["b"])
    await live(db, "w3", ["report"], ["a"])
    stop(db, "w3")
    task = factories.task(db, task_name="report", queue_name="a", enqueued_at=ago(hours=5))
    async with keeping(db, unknown_task_grace_ms=0, retired_ms=3_600_000) as keeper:
        await keeper.run_once()
        assert status(db, task) == "PENDING"
        stop(db, "w3", "now() - interval '61 minutes'")
        change(db, "w3", "started_at = now() - interval '62 minutes'")
        await keeper.run_once()
    assert status(db, task) == "FAILED"


async def test_while_the_queue_is_not_served_the_grace_is_kept(db: Database) -> None:
    """The only worker of queue `a` restarts; the worker of queue `b` knows the name."""
    await live(db, "w1", ["add"], ["a"])
    await live(db, "w2", ["report"], ["b"])
    task = factories.task(db, task_name="report", queue_name="a", enqueued_at=ago(hours=1))
    async with keeping(db) as keeper:
        await keeper.run_once()
        missing_for(db, "report", "1 hour")
        stop(db, "w1")
        await keeper.run_once()
        assert status(db, task) == "PENDING"
        await live(db, "w3", ["add"], ["a"])
        await keeper.run_once()
    assert status(db, task) == "FAILED"


async def test_a_worker_that_starts_during_a_sweep_keeps_its_tasks(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def rest(_: float) -> None:
        await live(db, "w2", ["ghost"])

    monkeypatch.setattr("horsies_worker.claim.unknown_names.asyncio.sleep", rest)
    await live(db, "w1", ["add"])
    fill(db, WINDOW + 200, "ghost")
    async with keeping(db, unknown_task_grace_ms=0) as keeper:
        await keeper.run_once()
    assert dict(db.execute("SELECT status, count(*) FROM horsies_tasks GROUP BY 1")) == {
        "FAILED": WINDOW, "PENDING": 200,
    }  # fmt: skip


async def test_beside_a_worker_of_an_older_release_nothing_ends(db: Database) -> None:
    """It has no list of names and may know any."""
    await live(db, "w1", ["add"])
    db.execute("INSERT INTO horsies_worker_instances (worker_id, period_ms) VALUES (%s, 60000)", id_of("older"))
    task = factories.task(db, task_name="ghost", enqueued_at=ago(hours=1))
    async with keeping(db, unknown_task_grace_ms=0) as keeper:
        await keeper.run_once()
        assert (status(db, task), "ghost" in names(db)) == ("PENDING", False)
        stop(db, "older")
        await keeper.run_once()
    assert status(db, task) == "FAILED"


async def test_a_name_that_was_known_waits_for_the_long_grace(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """Another app, scaled to zero: its tasks are not this one's to end."""
    await live(db, "w1", ["add"])
    await live(db, "w2", ["report"])
    stop(db, "w2")
    task = factories.task(db, task_name="report", enqueued_at=ago(hours=5))
    fresh = factories.task(db, task_name="report")
    async with keeping(db, unknown_task_grace_ms=0, retired_ms=3_600_000) as keeper:
        await keeper.run_once()
        assert status(db, task) == "PENDING"
        assert "they fail when they have waited for 3600 s" in caplog.text
        old = "now() - interval '61 minutes'"
        db.execute(
            f"UPDATE horsies_task_names SET first_known_at = {old}, last_known_at = {old} WHERE missing_since > {old}"
        )
        await keeper.run_once()
    assert (status(db, task), status(db, fresh)) == ("FAILED", "PENDING")
    assert "(last known at " in factories.read(db, task)["failed_reason"]


async def test_a_task_that_is_held_is_left_for_the_next_walk(db: Database) -> None:
    await live(db, "w1", ["add"])
    task = factories.task(db, task_name="ghost", enqueued_at=ago(hours=1))
    holder = await asyncpg.connect(db.url)
    async with keeping(db, unknown_task_grace_ms=0) as keeper:
        async with holder.transaction():
            await holder.execute("SELECT FROM horsies_tasks FOR UPDATE")
            await keeper.run_once()
            assert status(db, task) == "PENDING"
        await keeper.run_once()
    await holder.close()
    assert status(db, task) == "FAILED"


# -- retention -------------------------------------------------------------------------------------------------


async def test_sets_and_names_that_are_no_longer_used_are_pruned(db: Database) -> None:
    for worker, name in (("w1", "add"), ("w2", "old"), ("w3", "waited for")):
        await live(db, worker, [name])
    long_ago = "now() - interval '200 days'"
    db.execute(f"UPDATE horsies_task_sets SET recorded_at = {long_ago}")
    db.execute(
        f"UPDATE horsies_task_names SET first_known_at = {long_ago}, last_known_at = {long_ago},"
        " missing_since = CASE WHEN task_name = 'waited for' THEN now() END WHERE task_name <> 'add'"
    )
    change(db, "w2", f"beat_at = {long_ago}")
    app = make_app(db)
    session = Session(app.config.broker, "pruner", Queries(None, Identity()))
    await Pruner(session, app.config).run_once()
    assert sorted(db.execute("SELECT names FROM horsies_task_sets")) == [(["add"],), (["waited for"],)]
    assert names(db).keys() == {"add", "waited for"}
