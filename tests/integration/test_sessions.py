"""When a session of a worker opens its connection, when it closes it, and when it uses that of another session."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from typing import Any

import psycopg
import pytest

from horsies import PostgresConfig
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.database.settings import LIMIT_TRANSACTIONS
from horsies_worker.identity import Identity
from tests.support.apps import add_task, async_app_on
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database

QUERIES = Queries(None, Identity("worker-1", "host-1", 1))
IDLE_S = 0.2


@asynccontextmanager
async def session_on(db: Database, purpose: str, **options: Any) -> AsyncIterator[Session]:
    session = Session(PostgresConfig(db.url), purpose, QUERIES, **options)
    try:
        yield session
    finally:
        await session.close()


def opened(db: Database) -> set[str]:
    """The purposes of the connections that are open."""
    rows = db.execute(
        "SELECT application_name FROM pg_stat_activity WHERE datname = current_database()"
        " AND application_name LIKE 'horsies worker %'"
    )
    return {name.removeprefix("horsies worker ") for (name,) in rows}


async def purpose_of(session: Session) -> str:
    """The purpose of the connection on which an action of this session runs."""
    name: str = await session.run(lambda connection: connection.fetchval("SELECT current_setting('application_name')"))
    return name.removeprefix("horsies worker ")


async def sleep_on(session: Session, seconds: float) -> None:
    await session.run(lambda connection: connection.execute(f"SELECT pg_sleep({seconds})"))


# -- idle ------------------------------------------------------------------------------------------------------


async def test_a_connection_that_is_not_used_is_closed_and_opened_again(db: Database) -> None:
    async with session_on(db, "rare", idle_s=IDLE_S) as session:
        assert opened(db) == set()
        for _ in range(2):
            assert await purpose_of(session) == "rare"
            await eventually_async(lambda: opened(db) == set())


async def test_a_connection_in_use_is_not_closed(db: Database) -> None:
    async with session_on(db, "rare", idle_s=IDLE_S) as session:
        first = await session.run(lambda connection: connection.fetchval("SELECT pg_backend_pid()"))
        await sleep_on(session, 3 * IDLE_S)  # longer than the idle time
        for _ in range(10):  # more often than the idle time
            await asyncio.sleep(IDLE_S / 4)
            assert await session.run(lambda connection: connection.fetchval("SELECT pg_backend_pid()")) == first


async def test_without_an_idle_time_a_connection_stays(db: Database) -> None:
    async with session_on(db, "kept") as kept, session_on(db, "rare", idle_s=IDLE_S) as rare:
        assert await purpose_of(kept) == "kept"
        assert await purpose_of(rare) == "rare"
        await eventually_async(lambda: opened(db) == {"kept"})


async def test_a_session_that_is_closed_or_lost_leaves_no_timer_behind(db: Database) -> None:
    async with session_on(db, "rare", idle_s=IDLE_S) as session:
        await purpose_of(session)
        session.drop()
        await sleep_on(session, 2 * IDLE_S)  # the timer of the first connection must not close the second
        assert await purpose_of(session) == "rare"
        await session.close()
        assert opened(db) == set()


async def test_the_connection_after_one_that_the_server_ended_is_closed_as_well(db: Database) -> None:
    async with session_on(db, "rare", idle_s=IDLE_S) as session:
        first = await session.run(lambda connection: connection.fetchval("SELECT pg_backend_pid()"))
        db.execute("SELECT pg_terminate_backend(%s)", first)
        await eventually_async(lambda: not session.is_free)
        assert await purpose_of(session) == "rare"
        await eventually_async(lambda: opened(db) == set())


# -- lent ------------------------------------------------------------------------------------------------------


async def test_a_free_connection_is_used_instead_of_another(db: Database) -> None:
    async with session_on(db, "claim") as claim, session_on(db, "finalize", lender=claim) as finalize:
        await purpose_of(claim)
        for _ in range(3):
            assert await purpose_of(finalize) == "claim"
        assert opened(db) == {"claim"}


async def test_a_lender_without_a_connection_lends_none(db: Database) -> None:
    async with session_on(db, "claim") as claim, session_on(db, "finalize", lender=claim) as finalize:
        assert await purpose_of(finalize) == "finalize"
        assert opened(db) == {"finalize"}


async def test_a_busy_connection_is_not_waited_for(db: Database) -> None:
    async with session_on(db, "claim") as claim, session_on(db, "finalize", lender=claim) as finalize:
        await purpose_of(claim)
        claiming = asyncio.ensure_future(sleep_on(claim, 30))
        await eventually_async(lambda: not claim.is_free)
        assert await purpose_of(finalize) == "finalize"
        assert not claiming.done()
        claiming.cancel()
        await asyncio.gather(claiming, return_exceptions=True)
        await purpose_of(claim)
        assert await purpose_of(finalize) == "finalize", "it has one of its own now"
        # a backend does not notice that its client has left while it sleeps
        db.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
            " WHERE datname = current_database() AND query = 'SELECT pg_sleep(30)'"
        )


async def test_who_made_the_owner_wait_opens_a_connection_of_its_own(db: Database) -> None:
    async with (
        session_on(db, "claim") as claim,
        session_on(db, "finalize", lender=claim, idle_s=IDLE_S) as finalize,
    ):
        await purpose_of(claim)
        writing = asyncio.ensure_future(sleep_on(finalize, 0.2))
        await eventually_async(lambda: claim.is_wanted)
        assert await purpose_of(claim) == "claim"  # it had to wait
        await writing
        assert await purpose_of(finalize) == "finalize"
        await eventually_async(lambda: opened(db) == {"claim"})
        assert await purpose_of(finalize) == "claim", "all is quiet again"


@pytest.mark.parametrize("level", ["serializable", "repeatable read"])
async def test_the_isolation_level_of_the_database_is_not_used(db: Database, level: str) -> None:
    """Statements look at a row again after they waited for its lock, which a stricter level would refuse."""
    db.execute(f"ALTER DATABASE {db.name} SET default_transaction_isolation = '{level}'")
    try:
        assert db.value("SHOW transaction_isolation") == level
        async with session_on(db, "claim") as session:
            shown = await session.run(lambda connection: connection.fetchval("SHOW transaction_isolation"))
            assert shown == "read committed"
        async with async_app_on(db) as app:
            assert (await add_task(app).send_async(1)).task_id
    finally:
        db.execute(f"ALTER DATABASE {db.name} RESET default_transaction_isolation")


# -- limits ----------------------------------------------------------------------------------------------------


async def test_the_server_ends_a_transaction_whose_client_is_frozen_between_parse_and_bind(db: Database) -> None:
    """Such a session is active and waits for its client. PostgreSQL 17 and later have a limit for it."""
    if db.value("SELECT current_setting('server_version_num')::int") < 170_000:
        pytest.skip("transaction_timeout came with PostgreSQL 17")
    async with session_on(db, "claim") as session:
        limit = await session.run(lambda connection: connection.fetchval("SHOW transaction_timeout"))
    assert limit == "1min"
    with closing(psycopg.connect(db.url, autocommit=True)) as frozen:
        frozen.execute(LIMIT_TRANSACTIONS.replace("60s", "1s"))
        frozen.execute("SET statement_timeout = '200ms'; SET idle_in_transaction_session_timeout = '200ms'")
        frozen.execute("BEGIN")
        frozen.execute("SELECT pg_advisory_xact_lock(1)")
        frozen.pgconn.enter_pipeline_mode()
        frozen.pgconn.send_prepare(b"parsed", b"SELECT 1")
        frozen.pgconn.send_flush_request()
        frozen.pgconn.flush()
        state = f"SELECT state, wait_event FROM pg_stat_activity WHERE pid = {frozen.info.backend_pid}"
        await eventually_async(lambda: db.execute(state) == [("active", "ClientRead")])
        await eventually_async(lambda: db.execute(state) == [])
