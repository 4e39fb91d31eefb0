"""`connection=`: the task exists if and only if the caller's own transaction commits, whatever library holds it."""

import asyncio
import sqlite3
import subprocess
import sys
import textwrap
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

import horsies_schema
from horsies import (
    AppConfig,
    Horsies,
    PostgresConfig,
    RetryPolicy,
    SendErrorCode,
    TaskError,
    TaskFunction,
    TaskResult,
    TaskSendError,
    UsageError,
    wait_for_signal,
)
from tests.support import postgres
from tests.support.postgres import Database
from tests.support.roads import ROADS, Road, django_road, psycopg_sync
from tests.support.waiting import eventually

Receipt = TaskFunction[[int, str], str]
Heard = Callable[[], list[str]]
ODD = "50% of “Größe” \\ 'x' $1 %s %(p1)s :p1 {} \N{HORSE}"
"""Whatever a driver may take for a parameter of its own, or spoil on the way."""


def define(app: Horsies) -> Receipt:
    @app.task(
        "send_receipt",
        retry_policy=RetryPolicy.fixed(5, max_retries=3, auto_retry_for=["SMTP_DOWN"]),
        timeout_ms=30_000,
    )
    def send_receipt(order: int, note: str = "") -> TaskResult[str, TaskError]:
        return TaskResult(ok=f"{order} {note}")

    return send_receipt


@pytest.fixture(scope="module")
def one_database() -> Iterator[Database]:
    with postgres.database() as database:
        yield database


@pytest.fixture
def db(one_database: Database) -> Iterator[Database]:
    """Emptied for each test: making a database for each of a hundred would take most of their time."""
    yield one_database
    one_database.execute("DROP TABLE IF EXISTS caller_was_here")
    one_database.execute("DELETE FROM horsies_tasks")


@pytest.fixture
def app(db: Database) -> Iterator[Horsies]:
    with Horsies(AppConfig(PostgresConfig(db.url))) as app:
        yield app


@pytest.fixture
def send_receipt(app: Horsies) -> Receipt:
    return define(app)


@pytest.fixture(params=ROADS)
def road(request: pytest.FixtureRequest, db: Database) -> Iterator[Road]:
    with ROADS[request.param](db.url) as opened:
        yield opened


@pytest.fixture
def heard(db: Database) -> Iterator[Heard]:
    """What `task_new` has said since the last call. Delivery is in the order of commits, so all of it came
    before the marker that is sent now."""
    with psycopg.connect(db.url, autocommit=True) as listener:
        listener.execute("LISTEN task_new")
        listener.execute("LISTEN marker")

        def drain() -> list[str]:
            listener.execute("NOTIFY marker")
            seen: list[str] = []
            for notify in listener.notifies(timeout=10):
                if notify.channel == "marker":
                    return seen
                seen.append(notify.payload)
            raise AssertionError("the marker did not come")

        yield drain


def ids(db: Database) -> list[str]:
    return [row[0] for row in db.execute("SELECT id FROM horsies_tasks ORDER BY id")]


# -- the matrix ----------------------------------------------------------------------------------


def test_a_rollback_leaves_nothing_and_tells_nobody(
    db: Database, send_receipt: Receipt, road: Road, heard: Heard
) -> None:
    mine = send_receipt.with_options(connection=road.connection)
    road.begin()
    road.execute("CREATE TABLE caller_was_here (id int)")
    road.call(mine, "send", 1)
    road.call(mine, "schedule", 60, 2)
    road.call(mine, "send_many", [(3,), (4, "x")])
    road.call(mine.with_options(unique_key="k"), "send", 5)
    road.rollback()
    assert ids(db) == []
    assert db.value("SELECT to_regclass('caller_was_here')") is None
    assert heard() == []


