"""Where the claimer looks: by hints, by announcements, and everywhere; and what it believes is not there."""

import asyncio
import time
from typing import Any

import psycopg
import pytest

from horsies import CustomQueueConfig, QueueMode
from horsies_worker.claim import hints
from horsies_worker.database.queries import NextRequest, Queries
from horsies_worker.identity import Identity
from tests.support import factories
from tests.support.claimers import Pool, a_first_one, calm, claiming, hears_of, is_scan, slow_scans
from tests.support.factories import ago, ahead
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database


# -- where it looks ------------------------------------------------------------------------------


async def test_a_backlog_is_worked_off_by_hints_and_everything_else_is_found_within_a_second(db: Database) -> None:
    """An older task, and a more urgent one, that appear behind the hints' back: without any notification."""
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, priority, enqueued_at) SELECT to_char(i, 'FM000000'), 'add', 50,"
        " now() - interval '1 hour' + i * interval '1 ms' FROM generate_series(1, 60000) AS i"
    )
    async with claiming(db, Pool(sync=5)) as yard:
        began = time.monotonic()
        while time.monotonic() - began < 0.4:
            await eventually_async(lambda: len(yard.pool.jobs) == 5, interval=0)
            yard.finish()
        hinted = [request for request in yard.requests if not is_scan(request)]
        assert len(hinted) > 0.8 * len(yard.requests)
        factories.task(db, id="older", priority=50, enqueued_at=ago(days=1))
        factories.task(db, id="urgent", priority=1)
        placed, found = time.monotonic(), dict[str, float]()
        while len(found) < 2 and time.monotonic() - placed < 5:
            await eventually_async(lambda: len(yard.pool.jobs) == 5, interval=0)
            found |= {id: time.monotonic() - placed for id in yard.pool.ids if id in ("older", "urgent")}
            yard.finish()
        assert found.keys() == {"older", "urgent"}
        assert max(found.values()) < 2.5  # within a second of looking by hints, and what a busy machine adds


