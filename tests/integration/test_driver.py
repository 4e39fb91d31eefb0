"""What `_pg.driver` adds to asyncpg, on real connections: prompt ends of transactions, known types, no password."""

import asyncio
import gc
import logging
import time
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

import asyncpg
import pytest

from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
from horsies._pg import listener
from horsies._pg.driver import Connection, connect
from horsies._pg.dsn import connect_arguments
from horsies.config import ResilienceConfig
from horsies_worker.database.connect import DatabaseGone, prepare_database
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.identity import Identity
from tests.support.chaosproxy import ChaosProxy, Mode
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

PASSWORD = "hunter2-Größe"
QUERIES = Queries(None, Identity())


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    """Connections that these tests break are collected with the test that broke them, not in the middle of another."""
    yield
    gc.collect()


@asynccontextmanager
async def through(proxy: ChaosProxy) -> AsyncIterator[Connection]:
    connection = await connect(connect_arguments(PostgresConfig(proxy.url)))
    try:
        yield connection
    finally:
        connection.terminate()


# -- transactions ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [Mode.DROP, Mode.CUT])
@pytest.mark.parametrize("nested", [False, True])
async def test_a_cancelled_transaction_ends_at_once(db: Database, mode: Mode, nested: bool) -> None:
    """On a silent connection a rollback would wait for ever; on a dead one its error would replace the cancel."""
    inside = asyncio.Event()

    async def work(connection: Connection) -> None:
        async with connection.transaction():
            if not nested:
                inside.set()
                await asyncio.sleep(60)
            async with connection.transaction():
                inside.set()
                await asyncio.sleep(60)

    with ChaosProxy(db.url) as proxy:
        async with through(proxy) as connection:
            task = asyncio.create_task(work(connection))
            await inside.wait()
            proxy.set(mode)
            if mode is Mode.CUT:
                await eventually_async(connection.is_closed)
            task.cancel()
            done, _ = await asyncio.wait({task}, timeout=5)
            assert done
            assert task.cancelled()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of asyncpg's cancel request
async def test_a_statement_that_times_out_ends_its_transaction(db: Database) -> None:
    """asyncpg waits for the answer to a cancel request before it rolls back, without a bound."""
    with ChaosProxy(db.url) as proxy:
        async with through(proxy) as connection:
            with pytest.raises(TimeoutError):  # noqa: PT012
                async with asyncio.timeout(10), connection.transaction():
                    proxy.set(Mode.DROP)
                    await connection.fetchval("SELECT 1", timeout=0.2)
            assert connection.is_closed()
    # asyncpg's cancel request has a connection of its own, which ends with the proxy
    await eventually_async(lambda: len(asyncio.all_tasks()) == 1)


async def test_the_error_of_a_transaction_passes_on(db: Database) -> None:
    """Rolled back, and usable again; and the first error counts when the connection dies with it."""
    with ChaosProxy(db.url) as proxy:
        async with through(proxy) as connection:
            with pytest.raises(asyncpg.DivisionByZeroError):
                async with connection.transaction():
                    await connection.fetchval("SELECT 1 / 0")
            assert await connection.fetchval("SELECT 1") == 1
            with pytest.raises(ValueError, match="mine"):  # noqa: PT012
                async with connection.transaction():
                    proxy.cut()
                    await eventually_async(connection.is_closed)
                    raise ValueError("mine")


async def test_a_cancelled_action_of_a_session_stays_cancelled(db: Database) -> None:
    """Whatever the action raises on its way out: a service that catches errors must not go on."""
    session = Session(PostgresConfig(db.url), "test", QUERIES)
    begun = asyncio.Event()

    async def action(_connection: Any) -> None:
        begun.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise asyncpg.InterfaceError("the connection is closed") from None

    task = asyncio.create_task(session.run(action))
    await begun.wait()
    task.cancel()
    await asyncio.wait({task}, timeout=5)
    assert task.cancelled()
    await session.close()


# -- slow lines ------------------------------------------------------------------------------------


async def test_array_types_are_known_without_asking(db: Database) -> None:
    """asyncpg would ask the server, four round trips before the first statement of each new connection."""
    with ChaosProxy(db.url) as proxy:
        proxy.cut_at("typeinfo_tree")
        async with through(proxy) as connection:
            for kind in (
                "bool", "bytea", "int2", "int4", "int8", "float4", "float8", "varchar", "text", "numeric", "uuid",
                "date", "timestamp", "timestamptz", "interval", "json", "jsonb",
            ):  # fmt: skip
                sql = f"SELECT $1::{kind}[] IS NULL AS given, '{{NULL}}'::{kind}[] AS taken"
                assert tuple(await connection.fetchrow(sql, None)) == (True, [None])
            moment = await connection.fetchval("SELECT '2026-01-01 00:00+00'::timestamptz")
            sent = await connection.fetchrow("SELECT $1::int[], $2::timestamptz[]", [1, None], [moment, None])
            assert tuple(sent) == ([1, None], [moment, None])
        assert proxy.cuts == 0


