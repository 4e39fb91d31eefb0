"""A send that meets a broken network, a dead server or a wrong schema: one row or none, and an honest error."""

import asyncio
import logging
import time
import traceback
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any

import asyncpg
import psycopg
import pytest

import horsies_schema
from horsies import BrokerError, Horsies, SchemaError, SendErrorCode, TaskSendError, UsageError
from horsies.tasks import TaskFunction
from tests.support import factories
from tests.support.apps import UNREACHABLE, add_task, app_on, async_app_on, make_app
from tests.support.chaosproxy import ChaosProxy, Mode, When
from tests.support.postgres import Database
from tests.support.refusals import refusing
from tests.support.waiting import eventually_async

INSERT = r"INSERT INTO horsies_tasks|CALL horsies_send_task"


@pytest.fixture
def proxy(db: Database) -> Iterator[ChaosProxy]:
    with ChaosProxy(db.url) as proxy:
        yield proxy


@pytest.fixture
async def app(proxy: ChaosProxy) -> AsyncIterator[Horsies]:
    async with async_app_on(proxy.url) as app:
        yield app


@pytest.fixture
def add(app: Horsies) -> TaskFunction[[int, int], int]:
    return add_task(app)


# -- the answer is lost --------------------------------------------------------------------------


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("road", ["send", "unique", "many", "own id", "first ever"])
async def test_a_lost_connection_around_the_insert_makes_one_row(
    db: Database, proxy: ChaosProxy, add: TaskFunction[[int, int], int], road: str, when: When
) -> None:
    """F34: repeated with the same id and fingerprint, whether or not the server had taken the first one."""
    if road != "first ever":
        await add.schedule_async(60, 0)  # the statement is prepared, the schema checked
        db.execute("DELETE FROM horsies_tasks")
    proxy.cut_at(INSERT, when)
    match road:
        case "many":
            handles = await add.send_many_async([(1,), (2,), (3,)])
        case "unique":
            handles = [await add.with_options(unique_key="k").send_async(1)]
        case "own id":
            handles = [await add.with_options(task_id=str(uuid.uuid4())).send_async(1)]
        case _:
            handles = [await add.send_async(1)]
    assert proxy.cuts == 1
    found = {row[0] for row in db.execute("SELECT id FROM horsies_tasks")}
    assert found == {handle.task_id for handle in handles}
    assert not any(handle.is_duplicate for handle in handles)


async def test_without_retries_of_its_own_the_error_says_that_the_outcome_is_unknown(
    db: Database, proxy: ChaosProxy
) -> None:
    async with async_app_on(proxy.url, resilience={"send_attempts": 1}) as app:
        add = add_task(app)
        await add.send_async(0)
        for when in When:
            proxy.cut_at(INSERT, when)
            with pytest.raises(TaskSendError, match=r"it may or may not be enqueued, \.retry\(\) is safe") as raised:
                await add.send_async(1)
            error = raised.value
            assert (error.code, error.retryable) == (SendErrorCode.ENQUEUE_FAILED, True)
            assert error.__cause__ is not None
            handle = await error.retry_async()
            assert handle.task_id == error.task_id
            assert (await error.retry_async()).task_id == error.task_id  # as often as you like
    assert factories.count(db) == 3


async def test_a_connection_that_breaks_at_any_byte_loses_nothing(db: Database, proxy: ChaosProxy) -> None:
    """Also in the middle of the start-up, of the schema check, and of a message."""
    for count in (1, 30, 100, 170, 250, 400, 700, 1_100):
        async with async_app_on(proxy.url) as app:
            proxy.cut_after_bytes(count)
            before = factories.count(db)
            handles = await add_task(app).send_many_async([(number,) for number in range(3)])
            assert factories.count(db) - before == len(handles) == 3
    assert proxy.cuts == 8


# -- the server is away --------------------------------------------------------------------------


async def test_a_server_that_is_down_is_asked_again_within_bounds(
    db: Database, proxy: ChaosProxy, app: Horsies, add: TaskFunction[[int, int], int]
) -> None:
    proxy.set(Mode.CUT)
    began = time.monotonic()
    with pytest.raises(TaskSendError, match="ENQUEUE_FAILED: task 'add': there is no connection") as raised:
        await add.send_async(1)
    assert time.monotonic() - began < 10
    assert proxy.accepted == app.config.resilience.send_attempts
    proxy.set(Mode.PASS)
    handle = await raised.value.retry_async()
    assert handle.task_id == raised.value.task_id
    assert factories.count(db) == 1


