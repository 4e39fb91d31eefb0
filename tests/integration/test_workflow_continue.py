"""Continue: a task that goes on as another workflow. Each docstring begins with a row of the table of cases."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from horsies import Continue, TaskError, TaskResult, WorkflowStatus, from_node, sleep, wait_for_signal
from horsies.workflow.continuing import continue_text
from horsies_worker.child.outcome import Outcome, OutcomeKind, outside_of_workflows
from tests.support import cases
from tests.support.cases import HOUR, NAMES, Answers, child_of, pass_time, states
from tests.support.engine import Engine
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database

PAUSED, RUNNING = WorkflowStatus.PAUSED, WorkflowStatus.RUNNING
COMPLETED, FAILED, CANCELLED = WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED


@pytest.fixture
async def t(db: Database) -> AsyncIterator[SimpleNamespace]:
    async with cases.tasks(db) as tasks:
        yield tasks


def loop(t: SimpleNamespace, n: int, *, wait: bool = False, undo: bool = False, fails: bool = False) -> Any:
    """The n-th round from the end: a booking, a sleep if asked for, and the task that goes on with the next round."""
    booked = t.book.node(node_id="booked", compensate=t.unbook if undo else None)(n)
    nodes: list[Any] = [booked]
    if wait:
        nodes.append(sleep(HOUR, node_id="rest", waits_for=[booked]))
    if fails and not n:
        nodes.append(t.fail.node(node_id="bad", waits_for=[booked])())
    last = t.countdown.node(node_id="again", waits_for=[nodes[-1]], compensate=t.unbook if undo else None)(n)
    return t.app.workflow("loop", [*nodes, last], output=last)


def looping(t: SimpleNamespace, *broken: int, **options: Any) -> Answers:
    return Answers(*broken, looping=lambda n: Continue(loop(t, n - 1, **options)))


def archives(db: Database, workflow_id: str) -> int:
    return db.value(
        "SELECT count(*) FROM horsies_workflows WHERE root_workflow_id = %s AND parent_workflow_id IS NULL"
        " AND status = 'COMPLETED'", workflow_id,
    )  # fmt: skip


# -- a node that becomes a run --------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
async def test_a_node_continues_as_a_run_inside(t: SimpleNamespace, db: Database, seed: int | None) -> None:
    """`Continue[T]` returned by a task: the child builds the graph; the node becomes RUNNING with a child run; T must
    be the node's type; outside a workflow a contract error"""
    again = t.countdown.node(node_id="again")(1)
    other = wait_for_signal("go", int, node_id="other")
    both = t.plus.node(node_id="both")(from_node(again), from_node(other))
    handle = await t.app.workflow("w", [again, other, both], output=both).start_async()
    answers = looping(t, wait=True)
    async with Engine.on(db, NAMES) as engine:
        await (cases.with_deaths(engine, answers, seed) if seed else engine.drain(answers))
        assert await states(handle) == {"again": "RUNNING", "other": "WAITING", "both": "PENDING"}
        child = t.app.workflow_handle(child_of(db, handle.workflow_id, "again"))
        assert await states(child) == {"booked": "COMPLETED", "rest": "WAITING", "again": "PENDING"}
        assert await child.status_async() is RUNNING
        await handle.signal_async(other, 5)
        await engine.drain(answers)
        pass_time(db, HOUR + 1)
        await engine.drain(answers)
        assert (await cases.ended_as(handle, COMPLETED)).ok == 5
    cases.check(db)


