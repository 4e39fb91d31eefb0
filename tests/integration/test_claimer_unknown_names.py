"""The claimer beside tasks of names that this process does not know."""

import asyncio

import pytest

from horsies_worker.claim import hints
from horsies_worker.database.queries import ClaimRequest
from tests.support import factories
from tests.support.claimers import Pool, calm, claiming, hears_of, slow_scans
from tests.support.factories import ago, ahead
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database


def fill_ghosts(
    db: Database, count: int, enqueued_at: str = "now() - interval '1 minute'", priority: int = 100
) -> None:
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, priority, enqueued_at)"
        f" SELECT 'ghost ' || i, 'ghost', {priority}, {enqueued_at} FROM generate_series(1, {count}) AS i"
    )


async def test_a_worker_that_does_not_know_the_name_takes_nothing_from_one_that_does(db: Database) -> None:
    db.execute("INSERT INTO horsies_tasks (id, task_name) SELECT i, 'add' FROM generate_series(1, 300) AS i")
    async with (
        claiming(db, Pool(sync=50), hears=True, knows_add=False, worker_id="stranger") as stranger,
        claiming(db, Pool(sync=5), hears=True) as knower,
    ):
        while db.value("SELECT count(*) FROM horsies_tasks WHERE status <> 'COMPLETED'"):
            await eventually_async(lambda: bool(knower.pool.jobs) or knower.is_idle, interval=0)
            knower.finish()
            await asyncio.wait_for(knower.finalizer.drained(), 30)
        assert stranger.pool.ids == []
    assert db.execute("SELECT status, claim_generation, count(*) FROM horsies_tasks GROUP BY 1, 2") == [
        ("COMPLETED", 1, 300)
    ]


async def test_tasks_of_unknown_names_are_not_touched(db: Database) -> None:
    tasks = [
        factories.task(db, task_name="ghost"),
        factories.task(db, task_name="ghost", good_until=ago(seconds=1), enqueued_at=ago(minutes=1)),
        factories.task(db, task_name="ghost", enqueued_at=ahead(seconds=0.2)),
    ]
    before = [factories.read(db, task) for task in tasks]
    async with claiming(db, Pool(), poll_ms=1_000, prefetch_buffer=3, claim_lease_ms=60_000) as yard:
        await hears_of(yard, factories.task(db))
        await asyncio.sleep(0.3)
        yard.claimer.on_news()
        await calm(yard)
    assert [factories.read(db, task) for task in tasks] == before
    db.execute("DELETE FROM horsies_tasks WHERE good_until IS NOT NULL")


async def test_ready_and_coming_tasks_of_unknown_names_leave_a_worker_at_rest(db: Database) -> None:
    fill_ghosts(db, 500)
    db.execute("UPDATE horsies_tasks SET enqueued_at = now() + random() * interval '2 s' WHERE random() < 0.5")
    async with claiming(db, Pool(), poll_ms=60_000) as yard:
        await eventually_async(lambda: yard.is_idle)
        before = len(yard.requests)
        await asyncio.sleep(0.5)
        assert len(yard.requests) - before <= 2


async def test_beside_unknown_names_known_tasks_start_at_once_and_full_scans_are_rare(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_scans(monkeypatch, hints.Scan.FULL)  # as if there were a hundred thousand of them
    fill_ghosts(db, 2_000)
    async with claiming(db, Pool(sync=2), poll_ms=60_000) as yard:
        await eventually_async(lambda: yard.is_idle)
        for priority in (100, 1, 50, 100, 100):
            await hears_of(yard, factories.task(db, priority=priority))
            await eventually_async(lambda: yard.is_idle)
        full = [one for one in yard.requests if isinstance(one, ClaimRequest) and one.discover and one.floor is None]
        assert len(full) <= 2  # how long the first takes says nothing


async def test_what_comes_back_behind_the_floor_is_found_by_the_next_full_scan(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "SLOW_S", 0.0)
    monkeypatch.setattr(hints, "SHARE", 100)
    fill_ghosts(db, 1_500)
    async with claiming(db, Pool(sync=2), poll_ms=60_000) as yard:
        await eventually_async(lambda: yard.is_idle)
        task = factories.task(db, enqueued_at=ago(hours=1))
        yard.claimer.on_news()
        await yard.has(task, timeout=20)  # not a poll of a minute later
        yard.finish()
