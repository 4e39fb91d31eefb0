"""`drain(connection=...)`: tasks that the test's own transaction has sent run there, and leave nothing behind."""

import asyncio
import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import asyncpg
import psycopg
import pytest

from horsies import (
    RetryPolicy,
    TaskError,
    TaskResult,
    UsageError,
    current_task,
    from_node,
    sleep,
    testing,
    wait_for_signal,
)
from tests.support import kit_app
from tests.support.apps import make_app
from tests.support.postgres import Database
from tests.support.roads import ROADS, Road, django_road

pytestmark = pytest.mark.shared_database

HOUR = timedelta(hours=1)
COUNT = "SELECT count(*) FROM horsies_tasks"
DRAINED = (
    "asyncpg", "asyncpg, codecs for JSON", "psycopg, dict_row", "psycopg, RawCursor", "psycopg, pipeline",
    "psycopg async, autocommit", "psycopg async, pipeline", "psycopg2, RealDictCursor", "Session on psycopg",
    "Connection on psycopg2", "AsyncSession on asyncpg", "AsyncConnection on psycopg", "Django", "Django, pipeline",
    "Django, server-side binding",
)  # fmt: skip


@pytest.fixture
def t(db: Database) -> Iterator[Any]:
    with make_app(db.url) as app:
        tasks = kit_app.register(app)
        tasks.app = app
        yield tasks


def drain(road: Road, database: testing.TestDatabase, **options: Any) -> testing.DrainReport:
    return road.call(database, "drain", connection=road.connection, **options)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("name", DRAINED)
def test_every_kind_of_connection(t: Any, db: Database, name: str) -> None:
    @t.app.task("again", retry_policy=RetryPolicy.fixed(60, 2, auto_retry_for=["AGAIN"]))
    def again() -> kit_app.Number:
        if current_task().attempt < 2:
            return TaskResult(err=TaskError("AGAIN", 'a "quoted" \\ {text}, $1 %s'))
        return TaskResult(ok=current_task().attempt)

    three = t.number.node(node_id="three")(3)
    nap = sleep(HOUR, node_id="nap")
    end = t.plus.node(node_id="end", waits_for=[nap])(from_node(three), 4)
    flow = t.app.workflow("flow", [three, nap, end], output=end)
    with ROADS[name](db.url) as road, testing.real(t.app, in_place=True) as database:
        on = road.connection
        road.begin()
        handle = road.call(t.number.with_options(connection=on, metadata={"a": ["é", 1]}), "send", 5)
        grouped = road.call(t.plus.with_options(connection=on, group="acme"), "send", 5, 6)
        retried = road.call(again.with_options(connection=on), "send")
        road.call(flow, "start", connection=on)
        report = drain(road, database)
        assert (report.attempts, report.completed, report.retried) == (4, 3, 1)
        assert report.result(handle) == TaskResult(ok=5)
        assert report.result(grouped) == TaskResult(ok=11)
        with pytest.raises(UsageError, match="did not end"):
            report.result(retried)
        assert drain(road, database).attempts == 0
        road.call(database, "advance", HOUR, connection=on)  # pyright: ignore[reportArgumentType]
        report = drain(road, database)
        assert report.result(retried) == TaskResult(ok=2)
        assert {one.ok for one in report.results.values()} == {2, 7}
        road.rollback()
    assert db.value(COUNT) == 0


def test_tasks_work_in_the_transaction_of_a_django_test(t: Any, db: Database) -> None:
    db.execute("CREATE TABLE IF NOT EXISTS notes (text text UNIQUE)")
    with django_road(db.url) as road, testing.real(t.app, in_place=True) as database:
        from django.db import connection, transaction

        def execute(sql: str) -> Any:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return cursor.fetchall() if cursor.description else None

        @t.app.task("note")
        def note(text: str) -> TaskResult[int, TaskError]:
            execute(f"INSERT INTO notes VALUES ('{text}')")
            if text == "twice":
                execute(f"INSERT INTO notes VALUES ('{text}')")
            return TaskResult(ok=threading.get_ident())

        @t.app.task("done")
        def done() -> TaskResult[int, TaskError]:
            with transaction.atomic():  # pyright: ignore[reportGeneralTypeIssues]
                execute("INSERT INTO notes VALUES ('done')")
                current_task().complete(connection, 8)
            return TaskResult(ok=0)

        road.begin()
        handles = [note.with_options(connection=connection).send(text) for text in ("once", "twice", "thrice")]
        own = done.with_options(connection=connection).send()
        report = database.drain(connection=connection)
        assert report.result(handles[0]) == TaskResult(ok=threading.get_ident())
        assert report.result(handles[1]).err_value.error_code == "UNHANDLED_EXCEPTION"
        assert report.result(handles[2]).is_ok()
        assert report.result(own) == TaskResult(ok=8)
        assert execute("SELECT text FROM notes ORDER BY 1") == [("done",), ("once",), ("thrice",)]
        road.rollback()
    assert db.value("SELECT count(*) FROM notes") == 0
    assert db.value(COUNT) == 0
    db.execute("DROP TABLE notes")


async def test_async_tasks_share_the_connection_and_its_loop(t: Any, db: Database) -> None:
    connection = await asyncpg.connect(db.url)

    @t.app.task("ask")
    async def ask() -> kit_app.Number:
        return TaskResult(ok=await connection.fetchval("SELECT n FROM uncommitted"))

    async with connection.transaction():
        await connection.execute("CREATE TABLE uncommitted AS SELECT 12 AS n")
        approve = wait_for_signal("approve", int, node_id="approve")
        asked = ask.node(node_id="asked")()
        sum_ = t.plus.node(node_id="sum")(from_node(approve), from_node(asked))
        flow = t.app.workflow("sum", [approve, asked, sum_], output=sum_)
        with testing.real(t.app, in_place=True) as database:
            run = await flow.start_async(connection=connection)
            assert (await database.drain_async(connection=connection)).completed == 1
            await database.signal_async(run, approve, 30, connection=connection)
            report = await database.drain_async(connection=connection)
            assert TaskResult(ok=42) in report.results.values()
        await connection.execute("DROP TABLE uncommitted")
        await connection.execute("DELETE FROM horsies_workflows")
        await connection.execute("DELETE FROM horsies_tasks")
    await connection.close()


def test_connections_that_cannot_be_used(t: Any, db: Database) -> None:
    @t.app.task("commits")
    def commits() -> TaskResult[None, TaskError]:
        plain.commit()
        return TaskResult(ok=None)

    with testing.real(t.app, in_place=True) as database, psycopg.connect(db.url, autocommit=True) as plain:
        with pytest.raises(UsageError, match="commits each statement by itself"):
            database.drain(connection=plain)
        with pytest.raises(UsageError, match="connection= does not understand"):
            database.drain(connection="postgresql://")
        with pytest.raises(UsageError, match="would block the event loop"):
            asyncio.run(database.drain_async(connection=plain))
        plain.autocommit = False
        with pytest.raises(psycopg.Error):
            plain.execute("SELECT 1/0")
        with pytest.raises(UsageError, match="roll it back first"):
            database.drain(connection=plain)
        plain.rollback()
        commits.with_options(connection=plain).send()
        with pytest.raises(UsageError, match="'commits' has ended the transaction"):
            database.drain(connection=plain)
        plain.rollback()
