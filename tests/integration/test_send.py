"""The producer's verbs against a real database: what each of them writes, and what a repeated one does not."""

import asyncio
import hashlib
import json
import re
import uuid
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import asyncpg
import pytest

import horsies_schema
from horsies import (
    CustomQueueConfig,
    Horsies,
    QueueMode,
    RetryPolicy,
    SendErrorCode,
    TaskError,
    TaskResult,
    TaskSendError,
    UsageError,
)
from horsies.tasks import TaskFunction
from tests.support import factories
from tests.support.apps import UNREACHABLE, add_task, app_on, async_app_on, make_app
from tests.support.counting import said, start_counting
from tests.support.postgres import Database

QUEUES = {
    "queue_mode": QueueMode.CUSTOM,
    "custom_queues": [CustomQueueConfig("mail", priority=40), CustomQueueConfig("slow")],
}


@pytest.fixture
async def app(db: Database) -> AsyncIterator[Horsies]:
    async with async_app_on(db) as app:
        yield app


@pytest.fixture
def add(app: Horsies) -> TaskFunction[[int, int], int]:
    return add_task(app)


def is_later(difference: timedelta, *, by: timedelta) -> bool:
    """`created_at` is when the transaction began; the statement came a moment after."""
    return timedelta(0) <= difference - by < timedelta(seconds=5)


# -- one task ------------------------------------------------------------------------------------


def test_send_writes_one_row(db: Database) -> None:
    with app_on(db) as app:
        policy = RetryPolicy.intervals([1, 2], auto_retry_for=["DOWN"])
        handle = add_task(app, retry_policy=policy, timeout_ms=9_000).send(1, b=2)
    row = factories.read(db, handle.task_id)
    assert factories.count(db) == 1
    assert not handle.is_duplicate
    assert uuid.UUID(handle.task_id).version == 7
    assert (row["task_name"], row["queue_name"], row["priority"], row["status"]) == ("add", "default", 100, "PENDING")
    assert (row["args"], row["kwargs"]) == (None, '{"a":1,"b":2}')
    assert (row["max_retries"], row["retry_count"], row["unique_key"], row["good_until"]) == (2, 0, None, None)
    assert '"timeout_ms":9000' in row["task_options"]
    assert '"retry_policy"' in row["task_options"]
    assert re.fullmatch("[0-9a-f]{32}", row["enqueue_sha"])
    assert is_later(row["enqueued_at"] - row["created_at"], by=timedelta(0))
    assert abs(row["sent_at"] - datetime.now(UTC)) < timedelta(minutes=1)


async def test_send_async_is_one_round_trip(db: Database, app: Horsies, add: TaskFunction[[int, int], int]) -> None:
    await add.send_async(0)  # connects, checks the schema
    start_counting(db)
    for number in (1, 2, 3, 1, 2, 3):  # the second three find the first
        await add.with_options(unique_key=str(number)).send_async(number)
    await add.send_async(1)
    statements = said(db)
    assert sorted(calls for _, calls, _ in statements) == [1, 6], statements


def test_calling_a_task_runs_it_here(db: Database) -> None:
    app = make_app(UNREACHABLE)
    assert add_task(app)(2, 3) == TaskResult(ok=5)

    @app.task("later")
    async def later(a: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=a)

    assert asyncio.run(later(4)) == TaskResult(ok=4)  # type: ignore[arg-type]


# -- when ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "seconds"), [(90, 90), (0, 0), (1.5, 1.5), (timedelta(minutes=3), 180), (timedelta(0), 0)]
)
async def test_relative_times_are_the_databases(db: Database, app: Horsies, when: Any, seconds: float) -> None:
    """Seconds and timedeltas are added in SQL: a producer whose clock is off schedules right all the same."""
    add = add_task(app)
    scheduled = await add.schedule_async(when, 1)
    delayed = await add.with_options(delay=when).send_async(1)
    for handle in (scheduled, delayed):
        row = factories.read(db, handle.task_id)
        assert is_later(row["enqueued_at"] - row["created_at"], by=timedelta(seconds=seconds))


