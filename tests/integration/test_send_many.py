"""`app.send_many`: calls of several tasks with options of their own, in one statement, all or none."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg
import pytest

from horsies import Horsies, Middleware, Outgoing, SendErrorCode, TaskError, TaskResult, TaskSendError
from tests.support import factories
from tests.support.apps import UNREACHABLE, add_task, app_on, async_app_on, make_app
from tests.support.chaosproxy import ChaosProxy, When
from tests.support.counting import said, start_counting
from tests.support.postgres import Database
from tests.support.seams_middleware import Noting
from tests.support.waiting import eventually

pytestmark = pytest.mark.shared_database


def tasks_of(app: Horsies) -> SimpleNamespace:
    @app.task("mail", metadata={"kind": "mail"}, group_by="to")
    def mail(to: str) -> TaskResult[str, TaskError]:
        return TaskResult(ok=to)

    return SimpleNamespace(add=add_task(app), mail=mail)


@pytest.fixture
async def app(db: Database) -> AsyncIterator[Horsies]:
    async with async_app_on(db) as app:
        yield app


def rows(db: Database) -> list[dict[str, Any]]:
    ids = [row[0] for row in db.execute("SELECT id FROM horsies_tasks ORDER BY id")]
    return [factories.read(db, task_id) for task_id in ids]


def test_each_call_has_the_options_of_its_sender(db: Database) -> None:
    with app_on(db) as app:
        tasks = tasks_of(app)
        own_id = str(uuid.uuid4())
        handles = app.send_many(
            [
                tasks.add.call(1),
                tasks.mail.with_options(priority=5, delay=60, metadata={"tenant": "a"}).call("x"),
                tasks.add.with_options(task_id=own_id, good_until=timedelta(hours=1)).call(2, b=3),
                tasks.mail.with_options(group="g", keep_for=timedelta(days=3), store_result=False).call("y"),
                tasks.add.call(4),
            ]
        )
    found = [factories.read(db, handle.task_id) for handle in handles]
    assert [row["kwargs"] for row in found] == ['{"a":1}', '{"to":"x"}', '{"a":2,"b":3}', '{"to":"y"}', '{"a":4}']
    assert [row["task_name"] for row in found] == ["add", "mail", "add", "mail", "add"]
    assert [row["priority"] for row in found] == [100, 5, 100, 100, 100]
    assert [row["metadata"] for row in found] == [
        None, {"kind": "mail", "tenant": "a"}, None, {"kind": "mail"}, None
    ]  # fmt: skip
    assert [row["group_key"] for row in found] == [None, "x", None, "g", None]
    assert [row["keep_seconds"] for row in found] == [None, None, None, 3 * 86_400, None]
    assert ['"store_result":false' in row["task_options"] for row in found] == [False, False, False, True, False]
    assert handles[2].task_id == own_id
    assert found[1]["enqueued_at"] - found[0]["enqueued_at"] == timedelta(seconds=60)
    assert found[2]["good_until"] - found[2]["enqueued_at"] == timedelta(hours=1)
    assert not any(handle.is_duplicate for handle in handles)


async def test_it_is_one_statement(db: Database, app: Horsies) -> None:
    tasks = tasks_of(app)
    await app.send_many_async([tasks.add.call(0)])  # connects, checks the schema
    start_counting(db)
    sent = await app.send_many_async([tasks.add.with_options(priority=1 + at % 9).call(at) for at in range(500)])
    assert [count for _, count, _ in said(db)] == [1]
    assert len({handle.task_id for handle in sent}) == 500
    assert factories.count(db) == 501
    assert await app.send_many_async([]) == []


def test_an_exact_repetition_is_success_and_another_call_with_its_id_sends_nothing(db: Database) -> None:
    with app_on(db) as app:
        tasks = tasks_of(app)
        mine = tasks.add.with_options(task_id=str(uuid.uuid4()))
        for _ in range(2):
            (handle, _other) = app.send_many([mine.call(1), tasks.mail.with_options(unique_key="k").call("x")])
        assert factories.count(db) == 2
        with pytest.raises(TaskSendError, match="is taken by a task with other arguments") as caught:
            app.send_many([tasks.mail.call("y"), mine.call(2)])
        assert caught.value.code is SendErrorCode.PAYLOAD_MISMATCH
        assert list(caught.value.task_ids) == [handle.task_id]
        assert factories.count(db) == 2
        with pytest.raises(TaskSendError, match="item 1 has the task_id of item 0"):
            app.send_many([mine.call(1), mine.call(1)])


def test_a_unique_key_gives_the_handle_of_its_holder(db: Database) -> None:
    with app_on(db) as app:
        tasks = tasks_of(app)
        keyed = tasks.add.with_options(unique_key="k")
        first = keyed.send(1)
        sent = app.send_many(
            [
                keyed.call(2),
                tasks.mail.with_options(unique_key="k").call("x"),  # keys belong to a name
                tasks.add.with_options(unique_key="other").call(3),
                tasks.add.with_options(unique_key="other").call(4),
            ]
        )
        assert [handle.is_duplicate for handle in sent] == [True, False, False, True]
        assert sent[0].task_id == first.task_id
        assert sent[3].task_id == sent[2].task_id
        assert factories.count(db) == 3
        # a key is free when its task has ended
        db.execute("UPDATE horsies_tasks SET status = 'CANCELLED', terminal_at = now(), result = '{}' WHERE id = %s",
                   first.task_id)  # fmt: skip
        assert not app.send_many([keyed.call(2)])[0].is_duplicate


async def test_two_that_take_the_same_keys_in_another_order_do_not_deadlock(db: Database, app: Horsies) -> None:
    tasks = tasks_of(app)
    for turn in range(5):
        keys = [f"{turn} {at}" for at in range(50)]
        calls = [tasks.add.with_options(unique_key=key).call(1) for key in keys]
        one, other = await asyncio.gather(app.send_many_async(calls), app.send_many_async(calls[::-1]))
        assert [handle.task_id for handle in one] == [handle.task_id for handle in other[::-1]]
    assert factories.count(db) == 250


async def test_one_key_of_two_tasks_does_not_deadlock(db: Database, app: Horsies) -> None:
    tasks = tasks_of(app)
    holder, one, other = [await asyncpg.connect(db.url) for _ in range(3)]
    waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid' AND pid = ANY (%s)"
    pids = [one.get_server_pid(), other.get_server_pid()]
    for turn in range(3):
        add, mail = (task.with_options(unique_key=f"k{turn}") for task in (tasks.add, tasks.mail))
        await holder.execute("BEGIN")
        await app.send_many_async([add.call(1)], connection=holder)

        async def send(calls: list[Any], connection: Any) -> list[str]:
            async with connection.transaction():
                return [handle.task_id for handle in await app.send_many_async(calls, connection=connection)]

        # both have begun, and wait for the holder: neither may have taken a key that the other one needs after it
        first = asyncio.create_task(send([add.call(1), mail.call("x")], one))
        second = asyncio.create_task(send([mail.call("x"), add.call(1)], other))
        await asyncio.to_thread(eventually, lambda: db.value(waiting, pids) == 2)
        await holder.execute("ROLLBACK")
        assert await first == (await second)[::-1]
    for connection in (holder, one, other):
        await connection.close()


def test_the_first_of_the_list_gets_the_key(db: Database) -> None:
    with app_on(db) as app:
        keyed = tasks_of(app).add.with_options(unique_key="k")
        last_id = "ffffffff-ffff-4fff-bfff-ffffffffffff"
        sent = app.send_many([keyed.with_options(task_id=last_id).call(1), keyed.call(2)])
        assert [(handle.task_id, handle.is_duplicate) for handle in sent] == [(last_id, False), (last_id, True)]


async def test_a_transaction_that_cannot_see_the_holder_sends_nothing(db: Database, app: Horsies) -> None:
    tasks = tasks_of(app)
    connection = await asyncpg.connect(db.url)
    try:
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        await connection.fetchval("SELECT count(*) FROM horsies_tasks")
        keyed = tasks.add.with_options(unique_key="k")
        await keyed.send_async(1)
        with pytest.raises(TaskSendError, match="it is not enqueued, roll your transaction back"):
            await app.send_many_async([tasks.mail.call("x"), keyed.call(2)], connection=connection)
    finally:
        await connection.close()
    assert factories.count(db) == 1


def test_the_callers_transaction_decides(db: Database) -> None:
    with app_on(db) as app, psycopg.connect(db.url) as connection:
        tasks = tasks_of(app)
        calls = [tasks.add.call(1), tasks.mail.with_options(unique_key="k", priority=3).call("x")]
        app.send_many(calls, connection=connection)
        connection.rollback()
        assert factories.count(db) == 0
        app.send_many(calls, connection=connection)
        connection.commit()
        assert factories.count(db) == 2


def test_workers_of_each_queue_are_woken_at_the_commit(db: Database) -> None:
    with app_on(db) as app, psycopg.connect(db.url, autocommit=True) as listening:
        tasks = tasks_of(app)
        for channel in ("task_new", "task_queue_default", "task_grouped"):
            listening.execute(f"LISTEN {channel}")  # type: ignore[arg-type]
        (plain, _) = app.send_many([tasks.add.call(1), tasks.mail.call("x")])
        told = {(one.channel, one.payload) for one in listening.notifies(timeout=10, stop_after=3)}
    assert told == {
        ("task_new", plain.task_id),
        ("task_queue_default", plain.task_id),
        ("task_grouped", "default x"),
    }


def test_middleware_sees_each_kind_of_call(db: Database) -> None:
    noting = Noting("one")
    with app_on(db, middleware=[noting]) as app:
        tasks = tasks_of(app)
        sent = app.send_many([tasks.add.call(1), tasks.mail.call("x"), tasks.add.call(2)])
    seen = [(verb, one.name, list(one.ids), error) for verb, one, error in noting.sends]
    adds, mails = [sent[0].task_id, sent[2].task_id], [sent[1].task_id]
    assert seen == [
        ("on_send", "add", adds, None), ("on_send", "mail", mails, None),
        ("on_sent", "add", adds, None), ("on_sent", "mail", mails, None),
    ]  # fmt: skip
    assert [row["metadata"]["seen"] for row in rows(db)] == [["one"]] * 3


def test_a_kind_that_middleware_refuses_refuses_all(db: Database) -> None:
    class NoMail(Middleware):
        def on_send(self, task: Outgoing) -> None:
            if task.name == "mail":
                raise PermissionError("no mail today")

    noting = Noting("one")
    with app_on(db, middleware=[noting, NoMail()]) as app:
        tasks = tasks_of(app)
        with pytest.raises(PermissionError):
            app.send_many([tasks.add.call(1), tasks.mail.call("x")])
    told = [(verb, one.name, error is None) for verb, one, error in noting.sends]
    assert told == [
        ("on_send", "add", True), ("on_send", "mail", True), ("on_sent", "mail", False), ("on_sent", "add", False)
    ]  # fmt: skip
    assert factories.count(db) == 0


@pytest.mark.parametrize("when", When)
async def test_a_lost_answer_can_be_repeated(db: Database, when: When) -> None:
    with ChaosProxy(db.url) as proxy:
        async with async_app_on(proxy.url, resilience={"send_attempts": 1}) as app:
            tasks = tasks_of(app)
            await app.send_many_async([tasks.add.call(0)])
            proxy.cut_at("horsies_send_calls", when)
            with pytest.raises(TaskSendError, match=r"it may or may not be enqueued, \.retry\(\) is safe") as caught:
                await app.send_many_async([tasks.add.call(1), tasks.mail.with_options(unique_key="k").call("x")])
            for _ in range(2):
                again = await caught.value.retry_async()
                assert tuple(handle.task_id for handle in again) == tuple(caught.value.task_ids)
                assert not any(handle.is_duplicate for handle in again)
    assert factories.count(db) == 3


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        (lambda tasks: tasks.add.call(1), "takes several calls"),
        (lambda tasks: [(1,)], r"item 0 is .*not a call"),
        (lambda tasks: [tasks.add.call(1), tasks.add.call("x")], "item 1: "),
        (lambda tasks: [tasks.add.with_options(priority=500).call(1)], "priority"),
        (lambda tasks: [tasks.add.with_options(connection=object()).call(1)], "connection=..."),
        (lambda tasks: [tasks.add.with_options(keep_for=3).call(1)], "keep_for"),
        (lambda tasks: [tasks.add.with_options(keep_for=timedelta(seconds=-1)).call(1)], "keep_for"),
        (lambda tasks: [tasks.add.with_options(store_result="no").call(1)], "store_result"),
        (lambda tasks: [add_task(make_app(UNREACHABLE), "elsewhere").call(1)], "which this app does not have"),
    ],
)
def test_what_cannot_be_sent_is_named(calls: Any, why: str) -> None:
    with app_on(UNREACHABLE) as app, pytest.raises(TaskSendError, match=why) as caught:
        app.send_many(calls(tasks_of(app)))
    assert caught.value.code is SendErrorCode.VALIDATION_FAILED


async def test_calls_with_unique_options_are_refused_as_by_their_own_send_many(app: Horsies, db: Database) -> None:
    @app.task("remind", unique_by_args=True)
    def remind(to: str) -> TaskResult[str, TaskError]:
        return TaskResult(ok=to)

    @app.task("index", debounce=timedelta(seconds=1))
    def index(page: int) -> TaskResult[int, TaskError]:
        return TaskResult(ok=page)

    minute, add = timedelta(minutes=1), tasks_of(app).add
    alone = "item 1: a call with unique_by_args, unique_for, debounce or on_conflict is sent by itself"
    for call, why in (
        (remind.call("ada"), alone),
        (index.with_options(unique_key="7").call(7), alone),
        (add.with_options(unique_key="k", unique_for=minute).call(1), alone),
        (add.with_options(unique_key="k", on_conflict="replace").call(1), alone),
        (index.call(7), "item 1.debounce: needs a key"),
        (add.with_options(unique_key="k", max_wait=minute).call(1), "item 1.max_wait: bounds the wait of debounce"),
    ):
        with pytest.raises(TaskSendError, match=why) as refused:
            await app.send_many_async([add.call(1), call])
        assert refused.value.code is SendErrorCode.VALIDATION_FAILED
    assert rows(db) == []
    sent = await app.send_many_async([add.call(1), remind.with_options(unique_by_args=False).call("ada")])
    assert [one.is_duplicate for one in sent] == [False, False]
