# pyright: strict
"""`testing.real`: reports know the type of a handle's result, and options are checked before the test runs."""

from contextlib import AbstractAsyncContextManager, AbstractContextManager
from datetime import timedelta
from typing import assert_type

from horsies import TaskError, TaskResult, crash_point, testing
from horsies.testing import Crash, DrainReport, TestDatabase
from tests.typing.tasks import app, receipt, touch

block: AbstractContextManager[TestDatabase] = testing.real(app)
awaited: AbstractAsyncContextManager[TestDatabase] = testing.real(app, in_place=True)

with testing.real(app, prepare=lambda url: None) as database:
    assert_type(database, TestDatabase)
    report = database.drain(queues=["default"], recursive=True, until_quiet=False, limit=5, connection=None)
    assert_type(report, DrainReport)
    assert_type(report.result(touch.send()), TaskResult[None, TaskError])
    database.advance(timedelta(hours=1))
    database.advance(60)  # type: ignore[arg-type]
    database.drain(limit="5")  # type: ignore[arg-type]
    with testing.crash_at("returned", task=receipt, attempt=2) as crash:
        assert_type(crash, Crash)
        assert_type(crash.task_id, str | None)
    with testing.crash_at("my_point", task="receipt"):
        crash_point("my_point")
    with testing.crash_at("returned", task=3):  # type: ignore[arg-type]
        pass

testing.real("shop:app")  # type: ignore[arg-type]


async def asynchronous() -> None:
    async with testing.real(app) as database:
        assert_type(await database.drain_async(), DrainReport)
        await database.advance_async(timedelta(hours=1))