async def test_a_moment_is_taken_as_given(db: Database, app: Horsies, add: TaskFunction[[int, int], int]) -> None:
    at = datetime(2040, 5, 1, 12, 0, tzinfo=timezone(timedelta(hours=2)))
    scheduled = await add.schedule_async(at, 1)
    with_eta = await add.with_options(eta=at).send_async(1)
    for handle in (scheduled, with_eta):
        assert factories.read(db, handle.task_id)["enqueued_at"] == at


def test_schedule_without_a_loop(db: Database) -> None:
    with app_on(db) as app:
        row = factories.read(db, add_task(app).schedule(60, 1).task_id)
    assert is_later(row["enqueued_at"] - row["created_at"], by=timedelta(minutes=1))


async def test_schedule_beside_a_delay_or_an_eta_is_refused(db: Database, add: TaskFunction[[int, int], int]) -> None:
    """Two times for one task: neither wins silently."""
    eta = datetime.now(UTC) + timedelta(hours=1)
    for sender, name in ((add.with_options(delay=5), "delay"), (add.with_options(eta=eta), "eta")):
        with pytest.raises(UsageError, match=rf"so does with_options\({name}=...\): leave that out, or use send"):
            await sender.schedule_async(timedelta(hours=1), 1)
        with pytest.raises(UsageError, match=name):
            sender.schedule(eta, 1)
    assert factories.count(db) == 0


async def test_a_send_late_in_a_transaction_does_not_jump_the_queue(
    db: Database, conn: asyncpg.Connection, add: TaskFunction[[int, int], int]
) -> None:
    async with conn.transaction():
        began = await conn.fetchval("SELECT now()")
        other = await add.send_async(1)  # somebody else's, meanwhile
        mine = await add.with_options(connection=conn).send_async(2)
    first, second = factories.read(db, other.task_id), factories.read(db, mine.task_id)
    assert began < first["enqueued_at"] < second["enqueued_at"]


async def test_good_until_as_moment_and_as_span(db: Database, app: Horsies) -> None:
    moment = datetime(2040, 1, 1, tzinfo=UTC)
    add = add_task(app, good_until=timedelta(minutes=10))
    own = factories.read(db, (await add.send_async(1)).task_id)
    assert is_later(own["good_until"] - own["created_at"], by=timedelta(minutes=10))
    of_the_send = factories.read(db, (await add.with_options(good_until=moment).send_async(1)).task_id)
    assert of_the_send["good_until"] == moment
    shorter = factories.read(db, (await add.with_options(good_until=timedelta(seconds=5)).send_async(1)).task_id)
    assert is_later(shorter["good_until"] - shorter["created_at"], by=timedelta(seconds=5))


# -- options -------------------------------------------------------------------------------------


async def test_priority_is_the_sends_else_the_tasks_else_the_queues_else_100(db: Database) -> None:
    async with async_app_on(db, **QUEUES) as app:
        own = add_task(app, "own", queue_name="mail", priority=7)
        queues = add_task(app, "queues", queue_name="mail")
        plain = add_task(app, "plain", queue_name="slow")
        found = [
            factories.read(db, (await sender.send_async(1)).task_id)["priority"]
            for sender in (own.with_options(priority=3), own, queues, plain)
        ]
    assert found == [3, 7, 40, 100]


async def test_options_add_up_and_leave_the_task_alone(db: Database) -> None:
    async with async_app_on(db, **QUEUES) as app:
        add = add_task(app, queue_name="mail")
        sender = add.with_options(priority=5).with_options(queue_name="slow").with_options(unique_key="k")
        changed = factories.read(db, (await sender.send_async(1)).task_id)
        plain = factories.read(db, (await add.send_async(1)).task_id)
    assert (changed["priority"], changed["queue_name"], changed["unique_key"]) == (5, "slow", "k")
    assert (plain["priority"], plain["queue_name"], plain["unique_key"]) == (40, "mail", None)