async def test_send_many_while_the_server_is_down(
    db: Database, proxy: ChaosProxy, add: TaskFunction[[int, int], int]
) -> None:
    proxy.set(Mode.CUT)
    with pytest.raises(TaskSendError, match="3 tasks: there is no connection") as raised:
        await add.send_many_async([(1,), (2,), (3,)])
    proxy.set(Mode.PASS)
    handles = await raised.value.retry_async()
    assert tuple(handle.task_id for handle in handles) == raised.value.task_ids
    assert factories.count(db) == 3


async def test_the_budget_ends_the_tries(proxy: ChaosProxy) -> None:
    patient = {"send_attempts": 20, "send_retry_budget_ms": 300, "reconnect_initial_ms": 100, "reconnect_max_ms": 100}
    proxy.set(Mode.CUT)
    async with async_app_on(proxy.url, resilience=patient) as app:
        began = time.monotonic()
        with pytest.raises(TaskSendError):
            await add_task(app).send_async(1)
        assert time.monotonic() - began < 5
    assert 1 < proxy.accepted < 10


def test_retry_without_a_loop(db: Database, proxy: ChaosProxy) -> None:
    with app_on(proxy.url, resilience={"send_attempts": 1}) as app:
        add = add_task(app)
        proxy.set(Mode.CUT)
        with pytest.raises(TaskSendError) as one:
            add.schedule(60, 1)
        with pytest.raises(TaskSendError) as many:
            add.send_many([(1,), (2,)])
        proxy.set(Mode.PASS)
        assert one.value.retry().task_id == one.value.task_id
        assert tuple(handle.task_id for handle in many.value.retry()) == many.value.task_ids
    assert factories.count(db) == 3


def test_nobody_listens_there() -> None:
    """Without a loop; `.retry()` fails the same way, and keeps the id."""
    with app_on(UNREACHABLE, resilience={"send_attempts": 2}) as app:
        with pytest.raises(TaskSendError, match="ConnectionRefusedError") as raised:
            add_task(app).send(1)
        assert raised.value.retryable
        with pytest.raises(TaskSendError) as again:
            raised.value.retry()
        assert again.value.task_id == raised.value.task_id
        with pytest.raises(TaskSendError, match="2 tasks"):
            add_task(app).send_many([(1,), (2,)])


async def test_a_server_that_never_answers_is_given_up(db: Database, proxy: ChaosProxy) -> None:
    bounds = {"connect_timeout_ms": 300, "command_timeout_ms": 300}
    async with async_app_on(proxy.url, broker=bounds, resilience={"send_retry_budget_ms": 0}) as app:
        add = add_task(app)
        for warm in (False, True):
            if warm:
                await add.send_async(0)
            proxy.set(Mode.DROP)
            with pytest.raises(TaskSendError, match="TimeoutError") as raised:
                await add.send_async(1)
            proxy.set(Mode.PASS)
            proxy.cut()  # what was swallowed is lost for these connections
            await raised.value.retry_async()
    assert factories.count(db) == 3


async def test_a_slow_network_only_takes_longer(db: Database, proxy: ChaosProxy, app: Horsies) -> None:
    proxy.set(Mode.DELAY, delay_s=0.05)
    await add_task(app).send_async(1)
    assert factories.count(db) == 1


async def test_an_interrupted_send_leaves_the_pool_usable(
    db: Database, proxy: ChaosProxy, add: TaskFunction[[int, int], int]
) -> None:
    await add.send_async(0)
    proxy.set(Mode.FREEZE)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await add.send_async(1)
    proxy.set(Mode.PASS)
    handles = await asyncio.gather(*(add.send_async(2) for _ in range(20)))
    assert len(handles) == 20


async def test_backends_that_were_terminated_while_idle(db: Database) -> None:
    """A restarted server, a firewall, an idle_session_timeout: the pool's connections are dead and do not know."""
    async with async_app_on(db) as app:
        add = add_task(app)
        await asyncio.gather(*(add.send_async(number) for number in range(5)))
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE application_name = 'horsies' AND datname = current_database()"
        )
        await asyncio.gather(*(add.send_async(number) for number in range(5)))
    assert factories.count(db) == 10


