"""Retries of workflows: single nodes in paused runs, runs inside runs, the tasks that are left behind, and the cost."""

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from horsies import (
    TaskError,
    TaskNode,
    UsageError,
    WorkflowDefinition,
    WorkflowHandle,
    WorkflowSpec,
    WorkflowStatus,
    result_from,
)
from horsies._pg.statements import load
from horsies.operate.filters import TaskFilter
from horsies.operate.views import RetryResult
from tests.support import factories, invariants, workflow_app
from tests.support.apps import async_app_on, make_app
from tests.support.engine import Engine
from tests.support.operator import Operator
from tests.support.postgres import Database
from tests.support.roles import accounts

pytestmark = pytest.mark.shared_database

NAMES = ("work", "judge", "number", "spread", "square")
BROKEN = "BROKEN"


class Broken:
    """Answers for tasks: `work` and `judge` return n and what they are given; those in `nodes`, by n, fail."""

    def __init__(self, *numbers: int) -> None:
        self.numbers = set(numbers)

    def __call__(self, name: str, given: Any) -> Any:
        if name == "spread":
            return list(range(given["n"]))
        number = given.get("n", given.get("x"))
        if number in self.numbers:
            return TaskError(BROKEN, "as the test wanted")
        if name == "judge":
            assert "RESULT_NOT_READY" not in json.dumps(given["r"])
            return number + given["r"].get("ok", 1000)
        return number + given.get("a", 0)


@pytest.fixture
async def t(db: Database) -> AsyncIterator[SimpleNamespace]:
    async with make_app(db) as app:
        tasks = workflow_app.register(app)
        tasks.app = app
        yield tasks


async def states(handle: WorkflowHandle[Any]) -> dict[str, str]:
    return {node.node_id: node.status.value for node in await handle.tasks_async()}


async def values(handle: WorkflowHandle[Any]) -> dict[str, Any]:
    return {name: result.ok for name, result in (await handle.results_async()).items()}


def work(t: SimpleNamespace, number: int, **options: Any) -> TaskNode[Any]:
    return TaskNode(t.work, kwargs={"n": number, **options.pop("kwargs", {})}, node_id=f"n{number}", **options)


def judge(t: SimpleNamespace, number: int, source: Any, **options: Any) -> TaskNode[Any]:
    sources = {"r": source}
    return TaskNode(t.judge, kwargs={"n": number}, args_from=sources, node_id=f"n{number}", **options)


async def run_until(engine: Engine, broken: Broken, handle: WorkflowHandle[Any], status: WorkflowStatus) -> None:
    await engine.recover()
    await engine.drain(broken)
    assert await handle.status_async() is status


# -- what depends on a node that is retried -------------------------------------------------------


async def test_ready_dependents_wait_for_the_new_end(t: SimpleNamespace, db: Database) -> None:
    """A run that paused on error: nodes with allow_failed_deps are READY there, and must not run beside the retry."""
    one = work(t, 1)
    taker = judge(t, 2, one, allow_failed_deps=True)
    bare = work(t, 3, args_from={"a": one}, allow_failed_deps=True)
    skipped = work(t, 4, waits_for=[one])
    behind = judge(t, 5, skipped, allow_failed_deps=True)
    handle = await t.app.workflow("w", [one, taker, bare, skipped, behind], on_error="pause").start_async()
    async with Engine.on(db, NAMES) as engine:
        await run_until(engine, Broken(1), handle, WorkflowStatus.PAUSED)
        assert await states(handle) == {"n1": "FAILED", "n2": "READY", "n3": "READY", "n4": "SKIPPED", "n5": "READY"}
        assert await handle.retry_async("n1")
        await engine.recover()
        (row,) = await engine.claim()
        assert json.loads(row["kwargs"])["n"] == 1
        assert {state for name, state in (await states(handle)).items() if name != "n1"} == {"PENDING"}
        engine.advancers[0].tasks_ended(await engine.end([row], Broken()))
        await run_until(engine, Broken(), handle, WorkflowStatus.COMPLETED)
    assert await values(handle) == {"n1": 1, "n2": 3, "n3": 4, "n4": 4, "n5": 9}
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