async def test_custom_queues_must_be_named(db: Database) -> None:
    async with async_app_on(db, **QUEUES) as app:
        with pytest.raises(TaskSendError, match=r"this app has the queues mail, slow [^$]*name one") as raised:
            await app.send_async("elsewhere", order=1)
        assert raised.value.code is SendErrorCode.VALIDATION_FAILED
        with pytest.raises(TaskSendError, match="'default' is not a queue of this app"):
            await app.with_options(queue_name="default").send_async("elsewhere", order=1)
        assert factories.count(db) == 0
        handle = await app.with_options(queue_name="slow").send_async("elsewhere", order=1)
    assert factories.read(db, handle.task_id)["queue_name"] == "slow"


async def test_one_custom_queue_needs_no_name(db: Database) -> None:
    only = {"queue_mode": QueueMode.CUSTOM, "custom_queues": [CustomQueueConfig("mail")]}
    async with async_app_on(db, **only) as app:
        handle = await app.send_async("elsewhere")
    assert factories.read(db, handle.task_id)["queue_name"] == "mail"


# -- by name, by stub ----------------------------------------------------------------------------


async def test_by_name_a_known_task_is_sent_as_itself(db: Database, app: Horsies) -> None:
    add = add_task(app, timeout_ms=5_000)
    by_name = factories.read(db, (await app.send_async("add", 1, b=2)).task_id)
    itself = factories.read(db, (await add.send_async(1, 2)).task_id)
    for column in ("kwargs", "args", "task_options", "max_retries", "queue_name", "priority", "enqueue_sha"):
        assert by_name[column] == itself[column]
    with pytest.raises(TaskSendError, match="parameter 'a'"):
        await app.send_async("add", "one")


async def test_by_name_an_unknown_task_says_nothing_about_its_options(db: Database, app: Horsies) -> None:
    handle = await app.send_async("elsewhere", 1, when=datetime(2030, 1, 1, tzinfo=UTC), tags={"b", "a"})
    row = factories.read(db, handle.task_id)
    assert (row["task_options"], row["max_retries"]) == (None, 0)
    assert row["args"] == "[1]"
    assert row["kwargs"] == '{"when":"2030-01-01T00:00:00Z","tags":["a","b"]}'


async def test_a_stub_is_typed_but_its_options_are_the_workers(db: Database, app: Horsies) -> None:
    @app.declare("bill", priority=9)
    def bill(order: int, *, copy: bool = False) -> TaskResult[str, TaskError]: ...

    row = factories.read(db, (await bill.send_async(7, copy=True)).task_id)
    assert (row["task_name"], row["kwargs"], row["priority"]) == ("bill", '{"order":7,"copy":true}', 9)
    assert (row["task_options"], row["max_retries"]) == (None, 0)
    with pytest.raises(TaskSendError, match="parameter 'order'"):
        await bill.send_async("seven")  # type: ignore[arg-type]
    assert not callable(bill)


# -- many ----------------------------------------------------------------------------------------


async def test_send_many_is_one_statement_in_the_order_of_the_calls(
    db: Database, add: TaskFunction[[int, int], int]
) -> None:
    await add.send_async(0)
    start_counting(db)
    handles = await add.send_many_async(add.call(number, b=number) for number in range(500))
    assert [calls for _, calls, _ in said(db)] == [1]
    assert [handle.task_id for handle in handles] == sorted(handle.task_id for handle in handles)
    rows = dict(db.execute("SELECT id, kwargs FROM horsies_tasks"))
    assert [rows[handle.task_id] for handle in handles] == [f'{{"a":{n},"b":{n}}}' for n in range(500)]


