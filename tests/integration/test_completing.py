"""`current_task().complete(connection, value)`: the end of an attempt belongs to the transaction of the task itself.

The attempts run in this process, on the database of `testing.real`, which writes the ends as a worker does.
"""

import asyncio
import hashlib
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy

from horsies import (
    ClaimLostError,
    Continue,
    OperationalErrorCode,
    RetryPolicy,
    TaskError,
    TaskHandle,
    TaskResult,
    TaskStatus,
    UsageError,
    current_task,
    testing,
)
from horsies.codec import ResultError
from horsies.completing import Claimant
from tests.support import factories
from tests.support.apps import UNREACHABLE, make_app
from tests.support.postgres import Database
from tests.support.roads import ROADS, django_road
from tests.support.roles import account, accounts, may
from tests.support.waiting import eventually

pytestmark = pytest.mark.shared_database

Number = TaskResult[int, TaskError]
WRITE = "INSERT INTO business (task_id, attempt) VALUES ('{}', {})"


@pytest.fixture
def business(db: Database) -> Iterator[Database]:
    """Where the tasks do their work: a row for each attempt that thinks it did it."""
    db.execute("CREATE TABLE IF NOT EXISTS business (task_id text, attempt int)")
    db.execute("TRUNCATE business")
    yield db
    db.execute("DROP TABLE business")


@contextmanager
def task_of(
    db: Database, body: Callable[[], Any], *, retry_policy: RetryPolicy | None = None, **config: Any
) -> Iterator[SimpleNamespace]:
    """A task with this body on an app of its own; `.run()` sends and drains it, `.raised` has what escaped the body."""
    with make_app(db.url, **config) as app:
        raised: list[BaseException] = []

        @app.task("work", retry_policy=retry_policy)
        def work() -> Number:
            try:
                return body()
            except BaseException as error:
                raised.append(error)
                raise

        def run() -> tuple[TaskHandle[int], Any]:
            with testing.real(app, in_place=True) as database:
                handle = work.send()
                database.drain()
            return handle, handle.get(0)

        yield SimpleNamespace(app=app, run=run, work=work, raised=raised)


def write(execute: Any) -> None:
    task = current_task()
    execute(WRITE.format(task.task_id, task.attempt))


def rows(db: Database) -> int:
    return db.value("SELECT count(*) FROM business")


def attempts(db: Database, handle: TaskHandle[Any]) -> list[tuple[str, str | None]]:
    return db.execute(
        "SELECT outcome, error_code FROM horsies_task_attempts WHERE task_id = %s ORDER BY attempt", handle.task_id
    )


def status(handle: TaskHandle[Any]) -> TaskStatus:
    info = handle.info()
    assert info is not None
    return info.status


# -- commit and rollback -------------------------------------------------------------------------


def test_the_end_goes_the_way_of_the_transaction_of_every_kind_of_connection(business: Database) -> None:
    with make_app(business.url) as app:

        @app.task("work")
        def work(name: str, commits: bool) -> Number:
            with ROADS[name](business.url) as road:
                road.begin()
                write(road.execute)
                result = road.call(current_task(), "complete", road.connection, 7)  # type: ignore[arg-type]
                (road.commit if commits else road.rollback)()
                return result

        with testing.real(app, in_place=True) as database:
            done = {name: work.send(name, True) for name in ROADS}
            undone = {name: work.send(name, False) for name in ROADS}
            report = database.drain()
        assert (report.completed, report.failed) == (len(done), len(undone))
        for name, handle in done.items():
            assert handle.get(0) == TaskResult(ok=7), name
            assert attempts(business, handle) == [("COMPLETED", None)], name
            assert status(handle) is TaskStatus.COMPLETED
        for name, handle in undone.items():
            error = handle.get(0).err_value
            assert error.error_code is OperationalErrorCode.COMPLETION_NOT_COMMITTED, (name, error)
            assert "not committed" in error.message
            assert attempts(business, handle) == [("FAILED", "COMPLETION_NOT_COMMITTED")], name
        written = business.execute("SELECT task_id FROM business ORDER BY 1")
        assert written == sorted((handle.task_id,) for handle in done.values())


