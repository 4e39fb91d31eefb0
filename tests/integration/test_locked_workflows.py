"""One open transaction that has locked a run, a run inside it or one of its tasks holds up that run, and no other."""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from horsies import WorkflowHandle, WorkflowStatus, from_node, sleep, wait_for_signal
from horsies_worker.workflows import locked
from tests.support import cases
from tests.support.cases import HOUR, NAMES, Answers, child_of, pass_time, states
from tests.support.engine import Engine
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database

SOON_S = 6.0
"""Far less than the time for which a statement waits for a lock, and far more than a step takes on a busy machine."""
CANCEL = "SELECT horsies_cancel_workflow(%s)"


@pytest.fixture
async def t(db: Database) -> AsyncIterator[SimpleNamespace]:
    async with cases.tasks(db) as tasks:
        yield tasks


@contextmanager
def open_transaction(db: Database, sql: str, *values: Any) -> Iterator[psycopg.Connection[Any]]:
    """A web request that hangs after this statement: it neither commits nor rolls back."""
    with psycopg.connect(db.url, application_name="shop") as connection:
        connection.execute(sql, values)  # type: ignore[arg-type]
        yield connection
        connection.rollback()


@asynccontextmanager
async def stepping(db: Database) -> AsyncIterator[Engine]:
    """One worker whose service for workflows runs."""
    async with Engine.on(db, NAMES, workers=1) as engine:
        service = asyncio.create_task(engine.advancers[0].run())
        try:
            yield engine
        finally:
            service.cancel()
            with suppress(asyncio.CancelledError):
                await service


def waiting(t: SimpleNamespace) -> Any:
    """A wait for a signal, and a task after it."""
    wait = wait_for_signal("go", int, node_id="wait")
    return t.app.workflow("waiting", [wait, t.number.node(node_id="last")(from_node(wait))])


async def started(t: SimpleNamespace, engine: Engine, spec: Any) -> WorkflowHandle[Any]:
    """A run whose first step has been taken."""
    handle = await spec.start_async()
    engine.advancers[0].check([handle.workflow_id])
    await engine.advancers[0].drained()
    return handle


async def goes_through(t: SimpleNamespace, engine: Engine) -> None:
    """Another run of two nodes, from its start to its end, in time."""
    first = t.number.node(node_id="first")(1)
    spec = t.app.workflow("other", [first, t.number.node(node_id="second")(from_node(first))])
    handle = await spec.start_async()
    engine.advancers[0].check([handle.workflow_id])

    await completes(engine, handle)


async def completes(engine: Engine, handle: WorkflowHandle[Any]) -> None:
    async def is_complete() -> bool:
        rows = await engine.claim()
        engine.advancers[0].tasks_ended(await engine.end(rows, Answers()))
        return await handle.status_async() is WorkflowStatus.COMPLETED

    await eventually_async(is_complete, timeout=SOON_S, describe="the run has completed")


async def has(handle: WorkflowHandle[Any], **nodes: str) -> bool:
    found = await states(handle)
    return all(found[name] == status for name, status in nodes.items())


async def test_a_cancel_that_is_not_committed_holds_up_its_run_alone(t: SimpleNamespace, db: Database) -> None:
    async with stepping(db) as engine:
        run = await started(t, engine, waiting(t))
        with open_transaction(db, CANCEL, run.workflow_id) as producer:
            assert (await run.signal_async("go", 7)).delivered
            for _ in range(3):
                engine.advancers[0].on_step(f"s:{run.workflow_id}")
                await goes_through(t, engine)
            assert await has(run, wait="WAITING")
            producer.rollback()
            await completes(engine, run)  # nothing was lost: no further notification tells of the signal
    cases.check(db)


async def test_the_step_comes_soon_after_the_lock_is_gone(t: SimpleNamespace, db: Database) -> None:
    """And it does what the transaction wanted, if that was committed."""
    async with stepping(db) as engine:
        run = await started(t, engine, waiting(t))
        with open_transaction(db, CANCEL, run.workflow_id) as producer:
            await run.signal_async("go", 7)
            engine.advancers[0].on_step(f"s:{run.workflow_id}")
            await goes_through(t, engine)
            producer.commit()
        await asyncio.wait_for(engine.advancers[0].drained(), SOON_S)
        assert await run.status_async() is WorkflowStatus.CANCELLED
        assert db.value("SELECT bool_and(noticed) FROM horsies_workflow_signals"), "the step has seen the signal"
    cases.check(db)


