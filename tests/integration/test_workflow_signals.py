"""Signals: what a run does with values from outside. Each docstring begins with a row of the table of cases."""

import uuid
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from horsies import SignalError, TaskSendError, UsageError, WorkflowStatus, from_node, wait_for_signal
from horsies.workflow.mapping import map_workflow
from tests.support import cases
from tests.support.cases import HOUR, NAMES, Answers, child_of, given_to, pass_time, states
from tests.support.engine import Engine
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database

COMPLETED = WorkflowStatus.COMPLETED


@pytest.fixture
async def t(db: Database) -> AsyncIterator[SimpleNamespace]:
    async with cases.tasks(db) as tasks:
        yield tasks


def approval(t: SimpleNamespace, *, timeout: float | None = None) -> Any:
    """A task, a wait for a number, and a task that takes it."""
    first = t.number.node(node_id="first")(1)
    wait = wait_for_signal("go", int, node_id="wait", waits_for=[first], timeout=timeout)
    last = t.number.node(node_id="last")(from_node(wait))
    return t.app.workflow("approval", [first, wait, last], output=last)


def signals(db: Database) -> int:
    return db.value("SELECT count(*) FROM horsies_workflow_signals")


# -- before the node waits ------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
async def test_a_signal_is_kept_until_a_node_waits(t: SimpleNamespace, db: Database, seed: int | None) -> None:
    """signal before the node waits: kept; oldest first; one signal feeds one node, lowest index first"""
    first = t.number.node(node_id="first")(1)
    waits = [wait_for_signal("go", int, node_id=f"w{n}", waits_for=[first]) for n in range(3)]
    other = wait_for_signal("other", int, node_id="other", waits_for=[first])
    handle = await t.app.workflow("w", [first, *waits, other]).start_async()
    for value in (10, 20):
        assert (await handle.signal_async(waits[0], value)).delivered
    async with Engine.on(db, NAMES) as engine:
        await engine.recover()
        assert await states(handle) == {"first": "ENQUEUED"} | dict.fromkeys(("w0", "w1", "w2", "other"), "PENDING")
        await (cases.with_deaths(engine, Answers(), seed) if seed else engine.drain(Answers()))
        assert await states(handle) == {
            "first": "COMPLETED", "w0": "COMPLETED", "w1": "COMPLETED", "w2": "WAITING", "other": "WAITING"
        }  # fmt: skip
        assert [given_to(db, handle.workflow_id, name) for name in ("w0", "w1")] == [10, 20]
        for value in (30, 40):  # the second one finds no node
            await handle.signal_async("go", value)
        await handle.signal_async("other", 5)
        await engine.drain(Answers())
        assert given_to(db, handle.workflow_id, "w2") == 30
        assert db.execute("SELECT value FROM horsies_workflow_signals WHERE consumed_at IS NULL") == [("40",)]
        await cases.ended_as(handle, COMPLETED)
        assert await engine.recover() == 0
    cases.check(db)


async def test_nodes_that_begin_to_wait_later_take_what_was_left(t: SimpleNamespace, db: Database) -> None:
    """signal before the node waits: kept. A chain of three waits for one name, all signals sent at the start."""
    first = wait_for_signal("go", int, node_id="a")
    second = wait_for_signal("go", int, node_id="b", waits_for=[first])
    third = wait_for_signal("go", int, node_id="c", waits_for=[second])
    handle = await t.app.workflow("w", [third, second, first], output=third).start_async()
    for value in (1, 2, 3):
        await handle.signal_async("go", value)
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers())
    assert [given_to(db, handle.workflow_id, name) for name in "abc"] == [1, 2, 3]
    assert (await cases.ended_as(handle, COMPLETED)).ok == 3


async def test_a_notification_is_enough_and_a_lost_one_is_healed(t: SimpleNamespace, db: Database) -> None:
    """signal before the node waits: kept. A worker hears of it by notification; a lost one is found by recovery."""
    runs = [await approval(t).start_async() for _ in range(2)]
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers())
        for run in runs:
            await run.signal_async("go", 7)
        engine.advancers[0].on_step(f"s:{runs[0].workflow_id}")
        await engine.advance()
        assert [(await states(run))["wait"] for run in runs] == ["COMPLETED", "WAITING"]
        assert await engine.recover() == 1
        assert (await states(runs[1]))["wait"] == "COMPLETED"
        await engine.drain(Answers())
    for run in runs:
        assert (await cases.ended_as(run, COMPLETED)).ok == 7
    cases.check(db)