async def test_a_failover_that_has_no_primary_yet_is_waited_for(db: Database) -> None:
    """For a moment no host takes writes."""
    db.execute(f'ALTER DATABASE "{db.name}" SET default_transaction_read_only = on')
    async with async_app_on(f"{db.url}&target_session_attrs=read-write", resilience={"send_attempts": 2}) as app:
        with pytest.raises(TaskSendError, match="TargetServerAttributeNotMatched") as raised:
            await add_task(app).send_async(1)
        assert raised.value.retryable
        with psycopg.connect(db.url, options="-c default_transaction_read_only=off", autocommit=True) as admin:
            admin.execute(f'ALTER DATABASE "{db.name}" RESET default_transaction_read_only')  # type: ignore[call-overload]
        await raised.value.retry_async()
    assert factories.count(db) == 1


# -- what is known ---------------------------------------------------------------------------------

NOT_ENQUEUED = r"it is not enqueued"
UNKNOWN = r"it may or may not be enqueued"

Failing = Callable[[], Coroutine[Any, Any, Any]]


def verbs(app: Horsies) -> dict[str, Failing]:
    add = add_task(app)
    spec = app.workflow("one", [add.node()(1)])
    return {
        "send": lambda: add.send_async(1),
        "own id": lambda: add.with_options(task_id=str(uuid.uuid4())).send_async(1),
        "unique": lambda: add.with_options(unique_key="k").send_async(1),
        "by name": lambda: app.send_async("elsewhere", 1),
        "schedule": lambda: add.schedule_async(60, 1),
        "send_many": lambda: add.send_many_async([(1,), (2,)]),
        "start": spec.start_async,
    }


VERBS = list(verbs(make_app(UNREACHABLE)))
REFUSALS = {
    "read-only": ("25006", "ReadOnlySQLTransactionError", True),
    "disk full": ("53100", "DiskFullError", True),
    "out of memory": ("53200", "OutOfMemoryError", True),
    "no rights": ("42501", "InsufficientPrivilegeError", False),
    "serialization": ("40001", "SerializationError", True),
}


@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("verb", VERBS)
async def test_a_server_that_says_no_has_not_taken_it(db: Database, verb: str, refusal: str) -> None:
    code, name, retryable = REFUSALS[refusal]
    inserts = [f"BEFORE INSERT ON horsies_{table}" for table in ("tasks", "workflows")]
    async with async_app_on(db, resilience={"send_attempts": 2}) as app:
        told = rf"the database refused it \({name}.*{NOT_ENQUEUED}"
        with refusing(db, *inserts, code=code), pytest.raises(TaskSendError, match=told) as raised:
            await verbs(app)[verb]()
        assert raised.value.retryable is retryable
        assert (".retry() is safe" in str(raised.value)) is retryable


async def test_a_read_only_server_has_not_taken_it(db: Database) -> None:
    db.execute(f'ALTER DATABASE "{db.name}" SET default_transaction_read_only = on')
    async with async_app_on(db, resilience={"send_attempts": 2}) as app:
        for verb in verbs(app).values():
            with pytest.raises(TaskSendError, match=rf"the database refused it \(ReadOnly.*{NOT_ENQUEUED}, \.retry"):
                await verb()


@pytest.mark.parametrize("verb", VERBS)
async def test_without_a_connection_nothing_was_sent(db: Database, verb: str) -> None:
    unknown_role = db.url.replace("postgres@", "nobody_of_this_name@")
    for url, name in (
        (UNREACHABLE, "ConnectionRefusedError"),
        (unknown_role, "InvalidAuthorizationSpecificationError"),
    ):
        async with async_app_on(url, resilience={"send_attempts": 2}) as app:
            with pytest.raises(TaskSendError, match=rf"there is no connection .*{name}.*{NOT_ENQUEUED}"):
                await verbs(app)[verb]()


@pytest.mark.parametrize("verb", VERBS)
async def test_an_answer_that_was_lost_stays_lost(db: Database, proxy: ChaosProxy, verb: str) -> None:
    """A `.retry()` that is refused a connection says so still: the first one may have been taken all the same."""
    async with async_app_on(proxy.url, resilience={"send_attempts": 1}) as app:
        fail = verbs(app)[verb]
        await add_task(app).send_async(0)
        proxy.cut_at(r"INSERT INTO horsies_tasks|CALL horsies_send_task|horsies_start_workflow", When.UNANSWERED)
        with pytest.raises(TaskSendError, match=UNKNOWN) as raised:
            await fail()
        proxy.set(Mode.CUT)
        with pytest.raises(TaskSendError, match=UNKNOWN):
            await raised.value.retry_async()
        proxy.set(Mode.PASS)
        await raised.value.retry_async()


