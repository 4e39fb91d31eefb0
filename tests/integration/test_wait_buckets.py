"""Which ends reach a process: those of the buckets that it waits for, and no others. None is lost."""

import asyncio
import uuid
from typing import Any

import pytest

from horsies import Horsies, TaskHandle, TaskResult, gather_async
from horsies._pg import listener
from horsies.ids import new_id
from tests.support import factories
from tests.support.apps import add_task, async_app_on
from tests.support.chaosproxy import ChaosProxy, Mode
from tests.support.counting import calls, start_counting
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

DEAF = {"notify_poll_interval_ms": 300_000}
"""Polling would hide a missed notification: here it comes after five minutes."""
PATIENCE_MS = 30_000
LISTENERS = (
    "SELECT {} FROM pg_stat_activity WHERE datname = current_database() AND query ~ '^(UN)?LISTEN'"
    " AND application_name = 'horsies'"
)


def elsewhere(number: int = 1) -> str:
    """An id that this process did not make: its last two digits are another bucket."""
    bucket = (int(new_id()[-2:], 16) + number) % 256
    return f"{str(uuid.uuid4())[:-2]}{bucket:02x}"


async def waiting(handle: TaskHandle[Any], timeout_ms: int | None = PATIENCE_MS) -> asyncio.Task[TaskResult[Any, Any]]:
    """A `get_async` that has been started."""
    task = asyncio.create_task(handle.get_async(timeout_ms))
    await asyncio.sleep(0)
    return task


async def heard_here(app: Horsies, *task_ids: str) -> None:
    """LISTEN is active for the buckets of all of them."""
    waiters = app.database.here().waiters
    await eventually_async(lambda: all(waiters.is_listening_to(task_id) for task_id in task_ids))


def reads(db: Database) -> int:
    return calls(db, "query LIKE 'SELECT id, task_name, status, result FROM%'")


async def settled(db: Database, app: Horsies, task_ids: list[str]) -> None:
    """LISTEN is active for all of them, and the reads that follow that are over."""
    await heard_here(app, *task_ids)
    seen = -1
    while seen != (seen := reads(db)):
        await asyncio.sleep(0.1)


# -- who hears what ------------------------------------------------------------------------------


@pytest.mark.breaks("A2")
@pytest.mark.parametrize("public", [True, False], ids=["public", "quiet"])
async def test_ends_of_other_processes_do_not_reach_this_one(
    db: Database, monkeypatch: pytest.MonkeyPatch, public: bool
) -> None:
    """A thousand of them in twenty commits, before one of its own."""
    db.execute("SELECT horsies_set_public_done(%s)", public)
    monkeypatch.setattr(listener, "PROBE_EVERY_S", 60.0)
    others = [factories.task(db, "RUNNING", id=elsewhere(1 + number % 255)) for number in range(20)]
    db.execute(
        "INSERT INTO horsies_tasks"
        " (id, task_name, status, claimed_by_worker_id, claimed_at, claim_generation, started_at, worker_pid)"
        " SELECT lpad(n::text, 34, '0') || right(%s, 2), 't', 'RUNNING', 'w', t, 1, t, 1"
        " FROM generate_series(1, 1000) n, statement_timestamp() t",
        others[0],
    )
    with ChaosProxy(db.url) as proxy:
        async with async_app_on(db, broker={"direct_url": proxy.url}, resilience=DEAF) as app:
            handle = await add_task(app).send_async(1)
            result = await waiting(handle)
            await heard_here(app, handle.task_id)
            for other in others:
                factories.finish(db, other)
            for digit in range(10):
                db.execute(
                    "UPDATE horsies_tasks SET status = 'COMPLETED', completed_at = now(), terminal_at = now(),"
                    f" result = '{{}}' WHERE status = 'RUNNING' AND id LIKE '%%{digit}__'"
                )
            assert db.value("SELECT count(*) FROM horsies_tasks WHERE status = 'COMPLETED'") == 1_020
            factories.finish(db, handle.task_id, 3)  # notifications arrive in the order of the commits
            assert await result == TaskResult(ok=3)
            assert proxy.notifications <= 1  # a read of a busy machine may have been as quick


