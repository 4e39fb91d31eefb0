"""Any role may take an advisory lock. A service that cannot get its lock names the session that holds it."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import psycopg
import pytest

from horsies import AppConfig, PostgresConfig
from horsies._pg.locks import CAPS_LOCK, PRUNE_LOCK, PURPOSES, REAPER_LOCK
from horsies_worker.database.lock_watch import REFUSALS, LockWatch
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.identity import Identity
from horsies_worker.retention.pruner import Pruner
from tests.support.postgres import Database
from tests.support.roles import account, accounts


@pytest.fixture
def viewer(db: Database) -> Iterator[Database]:
    with accounts(db) as found:
        yield found["viewer"]


def hold(who: Database, key: int) -> psycopg.Connection:
    session = psycopg.connect(who.url, autocommit=True, application_name="report")
    session.execute("SELECT pg_advisory_lock(%s, hashtext('public'))", (key,))
    return session


@asynccontextmanager
async def session_on(db: Database) -> AsyncIterator[Session]:
    session = Session(PostgresConfig(db.url), "test", Queries(None, Identity("w", "h", 1)))
    try:
        yield session
    finally:
        await session.close()


@pytest.mark.parametrize("key", [CAPS_LOCK, REAPER_LOCK])
async def test_a_lock_that_is_refused_again_and_again_is_told_with_its_holder(
    db: Database, viewer: Database, key: int, caplog: pytest.LogCaptureFixture
) -> None:
    async with session_on(db) as session:
        watch = LockWatch("service", key, session)
        with hold(viewer, key) as other:
            for _ in range(REFUSALS - 1):
                await watch.refused()
            assert caplog.records == []
            await watch.refused()
            (line,) = (record.message for record in caplog.records)
            assert line.startswith(
                f"service: session {other.info.backend_pid} (role {account(viewer)}, application 'report') holds the "
                f"lock {PURPOSES[key]}"
            )
            assert f"pg_terminate_backend({other.info.backend_pid})" in line
        other.close()
        caplog.clear()
        watch.obtained()
        with hold(db, key) as worker:  # its role may write tasks, and it has just begun
            for _ in range(REFUSALS):
                await watch.refused()
        worker.close()
        assert caplog.records == []


async def test_the_pruner_names_it(db: Database, viewer: Database, caplog: pytest.LogCaptureFixture) -> None:
    async with session_on(db) as session:
        pruner = Pruner(session, AppConfig(PostgresConfig(db.url)))
        with hold(viewer, PRUNE_LOCK) as other:
            await pruner.run_once()
        other.close()
    assert "pruner: session" in caplog.text
    assert "holds the lock of the pruner" in caplog.text
