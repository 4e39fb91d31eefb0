"""Runs that stop, or that nothing moves on: bad rows, ends that no worker writes, policies over many nodes."""

import asyncio
import json
import logging
import random
from collections.abc import AsyncIterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from horsies import RecoveryConfig, SuccessCase, SuccessPolicy, TaskError, WorkflowStatus, from_node
from horsies.events import WorkflowEnded
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.events.bus import EventBus
from horsies_worker.identity import Identity
from horsies_worker.liveness.reaper import Reaper
from horsies_worker.liveness.recovery import Recovery
from horsies_worker.workflows.step import give_up
from tests.support import factories, invariants, workflow_app
from tests.support.apps import make_app
from tests.support.engine import Engine
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

NAMES = ("number", "plus", "fail", "spread", "square")


def answer(name: str, given: Any) -> Any:
    match name:
        case "fail":
            return TaskError("BROKEN", "as the test wanted")
        case "plus":
            return given["a"] + given["b"]
        case "spread":
            return list(range(given["n"]))
        case "square":
            return given["x"] ** 2
        case _:
            return given["n"]


@pytest.fixture
async def t(db: Database) -> AsyncIterator[SimpleNamespace]:
    async with make_app(db) as app:
        tasks = workflow_app.register(app)
        tasks.app = app
        yield tasks


# -- policies -------------------------------------------------------------------------------------


@pytest.mark.parametrize("met", [True, False])
async def test_a_policy_counts_however_many_nodes_failed(t: SimpleNamespace, db: Database, met: bool) -> None:
    """1,100 failed nodes stand before the ones that the policy names."""
    failing = [t.fail.node(node_id=f"f{n}")() for n in range(1_100)]
    first = t.number.node(node_id="first")(1)
    last = t.number.node(node_id="last", waits_for=[first])(2)
    policy = SuccessPolicy([SuccessCase([first, last] if met else [last, failing[-1]])])
    spec = t.app.workflow("many", [*failing, first, last], success_policy=policy, output=last)
    handle = await spec.start_async()
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(answer)
    result = await handle.get_async(1_000)
    if met:
        assert (await handle.status_async(), result.ok) == (WorkflowStatus.COMPLETED, 2)
    else:
        assert result.err_value.error_code == "WORKFLOW_SUCCESS_CASE_NOT_MET"
        assert "f0" in result.err_value.message
        assert "BROKEN" in result.err_value.message
        assert "and 1099 more" in result.err_value.message
        assert len(result.err_value.data["failed"]) == 100


# -- rows that make no sense ----------------------------------------------------------------------

POLICIES = (
    "5", "null", "[]", "{}", '"cases"', '{"cases": null}', '{"cases": 5}', '{"cases": [5]}', '{"cases": [["x"]]}',
    '{"cases": [[1.5]]}', '{"cases": [[-1]]}', '{"cases": [[99999999999]]}', '{"cases": [[true]]}',
    '{"cases": {"a": 1}}',
)  # fmt: skip


