"""The service that turns free slots into running tasks, on a real database; the pool is a stand-in."""

import asyncio
from typing import Any

import psycopg
import pytest

from horsies import CustomQueueConfig, QueueMode
from horsies_worker.database.queries import Queries
from tests.support import factories
from tests.support.chaosproxy import ChaosProxy, When
from tests.support.claimers import Pool, claiming
from tests.support.factories import ago, ahead
from tests.support.hands import Hands
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database


# -- room ----------------------------------------------------------------------------------------


async def test_it_takes_as_many_as_there_is_room_for_and_more_when_there_is(db: Database) -> None:
    tasks = [factories.task(db, id=f"{number}", enqueued_at=ago(minutes=9 - number)) for number in range(5)]
    async with claiming(db, Pool(sync=2), poll_ms=300_000) as yard:  # a poll would be one more claim
        await yard.has(*tasks[:2])
        assert len(yard.owned) == 2
        yard.finish("0")
        await yard.has("1", "2")
        yard.finish()
        await yard.has("3", "4")
        yard.finish()
        await yard.has()
        await asyncio.wait_for(yard.finalizer.drained(), 30)
        assert len(yard.owned) == 0
        await eventually_async(lambda: yard.is_idle)
        assert len(yard.requests) <= 2 * 4  # each wake: what there was, and that there is no more
    assert set(db.execute("SELECT status FROM horsies_tasks")) == {("COMPLETED",)}


async def test_a_notification_wakes_it_at_once(db: Database) -> None:
    async with claiming(db, Pool()) as yard:
        await eventually_async(lambda: yard.is_idle)
        task = factories.task(db)
        yard.claimer.on_news()
        await yard.has(task)
        yard.finish()


async def test_without_a_notification_the_poll_finds_it(db: Database) -> None:
    async with claiming(db, Pool(), poll_ms=1_000) as yard:
        await eventually_async(lambda: yard.is_idle)
        task = factories.task(db)
        await yard.has(task)
        yard.finish()


async def test_a_delayed_task_starts_when_it_is_due(db: Database) -> None:
    task = factories.task(db, enqueued_at=ahead(seconds=0.6))
    async with claiming(db, Pool()) as yard:
        await yard.has(task)
        stored = factories.read(db, task)
        assert (
            0 <= (stored["started_at"] - stored["enqueued_at"]).total_seconds() < 2
        )  # not a poll of five seconds later
        yard.finish()


async def test_an_idle_worker_asks_for_nothing(db: Database) -> None:
    async with claiming(db, Pool()) as yard:
        await eventually_async(lambda: yard.is_idle)
        before = len(yard.requests)
        yard.claimer.on_room()
        await asyncio.sleep(0.3)
        assert len(yard.requests) == before


async def test_what_is_handed_ahead_comes_in_the_order_of_its_priority(db: Database) -> None:
    queues = [CustomQueueConfig(name="a", priority=50), CustomQueueConfig(name="b", priority=50)]
    for number, (queue, priority, minutes) in enumerate(
        [("a", 50, 5), ("b", 50, 4), ("a", 50, 3), ("b", 1, 1), ("a", 9, 2), ("b", 50, 6)]
    ):
        factories.task(
            db, id=str(number), task_name="noop", queue_name=queue, priority=priority, enqueued_at=ago(minutes=minutes)
        )
    pool = Pool(sync=1, ahead=10, short=frozenset({"noop"}))
    async with claiming(db, pool, queue_mode=QueueMode.CUSTOM, custom_queues=queues) as yard:
        await yard.has(*"012345")
        assert pool.ids == ["3", "4", "5", "0", "1", "2"]
        yard.finish()


async def test_a_worker_holds_no_more_than_its_limit(db: Database) -> None:
    for number in range(9):
        factories.task(db, id=str(number), enqueued_at=ago(minutes=9 - number))
    async with claiming(db, Pool(sync=5), max_per_worker=3) as yard:
        await yard.has("0", "1", "2")
        await asyncio.sleep(0.1)
        assert len(yard.pool.jobs) == 3
        yard.finish("1")
        await yard.has("0", "2", "3")
        yard.finish()
        await yard.has("4", "5", "6")


