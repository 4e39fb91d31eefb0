"""The claimer beside paused queues and under caps."""

import asyncio
import logging
import time

import asyncpg
import psycopg
import pytest

from horsies import CustomQueueConfig, QueueMode
from horsies._pg.locks import CAPS_LOCK
from horsies_worker.claim.state import CAPPED_REST
from horsies_worker.database.queries import Queries
from horsies_worker.identity import Identity
from tests.support import factories, invariants
from tests.support.claimers import Pool, claiming
from tests.support.factories import ago
from tests.support.postgres import Database
from tests.support.roles import account, login
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database


async def test_a_foreign_session_that_holds_the_lock_of_the_caps_is_named(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    stranger = login(db, f"stranger_{db.name[-8:]}")
    name = account(stranger)
    task = factories.task(db)
    try:
        with psycopg.connect(stranger.url, autocommit=True) as other, caplog.at_level(logging.INFO, "horsies.worker"):
            other.execute("SELECT pg_advisory_lock(%s, hashtext('public'))", (CAPS_LOCK,))
            async with claiming(db, Pool(), cluster_wide_cap=5) as yard:
                told = f"claim: session {other.info.backend_pid} (role {name}, "
                await eventually_async(lambda: told in caplog.text, timeout=30)
                assert "another worker" not in caplog.text
                assert yard.pool.ids == []
                other.execute("SELECT pg_advisory_unlock_all()")
                await yard.has(task)
                yard.finish()
    finally:
        db.execute(f'DROP ROLE "{name}"')


async def test_a_paused_queue_is_left_alone_until_it_is_resumed(db: Database) -> None:
    queues = [CustomQueueConfig(name="mail"), CustomQueueConfig(name="video")]
    queries = Queries(None, Identity())
    async with claiming(db, Pool(sync=5), queue_mode=QueueMode.CUSTOM, custom_queues=queues) as yard:
        await eventually_async(lambda: yard.is_idle)
        db.execute(queries.sql("pause_queue").replace("$1", "'mail'"))
        yard.claimer.on_queue_state()
        factories.task(db, id="mail", queue_name="mail")
        factories.task(db, id="video", queue_name="video")
        yard.claimer.on_news()
        await yard.has("video")
        yard.finish()
        await yard.has()
        yard.claimer.on_news()
        await asyncio.sleep(0.1)
        assert yard.pool.ids == []
        db.execute(queries.sql("resume_queue").replace("$1", "'mail'"))
        yard.claimer.on_queue_state()
        await yard.has("mail")
        yard.finish()


async def test_a_cap_is_used_again_as_soon_as_it_is_free(db: Database) -> None:
    queues = [CustomQueueConfig(name="mail", max_concurrency=2)]
    for number in range(6):
        factories.task(db, id=str(number), queue_name="mail", enqueued_at=ago(minutes=9 - number))
    async with claiming(db, Pool(sync=5), queue_mode=QueueMode.CUSTOM, custom_queues=queues) as yard:
        await yard.has("0", "1")
        for pair in (("2", "3"), ("4", "5")):
            yard.finish()
            await yard.has(*pair)
        yard.finish()
    assert invariants.check(db, qcap=2) == []


@pytest.mark.parametrize("cap", ["queue", "cluster"])
async def test_a_place_under_a_cap_that_another_worker_frees_is_taken_at_once(db: Database, cap: str) -> None:
    """Not at the next poll."""
    queues = [CustomQueueConfig(name="mail", max_concurrency=1 if cap == "queue" else None)]
    held = factories.task(db, "RUNNING", queue_name="mail", claimed_by_worker_id="worker-2")
    waiting = factories.task(db, queue_name="mail")
    config = {"cluster_wide_cap": 1} if cap == "cluster" else {}
    async with claiming(
        db, Pool(sync=5), poll_ms=60_000, queue_mode=QueueMode.CUSTOM, custom_queues=queues, **config
    ) as yard:
        listener = await asyncpg.connect(db.url)
        await listener.add_listener("task_done", lambda *_: yard.claimer.on_place_freed())
        await eventually_async(lambda: yard.is_idle and yard.claimer.state.capped_until is not None)
        assert yard.pool.ids == []
        factories.finish(db, held)
        await yard.has(waiting)
        yard.finish()
        await listener.close()


async def test_ends_elsewhere_are_no_news_where_no_cap_is_reached(db: Database) -> None:
    queues = [CustomQueueConfig(name="mail", max_concurrency=9)]
    async with claiming(db, Pool(sync=5), poll_ms=60_000, queue_mode=QueueMode.CUSTOM, custom_queues=queues) as yard:
        await eventually_async(lambda: yard.is_idle)
        before = len(yard.requests)
        for _ in range(20):
            yard.claimer.on_place_freed()
        await asyncio.sleep(0.1)
        assert len(yard.requests) == before


async def test_many_ends_elsewhere_do_not_keep_a_capped_claimer_busy(db: Database) -> None:
    queues = [CustomQueueConfig(name="mail", max_concurrency=1)]
    factories.task(db, "RUNNING", queue_name="mail", claimed_by_worker_id="worker-2")
    factories.task(db, queue_name="mail")
    async with claiming(db, Pool(sync=5), poll_ms=60_000, queue_mode=QueueMode.CUSTOM, custom_queues=queues) as yard:
        await eventually_async(lambda: yard.is_idle and yard.claimer.state.capped_until is not None)
        before, began = len(yard.requests), time.monotonic()
        while time.monotonic() - began < 0.5:
            yard.claimer.on_place_freed()
            await asyncio.sleep(0.001)
        # a claim under the lock takes a millisecond at least
        assert len(yard.requests) - before <= 2 + 0.5 / (CAPPED_REST * 0.001)
