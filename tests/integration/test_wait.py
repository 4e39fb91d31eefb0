"""Waiting for results: one LISTEN for everybody, no result missed, no error thrown."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest

from horsies import (
    ConfigurationError,
    Horsies,
    OperationalErrorCode,
    OutcomeCode,
    RetrievalCode,
    TaskError,
    TaskHandle,
    TaskResult,
    as_completed,
    as_completed_async,
    gather,
    gather_async,
)
from horsies._pg import channels, waiters as waiters_module
from horsies.ids import new_id
from horsies.tasks import TaskFunction
from tests.support import factories
from tests.support.apps import UNREACHABLE, add_task, app_on, async_app_on
from tests.support.chaosproxy import ChaosProxy, Mode
from tests.support.counting import calls, start_counting
from tests.support.postgres import Database
from tests.support.waiting import eventually, eventually_async

DEAF = {"notify_poll_interval_ms": 300_000}
"""Polling would hide a missed notification: here it comes after five minutes."""
PATIENCE_MS = 30_000

LISTENING = (
    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%'"
    " AND application_name = 'horsies'"
)
CONNECTED = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'horsies'"


@pytest.fixture
async def app(db: Database) -> AsyncIterator[Horsies]:
    async with async_app_on(db, resilience=DEAF) as app:
        yield app


@pytest.fixture
def add(app: Horsies) -> TaskFunction[[int, int], int]:
    return add_task(app)


async def waiting(handle: TaskHandle[Any], timeout_ms: int | None = PATIENCE_MS) -> asyncio.Task[TaskResult[Any, Any]]:
    """A `get_async` that has been started."""
    task = asyncio.create_task(handle.get_async(timeout_ms))
    await asyncio.sleep(0)
    return task


def code_of(result: TaskResult[Any, TaskError]) -> str:
    return result.err_value.error_code


# -- one result ----------------------------------------------------------------------------------


async def test_a_result_comes_by_notification(db: Database, add: TaskFunction[[int, int], int]) -> None:
    handle = await add.send_async(1, 2)
    result = await waiting(handle)
    await eventually_async(lambda: db.value(LISTENING) == 1)
    factories.finish(db, handle.task_id, 3)
    assert await result == TaskResult(ok=3)


def test_a_result_without_a_loop(db: Database) -> None:
    with app_on(db, resilience=DEAF) as app:
        handle = add_task(app).send(1, 2)
        end = threading.Thread(
            target=lambda: eventually(lambda: db.value(LISTENING) == 1) and factories.finish(db, handle.task_id, 3)
        )
        end.start()
        assert handle.get(timeout_ms=PATIENCE_MS) == TaskResult(ok=3)
        end.join()


async def test_a_task_that_ended_long_ago(db: Database, app: Horsies) -> None:
    add_task(app)
    assert await app.handle(factories.task(db, "COMPLETED")).get_async(PATIENCE_MS) == TaskResult(ok=1)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        ("FAILED", "SMTP_DOWN"),
        ("CANCELLED", OutcomeCode.TASK_CANCELLED),
        ("EXPIRED", OutcomeCode.TASK_EXPIRED),
    ],
)
async def test_an_end_without_a_value(db: Database, app: Horsies, status: str, code: str) -> None:
    result = await app.handle(factories.task(db, status)).get_async(PATIENCE_MS)
    assert code_of(result) == code
    assert type(result.err_value.error_code) is type(code)


async def test_a_final_result_is_kept_on_the_handle(db: Database, add: TaskFunction[[int, int], int]) -> None:
    handle = await add.send_async(1)
    factories.finish(db, handle.task_id, 7)
    first = await handle.get_async(PATIENCE_MS)
    db.execute("DELETE FROM horsies_tasks")
    assert await handle.get_async(PATIENCE_MS) is first
    assert await asyncio.to_thread(handle.get, 0) is first


async def test_a_timeout_is_honoured_and_not_kept(db: Database, add: TaskFunction[[int, int], int]) -> None:
    handle = await add.send_async(1)
    await handle.get_async(timeout_ms=50)  # connects
    for timeout_ms in (50, 400):
        began = time.monotonic()
        result = await handle.get_async(timeout_ms)
        took = time.monotonic() - began
        assert code_of(result) is RetrievalCode.WAIT_TIMEOUT
        assert timeout_ms / 1000 <= took + 0.01 < timeout_ms / 1000 + 2
        assert str(timeout_ms) in result.err_value.message
    factories.finish(db, handle.task_id, 7)
    assert await handle.get_async(PATIENCE_MS) == TaskResult(ok=7)


async def test_timeout_0_looks_once_and_holds_no_listen(db: Database, add: TaskFunction[[int, int], int]) -> None:
    handle = await add.send_async(1)
    assert code_of(await handle.get_async(0)) is RetrievalCode.WAIT_TIMEOUT
    factories.finish(db, handle.task_id, 7)
    assert await handle.get_async(0) == TaskResult(ok=7)
    assert db.value(LISTENING) == 0


TIMEOUTS: list[tuple[Any, str]] = [
    (-1, "-1 ms is out of range"),
    ("5", "must be a whole number, got '5'"),
    (float("nan"), "must be a whole number, got nan"),
    (1.5, "must be a whole number, got 1.5"),
    (True, "must be a whole number, got True"),
    (10**400, "ms is out of range"),
    (11 * 366 * 86_400_000, "ms is out of range"),
]


async def test_a_timeout_that_makes_no_sense_is_refused(
    db: Database, app: Horsies, add: TaskFunction[[int, int], int]
) -> None:
    handle, ended = await add.send_async(1), await add.send_async(1)
    factories.finish(db, ended.task_id, 7)
    await ended.get_async()  # a result that is kept must not hide the mistake
    for timeout, told in TIMEOUTS:
        for one in (handle, ended, app.workflow_handle(handle.task_id)):
            with pytest.raises(ConfigurationError, match=rf"get\.timeout_ms: .*{told}"):
                await one.get_async(timeout)
            with pytest.raises(ConfigurationError, match=rf"get\.timeout_ms: .*{told}"):
                await asyncio.to_thread(one.get, timeout)
        for many in ([], [handle, ended]):
            with pytest.raises(ConfigurationError, match=rf"gather\.timeout_ms: .*{told}"):
                await gather_async(many, timeout_ms=timeout)
            with pytest.raises(ConfigurationError, match=rf"gather\.timeout_ms: .*{told}"):
                await asyncio.to_thread(gather, many, timeout_ms=timeout)
            with pytest.raises(ConfigurationError, match=rf"as_completed\.timeout_ms: .*{told}"):
                await anext(as_completed_async(many, timeout_ms=timeout))
            with pytest.raises(ConfigurationError, match=rf"as_completed\.timeout_ms: .*{told}"):
                await asyncio.to_thread(next, as_completed(many, timeout_ms=timeout))


async def test_several_wait_for_one(db: Database, app: Horsies, add: TaskFunction[[int, int], int]) -> None:
    handle = await add.send_async(1)
    others = [await waiting(app.handle(handle.task_id)) for _ in range(5)]
    impatient = await waiting(handle, 20)
    assert code_of(await impatient) is RetrievalCode.WAIT_TIMEOUT
    factories.finish(db, handle.task_id, 7)
    assert {result.ok_value for result in await asyncio.gather(*others)} == {7}


# -- no such task --------------------------------------------------------------------------------


async def test_an_id_that_was_never_sent(app: Horsies) -> None:
    """F83: at once, whatever the time-out."""
    for timeout_ms in (0, None):
        assert code_of(await app.handle(new_id()).get_async(timeout_ms)) is RetrievalCode.TASK_NOT_FOUND


async def test_a_row_that_retention_deleted_while_somebody_waited(db: Database) -> None:
    async with async_app_on(db, resilience={"notify_poll_interval_ms": 100}) as app:
        result = await waiting(app.handle(factories.task(db)))
        await eventually_async(lambda: db.value(LISTENING) == 1)
        db.execute("DELETE FROM horsies_tasks")
        assert code_of(await result) is RetrievalCode.TASK_NOT_FOUND


@pytest.mark.parametrize("task_id", ["a\0b", "a\ud800", "x" * 37, "", 5, None, ["x"]], ids=repr)
async def test_an_impossible_id_harms_nobody_else(db: Database, app: Horsies, task_id: Any) -> None:
    """All waiters share one read: an id that the driver refuses must not reach it."""
    good = factories.task(db)
    waits = await waiting(app.handle(good))
    assert code_of(await app.handle(task_id).get_async(PATIENCE_MS)) is RetrievalCode.TASK_NOT_FOUND
    factories.finish(db, good, 3)
    assert (await waits).ok_value == 3


# -- lost notifications --------------------------------------------------------------------------


async def test_a_task_that_ends_while_listen_is_down_is_found_when_it_is_back(db: Database) -> None:
    """F40, F81: the listener's backend is killed and the task ends in the gap; no poll would come to help."""
    slow = {**DEAF, "reconnect_initial_ms": 500, "reconnect_max_ms": 500, "reconnect_jitter": False}
    async with async_app_on(db, resilience=slow) as app:
        handle = await add_task(app).send_async(1)
        result = await waiting(handle)
        await eventually_async(lambda: db.value(LISTENING) == 1)
        for _ in range(2):
            db.execute(LISTENING.replace("count(*)", "pg_terminate_backend(pid)"))
            await eventually_async(lambda: db.value(LISTENING) == 0)
            if _:
                factories.finish(db, handle.task_id, 3)
            await eventually_async(lambda: db.value(LISTENING) == 1)
        assert await result == TaskResult(ok=3)