async def test_send_many_takes_tuples_and_mappings_and_carries_options(db: Database, app: Horsies) -> None:
    policy = RetryPolicy.fixed(1, max_retries=3, auto_retry_for=["DOWN"])
    add = add_task(app, retry_policy=policy)
    sender = add.with_options(priority=3, delay=60, good_until=timedelta(minutes=5))
    handles = await sender.send_many_async([(1, 2), {"a": 3}, add.call(4)])
    for handle, kwargs in zip(handles, ['{"a":1,"b":2}', '{"a":3}', '{"a":4}'], strict=True):
        row = factories.read(db, handle.task_id)
        assert (row["kwargs"], row["priority"], row["max_retries"]) == (kwargs, 3, 3)
        assert is_later(row["enqueued_at"] - row["created_at"], by=timedelta(seconds=60))
        assert is_later(row["good_until"] - row["created_at"], by=timedelta(minutes=5))
        assert row["task_options"] is not None


def test_send_many_of_nothing_asks_nobody() -> None:
    app = make_app(UNREACHABLE)
    assert add_task(app).send_many([]) == []
    assert asyncio.run(add_task(app).send_many_async([])) == []


async def test_send_many_refuses_calls_of_another_task_or_with_other_options(db: Database, app: Horsies) -> None:
    add = add_task(app)

    @app.task("subtract")
    def subtract(a: int, b: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=a - b)

    with pytest.raises(TaskSendError, match=r"item 1 is a call of task 'subtract'.*send_many of 'add'"):
        await add.send_many_async([add.call(1, 2), subtract.call(3, 4)])
    later = add.with_options(delay=60)
    with pytest.raises(TaskSendError, match=r"item 0 was made by with_options"):
        await add.send_many_async([later.call(1, 2)])
    assert factories.count(db) == 0
    assert len(await later.send_many_async([later.call(1, 2), add.call(3, 4)])) == 2


def test_send_many_without_a_loop(db: Database) -> None:
    with app_on(db) as app:
        handles = add_task(app).send_many([(1, 1), (2, 2)])
    assert factories.count(db) == len(handles) == 2


async def test_send_many_is_all_or_none(db: Database, add: TaskFunction[[int, int], int]) -> None:
    with pytest.raises(TaskSendError, match=r"send_many item 2: .*parameter 'a'"):
        await add.send_many_async([(1,), (2,), ("three",), (4,)])
    assert factories.count(db) == 0


# -- again ---------------------------------------------------------------------------------------


async def test_the_same_id_with_the_same_call_is_the_same_task(
    db: Database, add: TaskFunction[[int, int], int]
) -> None:
    at = datetime(2040, 1, 1, 12, tzinfo=UTC)
    mine = str(uuid.uuid4())
    first = await add.with_options(task_id=mine, eta=at).send_async(1, 2)
    same_moment = at.astimezone(timezone(timedelta(hours=3)))
    again = await add.with_options(task_id=mine, eta=same_moment).send_async(b=2, a=1)
    assert first == again
    assert first.task_id == mine
    assert not again.is_duplicate
    assert factories.count(db) == 1


@pytest.mark.parametrize(
    "other",
    [
        {"call": (1, 3)}, {"priority": 5}, {"delay": 5}, {"good_until": timedelta(hours=1)}, {"unique_key": "k"},
        {"name": "multiply"},
    ],
    ids=lambda other: next(iter(other)),
)  # fmt: skip
async def test_the_same_id_with_another_call_is_refused(db: Database, app: Horsies, other: dict[str, Any]) -> None:
    """F78: the first row stays as it is."""
    mine = str(uuid.uuid4())
    await add_task(app).with_options(task_id=mine).send_async(1, 2)
    before = factories.read(db, mine)
    call = other.pop("call", (1, 2))
    task = add_task(app, other.pop("name")) if "name" in other else add_task(app)
    with pytest.raises(TaskSendError) as raised:
        await task.with_options(task_id=mine, **other).send_async(*call)
    assert raised.value.code is SendErrorCode.PAYLOAD_MISMATCH
    assert raised.value.task_id == mine
    assert not raised.value.retryable
    assert factories.read(db, mine) == before
    assert factories.count(db) == 1


