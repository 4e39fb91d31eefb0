"""Runs that were cancelled, or ended for their rows, and are retried: nothing that the stop took from them is lost. And
runs inside paused runs: which of them go on when the outer one does."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from horsies import TaskError, TaskNode, WorkflowHandle, WorkflowStatus
from horsies.status import TaskStatus
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.identity import Identity
from horsies_worker.workflows.step import give_up
from tests.support import invariants, workflow_app
from tests.support.apps import make_app
from tests.support.engine import Engine
from tests.support.hands import end_of
from tests.support.operator import Operator
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database

NAMES = ("work", "spread", "square")
Rows = Sequence[Mapping[str, Any]]


def answer(name: str, given: Mapping[str, Any]) -> Any:
    return list(range(given["n"])) if name == "spread" else given.get("n", 0) + given.get("a", 0)


def failing(*numbers: int) -> Any:
    """Answers for tasks; those with these numbers fail."""

    def told(name: str, given: Mapping[str, Any]) -> Any:
        return TaskError("BROKEN", "as the test wanted") if given.get("n") in numbers else answer(name, given)

    return told


@pytest.fixture
async def t(db: Database) -> AsyncIterator[SimpleNamespace]:
    async with make_app(db) as app, Engine.on(db, NAMES) as engine:
        tasks = workflow_app.register(app)
        tasks.app, tasks.engine = app, engine
        yield tasks


def work(t: SimpleNamespace, number: int, **options: Any) -> TaskNode[Any]:
    return TaskNode(t.work, kwargs={"n": number}, node_id=f"n{number}", **options)


async def states(handle: WorkflowHandle[Any]) -> dict[str, str]:
    return {node.node_id: node.status.value for node in await handle.tasks_async()}


async def finish(t: SimpleNamespace, handle: WorkflowHandle[Any], told: Any = answer) -> WorkflowStatus:
    await t.engine.recover()
    await t.engine.drain(told)
    status = await handle.status_async()
    assert status is not None
    return status


async def stop(t: SimpleNamespace, rows: Rows, how: str) -> None:
    """Ends of tasks that were asked to stop."""
    match how:
        case "cancelled":
            ends = [end_of(row, TaskStatus.CANCELLED, error_code="TASK_CANCELLED") for row in rows]
        case "failed":
            ends = [end_of(row, TaskStatus.FAILED) for row in rows]
        case _:
            ends = [end_of(row) for row in rows]
    await t.engine.hands.finalize(ends)
    t.engine.advancers[0].tasks_ended([row["id"] for row in rows])
    await t.engine.advance()


def of(rows: Rows, number: int) -> Rows:
    return [row for row in rows if json.loads(row["kwargs"]).get("n") == number]


# -- what a cancel stopped belongs to every retry of the run ---------------------------------------


async def cancelled(t: SimpleNamespace) -> tuple[WorkflowHandle[Any], Rows]:
    """n1 failed, n2 runs when the cancel comes; n3 waits for it."""
    one, two = work(t, 1), work(t, 2)
    nodes = [one, two, work(t, 3, waits_for=[two]), work(t, 4, args_from={"a": one}), work(t, 5, waits_for=[one])]
    handle = await t.app.workflow("w", nodes).start_async()
    rows = await t.engine.claim()
    t.engine.advancers[0].tasks_ended(await t.engine.end(of(rows, 1), failing(1)))
    await t.engine.advance()
    assert await handle.cancel_async()
    await t.engine.recover()
    return handle, of(rows, 2)


@pytest.mark.parametrize("how", ["completed", "cancelled", "failed"])
@pytest.mark.parametrize("is_late", [False, True])
async def test_a_retried_node_takes_along_what_the_cancel_stopped(
    t: SimpleNamespace, db: Database, how: str, is_late: bool
) -> None:
    """Whether the task that ran has stopped when the retry comes, or stops after it."""
    handle, rows = await cancelled(t)
    if not is_late:
        await stop(t, rows, how)
    assert await handle.retry_async("n1")
    await t.engine.recover()
    if is_late:
        others = await t.engine.claim()
        assert not of(others, 2)  # not beside its task that still stops
        assert (await states(handle))["n2"] == "RUNNING"
        t.engine.advancers[0].tasks_ended(await t.engine.end(others, answer))
        await stop(t, rows, how)
    status = await finish(t, handle)
    if how == "failed" and not is_late:  # it failed for itself, before the retry, which was for another node
        assert status is WorkflowStatus.FAILED
        assert await states(handle) == {
            "n1": "COMPLETED", "n2": "FAILED", "n3": "SKIPPED", "n4": "COMPLETED", "n5": "COMPLETED",
        }  # fmt: skip
        assert (await handle.results_async())["n3"].err_value.error_code == "UPSTREAM_SKIPPED"
        assert await handle.retry_async()
        status = await finish(t, handle)
    assert status is WorkflowStatus.COMPLETED
    assert set((await states(handle)).values()) == {"COMPLETED"}
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


@pytest.mark.parametrize("node", ["n2", "n3"])
async def test_a_node_that_the_cancel_stopped_is_retried_by_name(t: SimpleNamespace, db: Database, node: str) -> None:
    handle, rows = await cancelled(t)
    assert not await handle.retry_async("n5")  # skipped because n1 failed
    assert await handle.retry_async(node)
    await stop(t, rows, "cancelled")
    assert await finish(t, handle) is WorkflowStatus.FAILED
    assert await states(handle) == {
        "n1": "FAILED", "n2": "COMPLETED", "n3": "COMPLETED", "n4": "SKIPPED", "n5": "SKIPPED",
    }  # fmt: skip
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


async def test_a_second_cancel_ends_what_the_retry_wanted(t: SimpleNamespace, db: Database) -> None:
    handle, rows = await cancelled(t)
    assert await handle.retry_async()
    assert await handle.cancel_async()
    await stop(t, rows, "cancelled")
    await t.engine.recover()
    assert (await states(handle))["n2"] == "FAILED"
    assert await t.engine.claim() == []
    assert db.value("SELECT count(*) FROM horsies_tasks WHERE former_node_id IS NOT NULL AND is_workflow_task") == 0
    assert await handle.retry_async()
    assert await finish(t, handle) is WorkflowStatus.COMPLETED
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


async def test_a_paused_run_keeps_the_node_until_its_resume(t: SimpleNamespace, db: Database) -> None:
    handle, rows = await cancelled(t)
    assert await handle.retry_async()
    assert await handle.pause_async()
    await stop(t, rows, "cancelled")
    assert (await states(handle))["n2"] == "READY"
    assert await handle.resume_async()
    assert await finish(t, handle) is WorkflowStatus.COMPLETED
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


async def test_a_node_that_is_stopped_waits_for_its_retried_sources(t: SimpleNamespace, db: Database) -> None:
    """n3 began with the failure of n1; the retry is for both, and n3 gets what n1 returns now."""
    one = work(t, 1)
    after = TaskNode(t.judge, kwargs={"n": 3}, args_from={"r": one}, node_id="n3", allow_failed_deps=True)
    handle = await t.app.workflow("w", [one, after], output=after).start_async()
    async with Engine.on(db, [*NAMES, "judge"]) as engine:
        engine.advancers[0].tasks_ended(await engine.end(await engine.claim(), failing(1)))
        await engine.advance()
        rows = await engine.claim()
        assert await handle.cancel_async()
        assert await handle.retry_async()
        await stop(t, rows, "cancelled")
        assert (await states(handle))["n3"] == "PENDING"
        await engine.recover()
        await engine.drain(lambda name, given: given["n"] + given.get("r", {}).get("ok", 0))
    assert (await handle.get_async(1_000)).ok == 4
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


@pytest.mark.parametrize("node", [None, "sub"])
@pytest.mark.parametrize("is_late", [False, True])
async def test_workflows_inside_a_cancelled_run(
    t: SimpleNamespace, db: Database, node: str | None, is_late: bool
) -> None:
    slow = work(t, 12)
    inner = t.app.workflow("inner", [work(t, 11), slow, work(t, 13, waits_for=[slow])])
    sub = inner.node(node_id="sub")
    k = work(t, 21)
    nodes = [sub, work(t, 20, waits_for=[sub]), k, work(t, 22, waits_for=[k])]
    handle = await t.app.workflow("outer", nodes).start_async()
    await t.engine.recover()
    rows = await t.engine.claim()
    t.engine.advancers[0].tasks_ended(await t.engine.end(of(rows, 11), failing(11)))
    await t.engine.advance()
    assert await handle.cancel_async()
    await t.engine.recover()
    running = [*of(rows, 12), *of(rows, 21)]
    if not is_late:
        await stop(t, running, "cancelled")
    assert await handle.retry_async(node)
    await t.engine.recover()
    if is_late:
        others = await t.engine.claim()
        assert not of(others, 12)
        t.engine.advancers[0].tasks_ended(await t.engine.end(others, answer))
        await stop(t, running, "cancelled")
    assert await finish(t, handle) is WorkflowStatus.COMPLETED
    assert {row[0] for row in db.execute("SELECT status FROM horsies_workflow_tasks")} == {"COMPLETED"}
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


async def test_a_run_that_ended_for_its_rows_leaves_nothing_behind(t: SimpleNamespace, db: Database) -> None:
    """The other way in which a run ends before its nodes have: its step failed for its own data."""
    one, two = work(t, 1), work(t, 2)
    sub = t.app.workflow("inner", [work(t, 11)]).node(node_id="sub")
    handle = await t.app.workflow("w", [one, two, sub, work(t, 3, waits_for=[two])]).start_async()
    await t.engine.recover()
    rows = await t.engine.claim(2)
    t.engine.advancers[0].tasks_ended(await t.engine.end(of(rows, 1), failing(1)))
    await t.engine.advance()
    session = Session(t.app.config.broker, "gives up", Queries(None, Identity()))
    try:
        await session.run(lambda connection: give_up(session, connection, handle.workflow_id, "as the test wanted"))
    finally:
        await session.close()
    assert await handle.status_async() is WorkflowStatus.FAILED
    assert await handle.retry_async("n1")
    await stop(t, of(rows, 2), "cancelled")
    assert await finish(t, handle) is WorkflowStatus.COMPLETED
    assert set((await states(handle)).values()) == {"COMPLETED"}
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


async def test_the_command_line_retries_a_run_that_is_being_stopped(
    t: SimpleNamespace, db: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    handle, rows = await cancelled(t)
    ran = await asyncio.to_thread(Operator(db, capsys), "workflows", "retry", handle.workflow_id)
    assert ran.out == f"retried {handle.workflow_id}\n"
    await stop(t, rows, "cancelled")
    assert await finish(t, handle) is WorkflowStatus.COMPLETED


@pytest.mark.parametrize("node", [None, "squares"])
async def test_a_map_over_nothing_that_was_cancelled(t: SimpleNamespace, db: Database, node: str | None) -> None:
    items = t.spread.node(node_id="items")(0)
    squares = t.square.node(node_id="squares").map(items)
    handle = await t.app.workflow("w", [items, squares], output=squares).start_async()
    advancer = t.engine.advancers[0]
    advancer.tasks_ended(await t.engine.end(await t.engine.claim(), answer))
    await advancer.run_once()  # the step that launches the map; not the map's own, which would end it
    assert await handle.cancel_async()
    assert await handle.retry_async(node)
    assert await finish(t, handle) is WorkflowStatus.COMPLETED
    assert (await handle.get_async(1_000)).ok == []
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


# -- paused inside paused -------------------------------------------------------------------------


async def paused_twice(t: SimpleNamespace, *first: int) -> WorkflowHandle[Any]:
    """n1 of the outer run and n11 of the inner one failed, in this order, and either paused for itself. A second run
    inside has nothing that failed, and is paused along with the outer one."""
    eleven = work(t, 11)
    inner = t.app.workflow("inner", [eleven, work(t, 12, waits_for=[eleven])], on_error="pause")
    other = t.app.workflow("other", [work(t, 31), work(t, 32)])
    one = work(t, 1)
    nodes = [inner.node(node_id="sub"), other.node(node_id="beside"), one, work(t, 2, waits_for=[one])]
    handle = await t.app.workflow("outer", nodes, on_error="pause").start_async()
    await t.engine.recover()
    rows = await t.engine.claim()
    for number in (*first, 31):
        t.engine.advancers[0].tasks_ended(await t.engine.end(of(rows, number), failing(1, 11)))
        await t.engine.advance()
    assert await handle.status_async() is WorkflowStatus.PAUSED
    t.engine.advancers[0].tasks_ended(await t.engine.end(of(rows, 32), answer))
    await t.engine.advance()
    return handle


@pytest.mark.parametrize("first", [(11, 1), (1, 11)])
@pytest.mark.parametrize("verb", ["retry", "resume"])
async def test_a_run_inside_that_is_paused_for_its_own_error_stays_paused(
    t: SimpleNamespace, db: Database, first: tuple[int, int], verb: str
) -> None:
    handle = await paused_twice(t, *first)
    assert await (handle.retry_async("n1") if verb == "retry" else handle.resume_async())
    assert await finish(t, handle) is WorkflowStatus.PAUSED
    ended = ("COMPLETED", "COMPLETED") if verb == "retry" else ("FAILED", "SKIPPED")
    assert await states(handle) == {"sub": "RUNNING", "beside": "COMPLETED", "n1": ended[0], "n2": ended[1]}
    (paused,) = await handle.paused_async()
    assert (paused.path, paused.failed) == (("sub",), (("n11", "BROKEN"),))
    # nothing else holds it now: the verbs of the outer run reach what is paused inside, and what failed outside of it
    assert await handle.retry_async()
    assert await finish(t, handle) is WorkflowStatus.COMPLETED
    assert set((await states(handle)).values()) == {"COMPLETED"}
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


@pytest.mark.parametrize("is_first", [False, True])
async def test_a_run_inside_that_was_paused_by_its_id_stays_paused(
    t: SimpleNamespace, db: Database, is_first: bool
) -> None:
    """Whichever of the two was paused first."""
    control = t.app.get_broker().workflows
    deeper = t.app.workflow("deeper", [work(t, 11)])
    inner = t.app.workflow("inner", [deeper.node(node_id="deeper"), work(t, 12)])
    beside = t.app.workflow("beside", [work(t, 21)])
    nodes = [inner.node(node_id="sub"), beside.node(node_id="beside"), work(t, 1)]
    handle = await t.app.workflow("outer", nodes).start_async()
    await t.engine.recover()
    child = db.value("SELECT id FROM horsies_workflows WHERE name = 'inner'")
    for workflow_id in (child, handle.workflow_id) if is_first else (handle.workflow_id, child):
        assert await control.pause(workflow_id)
        assert not await control.pause(workflow_id)
    assert await t.engine.claim() == []
    assert await handle.resume_async()
    assert await finish(t, handle) is WorkflowStatus.PAUSED
    assert await states(handle) == {"sub": "RUNNING", "beside": "COMPLETED", "n1": "COMPLETED"}
    assert await control.resume(child)
    assert await finish(t, handle) is WorkflowStatus.COMPLETED
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


async def test_a_cancel_that_waited_ends_after_what_it_waited_for(t: SimpleNamespace, db: Database) -> None:
    """The rows tell the order of events even if the cancel waited for a lock, such as that of a workflow's step."""
    task = await t.work.send_async(n=1)
    run = await t.app.workflow("w", [work(t, 1)]).start_async()
    waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    for lock, cancel, ended in (
        ("SELECT FROM horsies_tasks FOR UPDATE", task.cancel_async(), f"horsies_tasks WHERE id = '{task.task_id}'"),
        ("SELECT FROM horsies_workflows FOR UPDATE", run.cancel_async(), "horsies_workflows"),
    ):
        with psycopg.connect(db.url) as holder:
            holder.execute(lock)
            cancelled = asyncio.create_task(cancel)
            await eventually_async(lambda: db.value(waits) == 1)
            row = holder.execute("SELECT clock_timestamp()").fetchone()
        assert row is not None
        assert await cancelled
        assert db.value(f"SELECT updated_at FROM {ended}") > row[0]
