"""Compensation: a run that fails or is stopped undoes what it did. Each docstring begins with a row of the table of
cases."""

import json
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from horsies import (
    Continue,
    TaskError,
    TaskResult,
    WorkflowStatus,
    from_node,
    wait_for_signal,
)
from tests.support import cases
from tests.support.cases import HOUR, NAMES, Answers, child_of, end_some, pass_time, states
from tests.support.engine import Engine
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database

PAUSED, RUNNING = WorkflowStatus.PAUSED, WorkflowStatus.RUNNING
COMPLETED, FAILED, CANCELLED = WorkflowStatus.COMPLETED, WorkflowStatus.FAILED, WorkflowStatus.CANCELLED


@pytest.fixture
async def t(db: Database) -> AsyncIterator[SimpleNamespace]:
    async with cases.tasks(db) as tasks:
        yield tasks


def booked(t: SimpleNamespace, n: int, **options: Any) -> Any:
    return t.book.node(node_id=f"b{n}", compensate=t.unbook, **options)(n)


def saga(t: SimpleNamespace, count: int = 3, *, last: Any = None, **options: Any) -> Any:
    """Bookings one after the other, then a task that fails (number 9)."""
    nodes: list[Any] = []
    for n in range(1, count + 1):
        nodes.append(booked(t, n, waits_for=nodes[-1:]))
    end = last or t.number.node(node_id="end", waits_for=nodes[-1:])(9)
    return t.app.workflow("saga", [*nodes, end], **options)


# -- when it starts -------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 1, 2, 3, 4, 5])
async def test_a_failed_run_undoes_what_it_did(t: SimpleNamespace, db: Database, seed: int | None) -> None:
    """compensation starts: when all nodes have ended and the outcome is FAILED, or after cancel or deadline once
    running tasks ended; status stays RUNNING, `ends_as` keeps the end"""
    handle = await saga(t).start_async()
    answers = Answers(9)
    async with Engine.on(db, NAMES) as engine:
        if seed:
            await cases.with_deaths(engine, answers, seed)
        else:
            for _ in range(4):
                await end_some(engine, answers)
            assert await handle.status_async() is RUNNING
            info = await handle.info_async()
            assert info is not None
            assert info.ends_as is FAILED
            assert info.completed_at is None
            await engine.drain(answers)
        assert await engine.recover() == 0
    error = (await cases.ended_as(handle, FAILED)).err_value
    assert (error.error_code, error.data["cause"]["path"]) == ("WORKFLOW_FAILED", "end")
    assert answers.undone == [3, 2, 1]
    assert [name for name in await states(handle) if name.startswith("undo")] == [
        "undo-1-b3", "undo-2-b2", "undo-3-b1"
    ]  # fmt: skip
    cases.check(db)


async def test_it_waits_until_all_nodes_have_ended(t: SimpleNamespace, db: Database) -> None:
    """compensation starts: when all nodes have ended and the outcome is FAILED. Not while others go on, and not in a
    run that completes"""
    wait = wait_for_signal("go", int, node_id="wait")
    handle = await saga(t, 1, last=wait).start_async()
    bad = t.number.node(node_id="bad")(9)
    broken = await t.app.workflow("w", [booked(t, 1), bad, wait]).start_async()
    answers = Answers(9)
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(answers)
        assert answers.undone == []
        for run in (handle, broken):
            await run.signal_async("go", 1)
        await engine.drain(answers)
        await cases.ended_as(handle, COMPLETED)
        await cases.ended_as(broken, FAILED)
        assert answers.undone == [1]
    cases.check(db)


@pytest.mark.parametrize("how", ["cancel", "deadline"])
@pytest.mark.parametrize("finishes", [True, False])
@pytest.mark.parametrize("seed", [None, 1])
async def test_a_stopped_run_undoes_what_it_did(
    t: SimpleNamespace, db: Database, how: str, finishes: bool, seed: int | None
) -> None:
    """compensation starts: after cancel or deadline once running tasks ended; a task that completes although it was
    asked to stop is undone too"""
    handle = await saga(t).start_async(deadline=HOUR)
    answers = Answers()
    async with Engine.on(db, NAMES) as engine:
        await end_some(engine, answers)
        rows = await engine.claim()
        if how == "cancel":
            assert await handle.cancel_async()
            assert not await handle.cancel_async()
        else:
            pass_time(db, HOUR + 1)
        await engine.recover()
        info = await handle.info_async()
        assert info is not None
        assert (info.status, info.ends_as) == (RUNNING, CANCELLED if how == "cancel" else FAILED)
        assert await engine.claim() == []
        engine.advancers[0].tasks_ended(await engine.end(rows, answers if finishes else Answers(2)))
        await engine.advance()
        await (cases.with_deaths(engine, answers, seed) if seed else engine.drain(answers))
        error = (await cases.ended_as(handle, CANCELLED if how == "cancel" else FAILED)).err_value
        assert error.error_code == ("WORKFLOW_CANCELLED" if how == "cancel" else "WORKFLOW_DEADLINE")
    assert answers.undone == ([2, 1] if finishes else [1])
    cases.check(db)


