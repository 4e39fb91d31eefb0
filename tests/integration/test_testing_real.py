"""`testing.real`: the app on its own database, drained by the test."""

import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from horsies import (
    OutcomeCode,
    RetryPolicy,
    SignalError,
    TaskError,
    TaskResult,
    UsageError,
    WorkflowStatus,
    current_task,
    from_node,
    sleep,
    testing,
    wait_for_signal,
)
from horsies.testing import databases
from tests.support import kit_app, postgres
from tests.support.apps import UNREACHABLE, make_app
from tests.support.kit_graphs import random_workflow
from tests.support.postgres import Database

HOUR = timedelta(hours=1)
ENDED = r"the block of testing\.real has ended"


@pytest.fixture
def t(db: Database) -> Iterator[Any]:
    with make_app(db.url) as app:
        tasks = kit_app.register(app)
        tasks.app = app
        yield tasks


def test_tasks_run_when_they_are_drained(t: Any) -> None:
    @t.app.task("again", retry_policy=RetryPolicy.fixed(60, 2, auto_retry_for=["AGAIN"]))
    def again() -> kit_app.Number:
        if current_task().attempt < 2:
            return TaskResult(err=TaskError("AGAIN", "later"))
        return TaskResult(ok=current_task().attempt)

    @t.app.task("parent")
    async def parent() -> kit_app.Number:
        await t.number.send_async(2)
        return TaskResult(ok=1)

    with testing.real(t.app, in_place=True) as database:
        assert database.drain() == testing.DrainReport()
        handles = [again.send(), parent.send(), t.number.with_options(group="acme").send(5), t.fail.send()]
        late = t.number.schedule(HOUR, 3)
        report = database.drain()
        assert (report.attempts, report.retried, report.failed) == (5, 1, 1)
        assert handles[0].get(timeout_ms=0).is_err()
        database.advance(timedelta(minutes=2))
        assert database.drain().completed == 1
        assert handles[0].get() == TaskResult(ok=2)
        assert handles[2].get() == TaskResult(ok=5)
        database.advance(HOUR)
        assert database.drain().completed == 1
        assert late.get() == TaskResult(ok=3)
        parent.send()
        assert database.drain(recursive=False).attempts == 1
        assert database.drain(queues=["default"]).attempts == 1
        parent.send()
        with pytest.raises(UsageError, match="1 attempts"):
            database.drain(limit=1)
        assert database.drain().attempts == 1  # what was over the limit went back
        assert database.url == t.app.config.broker.url
        with testing.recorded(t.app), pytest.raises(UsageError, match="hides"):
            database.drain()
        with pytest.raises(UsageError, match="timedelta"):
            database.advance(3)  # pyright: ignore[reportArgumentType]


@pytest.mark.breaks("W3", "W5")  # they do not know of nodes that continue as workflows, and of branches not taken
@pytest.mark.parametrize("name", kit_app.CASES)
def test_workflows_end_as_inline(t: Any, name: str) -> None:
    case = kit_app.CASES[name]
    imagined = make_app(UNREACHABLE)
    tasks = kit_app.register(imagined)
    with testing.inline(imagined) as sends:
        handle = case.build(imagined, tasks).start(**case.options)
        sends.advance(timedelta(minutes=1))
        for signal, value, path in case.signals:
            handle.signal(signal, value, path=path)
        inline = handle.status(), handle.get(), handle.results()
    with testing.real(t.app, in_place=True) as database:
        handle = case.build(t.app, t).start(**case.options)
        database.drain()
        for _ in range(2):  # a sleep, and what follows from its end
            database.advance(timedelta(minutes=1))
            database.drain()
        for signal, value, path in case.signals:
            database.signal(handle, signal, value, path=path)
        database.drain()
        database.advance(timedelta(minutes=1))
        database.drain()
        assert (handle.status(), handle.get(timeout_ms=0), handle.results()) == inline


@pytest.mark.breaks("W3", "W5")
@pytest.mark.parametrize("seed", range(8))
def test_random_workflows_end_as_inline(t: Any, seed: int) -> None:
    imagined = make_app(UNREACHABLE)
    spec = random_workflow(imagined, kit_app.register(imagined), seed, "random")
    with testing.inline(imagined) as sends:
        handle = spec.start()
        inline = _worked_off(handle, sends.advance, lambda: None)
    with testing.real(t.app, in_place=True) as database:
        handle = random_workflow(t.app, t, seed, "random").start()
        assert _worked_off(handle, database.advance, database.drain) == inline