@pytest.mark.parametrize("is_claimed", [False, True])
async def test_enqueued_dependents_are_taken_back(t: SimpleNamespace, db: Database, is_claimed: bool) -> None:
    one = work(t, 1)
    handle = await t.app.workflow("w", [one, judge(t, 2, one, allow_failed_deps=True)]).start_async()
    async with Engine.on(db, NAMES) as engine:
        rows = await engine.claim()
        engine.advancers[0].tasks_ended(await engine.end(rows, Broken(1)))
        await engine.advance()
        held = await engine.hands.claim(1, sync_names=NAMES, room_sync=0, prefetch=1) if is_claimed else []
        former = db.value("SELECT task_id FROM horsies_workflow_tasks WHERE node_id = 'n2'")
        assert await handle.retry_async("n1")
        assert await engine.hands.start(held) == {}
        assert (await states(handle))["n2"] == "PENDING"
        assert factories.read(db, former)["status"] == "CANCELLED"
        await run_until(engine, Broken(), handle, WorkflowStatus.COMPLETED)
    assert await values(handle) == {"n1": 1, "n2": 3}
    assert not await t.app.get_broker().retry(former)
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


async def test_a_withdrawn_dependent_is_taken_back(t: SimpleNamespace, db: Database) -> None:
    """Paused, resumed, and paused again by another failure: the dependent's task waits, withdrawn."""
    one = work(t, 1)
    two = work(t, 2, waits_for=[three := work(t, 3)])
    handle = await t.app.workflow(
        "w", [one, three, two, judge(t, 4, one, allow_failed_deps=True)], on_error="pause"
    ).start_async()
    async with Engine.on(db, NAMES) as engine:
        rows = await engine.claim()
        broken = Broken(1, 3)
        engine.advancers[0].tasks_ended(await engine.end([row for row in rows if '"n":1' in row["kwargs"]], broken))
        await engine.advance()
        assert await handle.resume_async()
        await engine.recover()
        engine.advancers[0].tasks_ended(await engine.end([row for row in rows if '"n":3' in row["kwargs"]], broken))
        await engine.advance()
        assert await handle.status_async() is WorkflowStatus.PAUSED
        assert (await states(handle))["n4"] == "ENQUEUED"
        assert await handle.retry_async("n1")
        await run_until(engine, Broken(), handle, WorkflowStatus.FAILED)
        assert await values(handle) == {"n1": 1, "n2": None, "n3": None, "n4": 5}
        assert await handle.retry_async()
        await run_until(engine, Broken(), handle, WorkflowStatus.COMPLETED)
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


@pytest.mark.breaks("W5")
async def test_a_dependent_that_runs_ends_with_what_it_was_given(t: SimpleNamespace, db: Database) -> None:
    one = work(t, 1)
    two = judge(t, 2, one, allow_failed_deps=True)
    handle = await t.app.workflow("w", [one, two, judge(t, 3, two)]).start_async()
    async with Engine.on(db, NAMES) as engine:
        rows = await engine.claim()
        engine.advancers[0].tasks_ended(await engine.end(rows, Broken(1)))
        await engine.advance()
        (row,) = await engine.claim()
        assert await handle.retry_async("n1")
        engine.advancers[0].tasks_ended(await engine.end([row], Broken()))
        await run_until(engine, Broken(), handle, WorkflowStatus.COMPLETED)
    assert await values(handle) == {"n1": 1, "n2": 1002, "n3": 1005}


