"""Waiting for results of a database that accepts connections and never answers."""

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Iterator

import pytest

from horsies import Horsies, OperationalErrorCode, RetrievalCode, TaskError, TaskResult, gather, gather_async
from horsies.ids import new_id
from tests.support import factories
from tests.support.apps import add_task, async_app_on, make_app
from tests.support.chaosproxy import ChaosProxy, Mode
from tests.support.postgres import Database


@pytest.fixture
def silent() -> Iterator[str]:
    """The URL of a server that accepts and says nothing."""
    with socket.create_server(("127.0.0.1", 0), backlog=50) as server:
        yield f"postgresql://u:hunter2@127.0.0.1:{server.getsockname()[1]}/shop"


@pytest.fixture
async def app(silent: str) -> AsyncIterator[Horsies]:
    async with async_app_on(silent) as app:
        yield app


def told(result: TaskResult[object, TaskError], code: str) -> str:
    assert result.err_value.error_code is code
    return result.err_value.message or ""


async def test_no_answer_is_a_broker_error(app: Horsies) -> None:
    one, run, batch = app.handle(new_id()), app.workflow_handle(new_id()), app.batch_handle(new_id())
    for handle in (one, run, batch):
        message = told(await handle.get_async(400), OperationalErrorCode.BROKER_ERROR)
        assert "could not be read: no answer from the database for" in message
    for result in await gather_async([one, app.handle(new_id())], timeout_ms=400):
        assert "no answer" in told(result, OperationalErrorCode.BROKER_ERROR)


def test_no_answer_without_a_loop(silent: str) -> None:
    with make_app(silent, broker={"connect_timeout_ms": 2_000}) as app:
        handle = app.handle(new_id())
        assert "no answer" in told(handle.get(timeout_ms=400), OperationalErrorCode.BROKER_ERROR)
        (result,) = gather([handle], timeout_ms=400)
        assert "no answer" in told(result, OperationalErrorCode.BROKER_ERROR)


async def test_a_wait_too_short_for_an_answer_says_so(app: Horsies) -> None:
    message = told(await app.handle(new_id()).get_async(10), RetrievalCode.WAIT_TIMEOUT)
    assert "was not read within 10 ms, and may have ended" in message


async def test_many_short_waits_notice_the_silence_too(app: Horsies) -> None:
    handle = app.handle(new_id())

    async def is_noticed() -> bool:
        return (await handle.get_async(20)).err_value.error_code == OperationalErrorCode.BROKER_ERROR

    async with asyncio.timeout(30):
        while not await is_noticed():
            pass


async def test_one_look_is_bounded_by_the_connect_timeout(silent: str) -> None:
    async with async_app_on(silent, broker={"connect_timeout_ms": 300}) as app:
        began = time.monotonic()
        message = told(await app.handle(new_id()).get_async(0), OperationalErrorCode.BROKER_ERROR)
        assert "has not answered within 300 ms" in message
        assert time.monotonic() - began < 10


async def test_a_task_that_was_read_has_not_ended(db: Database) -> None:
    """What a read has found holds until the next one, which a silence may delay."""
    with ChaosProxy(db.url) as proxy:
        async with async_app_on(proxy.url) as app:
            add_task(app)
            handle = app.handle(factories.task(db))
            assert "has not ended within 1500 ms" in told(await handle.get_async(1_500), RetrievalCode.WAIT_TIMEOUT)
            # what was read for an earlier wait says nothing about this one
            proxy.set(Mode.FREEZE)
            assert "no answer" in told(await handle.get_async(400), OperationalErrorCode.BROKER_ERROR)
            proxy.set(Mode.PASS)
            factories.finish(db, handle.task_id, 3)
            assert (await handle.get_async(30_000)).is_ok()