def _worked_off(handle: Any, advance: Callable[[timedelta], None], drain: Callable[[], object]) -> Any:
    """Its status, result and the results of its nodes, after all its sleeps and signals."""

    def let_time_pass() -> None:
        for _ in range(4):
            drain()
            advance(HOUR)
        drain()

    let_time_pass()
    for name in ("s0", "s1"):
        for _ in range(4):
            try:
                handle.signal(name, 12)
            except SignalError as error:
                assert error.code == OutcomeCode.WORKFLOW_ENDED  # noqa: PT017
    let_time_pass()
    # compensations are numbered in the order of ends, which differs among nodes that run in parallel
    results = sorted((re.sub(r"^undo-\d+", "undo", name), repr(one)) for name, one in handle.results().items())
    return handle.status(), handle.get(timeout_ms=0), results


async def test_clocks_come_with_advance(db: Database) -> None:
    async with make_app(db.url) as app:
        t = kit_app.register(app)
        node = wait_for_signal("n", int, node_id="n", timeout=2 * HOUR)
        nap = sleep(HOUR, node_id="nap")
        end = t.plus.node(node_id="end", waits_for=[nap])(from_node(node), 1)
        flow = app.workflow("flow", [node, nap, end], output=end)
        with testing.real(app, in_place=True) as database:
            run = await flow.start_async(start_at=HOUR)
            late = await flow.start_async()
            dead = await flow.start_async(deadline=1.5 * HOUR)
            await database.drain_async()
            assert await run.status_async() is WorkflowStatus.PENDING
            await database.advance_async(HOUR)
            await database.drain_async()
            assert await run.status_async() is WorkflowStatus.RUNNING
            assert (await late.results_async())["nap"] == TaskResult(ok=None)
            assert (await database.signal_async(run.workflow_id, "n", 1)).delivered
            await database.advance_async(HOUR)
            report = await database.drain_async()
            assert report.attempts == 1
            assert await run.get_async() == TaskResult(ok=2)
            error = (await late.get_async(timeout_ms=0)).err_value
            assert error.data["cause"]["error_code"] == OutcomeCode.SIGNAL_TIMEOUT
            assert (await dead.get_async(timeout_ms=0)).err_value.error_code == OutcomeCode.WORKFLOW_DEADLINE
            with pytest.raises(SignalError):
                await database.signal_async(run, node, 1)


@pytest.mark.parametrize("kind", ["def", "async def"])
def test_an_interrupt_ends_the_drain_and_not_the_kit(t: Any, kind: str) -> None:
    interrupts = [KeyboardInterrupt()]

    def interrupted() -> kit_app.Number:
        if interrupts:
            raise interrupts.pop()
        return TaskResult(ok=1)

    async def interrupted_async() -> kit_app.Number:
        return interrupted()

    task = t.app.task("interrupted")(interrupted if kind == "def" else interrupted_async)
    with testing.real(t.app, in_place=True) as database:
        handle = task.send()
        with pytest.raises(KeyboardInterrupt):
            database.drain()
        assert database.drain().result(handle) == TaskResult(ok=1)


def test_a_process_may_change_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    with make_app(UNREACHABLE) as app:
        places: list[str] = []
        for url in (None, postgres.admin_url(), None):
            if url is None:
                monkeypatch.delenv("HORSIES_TEST_DATABASE_URL", raising=False)
            else:
                monkeypatch.setenv("HORSIES_TEST_DATABASE_URL", url)
            with testing.real(app) as database:
                assert database.drain().attempts == 0
                places.append(urlsplit(database.url)._replace(path="").geturl())
        assert places[0] == places[2] != places[1]