async def test_the_same_id_across_a_deploy_that_changed_the_registration(db: Database) -> None:
    """A job that runs twice, before and after: its arguments decide, not how the task is registered."""
    mine, keyed = str(uuid.uuid4()), str(uuid.uuid4())
    policy = RetryPolicy.fixed(1, 3, auto_retry_for=["SMTP_DOWN"])
    for registration in (
        {"queue_name": "mail"},
        {"queue_name": "mail", "retry_policy": policy, "timeout_ms": 5_000},
        {"queue_name": "slow", "priority": 3, "good_until": timedelta(hours=1), "run_ahead": False},
    ):
        async with async_app_on(db, **QUEUES) as app:
            add = add_task(app, **registration)
            assert (await add.with_options(task_id=mine).send_async(1, 2)).task_id == mine
            assert (await add.with_options(task_id=keyed, unique_key="k").send_async(1, 2)).task_id == keyed
            with pytest.raises(TaskSendError, match="PAYLOAD_MISMATCH"):
                await add.with_options(task_id=mine).send_async(1, 3)
    assert factories.count(db) == 2


async def test_an_id_that_an_older_release_has_sent(db: Database, add: TaskFunction[[int, int], int]) -> None:
    """Its fingerprint also covered the registration."""
    mine = str(uuid.uuid4())
    await add.with_options(task_id=mine).send_async(1, 2)
    identity = json.dumps(["add", "default", 100, None, 0.0, None, None, "{}", None])
    sha = hashlib.sha256(f'{identity}\0\0{{"a":1,"b":2}}'.encode()).hexdigest()[:32]
    db.execute("UPDATE horsies_tasks SET enqueue_sha = %s", sha)
    await add.with_options(task_id=mine).send_async(1, 2)
    with pytest.raises(TaskSendError, match="PAYLOAD_MISMATCH"):
        await add.with_options(task_id=mine).send_async(1, 3)


async def test_the_same_id_after_the_task_has_ended(db: Database, add: TaskFunction[[int, int], int]) -> None:
    mine = str(uuid.uuid4())
    await add.with_options(task_id=mine).send_async(1)
    factories.finish(db, mine, 1)
    assert (await add.with_options(task_id=mine).send_async(1)).task_id == mine
    assert factories.read(db, mine)["status"] == "COMPLETED"


# -- unique keys ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["PENDING", "CLAIMED", "RUNNING"])
async def test_a_live_key_gives_the_handle_of_its_task(
    db: Database, add: TaskFunction[[int, int], int], status: str
) -> None:
    held = factories.task(db, status, unique_key="order-7")
    handle = await add.with_options(unique_key="order-7").send_async(9, 9)
    assert (handle.task_id, handle.is_duplicate) == (held, True)
    assert factories.count(db) == 1


@pytest.mark.parametrize("status", ["COMPLETED", "FAILED", "CANCELLED", "EXPIRED"])
async def test_the_key_is_free_when_its_task_has_ended(
    db: Database, add: TaskFunction[[int, int], int], status: str
) -> None:
    ended = factories.task(db, status, unique_key="order-7")
    handle = await add.with_options(unique_key="order-7").send_async(1)
    assert handle.task_id != ended
    assert not handle.is_duplicate


async def test_a_key_belongs_to_one_task_name(db: Database, app: Horsies) -> None:
    one = await add_task(app, "one").with_options(unique_key="k").send_async(1)
    two = await add_task(app, "two").with_options(unique_key="k").send_async(1)
    assert one != two
    assert not two.is_duplicate