async def test_joins_that_are_met_already_do_not_wait(t: SimpleNamespace, db: Database) -> None:
    one, two = work(t, 1), work(t, 2)
    either = work(t, 3, waits_for=[one, two], join="any")
    both = work(t, 4, waits_for=[one, two], join="quorum", min_success=2)
    handle = await t.app.workflow("w", [one, two, either, both], on_error="pause").start_async()
    async with Engine.on(db, NAMES) as engine:
        await run_until(engine, Broken(1), handle, WorkflowStatus.PAUSED)
        assert await states(handle) == {"n1": "FAILED", "n2": "COMPLETED", "n3": "READY", "n4": "SKIPPED"}
        assert await handle.retry_async("n1")
        await engine.recover()
        assert await states(handle) == {"n1": "ENQUEUED", "n2": "COMPLETED", "n3": "ENQUEUED", "n4": "PENDING"}
        await run_until(engine, Broken(), handle, WorkflowStatus.COMPLETED)
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


async def test_retry_of_a_paused_run_is_for_all_that_failed(t: SimpleNamespace, db: Database) -> None:
    one, two = work(t, 1), work(t, 2)
    spec = t.app.workflow("w", [one, two, judge(t, 3, one, allow_failed_deps=True)], on_error="pause")
    handle, by_hand = await spec.start_async(), await spec.start_async()
    assert await by_hand.pause_async()
    assert not await by_hand.retry_async()  # nothing failed there
    async with Engine.on(db, NAMES) as engine:
        rows = await engine.claim()
        engine.advancers[0].tasks_ended(await engine.end(rows, Broken(1, 2)))
        await run_until(engine, Broken(), handle, WorkflowStatus.PAUSED)
        assert await handle.retry_async()
        await run_until(engine, Broken(), handle, WorkflowStatus.COMPLETED)
        assert await values(handle) == {"n1": 1, "n2": 2, "n3": 4}
        assert not await handle.retry_async()
        assert await by_hand.status_async() is WorkflowStatus.PAUSED
        assert await by_hand.cancel_async()
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


def inner_taking(t: SimpleNamespace, on_error: str = "fail") -> type[WorkflowDefinition[int]]:
    class Inner(WorkflowDefinition[int], app=t.app, name=f"inner-{uuid.uuid4()}"):
        @classmethod
        def build_with(cls, given: Any) -> WorkflowSpec[int]:
            first = work(t, 11)
            taker = TaskNode(t.judge, kwargs={"n": 12, "r": given}, node_id="n12", waits_for=[first])
            return cls.workflow([first, taker], output=taker, on_error=on_error)  # type: ignore[arg-type]

    return Inner


async def test_a_workflow_inside_waits_for_the_retried_source(t: SimpleNamespace, db: Database) -> None:
    """Its node has allow_failed_deps, began with the failure, and failed as well: the retry of the run must not let it
    go on before the source has ended again, for a node in there takes the source's end."""
    one = work(t, 1)
    sub = inner_taking(t).build_with(result_from(one)).node(node_id="sub", allow_failed_deps=True)  # type: ignore[attr-defined]
    handle = await t.app.workflow("outer", [one, sub], output=sub).start_async()
    async with Engine.on(db, NAMES) as engine:
        await run_until(engine, Broken(1, 11), handle, WorkflowStatus.FAILED)
        assert await states(handle) == {"n1": "FAILED", "sub": "FAILED"}
        assert await handle.retry_async()
        assert await states(handle) == {"n1": "PENDING", "sub": "PENDING"}
        await engine.recover()
        rows = await engine.claim()
        assert [json.loads(row["kwargs"])["n"] for row in rows] == [1]
        engine.advancers[0].tasks_ended(await engine.end(rows, Broken()))
        await run_until(engine, Broken(), handle, WorkflowStatus.COMPLETED)
        assert (await handle.get_async(1_000)).ok == 13
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