async def test_types_and_places_are_checked(t: SimpleNamespace) -> None:
    """`Continue[T]` returned by a task: T must be the node's type; outside a workflow a contract error"""
    number = t.number.node(node_id="number")(1)
    spec = t.app.workflow("numbers", [number], output=number)
    text, problem = continue_text(spec, int)
    assert (problem, text.startswith('{"continue":{"name":"numbers"')) == (None, True)
    assert "returns int, and the task returns str" in (continue_text(spec, str)[1] or "")
    assert "without" not in (continue_text(spec, int | None)[1] or "")
    with pytest.raises(TypeError, match="takes a workflow, not 5"):
        Continue(5)  # type: ignore[arg-type]
    outside = outside_of_workflows(Outcome(OutcomeKind.OK, text))
    assert (outside.kind, outside.error_code) == (OutcomeKind.ERR, "RETURN_TYPE_MISMATCH")
    plain = Outcome(OutcomeKind.OK, '{"ok":1}')
    assert outside_of_workflows(plain) is plain
    assert isinstance(Continue(spec), TaskResult)


@pytest.mark.parametrize("how", ["pause", "cancel", "deadline"])
async def test_a_run_that_stops_while_a_task_continues(t: SimpleNamespace, db: Database, how: str) -> None:
    """`Continue[T]` returned by a task: the node becomes RUNNING with a child run; paused along with a paused run, and
    refused in a run that was stopped"""
    again = t.countdown.node(node_id="again")(1)
    other = wait_for_signal("go", int, node_id="other")
    handle = await t.app.workflow("w", [again, other], output=again).start_async(deadline=HOUR)
    answers = looping(t)
    async with Engine.on(db, NAMES) as engine:
        await engine.recover()
        rows = await engine.claim()
        if how == "pause":
            await handle.pause_async()
        elif how == "cancel":
            await handle.cancel_async()
        else:
            pass_time(db, HOUR + 1)
        engine.advancers[0].tasks_ended(await engine.end(rows, answers))
        await engine.advance()
        await engine.recover()
        if how == "pause":
            assert await states(handle) == {"again": "RUNNING", "other": "WAITING"}
            child = t.app.workflow_handle(child_of(db, handle.workflow_id, "again"))
            assert await child.status_async() is PAUSED
            assert await engine.claim() == []
            await handle.resume_async()
        else:
            assert await states(handle) == {"again": "FAILED", "other": "SKIPPED"}
            await cases.ended_as(handle, CANCELLED if how == "cancel" else FAILED)
            assert await handle.retry_async()
        await handle.signal_async(other, 1)
        await engine.drain(answers)
        assert (await cases.ended_as(handle, COMPLETED)).ok == 0
    cases.check(db)


async def test_a_retry_of_what_continued(t: SimpleNamespace, db: Database) -> None:
    """`Continue[T]` returned by a task: the node becomes RUNNING with a child run, which a retry continues"""
    again = t.countdown.node(node_id="again")(1)
    other = wait_for_signal("go", int, node_id="other")
    handle = await t.app.workflow("w", [again, other], output=again).start_async()
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(looping(t, 0))
        await handle.signal_async(other, 1)
        await engine.drain(looping(t, 0))  # the booking of the next round fails
        error = (await cases.ended_as(handle, FAILED)).err_value
        assert error.data["cause"]["path"] == "again/booked"
        child = child_of(db, handle.workflow_id, "again")
        assert await handle.retry_async()
        answers = looping(t)
        await engine.drain(answers)
        assert (await cases.ended_as(handle, COMPLETED)).ok == 0
        assert child_of(db, handle.workflow_id, "again") == child
        assert [name for name, _ in answers.calls] == ["book", "countdown"]
    cases.check(db)


