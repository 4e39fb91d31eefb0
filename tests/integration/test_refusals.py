"""What a client says of a database that it cannot use: which right is missing, which time limit passed, where."""

import asyncio
import socket
import uuid
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import psycopg
import pytest

import horsies_schema
from horsies import Horsies, SchemaError, TaskSendError
from tests.support.apps import add_task, async_app_on
from tests.support.operator import Operator
from tests.support.pgbouncer import pgbouncer
from tests.support.postgres import Database
from tests.support.roles import account, accounts
from tests.support.waiting import eventually_async


@pytest.fixture
def operator(db: Database, capsys: pytest.CaptureFixture[str]) -> Operator:
    return Operator(db, capsys)


def app_at(url: str, **broker: Any) -> AbstractAsyncContextManager[Horsies]:
    return async_app_on(url, broker=broker, resilience={"send_attempts": 1})


async def told_by_all(url: str, operator: Operator, *, error: type[Exception], **broker: Any) -> list[str]:
    """What a send, a wait and a command say."""
    async with app_at(url, **broker) as app:
        with pytest.raises(error) as caught:
            await add_task(app).send_async(1)
        waited = await app.handle(str(uuid.uuid4())).get_async(timeout_ms=0)
        assert waited.err_value.error_code == "BROKER_ERROR"
    given = url if not broker else f"{url}?connect_timeout=1"
    ran = await asyncio.to_thread(operator, "tasks", "list", url=given)
    assert ran.code == 1
    assert "Traceback" not in ran.err
    return [str(caught.value), str(waited.err_value.message), ran.err]


# -- rights --------------------------------------------------------------------------------------


@pytest.mark.parametrize("schema", [None, "elsewhere"])
@pytest.mark.parametrize("right", ["USAGE on schema", "SELECT on table"])
async def test_a_role_without_rights_is_told_which(
    db: Database, empty_db: Database, schema: str | None, right: str
) -> None:
    place = schema or "public"
    where = db if schema is None else empty_db
    if schema is not None:
        await asyncio.to_thread(horsies_schema.upgrade, where.url, schema=schema)
    with accounts(where, schema=schema) as roles:
        stranger = roles["stranger"]
        if right.startswith("SELECT"):
            where.execute(f"GRANT USAGE ON SCHEMA {place} TO {account(stranger)}")
        else:
            where.execute(f"REVOKE USAGE ON SCHEMA {place} FROM PUBLIC")
        missing = f"{right} {place}" + (".horsies_alembic_version" if right.startswith("SELECT") else "")
        async with app_at(stranger.url, schema=schema) as app:
            with pytest.raises(SchemaError, match="the connection works, but role") as caught:
                await add_task(app).send_async(1)
            assert f"role '{account(stranger)}' has no {missing}: " in str(caught.value)
            assert "`horsies-migrate grants`" in str(caught.value)
            waited = await app.handle(str(uuid.uuid4())).get_async(timeout_ms=0)
            assert f"has no {missing}: " in str(waited.err_value.message)
        for role in ("producer", "worker", "viewer", "operator"):
            async with app_at(roles[role].url, schema=schema) as app:
                assert await app.handle(str(uuid.uuid4())).info_async() is None


async def test_another_installation_behind_the_own_one_need_not_be_readable(db: Database) -> None:
    await asyncio.to_thread(horsies_schema.upgrade, db.url, schema="behind")
    with accounts(db) as roles:
        producer = roles["producer"]
        db.execute(f"ALTER ROLE {account(producer)} SET search_path = public, behind")
        async with app_at(producer.url) as app:
            await add_task(app).send_async(1)


async def test_a_role_that_may_not_connect(db: Database, operator: Operator) -> None:
    with accounts(db) as roles:
        db.execute(f'REVOKE CONNECT ON DATABASE "{db.name}" FROM PUBLIC')
        for text in await told_by_all(roles["stranger"].url, operator, error=TaskSendError):
            assert "permission denied for database" in text
            assert "GRANT CONNECT ON DATABASE" in text or "horsies-migrate grants" in text


# -- servers that do not answer ------------------------------------------------------------------


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


async def test_a_silent_server_is_named_with_the_time_limit(silent: int, operator: Operator) -> None:
    url = f"postgresql://someone@127.0.0.1:{silent}/shop"
    sent, waited, ran = await told_by_all(url, operator, error=TaskSendError, connect_timeout_ms=200)
    for text in (sent, waited):
        assert f"127.0.0.1:{silent} has not answered within 200 ms (connect_timeout_ms)" in text
    assert f"127.0.0.1:{silent} has not answered within 1" in ran


async def test_a_missing_socket_is_named(tmp_path: Path, operator: Operator) -> None:
    url = f"postgresql://someone@/shop?host={tmp_path}&port=7"
    for text in await told_by_all(url, operator, error=TaskSendError):
        assert f"{tmp_path}/.s.PGSQL.7" in text


async def test_a_pool_that_is_in_use_says_so(db: Database) -> None:
    with psycopg.connect(db.url) as other:
        async with app_at(db.url, pool_max_size=1, connect_timeout_ms=200) as app:
            add = add_task(app)
            await add.send_async(1)
            other.execute("LOCK TABLE horsies_tasks IN ACCESS EXCLUSIVE MODE")
            held = asyncio.create_task(add.send_async(2))
            # of this database: other tests wait for locks on purpose
            waits = (
                "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
            )
            await eventually_async(lambda: db.value(waits) == 1)
            with pytest.raises(
                TaskSendError, match=r"all 1 connections of the pool \(pool_max_size\) were in use for 200"
            ):
                await add.send_async(3)
            other.rollback()
            await held


# -- poolers -------------------------------------------------------------------------------------


async def test_an_undeclared_pooler_is_named(db: Database, operator: Operator) -> None:
    with pgbouncer(db) as proxy:
        for text in await told_by_all(proxy.url, operator, error=TaskSendError):
            assert "a transaction-mode pooler such as PgBouncer stands in front of the server" in text
            assert "pooler=True, direct_url=" in text
        with pytest.raises(
            horsies_schema.MigrationError, match=r"a pooler such as PgBouncer .*: give the server's own"
        ):
            await horsies_schema.upgrade_async(proxy.url)