async def test_results_that_wait_for_the_database_hold_the_claims_back(db: Database) -> None:
    """And when they are written the claims go on, without waiting for a poll."""
    for number in range(9):
        factories.task(db, id=str(number), enqueued_at=ago(minutes=9 - number))
    async with claiming(db, Pool(sync=3), max_claim_batch=1) as yard:
        await yard.has("0", "1", "2")
        with psycopg.connect(db.url) as other:
            other.execute("SELECT FROM horsies_tasks WHERE id IN ('0', '1') FOR UPDATE")  # the ends cannot be written
            yard.finish("0", "1")
            await asyncio.sleep(0.2)
            assert yard.pool.ids == ["2"]
        await yard.has("2", "3", "4")


# -- the buffer ----------------------------------------------------------------------------------


async def test_the_buffer_is_started_before_anything_new(db: Database) -> None:
    for number in range(6):
        factories.task(db, id=str(number), enqueued_at=ago(minutes=9 - number))
    async with claiming(db, Pool(sync=1), prefetch_buffer=2, claim_lease_ms=60_000) as yard:
        await yard.has("0")
        await eventually_async(lambda: len(yard.buffer) == 2)
        assert dict(db.execute("SELECT id, status FROM horsies_tasks WHERE claimed")) == {
            "1": "CLAIMED",
            "2": "CLAIMED",
        }
        yard.finish()
        await yard.has("1")
        await eventually_async(lambda: [task.job.task_id for task in yard.buffer.waiting()] == ["2", "3"])


# -- kinds ---------------------------------------------------------------------------------------


async def test_synchronous_tasks_do_not_hide_async_ones(db: Database) -> None:
    for number in range(30):
        factories.task(db, id=f"sync {number:02}", enqueued_at=ago(minutes=60 - number))
    factories.task(db, id="async", task_name="poll")
    async with claiming(db, Pool(sync=1, asynchronous=5)) as yard:
        await yard.has("sync 00", "async")


async def test_what_one_worker_passes_over_another_can_take_at_the_same_time(db: Database) -> None:
    """A claim that only has async places does not lock the synchronous tasks that it looks at."""
    factories.task(db, id="sync")
    factories.task(db, id="async", task_name="poll")
    async with Hands.on(db, "asynchronous") as one, Hands.on(db) as two:
        transaction = one.connection.transaction()
        await transaction.start()
        names = {"async_names": ["poll"], "sync_names": ["add"]}
        assert len(await one.claim(5, room_sync=0, room_async=5, **names)) == 1
        assert [row["id"] for row in await two.claim(5, **names)] == ["sync"]
        await transaction.rollback()


# -- trouble -------------------------------------------------------------------------------------


@pytest.mark.parametrize("when", When)
async def test_a_claim_whose_answer_was_lost_is_given_back_and_made_again(db: Database, when: When) -> None:
    """RUNNING in the database, and no child has it: the reaper would call it a crash."""
    tasks = [factories.task(db) for _ in range(3)]
    with ChaosProxy(db.url) as proxy:
        proxy.cut_at("UPDATE horsies_tasks t\\s+SET status = c.status", when)
        async with claiming(db, Pool(sync=3), url=proxy.url, hears=True) as yard:
            await yard.has(*tasks)
            assert proxy.cuts == 1
            yard.finish()
            await asyncio.wait_for(yard.finalizer.drained(), 30)
    assert db.execute("SELECT status, count(*) FROM horsies_tasks GROUP BY 1") == [("COMPLETED", 3)]
    assert db.value("SELECT count(*) FROM horsies_task_attempts") == 3


async def test_an_unexpected_error_does_not_end_the_loop(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([RuntimeError("a bug"), KeyError("another")])
    real = Queries.claim

    async def failing(self: Queries, *args: Any, **kwargs: Any) -> Any:
        if error := next(failures, None):
            raise error
        return await real(self, *args, **kwargs)

    monkeypatch.setattr(Queries, "claim", failing)
    task = factories.task(db)
    async with claiming(db, Pool()) as yard:
        await yard.has(task)
        yard.finish()