def test_a_commit_makes_the_rows_and_tells_then(
    db: Database, app: Horsies, send_receipt: Receipt, road: Road, heard: Heard
) -> None:
    mine = send_receipt.with_options(connection=road.connection)
    at = datetime.now(UTC) + timedelta(days=1)
    road.begin()
    road.execute("CREATE TABLE caller_was_here (id int)")
    first = road.call(mine, "send", 1, note=ODD)
    later = road.call(mine.with_options(priority=7, good_until=at), "schedule", timedelta(hours=2), 2)
    dated = road.call(mine.with_options(good_until=timedelta(days=2)), "schedule", at, 3)
    many = road.call(mine, "send_many", [send_receipt.call(4, ODD), (5,), {"order": 6}])
    unique = road.call(mine.with_options(unique_key=ODD), "send", 7)
    by_name = road.call(app.with_options(connection=road.connection), "send", "elsewhere", 8, note=ODD)
    assert not unique.is_duplicate
    assert ids(db) == []
    assert heard() == []
    road.commit()

    handles = [first, later, dated, *many, unique, by_name]
    assert ids(db) == sorted(handle.task_id for handle in handles)
    # one for each statement, and all of them true
    told = heard()
    assert len(told) == 6
    assert {*told, *(handle.task_id for handle in many)} == {handle.task_id for handle in handles}
    assert db.value("SELECT to_regclass('caller_was_here')") == "caller_was_here"

    # the same rows as a send on our own pool makes
    ours = [
        send_receipt.send(1, note=ODD),
        send_receipt.with_options(priority=7, good_until=at).schedule(timedelta(hours=2), 2),
        send_receipt.with_options(good_until=timedelta(days=2)).schedule(at, 3),
        *send_receipt.send_many([send_receipt.call(4, ODD), (5,), {"order": 6}]),
        send_receipt.with_options(unique_key="another").send(7),
        app.send("elsewhere", 8, note=ODD),
    ]
    assert [stored(db, handle.task_id) for handle in handles] == [stored(db, handle.task_id) for handle in ours]
    assert db.execute("SELECT unique_key FROM horsies_tasks WHERE id = %s", unique.task_id) == [(ODD,)]
    assert db.execute("SELECT enqueued_at FROM horsies_tasks WHERE id = %s", dated.task_id) == [(at,)]


def stored(db: Database, task_id: str) -> tuple[Any, ...]:
    """A row without what differs between two sends of the same call: ids, keys, and times to the second."""
    return db.execute(
        "SELECT task_name, queue_name, priority, status, args, kwargs, max_retries, task_options, "
        "round(extract(epoch FROM enqueued_at - sent_at) / 60), round(extract(epoch FROM good_until - sent_at) / 60), "
        "abs(extract(epoch FROM sent_at - created_at)) < 30, unique_key IS NULL, "
        "CASE WHEN unique_key IS NULL THEN enqueue_sha END FROM horsies_tasks WHERE id = %s",
        task_id,
    )[0]


def test_repeats_and_mismatches_are_told_inside_the_transaction_without_ending_it(
    db: Database, send_receipt: Receipt, road: Road
) -> None:
    mine = send_receipt.with_options(connection=road.connection)
    one = str(uuid.uuid4())
    before = send_receipt.with_options(unique_key="held").send(1)
    road.begin()
    held = road.call(mine.with_options(unique_key="held"), "send", 2)
    assert (held.task_id, held.is_duplicate) == (before.task_id, True)
    fresh = road.call(mine.with_options(unique_key="fresh"), "send", 3)
    again = road.call(mine.with_options(unique_key="fresh"), "send", 3)
    assert (fresh.is_duplicate, again.is_duplicate) == (False, True)
    assert again == fresh

    named = mine.with_options(task_id=one)
    first = road.call(named, "send", 4)
    repeated = road.call(named, "send", 4)
    assert first.task_id == repeated.task_id == one
    assert not repeated.is_duplicate
    with pytest.raises(TaskSendError, match="other arguments or options") as caught:
        road.call(named, "send", 5)
    assert caught.value.code is SendErrorCode.PAYLOAD_MISMATCH
    assert caught.value.task_id == one
    assert not caught.value.retryable
    with pytest.raises(TaskSendError, match="other arguments or options"):
        road.call(named.with_options(unique_key="u"), "send", 4)
    with pytest.raises(TaskSendError, match=r"order") as refused:
        road.call(mine, "send", "not a number")
    assert refused.value.code is SendErrorCode.VALIDATION_FAILED
    # the transaction is still good
    last = road.call(mine, "send", 6)
    road.commit()
    assert ids(db) == sorted([before.task_id, fresh.task_id, one, last.task_id])


