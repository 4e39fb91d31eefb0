"""Keys that outlive their task, replaced and debounced tasks: what each send does, by the state of the key's holder."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest

from horsies import (
    CustomQueueConfig,
    Horsies,
    QueueMode,
    RetryPolicy,
    SendErrorCode,
    TaskDefinitionError,
    TaskError,
    TaskHandle,
    TaskResult,
    TaskSendError,
)
from horsies.tasks import TaskFunction
from tests.support import factories
from tests.support.apps import UNREACHABLE, add_task, app_on, async_app_on
from tests.support.counting import said, start_counting
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database

Add = TaskFunction[[int, int], int]
HOUR = timedelta(hours=1)
SECOND = timedelta(seconds=1)
Options = dict[str, Any]
WAYS: list[Options] = [{"unique_for": HOUR}, {"on_conflict": "replace"}, {"debounce": HOUR}]


@pytest.fixture
async def app(db: Database) -> AsyncIterator[Horsies]:
    async with async_app_on(db) as app:
        yield app


@pytest.fixture
def add(app: Horsies) -> Add:
    return add_task(app)


def key_row(db: Database, key: str = "k") -> dict[str, Any]:
    with psycopg.connect(db.url, row_factory=psycopg.rows.dict_row) as connection:
        row = connection.execute("SELECT * FROM horsies_unique_keys WHERE key = %s", [key]).fetchone()
    assert row is not None
    return row


def claim(db: Database, task_id: str, *, status: str = "RUNNING") -> None:
    """As a worker does."""
    started = "started_at = now()" if status == "RUNNING" else "claimed = true, claim_expires_at = now() + '1 minute'"
    db.execute(
        f"UPDATE horsies_tasks SET status = %s, claim_generation = claim_generation + 1, claimed_at = now(),"
        f" claimed_by_worker_id = 'worker-1', {started} WHERE id = %s AND status = 'PENDING'",
        status, task_id,
    )  # fmt: skip


def arguments(db: Database, task_id: str) -> str:
    return db.value("SELECT kwargs FROM horsies_tasks WHERE id = %s", task_id)


# -- unique_for ----------------------------------------------------------------------------------


async def test_a_key_outlives_its_task(db: Database, add: Add) -> None:
    sender = add.with_options(unique_key="k", unique_for=HOUR)
    first = await sender.send_async(1)
    assert not first.is_duplicate
    for prepare in (lambda: None, lambda: claim(db, first.task_id), lambda: factories.finish(db, first.task_id, 1)):
        prepare()
        again = await sender.send_async(2)
        assert (again.task_id, again.is_duplicate) == (first.task_id, True)
    db.execute("DELETE FROM horsies_tasks")  # as the pruner does
    again = await sender.send_async(2)
    assert (again.task_id, again.is_duplicate) == (first.task_id, True)
    assert factories.count(db) == 0
    db.execute("UPDATE horsies_unique_keys SET until = now()")
    after = await sender.send_async(3)
    assert not after.is_duplicate
    assert after.task_id != first.task_id
    assert factories.count(db) == 1


async def test_a_live_task_holds_its_key_longer(db: Database, add: Add) -> None:
    sender = add.with_options(unique_key="k", unique_for=SECOND)
    first = await sender.send_async(1)
    db.execute("UPDATE horsies_unique_keys SET until = now() - interval '1 s'")
    assert (await sender.send_async(2)).task_id == first.task_id
    factories.finish(db, first.task_id, 1)
    assert not (await sender.send_async(2)).is_duplicate


async def test_until_counts_from_the_send(db: Database, add: Add) -> None:
    await add.with_options(unique_key="k", unique_for=HOUR, delay=timedelta(minutes=5)).send_async(1)
    row = key_row(db)
    assert row["until"] - row["first_at"] == HOUR
    assert abs(row["until"] - datetime.now(UTC) - HOUR) < timedelta(minutes=1)


async def test_a_duplicate_writes_nothing_and_waits_for_none(db: Database, add: Add) -> None:
    sender = add.with_options(unique_key="k", unique_for=HOUR)
    await sender.send_async(1)
    with psycopg.connect(db.url) as connection:
        connection.execute("SELECT FROM horsies_unique_keys FOR UPDATE")
        assert (await asyncio.wait_for(sender.send_async(2), 20)).is_duplicate


async def test_a_plain_unique_key_and_one_in_time_see_each_other(db: Database, add: Add) -> None:
    plain = await add.with_options(unique_key="k").send_async(1)
    in_time = await add.with_options(unique_key="k", unique_for=HOUR).send_async(2)
    assert (in_time.task_id, in_time.is_duplicate) == (plain.task_id, True)
    assert db.value("SELECT count(*) FROM horsies_unique_keys") == 0
    factories.finish(db, plain.task_id, 1)
    in_time = await add.with_options(unique_key="k", unique_for=HOUR).send_async(2)
    again = await add.with_options(unique_key="k").send_async(3)
    assert (again.task_id, again.is_duplicate) == (in_time.task_id, True)


async def test_a_key_belongs_to_one_task_name(db: Database, app: Horsies, add: Add) -> None:
    other = add_task(app, "other")
    for task in (add, other):
        assert not (await task.with_options(unique_key="k", unique_for=HOUR).send_async(1)).is_duplicate


# -- replace -------------------------------------------------------------------------------------


async def test_a_waiting_task_takes_the_new_call(db: Database, add: Add) -> None:
    sender = add.with_options(unique_key="k", on_conflict="replace")
    first = await sender.send_async(1)
    before = factories.read(db, first.task_id)
    again = await sender.with_options(priority=7, metadata={"by": "me"}, group="g").send_async(2, 3)
    row = factories.read(db, first.task_id)
    assert (again.task_id, again.is_duplicate) == (first.task_id, True)
    assert factories.count(db) == 1
    assert (row["kwargs"], row["priority"], row["group_key"]) == ('{"a":2,"b":3}', 7, "g")
    assert (row["metadata"], row["enqueue_sha"]) == ({"by": "me"}, before["enqueue_sha"])
    assert key_row(db)["replaced"] == 1


async def test_another_task_under_the_id_of_a_pruned_holder_is_not_replaced(db: Database, add: Add) -> None:
    sender = add.with_options(unique_key="k", on_conflict="replace")
    first = await sender.send_async(1)
    db.execute("DELETE FROM horsies_tasks")
    await add.with_options(task_id=first.task_id).send_async(7)
    again = await sender.send_async(2)
    assert again.task_id != first.task_id
    assert factories.read(db, first.task_id)["kwargs"] == '{"a":7}'
    assert factories.read(db, again.task_id)["unique_key"] == "k"


async def test_a_replaced_task_keeps_its_place(db: Database, add: Add) -> None:
    sender = add.with_options(unique_key="k", on_conflict="replace", delay=60)
    first = await sender.send_async(1)
    before = factories.read(db, first.task_id)["enqueued_at"]
    await add.with_options(unique_key="k", on_conflict="replace").send_async(2)
    assert factories.read(db, first.task_id)["enqueued_at"] == before
    await sender.with_options(delay=0).send_async(3)
    assert factories.read(db, first.task_id)["enqueued_at"] <= datetime.now(UTC) + SECOND
    eta = datetime.now(UTC) + HOUR
    await add.with_options(unique_key="k", on_conflict="replace", eta=eta).send_async(4)
    assert factories.read(db, first.task_id)["enqueued_at"] == eta


@pytest.mark.parametrize("status", ["CLAIMED", "RUNNING"])
async def test_a_task_in_flight_is_left_alone(db: Database, add: Add, status: str) -> None:
    sender = add.with_options(unique_key="k", on_conflict="replace")
    first = await sender.send_async(1)
    claim(db, first.task_id, status=status)
    before = factories.read(db, first.task_id)
    second = await sender.send_async(2)
    assert not second.is_duplicate
    third = await sender.send_async(3)
    assert (third.task_id, third.is_duplicate) == (second.task_id, True)
    assert factories.read(db, first.task_id) == before
    assert arguments(db, second.task_id) == '{"a":3}'
    factories.finish(db, first.task_id, 1)
    assert (await sender.send_async(4)).task_id == second.task_id
    claim(db, second.task_id)
    factories.finish(db, second.task_id, 1)
    assert not (await sender.send_async(5)).is_duplicate


async def test_a_task_that_waits_for_its_retry_takes_the_new_call(db: Database, add: Add) -> None:
    sender = add.with_options(unique_key="k", on_conflict="replace")
    held = factories.task(
        db, retry_count=2, max_retries=3, unique_key="k", next_retry_at=factories.ahead(hours=1),
        enqueued_at=factories.ahead(hours=1),
    )  # fmt: skip
    assert (await sender.send_async(9)).task_id == held
    row = factories.read(db, held)
    assert (row["kwargs"], row["retry_count"], row["max_retries"]) == ('{"a":9}', 2, 2)
    assert row["next_retry_at"] == row["enqueued_at"] > datetime.now(UTC) + timedelta(minutes=50)


async def test_a_new_call_has_the_budgets_of_its_own_send(db: Database, app: Horsies) -> None:
    policy = RetryPolicy.fixed(30, 4, auto_retry_for=["DOWN"], max_crashes=3)
    add = add_task(app, retry_policy=policy)
    held = factories.task(db, unique_key="k", retry_count=3, max_retries=6, snoozes=20, crash_count=2)
    assert (await add.with_options(unique_key="k", on_conflict="replace").send_async(2)).task_id == held
    row = factories.read(db, held)
    found = [row[name] for name in ("kwargs", "retry_count", "max_retries", "snoozes", "crash_count")]
    assert found == ['{"a":2}', 3, 7, 0, 0]


async def test_a_snoozed_task_has_a_new_window(db: Database, add: Add) -> None:
    sender = add.with_options(unique_key="k", debounce=timedelta(seconds=60), max_wait=timedelta(seconds=90))
    first = await sender.send_async(1)
    db.execute("UPDATE horsies_unique_keys SET first_at = first_at - interval '1 hour'")
    db.execute("UPDATE horsies_tasks SET snoozes = 1, enqueued_at = now() + interval '1 hour'")
    await sender.send_async(2)
    start = factories.read(db, first.task_id)["enqueued_at"] - datetime.now(UTC)
    assert timedelta(seconds=50) < start <= timedelta(seconds=61)


async def test_an_older_task_that_came_back_takes_the_new_call(db: Database, add: Add) -> None:
    sender = add.with_options(unique_key="k", on_conflict="replace")
    first = await sender.send_async(1)
    claim(db, first.task_id)
    second = await sender.send_async(2)
    claim(db, second.task_id)
    db.execute(
        "UPDATE horsies_tasks SET status = 'PENDING', claimed_at = NULL, started_at = NULL,"
        " claimed_by_worker_id = NULL WHERE id = %s",
        first.task_id,
    )
    third = await sender.send_async(3)
    assert (third.task_id, third.is_duplicate) == (first.task_id, True)
    assert arguments(db, first.task_id) == '{"a":3}'
    assert key_row(db)["task_id"] == first.task_id


# -- debounce ------------------------------------------------------------------------------------


async def test_each_send_moves_the_start(db: Database, add: Add) -> None:
    sender = add.with_options(unique_key="k", debounce=timedelta(seconds=60))
    first = await sender.send_async(1)
    starts = [factories.read(db, first.task_id)["enqueued_at"]]
    for number in (2, 3):
        assert (await sender.send_async(number)).task_id == first.task_id
        starts.append(factories.read(db, first.task_id)["enqueued_at"])
    assert starts == sorted(set(starts))
    assert abs(starts[-1] - datetime.now(UTC) - timedelta(seconds=60)) < timedelta(seconds=30)
    assert arguments(db, first.task_id) == '{"a":3}'
    assert key_row(db)["replaced"] == 2


async def test_max_wait_counts_from_the_first_send(db: Database, add: Add) -> None:
    sender = add.with_options(unique_key="k", debounce=timedelta(seconds=60), max_wait=timedelta(seconds=90))
    first = await sender.send_async(1)
    db.execute("UPDATE horsies_unique_keys SET first_at = first_at - interval '40 s'")
    await sender.send_async(2)
    limit = key_row(db)["first_at"] + timedelta(seconds=90)
    assert factories.read(db, first.task_id)["enqueued_at"] == limit
    # a task that is late keeps its place, however often it is sent again
    db.execute("UPDATE horsies_unique_keys SET first_at = first_at - interval '200 s'")
    db.execute("UPDATE horsies_tasks SET enqueued_at = enqueued_at - interval '200 s'")
    await sender.send_async(3)
    assert factories.read(db, first.task_id)["enqueued_at"] == limit - timedelta(seconds=200)
    claim(db, first.task_id)
    second = await sender.send_async(4)
    assert not second.is_duplicate
    start = factories.read(db, second.task_id)["enqueued_at"]
    assert start - key_row(db)["first_at"] == timedelta(seconds=60)


async def test_a_shorter_debounce_is_not_moved_into_the_past(db: Database, add: Add) -> None:
    """Claims look at new rows first, so a task must not come back with an old time."""
    long = add.with_options(unique_key="k", debounce=HOUR)
    first = await long.send_async(1)
    db.execute("UPDATE horsies_unique_keys SET first_at = first_at - interval '30 minutes'")
    await add.with_options(unique_key="k", debounce=SECOND, max_wait=SECOND).send_async(2)
    assert abs(factories.read(db, first.task_id)["enqueued_at"] - datetime.now(UTC)) < timedelta(minutes=1)


# -- by arguments --------------------------------------------------------------------------------


async def test_equal_calls_have_one_key(db: Database, app: Horsies) -> None:
    add = add_task(app, "by_args", unique_by_args=True, unique_for=HOUR)
    first = await add.send_async(1, 0)
    for again in (add.send_async(1), add.send_async(a=1), add.send_async(b=0, a=1), add.send_async(1, b=0)):
        assert (await again).task_id == first.task_id
    assert not (await add.send_async(1, 1)).is_duplicate
    assert not (await add.with_options(unique_key="mine").send_async(1)).is_duplicate
    assert not (await add.with_options(unique_by_args=False, unique_key="other").send_async(1)).is_duplicate


async def test_arguments_alone_are_a_key_while_the_task_lives(db: Database, app: Horsies) -> None:
    add = add_task(app, "by_args", unique_by_args=True)
    first = await add.send_async(1)
    assert (await add.send_async(1, 0)).task_id == first.task_id
    factories.finish(db, first.task_id, 1)
    assert not (await add.send_async(1)).is_duplicate
    assert db.value("SELECT count(*) FROM horsies_unique_keys") == 0


# -- repeated sends ------------------------------------------------------------------------------


async def test_a_repeated_send_changes_nothing(db: Database, add: Add) -> None:
    sender = add.with_options(unique_key="k", on_conflict="replace")
    ids = [str(uuid.uuid4()) for _ in range(3)]
    handles = [await sender.with_options(task_id=task_id).send_async(at) for at, task_id in enumerate(ids)]
    assert {handle.task_id for handle in handles} == {ids[0]}
    for at, task_id in enumerate(ids):  # as after a lost answer: an older call must not undo the last
        again = await sender.with_options(task_id=task_id).send_async(at)
        assert (again.task_id, again.is_duplicate) == (ids[0], at > 0)
    assert arguments(db, ids[0]) == '{"a":2}'
    with pytest.raises(TaskSendError) as refused:
        await sender.with_options(task_id=ids[0]).send_async(9)
    assert refused.value.code is SendErrorCode.PAYLOAD_MISMATCH
    assert arguments(db, ids[0]) == '{"a":2}'


async def test_a_superseded_id_keeps_its_task(db: Database, add: Add) -> None:
    sender = add.with_options(unique_key="k", on_conflict="replace")
    ids = [str(uuid.uuid4()) for _ in range(2)]
    await sender.with_options(task_id=ids[0]).send_async(0)
    claim(db, ids[0])
    await sender.with_options(task_id=ids[1]).send_async(1)
    again = await sender.with_options(task_id=ids[0]).send_async(0)
    assert (again.task_id, again.is_duplicate) == (ids[0], False)
    assert key_row(db)["task_id"] == ids[1]


async def test_a_first_send_that_is_repeated_is_no_duplicate(db: Database, add: Add) -> None:
    task_id = str(uuid.uuid4())
    sender = add.with_options(unique_key="k", unique_for=HOUR, task_id=task_id)
    for _ in range(2):
        handle = await sender.send_async(1)
        assert (handle.task_id, handle.is_duplicate) == (task_id, False)
    db.execute("DELETE FROM horsies_tasks")
    handle = await sender.send_async(1)
    assert (handle.task_id, handle.is_duplicate) == (task_id, False)
    assert factories.count(db) == 0


async def test_an_id_of_another_task_leaves_no_key(db: Database, add: Add) -> None:
    taken = await add.send_async(5)
    for options in WAYS:
        with pytest.raises(TaskSendError) as refused:
            await add.with_options(unique_key="k", task_id=taken.task_id, **options).send_async(1)
        assert refused.value.code is SendErrorCode.PAYLOAD_MISMATCH
    assert db.value("SELECT count(*) FROM horsies_unique_keys") == 0


async def test_the_memory_of_sends_is_bounded(db: Database, add: Add) -> None:
    sender = add.with_options(unique_key="k", on_conflict="replace")
    for number in range(70):
        await sender.send_async(number)
    assert len(key_row(db)["recent"]) == 64


# -- at the same time ----------------------------------------------------------------------------


@pytest.mark.parametrize("options", WAYS, ids=str)
async def test_sends_at_the_same_time_make_one_task(db: Database, add: Add, options: Options) -> None:
    sender = add.with_options(unique_key="k", **options)
    plain = add.with_options(unique_key="k")
    sends = [(plain if number % 5 == 0 else sender).send_async(number) for number in range(30)]
    handles: list[TaskHandle[int]] = await asyncio.gather(*sends)
    assert len({handle.task_id for handle in handles}) == 1
    assert [handle.is_duplicate for handle in handles].count(False) == 1
    assert factories.count(db) == 1


async def test_a_claim_and_a_replacement_exclude_each_other(db: Database, add: Add) -> None:
    """The sender waits for the claim that is faster, and then sends a new task."""
    sender = add.with_options(unique_key="k", on_conflict="replace")
    first = await sender.send_async(1)
    with psycopg.connect(db.url) as worker:
        worker.execute(
            "UPDATE horsies_tasks SET status = 'RUNNING', claimed_at = now(), started_at = now(),"
            " claimed_by_worker_id = 'w', claim_generation = 1"
        )
        send = asyncio.ensure_future(sender.send_async(2))
        while not db.value("SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid)"
                           " WHERE NOT l.granted AND a.datname = current_database()"):  # fmt: skip
            assert not send.done()
            await asyncio.sleep(0.01)
        worker.commit()
    second = await send
    assert not second.is_duplicate
    assert arguments(db, first.task_id) == '{"a":1}'
    assert arguments(db, second.task_id) == '{"a":2}'


async def test_a_transaction_that_rolls_back_changes_nothing(db: Database, add: Add) -> None:
    sender = add.with_options(unique_key="k", on_conflict="replace")
    first = await sender.send_async(1)
    before, key = factories.read(db, first.task_id), key_row(db)
    connection = await asyncpg.connect(db.url)
    try:
        for sent in (sender, add.with_options(unique_key="new", unique_for=HOUR)):
            transaction = connection.transaction()
            await transaction.start()
            await sent.with_options(connection=connection).send_async(2)
            await transaction.rollback()
        assert (factories.read(db, first.task_id), key_row(db)) == (before, key)
        assert db.value("SELECT count(*) FROM horsies_unique_keys") == 1
        async with connection.transaction():
            await sender.with_options(connection=connection).send_async(2)
    finally:
        await connection.close()
    assert arguments(db, first.task_id) == '{"a":2}'


def test_sync_drivers_send_them_too(db: Database) -> None:
    with app_on(db) as app, psycopg.connect(db.url) as connection:
        add = add_task(app, unique_by_args=True, debounce=HOUR, max_wait=2 * HOUR)
        first = add.send(1)
        assert add.with_options(connection=connection).send(1).task_id == first.task_id
        connection.rollback()
        assert add.send(1).is_duplicate
    assert key_row(db, factories.read(db, first.task_id)["unique_key"])["replaced"] == 1


async def test_each_send_is_one_round_trip(db: Database, add: Add) -> None:
    await add.send_async(0)  # connects, checks the schema
    start_counting(db)
    sender = add.with_options(unique_key="k", debounce=HOUR)
    for number in range(3):
        await sender.send_async(number)
    assert [calls for _, calls, _ in said(db)] == [3]


# -- refusals ------------------------------------------------------------------------------------

REFUSED: list[tuple[Options, str]] = [
    ({"unique_for": HOUR}, "unique_for: needs a key"),
    ({"debounce": HOUR}, "debounce: needs a key"),
    ({"on_conflict": "replace"}, "on_conflict: needs a key"),
    ({"unique_key": "k", "unique_by_args": True}, "unique_by_args: cannot be combined with unique_key"),
    ({"unique_key": "k", "max_wait": HOUR}, "max_wait: bounds the wait of debounce"),
    ({"unique_key": "k", "debounce": HOUR, "max_wait": SECOND}, "is shorter than debounce"),
    ({"unique_key": "k", "debounce": HOUR, "unique_for": HOUR}, "unique_for: cannot be combined with debounce"),
    ({"unique_key": "k", "on_conflict": "replace", "unique_for": HOUR}, "cannot be combined with on_conflict"),
    ({"unique_key": "k", "on_conflict": "keep", "debounce": HOUR}, "'keep' contradicts debounce"),
    ({"unique_key": "k", "debounce": HOUR, "delay": 5}, "delay: cannot be combined with debounce"),
    ({"unique_key": "k", "debounce": HOUR, "eta": datetime(2100, 1, 1, tzinfo=UTC)}, "eta: cannot be combined"),
    ({"unique_key": "k", "debounce": HOUR, "good_until": SECOND}, "will have passed when the task may start"),
    ({"unique_key": "k", "debounce": 5}, "debounce: must be a timedelta, got 5"),
    ({"unique_key": "k", "unique_for": timedelta(0)}, "is not between a millisecond and ten years"),
    ({"unique_key": "k", "unique_for": -HOUR}, "-3600 seconds is not between"),
    ({"unique_key": "k", "unique_for": timedelta.max}, "is not between a millisecond and ten years"),
    ({"unique_key": "k", "on_conflict": "raise"}, "on_conflict: unknown value 'raise'"),
    ({"unique_by_args": "yes"}, "unique_by_args: must be True or False"),
]


@pytest.mark.parametrize(("options", "why"), REFUSED)
async def test_what_cannot_be_meant_is_refused(db: Database, add: Add, options: Options, why: str) -> None:
    with pytest.raises(TaskSendError) as refused:
        await add.with_options(**options).send_async(1)
    assert refused.value.code is SendErrorCode.VALIDATION_FAILED
    assert why in str(refused.value)
    assert factories.count(db) == 0


async def test_send_many_and_unknown_signatures_are_refused(db: Database, app: Horsies) -> None:
    add = add_task(app, unique_by_args=True)
    with pytest.raises(TaskSendError, match="send them one by one"):
        await add.send_many_async([(1,), (2,)])
    with pytest.raises(TaskSendError, match="parameters of the task are not known here"):
        await app.with_options(unique_by_args=True).send_async("elsewhere", 1)
    assert (await app.with_options(unique_key="k", unique_for=HOUR).send_async("elsewhere", 1)).task_id


async def test_the_options_of_a_registration_hold_for_its_sends_only(db: Database) -> None:
    """A node and a schedule run once each; other sends of the task do not change that."""
    async with async_app_on(db, queue_mode=QueueMode.CUSTOM, custom_queues=[CustomQueueConfig("q")]) as app:
        add = add_task(app, queue_name="q", unique_by_args=True, unique_for=HOUR)
        await add.send_async(1)
        for name in ("one", "two"):
            await app.workflow(name, [add.node()(1)]).start_async()
    assert factories.count(db) == 3


def test_definitions_that_cannot_work_are_refused() -> None:
    with app_on(UNREACHABLE) as app:
        broken: list[Options] = [{"max_wait": HOUR}, {"debounce": HOUR, "unique_for": HOUR}, {"debounce": "1s"}]
        for options in broken:

            def task(a: int) -> TaskResult[int, TaskError]:
                return TaskResult(ok=a)

            with pytest.raises(TaskDefinitionError):
                app.task("broken", **options)(task)