def test_a_transaction_that_did_not_commit_is_retried_where_the_policy_says_so(business: Database) -> None:
    def body() -> Number:
        with psycopg.connect(business.url) as connection:
            write(connection.execute)
            result = current_task().complete(connection, 7)
            if current_task().attempt == 1:
                connection.rollback()
            return result

    policy = RetryPolicy.fixed(0.001, 2, auto_retry_for=["COMPLETION_NOT_COMMITTED"])
    with task_of(business, body, retry_policy=policy) as task, testing.real(task.app, in_place=True) as database:
        handle = task.work.send()
        eventually(lambda: database.drain().completed == 1)
        assert handle.get(0) == TaskResult(ok=7)
        assert business.execute("SELECT attempt FROM business") == [(2,)]
        assert attempts(business, handle) == [("FAILED", "COMPLETION_NOT_COMMITTED"), ("COMPLETED", None)]


def test_a_savepoint_that_is_rolled_back_takes_the_end_with_it(business: Database) -> None:
    def body() -> Number:
        with psycopg.connect(business.url) as connection:
            write(connection.execute)
            with connection.transaction() as savepoint:
                current_task().complete(connection, 7)
                raise psycopg.Rollback(savepoint)
        return TaskResult(ok=7)

    with task_of(business, body) as task:
        _, result = task.run()
        assert result.err.error_code == "COMPLETION_NOT_COMMITTED"
        assert rows(business) == 1  # what the task committed without its end stays: that is the task's own doing


def test_what_the_task_raises_or_returns_after_the_commit_changes_nothing(business: Database) -> None:
    def raising() -> Number:
        with psycopg.connect(business.url) as connection:
            write(connection.execute)
            current_task().complete(connection, 7)
        raise ValueError("after the commit")

    def failing() -> Number:
        with psycopg.connect(business.url) as connection:
            write(connection.execute)
            current_task().complete(connection, 8)
        return TaskResult(err=TaskError("MINE"))

    def other() -> Number:
        with psycopg.connect(business.url) as connection:
            write(connection.execute)
            current_task().complete(connection, 9)
        return TaskResult(ok=10)

    for body, value in ((raising, 7), (failing, 8), (other, 9)):
        with task_of(business, body) as task:
            handle, result = task.run()
            assert result == TaskResult(ok=value)
            assert attempts(business, handle) == [("COMPLETED", None)]
    assert rows(business) == 3


def test_an_exception_before_the_commit_is_the_end_of_the_attempt(business: Database) -> None:
    def body() -> Number:
        with psycopg.connect(business.url) as connection:
            write(connection.execute)
            current_task().complete(connection, 7)
            raise ValueError("before the commit")

    with task_of(business, body) as task:
        _, result = task.run()
        assert result.err.error_code == "UNHANDLED_EXCEPTION"
        assert "before the commit" in result.err.message
        assert rows(business) == 0


def test_a_transaction_that_is_left_open_is_named(business: Database) -> None:
    left: list[Any] = []

    def body() -> Number:
        left.append(psycopg.connect(business.url))
        return current_task().complete(left[0], 7)

    with task_of(business, body) as task:
        with pytest.raises(UsageError, match=r"complete\(\) is still open"):
            task.run()
        left[0].rollback()
        left[0].close()
        business.execute("DELETE FROM horsies_tasks")


# -- refusals ------------------------------------------------------------------------------------


def _psycopg(url: str) -> Iterator[Any]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def _sqlalchemy(url: str) -> Iterator[Any]:
    engine = sqlalchemy.create_engine(
        sqlalchemy.make_url(url).set(drivername="postgresql+psycopg2"), isolation_level="AUTOCOMMIT"
    )
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def _django(url: str) -> Iterator[Any]:
    with django_road(url) as road:
        yield road.connection


@pytest.mark.parametrize("connect", [_psycopg, _sqlalchemy, _django])
def test_a_connection_that_commits_each_statement_is_refused(connect: Any, business: Database) -> None:
    def body() -> Number:
        with contextmanager(connect)(business.url) as connection:
            return current_task().complete(connection, 7)

    with task_of(business, body) as task:
        handle, result = task.run()
        assert result.is_err()
        assert isinstance(task.raised[0], UsageError)
        assert "needs an open transaction" in str(task.raised[0])
        assert attempts(business, handle) == [("FAILED", "UNHANDLED_EXCEPTION")]


def test_a_read_only_transaction_is_refused(business: Database) -> None:
    def body() -> Number:
        with psycopg.connect(business.url) as connection:
            connection.read_only = True
            return current_task().complete(connection, 7)

    with task_of(business, body) as task:
        assert task.run()[1].is_err()
        assert isinstance(task.raised[0], UsageError)
        assert "is read-only: use one that may write" in str(task.raised[0])