# -- all roads on one database -------------------------------------------------------------------


def test_the_wrong_twin_is_refused_by_name(db: Database, app: Horsies, send_receipt: Receipt) -> None:
    for opener in ROADS.values():
        with opener(db.url) as road:
            mine = send_receipt.with_options(connection=road.connection)
            by_name = app.with_options(connection=road.connection)
            verbs: list[tuple[Any, str, tuple[Any, ...]]] = [
                (mine, "send", (1,)),
                (mine, "schedule", (60, 1)),
                (mine, "send_many", ([(1,)],)),
                (by_name, "send", ("elsewhere",)),
            ]
            for sender, verb, args in verbs:
                if road.runner is None:
                    with pytest.raises(UsageError) as caught:
                        asyncio.run(getattr(sender, f"{verb}_async")(*args))
                    assert str(caught.value).startswith(f"{verb}_async() cannot use a synchronous ")
                    assert str(caught.value).endswith(f"call {verb}() from a thread instead")
                else:
                    with pytest.raises(UsageError) as caught:
                        getattr(sender, verb)(*args)
                    assert str(caught.value).startswith(f"{verb}() cannot use an asynchronous ")
                    assert str(caught.value).endswith(f"await {verb}_async() instead")
    assert ids(db) == []


def test_a_schema_that_the_callers_search_path_does_not_know(empty_db: Database) -> None:
    horsies_schema.upgrade(empty_db.url, schema="Queue 1")
    app = Horsies(AppConfig(PostgresConfig(empty_db.url, schema="Queue 1")))
    receipt = define(app)
    sent: list[str] = []
    for name, opener in ROADS.items():
        with opener(empty_db.url) as road:
            mine = receipt.with_options(connection=road.connection)
            road.begin()
            unique = road.call(mine.with_options(unique_key=name), "send", 1)
            again = road.call(mine.with_options(unique_key=name), "send", 1)
            named = road.call(mine.with_options(task_id=unique.task_id, unique_key=name), "send", 1)
            many = road.call(mine, "send_many", [(1,), (2,)])
            assert unique.task_id == again.task_id == named.task_id
            assert (again.is_duplicate, named.is_duplicate) == (True, False)
            road.commit()
            sent += [unique.task_id, *(handle.task_id for handle in many)]
    found = empty_db.execute('SELECT id FROM "Queue 1".horsies_tasks')
    assert sorted(row[0] for row in found) == sorted(sent)


def test_a_refusing_database_is_told_without_the_payload(empty_db: Database) -> None:
    receipt = define(Horsies(AppConfig(PostgresConfig(empty_db.url))))
    for opener in ROADS.values():
        with opener(empty_db.url) as road:
            road.begin()
            with pytest.raises(TaskSendError, match="roll your transaction back") as caught:
                road.call(receipt.with_options(connection=road.connection), "send", 1, note="a customer's secret")
            road.rollback()
            assert caught.value.code is SendErrorCode.ENQUEUE_FAILED
            assert not caught.value.retryable
            assert "horsies_tasks" in str(caught.value)
            assert "secret" not in str(caught.value)
            assert caught.value.__cause__ is not None
            with pytest.raises(TaskSendError):
                caught.value.retry()


def test_every_verb_gets_its_answer_and_leaves_the_transaction_to_the_caller(
    db: Database, app: Horsies, send_receipt: Receipt, road: Road
) -> None:
    """Answers that other tests do not read: of keys that outlive their task, of several kinds, of workflows."""
    go = wait_for_signal("go", bool)
    run = app.workflow("approved", [send_receipt.node()(1), go])
    mine = send_receipt.with_options(connection=road.connection, metadata={"tenant": "acme"})
    bounced = mine.with_options(unique_key="k", debounce=timedelta(seconds=30))
    road.begin()
    held, again = (road.call(bounced, "send", order) for order in (1, 2))
    assert (again.task_id, again.is_duplicate) == (held.task_id, True)
    calls = [send_receipt.with_options(unique_key="k").call(3), send_receipt.with_options(priority=3).call(4)]
    duplicate, other = road.call(app, "send_many", calls, connection=road.connection)
    assert (duplicate.task_id, other.is_duplicate) == (held.task_id, False)
    kept = road.call(mine.with_options(keep_for=timedelta(days=1)), "send", 5)
    assert not kept.is_duplicate
    started = road.call(run, "start", connection=road.connection, metadata={"tenant": "acme"})
    assert road.call(run, "start", connection=road.connection, workflow_id=started.workflow_id) == started
    assert road.call(started, "signal", go, True, connection=road.connection).delivered
    road.call(app, "batch", [send_receipt.call(6)], connection=road.connection)
    road.rollback()
    assert ids(db) == []