async def test_a_deadline_waits_for_a_run_inside_alone(t: SimpleNamespace, db: Database) -> None:
    inner = t.app.workflow("inner", [wait_for_signal("go", int, node_id="wait")])
    async with stepping(db) as engine:
        spec = t.app.workflow("around", [inner.node(node_id="inside")])
        run = await spec.start_async(deadline=HOUR)
        engine.advancers[0].check([run.workflow_id])
        await engine.advancers[0].drained()
        pass_time(db, HOUR)
        lock = "SELECT FROM horsies_workflows WHERE id = %s FOR UPDATE"
        with open_transaction(db, lock, child_of(db, run.workflow_id, "inside")):
            engine.advancers[0].check([run.workflow_id])
            await goes_through(t, engine)
            assert await run.status_async() is WorkflowStatus.RUNNING
        await asyncio.wait_for(engine.advancers[0].drained(), SOON_S)
        assert (await run.get_async(1_000)).err_value.error_code == "WORKFLOW_DEADLINE"
    cases.check(db)


async def test_a_deadline_waits_for_a_task_alone(t: SimpleNamespace, db: Database) -> None:
    async with stepping(db) as engine:
        run = await t.app.workflow("one", [t.number.node(node_id="one")(1)]).start_async(deadline=HOUR)
        engine.advancers[0].check([run.workflow_id])
        await engine.advancers[0].drained()
        pass_time(db, HOUR)
        task_id = db.value("SELECT id FROM horsies_tasks")
        with open_transaction(db, "SELECT FROM horsies_cancel_tasks(ARRAY[%s])", task_id):
            engine.advancers[0].check([run.workflow_id])
            await goes_through(t, engine)
            assert await run.status_async() is WorkflowStatus.RUNNING
        await asyncio.wait_for(engine.advancers[0].drained(), SOON_S)
        assert (await run.get_async(1_000)).err_value.error_code == "WORKFLOW_DEADLINE"
    cases.check(db)


async def test_many_locked_runs_hold_up_no_other(t: SimpleNamespace, db: Database) -> None:
    async with stepping(db) as engine:
        runs = [await waiting(t).start_async() for _ in range(100)]
        ids = [run.workflow_id for run in runs]
        with open_transaction(db, "SELECT FROM horsies_workflows WHERE id = ANY (%s) FOR UPDATE", ids):
            engine.advancers[0].check(ids)
            await goes_through(t, engine)
            await goes_through(t, engine)
        await asyncio.wait_for(engine.advancers[0].drained(), SOON_S)
        assert {status for run in runs for status in [(await states(run))["wait"]]} == {"WAITING"}
    cases.check(db)


async def test_a_clock_that_comes_while_the_run_is_locked_is_found_again(t: SimpleNamespace, db: Database) -> None:
    """Also by a worker that has found the run locked, and without the reaper."""
    async with stepping(db) as engine:
        nap = sleep(timedelta(hours=1), node_id="nap")
        run = await started(t, engine, t.app.workflow("napping", [nap]))
        pass_time(db, HOUR)
        with open_transaction(db, CANCEL, run.workflow_id):
            engine.advancers[0].look_at_clocks()
            await asyncio.wait_for(engine.advancers[0].drained(), SOON_S)
            assert await has(run, nap="WAITING")
        await eventually_async(lambda: has(run, nap="COMPLETED"), timeout=SOON_S)
    cases.check(db)


async def test_the_log_names_the_session(
    t: SimpleNamespace, db: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(locked, "TOLD_AFTER_S", 0.1)
    async with stepping(db) as engine:
        runs = [await started(t, engine, waiting(t)) for _ in range(2)]

        def told() -> list[logging.LogRecord]:
            return [one for one in caplog.records if "pg_terminate_backend" in one.getMessage()]

        with open_transaction(db, CANCEL, runs[0].workflow_id) as producer:
            engine.advancers[0].check([runs[0].workflow_id])
            (record,) = await eventually_async(told, timeout=SOON_S)
            text = record.getMessage()
            assert record.levelno == logging.WARNING
            assert text.startswith(f"workflow {runs[0].workflow_id} waits: session {producer.info.backend_pid} (role ")
            assert "application 'shop'" in text
            assert f"pg_terminate_backend({producer.info.backend_pid})" in text
            await goes_through(t, engine)
            assert len(told()) == 1, "once a minute"
        await asyncio.wait_for(engine.advancers[0].drained(), SOON_S)


async def test_a_lock_of_a_moment_is_not_told_of(
    t: SimpleNamespace, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    async with stepping(db) as engine:
        run = await started(t, engine, waiting(t))
        with open_transaction(db, CANCEL, run.workflow_id):
            engine.advancers[0].check([run.workflow_id])
            await goes_through(t, engine)
        await asyncio.wait_for(engine.advancers[0].drained(), SOON_S)
    assert [one.getMessage() for one in caplog.records if one.name == "horsies.worker"] == []