async def test_while_full_scans_are_slow_tasks_are_found_by_hints(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A long transaction keeps thousands of dead entries at the front of the queue."""
    slow_scans(monkeypatch, hints.Scan.FULL, hints.Scan.FLOOR)
    with psycopg.connect(db.url) as holder:
        holder.execute("SELECT txid_current()")
        db.execute(
            "INSERT INTO horsies_tasks (id, task_name, enqueued_at) SELECT 'dead ' || i, 'add', now() - interval '1 h'"
            " FROM generate_series(1, 5000) AS i"
        )
        db.execute("UPDATE horsies_tasks SET enqueued_at = now() + interval '1 day'")
        async with claiming(db, Pool(sync=2)) as yard:
            first = factories.task(db)
            yard.claimer.on_news()
            await yard.has(first)
            yard.finish()
            for _ in range(20):
                task = factories.task(db)
                yard.claimer.on_news()
                await yard.has(task)
                yard.finish()
            scans = [request for request in yard.requests if is_scan(request)]
            assert len(scans) <= 4
            await asyncio.wait_for(yard.finalizer.drained(), 30)


# -- what is heard while idle --------------------------------------------------------------------


async def test_one_task_at_a_time_costs_one_statement_each(db: Database) -> None:
    async with claiming(db, Pool(sync=2)) as yard:
        await a_first_one(yard)
        before = len(yard.requests)
        for _ in range(5):
            await hears_of(yard, factories.task(db))
        asked = yard.requests[before:]
        assert sum(isinstance(request, NextRequest) for request in asked) >= 5
        await calm(yard)
        # in between it may have been calm for a moment, on a slow machine; but never twice for one task
        assert len(yard.requests) - before <= 5 * 2 + 1


async def test_one_notification_for_many_finds_them_all(db: Database) -> None:
    async with claiming(db, Pool(sync=9)) as yard:
        await a_first_one(yard)
        tasks = [factories.task(db) for _ in range(7)]
        await hears_of(yard, *tasks)


async def test_as_many_as_were_heard_of_are_taken_at_once(db: Database) -> None:
    async with claiming(db, Pool(sync=9)) as yard:
        await a_first_one(yard)
        before = len(yard.requests)
        tasks = [factories.task(db) for _ in range(3)]
        yard.claimer.on_news()
        yard.claimer.on_news()
        await hears_of(yard, *tasks)
        first = yard.requests[before]
        assert isinstance(first, NextRequest)
        assert first.limit == 4


@pytest.mark.parametrize(
    "elsewhere",
    [{"priority": 1}, {"good_until": ago(seconds=1)}, {"enqueued_at": ago(days=1)}],
)
async def test_what_is_not_where_the_last_one_was_is_found_at_once(db: Database, elsewhere: dict[str, Any]) -> None:
    async with claiming(db, Pool(sync=2)) as yard:
        await a_first_one(yard)
        task = factories.task(db, **elsewhere)
        yard.claimer.on_news()
        await eventually_async(lambda: factories.read(db, task)["status"] != "PENDING", timeout=2, interval=0.005)
        yard.finish()


async def test_news_of_two_places_are_both_followed(db: Database) -> None:
    async with claiming(db, Pool(sync=4)) as yard:
        await a_first_one(yard)
        here, there = factories.task(db), factories.task(db, priority=1)
        yard.claimer.on_news()
        await hears_of(yard, here, there)


async def test_a_full_scan_is_not_put_off_for_ever(db: Database) -> None:
    """Tasks are sent one after the other; an urgent one came back without a notification."""
    async with claiming(db, Pool(sync=1)) as yard:
        await a_first_one(yard)
        factories.task(db, id="urgent", priority=1)
        began = time.monotonic()
        while "urgent" not in yard.pool.ids and time.monotonic() - began < 10:
            yard.finish()
            factories.task(db)
            yard.claimer.on_news()
            await eventually_async(lambda: bool(yard.pool.ids), interval=0)
        assert time.monotonic() - began < 5
        yard.finish()


async def test_repeated_claims_end_when_the_queue_is_paused(db: Database) -> None:
    queues = [CustomQueueConfig(name="mail", priority=5)]
    queries = Queries(None, Identity())
    async with claiming(db, Pool(sync=5), queue_mode=QueueMode.CUSTOM, custom_queues=queues) as yard:
        await eventually_async(lambda: yard.is_idle)
        await hears_of(yard, factories.task(db, queue_name="mail"))
        await calm(yard)
        db.execute(queries.sql("pause_queue").replace("$1", "'mail'"))
        factories.task(db, queue_name="mail")
        asked = len(yard.requests)
        yard.claimer.on_news()
        await eventually_async(lambda: len(yard.requests) >= asked + 2 and yard.is_idle)
        assert isinstance(yard.requests[asked], NextRequest)
        assert yard.pool.ids == []


# -- kinds of which there is nothing -------------------------------------------------------------


async def test_places_of_one_kind_are_filled_without_looking_for_the_other(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry with sync and async tasks, a queue with sync ones only: one statement per place that comes free."""
    monkeypatch.setattr(hints, "SLOW_S", 60.0)  # no scan counts as slow here
    for number in range(40):
        factories.task(db, id=f"{number:02}", enqueued_at=ago(seconds=100 - number))
    async with claiming(db, Pool(sync=1, asynchronous=50)) as yard:
        await yard.has("00")
        before = len(yard.requests)
        for number in range(1, 31):
            yard.finish()
            await yard.has(f"{number:02}")
        asked = yard.requests[before:]
        assert sum(isinstance(request, NextRequest) for request in asked) >= 20
        assert len(asked) <= 45  # thirty, and a look at everything each second
        yard.finish()


async def test_news_end_the_belief_that_there_is_nothing_of_a_kind(db: Database) -> None:
    for number in range(5):
        factories.task(db, id=f"{number}", enqueued_at=ago(seconds=10 - number))
    async with claiming(db, Pool(sync=1, asynchronous=5)) as yard:
        await yard.has("0")
        yard.finish()
        await yard.has("1")
        poll = factories.task(db, task_name="poll")
        yard.claimer.on_news()
        await yard.has("1", poll)
        yard.finish()
        await eventually_async(lambda: yard.pool.ids == ["2"])
        yard.finish()


async def test_a_delayed_task_is_on_time_although_the_last_look_was_for_one_kind_only(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hints, "SLOW_S", 60.0)
    factories.task(db, id="first", enqueued_at=ago(seconds=9))
    async with claiming(db, Pool(sync=1, asynchronous=5), poll_ms=60_000) as yard:
        await yard.has("first")
        await eventually_async(lambda: yard.claimer.state.hints.no_async)  # it has looked for the other kind
        late = factories.task(db, enqueued_at=ahead(seconds=1))
        yard.finish()
        await yard.has(late, timeout=20)
        yard.finish()


async def test_what_found_no_room_is_claimed_when_there_is_some_again(db: Database) -> None:
    """Nothing of a kind was found; then some came, and more than there were places."""
    factories.task(db, id="sync", enqueued_at=ago(seconds=9))
    async with claiming(db, Pool(sync=1, asynchronous=2), poll_ms=60_000) as yard:
        await yard.has("sync")
        tasks = [factories.task(db, id=f"poll {number}", task_name="poll") for number in range(5)]
        yard.claimer.on_news()
        await yard.has("sync", *tasks[:2])
        yard.finish("sync")
        await yard.has(*tasks[:2])
        yard.finish()
        await yard.has(*tasks[2:4])
        yard.finish()
        await yard.has(tasks[4])
        yard.finish()


async def test_a_backlog_that_came_with_one_notification_is_worked_off(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it came, nothing of either kind was there; that is no longer to be believed."""
    monkeypatch.setattr(hints, "SLOW_S", 60.0)
    async with claiming(db, Pool(sync=2, asynchronous=5), poll_ms=60_000) as yard:
        await a_first_one(yard)
        db.execute("INSERT INTO horsies_tasks (id, task_name) SELECT i, 'add' FROM generate_series(1, 6) AS i")
        yard.claimer.on_news()
        for pair in (("1", "2"), ("3", "4"), ("5", "6")):
            await yard.has(*pair)
            yard.finish()
