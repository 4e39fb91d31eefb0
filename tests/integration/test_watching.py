"""`watch`: what it yields, when it ends, and that many watches cost one statement."""

import asyncio
import json

import pytest

from horsies import Horsies, TaskError, TaskResult, UsageError, testing
from horsies.watching import Progress, Watch, look, watch
from tests.support.apps import QUICK, UNREACHABLE, app_on, make_app
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

START = (
    "UPDATE horsies_tasks SET status = 'RUNNING', claimed_by_worker_id = 'w', claimed_at = now(), started_at = now(),"
    " worker_pid = 1 WHERE id = %s"
)
PROGRESS = "UPDATE horsies_tasks SET progress = %s WHERE id = %s"
COMPLETE = (
    "UPDATE horsies_tasks SET status = 'COMPLETED', completed_at = now(), terminal_at = now(), result = '{\"ok\":1}'"
    " WHERE id = %s"
)
LISTENING = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query ILIKE 'LISTEN%'"


async def collected(states: Watch) -> list[Progress]:
    return [state async for state in states]


@pytest.mark.breaks("A2")  # ended by hand, without an attempt
async def test_from_now_until_the_end(db: Database) -> None:
    with app_on(db) as app:
        async with app:
            handle = await app.send_async("count", 3)
            async with watch(handle, interval_ms=100) as states:
                first = await states.next()
                assert first == Progress(handle.task_id, "count", first.status, attempt=1)
                assert first.status == "PENDING"
                db.execute(START, handle.task_id)
                db.execute(PROGRESS, json.dumps({"page": 1}), handle.task_id)
                seen = await anext(states)
                while seen.value is None:
                    seen = await anext(states)
                assert (seen.status, seen.value) == ("RUNNING", {"page": 1})
                db.execute(COMPLETE, handle.task_id)
                (last,) = await collected(states)
                assert last.is_ended
            async with watch(handle) as states:  # one that has ended
                assert await collected(states) == [last]
            assert await look(handle) == last


@pytest.mark.breaks("A2")  # ended by hand, without an attempt
async def test_the_end_does_not_wait_for_the_interval(db: Database) -> None:
    with app_on(db) as app:
        async with app:
            handle = await app.send_async("count", 3)
            async with watch(handle, interval_ms=60_000) as states, asyncio.timeout(20):
                await states.next()
                db.execute(START, handle.task_id)
                await eventually_async(lambda: db.value(LISTENING))
                db.execute(COMPLETE, handle.task_id)
                assert [state.status for state in await collected(states)] == ["COMPLETED"]


async def test_many_watches_share_their_reads(db: Database) -> None:
    with app_on(db, broker={"pool_max_size": 1}) as app:
        async with app:
            handles = [await app.send_async("count", number) for number in range(5)]
            watches = [watch(handles[at % 5], interval_ms=100) for at in range(200)]
            for one in watches:
                await one.__aenter__()
            before = len(asyncio.all_tasks())
            async with asyncio.timeout(20):
                assert {state.status for state in [await one.next() for one in watches] if state} == {"PENDING"}
            assert len(asyncio.all_tasks()) <= before + 8  # one for each of the five ends, and the listener's
            for one in watches:
                await one.__aexit__()
            await eventually_async(lambda: not [t for t in asyncio.all_tasks() if "watch" in t.get_name()])


async def test_a_long_interval_does_not_delay_others(db: Database) -> None:
    """Neither the reads of another task nor those of the same one, of which the long watch has an old state."""
    with app_on(db) as app:
        async with app, asyncio.timeout(20):
            handle, other = await app.send_async("count", 1), await app.send_async("count", 2)
            async with watch(handle, interval_ms=3_600_000) as long:
                await long.next()
                async with watch(other, interval_ms=100) as states:
                    await states.next()
                    db.execute(START, other.task_id)
                    assert (await anext(states)).status == "RUNNING"
            async with watch(handle, interval_ms=3_600_000) as long:
                await long.next()
                db.execute(START, handle.task_id)
                await asyncio.sleep(0.1)  # the state of the long watch is older than this interval
                async with watch(handle, interval_ms=100) as states:
                    assert (await anext(states)).status == "RUNNING"
                assert (await anext(long)).status == "RUNNING"


async def test_ids_that_are_none(db: Database) -> None:
    with app_on(db) as app:

        @app.task("count")
        def count(number: int) -> TaskResult[int, TaskError]:
            return TaskResult(ok=number)

        @app.task("other")
        def other() -> TaskResult[int, TaskError]:
            return TaskResult(ok=1)

        async with app:
            sent = await count.send_async(1)
            for handle in (
                app.handle("01980f6e-3b5c-7d31-9a57-0a4c7e1f2b11"), app.handle("x\0"), app.handle("\ud800"),
                app.handle(sent.task_id, other), app.workflow_handle(sent.task_id),
            ):  # fmt: skip
                assert await look(handle) is None
                async with watch(handle) as states:
                    assert await collected(states) == []
            assert (await look(app.handle(sent.task_id, count))).name == "count"


async def test_a_run(db: Database) -> None:
    with app_on(db) as app:

        @app.task("count")
        def count(number: int) -> TaskResult[int, TaskError]:
            return TaskResult(ok=number)

        spec = app.workflow("counts", [count.node(node_id="a")(1), count.node(node_id="b")(2)])
        async with app:
            run = await spec.start_async()
            state = await look(run)
            assert (state.name, state.nodes_total, state.nodes_ended) == ("counts", 2, 0)
            batch = await app.batch_async([count.call(1), count.call(2)])
            assert (await look(batch)).nodes_total == 2


async def test_an_outage_is_waited_out(db: Database) -> None:
    """A watch keeps its state while the database refuses, and goes on afterwards."""
    with app_on(db, resilience=QUICK) as app:
        async with app:
            handle = await app.send_async("count", 3)
            async with watch(handle, interval_ms=100) as states:
                await states.next()
                db.execute(
                    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                    " WHERE datname = current_database() AND pid <> pg_backend_pid()"
                )
                db.execute(START, handle.task_id)
                async with asyncio.timeout(20):
                    assert (await anext(states)).status == "RUNNING"


async def test_a_database_that_is_away() -> None:
    from horsies import BrokerError

    app = make_app(UNREACHABLE, resilience={**QUICK, "send_attempts": 1})
    async with app:
        with pytest.raises(BrokerError, match="Connect call failed") as told:
            await look(app.handle("01980f6e-3b5c-7d31-9a57-0a4c7e1f2b11"))
        assert "hunter2" not in str(told.value)


async def test_wrong_usage() -> None:
    app: Horsies = make_app(UNREACHABLE)
    handle = app.handle("x")
    with pytest.raises(UsageError, match="watch takes a handle, not 'x'"):
        watch("x")
    for wrong in (1, 10**9, True, 0.5, None, "1"):
        with pytest.raises(UsageError, match="interval_ms"):
            watch(handle, interval_ms=wrong)
    with pytest.raises(UsageError, match="async with"):
        await watch(handle).next()


async def test_inside_the_testing_kit() -> None:
    app = make_app(UNREACHABLE)

    @app.task("count")
    def count(number: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=number)

    with testing.inline(app):
        handle = await count.send_async(1)
        async with watch(handle) as states:
            assert [state.status for state in await collected(states)] == ["COMPLETED"]
        assert await look(app.handle("01980f6e-3b5c-7d31-9a57-0a4c7e1f2b11")) is None