async def test_a_bound_that_was_too_short_grows(db: Database) -> None:
    """A line so slow that opening a connection takes longer than the setting allows: the second try allows more."""
    with ChaosProxy(db.url) as proxy:
        config = PostgresConfig(proxy.url, connect_timeout_ms=300)
        proxy.set(Mode.DELAY, delay_s=0.1)  # two exchanges of two messages: 0.4 s
        session = Session(config, "test", QUERIES)
        with pytest.raises(TimeoutError):
            await session.run(lambda connection: connection.fetchval("SELECT 1"))

        async def succeeded() -> bool:
            try:
                return bool(await session.run(lambda connection: connection.fetchval("SELECT 1")))
            except TimeoutError:
                return False

        await eventually_async(succeeded, timeout=10)
        await prepare_database(app_on(proxy.url, connect_timeout_ms=300), config, timeout_s=None)
        await session.close()


async def test_a_connection_that_breaks_while_a_worker_registers(db: Database) -> None:
    """The worker begins again, as it does when it cannot connect."""
    tries: list[int] = []

    async def register(connection: Any) -> None:
        tries.append(connection.get_server_pid())
        if len(tries) < 3:
            db.execute("SELECT pg_terminate_backend(%s)", connection.get_server_pid())
        await connection.execute("SELECT 1")

    app = app_on(db.url)
    await prepare_database(app, app.config.broker, register, timeout_s=20)
    assert len({*tries}) == 3
    tries.clear()
    with pytest.raises(DatabaseGone, match="could not be reached"):
        await prepare_database(app, app.config.broker, register, timeout_s=0)


# -- LISTEN ----------------------------------------------------------------------------------------


def test_a_dead_listen_is_noticed_within_ten_seconds() -> None:
    assert listener.PROBE_EVERY_S + listener.PROBE_TIMEOUT_S < 10