async def test_a_run_without_anything_to_undo_ends_with_the_next_step(t: SimpleNamespace, db: Database) -> None:
    """compensation starts: only where something completed that can be undone"""
    cancelled = await saga(t).start_async()
    assert await cancelled.cancel_async()
    failed = await t.app.workflow("w", [booked(t, 9), t.number.node(node_id="n")(1)]).start_async()
    async with Engine.on(db, NAMES) as engine:
        answers = Answers(9)
        await engine.drain(answers)
        await cases.ended_as(cancelled, CANCELLED)
        await cases.ended_as(failed, FAILED)
        assert answers.undone == []
    cases.check(db)


async def test_a_pause_while_it_undoes(t: SimpleNamespace, db: Database) -> None:
    """compensation starts: `ends_as` keeps the end, also across a pause; a cancel and a retry change nothing"""
    handle = await saga(t).start_async()
    sub = saga(t).node(node_id="sub")
    outer = await t.app.workflow("outer", [sub]).start_async()
    answers = Answers(9)
    async with Engine.on(db, NAMES) as engine:
        await engine.recover()
        for _ in range(5):
            await end_some(engine, answers)
        inner = t.app.workflow_handle(child_of(db, outer.workflow_id, "sub"))
        assert [await run.status_async() for run in (handle, outer, inner)] == [RUNNING] * 3
        for run in (handle, outer):
            assert await run.pause_async()
            assert not await run.retry_async()
        await engine.drain(answers)
        assert [await run.status_async() for run in (handle, outer, inner)] == [PAUSED] * 3
        assert not await handle.cancel_async()
        for run in (handle, outer):
            assert await run.resume_async()
        await engine.drain(answers)
        for run in (handle, inner, outer):
            assert (await cases.ended_as(run, FAILED)).err_value.data["cause"]["message"] == "as the test wanted"
    assert answers.undone == [3, 3, 2, 2, 1, 1]
    cases.check(db)


async def test_on_error_pause_undoes_nothing_until_the_run_is_stopped(t: SimpleNamespace, db: Database) -> None:
    """compensation starts: a run that pauses on errors has not failed; a cancel stops and undoes it"""
    handle = await saga(t, on_error="pause").start_async()
    answers = Answers(9)
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(answers)
        assert await handle.status_async() is PAUSED
        assert answers.undone == []
        assert await handle.cancel_async()
        await engine.drain(answers)
        await cases.ended_as(handle, CANCELLED)
        assert answers.undone == [3, 2, 1]
    cases.check(db)


# -- order and arguments --------------------------------------------------------------------------


async def test_order_and_arguments(t: SimpleNamespace, db: Database) -> None:
    """order, arguments: one at a time by `ended_seq` descending; the first parameter takes the node's value, others the
    node's own arguments by name"""
    a, b, c = (booked(t, n) for n in (1, 2, 3))
    named = t.book.node(node_id="named", compensate=t.unbook, waits_for=[a, b, c])(n=4, seconds=0.5)
    taken = t.book.node(node_id="taken", compensate=t.unbook)(from_node(named))
    bad = t.number.node(node_id="bad", waits_for=[taken])(9)
    handle = await t.app.workflow("w", [a, b, c, named, taken, bad]).start_async()
    answers = Answers(9)
    async with Engine.on(db, NAMES) as engine:
        rows = {json.loads(row["kwargs"])["n"]: row for row in await engine.claim()}
        for n in (2, 3, 1):  # in this order they end
            engine.advancers[0].tasks_ended(await engine.end([rows[n]], answers))
            await engine.advance()
        while not answers.undone:
            await end_some(engine, answers)
        while await handle.status_async() is RUNNING:
            assert await end_some(engine, answers) == 1  # one at a time
        await engine.drain(answers)
    given = [given for name, given in answers.calls if name == "unbook"]
    assert given == [
        {"value": 400, "n": 40, "seconds": 0.0}, {"value": 40, "n": 4, "seconds": 0.5},
        {"value": 10, "n": 1, "seconds": 0.0}, {"value": 30, "n": 3, "seconds": 0.0},
        {"value": 20, "n": 2, "seconds": 0.0},
    ]  # fmt: skip
    cases.check(db)


