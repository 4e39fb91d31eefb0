"""`testing.crash_at`: an attempt dies by SIGKILL at a chosen moment, recovery runs, and the next attempt follows."""

import asyncio
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest

from horsies import (
    ConfigurationError,
    Horsies,
    RetryPolicy,
    TaskError,
    TaskResult,
    TaskStatus,
    UsageError,
    crash_point,
    current_task,
    from_node,
    testing,
)
from tests.support.apps import make_app
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database

Number = TaskResult[int, TaskError]
AGAIN = RetryPolicy.fixed(60, 3, auto_retry_for=["WORKER_CRASHED"])


@pytest.fixture
def app(db: Database) -> Iterator[Horsies]:
    with make_app(db.url) as made:
        yield made


@pytest.fixture
def steps(tmp_path: Path) -> Path:
    """What attempts did, a line for each step: memory is lost with a killed process."""
    return tmp_path / "steps"


def register(app: Horsies, steps: Path) -> Any:
    def step(what: str) -> None:
        with steps.open("a") as file:
            file.write(f"{current_task().attempt} {what} {os.getpid() == test}\n")

    test = os.getpid()

    def work() -> Number:
        step("begins")
        crash_point("half")
        step("ends")
        return TaskResult(ok=current_task().attempt)

    @app.task("charge", retry_policy=AGAIN)
    def charge() -> Number:
        return work()

    @app.task("charge_async", retry_policy=AGAIN)
    async def charge_async() -> Number:
        await asyncio.sleep(0)
        return work()

    return {"charge": charge, "charge_async": charge_async}


DONE_BEFORE = {
    "before_start": [],
    "started": [],
    "half": ["1 begins False"],
    "returned": ["1 begins False", "1 ends False"],
}


@pytest.mark.parametrize("name", ["charge", "charge_async"])
@pytest.mark.parametrize("moment", DONE_BEFORE)
def test_an_attempt_dies_and_the_next_one_follows(app: Horsies, steps: Path, moment: str, name: str) -> None:
    task = register(app, steps)[name]
    with testing.real(app, in_place=True) as database:
        handle = task.send()
        with testing.crash_at(moment, task=task) as crash:
            report = database.drain()
        assert crash.task_id == handle.task_id
        assert (report.crashed, report.attempts, report.retried, report.completed) == (1, 2, 1, 1)
        assert handle.get() == report.result(handle) == TaskResult(ok=2)
        assert [one.error_code for one in handle.attempts()] == ["WORKER_CRASHED", None]
    after = ["2 begins True", "2 ends True"]
    assert steps.read_text().splitlines() == [*DONE_BEFORE[moment], *after]


def test_a_written_end_is_not_repeated(app: Horsies, steps: Path) -> None:
    charge = register(app, steps)["charge"]

    @app.task("double")
    def double(n: int) -> Number:
        return TaskResult(ok=2 * n)

    charged = charge.node(node_id="charged")()
    doubled = double.node(node_id="doubled")(from_node(charged))
    flow = app.workflow("flow", [charged, doubled], output=doubled)
    with testing.real(app, in_place=True) as database:
        run = flow.start()
        with testing.crash_at("written", task="charge"):
            report = database.drain()
        assert (report.crashed, report.attempts) == (1, 2)
        assert run.get() == TaskResult(ok=2)
    assert steps.read_text().splitlines() == ["1 begins False", "1 ends False"]


def test_a_later_attempt_and_the_end_without_a_retry(app: Horsies, steps: Path) -> None:
    @app.task("fragile")
    def fragile() -> Number:
        return TaskResult(ok=1)

    charge = register(app, steps)["charge"]
    with testing.real(app, in_place=True) as database:
        handle, other = charge.send(), fragile.send()
        with testing.crash_at("started", task=charge), testing.crash_at("half", task=charge, attempt=2):
            assert database.drain().crashed == 2
        assert handle.get() == TaskResult(ok=3)
        assert other.get() == TaskResult(ok=1)
        once = fragile.send()
        with testing.crash_at("returned"):
            report = database.drain()
        assert report.result(once).err_value.error_code == "WORKER_CRASHED"
        assert (info := once.info()) is not None
        assert info.status is TaskStatus.FAILED