def test_asyncpg_without_a_transaction_is_refused(business: Database) -> None:
    async def complete(context: Any) -> Number:
        connection = await asyncpg.connect(business.url)
        try:
            return await context.complete_async(connection, 7)
        finally:
            await connection.close()

    with task_of(business, lambda: asyncio.run(complete(current_task()))) as task:
        assert task.run()[1].is_err()
        assert "needs an open transaction" in str(task.raised[0])


@pytest.mark.parametrize(
    ("value", "error", "says"),
    [
        ("seven", ResultError, "return value"),
        (None, ResultError, "return value"),
        (TaskResult(ok=7), UsageError, "takes the value of an ok result"),
        (TaskResult(err=TaskError("MINE")), UsageError, "return TaskResult"),
    ],
)
def test_a_value_that_the_task_must_not_return_is_refused(
    business: Database, value: Any, error: type[Exception], says: str
) -> None:
    def body() -> Number:
        with psycopg.connect(business.url) as connection:
            write(connection.execute)
            return current_task().complete(connection, value)

    with task_of(business, body) as task:
        _, result = task.run()
        assert isinstance(task.raised[0], error)
        assert says in str(task.raised[0])
        expected = "RETURN_TYPE_MISMATCH" if error is ResultError else "UNHANDLED_EXCEPTION"
        assert result.err.error_code == expected
        assert rows(business) == 0


def test_a_task_that_completes_itself_cannot_continue_as_a_workflow(business: Database) -> None:
    def body() -> Number:
        with psycopg.connect(business.url) as connection:
            flow: Any = Continue(task.app.workflow("w", [task.work.node()()]))
            return current_task().complete(connection, flow)

    with task_of(business, body) as task:
        assert task.run()[1].is_err()
        assert "cannot continue as a workflow" in str(task.raised[0])


def test_a_connection_of_the_wrong_kind_names_the_right_method(business: Database) -> None:
    def body() -> Number:
        with psycopg.connect(business.url) as connection:
            return asyncio.run(current_task().complete_async(connection, 7))

    with task_of(business, body) as task:
        task.run()
        assert "call complete() from a thread" in str(task.raised[0])
    with task_of(business, lambda: current_task().complete(object(), 7)) as task:
        task.run()
        assert "does not understand builtins.object" in str(task.raised[0])


def test_another_database_is_named(business: Database, empty_db: Database) -> None:
    def body() -> Number:
        with psycopg.connect(empty_db.url) as connection:
            return current_task().complete(connection, 7)

    with task_of(business, body) as task:
        task.run()
        assert isinstance(task.raised[0], UsageError)
        assert "must lead to the database" in str(task.raised[0])


def test_a_second_call_is_refused_unless_the_first_was_rolled_back(business: Database) -> None:
    def twice() -> Number:
        with psycopg.connect(business.url) as connection:
            write(connection.execute)
            current_task().complete(connection, 7)
            return current_task().complete(connection, 8)

    def elsewhere() -> Number:
        with psycopg.connect(business.url) as one, psycopg.connect(business.url) as other:
            current_task().complete(one, 7)
            return current_task().complete(other, 8)

    def after() -> Number:
        with psycopg.connect(business.url) as connection:
            current_task().complete(connection, 7)
            connection.commit()
            return current_task().complete(connection, 8)

    def again() -> Number:
        with psycopg.connect(business.url) as connection:
            write(connection.execute)
            current_task().complete(connection, 7)
            connection.rollback()
            write(connection.execute)
            return current_task().complete(connection, 8)

    for body, says, expected in (
        (twice, "call it once", None),
        (elsewhere, "still open on another connection", None),
        (after, "call it once", 7),
        (again, None, 8),
    ):
        with task_of(business, body) as task:
            _, result = task.run()
            assert result.ok == expected, (body.__name__, result)
            assert (says is None) == (not task.raised)
            assert says is None or says in str(task.raised[0])
            if says is not None:
                assert isinstance(task.raised[0], UsageError)
    assert rows(business) == 1


# -- the fence -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "theft",
    [
        "claim_generation = claim_generation + 1",
        "claimed_by_worker_id = 'another'",
        "status = 'FAILED', failed_at = now(), terminal_at = now(), result = '{}', error_code = 'WORKER_CRASHED'",
    ],
)
def test_an_attempt_that_lost_its_claim_can_write_nothing(business: Database, theft: str) -> None:
    def body() -> Number:
        with psycopg.connect(business.url) as connection:
            write(connection.execute)
            business.execute(f"UPDATE horsies_tasks SET {theft} WHERE id = %s", current_task().task_id)
            return current_task().complete(connection, 7)

    with task_of(business, body) as task:
        handle, _ = task.run()
        lost = task.raised[0]
        assert isinstance(lost, ClaimLostError)
        assert lost.task_id == handle.task_id
        assert "its claim is lost" in str(lost)
        assert rows(business) == 0
        assert attempts(business, handle) == []
        business.execute("DELETE FROM horsies_tasks")