async def test_an_argument_that_the_node_does_not_give(t: SimpleNamespace, db: Database) -> None:
    """order, arguments: others take the node's own arguments by name, also those that it leaves to their defaults"""

    @t.app.task("refund")
    def refund(value: int, seconds: float) -> TaskResult[int, TaskError]:
        return TaskResult(ok=value)

    answers = Answers(9)
    for more in ({}, {"seconds": 2.0}):
        done = t.book.node(node_id="done", compensate=refund)(1, **more)
        handle = await t.app.workflow("w", [done, t.book.node(node_id="fails", waits_for=[done])(9)]).start_async()
        async with Engine.on(db, [*NAMES, "refund"]) as engine:
            await engine.drain(answers)
        await cases.ended_as(handle, FAILED)
    assert [given["seconds"] for name, given in answers.calls if name == "refund"] == [0.0, 2.0]


# -- compensations that fail ----------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 1, 2])
async def test_a_compensation_that_fails(t: SimpleNamespace, db: Database, seed: int | None) -> None:
    """compensation fails after its retries: stops; the run ends `ends_as`, the error keeps the original, data has
    COMPENSATION_FAILED; retry goes on from there"""
    handle = await saga(t).start_async()
    answers = Answers(9)
    answers.broken_undo = {2}
    async with Engine.on(db, NAMES) as engine:
        await (cases.with_deaths(engine, answers, seed) if seed else engine.drain(answers))
        error = (await cases.ended_as(handle, FAILED)).err_value
        assert error.error_code == "WORKFLOW_FAILED"
        assert error.data["cause"]["path"] == "end"
        failed = error.data["compensation"]
        assert (failed["error_code"], failed["node_id"]) == ("COMPENSATION_FAILED", "undo-2-b2")
        assert failed["cause"]["error_code"] == "BROKEN"
        assert (await states(handle))["undo-3-b1"] == "SKIPPED"
        assert answers.undone == [3, 2]
        assert await handle.retry_async()  # fails again
        await engine.drain(answers)
        error = (await cases.ended_as(handle, FAILED)).err_value
        assert error.data["compensation"]["node_id"] == "undo-2-b2"
        assert error.message.count("its compensation") == 1
        answers.broken_undo = set()
        assert await handle.retry_async("undo-2-b2")
        await (cases.with_deaths(engine, answers, seed) if seed else engine.drain(answers))
        error = (await cases.ended_as(handle, FAILED)).err_value
        assert "compensation" not in error.data
        assert "compensation" not in error.message
        assert answers.undone == [3, 2, 2, 2, 1]
        assert await handle.retry_async()  # now it runs again
        await engine.drain(Answers())
        await cases.ended_as(handle, COMPLETED)
    cases.check(db)


# -- children -------------------------------------------------------------------------------------


async def test_children(t: SimpleNamespace, db: Database) -> None:
    """children: a failed child compensates itself; a completed child is undone node by node unless its node has
    `compensate`"""
    first = booked(t, 1)
    inside = t.app.workflow("inside", [i := booked(t, 11), o := booked(t, 12, waits_for=[i])], output=o)
    by_node = inside.node(node_id="by_node", waits_for=[first])
    whole = t.app.workflow("whole", [w := booked(t, 21)], output=w).node(
        node_id="whole", waits_for=[by_node], compensate=t.unbook
    )
    items = t.spread.node(node_id="items", waits_for=[whole])(2)
    each = t.square.node(node_id="each", compensate=t.unbook).map(items)
    failing = saga(t, 2).node(node_id="failing", waits_for=[each])
    handle = await t.app.workflow("w", [first, by_node, whole, items, each, failing]).start_async()
    answers = Answers(9)
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(answers)
        await cases.ended_as(handle, FAILED)
    undone = [(given["value"], given.get("n")) for name, given in answers.calls if name == "unbook"]
    assert undone[:2] == [(20, 2), (10, 1)]  # the failed child, itself
    assert sorted(undone[2:4], key=str) == [(0, None), (1, None)]  # the items
    assert undone[4:] == [(210, None), (120, 12), (110, 11), (10, 1)]  # the whole, node by node, the first
    cases.check(db)