@pytest.mark.breaks("W5")
async def test_a_source_is_not_retried_under_a_workflow_that_still_takes_it(t: SimpleNamespace, db: Database) -> None:
    one = work(t, 1)
    sub = inner_taking(t).build_with(result_from(one)).node(node_id="sub", allow_failed_deps=True)  # type: ignore[attr-defined]
    handle = await t.app.workflow("outer", [one, sub], output=sub).start_async()
    async with Engine.on(db, NAMES) as engine:
        rows = await engine.claim()
        engine.advancers[0].tasks_ended(await engine.end(rows, Broken(1)))
        await engine.advance()
        with pytest.raises(UsageError, match="the workflow in node 'sub' has begun with its failure, and 'n12'"):
            await handle.retry_async("n1")
        await run_until(engine, Broken(), handle, WorkflowStatus.FAILED)
        assert await handle.retry_async("n1")
        await run_until(engine, Broken(), handle, WorkflowStatus.COMPLETED)


async def test_retry_and_cancel_of_runs_that_wait_for_their_node(t: SimpleNamespace, db: Database) -> None:
    one = work(t, 1)
    inner = t.app.workflow("inner", [work(t, 11), work(t, 12, waits_for=[])])
    sub = inner.node(node_id="sub", waits_for=[one], allow_failed_deps=True)
    handle = await t.app.workflow("outer", [one, sub]).start_async()
    async with Engine.on(db, NAMES) as engine:
        await run_until(engine, Broken(1, 11), handle, WorkflowStatus.FAILED)
        assert await handle.retry_async()
        child = db.value("SELECT id FROM horsies_workflows WHERE depth = 1")
        assert db.value("SELECT status FROM horsies_workflows WHERE depth = 1") == "PENDING"
        assert await handle.cancel_async()
        assert db.value("SELECT status FROM horsies_workflows WHERE depth = 1") == "CANCELLED"
        with pytest.raises(UsageError, match=f"workflow {child} is a part of workflow {handle.workflow_id}"):
            await t.app.get_broker().workflows.retry(child)
        assert await handle.retry_async()
        await run_until(engine, Broken(), handle, WorkflowStatus.COMPLETED)
        assert db.value("SELECT count(*) FROM horsies_workflows") == 2  # it is the same one
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


# -- tasks that a retry leaves behind -------------------------------------------------------------


async def test_the_task_before_the_retry_is_not_run_again(t: SimpleNamespace, db: Database) -> None:
    broker = t.app.get_broker()
    handle = await t.app.workflow("w", [work(t, 1)]).start_async()
    plain = factories.task(db, "FAILED", error_code=BROKEN)
    async with Engine.on(db, NAMES) as engine:
        await run_until(engine, Broken(1), handle, WorkflowStatus.FAILED)
        former = db.value("SELECT task_id FROM horsies_workflow_tasks")
        assert await broker.retry_tasks([former]) == {former: RetryResult.IN_WORKFLOW}
        assert await handle.retry_async()
        assert "will have another one" in ((await broker.get_task_states([former]))[former].why_not_alone or "")
        await run_until(engine, Broken(), handle, WorkflowStatus.COMPLETED)
        current = db.value("SELECT task_id FROM horsies_workflow_tasks")
        assert current != former
        assert not await broker.retry(former)
        assert await broker.retry_tasks([former, plain]) == {
            former: RetryResult.REPLACED, plain: RetryResult.RETRIED,
        }  # fmt: skip
        told = (await broker.get_task_states([former]))[former].why_not_alone
        assert told == (
            f"it belongs to a workflow, as a former task of node 'n1' of workflow {handle.workflow_id}: that node has "
            f"task {current} since it was retried; the workflow is COMPLETED, start a new run to repeat it"
        )
        in_workflow = [one.id for one in (await broker.list_tasks(TaskFilter(in_workflow=True))).tasks]
        assert set(in_workflow) == {former, current}
        assert await engine.claim() == []
    assert factories.read(db, former)["status"] == "FAILED"
    assert await broker.purge_tasks(TaskFilter(ids=[former])) == 1  # it is history, and may go