# -- the finer points ----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["asyncpg", "psycopg, autocommit", "psycopg async, autocommit", "Django"])
def test_an_inner_rollback_takes_its_own_tasks_only(db: Database, send_receipt: Receipt, name: str) -> None:
    with ROADS[name](db.url) as road:
        mine = send_receipt.with_options(connection=road.connection)
        road.begin()
        kept = road.call(mine, "send", 1)
        road.begin()
        road.call(mine, "send", 2)
        road.rollback()
        road.commit()
    assert ids(db) == [kept.task_id]


@pytest.mark.parametrize("name", ["asyncpg", "psycopg, autocommit", "psycopg async, autocommit", "Django"])
def test_without_a_transaction_the_task_exists_at_once(
    db: Database, send_receipt: Receipt, heard: Heard, name: str
) -> None:
    with ROADS[name](db.url) as road:
        sent = road.call(send_receipt.with_options(connection=road.connection), "send", 1)
        assert ids(db) == [sent.task_id] == heard()


def test_a_session_inside_run_sync_is_synchronous(db: Database, send_receipt: Receipt) -> None:
    """SQLAlchemy's bridge: the code inside is synchronous, and stands on a running loop all the same."""

    async def main() -> str:
        engine = create_async_engine(sqlalchemy.make_url(db.url).set(drivername="postgresql+asyncpg"))
        async with AsyncSession(engine) as session, session.begin():
            handle = await session.run_sync(lambda inner: send_receipt.with_options(connection=inner).send(1))
        await engine.dispose()
        return handle.task_id

    sent = asyncio.run(main())
    assert ids(db) == [sent]


def test_a_proxy_is_known_by_what_it_stands_for(db: Database, send_receipt: Receipt) -> None:
    """Flask's LocalProxy; tracers wrap connections in the same manner."""
    from werkzeug.local import LocalProxy

    with psycopg_sync(db.url) as road:
        proxy: Any = LocalProxy(lambda: road.connection)
        sent = send_receipt.with_options(connection=proxy).send(1)
        road.commit()
    assert ids(db) == [sent.task_id]


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_two_transactions_want_one_key(db: Database, send_receipt: Receipt, ending: str) -> None:
    """The second waits for the first to end, and then knows."""
    found: list[Any] = []
    with psycopg_sync(db.url) as first, psycopg_sync(db.url) as second:

        def want() -> None:
            found.append(send_receipt.with_options(connection=second.connection, unique_key="k").send(2))

        mine = send_receipt.with_options(connection=first.connection, unique_key="k").send(1)
        waiting = threading.Thread(target=want)
        waiting.start()
        blocked = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        blocked += " AND wait_event = 'transactionid'"
        eventually(lambda: db.value(blocked))
        getattr(first, ending)()
        waiting.join(10)
        second.commit()
    (theirs,) = found
    assert theirs.is_duplicate is (ending == "commit")
    assert ids(db) == [mine.task_id if ending == "commit" else theirs.task_id] == [theirs.task_id]


def test_a_snapshot_that_cannot_see_the_holder_is_told_so(db: Database, send_receipt: Receipt) -> None:
    with psycopg_sync(db.url) as road:
        road.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        road.execute("SELECT count(*) FROM horsies_tasks")
        held = send_receipt.with_options(unique_key="k").send(1)
        with pytest.raises(TaskSendError, match="roll your transaction back") as caught:
            send_receipt.with_options(connection=road.connection, unique_key="k").send(2)
        assert caught.value.code is SendErrorCode.ENQUEUE_FAILED
        road.rollback()
        # the whole transaction again, as with every serialization failure
        assert send_receipt.with_options(connection=road.connection, unique_key="k").send(2) == held