# -- ids ------------------------------------------------------------------------------------------


async def test_a_repeated_id_is_ignored(t: SimpleNamespace, db: Database) -> None:
    """same signal id again: ignored, `delivered=False`"""
    waits = [wait_for_signal("go", int, node_id=f"w{n}") for n in range(2)]
    handle = await t.app.workflow("w", waits).start_async()
    other = await approval(t).start_async()
    one = await handle.signal_async("go", 1, signal_id="hook-1")
    assert (one.signal_id, one.delivered) == ("hook-1", True)
    for run, name in ((handle, "go"), (handle, "another"), (other, "go")):
        again = await run.signal_async(name, 2, signal_id="hook-1")
        assert (again.signal_id, again.delivered) == ("hook-1", False)
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers())
        assert await states(handle) == {"w0": "COMPLETED", "w1": "WAITING"}
        assert not (await handle.signal_async("go", 3, signal_id="hook-1")).delivered  # also after it was consumed
        await handle.signal_async("go", 4, signal_id="hook-2")
        await engine.drain(Answers())
        assert not (await handle.signal_async("go", 5, signal_id="hook-2")).delivered  # also after the run's end
    assert [given_to(db, handle.workflow_id, f"w{n}") for n in range(2)] == [1, 4]
    assert signals(db) == 2
    for wrong in ("", "x" * 256, "a\x00b", 5):
        with pytest.raises(TaskSendError, match="signal_id"):
            await handle.signal_async("go", 1, signal_id=wrong)


# -- runs that cannot take it ---------------------------------------------------------------------


async def test_a_run_that_has_ended_or_does_not_exist(t: SimpleNamespace, db: Database) -> None:
    """signal to an ended / unknown run: WORKFLOW_ENDED / WORKFLOW_NOT_FOUND; nothing stored"""
    done = await t.app.workflow("done", [t.number.node()(1)]).start_async()
    failed = await t.app.workflow("failed", [t.fail.node()()]).start_async()
    cancelled = await approval(t).start_async()
    await cancelled.cancel_async()
    undoing = await t.app.workflow(
        "undoing", [book := t.book.node(compensate=t.unbook)(1), t.fail.node(waits_for=[book])()]
    ).start_async()
    async with Engine.on(db, NAMES) as engine:
        for _ in range(2):
            await cases.end_some(engine, Answers())
        assert await undoing.status_async() is WorkflowStatus.RUNNING  # it undoes what it did
        for run in (done, failed, cancelled, undoing):
            with pytest.raises(SignalError, match="WORKFLOW_ENDED") as caught:
                await run.signal_async("go", 1)
            assert caught.value.code == "WORKFLOW_ENDED"
        await engine.drain(Answers())
    unknown = t.app.workflow_handle(str(uuid.uuid4()))
    with pytest.raises(SignalError, match="WORKFLOW_NOT_FOUND") as caught:
        await unknown.signal_async("go", 1)
    assert caught.value.code == "WORKFLOW_NOT_FOUND"
    assert db.value("SELECT horsies_signal('unknown-run', 'go')") == "WORKFLOW_NOT_FOUND"
    assert db.value("SELECT horsies_signal(%s, 'go')", done.workflow_id) == "WORKFLOW_ENDED"
    assert signals(db) == 0


# -- pause ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 4])
async def test_a_paused_run_takes_signals(t: SimpleNamespace, db: Database, seed: int | None) -> None:
    """signal while PAUSED: consumed; dependents wait READY"""
    handle = await approval(t).start_async()
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers())
        assert await handle.pause_async()
        await handle.signal_async("go", 9)
        await (cases.with_deaths(engine, Answers(), seed) if seed else engine.drain(Answers()))
        assert await states(handle) == {"first": "COMPLETED", "wait": "COMPLETED", "last": "READY"}
        assert await handle.status_async() is WorkflowStatus.PAUSED
        assert await engine.claim() == []
        assert await handle.resume_async()
        await engine.drain(Answers())
        assert (await cases.ended_as(handle, COMPLETED)).ok == 9
    cases.check(db)


# -- children -------------------------------------------------------------------------------------