async def test_the_command_line_leaves_such_tasks_alone(t: SimpleNamespace, db: Database, operator: Operator) -> None:
    one = work(t, 1)
    inner = t.app.workflow("inner", [one]).node(node_id="sub")
    handle = await t.app.workflow("w", [inner]).start_async()
    async with Engine.on(db, NAMES) as engine:
        await run_until(engine, Broken(1), handle, WorkflowStatus.FAILED)
        former = db.value("SELECT task_id FROM horsies_workflow_tasks WHERE node_id = 'n1'")
        ran = await asyncio.to_thread(operator, "tasks", "retry", former)
        assert f"`horsies workflows retry {handle.workflow_id}` runs again what failed in it" in ran.err
        assert await handle.retry_async()
        await run_until(engine, Broken(1), handle, WorkflowStatus.FAILED)  # it failed again, with another task
        ran = await asyncio.to_thread(operator, "tasks", "retry", "--error-code", BROKEN, "--yes")
        assert (ran.code, ran.out) == (1, "no task matches\n")
        told = f"1 task of workflows left alone; to run them again: `horsies workflows retry {handle.workflow_id}`"
        assert ran.err == f"horsies: {told}\n"
        ran = await asyncio.to_thread(operator, "tasks", "retry", former, "--dry-run")
        assert f"task {former} would not be retried: it belongs to a workflow, as a former task of node 'n1'" in ran.err
        assert f"`horsies workflows retry {handle.workflow_id}` runs again what failed in it" in ran.err
        ran = await asyncio.to_thread(operator, "tasks", "show", former)
        assert "as a former task of node 'n1'" in ran.out
        assert (await asyncio.to_thread(operator, "tasks", "cancel", former)).code == 1
    assert factories.read(db, former)["status"] == "FAILED"


# -- a pause inside -------------------------------------------------------------------------------


async def paused_inside(t: SimpleNamespace, engine: Engine, *, levels: int = 1) -> WorkflowHandle[Any]:
    """A run whose innermost workflow has paused because n1 failed; n9 comes after the workflow inside."""
    spec = t.app.workflow(
        "inner", [one := work(t, 1), two := work(t, 2, waits_for=[one])], output=two, on_error="pause"
    )
    for level in range(levels):
        sub = spec.node(node_id=f"sub{level}")
        after = judge(t, 9, sub) if level == levels - 1 else None
        nodes = [sub] if after is None else [sub, after]
        spec = t.app.workflow(f"outer{level}", nodes, output=nodes[-1])
    handle = await spec.start_async()
    await engine.advance()
    await engine.recover()
    await run_until(engine, Broken(1), handle, WorkflowStatus.PAUSED)
    return handle


@pytest.mark.parametrize("levels", [1, 3])
@pytest.mark.parametrize("node", [None, "top"])
async def test_a_pause_inside_is_seen_and_retried_from_outside(
    t: SimpleNamespace, db: Database, levels: int, node: str | None
) -> None:
    async with Engine.on(db, NAMES) as engine:
        handle = await paused_inside(t, engine, levels=levels)
        (paused,) = await handle.paused_async()
        path = [f"sub{level}" for level in reversed(range(levels))]
        assert (list(paused.path), paused.failed) == (path, (("n1", BROKEN),))
        error = json.loads(db.value("SELECT error FROM horsies_workflows WHERE depth = 0"))["err"]
        assert error["error_code"] == "WORKFLOW_PAUSED"
        assert f"node '{path[0]}'" in error["message"]
        assert "a node failed: n1: BROKEN: as the test wanted" in error["message"]
        assert "which is PAUSED" in await handle.diagram_async()
        assert await handle.retry_async(node if node is None else path[0])
        await engine.advance()
        assert await handle.status_async() is WorkflowStatus.RUNNING
        await run_until(engine, Broken(), handle, WorkflowStatus.COMPLETED)
        assert (await handle.get_async(1_000)).ok == 11
        assert not await handle.paused_async()
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