# -- what it refuses -----------------------------------------------------------------------------


def unusable(url: str) -> Iterator[tuple[Any, str]]:
    """Objects that look like connections, and what is said about them."""
    engine = sqlalchemy.create_engine(sqlalchemy.make_url(url).set(drivername="postgresql+psycopg"))
    yield object(), "does not understand builtins.object"
    yield url, "does not understand builtins.str"
    yield engine, "does not understand sqlalchemy.engine.base.Engine"
    yield sessionmaker(engine), "does not understand sqlalchemy.orm.session.sessionmaker"
    with closing(asyncio.new_event_loop()) as loop:
        yield asyncpg.create_pool(url, loop=loop), "does not understand asyncpg.pool.Pool"
    with closing(sqlite3.connect(":memory:")) as connection:
        yield connection, "does not understand sqlite3.Connection"
    lite = sqlalchemy.create_engine("sqlite://")
    with Session(lite) as session, lite.connect() as connection:
        yield session, "needs PostgreSQL, this SQLAlchemy connection speaks sqlite"
        yield connection, "needs PostgreSQL, this SQLAlchemy connection speaks sqlite"
    lite.dispose()
    with django_road(url):
        from django.core.cache import cache
        from django.db import ConnectionHandler

        yield cache, "needs PostgreSQL, this Django connection is no database"
        handler = ConnectionHandler({"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}})
        yield handler["default"], "needs PostgreSQL, this Django connection is sqlite"


def test_what_is_no_connection_to_postgresql_is_refused(db: Database, send_receipt: Receipt) -> None:
    for connection, told in unusable(db.url):
        mine = send_receipt.with_options(connection=connection)
        for verb, call in (("send", (1,)), ("schedule", (60, 1)), ("send_many", ([(1,)],))):
            with pytest.raises(UsageError, match=f"connection= {told}"):
                getattr(mine, verb)(*call)
        if "SQLAlchemy" not in told:  # a synchronous one is the wrong twin first of all
            with pytest.raises(UsageError, match=f"connection= {told}"):
                asyncio.run(mine.send_async(1))
    assert ids(db) == []


@pytest.mark.parametrize("is_async", [False, True], ids=["psycopg", "psycopg async"])
def test_sqlalchemy_in_pipeline_mode_is_refused_before_anything_is_written(
    db: Database, send_receipt: Receipt, is_async: bool
) -> None:
    with ROADS["AsyncConnection on psycopg" if is_async else "Connection on psycopg"](db.url) as road:
        mine = send_receipt.with_options(connection=road.connection, unique_key="k")
        told = "is in psycopg's pipeline mode"
        if road.runner is None:
            with road.connection.connection.driver_connection.pipeline(), pytest.raises(UsageError, match=told):
                mine.send(1)
        else:

            async def in_pipeline() -> None:
                fairy = await road.connection.get_raw_connection()
                async with fairy.driver_connection.pipeline():
                    with pytest.raises(UsageError, match=told):
                        await mine.send_async(1)

            road.runner.run(in_pipeline())
        road.call(mine, "send", 1)  # the block has ended
        road.rollback()
    assert ids(db) == []


def test_no_library_is_imported_that_the_caller_did_not_import(db: Database) -> None:
    code = f"""
        import asyncio, sys
        import asyncpg
        from horsies import AppConfig, Horsies, PostgresConfig

        async def main():
            app = Horsies(AppConfig(PostgresConfig({db.url!r})))
            connection = await asyncpg.connect({db.url!r})
            async with connection.transaction():
                await app.with_options(connection=connection, unique_key="k").send_async("elsewhere", 1)
            await connection.close()
            await app.aclose()

        asyncio.run(main())
        print(*sorted({{name.partition(".")[0] for name in sys.modules}}))
    """
    run = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert not {"sqlalchemy", "psycopg", "psycopg2", "django", "horsies_schema"} & set(run.stdout.split())
    assert len(ids(db)) == 1