async def test_a_repeated_send_with_its_own_id_is_no_duplicate_of_itself(
    db: Database, add: TaskFunction[[int, int], int]
) -> None:
    sender = add.with_options(unique_key="k", task_id=str(uuid.uuid4()))
    assert not (await sender.send_async(1)).is_duplicate
    assert not (await sender.send_async(1)).is_duplicate
    with pytest.raises(TaskSendError, match="PAYLOAD_MISMATCH"):
        await sender.send_async(2)
    assert factories.count(db) == 1


async def test_twenty_sends_at_once_make_one_task(db: Database, add: TaskFunction[[int, int], int]) -> None:
    sender = add.with_options(unique_key="order-7")
    for expected in (1, 2, 3):
        handles = await asyncio.gather(*(sender.send_async(number) for number in range(20)))
        assert len({handle.task_id for handle in handles}) == 1
        assert sum(not handle.is_duplicate for handle in handles) == 1
        assert factories.count(db) == expected
        factories.finish(db, handles[0].task_id)


def test_a_race_of_threads_and_processes_worth_of_apps(db: Database) -> None:
    apps = [make_app(db) for _ in range(4)]
    try:
        senders = [add_task(app).with_options(unique_key="k") for app in apps] * 3
        with ThreadPoolExecutor(12) as pool:
            handles = list(pool.map(lambda sender: sender.send(1), senders))
    finally:
        for app in apps:
            app.close()
    assert len({handle.task_id for handle in handles}) == 1
    assert factories.count(db) == 1


# -- a schema of its own -------------------------------------------------------------------------


def test_in_a_schema_beside_other_tables(empty_db: Database) -> None:
    """Two sets of tables in one database; each app sees its own, whatever the search_path says."""
    schema = 'Work "queue"'
    horsies_schema.upgrade(empty_db.url, schema=schema)
    horsies_schema.upgrade(empty_db.url)
    with app_on(empty_db, broker={"schema": schema}) as inside, app_on(empty_db) as outside:
        add = add_task(inside)
        first, second, third = (
            add.send(1, 2), *add.send_many([(3, 4)]), add.with_options(unique_key="k").send(5),
        )  # fmt: skip
        other = add_task(outside).send(9)
        quoted = schema.replace('"', '""')
        assert {row["id"] for row in (factories.read(empty_db, h.task_id, schema=quoted) for h in (first, second))}
        assert factories.count(empty_db) == 1
        factories.finish(empty_db, first.task_id, 3, schema=quoted)
        assert first.get(timeout_ms=10_000) == TaskResult(ok=3)
        assert str(second.cancel()) == "CANCELLED"
        assert second.get(timeout_ms=10_000).err_value.error_code == "TASK_CANCELLED"
        assert add.with_options(unique_key="k").send(5).task_id == third.task_id
        assert inside.handle(other.task_id).get(timeout_ms=0).err_value.error_code == "TASK_NOT_FOUND"
        info = other.info()
        assert info is not None
        assert info.status == "PENDING"


# -- in the caller's transaction -----------------------------------------------------------------


async def test_a_rolled_back_send_never_was(
    db: Database, conn: asyncpg.Connection, add: TaskFunction[[int, int], int]
) -> None:
    """F79. Other libraries' connections: test_connection.py."""
    heard: list[str] = []
    listening = await asyncpg.connect(db.url)
    await listening.add_listener("task_new", lambda *args: heard.append(args[-1]))
    transaction = conn.transaction()
    await transaction.start()
    lost = await add.with_options(connection=conn).send_async(1)
    early = (await lost.get_async(timeout_ms=0)).err_value
    assert early.error_code == "TASK_NOT_FOUND"
    assert "or the transaction that sent it has not committed" in str(early.message)
    await transaction.rollback()
    async with conn.transaction():
        kept = await add.with_options(connection=conn).send_async(2)
    await listening.fetchval("SELECT 1")  # notifications come before the answer to a later statement
    await listening.close()
    assert heard == [kept.task_id]
    assert factories.count(db) == 1
    assert (await lost.get_async(timeout_ms=0)).err_value.error_code == "TASK_NOT_FOUND"