async def test_a_pause_inside_ends_by_the_other_verbs(t: SimpleNamespace, db: Database) -> None:
    control = t.app.get_broker().workflows

    async def child_of(handle: WorkflowHandle[Any]) -> str:
        (paused,) = await handle.paused_async()
        return paused.id

    async with Engine.on(db, NAMES) as engine:
        handle = await paused_inside(t, engine)
        assert await handle.resume_async()  # goes on without n1
        await run_until(engine, Broken(), handle, WorkflowStatus.FAILED)

        handle = await paused_inside(t, engine)
        assert await control.resume(await child_of(handle))
        assert await handle.status_async() is WorkflowStatus.RUNNING
        await run_until(engine, Broken(), handle, WorkflowStatus.FAILED)
        assert await handle.retry_async()
        await run_until(engine, Broken(), handle, WorkflowStatus.COMPLETED)

        handle = await paused_inside(t, engine)
        assert await control.retry(await child_of(handle), "n1")
        await run_until(engine, Broken(), handle, WorkflowStatus.COMPLETED)

        handle = await paused_inside(t, engine)
        assert await control.cancel(await child_of(handle))
        await engine.recover()
        await run_until(engine, Broken(), handle, WorkflowStatus.FAILED)

        handle = await paused_inside(t, engine)
        assert await handle.cancel_async()
        assert await handle.status_async() is WorkflowStatus.CANCELLED

        handle = await paused_inside(t, engine)
        assert await handle.pause_async()  # for itself, from now on
        child = db.value("SELECT id FROM horsies_workflows WHERE parent_workflow_id = %s", handle.workflow_id)
        assert await control.retry(child)
        await run_until(engine, Broken(), handle, WorkflowStatus.PAUSED)
        assert (await states(handle))["sub0"] == "COMPLETED"
        assert await handle.resume_async()
        await run_until(engine, Broken(), handle, WorkflowStatus.COMPLETED)
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


async def test_what_does_not_depend_on_the_paused_workflow_goes_on(t: SimpleNamespace, db: Database) -> None:
    inner = t.app.workflow("inner", [work(t, 1)], on_error="pause")
    sub = inner.node(node_id="sub")
    other = work(t, 3, waits_for=[work_2 := work(t, 2)])
    handle = await t.app.workflow("outer", [sub, work_2, other, work(t, 9, waits_for=[sub])]).start_async()
    async with Engine.on(db, NAMES) as engine:
        await engine.recover()
        rows = await engine.claim()
        engine.advancers[0].tasks_ended(await engine.end([row for row in rows if '"n":1' in row["kwargs"]], Broken(1)))
        await engine.advance()
        assert await handle.status_async() is WorkflowStatus.RUNNING
        assert [one.path for one in await handle.paused_async()] == [("sub",)]
        engine.advancers[0].tasks_ended(await engine.end([row for row in rows if '"n":2' in row["kwargs"]], Broken()))
        await run_until(engine, Broken(), handle, WorkflowStatus.PAUSED)
        assert await states(handle) == {"sub": "RUNNING", "n2": "COMPLETED", "n3": "COMPLETED", "n9": "PENDING"}
        assert await handle.retry_async()
        await run_until(engine, Broken(), handle, WorkflowStatus.COMPLETED)
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


async def test_a_workflow_that_is_paused_along_says_so(t: SimpleNamespace, db: Database) -> None:
    control = t.app.get_broker().workflows
    inner = t.app.workflow("inner", [work(t, 1)])
    handle = await t.app.workflow("outer", [inner.node(node_id="sub")]).start_async()
    async with Engine.on(db, NAMES) as engine:
        await engine.recover()
        assert await handle.pause_async()
        outer, sub = await handle.paused_async()
        assert (outer.is_paused_along, sub.is_paused_along) == (False, True)
        assert f"{outer}" == "this run is paused: by request"
        assert f"{sub}" == f"the workflow in sub ({sub.id}) is paused along with the run around it"
        (alone,) = await control.paused(sub.id)
        assert f"{alone}" == "this run is paused along with the run around it"

        with accounts(db) as roles:
            async with async_app_on(roles["viewer"].url) as viewer:
                _, seen = await viewer.get_broker().workflows.paused(handle.workflow_id)
        assert seen.is_paused_along is None
        assert f"{seen}".endswith("is paused: by request, or along with the run around it")

        assert await control.pause(sub.id)  # for itself, from now on
        assert [one.is_paused_along for one in await handle.paused_async()] == [False, False]