def test_blocks_have_clean_databases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_TEST_DATABASE_URL", postgres.admin_url())
    with make_app(UNREACHABLE) as app:
        t = kit_app.register(app)
        made: list[str] = []

        def prepare(url: str) -> None:
            made.append(url)
            with psycopg.connect(url) as connection:
                connection.execute("CREATE TABLE own (n int)")

        @app.task("drains")
        def drains() -> kit_app.Number:
            return TaskResult(ok=outer.drain().attempts)

        with testing.real(app, prepare=prepare) as outer:
            handle, refused = t.number.send(1), drains.send()
            with testing.real(app, prepare=prepare) as inner:
                assert inner.url != outer.url == outer.url
                assert inner.drain().attempts == 0
                with psycopg.connect(inner.url) as connection:
                    assert connection.execute("SELECT count(*) FROM own").fetchone() == (0,)
            for n in range(20):
                t.number.send(n)
            with ThreadPoolExecutor(3) as threads:
                assert sum(one.attempts for one in threads.map(lambda _: outer.drain(), range(3))) == 22
            assert handle.get() == TaskResult(ok=1)
            assert "called inside task" in str(refused.get().err_value.message)
        assert len(made) == 1
        assert app.config.broker.url == UNREACHABLE
        with pytest.raises(ZeroDivisionError), testing.real(app, prepare=lambda url: 1 / 0):  # pyright: ignore[reportArgumentType]
            pass
        with pytest.raises(UsageError, match="in_place"):
            testing.real(app, in_place=True, prepare=prepare)


def test_each_preparation_has_its_own_template(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_TEST_DATABASE_URL", postgres.admin_url())

    def making(name: str) -> Callable[[str], None]:
        def make(url: str) -> None:
            with psycopg.connect(url) as connection:
                connection.execute(f"CREATE TABLE {name} ()".encode())

        return make

    with make_app(UNREACHABLE) as app:
        for name in ("first", "second"):
            with testing.real(app, prepare=making(name)) as database, psycopg.connect(database.url) as connection:
                assert connection.execute("SELECT count(*) FROM pg_tables WHERE tablename = %s", [name]).fetchone() == (
                    1,
                )


def test_a_server_by_its_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_TEST_DATABASE_URL", "postgresql:///postgres?host=/run/postgresql&user=me")
    assert databases.url_of("shop") == "postgresql:///shop?host=/run/postgresql&user=me"


def test_databases_of_killed_runs_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_TEST_DATABASE_URL", postgres.admin_url())
    dead, alive = "horsies-run-00000000dead", "horsies-run-0000000a11fe"
    with psycopg.connect(postgres.admin_url(), autocommit=True) as connection, make_app(UNREACHABLE) as app:
        for run in (dead, alive):
            connection.execute(f'DROP DATABASE IF EXISTS "{run.replace("-", "_")}_1_1"'.encode())
            connection.execute(f'CREATE DATABASE "{run.replace("-", "_")}_1_1"'.encode())
        with psycopg.connect(postgres.admin_url(), application_name=alive), testing.real(app, prepare=lambda url: None):
            found = connection.execute("SELECT datname FROM pg_database WHERE datname LIKE '%0000000%'").fetchall()
        assert found == [("horsies_run_0000000a11fe_1_1",)]
        connection.execute("DROP DATABASE horsies_run_0000000a11fe_1_1")


def test_the_database_takes_the_sends_inside_another_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HORSIES_TEST_DATABASE_URL", postgres.admin_url())
    with make_app(UNREACHABLE) as app:
        t = kit_app.register(app)
        with testing.recorded(app) as sends:
            with testing.real(app) as database:
                handle = t.number.send(1)
                assert database.drain().result(handle) == TaskResult(ok=1)
                with testing.inline(app):
                    assert t.number.send(2).get() == TaskResult(ok=2)
                assert database.drain().attempts == 0
            t.number.send(3)
        sends.assert_sent(t.number, 3)
        assert len(sends.sent()) == 1


def test_a_database_is_not_used_after_its_block(t: Any) -> None:
    with testing.real(t.app, in_place=True) as database:
        t.number.send(1)
    with pytest.raises(UsageError, match=ENDED):
        database.drain()
    with pytest.raises(UsageError, match=ENDED):
        database.advance(HOUR)
    with pytest.raises(UsageError, match=ENDED):
        database.signal("01a1f67e-1ce2-7c17-b988-153571fb55b3", "approval")


async def test_a_database_is_not_used_after_its_block_on_a_loop(t: Any) -> None:
    async with testing.real(t.app, in_place=True) as database:
        pass
    with pytest.raises(UsageError, match=ENDED):
        await database.drain_async()
    with pytest.raises(UsageError, match=ENDED):
        await database.advance_async(HOUR)
    with pytest.raises(UsageError, match=ENDED):
        await database.signal_async("01a1f67e-1ce2-7c17-b988-153571fb55b3", "approval")