@pytest.mark.parametrize("public", [True, False], ids=["public", "quiet"])
async def test_a_task_of_another_process(db: Database, public: bool) -> None:
    db.execute("SELECT horsies_set_public_done(%s)", public)
    async with async_app_on(db, resilience=DEAF) as app:
        add_task(app)
        for task_id in (factories.task(db, id=elsewhere()), factories.task(db, id="no UUID at aLL")):
            result = await waiting(app.handle(task_id))
            await heard_here(app, task_id)
            factories.finish(db, task_id, 3)
            assert await result == TaskResult(ok=3)


async def test_a_workflow_of_another_process(db: Database) -> None:
    """Its channel is another one than that of a task with such an id."""
    async with async_app_on(db, resilience=DEAF) as app:
        workflow_id = elsewhere()
        db.execute("INSERT INTO horsies_workflows (id, name, status) VALUES (%s, 'x', 'RUNNING')", workflow_id)
        result = asyncio.create_task(app.workflow_handle(workflow_id).get_async(PATIENCE_MS))
        waiters = app.database.here().waiters
        await eventually_async(lambda: waiters.is_listening_to(workflow_id, is_workflow=True))
        assert not waiters.is_listening_to(workflow_id)
        db.execute("UPDATE horsies_workflows SET status = 'COMPLETED', completed_at = now(), result = '{\"ok\":7}'")
        assert (await result).ok_value == 7


@pytest.mark.breaks("A2")
async def test_waiters_in_every_bucket_share_one_connection(db: Database) -> None:
    async with async_app_on(db, resilience=DEAF, broker={"pool_max_size": 5}) as app:
        add = add_task(app)
        ids = [elsewhere(number) for number in range(256)]
        for task_id in ids:
            await add.with_options(task_id=task_id).send_async(1)
        start_counting(db)
        results = [await waiting(app.handle(task_id, add), None) for task_id in [*ids, *ids]]
        await settled(db, app, ids)
        assert db.value(LISTENERS.format("count(*)")) == 1
        db.execute(
            "UPDATE horsies_tasks SET status = 'COMPLETED', completed_at = now(), terminal_at = now(),"
            " result = '{\"ok\":3}'"
        )
        async with asyncio.timeout(60):
            assert {result.ok_value for result in await asyncio.gather(*results)} == {3}


# -- nothing is lost when a bucket is added or left ----------------------------------------------


async def test_the_row_is_read_after_listen_is_in_force_for_a_bucket_that_is_added(db: Database) -> None:
    """The task ends after the first read and before LISTEN: only a second read can see it."""
    with ChaosProxy(db.url) as proxy:
        async with async_app_on(db, broker={"direct_url": proxy.url}, resilience=DEAF) as app:
            add_task(app)
            own, first, second = (
                factories.task(db),
                factories.task(db, id=elsewhere()),
                factories.task(db, id=elsewhere()),
            )
            start_counting(db)
            results = [await waiting(app.handle(own))]
            await settled(db, app, [own])
            before = reads(db)
            proxy.set(Mode.FREEZE)
            results.append(await waiting(app.handle(first)))
            await eventually_async(lambda: reads(db) == before + 1, describe="the first read")
            results.append(await waiting(app.handle(second)))  # while LISTEN is on its way
            await eventually_async(lambda: reads(db) == before + 2, describe="the first read of the second")
            for task_id in (first, second):
                factories.finish(db, task_id, 3)
            await asyncio.sleep(0)
            assert [result.done() for result in results] == [False, False, False]
            proxy.set(Mode.PASS)
            assert await asyncio.gather(*results[1:]) == [TaskResult(ok=3)] * 2
            factories.finish(db, own, 4)  # the bucket that was there before is still heard
            assert await results[0] == TaskResult(ok=4)


