"""Times: sleeps, starts at a later time, deadlines. Each docstring begins with a row of the table of cases."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from horsies import TaskSendError, WorkflowStatus, from_node, sleep, wait_for_signal
from tests.support import cases
from tests.support.cases import HOUR, NAMES, Answers, child_of, end_some, pass_time, states
from tests.support.engine import Engine
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database

PENDING, RUNNING, PAUSED = WorkflowStatus.PENDING, WorkflowStatus.RUNNING, WorkflowStatus.PAUSED
COMPLETED, FAILED, CANCELLED = WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED


@pytest.fixture
async def t(db: Database) -> AsyncIterator[SimpleNamespace]:
    async with cases.tasks(db) as tasks:
        yield tasks


def nap(t: SimpleNamespace, wait: Any = HOUR, **options: Any) -> Any:
    """A task, a sleep, a task."""
    first = t.number.node(node_id="first")(1)
    rest = sleep(wait, node_id="rest", waits_for=[first])
    last = t.number.node(node_id="last", waits_for=[rest])(2)
    return t.app.workflow("nap", [first, rest, last], output=last, **options)


# -- sleep ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 1, 2])
async def test_a_sleep_across_a_pause(t: SimpleNamespace, db: Database, seed: int | None) -> None:
    """sleep across pause: the clock runs on; never early; dependents wait READY"""
    handle = await nap(t).start_async()
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers())
        assert await handle.pause_async()
        pass_time(db, HOUR - 60)
        await engine.drain(Answers())
        assert (await states(handle))["rest"] == "WAITING"
        pass_time(db, 61)
        await (cases.with_deaths(engine, Answers(), seed) if seed else engine.drain(Answers()))
        assert await states(handle) == {"first": "COMPLETED", "rest": "COMPLETED", "last": "READY"}
        assert await handle.status_async() is PAUSED
        assert await handle.resume_async()
        await engine.drain(Answers())
        assert (await cases.ended_as(handle, COMPLETED)).ok == 2
    cases.check(db)


async def test_a_sleep_is_never_early(t: SimpleNamespace, db: Database) -> None:
    """sleep across pause: never early. Workers that look at clocks all the time, by the database's times."""
    soon = datetime.now(UTC) + timedelta(seconds=0.4)
    runs = [await nap(t, wait).start_async() for wait in (0.0, 0.05, 0.2, timedelta(seconds=0.3), soon)]
    async with Engine.on(db, NAMES) as engine:
        async with asyncio.timeout(20):
            while any([not (await run.status_async() or RUNNING).is_terminal for run in runs]):
                await end_some(engine, Answers())
                for advancer in engine.advancers:
                    advancer.look_at_clocks()
                await engine.advance()
                await asyncio.sleep(0.01)
    early = db.execute(
        "SELECT node_id FROM horsies_workflow_tasks WHERE kind = 'sleep'"
        " AND completed_at < coalesce(good_until, started_at + ttl)"
    )
    assert early == []
    assert db.value("SELECT count(*) FROM horsies_workflow_tasks WHERE kind = 'sleep' AND status = 'COMPLETED'") == 5
    cases.check(db)


async def test_a_sleep_in_a_child_and_a_cancel(t: SimpleNamespace, db: Database) -> None:
    """sleep across pause: the clock runs on, also in a child that is paused along; a cancel ends the sleep"""
    outer = t.app.workflow("outer", [sub := nap(t).node(node_id="sub")], output=sub)
    handle, stopped = await outer.start_async(), await outer.start_async()
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers())
        await handle.pause_async()
        assert await stopped.cancel_async()
        pass_time(db, HOUR + 1)
        await engine.drain(Answers())
        inner = t.app.workflow_handle(child_of(db, handle.workflow_id, "sub"))
        assert await states(inner) == {"first": "COMPLETED", "rest": "COMPLETED", "last": "READY"}
        await handle.resume_async()
        await engine.drain(Answers())
        assert (await cases.ended_as(handle, COMPLETED)).ok == 2
        await cases.ended_as(stopped, CANCELLED)
        gone = t.app.workflow_handle(child_of(db, stopped.workflow_id, "sub"))
        assert await states(gone) == {"first": "COMPLETED", "rest": "SKIPPED", "last": "SKIPPED"}
        assert await stopped.retry_async()  # it sleeps anew
        await engine.drain(Answers())
        assert (await states(gone))["rest"] == "WAITING"
        pass_time(db, HOUR + 1)
        await engine.drain(Answers())
        await cases.ended_as(stopped, COMPLETED)
    cases.check(db)


