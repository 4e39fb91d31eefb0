"""A server whose commits wait for a standby: what is acknowledged is on the standby."""

import asyncio
from pathlib import Path

import pytest

import horsies_schema
from horsies import PostgresConfig, TaskSendError
from horsies._pg.driver import connect
from horsies._pg.dsn import connect_arguments
from horsies_schema import embedded
from horsies_worker.database.queries import Queries
from horsies_worker.identity import Identity
from tests.support import factories
from tests.support.apps import add_task, async_app_on
from tests.support.postgres import Database
from tests.support.waiting import eventually_async


async def wait_for(db: Database, standby: str) -> None:
    """Commits wait for this standby from now on; for none if it has no name."""
    db.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{standby}'")
    db.execute("SELECT pg_reload_conf()")
    await eventually_async(lambda: db.value("SHOW synchronous_standby_names") == standby)


async def test_a_repeated_send_is_not_acknowledged_before_the_standby_has_it(place: Path) -> None:
    """The first attempt has committed on the leader alone, and the session that waited for the standby is ended: its
    row is visible. A send that finds it there and says yes would be lost with this leader."""
    server = await asyncio.to_thread(embedded.start, place, settings={"fsync": "off"})
    try:
        db = Database("postgres", server.url)
        await horsies_schema.upgrade_async(db.url)
        broker = {"command_timeout_ms": 1_000}
        async with async_app_on(db, broker=broker, resilience={"send_attempts": 1}) as app:
            add = add_task(app)
            await add.send_async(1)
            await wait_for(db, "nowhere")
            unsure = "it may or may not be enqueued, .retry.. is safe"
            with pytest.raises(TaskSendError, match=unsure) as raised:
                await add.send_async(2)
            for _ in range(2):
                # as a shutdown of the server does, and a statement_timeout
                db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'")
                await eventually_async(lambda: factories.count(db) == 2)
                failure = raised.value
                with pytest.raises(TaskSendError, match=unsure) as raised:
                    await failure.retry_async()
            await wait_for(db, "")
            again = await raised.value.retry_async()
            assert again.task_id == raised.value.task_ids[0]
            assert factories.count(db) == 2
    finally:
        await asyncio.to_thread(server.stop)


async def test_a_worker_believes_that_a_task_is_lost_only_if_the_server_can_commit(place: Path) -> None:
    """A leader that was frozen answers once more, from the past, before it learns that it has been replaced. Without
    its standby it cannot commit. A worker that believed it would drop the result of a task that it owns elsewhere."""
    server = await asyncio.to_thread(embedded.start, place, settings={"fsync": "off"})
    try:
        db = Database("postgres", server.url)
        await horsies_schema.upgrade_async(db.url)
        await wait_for(db, "nowhere")
        connection = await connect(connect_arguments(PostgresConfig(db.url)))
        queries = Queries(None, Identity())
        asked = asyncio.create_task(queries.confirm_lost(connection, [("unknown-here", 1)]))
        await eventually_async(
            lambda: db.value("SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'SyncRep'") == 1
        )
        assert not asked.done()
        await wait_for(db, "")
        assert await asyncio.wait_for(asked, 60) == {"unknown-here"}
        await connection.close()
    finally:
        await asyncio.to_thread(server.stop)