async def test_news_of_others_do_not_put_off_the_poll(db: Database) -> None:
    """What nobody told of is found within a poll, also while somebody else hears something more often than that."""
    async with async_app_on(db, resilience={"notify_poll_interval_ms": 400}) as app:
        silent, loud = factories.task(db), factories.task(db)
        start_counting(db)
        results = [await waiting(app.handle(task_id)) for task_id in (silent, loud)]
        # the looks of the beginning are over, the one at the start of LISTEN too
        await eventually_async(lambda: db.value(LISTENING) == 1 and reads(db) >= 3)
        db.execute("DELETE FROM horsies_tasks WHERE id = %s", silent)
        async with asyncio.timeout(PATIENCE_MS / 1000):
            while not results[0].done():
                db.execute("SELECT pg_notify(%s, %s)", channels.task_done(loud), loud)
                await asyncio.wait(results[:1], timeout=0.05)
        assert code_of(await results[0]) is RetrievalCode.TASK_NOT_FOUND
        factories.finish(db, loud, 3)
        assert await results[1] == TaskResult(ok=3)


async def test_the_row_is_read_after_listen_is_in_force(db: Database) -> None:
    """The task ends after the first read and before LISTEN: only a second read can see it."""
    with ChaosProxy(db.url) as proxy:
        proxy.set(Mode.FREEZE)
        async with async_app_on(db, broker={"direct_url": proxy.url}, resilience=DEAF) as app:
            handle = await add_task(app).send_async(1)
            start_counting(db)
            result = await waiting(handle)
            await eventually_async(lambda: reads(db) == 1, describe="the first read")
            factories.finish(db, handle.task_id, 3)
            assert not result.done()
            proxy.set(Mode.PASS)
            assert await result == TaskResult(ok=3)