async def test_a_clock_that_a_dead_worker_had_taken(t: SimpleNamespace, db: Database) -> None:
    """sleep across pause: the clock runs on. A worker that takes a due run and dies leaves it to another one, after
    the lease."""
    handle = await nap(t).start_async()
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers())
        pass_time(db, HOUR + 1)
        due = await engine.hands.connection.fetch(engine.hands.queries.sql("due_workflows"), 10, timedelta(seconds=30))
        assert [row["id"] for row in due if row["id"]] == [handle.workflow_id]
        engine.advancers[0].look_at_clocks()
        await engine.advance()
        assert (await states(handle))["rest"] == "WAITING"
        pass_time(db, 31)
        engine.advancers[0].look_at_clocks()
        await engine.advance()
        assert (await states(handle))["rest"] == "COMPLETED"
        await engine.drain(Answers())
    cases.check(db)


# -- start_at -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 3])
async def test_a_run_that_starts_later(t: SimpleNamespace, db: Database, seed: int | None) -> None:
    """`start_at`: the run is PENDING; pause and resume return it there"""
    wait = wait_for_signal("go", int, node_id="wait")
    check = t.is_true.node(node_id="check")(True)
    last = t.number.node(node_id="last", when=check)(from_node(wait))
    handle = await t.app.workflow("later", [wait, check, last], output=last).start_async(start_at=HOUR)
    async with Engine.on(db, NAMES) as engine:
        await handle.signal_async(wait, 6)  # kept
        await engine.drain(Answers())
        assert await handle.status_async() is PENDING
        assert set((await states(handle)).values()) == {"PENDING"}
        assert await handle.pause_async()
        await engine.drain(Answers())
        assert await handle.status_async() is PAUSED
        assert await handle.resume_async()
        await engine.drain(Answers())
        assert await handle.status_async() is PENDING
        pass_time(db, HOUR - 60)
        await engine.drain(Answers())
        assert await handle.status_async() is PENDING
        await handle.pause_async()
        pass_time(db, 61)  # its time comes while it is paused
        await engine.drain(Answers())
        assert await handle.status_async() is PAUSED
        await handle.resume_async()
        await (cases.with_deaths(engine, Answers(), seed) if seed else engine.drain(Answers()))
        assert (await cases.ended_as(handle, COMPLETED)).ok == 6
        assert await engine.recover() == 0
    assert db.value("SELECT started_at >= start_at FROM horsies_workflows")
    cases.check(db)


async def test_a_run_that_is_cancelled_before_its_start(t: SimpleNamespace, db: Database) -> None:
    """`start_at`: the run is PENDING. Cancelled there, it never starts; a retry starts it at once, and from then on it
    is a run like others"""
    handle = await nap(t).start_async(start_at=HOUR, deadline=2 * HOUR)
    async with Engine.on(db, NAMES) as engine:
        assert await handle.cancel_async()
        pass_time(db, HOUR + 60)
        await engine.drain(Answers())
        await cases.ended_as(handle, CANCELLED)
        assert set((await states(handle)).values()) == {"SKIPPED"}
        again = await nap(t).start_async(start_at=HOUR)
        await again.cancel_async()
        assert await again.retry_async()
        await engine.drain(Answers())
        assert (await states(again))["rest"] == "WAITING"
        await again.pause_async()
        await again.resume_async()
        await engine.drain(Answers())
        assert await again.status_async() is RUNNING
        pass_time(db, HOUR + 1)
        await engine.drain(Answers())
        await cases.ended_as(again, COMPLETED)
    cases.check(db)


async def test_times_that_make_no_sense_are_refused(t: SimpleNamespace, db: Database) -> None:
    """`start_at` and deadline: aware datetimes, or times in the future"""
    for wrong in (0, -1, "soon", True, datetime(2030, 1, 1), 10**12, float("nan")):
        for name in ("start_at", "deadline"):
            with pytest.raises(TaskSendError, match=name):
                await nap(t).start_async(**{name: wrong})
    assert db.value("SELECT count(*) FROM horsies_workflows") == 0
    past = datetime.now(UTC) - timedelta(hours=1)
    handle = await nap(t).start_async(start_at=past)  # at once
    assert await handle.status_async() is RUNNING


# -- deadline -------------------------------------------------------------------------------------


def busy(t: SimpleNamespace) -> Any:
    """A wait, a sleep, a child with a wait, a task and what follows it."""
    wait = wait_for_signal("go", int, node_id="wait")
    inner = t.app.workflow("inner", [wait_for_signal("go", int, node_id="wait"), t.number.node(node_id="in")(1)])
    task = t.number.node(node_id="task")(1)
    nodes = [
        wait, sleep(10 * HOUR, node_id="rest"), inner.node(node_id="sub"), task,
        t.number.node(node_id="next", waits_for=[task])(2), t.number.node(node_id="last", waits_for=[wait])(3),
    ]  # fmt: skip
    return t.app.workflow("busy", nodes)