async def test_a_signal_for_a_child_names_its_path(t: SimpleNamespace, db: Database) -> None:
    """signal for a child: addressed by path; never broadcast"""
    inner = t.app.workflow("inner", [wait_for_signal("go", int, node_id="wait")])
    own = wait_for_signal("go", int, node_id="own")
    late = inner.node(node_id="late", waits_for=[t_own := own])
    nodes = [own, inner.node(node_id="left"), inner.node(node_id="right"), late]
    outer = t.app.workflow("outer", nodes)
    handle = await t.app.workflow("top", [outer.node(node_id="outer")]).start_async()
    assert t_own is own
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers())
        await handle.signal_async("go", 0)  # of the run itself, in which no node waits
        await handle.signal_async("go", 1, path="outer/right")
        await engine.drain(Answers())
        outer_id = child_of(db, handle.workflow_id, "outer")
        assert dict(db.execute(
            "SELECT node_id, status FROM horsies_workflow_tasks WHERE workflow_id = %s", outer_id
        )) == {"own": "WAITING", "left": "RUNNING", "right": "COMPLETED", "late": "PENDING"}  # fmt: skip
        with pytest.raises(UsageError, match="has not started"):
            await handle.signal_async("go", 2, path="outer/late")
        for path in ("outer/nothing", "nothing", "outer/own/deeper"):
            with pytest.raises(UsageError, match=r"no workflow at the path|has not started"):
                await handle.signal_async("go", 2, path=path)
        with pytest.raises(SignalError, match="WORKFLOW_ENDED"):
            await handle.signal_async("go", 2, path="outer/right")
        for path in ("outer", "outer/left", "outer/late"):
            await handle.signal_async("go", 3, path=path)
            await engine.drain(Answers())
        await cases.ended_as(handle, COMPLETED)
    assert signals(db) == 5
    cases.check(db)


async def test_a_signal_for_one_item_of_a_map(t: SimpleNamespace, db: Database) -> None:
    """signal for a child: addressed by path; never broadcast. One run per item, each with a wait of its own."""
    items = t.spread.node(node_id="items")(3)

    def ask(item: Any) -> Any:
        wait = wait_for_signal("go", int, node_id="wait")
        both = t.plus.node(node_id="both")(item, from_node(wait))
        return t.app.workflow("ask", [wait, both], output=both)

    each = map_workflow(items, ask, node_id="each")
    handle = await t.app.workflow("w", [items, each], output=each).start_async()
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers())
        for at in (2, 0):
            await handle.signal_async("go", 10 * at, path=f"each/item[{at}]")
        await engine.drain(Answers())
        assert await handle.status_async() is WorkflowStatus.RUNNING
        with pytest.raises(UsageError, match="no workflow at the path"):
            await handle.signal_async("go", 1, path="each/item[3]")
        await handle.signal_async("go", 10, path="each/item[1]")
        await engine.drain(Answers())
        assert (await cases.ended_as(handle, COMPLETED)).ok == [0, 11, 22]
    cases.check(db)


# -- values ---------------------------------------------------------------------------------------


async def test_values_are_checked_where_the_type_is_known(t: SimpleNamespace, db: Database) -> None:
    """value with a wrong type (by SQL): taker fails WORKER_SERIALIZATION_ERROR, also one that only decides on it; the
    client refuses such a value"""
    ask = wait_for_signal("ok", bool, node_id="ask")
    then = t.number.node(node_id="then", when=ask)(1)
    handle = await t.app.workflow("w", [ask, then]).start_async()
    for node in (ask, "ok"):
        with pytest.raises(TaskSendError, match="does not fit its type"):
            await handle.signal_async(node, "yes")
    with pytest.raises(UsageError, match="did you mean 'ok'"):
        await handle.signal_async("okk", True)
    with pytest.raises(UsageError, match="waits for no signal"):
        await handle.signal_async(then, True)
    assert signals(db) == 0
    assert db.value("SELECT horsies_signal(%s, 'ok', '\"yes\"')", handle.workflow_id) == "DELIVERED"
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers())
    assert await states(handle) == {"ask": "COMPLETED", "then": "FAILED"}
    error = (await handle.result_for_async(then)).err_value
    assert error.error_code == "WORKER_SERIALIZATION_ERROR"
    for call in ("NULL, 'ok'", "'x', ''", "'x', NULL", f"'x', '{'n' * 256}'", "'x', 'ok', '1', ''"):
        if call.startswith("NULL"):
            assert db.value(f"SELECT horsies_signal({call})") == "WORKFLOW_NOT_FOUND"
            continue
        with pytest.raises(psycopg.errors.InvalidParameterValue):
            db.execute(f"SELECT horsies_signal({call})")


