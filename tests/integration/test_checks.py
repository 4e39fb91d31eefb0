"""Checks on a connection that is open anyway: when they use it, and when they leave it to its heartbeats."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest

from horsies import PostgresConfig
from horsies_worker.database import checks as checks_module
from horsies_worker.database.checks import Checks
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.identity import Identity
from tests.support.chaosproxy import ChaosProxy, Mode
from tests.support.postgres import Database, waits_for_a_lock
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database

QUERIES = Queries(None, Identity("worker-1", "host-1", 1))


@asynccontextmanager
async def checking(db: Database) -> AsyncIterator[tuple[Checks, Session]]:
    """Checks, and the session that they share."""
    shared, own = (Session(PostgresConfig(db.url), purpose, QUERIES) for purpose in ("shared", "own"))
    try:
        yield Checks(shared, own), shared
    finally:
        await shared.close()
        await own.close()


async def purpose(connection: Any) -> str:
    name: str = await connection.fetchval("SELECT current_setting('application_name')")
    return name.removeprefix("horsies worker ")


async def test_a_quick_check_shares_the_connection(db: Database) -> None:
    async with checking(db) as (checks, _):
        for _ in range(3):
            assert await checks.run(purpose) == "shared"
        assert await checks.ask("waiting_queues") == []


async def test_after_a_slow_check_the_next_ones_are_made_apart_until_they_are_quick(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with checking(db) as (checks, _):
        monkeypatch.setattr(checks_module, "SLOW_S", 0.0)
        assert await checks.run(purpose) == "shared"
        assert await checks.run(purpose) == "own"
        monkeypatch.setattr(checks_module, "SLOW_S", 60.0)
        assert await checks.run(purpose) == "own"
        assert await checks.run(purpose) == "shared"


async def test_a_check_that_waits_is_given_up_and_made_again_apart(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also inside a transaction, whose rollback must not wait as well."""
    monkeypatch.setattr(checks_module, "SLOW_S", 0.1)
    monkeypatch.setattr(checks_module, "LIMIT_S", 0.2)

    async def read_locked(connection: Any) -> str:
        async with connection.transaction():
            await connection.execute("SELECT count(*) FROM horsies_task_names")
        return await purpose(connection)

    async with checking(db) as (checks, shared):
        with psycopg.connect(db.url) as other:
            other.execute("LOCK TABLE horsies_task_names IN ACCESS EXCLUSIVE MODE")
            check = asyncio.ensure_future(checks.run(read_locked))
            await eventually_async(lambda: waits_for_a_lock(db))
            assert await asyncio.wait_for(shared.run(purpose), 30) == "shared", "heartbeats go on"
            assert not check.done()
        assert await check == "own"


async def test_an_error_of_the_check_itself_is_raised(db: Database) -> None:
    async def divide(connection: Any) -> None:
        await connection.execute("SELECT 1 / 0")

    async with checking(db) as (checks, _):
        with pytest.raises(asyncpg.DivisionByZeroError):
            await checks.run(divide)
        assert await checks.run(purpose) == "shared"


async def test_those_that_wait_for_a_connection_share_one_try(db: Database) -> None:
    """A silent network: each try takes its whole time-out, and heartbeats must not learn of it after all others."""
    with ChaosProxy(db.url) as proxy:
        session = Session(PostgresConfig(proxy.url, connect_timeout_ms=500), "shared", QUERIES)
        proxy.set(Mode.DROP)
        found = await asyncio.gather(*(session.run(purpose) for _ in range(20)), return_exceptions=True)
        assert {type(error) for error in found} == {TimeoutError}
        assert proxy.accepted == 1
        proxy.set(Mode.PASS)
        proxy.cut()
        assert await session.run(purpose) == "shared"
        await session.close()