async def test_a_failed_child_whose_run_completes(t: SimpleNamespace, db: Database) -> None:
    """children: a failed child compensates itself, also where the run around it takes its failure and completes"""
    first = booked(t, 5)
    failing = saga(t, 2).node(node_id="failing", waits_for=[first])
    last = t.number.node(node_id="last", waits_for=[failing], allow_failed_deps=True)(3)
    from horsies import SuccessCase, SuccessPolicy

    policy = SuccessPolicy([SuccessCase([last])])
    handle = await t.app.workflow("w", [first, failing, last], output=last, success_policy=policy).start_async()
    answers = Answers(9)
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(answers)
        assert (await cases.ended_as(handle, COMPLETED)).ok == 3
    assert answers.undone == [2, 1]
    cases.check(db)


@pytest.mark.parametrize("seed", [None, 1, 2])
async def test_children_that_are_stopped(t: SimpleNamespace, db: Database, seed: int | None) -> None:
    """children: a run that is cancelled undoes what its children did before it undoes itself"""
    wait = wait_for_signal("go", int, node_id="wait")
    live = t.app.workflow("live", [booked(t, 11), wait]).node(node_id="live")
    idle = t.app.workflow("idle", [wait_for_signal("go", int, node_id="wait")]).node(node_id="idle")
    first = booked(t, 1)
    top = t.app.workflow("middle", [first, live, idle]).node(node_id="middle")
    handle = await t.app.workflow("top", [top, booked(t, 2)]).start_async()
    answers = Answers()
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(answers)
        assert await handle.cancel_async()
        await (cases.with_deaths(engine, answers, seed) if seed else engine.drain(answers))
        await cases.ended_as(handle, CANCELLED)
        assert answers.undone[:2] == [11, 1]
        assert sorted(answers.undone) == [1, 2, 11]
        assert await handle.retry_async()
        await engine.drain(answers)
        assert await handle.status_async() is RUNNING
        for path in ("middle/live", "middle/idle"):
            await handle.signal_async("go", 1, path=path)
        await engine.drain(answers)
        await cases.ended_as(handle, COMPLETED)
    cases.check(db)


# -- retry ----------------------------------------------------------------------------------------


async def test_a_retry_of_a_compensated_run(t: SimpleNamespace, db: Database) -> None:
    """retry of a compensated run: nodes whose compensation completed go back to PENDING"""
    kept = t.number.node(node_id="kept")(5)
    nodes = [kept, booked(t, 1), booked(t, 2)]
    handle = await t.app.workflow(
        "w", [*nodes, t.number.node(node_id="end", waits_for=nodes)(9)]
    ).start_async()  # fmt: skip
    answers = Answers(9)
    async with Engine.on(db, NAMES) as engine:
        for broken in (True, True, False):
            answers.broken = {9} if broken else set()
            answers.calls.clear()
            await engine.drain(answers)
            called = [(name, given["n"]) for name, given in answers.calls if name in ("book", "number")]
            assert sorted(called) == sorted(
                [("book", 1), ("book", 2), ("number", 9)] + ([("number", 5)] if called[0][1] == 5 else [])
            )
            if broken:
                await cases.ended_as(handle, FAILED)
                assert sorted(answers.undone) == [1, 2]
                assert await handle.retry_async("end" if answers.calls[0][1].get("n") == 5 else None)
                assert (await states(handle)) == {"kept": "COMPLETED", "b1": "PENDING", "b2": "PENDING",
                                                  "end": "PENDING"}  # fmt: skip
        await cases.ended_as(handle, COMPLETED)
    cases.check(db)


async def test_a_retry_runs_an_undone_child_anew(t: SimpleNamespace, db: Database) -> None:
    """retry of a compensated run: nodes whose compensation completed go back to PENDING, and a workflow that was undone
    as a whole, by itself or by a task that continued, runs anew"""
    inner = t.app.workflow("inner", [one := t.number.node(node_id="one")(1)], output=one)
    sub = inner.node(node_id="sub", compensate=t.unbook)
    again = t.countdown.node(node_id="again", compensate=t.unbook)(1)
    bad = t.number.node(node_id="bad", waits_for=[sub, again])(9)

    def following(n: int) -> Continue[Any]:
        number = t.number.node(node_id="number")(n - 1)
        return Continue(t.app.workflow("following", [number], output=number))

    handle = await t.app.workflow("w", [sub, again, bad], output=sub).start_async()
    answers = Answers(9, looping=following)
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(answers)
        await cases.ended_as(handle, FAILED)
        assert [name for name, _ in answers.calls].count("unbook") == 2
        answers.broken.clear()
        answers.calls.clear()
        assert await handle.retry_async()
        await engine.drain(answers)
        assert (await cases.ended_as(handle, COMPLETED)).ok == 1
        assert sorted(name for name, _ in answers.calls) == ["countdown", "number", "number", "number"]
    cases.check(db)