# -- a run that goes on in its own place ----------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 1, 2, 3, 4])
async def test_a_run_goes_on_in_its_own_place(t: SimpleNamespace, db: Database, seed: int | None) -> None:
    """Continue as output with nothing else open: the new run takes the old one's place: depth constant; at most 1,000,
    then FAILED"""
    handle = await loop(t, 5).start_async(unique_key="one", priority=7, metadata={"who": "me"})
    answers = looping(t)
    async with Engine.on(db, NAMES) as engine:
        await (cases.with_deaths(engine, answers, seed) if seed else engine.drain(answers))
        assert await engine.recover() == 0
    assert (await cases.ended_as(handle, COMPLETED)).ok == 0
    assert [given["n"] for name, given in answers.calls if name == "countdown"] == [5, 4, 3, 2, 1, 0]
    assert db.value("SELECT max(depth) FROM horsies_workflows") == 0
    assert archives(db, handle.workflow_id) == 5
    assert db.value("SELECT continues FROM horsies_workflows WHERE id = %s", handle.workflow_id) == 5
    assert db.execute("SELECT DISTINCT priority, metadata ->> 'who' FROM horsies_tasks") == [(7, "me")]
    assert [one.id for one in await t.app.get_broker().workflows.list()] == [handle.workflow_id]
    cases.check(db)


async def test_a_loop_ends_at_its_limit(t: SimpleNamespace, db: Database) -> None:
    """Continue as output with nothing else open: at most 1,000, then FAILED"""
    handle = await loop(t, 5).start_async()
    db.execute("UPDATE horsies_workflows SET continues = 999")
    answers = looping(t)
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(answers)
        error = (await cases.ended_as(handle, FAILED)).err_value
        assert "continued 1,000 times" in error.message
        assert await states(handle) == {"booked": "COMPLETED", "again": "FAILED"}
        assert archives(db, handle.workflow_id) == 1
    cases.check(db)


async def test_depth_has_a_limit_too(t: SimpleNamespace, db: Database) -> None:
    """`Continue[T]` returned by a task: the node becomes RUNNING with a child run, at most 60 deep"""

    def deeper(n: int) -> Any:
        again = t.countdown.node(node_id="again")(n)
        return t.app.workflow("deep", [again, t.number.node(node_id="other", waits_for=[again])(0)], output=again)

    handle = await deeper(100).start_async()
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers(looping=lambda n: Continue(deeper(n - 1))))
    error = (await cases.ended_as(handle, FAILED)).err_value
    assert "60 levels deep" in error.data["cause"]["message"]
    assert db.value("SELECT max(depth) FROM horsies_workflows") == 60
    cases.check(db)


async def test_something_else_is_open(t: SimpleNamespace, db: Database) -> None:
    """Continue as output with nothing else open: with something open it becomes a child, which then loops in its own
    place"""
    again = t.countdown.node(node_id="again")(3)
    other = wait_for_signal("go", int, node_id="other")
    handle = await t.app.workflow("w", [again, other], output=again).start_async()
    answers = looping(t)
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(answers)
        assert await states(handle) == {"again": "COMPLETED", "other": "WAITING"}
        await handle.signal_async(other, 1)
        await engine.drain(answers)
        assert (await cases.ended_as(handle, COMPLETED)).ok == 0
        assert db.value("SELECT max(depth) FROM horsies_workflows") == 1
        assert archives(db, handle.workflow_id) == 2
    cases.check(db)


async def test_a_loop_that_is_paused_signalled_and_stopped(t: SimpleNamespace, db: Database) -> None:
    """Continue as output with nothing else open: the same id takes pauses, signals, deadlines and cancels in every
    round"""

    def ask(n: int) -> Any:
        wait = wait_for_signal("go", int, node_id="wait")
        again = t.countdown.node(node_id="again", waits_for=[wait])(n)
        return t.app.workflow("ask", [wait, again], output=again)

    answers = Answers(looping=lambda n: Continue(ask(n - 1)))
    handle = await ask(50).start_async(deadline=HOUR)
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(answers)
        await handle.signal_async("go", 1)
        await engine.recover()
        rows = await engine.claim()
        assert await handle.pause_async()
        engine.advancers[0].tasks_ended(await engine.end(rows, answers))
        await engine.drain(answers)
        assert await states(handle) == {"wait": "READY", "again": "PENDING"}
        await handle.resume_async()
        await engine.drain(answers)
        for _ in range(2):  # kept until the next round waits
            await handle.signal_async("go", 2)
        await engine.drain(answers)
        assert archives(db, handle.workflow_id) == 3
        other = await ask(50).start_async()
        await engine.drain(answers)
        assert await other.cancel_async()
        assert await other.retry_async()
        pass_time(db, HOUR + 1)
        await engine.drain(answers)
        assert (await cases.ended_as(handle, FAILED)).err_value.error_code == "WORKFLOW_DEADLINE"
        assert await handle.retry_async()
        await engine.drain(answers)
        assert await states(handle) == {"wait": "WAITING", "again": "PENDING"}
        await handle.signal_async("go", 3)
        await engine.drain(lambda name, given: 77 if name == "countdown" else answers(name, given))
        assert (await cases.ended_as(handle, COMPLETED)).ok == 77
    cases.check(db)