@pytest.mark.parametrize("is_paused", [False, True])
@pytest.mark.parametrize("seed", [None, 1, 2])
async def test_a_deadline(t: SimpleNamespace, db: Database, is_paused: bool, seed: int | None) -> None:
    """deadline: absolute, also while PAUSED: waiting nodes SKIPPED, running tasks asked to stop, run FAILED,
    WORKFLOW_DEADLINE; not applied to compensations; a retry clears it unless a new one is given"""
    handle = await busy(t).start_async(deadline=HOUR)
    async with Engine.on(db, NAMES) as engine:
        await engine.recover()
        rows = await engine.claim()  # `task`, and `in` of the child
        assert len(rows) == 2
        if is_paused:
            await handle.pause_async()
        pass_time(db, HOUR - 60)
        await engine.recover()
        assert await handle.status_async() is (PAUSED if is_paused else RUNNING)
        pass_time(db, 61)
        if seed:
            await cases.with_deaths(engine, Answers(), seed)
        else:
            await engine.recover()
        error = (await cases.ended_as(handle, FAILED)).err_value
        assert error.error_code == "WORKFLOW_DEADLINE"
        asked = "SELECT count(*) FROM horsies_tasks WHERE cancel_requested_at IS NOT NULL AND status = 'RUNNING'"
        assert db.value(asked) == 2
        assert await states(handle) == dict.fromkeys(("wait", "rest", "next", "last"), "SKIPPED") | {
            "sub": "FAILED", "task": "RUNNING"
        }  # fmt: skip
        assert cases.reasons(db, handle.workflow_id) == dict.fromkeys(("wait", "rest", "next", "last"), "deadline")
        engine.advancers[0].tasks_ended(await engine.end(rows, Answers()))
        await engine.drain(Answers())
        assert (await states(handle))["task"] == "COMPLETED"  # it had ended by itself
        assert await handle.retry_async()
        assert db.value("SELECT deadline IS NULL FROM horsies_workflows WHERE parent_workflow_id IS NULL")
        pass_time(db, HOUR)
        await engine.drain(Answers())
        assert await handle.status_async() is RUNNING
        assert await states(handle) == {
            "wait": "WAITING", "rest": "WAITING", "sub": "RUNNING", "task": "COMPLETED", "next": "COMPLETED",
            "last": "PENDING",
        }  # fmt: skip
        await handle.cancel_async()
        await engine.drain(Answers())
        assert await handle.retry_async(deadline=HOUR)
        await engine.drain(Answers())
        assert await handle.status_async() is RUNNING
        pass_time(db, HOUR + 1)
        await engine.drain(Answers())
        assert (await cases.ended_as(handle, FAILED)).err_value.error_code == "WORKFLOW_DEADLINE"
    cases.check(db)


async def test_a_deadline_before_the_start_and_one_in_time(t: SimpleNamespace, db: Database) -> None:
    """deadline: absolute. Seconds count from the start of the run; a moment may come before it"""
    moment = datetime.now(UTC) + timedelta(hours=1)
    never = await nap(t).start_async(start_at=2 * HOUR, deadline=moment)
    later = await nap(t).start_async(start_at=2 * HOUR, deadline=2 * HOUR)
    async with Engine.on(db, NAMES) as engine:
        pass_time(db, HOUR + 1)
        await engine.drain(Answers())
        assert (await cases.ended_as(never, FAILED)).err_value.error_code == "WORKFLOW_DEADLINE"
        assert await later.status_async() is PENDING
        pass_time(db, HOUR)
        await engine.drain(Answers())
        pass_time(db, HOUR + 1)
        await engine.drain(Answers())
        await cases.ended_as(later, COMPLETED)
        assert db.value("SELECT count(*) FROM horsies_workflows WHERE wake_at IS NOT NULL") == 0
    cases.check(db)


async def test_a_deadline_is_not_applied_to_compensations(t: SimpleNamespace, db: Database) -> None:
    """deadline: not applied to compensations. They begin after the running tasks, and may take their time"""
    one = t.book.node(node_id="one", compensate=t.unbook)(1)
    two = t.book.node(node_id="two", compensate=t.unbook, waits_for=[one])(2)
    rest = sleep(10 * HOUR, node_id="rest", waits_for=[one])
    handle = await t.app.workflow("w", [one, two, rest]).start_async(deadline=HOUR)
    answers = Answers()
    async with Engine.on(db, NAMES) as engine:
        await end_some(engine, answers)
        held = await engine.claim()
        pass_time(db, HOUR + 1)
        await engine.recover()
        assert await handle.status_async() is RUNNING
        assert await engine.claim() == []  # `two` still runs
        engine.advancers[0].tasks_ended(await engine.end(held, answers))
        await engine.advance()
        pass_time(db, 10 * HOUR)
        await engine.recover()
        assert await handle.status_async() is RUNNING
        await engine.drain(answers)
        assert (await cases.ended_as(handle, FAILED)).err_value.error_code == "WORKFLOW_DEADLINE"
    assert answers.undone == [2, 1]
    cases.check(db)