@pytest.mark.parametrize("moment", ["before", "after", "written"])
def test_a_task_that_completes_itself(app: Horsies, db: Database, moment: str) -> None:
    db.execute("CREATE TABLE IF NOT EXISTS paid (task_id text)")
    db.execute("TRUNCATE paid")

    @app.task("pay", retry_policy=AGAIN)
    def pay() -> Number:
        with psycopg.connect(db.url) as connection:
            connection.execute("INSERT INTO paid VALUES (%s)", (current_task().task_id,))
            current_task().complete(connection, 7)
            crash_point("before")
        crash_point("after")
        return TaskResult(ok=0)

    with testing.real(app, in_place=True) as database:
        handle = pay.send()
        with testing.crash_at(moment):
            report = database.drain()
        assert report.result(handle) == handle.get() == TaskResult(ok=7)
        assert len(handle.attempts()) == (2 if moment == "before" else 1)
    assert db.value("SELECT count(*) FROM paid") == 1
    db.execute("DROP TABLE paid")


def test_a_batch_task_and_an_async_test(app: Horsies) -> None:
    @app.batch_task("notify", max_size=10, max_wait_ms=10, retry_policy=AGAIN)
    def notify(items: list[int]) -> list[Number]:
        crash_point("all")
        return [TaskResult(ok=item) for item in items]

    async def check() -> None:
        async with testing.real(app, in_place=True) as database:
            handles = [await notify.send_async(n) for n in range(3)]
            with testing.crash_at("all"):
                report = await database.drain_async()
            assert (report.crashed, report.completed) == (1, 3)
            assert [await handle.get_async() for handle in handles] == [TaskResult(ok=n) for n in range(3)]

    asyncio.run(check())


def test_a_moment_that_never_comes(app: Horsies, steps: Path, db: Database) -> None:
    charge = register(app, steps)["charge"]
    with testing.real(app, in_place=True) as database:
        with pytest.raises(AssertionError, match="No task ran in the block"), testing.crash_at("returned"):
            pass
        charge.send()
        passed = pytest.raises(AssertionError, match=r"Of the wanted attempt, it passed 'half'")
        with passed, testing.crash_at("haalf", task=charge):
            assert database.drain().completed == 1
        charge.send()
        ran = pytest.raises(AssertionError, match=r"What ran: charge \(attempt 1\)")
        with ran, testing.crash_at("returned", attempt=2):
            database.drain()
        with pytest.raises(ZeroDivisionError), testing.crash_at("returned"):
            raise ZeroDivisionError  # and not an error that hides it
        with psycopg.connect(db.url) as connection:
            charge.with_options(connection=connection).send()
            refused = pytest.raises(UsageError, match="does not see the open transaction")
            with pytest.raises(AssertionError, match="never came"), testing.crash_at("returned"), refused:
                database.drain(connection=connection)
            connection.rollback()
    for options in ({"moment": ""}, {"moment": 3}, {"moment": "x", "attempt": 0}, {"moment": "x", "task": 3}):
        given: Any = options
        with pytest.raises(ConfigurationError, match="crash_at"), testing.crash_at(**given):
            pass


def test_a_crash_point_does_nothing_elsewhere(app: Horsies, steps: Path) -> None:
    crash_point("half")
    charge = register(app, steps)["charge"]
    assert testing.run(charge) == TaskResult(ok=1)
    with testing.real(app, in_place=True) as database:
        handle = charge.schedule(timedelta(hours=1))
        assert database.drain(until_quiet=True).completed == 1
        assert handle.get() == TaskResult(ok=1)