async def test_a_session_that_was_ended_in_the_middle_says_unknown(db: Database) -> None:
    with psycopg.connect(db.url) as other:
        other.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
        async with async_app_on(db, resilience={"send_attempts": 1}) as app:
            sending = asyncio.create_task(add_task(app).send_async(1))
            # of this database: other tests wait for locks on purpose
            waiting = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            await eventually_async(lambda: db.value(f"SELECT count(*) {waiting}") == 1)
            db.execute(f"SELECT pg_terminate_backend(pid) {waiting}")
            with pytest.raises(TaskSendError, match=UNKNOWN):
                await sending


async def test_an_operation_says_as_much(db: Database, proxy: ChaosProxy) -> None:
    async with async_app_on(UNREACHABLE, resilience={"send_attempts": 1}) as app:
        with pytest.raises(BrokerError, match="there is no connection to the database"):
            await app.handle(str(uuid.uuid4())).cancel_async()
    async with async_app_on(proxy.url, resilience={"send_attempts": 1}) as app:
        handle = await add_task(app).send_async(1)
        proxy.cut_at("horsies_cancel_tasks", When.UNANSWERED)
        with pytest.raises(BrokerError, match=r"gave no answer .* may or may not be changed"):
            await handle.cancel_async()
        db.execute(f'ALTER DATABASE "{db.name}" SET default_transaction_read_only = on')
    async with async_app_on(db, resilience={"send_attempts": 1}) as app:
        with pytest.raises(BrokerError, match="the database refused it"):
            await app.handle(handle.task_id).cancel_async()


def test_on_a_connection_of_the_callers(db: Database) -> None:
    with app_on(db) as app, psycopg.connect(db.url) as connection:
        add = add_task(app).with_options(connection=connection)
        connection.execute("SET TRANSACTION READ ONLY")
        with pytest.raises(TaskSendError, match=r"refused the statement .*; it is not enqueued, roll your transaction"):
            add.send(1)
        connection.rollback()
        connection.execute("CREATE SCHEMA elsewhere")
        connection.execute("SET LOCAL search_path = elsewhere")
        with pytest.raises(TaskSendError, match=r"(?s)UndefinedTable.* no or older .*: run `horsies-migrate up`"):
            add.send(1)
        connection.close()
        with pytest.raises(TaskSendError, match=r"your connection failed .*; it is enqueued only if your transaction"):
            add.send(1)


# -- the database says no ------------------------------------------------------------------------


async def test_a_refusal_is_told_once_and_not_repeated(db: Database, conn: asyncpg.Connection) -> None:
    await conn.execute("ALTER TABLE horsies_tasks ADD CONSTRAINT none CHECK (priority <> 5)")
    async with async_app_on(db) as app:
        with pytest.raises(TaskSendError, match=r"the database refused it \(CheckViolationError") as raised:
            await add_task(app).with_options(priority=5).send_async(1)
        assert (raised.value.code, raised.value.retryable) == (SendErrorCode.ENQUEUE_FAILED, False)
        with pytest.raises(TaskSendError) as again:
            await raised.value.retry_async()
        assert again.value is raised.value
        await add_task(app).send_async(1)
    assert factories.count(db) == 1


async def test_a_held_lock_is_an_outage(db: Database) -> None:
    """While the table cannot be read, it is not known either whether the send had committed."""
    with psycopg.connect(db.url) as other:
        other.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
        for setting in ("lock_timeout", "statement_timeout"):
            async with async_app_on(f"{db.url}&{setting}=50", resilience={"send_attempts": 1}) as app:
                with pytest.raises(TaskSendError, match=rf"{UNKNOWN}.*\.retry\(\) is safe") as raised:
                    await add_task(app).send_async(1)
                assert raised.value.retryable


@pytest.mark.parametrize("verb", ["send", "many"])
@pytest.mark.parametrize("setting", ["lock_timeout", "statement_timeout"])
async def test_a_send_that_fails_after_its_commit_is_never_called_not_enqueued(
    db: Database, setting: str, verb: str
) -> None:
    """NOTIFY waits for a lock after the rows were committed, and the table is locked before they can be read."""
    # The lock of NOTIFY is held for the length of a commit only: an advisory lock stands in for it.
    db.execute(
        "CREATE OR REPLACE FUNCTION horsies_notify_sent(queue_name text, task_id text) RETURNS boolean LANGUAGE plpgsql"
        " AS $$ BEGIN PERFORM pg_advisory_xact_lock(4711); RETURN true; END $$"
    )
    url = f"{db.url}&{setting}=1500"
    async with async_app_on(url, resilience={"send_attempts": 1}) as app:
        add = add_task(app)
        with psycopg.connect(db.url) as other:
            other.execute("SELECT pg_advisory_lock(4711)")
            sending = asyncio.create_task(add.send_async(1) if verb == "send" else add.send_many_async([(1,), (2,)]))
            count = 1 if verb == "send" else 2
            await eventually_async(lambda: factories.count(db) == count)
            other.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
            with pytest.raises(TaskSendError, match=UNKNOWN) as raised:
                await sending
            other.execute("SELECT pg_advisory_unlock(4711)")
        await raised.value.retry_async()
        assert factories.count(db) == count