async def test_a_retry_of_a_node_that_is_not_there_is_refused(t: SimpleNamespace, db: Database) -> None:
    handle = await t.app.workflow("alone", [work(t, 1)]).start_async()
    with pytest.raises(UsageError, match=rf"workflow {handle.workflow_id} has no node 'n11'; did you mean 'n1'\?"):
        await handle.retry_async("n11")
    assert await handle.retry_async("n1") is False  # it has not failed
    async with Engine.on(db, NAMES) as engine:
        await run_until(engine, Broken(), handle, WorkflowStatus.COMPLETED)
        with pytest.raises(UsageError, match="has no node 'nope'"):
            await handle.retry_async("nope")


async def test_the_command_line_shows_where_a_run_is_paused(
    t: SimpleNamespace, db: Database, operator: Operator
) -> None:
    async with Engine.on(db, NAMES) as engine:
        handle = await paused_inside(t, engine)
        ran = await asyncio.to_thread(operator, "workflows", "show", handle.workflow_id)
        (paused,) = await handle.paused_async()
        assert f"the workflow in sub0 ({paused.id}) is paused: n1 failed (BROKEN)" in ran.out
        assert f"`horsies workflows retry {handle.workflow_id}`" in ran.out
        shown = (await asyncio.to_thread(operator, "workflows", "show", handle.workflow_id, "--json")).json
        assert [one["path"] for one in shown["paused"]] == [["sub0"]]
        ran = await asyncio.to_thread(operator, "workflows", "retry", handle.workflow_id, "--node", "sub0")
        assert ran.code == 0
        await run_until(engine, Broken(), handle, WorkflowStatus.COMPLETED)


async def test_a_lost_hint_of_a_pause_inside_is_recovered(t: SimpleNamespace, db: Database) -> None:
    inner = t.app.workflow("inner", [work(t, 1)], on_error="pause")
    handle = await t.app.workflow("outer", [inner.node(node_id="sub")]).start_async()
    async with Engine.on(db, NAMES) as engine:
        await engine.recover()
        engine.advancers[0].tasks_ended(await engine.end(await engine.claim(), Broken(1)))
        await engine.advancers[0].run_once()  # the child's step; what follows from it is forgotten
        engine.forget(0)
        assert await handle.status_async() is WorkflowStatus.RUNNING
        assert await engine.recover() == 1
        assert await handle.status_async() is WorkflowStatus.PAUSED
        assert await engine.recover() == 0


# -- cost -----------------------------------------------------------------------------------------