def failures_in(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """What the worker told of runs that it ended, each on one line."""
    told = [record for record in caplog.records if " ends FAILED: " in record.getMessage()]
    assert all(record.exc_info is None and "\n" not in record.getMessage() for record in told)
    return told


async def test_a_run_with_a_malformed_policy_fails_and_says_so(
    t: SimpleNamespace, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    handles = []
    for text in POLICIES:
        one = t.number.node(node_id="one")(1)
        inner = t.app.workflow("inner", [one], success_policy=SuccessPolicy([SuccessCase([one])]))
        handle = await inner.start_async()
        db.execute("UPDATE horsies_workflows SET success_policy = %s::jsonb WHERE id = %s", text, handle.workflow_id)
        handles.append(handle)
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(answer)
        assert await engine.recover() == 0
        for text, handle in zip(POLICIES, handles, strict=True):
            error = (await handle.get_async(1_000)).err_value
            assert error.error_code == "WORKFLOW_FAILED", text
            assert "success_policy" in (error.message or "")
            assert [node.status for node in await handle.tasks_async()] == ["COMPLETED"]
            (told,) = [one for one in failures_in(caplog) if handle.workflow_id in one.getMessage()]
            assert "success_policy" in told.getMessage()
        db.execute("UPDATE horsies_workflows SET success_policy = NULL")
        assert await handles[0].retry_async()  # the rows were corrected
        await engine.recover()
        await engine.drain(answer)
        assert await handles[0].status_async() is WorkflowStatus.COMPLETED
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


async def test_a_step_that_fails_for_its_own_data_ends_the_run(
    t: SimpleNamespace, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """Here the last step cannot put the result of a map together; the runs beside and around it are not held up."""
    items = t.spread.node(node_id="items")(3)
    squares = t.square.node(node_id="squares").map(items_from=items)
    after = t.number.node(node_id="after", waits_for=[squares])(1)
    bad = await t.app.workflow("bad", [items, squares, after]).start_async()
    good = await t.app.workflow("good", [t.number.node()(1)]).start_async()
    async with Engine.on(db, NAMES) as engine:
        rows = await engine.claim()
        for advancer in engine.advancers:
            advancer.tasks_ended(await engine.end(rows, answer))
        await engine.advance()
        await engine.recover()
        rows = await engine.claim()
        ended = await engine.end(rows, answer)
        db.execute("UPDATE horsies_tasks SET result = '{\"nothing\":' WHERE id = %s", rows[0]["id"])
        engine.advancers[0].tasks_ended(ended)
        await engine.advance()
        await engine.drain(answer)
        assert await engine.recover() == 0
    error = (await bad.get_async(1_000)).err_value
    assert error.error_code == "WORKFLOW_FAILED"
    assert {node.node_id: node.status.value for node in await bad.tasks_async()} == {
        "items": "COMPLETED", "squares": "FAILED", "after": "SKIPPED",
    }  # fmt: skip
    message = db.value("SELECT error FROM horsies_workflows WHERE depth = 1")
    assert "its rows cannot be processed" in json.loads(message)["err"]["message"]
    assert len(failures_in(caplog)) == 1
    assert await good.status_async() is WorkflowStatus.COMPLETED
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


async def test_a_run_that_cannot_go_on_ends_with_what_is_inside_it(t: SimpleNamespace, db: Database) -> None:
    inner = t.app.workflow("inner", [t.number.node(node_id=f"i{n}")(n) for n in range(3)])
    sub = inner.node(node_id="sub")
    one, two = t.number.node(node_id="one")(1), t.number.node(node_id="two")(2)
    handle = await t.app.workflow("outer", [sub, one, two, t.number.node(waits_for=[sub])(9)]).start_async()
    async with Engine.on(db, NAMES) as engine:
        await engine.recover()
        held = await engine.claim(2)
        session = Session(t.app.config.broker, "gives up", Queries(None, Identity()))
        bus, told = EventBus(), list[WorkflowEnded]()
        bus.subscribe(WorkflowEnded, told.append)
        following = await session.run(lambda c: give_up(session, c, handle.workflow_id, "as the test wanted", bus))
        assert [(event.name, event.status) for event in told] == [("outer", "FAILED"), ("inner", "CANCELLED")]
        await session.close()
        assert following.keys() == {handle.workflow_id}
        assert (await handle.get_async(1_000)).err_value.message == "as the test wanted"
        asked = db.execute("SELECT id FROM horsies_tasks WHERE cancel_requested_at IS NOT NULL AND status = 'RUNNING'")
        assert {row[0] for row in asked} == {row["id"] for row in held}
        await engine.end(held, answer)
        await engine.recover()
        assert await engine.claim() == []
        assert db.value("SELECT status FROM horsies_workflows WHERE depth = 1") == "CANCELLED"
        assert invariants.check(db, slack_s=0, wf_grace_s=0) == []
        assert await handle.retry_async()
        await engine.recover()
        await engine.drain(answer)
        assert await handle.status_async() is WorkflowStatus.COMPLETED


async def test_a_run_of_which_nothing_is_under_way_is_counted_anew(t: SimpleNamespace, db: Database) -> None:
    one = t.number.node(node_id="one")(1)
    nodes = [one, t.plus.node(node_id="two")(from_node(one), 1), t.number.node(node_id="three", waits_for=[one])(3)]
    handle = await t.app.workflow("w", nodes).start_async()
    db.execute("UPDATE horsies_workflow_tasks SET deps_left = 2, deps_ok = -1 WHERE deps_left = 1")
    async with Engine.on(db, NAMES) as engine:
        engine.advancers[0].tasks_ended(await engine.end(await engine.claim(), answer))
        await engine.advance()
        rows = await engine.claim()
        assert len(rows) == 2
        engine.advancers[0].tasks_ended(await engine.end(rows, answer))
        await engine.drain(answer)
    assert await handle.status_async() is WorkflowStatus.COMPLETED
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


@pytest.mark.breaks("W7")
async def test_a_run_in_which_nothing_can_run_ends(
    t: SimpleNamespace, db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    one = t.number.node(node_id="one")(1)
    two = t.number.node(node_id="two", waits_for=[one])(2)
    handle = await t.app.workflow("w", [one, two]).start_async()
    db.execute("UPDATE horsies_workflow_tasks SET dependencies = '{0,77}', deps_left = 2 WHERE node_id = 'two'")
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(answer)
        assert await engine.recover() == 0
    assert "none of the 1 that wait can ever run" in ((await handle.get_async(1_000)).err_value.message or "")
    assert [node.status for node in await handle.tasks_async()] == ["COMPLETED", "SKIPPED"]
    (told,) = failures_in(caplog)
    assert f"workflow {handle.workflow_id} ends FAILED: " in told.getMessage()
    assert "names node number 77, which does not exist" in told.getMessage()


async def test_recovery_goes_on_behind_runs_that_it_cannot_help(t: SimpleNamespace, db: Database) -> None:
    """Each look takes the longest untouched ones, which then stand behind the others."""
    runs = {(await t.app.workflow("w", [t.number.node()(1)]).start_async()).workflow_id for _ in range(5)}
    async with Engine.on(db, NAMES) as engine:
        await engine.end(await engine.claim(), answer)  # without telling the runs
        sql = engine.hands.queries.sql("unadvanced_workflows")
        seen = [row["id"] for _ in range(3) for row in await engine.hands.connection.fetch(sql, timedelta(0), 2)]
        assert set(seen) == runs
        assert await engine.recover() == 5
        assert await engine.recover() == 0


# -- ends that no worker writes -------------------------------------------------------------------


async def test_a_task_that_is_failed_by_hand_moves_its_workflow_on(t: SimpleNamespace, db: Database) -> None:
    heard: list[str] = []
    connection = await asyncpg.connect(db.url)
    await connection.add_listener("workflow_step", lambda *given: heard.append(given[-1]))
    one = t.number.node(node_id="one")(1)
    handle = await t.app.workflow("w", [one, t.number.node(waits_for=[one])(2)]).start_async()
    plain = factories.task(db, "RUNNING")
    try:
        async with Engine.on(db, NAMES) as engine:
            (row,) = [row for row in await engine.claim() if row["task_name"] == "number"]
            assert await t.app.get_broker().mark_stale_tasks_as_failed(0, [row["id"], plain]) == 2
            await eventually_async(lambda: bool(heard))
            assert heard == [f"t:{row['id']}"]
            engine.advancers[0].on_step(heard[0])
            await engine.advance()
    finally:
        await connection.close()
    assert "WORKER_CRASHED" in ((await handle.get_async(1_000)).err_value.message or "")


@pytest.mark.parametrize("grace", [0, 10_000])
async def test_a_worker_that_starts_finds_what_stopped_half_way(t: SimpleNamespace, db: Database, grace: int) -> None:
    """No worker was there to hear of the end; the first look has no grace, and a grace of 0 is no reason to hang."""
    handle = await t.app.workflow("w", [t.number.node()(1)]).start_async()
    found: list[str] = []
    settings = RecoveryConfig(crashed_worker_recovery_grace_ms=grace)
    async with Engine.on(db, NAMES) as engine, make_app(db, recovery=settings) as app:
        await engine.end(await engine.claim(), answer)
        session = Session(app.config.broker, "reaper", Queries(None, Identity("reaper-1", "host-9", 1)))
        reaper = Reaper(session, app.config, Recovery(session.queries, app.registry), check_workflows=found.extend)
        try:
            await reaper.run_once()
            assert found == [handle.workflow_id]
            await reaper.run_once()
            assert len(found) == 1  # within the grace
            db.execute("UPDATE horsies_workflows SET updated_at = updated_at - interval '2 minutes'")
            db.execute("UPDATE horsies_workflow_tasks SET updated_at = updated_at - interval '2 minutes'")
            db.execute("UPDATE horsies_tasks SET terminal_at = terminal_at - interval '2 minutes'")
            await reaper.run_once()
            assert len(found) == 2
            reaper.find_halted_workflows()
            await reaper.run_once()
            assert len(found) == 3
        finally:
            await session.close()
        engine.advancers[0].check(found)
        await engine.advance()
    assert await handle.status_async() is WorkflowStatus.COMPLETED


@pytest.mark.breaks("W5")
async def test_concurrent_retries_do_not_deadlock(t: SimpleNamespace, db: Database) -> None:
    """Retries of nodes and of runs inside others, against steps, pauses, cancels and recovery."""
    chance = random.Random(5)
    control = t.app.get_broker().workflows
    runs: list[str] = []
    for number in range(10):
        top = t.number.node(node_id="top")(number)
        inside = t.app.workflow("inside", [t.number.node(node_id=f"i{n}")(n) for n in range(3)], on_error="pause")
        parts = [t.plus.node(node_id=f"n{n}")(from_node(top), n) for n in range(3)]
        sub = inside.node(node_id="sub", waits_for=[top], allow_failed_deps=True)
        last = t.number.node(node_id="last", waits_for=[*parts, sub], allow_failed_deps=True)(0)
        runs.append(
            (await t.app.workflow("storm", [top, *parts, sub, last], on_error="pause").start_async()).workflow_id
        )

    def fails_often(name: str, given: Any) -> Any:
        return TaskError("WANTED") if chance.random() < 0.3 else answer(name, given)

    async def work(engine: Engine) -> None:
        for _ in range(40):
            rows = await engine.claim(5)
            engine.advancers[0].tasks_ended(await engine.end(rows, fails_often))
            await engine.advance()
            if not rows:
                await engine.recover()

    async def meddle() -> None:
        for _ in range(80):
            workflow_id = chance.choice(runs)
            match chance.randrange(6):
                case 0:
                    await control.pause(workflow_id)
                case 1:
                    await control.resume(workflow_id)
                case 2:
                    await control.cancel(workflow_id)
                case 3:
                    await control.retry(workflow_id)
                case _:
                    await control.retry(workflow_id, chance.choice(["top", "n0", "n1", "n2", "sub", "last"]))

    async with Engine.on(db, NAMES) as one, Engine.on(db, NAMES) as other:
        await asyncio.gather(work(one), work(other), meddle(), meddle())
        for _ in range(10):
            for workflow_id in runs:
                await control.resume(workflow_id)
            await one.recover()
            await one.drain(answer)
    assert db.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
    assert db.value("SELECT count(*) FROM horsies_workflows WHERE completed_at IS NULL") == 0
    assert db.value("SELECT count(*) FROM horsies_workflow_tasks WHERE error LIKE '%%RESULT_NOT_READY%%'") == 0
    assert [one for one in invariants.check(db, slack_s=0, wf_grace_s=0) if one.rule != "W5"] == []