async def test_without_tables(empty_db: Database) -> None:
    async with async_app_on(empty_db) as app:
        for _ in range(2):
            with pytest.raises(SchemaError) as raised:
                await add_task(app).send_async(1)
        told = "there are no horsies tables in this database (by its search_path): run `horsies-migrate up`"
        assert str(raised.value) == told
    async with async_app_on(empty_db, broker={"schema": "jobs"}) as app:
        told = r"there are no horsies tables in schema 'jobs' of this database: run `horsies-migrate up --schema jobs`"
        with pytest.raises(SchemaError, match=told):
            await add_task(app).send_async(1)
        horsies_schema_upgraded = await horsies_schema.upgrade_async(empty_db.url, schema="jobs")
        await add_task(app).send_async(1)  # the same app, once somebody has run that
        assert horsies_schema_upgraded == horsies_schema.head()


async def test_with_tables_that_are_too_old(empty_db: Database) -> None:
    await horsies_schema.upgrade_async(empty_db.url, "0001")
    async with async_app_on(empty_db) as app:
        with pytest.raises(SchemaError, match=r"at revision 0001, this release needs \d{4}: run `horsies-migrate up`"):
            await add_task(app).send_async(1)


async def test_with_tables_of_a_newer_release(db: Database) -> None:
    db.execute("UPDATE horsies_alembic_version SET version_num = '9999'")
    async with async_app_on(db) as app:
        await add_task(app).send_async(1)


async def test_closed_in_the_middle_of_its_retries(proxy: ChaosProxy) -> None:
    """The retry that slept through the close must not open the connections again."""
    proxy.set(Mode.CUT)
    app = make_app(proxy.url, resilience={"reconnect_initial_ms": 200, "reconnect_max_ms": 200, "send_attempts": 20})
    sending = asyncio.create_task(add_task(app).send_async(1))
    while not proxy.accepted:
        await asyncio.sleep(0.01)
    proxy.set(Mode.PASS)
    await app.aclose()
    with pytest.raises((UsageError, TaskSendError)):
        await sending
    assert proxy.open == 0


# -- secrets -------------------------------------------------------------------------------------

# the password is s3cr/t@p:w
FORMS = {
    "in the URL": "postgresql://shop:s3cr%2Ft%40p%3Aw@127.0.0.1:1/shop",
    "raw in the URL": "postgresql://shop:s3cr/t@p:w@127.0.0.1:1/shop",
    "in the query": "postgresql://shop@127.0.0.1:1/shop?password=s3cr%2Ft%40p%3Aw",
    "as a DSN": "host=127.0.0.1 port=1 user=shop dbname=shop password=s3cr/t@p:w",
    "as a quoted DSN": "host=127.0.0.1 port=1 user=shop dbname=shop password='s3cr/t@p:w'",
    "with a driver": "postgresql+asyncpg://shop:s3cr%2Ft%40p%3Aw@127.0.0.1:1/shop",
}


@pytest.mark.parametrize("form", FORMS)
async def test_no_secret_in_any_text(form: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    seen: list[Any] = []
    try:
        async with async_app_on(FORMS[form], resilience={"send_attempts": 2}) as app:
            seen += [repr(app), repr(app.config), str(app.config), repr(app.config.broker)]
            try:
                await add_task(app).send_async(1)
            except TaskSendError as error:
                seen += [str(error), repr(error), *traceback.format_exception(error)]
            handle = app.handle(str(uuid.uuid4()))
            seen += [repr(handle), repr(await handle.get_async(timeout_ms=300)), repr(await handle.get_async(0))]
            for verb in (handle.cancel_async, handle.info_async, handle.attempts_async):
                try:
                    await verb()
                except Exception as error:
                    seen += [repr(error), *traceback.format_exception(error)]
    except ValueError as error:  # a URL that cannot be read is refused: also without showing it
        seen += [str(error), repr(error), *traceback.format_exception(error)]
    text = "\n".join([*map(str, seen), caplog.text])
    assert len(text) > 200
    for part in ("s3cr", "t@p:w", "t%40p"):
        assert part not in text