def fill(db: Database, workflow_id: str, width: int, status: str, states: tuple[str, str]) -> None:
    """A run of so many nodes, every second one in the second state, each with its task."""
    ended = "statement_timestamp()" if status == "FAILED" else "NULL"
    db.execute(
        "INSERT INTO horsies_workflows (id, name, status, completed_at, nodes_left, definition_key)"
        f" VALUES (%s, 'wide', %s, {ended}, 0, 'map')", workflow_id, status,
    )  # fmt: skip
    db.execute(
        "INSERT INTO horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, status, task_id)"
        " SELECT left(%s, 8) || 'n' || i, %s, i, 'item-' || i, 'square', (%s::text[])[1 + i %% 2],"
        "        left(%s, 8) || 't' || i FROM generate_series(0, %s - 1) AS i",
        workflow_id, workflow_id, list(states), workflow_id, width,
    )  # fmt: skip
    db.execute(
        "INSERT INTO horsies_tasks (id, task_name, status, is_workflow_task, result, error_code, failed_at,"
        " completed_at, terminal_at) SELECT n.task_id, n.task_name,"
        " CASE n.status WHEN 'ENQUEUED' THEN 'PENDING' ELSE n.status END, true,"
        " CASE n.status WHEN 'FAILED' THEN '{\"err\":null}' WHEN 'COMPLETED' THEN '{\"ok\":1}' END,"
        " CASE WHEN n.status = 'FAILED' THEN 'X' END, CASE WHEN n.status = 'FAILED' THEN now() END,"
        " CASE WHEN n.status = 'COMPLETED' THEN now() END,"
        " CASE WHEN n.status IN ('FAILED', 'COMPLETED') THEN now() END"
        " FROM horsies_workflow_tasks n WHERE n.workflow_id = %s",
        workflow_id,
    )


def effort(plan: dict[str, Any]) -> float:
    """Rows that were looked at by all parts of a plan, and pages."""
    rows = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Join Filter", 0)
    rows += plan.get("Rows Removed by Index Recheck", 0)
    return rows * plan["Actual Loops"] + sum(effort(part) for part in plan.get("Plans", ()))


VERBS: dict[str, tuple[str, tuple[str, str], Callable[[str], str]]] = {
    "recount_workflows": ("FAILED", ("COMPLETED", "PENDING"), lambda one: f"ARRAY['{one}']"),
    "retry_nodes": ("FAILED", ("COMPLETED", "FAILED"), lambda one: f"ARRAY['{one}'], NULL"),
    "take_back_nodes": ("RUNNING", ("ENQUEUED", "FAILED"), lambda one: f"ARRAY['{one}'], '{{}}'"),
    "pause_workflows": ("RUNNING", ("COMPLETED", "ENQUEUED"), lambda one: f"ARRAY['{one}'], NULL"),
    "stop_workflows": (
        "RUNNING", ("PENDING", "ENQUEUED"),
        lambda one: f"ARRAY['{one}'], 'CANCELLED', '{{}}', '{{}}', '{{}}', '{{}}', 'cancelled', true",
    ),
}  # fmt: skip


@pytest.mark.parametrize("analyzed", ["never", "before", "after"])
async def test_the_verbs_are_linear_in_the_nodes(db: Database, analyzed: str) -> None:
    """For any statistics: of empty tables, of a table of many small runs, or of what is there."""
    statements = load("horsies._pg", "workflows.sql", None)
    found: dict[str, list[float]] = {}
    connection = await asyncpg.connect(db.url)
    try:
        for at in range(50):  # many small runs, as they are common
            fill(db, str(uuid.uuid4()), 10, "RUNNING", ("ENQUEUED", "COMPLETED"))
            if at == 25 and analyzed == "before":
                db.execute("ANALYZE")
        for width in (1_000, 4_000):
            for name, (status, nodes, values) in VERBS.items():
                workflow_id = str(uuid.uuid4())
                fill(db, workflow_id, width, status, nodes)
                if analyzed == "after":
                    db.execute("ANALYZE horsies_workflow_tasks")
                await connection.execute(f"PREPARE x AS {statements[name].sql}")
                await connection.execute("BEGIN")
                (plan,) = json.loads(
                    await connection.fetchval(f"EXPLAIN (ANALYZE, FORMAT JSON) EXECUTE x ({values(workflow_id)})")
                )
                await connection.execute("ROLLBACK")
                await connection.execute("DEALLOCATE x")
                found.setdefault(name, []).append(effort(plan["Plan"]))
    finally:
        await connection.close()
        db.execute(
            "TRUNCATE horsies_tasks, horsies_workflow_signals, horsies_workflows, horsies_workflow_tasks CASCADE"
        )
    assert {name: few for name, few in found.items() if few[1] > 9 * few[0]} == {}  # quadratic: 16