async def test_a_loop_with_a_child_in_each_round(t: SimpleNamespace, db: Database) -> None:
    """Continue as output with nothing else open: ended children go with the round that they belong to"""

    def round_(n: int) -> Any:
        inner = t.app.workflow("inner", [number := t.number.node(node_id="number")(n)], output=number)
        sub = t.app.workflow("middle", [part := inner.node(node_id="part")], output=part).node(node_id="sub")
        again = t.countdown.node(node_id="again", waits_for=[sub])(n)
        return t.app.workflow("round", [sub, again], output=again)

    top = t.app.workflow("top", [body := round_(3).node(node_id="body")], output=body)
    handle = await top.start_async()
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers(looping=lambda n: Continue(round_(n - 1))))
    assert (await cases.ended_as(handle, COMPLETED)).ok == 0
    assert db.value("SELECT max(depth) FROM horsies_workflows") == 3
    assert await t.app.get_broker().workflows.cancel(handle.workflow_id) is False
    cases.check(db)


async def test_a_loop_undoes_all_its_rounds(t: SimpleNamespace, db: Database) -> None:
    """Continue as output with nothing else open: what the rounds before did is undone too, the last round first; a task
    that continued has no value to undo"""
    handle = await loop(t, 2, undo=True).start_async()
    answers = looping(t, undo=True, fails=True)
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(answers)
        await cases.ended_as(handle, FAILED)
        assert answers.undone == [0, 1, 2]
        assert await handle.retry_async()
        again = looping(t, undo=True)
        await engine.drain(lambda name, given: 5 if name == "fail" else again(name, given))
        assert (await cases.ended_as(handle, COMPLETED)).ok == 0
        assert [given["n"] for name, given in again.calls if name == "book"] == [0]  # earlier rounds stay undone
        assert again.undone == []
    cases.check(db)


# -- maps -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 1])
@pytest.mark.parametrize("is_partial", [False, True])
async def test_an_item_continues(t: SimpleNamespace, db: Database, is_partial: bool, seed: int | None) -> None:
    """Continue in a map: takes that item's place"""
    items = t.spread.node(node_id="items")(4)
    node = t.countdown.node(node_id="each")
    each = node.map_partial(items) if is_partial else node.map(items)
    handle = await t.app.workflow("w", [items, each], output=each).start_async()

    def following(n: int) -> Continue[Any]:
        number = t.number.node(node_id="number")(n * 100)
        return Continue(t.app.workflow("item", [number], output=number))

    answers = Answers(*([200] if is_partial else []), looping=following)
    async with Engine.on(db, NAMES) as engine:
        await (cases.with_deaths(engine, answers, seed) if seed else engine.drain(answers))
        assert await engine.recover() == 0
    result = await cases.ended_as(handle, COMPLETED)
    if is_partial:
        assert [one.ok if one.is_ok() else one.err_value.error_code for one in result.ok] == [
            0, 100, "SUBWORKFLOW_FAILED", 300
        ]  # fmt: skip
        assert isinstance(result.ok[2].err_value, TaskError)
    else:
        assert result.ok == [0, 100, 200, 300]
    cases.check(db)