def test_it_waits_for_the_row_and_looks_at_it_again(business: Database) -> None:
    """A cancel, a reaper or a heartbeat holds the row briefly."""
    holder = psycopg.connect(business.url)

    def body() -> Number:
        holder.execute("SELECT FROM horsies_tasks WHERE id = %s FOR UPDATE", (current_task().task_id,))
        waiting = (
            "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%complete_task%'"
        )
        with ThreadPoolExecutor(1) as pool:
            released = pool.submit(lambda: (eventually(lambda: business.value(waiting) == 1), holder.rollback()))
            with psycopg.connect(business.url) as connection:
                result = current_task().complete(connection, 7)
            released.result()
            return result

    with task_of(business, body) as task:
        assert task.run()[1] == TaskResult(ok=7)
    holder.close()


@pytest.mark.parametrize("level", [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE])
def test_a_changed_row_is_a_serialization_failure_that_the_task_may_retry(
    business: Database, level: psycopg.IsolationLevel
) -> None:
    """A heartbeat writes to the row. The driver's own error passes, and a new transaction works."""
    refused: list[str | None] = []

    def body() -> Number:
        with psycopg.connect(business.url) as connection:
            connection.isolation_level = level
            while True:
                write(connection.execute)
                if not refused:
                    beat = "UPDATE horsies_tasks SET worker_pid = 1 WHERE id = %s"
                    business.execute(beat, current_task().task_id)
                try:
                    result = current_task().complete(connection, 7)
                    connection.commit()
                    return result
                except psycopg.errors.SerializationFailure as error:
                    refused.append(error.sqlstate)
                    connection.rollback()

    with task_of(business, body) as task:
        assert task.run()[1] == TaskResult(ok=7)
        assert (refused, rows(business)) == (["40001"], 1)


def test_it_works_in_a_thread_and_with_a_schema(db: Database) -> None:
    import horsies_schema

    db.execute("CREATE SCHEMA other")
    horsies_schema.upgrade(db.url, schema="other")
    db.execute("CREATE TABLE business (task_id text, attempt int)")

    def body() -> Number:
        context = current_task()

        def inside() -> Number:
            with psycopg.connect(db.url) as connection:
                connection.execute("INSERT INTO business VALUES (%s, %s)", (context.task_id, context.attempt))
                return context.complete(connection, 7)

        found: list[Number] = []
        thread = threading.Thread(target=lambda: found.append(inside()))
        thread.start()
        thread.join()
        return found[0]

    try:
        with task_of(db, body, broker={"schema": "other"}) as task:
            assert task.run()[1] == TaskResult(ok=7)
            assert rows(db) == 1
            assert db.value("SELECT count(*) FROM other.horsies_task_attempts") == 1
    finally:
        db.execute("DROP SCHEMA other CASCADE")
        db.execute("DROP TABLE business")


# -- rights --------------------------------------------------------------------------------------

CALL = "SELECT outcome FROM horsies_complete_task(%s, %s, %s, %s, txid_current(), '{}', 0, 0, 1, 'me', false)"


@pytest.mark.parametrize(
    ("role", "refusal"),
    [("producer", None), ("worker", None), ("viewer", "GRANT horsies_producer"), ("operator", "GRANT horsies_producer"),
     ("stranger", "GRANT horsies_producer")],
)  # fmt: skip
def test_the_roles_that_complete_tasks(business: Database, role: str, refusal: str | None) -> None:
    with accounts(business) as roles:

        def body() -> Number:
            with psycopg.connect(roles[role].url) as connection:
                write(connection.execute)
                return current_task().complete(connection, 7)

        business.execute(f'GRANT INSERT ON business TO "{account(roles[role])}"')
        with task_of(business, body) as task:
            _, result = task.run()
        assert result.is_ok() == (refusal is None)
        assert (refusal is None) or refusal in str(task.raised[0])
        assert rows(business) == (1 if refusal is None else 0)
        assert may(roles[role], "SELECT completion_key FROM horsies_worker_instances") == (role == "worker")
        assert may(roles[role], "SELECT worker_id FROM horsies_worker_instances") == (role in OPEN_TO)


OPEN_TO = {"worker", "viewer", "operator"}


