"""A server of the test's own: restarted while tasks are sent and awaited, and one that asks for a password."""

import asyncio
import logging
import traceback
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import pytest

import horsies_schema
from horsies import TaskResult, TaskSendError
from horsies_schema import embedded
from tests.support import factories
from tests.support.apps import add_task, async_app_on
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

SETTINGS = {"fsync": "off", "full_page_writes": "off"}


async def test_a_restart_of_the_server_loses_neither_sends_nor_waits(place: Path) -> None:
    """F36, the client's part: those who wait go on waiting, those who send are told that a retry is safe."""
    server = await asyncio.to_thread(embedded.start, place, settings=SETTINGS)
    try:
        db = Database("postgres", server.url)
        await horsies_schema.upgrade_async(db.url)
        async with async_app_on(db, resilience={"notify_poll_interval_ms": 200, "send_attempts": 2}) as app:
            add = add_task(app)
            handle = await add.send_async(1)
            waiting = asyncio.create_task(handle.get_async())
            await eventually_async(
                lambda: db.value(
                    "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND query LIKE 'LISTEN%%'"
                )
            )
            await asyncio.to_thread(server.stop)

            assert (await handle.get_async(timeout_ms=300)).err_value.error_code == "BROKER_ERROR"
            with pytest.raises(TaskSendError) as raised:
                await add.send_async(2)
            assert raised.value.retryable
            assert not waiting.done()

            server = await asyncio.to_thread(embedded.start, place, settings=SETTINGS)
            again = await raised.value.retry_async()
            for task_id, value in ((handle.task_id, 1), (again.task_id, 2)):
                factories.finish(db, task_id, value)
            assert await asyncio.wait_for(waiting, 30) == TaskResult(ok=1)
            assert await again.get_async(timeout_ms=30_000) == TaskResult(ok=2)
            assert factories.count(db) == 2
    finally:
        await asyncio.to_thread(server.stop)


async def test_a_wrong_password_is_told_once_and_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    server = await asyncio.to_thread(embedded.start, port=0)
    try:
        parts = urlsplit(server.url)
        account, _, host = parts.netloc.rpartition("@")
        url = urlunsplit(parts._replace(netloc=f"{account.partition(':')[0]}:wr0ng-s3cret@{host}"))
        async with async_app_on(url) as app:
            with pytest.raises(TaskSendError, match="password authentication failed") as raised:
                await add_task(app).send_async(1)
            assert not raised.value.retryable  # it will not get better by itself
            result = await app.handle("x").get_async()
            assert result.err_value.error_code == "BROKER_ERROR"
            said = [*traceback.format_exception(raised.value), repr(result), repr(app), caplog.text]
        assert "wr0ng-s3cret" not in "\n".join(said)
    finally:
        await asyncio.to_thread(server.stop)