async def test_a_silent_listen_is_given_up(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing arrives and nothing is refused: the probe tells, and no goodbye is waited for."""
    monkeypatch.setattr(listener, "PROBE_EVERY_S", 0.2)
    monkeypatch.setattr(listener, "PROBE_TIMEOUT_S", 0.3)
    live, down = asyncio.Event(), asyncio.Event()
    with ChaosProxy(db.url) as proxy:
        listening = listener.Listener(
            lambda: connect(connect_arguments(PostgresConfig(proxy.url))), ResilienceConfig(reconnect_initial_ms=20)
        )
        running = asyncio.create_task(
            listening.run({"horsies_test": lambda _: None}, on_live=lambda _: live.set(), on_down=down.set)
        )
        await live.wait()
        proxy.set(Mode.DROP)
        began = time.monotonic()
        async with asyncio.timeout(10):
            await down.wait()
        assert time.monotonic() - began < 0.2 + 0.3 + 1.4  # less than the two seconds that a goodbye may take
        live.clear()
        proxy.set(Mode.PASS)
        proxy.cut()
        async with asyncio.timeout(20):
            await live.wait()
        running.cancel()
        await asyncio.wait({running}, timeout=5)
        assert running.cancelled()


# -- passwords -------------------------------------------------------------------------------------


def app_on(url: str, **fields: Any) -> Horsies:
    return Horsies(AppConfig(PostgresConfig(url, **fields)))


async def _send(app: Horsies) -> None:
    @app.task("noop")
    def noop() -> TaskResult[int, TaskError]:
        return TaskResult(ok=1)

    await noop.send_async()


async def _open_session(app: Horsies) -> None:
    await Session(app.config.broker, "test", QUERIES).run(lambda connection: connection.fetchval("SELECT 1"))


async def _get_ready(app: Horsies) -> None:
    await prepare_database(app, app.config.broker, timeout_s=0)


def frames(shown: traceback.TracebackException | None) -> Iterator[traceback.FrameSummary]:
    """Of an exception, its cause and its context."""
    if shown is not None:
        yield from shown.stack
        yield from frames(shown.__cause__)
        yield from frames(shown.__context__)


@pytest.mark.parametrize("work", [_send, _open_session, _get_ready])
@pytest.mark.parametrize("fault", ["refused", "no database", "silent"])
async def test_a_traceback_with_its_local_variables_shows_no_password(
    db: Database, work: Callable[[Horsies], Awaitable[None]], fault: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As error trackers print them: the values of every frame, and of the exceptions behind the exception."""
    caplog.set_level(logging.DEBUG)
    with ChaosProxy(db.url) as proxy:
        address = proxy.url.split("@")[1]
        if fault == "refused":
            address = "127.0.0.1:1/nowhere"
        elif fault == "no database":
            address = address.split("/")[0] + "/there_is_no_such_database"
        else:
            proxy.set(Mode.DROP)
        app = app_on(f"postgresql://postgres:{PASSWORD}@{address}", connect_timeout_ms=200)
        with pytest.raises(Exception) as caught:
            await work(app)
        assert not isinstance(caught.value, AssertionError)
        shown = list(frames(traceback.TracebackException.from_exception(caught.value, capture_locals=True)))
        assert any("/packages/" in frame.filename for frame in shown)
        for frame in shown:
            assert frame.filename == __file__ or PASSWORD not in str(frame.locals), frame
        assert PASSWORD not in caplog.text
        await app.aclose()


def test_the_values_that_hold_a_password_do_not_show_it() -> None:
    config = PostgresConfig(
        f"postgresql://me:{PASSWORD}@host/db?sslpassword=key-{PASSWORD}",
        direct_url=f"host=there password={PASSWORD}", pooler=True, sslcert="/dev/null", sslpassword=PASSWORD,
    )  # fmt: skip
    arguments = connect_arguments(PostgresConfig(f"postgresql://me:{PASSWORD}@host/db"))
    for value in (config, config.url, config.direct_url, config.listen_url, config.sslpassword, arguments):
        assert PASSWORD not in repr(value)
        assert "***" in repr(value)
    assert config.url == f"postgresql://me:{PASSWORD}@host/db?sslpassword=key-{PASSWORD}"
    assert arguments["password"] == PASSWORD


# -- times that Python cannot hold -----------------------------------------------------------------


TIMES = ("-infinity", "4713-01-01 BC", "0001-01-01 00:00:00+00", "9999-12-31 23:59:59+00", "294276-12-31", "infinity")


async def test_times_that_python_cannot_hold_are_read_and_written_back(db: Database) -> None:
    """Each with a time zone, in order, and fit for a conversion to any other zone; and the same value goes back."""
    connection = await connect(connect_arguments(PostgresConfig(db.url)))
    try:
        found = [await connection.fetchval(f"SELECT timestamptz '{time}'") for time in TIMES]
        assert found == sorted(found)
        for time, value in zip(TIMES, found, strict=True):
            for hours in (-14, 14):
                value.astimezone(timezone(timedelta(hours=hours)))
            assert await connection.fetchval(f"SELECT $1::timestamptz = timestamptz '{time}'", value), time
            (listed,) = await connection.fetchval("SELECT ARRAY[$1::timestamptz]", value)
            assert listed == value
            assert await connection.fetchval(f"SELECT ($1::timestamptz[])[1] = timestamptz '{time}'", [value]), time
    finally:
        await connection.close()


async def test_usual_times_and_intervals_are_what_they_are(db: Database) -> None:
    connection = await connect(connect_arguments(PostgresConfig(db.url)))
    plain = await asyncpg.connect(db.url)
    try:
        for sql in (
            "timestamptz '2026-02-28 23:59:59.999999+14'", "timestamptz '1969-12-31 23:59:59.000001+00'",
            "interval '-1 year -2 mons -3 days -04:05:06.000007'", "interval '13 mons 1 day 00:00:00.5'",
            "interval '0'", "ARRAY[interval '1 s', NULL]", "NULL::timestamptz",
        ):  # fmt: skip
            assert await connection.fetchval(f"SELECT {sql}") == await plain.fetchval(f"SELECT {sql}"), sql
        for value in (timedelta(days=-1, microseconds=1), timedelta(days=3650, seconds=1)):
            assert await connection.fetchval("SELECT $1::interval", value) == value
        paris = datetime(2026, 7, 1, 12, tzinfo=timezone(timedelta(hours=2)))
        assert await connection.fetchval("SELECT $1::timestamptz", paris) == paris
        for name in ("timestamptz", "interval"):
            with pytest.raises(asyncpg.DataError, match="expected a"):
                await connection.fetchval(f"SELECT $1::{name}", "now")
    finally:
        await connection.close()
        await plain.close()


async def test_an_interval_without_end_is_the_longest_one(db: Database) -> None:
    connection = await connect(connect_arguments(PostgresConfig(db.url)))
    try:
        if connection.get_server_version().major < 17:
            pytest.skip("this server has no infinite intervals")
        longest = await connection.fetchval("SELECT statement_timestamp() - timestamptz '-infinity'")
        assert longest > timedelta(days=300_000 * 365)
        assert await connection.fetchval("SELECT interval '-infinity'") == -longest
    finally:
        await connection.close()