def test_a_producer_cannot_complete_what_it_does_not_run(business: Database) -> None:
    """It may read who runs a task, and its generation; the token is what it lacks."""
    one, other = Claimant("w1", "k" * 64, 0.0), Claimant("w2", "x" * 64, 0.0)
    for claimant in (one, other):
        sql = "INSERT INTO horsies_worker_instances (worker_id, period_ms, completion_key) VALUES (%s, 1000, %s)"
        business.execute(sql, claimant.worker_id, claimant.key)
    business.execute("INSERT INTO horsies_worker_instances (worker_id, period_ms) VALUES ('w0', 1000)")
    factories.task(business, id="t1", status="RUNNING", claimed_by_worker_id="w1", claim_generation=3)
    factories.task(business, id="t0", status="RUNNING", claimed_by_worker_id="w0", claim_generation=1)
    forged = Claimant("w0", "", 0.0)
    with accounts(business) as roles:
        producer = roles["producer"]
        for task_id, worker_id, generation, token in (
            ("t1", "w1", 3, ""),
            ("t1", "w1", 3, None),
            ("t1", "w1", 3, "k" * 64),
            ("t1", "w1", 3, one.token("t1", 2)),
            ("t1", "w1", 3, one.token("t2", 3)),
            ("t1", "w1", 3, other.token("t1", 3)),
            ("t1", "w2", 3, one.token("t1", 3)),
            ("t1", None, 3, one.token("t1", 3)),
            # a worker of an older release has no key
            ("t0", "w0", 1, forged.token("t0", 1)),
            ("t0", "w0", 1, hashlib.sha256(b"t0 1").hexdigest()),
        ):
            assert producer.value(CALL, task_id, worker_id, generation, token) == "UNKNOWN"
        assert producer.value(CALL, "t1", "w2", 3, other.token("t1", 3)) == "LOST"
        assert business.execute("SELECT DISTINCT status FROM horsies_tasks") == [("RUNNING",)]
        assert producer.value(CALL, "t1", "w1", 3, one.token("t1", 3)) == "COMPLETED"
        assert producer.value(CALL, "t1", "w1", 3, one.token("t1", 3)) == "ENDED"
    business.execute("DELETE FROM horsies_tasks")
    business.execute("DELETE FROM horsies_worker_instances")


def test_outside_of_a_worker_it_is_refused() -> None:
    from horsies.context import TaskContext

    context = TaskContext(
        task_id="t", task_name="n", attempt=1, deadline=None, fencing_token=1,
    )  # fmt: skip
    with pytest.raises(UsageError, match="a worker has to run it"):
        context.complete(object(), 1)


# -- the testing kit -----------------------------------------------------------------------------


def test_in_a_transaction_of_the_test_django_counts_as_committed(business: Database) -> None:
    """As in Django's TestCase, whose transaction never commits."""
    from django.db import connection, transaction

    block: Any = transaction.atomic
    with make_app(UNREACHABLE) as app, django_road(business.url) as road:

        @app.task("order")
        def order(how: str) -> Number:
            if how == "autocommit":
                return current_task().complete(connection, 7)
            with block():
                write(road.execute)
                result = current_task().complete(connection, 7)
                if how == "roll back":
                    transaction.set_rollback(True)
            return result

        refused = testing.run(order, "autocommit").err_value
        assert "needs an open transaction" in refused.message
        assert testing.run(order, "commit") == TaskResult(ok=7)
        assert rows(business) == 1
        road.begin()
        assert testing.run(order, "commit") == TaskResult(ok=7)
        assert testing.run(order, "roll back").err_value.error_code == "COMPLETION_NOT_COMMITTED"
        road.rollback()
        assert rows(business) == 1


def test_inline_ends_as_the_transaction_of_the_task_does(business: Database) -> None:
    """Where the library does not tell, a task that returns has committed."""
    with make_app(UNREACHABLE) as app:

        @app.task("order")
        def order(name: str, commits: bool) -> Number:
            with ROADS[name](business.url) as road:
                road.begin()
                road.execute("SELECT 1")
                result = road.call(current_task(), "complete", road.connection, 7)  # type: ignore[arg-type]
                (road.commit if commits else road.rollback)()
                return result

        with testing.inline(app):
            for name in ROADS:
                assert order.send(name, True).get() == TaskResult(ok=7), name
                tells = " on " in name or name.startswith("Django")
                undone = order.send(name, False).get()
                assert undone.is_err() == tells, name
                assert not tells or undone.err_value.error_code == "COMPLETION_NOT_COMMITTED"