# -- timeouts -------------------------------------------------------------------------------------


async def test_a_wait_that_takes_too_long_fails(t: SimpleNamespace, db: Database) -> None:
    """signal timeout: FAILED, SIGNAL_TIMEOUT; not during pause; at resume a waiting signal wins"""
    runs = [await approval(t, timeout=HOUR).start_async() for _ in range(4)]
    late, paused, rescued, lucky = runs
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers())
        pass_time(db, HOUR - 60)
        assert await engine.recover() == 0
        assert {(await states(run))["wait"] for run in runs} == {"WAITING"}
        for run in (paused, rescued):
            await run.pause_async()
        await lucky.signal_async("go", 4)  # in time, and seen only when the time has passed
        pass_time(db, 120)
        await engine.drain(Answers())
        assert [(await states(run))["wait"] for run in runs] == ["FAILED", "WAITING", "WAITING", "COMPLETED"]
        error = (await cases.ended_as(late, WorkflowStatus.FAILED)).err_value
        assert "wait: SIGNAL_TIMEOUT: no signal came in time" in error.message
        assert (await states(late))["last"] == "SKIPPED"
        await rescued.signal_async("go", 5)
        for run in (paused, rescued):
            await run.resume_async()
        await engine.drain(Answers())
        assert (await cases.ended_as(rescued, COMPLETED)).ok == 5
        await cases.ended_as(paused, WorkflowStatus.FAILED)
        assert (await cases.ended_as(lucky, COMPLETED)).ok == 4
    cases.check(db)


async def test_a_timeout_pauses_a_run_that_pauses_on_errors(t: SimpleNamespace, db: Database) -> None:
    """signal timeout: FAILED, SIGNAL_TIMEOUT; and as any failed node it pauses its run, or is taken by another node"""
    wait = wait_for_signal("go", int, node_id="wait", timeout=HOUR)
    taken = t.number.node(node_id="taken", waits_for=[wait], allow_failed_deps=True)(3)
    handle = await t.app.workflow("w", [wait, taken], on_error="pause", output=taken).start_async()
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers())
        pass_time(db, HOUR + 1)
        await engine.drain(Answers())
        assert await handle.status_async() is WorkflowStatus.PAUSED
        assert await states(handle) == {"wait": "FAILED", "taken": "READY"}
        assert await handle.retry_async("wait")  # it waits anew
        await engine.drain(Answers())
        assert await states(handle) == {"wait": "WAITING", "taken": "PENDING"}
        await handle.signal_async(wait, 1)
        await engine.drain(Answers())
        assert (await cases.ended_as(handle, COMPLETED)).ok == 3
    cases.check(db)


# -- retry ----------------------------------------------------------------------------------------


async def test_a_retry_waits_anew(t: SimpleNamespace, db: Database) -> None:
    """retry and signals: consumed ones stay consumed; timed-out waits wait anew and see unconsumed ones"""
    early = wait_for_signal("early", int, node_id="early")
    wait = wait_for_signal("go", int, node_id="wait", waits_for=[early], timeout=HOUR)
    last = t.plus.node(node_id="last")(from_node(early), from_node(wait))
    handle = await t.app.workflow("w", [early, wait, last], output=last).start_async()
    await handle.signal_async("early", 1)
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers())
        pass_time(db, HOUR + 1)
        await engine.drain(Answers())
        await cases.ended_as(handle, WorkflowStatus.FAILED)
        assert await handle.retry_async()
        await handle.signal_async("early", 50)  # no node waits for it any more
        await engine.drain(Answers())
        assert await states(handle) == {"early": "COMPLETED", "wait": "WAITING", "last": "PENDING"}
        pass_time(db, HOUR - 60)  # a whole timeout from its new start
        assert await engine.recover() == 0
        await handle.cancel_async()
        assert await states(handle) == {"early": "COMPLETED", "wait": "SKIPPED", "last": "SKIPPED"}
        assert await handle.retry_async()
        await handle.signal_async("go", 2)  # before the node waits again
        await engine.drain(Answers())
        assert (await cases.ended_as(handle, COMPLETED)).ok == 3
    cases.check(db)