async def test_a_bucket_is_left_after_its_last_waiter_and_others_stay(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies._pg.waiters.LINGER_S", 0.3)
    async with async_app_on(db, resilience=DEAF) as app:
        add_task(app)
        own, other = factories.task(db), factories.task(db, id=elsewhere())
        left = [(f'UNLISTEN "task_done_{other[-2:]}"',)]
        waiters = app.database.here().waiters
        result = await waiting(app.handle(own))
        for _ in range(2):
            impatient = [await waiting(app.handle(other), timeout_ms) for timeout_ms in (300, 600)]
            await heard_here(app, own, other)
            assert not (await impatient[0]).is_ok()
            assert waiters.is_listening_to(other)
            assert not (await impatient[1]).is_ok()
            await eventually_async(lambda: not waiters.is_listening_to(other))
            await eventually_async(lambda: db.execute(LISTENERS.format("query")) == left)
            assert waiters.is_listening_to(own)
        factories.finish(db, own, 3)
        assert await result == TaskResult(ok=3)
        await eventually_async(lambda: db.value(LISTENERS.format("count(*)")) == 0)


async def test_a_waiter_that_comes_while_its_bucket_is_being_left(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """UNLISTEN is on its way: it must not rely on the LISTEN of before."""
    monkeypatch.setattr("horsies._pg.waiters.LINGER_S", 0.2)
    monkeypatch.setattr("horsies._pg.waiters.JUST_SENT_MS", 0)
    with ChaosProxy(db.url) as proxy:
        async with async_app_on(db, broker={"direct_url": proxy.url}, resilience=DEAF) as app:
            add_task(app)
            own, other = factories.task(db), factories.task(db, id=elsewhere())
            start_counting(db)
            kept = await waiting(app.handle(own))
            brief = await waiting(app.handle(other))
            await settled(db, app, [own, other])
            proxy.set(Mode.FREEZE)
            brief.cancel()
            waiters = app.database.here().waiters
            await eventually_async(lambda: not waiters.is_listening_to(other), describe="UNLISTEN was sent")
            before = reads(db)
            result = await waiting(app.handle(other))
            await eventually_async(lambda: reads(db) == before + 1, describe="the first read")
            factories.finish(db, other, 3)
            proxy.set(Mode.PASS)
            assert await result == TaskResult(ok=3)
            factories.finish(db, own, 4)
            assert await kept == TaskResult(ok=4)


async def test_a_reconnect_listens_to_every_bucket_again(db: Database) -> None:
    """Some end while the connection is down, the others by notification afterwards."""
    slow = {**DEAF, "reconnect_initial_ms": 500, "reconnect_max_ms": 500, "reconnect_jitter": False}
    async with async_app_on(db, resilience=slow) as app:
        add_task(app)
        ids = [factories.task(db, id=elsewhere(number)) for number in range(6)]
        results = [await waiting(app.handle(task_id)) for task_id in ids]
        await heard_here(app, *ids)
        db.execute(LISTENERS.format("pg_terminate_backend(pid)"))
        waiters = app.database.here().waiters
        await eventually_async(lambda: not any(map(waiters.is_listening_to, ids)))
        for number, task_id in enumerate(ids[:3]):
            factories.finish(db, task_id, number)
        added = factories.task(db, id=elsewhere(99))  # comes while there is no connection
        results.append(await waiting(app.handle(added)))
        ids.append(added)
        await heard_here(app, *ids)
        for number, task_id in enumerate(ids[3:], 3):
            factories.finish(db, task_id, number)
        assert [result.ok_value for result in await asyncio.gather(*results)] == list(range(7))


async def test_a_connection_that_swallows_a_listen_is_replaced(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """A half-open connection answers neither a probe nor the LISTEN for a new bucket."""
    monkeypatch.setattr(listener, "PROBE_EVERY_S", 60.0)
    monkeypatch.setattr(listener, "LISTEN_TIMEOUT_S", 0.5)
    with ChaosProxy(db.url) as proxy:
        async with async_app_on(db, broker={"direct_url": proxy.url}, resilience=DEAF) as app:
            add_task(app)
            own, other = factories.task(db), factories.task(db, id=elsewhere())
            results = [await waiting(app.handle(own))]
            await heard_here(app, own)
            accepted = proxy.accepted
            proxy.set(Mode.DROP)
            results.append(await waiting(app.handle(other)))
            await eventually_async(lambda: proxy.accepted > accepted, describe="another connection")
            for task_id in (own, other):
                factories.finish(db, task_id, 3)
            proxy.set(Mode.PASS)
            proxy.cut()
            assert await asyncio.gather(*results) == [TaskResult(ok=3)] * 2


async def test_an_app_that_waits_for_its_own_tasks_alone_has_one_channel(db: Database) -> None:
    async with async_app_on(db, resilience=DEAF) as app:
        handles = await add_task(app).send_many_async([(number,) for number in range(50)])
        start_counting(db)
        results = asyncio.create_task(gather_async(handles, timeout_ms=PATIENCE_MS))
        await heard_here(app, handles[0].task_id)
        for handle in handles:
            factories.finish(db, handle.task_id, 3)
        assert {result.ok_value for result in await results} == {3}
        assert calls(db, "query LIKE 'LISTEN%'") == 1