def reads(db: Database) -> int:
    return calls(db, "query LIKE 'SELECT id, task_name, status, result FROM%'")


async def test_without_any_notification_the_poll_finds_it(db: Database) -> None:
    db.execute("ALTER TABLE horsies_tasks DISABLE TRIGGER USER")
    async with async_app_on(db, resilience={"notify_poll_interval_ms": 100}) as app:
        handle = await add_task(app).send_async(1)
        result = await waiting(handle)
        await eventually_async(lambda: db.value(LISTENING) == 1)
        factories.finish(db, handle.task_id, 3)
        assert await result == TaskResult(ok=3)


async def test_a_network_that_swallows_everything_delays_and_loses_nothing(db: Database) -> None:
    bounds = {"connect_timeout_ms": 200, "command_timeout_ms": 200}
    with ChaosProxy(db.url) as proxy:
        async with async_app_on(proxy.url, broker=bounds, resilience={"notify_poll_interval_ms": 100}) as app:
            handle = await add_task(app).send_async(1)
            result = await waiting(handle)
            await eventually_async(lambda: db.value(LISTENING) == 1)
            proxy.set(Mode.DROP)
            factories.finish(db, handle.task_id, 3)
            assert code_of(await handle.get_async(1_000)) is OperationalErrorCode.BROKER_ERROR
            proxy.set(Mode.PASS)
            assert await result == TaskResult(ok=3)


# -- one LISTEN, and only while somebody waits ---------------------------------------------------


async def test_listen_is_held_only_while_somebody_waits(
    db: Database, add: TaskFunction[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies._pg.waiters.LINGER_S", 0.3)
    handle = await add.send_async(1)
    assert db.value(LISTENING) == 0
    for again in range(2):
        assert code_of(await handle.get_async(100)) is RetrievalCode.WAIT_TIMEOUT
        await eventually_async(lambda: db.value(LISTENING) == 0, describe=f"LISTEN has ended, round {again}")
    result = await waiting(handle)
    await eventually_async(lambda: db.value(LISTENING) == 1)
    factories.finish(db, handle.task_id, 3)
    assert await result == TaskResult(ok=3)
    await eventually_async(lambda: db.value(LISTENING) == 0)


@pytest.mark.breaks("A2")
async def test_two_thousand_waiters_share_one_listen_and_a_bounded_pool(db: Database) -> None:
    """F82 and a promise of the release: connections are counted while all of them wait."""
    count = 2_000
    async with async_app_on(db, resilience=DEAF, broker={"pool_max_size": 5}) as app:
        add = add_task(app)
        handles = await add.send_many_async([(number,) for number in range(count)])
        start_counting(db)
        results = [await waiting(handle, None) for handle in handles]
        await eventually_async(lambda: db.value(LISTENING) == 1 and reads(db) >= 2)
        assert db.value(CONNECTED) <= 1 + 5
        ended = """
            UPDATE horsies_tasks SET status = 'COMPLETED', completed_at = now(), terminal_at = now(),
                   result = json_build_object('ok', kwargs::json -> 'a')::text
             WHERE kwargs::jsonb ->> 'a' LIKE %s"""
        for digit in range(10):  # ten commits, each with 200 notifications
            db.execute(ended, f"%{digit}")
            assert db.value(CONNECTED) <= 1 + 5
        async with asyncio.timeout(60):
            found = await asyncio.gather(*results)
        assert [result.ok_value for result in found] == list(range(count))
        assert db.value(CONNECTED) <= 1 + 5
        assert reads(db) < count / 2, "reads are batched"


# -- many handles --------------------------------------------------------------------------------


async def test_gather_keeps_the_order_of_the_handles(db: Database, add: TaskFunction[[int, int], int]) -> None:
    handles = await add.send_many_async([(number,) for number in range(4)])
    for handle, value in reversed(list(zip(handles, "abcd", strict=True))):
        factories.finish(db, handle.task_id, ord(value))
    found = await gather_async([*handles, handles[0]], timeout_ms=PATIENCE_MS)
    assert [chr(result.ok_value) for result in found] == ["a", "b", "c", "d", "a"]
    assert await gather_async([]) == []


async def test_gather_has_one_timeout_for_all(db: Database, add: TaskFunction[[int, int], int]) -> None:
    handles = await add.send_many_async([(number,) for number in range(20)])
    factories.finish(db, handles[3].task_id, 3)
    began = time.monotonic()
    found = await gather_async(handles, timeout_ms=300)
    assert time.monotonic() - began < 5
    assert [result.is_ok() for result in found] == [number == 3 for number in range(20)]


async def test_as_completed_yields_in_the_order_of_the_ends(db: Database, add: TaskFunction[[int, int], int]) -> None:
    handles = await add.send_many_async([(number,) for number in range(3)])
    order = [handles[2], handles[0]]
    seen: list[TaskHandle[int]] = []
    factories.finish(db, order[0].task_id, 1)
    async for handle, result in as_completed_async(handles, timeout_ms=3_000):
        seen.append(handle)
        if len(seen) < 2:
            factories.finish(db, order[len(seen)].task_id, 1)
        elif len(seen) == 3:
            assert code_of(result) is RetrievalCode.WAIT_TIMEOUT
    assert seen == [*order, handles[1]]
    assert [pair async for pair in as_completed_async([])] == []


async def test_leaving_as_completed_early_stops_the_waiting(db: Database, add: TaskFunction[[int, int], int]) -> None:
    handles = await add.send_many_async([(number,) for number in range(3)])
    factories.finish(db, handles[1].task_id, 1)
    pairs = as_completed_async(handles)
    async for handle, _ in pairs:
        assert handle == handles[1]
        break
    await pairs.aclose()
    assert [task for task in asyncio.all_tasks() if "one" in repr(task.get_coro())] == []


def test_gather_and_as_completed_without_a_loop(db: Database) -> None:
    with app_on(db, resilience=DEAF) as app:
        handles = add_task(app).send_many([(number,) for number in range(3)])
        for handle in handles[:2]:
            factories.finish(db, handle.task_id, 5)
        found = gather(handles, timeout_ms=300)
        assert [result.is_ok() for result in found] == [True, True, False]
        pairs = list(as_completed(app.handle(handle.task_id) for handle in handles[:2]))
        assert {handle.task_id for handle, _ in pairs} == {handle.task_id for handle in handles[:2]}
        for _, result in as_completed(handles):  # left early, with one still waiting
            assert result.is_ok()
            break
        assert gather([]) == []
        assert list(as_completed([])) == []


# -- results that cannot be read -----------------------------------------------------------------


@pytest.mark.parametrize(
    "stored", ['{"ok":"three"}', '{"ok":null}', "not json", "[]", '{"ok":1,"err":{}}', '{"err":{}}', '{"ok":NaN}']
)
async def test_a_result_of_another_shape(db: Database, app: Horsies, stored: str) -> None:
    add = add_task(app)
    task_id = factories.task(db, "COMPLETED", result=stored)
    for handle in (app.handle(task_id), app.handle(task_id, add)):
        result = await handle.get_async(PATIENCE_MS)
        assert code_of(result) is OperationalErrorCode.RESULT_DESERIALIZATION_ERROR
        assert "add" in result.err_value.message


async def test_a_handle_made_for_another_task(db: Database, app: Horsies) -> None:
    task_id = factories.task(db, "COMPLETED", task_name="add")
    result = await app.handle(task_id, add_task(app, "multiply")).get_async(PATIENCE_MS)
    assert code_of(result) is OperationalErrorCode.RESULT_DESERIALIZATION_ERROR
    assert "is a 'add', this handle was made for 'multiply'" in result.err_value.message


async def test_a_task_that_is_not_known_here_gives_plain_data(db: Database, app: Horsies) -> None:
    task_id = factories.task(db, "COMPLETED", task_name="elsewhere", result='{"ok":{"a":[1,null]}}')
    assert (await app.handle(task_id).get_async(PATIENCE_MS)).ok_value == {"a": [1, None]}


def test_handles_are_values(db: Database) -> None:
    with app_on(db) as app:
        add = add_task(app)
        handle = add.send(1)
        assert handle == app.handle(handle.task_id)
        assert handle != app.handle(new_id())
        assert handle != handle.task_id
        assert len({handle, app.handle(handle.task_id, add)}) == 1
        assert repr(handle) == f"<TaskHandle add {handle.task_id}>"


# -- the database is away ------------------------------------------------------------------------


async def test_an_unreachable_database_is_an_err(add: TaskFunction[[int, int], int]) -> None:
    async with async_app_on(UNREACHABLE) as app:
        for timeout_ms in (0, 300):
            result = await app.handle(new_id()).get_async(timeout_ms)
            assert code_of(result) is OperationalErrorCode.BROKER_ERROR
            assert "ConnectionRefusedError" in result.err_value.message
            assert "hunter2" not in repr(result)


async def test_a_database_without_tables_is_told_at_once(empty_db: Database) -> None:
    async with async_app_on(empty_db) as app:
        for timeout_ms in (0, None):
            result = await app.handle(new_id()).get_async(timeout_ms)
            assert code_of(result) is OperationalErrorCode.BROKER_ERROR
            assert "run `horsies-migrate up`" in result.err_value.message


async def test_an_outage_is_not_remembered_and_not_final(db: Database) -> None:
    with ChaosProxy(db.url) as proxy:
        async with async_app_on(proxy.url, resilience={"notify_poll_interval_ms": 100}) as app:
            handle = await add_task(app).send_async(1)
            proxy.set(Mode.CUT)
            assert code_of(await handle.get_async(300)) is OperationalErrorCode.BROKER_ERROR
            proxy.set(Mode.PASS)
            # a fresh wait that is too short for any answer says so, and not that the database was away before
            assert code_of(await handle.get_async(1)) is RetrievalCode.WAIT_TIMEOUT
            factories.finish(db, handle.task_id, 3)
            assert await handle.get_async(PATIENCE_MS) == TaskResult(ok=3)


async def test_closing_the_app_ends_the_waiting(db: Database) -> None:
    async with async_app_on(db) as app:
        results = [await waiting(app.handle(factories.task(db)), None) for _ in range(3)]
        await eventually_async(lambda: db.value(LISTENING) == 1)
    for result in await asyncio.wait_for(asyncio.gather(*results), 10):
        assert code_of(result) is OperationalErrorCode.BROKER_ERROR
        assert "the app was closed" in result.err_value.message


async def test_closing_races_with_the_last_result(db: Database) -> None:
    """A cancellation that meets the wake-up it waits for must not be swallowed: the close would hang."""
    for _ in range(20):
        async with async_app_on(db) as app:
            assert (await app.handle(factories.task(db, "COMPLETED")).get_async(PATIENCE_MS)).is_ok()


async def listening(db: Database, app: Horsies, monkeypatch: pytest.MonkeyPatch) -> None:
    """LISTEN is in force, and whatever is sent from here on counts as just sent, however slow this machine is."""
    ended = factories.task(db, "COMPLETED")
    assert (await app.handle(ended).get_async(PATIENCE_MS)).is_ok()
    # the server's word is not enough: until the client knows it too, it reads once more
    await eventually_async(lambda: app.database.here().waiters.is_listening_to(ended))
    monkeypatch.setattr(waiters_module, "JUST_SENT_MS", 60_000)


async def test_a_young_task_that_ended_before_anybody_waited_is_found(
    db: Database, app: Horsies, add: TaskFunction[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its notification came to nobody; the look that was put off for its sake finds it."""
    await listening(db, app, monkeypatch)
    handle = await add.send_async(1, 2)
    factories.finish(db, handle.task_id, 3)
    await asyncio.sleep(0.05)  # let the notification pass
    assert await handle.get_async(PATIENCE_MS) == TaskResult(ok=3)


async def test_while_listening_a_round_trip_reads_once(
    db: Database, app: Horsies, add: TaskFunction[[int, int], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    await listening(db, app, monkeypatch)
    monkeypatch.setattr(waiters_module, "FIRST_READ_S", 60.0)
    start_counting(db)
    handle = await add.send_async(1, 2)
    result = await waiting(handle)
    factories.finish(db, handle.task_id, 3)
    assert await result == TaskResult(ok=3)
    assert reads(db) == 1
