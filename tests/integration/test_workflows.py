"""Workflows by their statements: starts in the caller's transaction, guards of claim and start, what a step reads."""

import asyncio
import json
import random
import re
import uuid
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import asyncpg
import psycopg
import pytest

from horsies import NodeStatus, RetryPolicy, TaskError, TaskResult, TaskSendError, WorkflowStatus, from_node
from horsies_worker.database.queries import Queries
from horsies_worker.database.settings import CLAIM_SETTINGS
from horsies_worker.identity import Identity
from tests.support import factories, invariants, workflow_app
from tests.support.apps import add_task, async_app_on, make_app
from tests.support.engine import Engine
from tests.support.postgres import Database
from tests.support.waiting import eventually_async

NAMES = ("number", "plus", "total", "spread", "square")


def answer(name: str, given: Any) -> Any:
    match name:
        case "number":
            return given["n"]
        case "plus":
            return given["a"] + given["b"]
        case "total":
            return sum(given["numbers"])
        case "spread":
            return list(range(given["n"]))
        case _:
            return given["x"] ** 2 + given.get("offset", 0)


@pytest.fixture
async def t(db: Database) -> AsyncIterator[SimpleNamespace]:
    async with make_app(db) as app:
        tasks = workflow_app.register(app)
        tasks.app = app
        yield tasks


# -- start -------------------------------------------------------------------------------------------------------


async def test_a_start_in_the_callers_transaction(t: SimpleNamespace, db: Database) -> None:
    spec = t.app.workflow("mine", [one := t.number.node()(1), t.plus.node()(from_node(one), 2)])
    connection = await asyncpg.connect(db.url)
    try:
        transaction = connection.transaction()
        await transaction.start()
        gone = await spec.start_async(connection=connection)
        await transaction.rollback()
        async with connection.transaction():
            kept = await spec.start_async(connection=connection)
    finally:
        await connection.close()
    assert await gone.status_async() is None
    assert await kept.status_async() is WorkflowStatus.RUNNING
    assert db.value("SELECT count(*) FROM horsies_workflow_tasks") == 2
    assert db.value("SELECT count(*) FROM horsies_tasks") == 1
    assert (await gone.get_async(1_000)).err_value.error_code == "WORKFLOW_NOT_FOUND"


async def test_a_start_on_a_synchronous_connection(t: SimpleNamespace, db: Database) -> None:
    spec = t.app.workflow("mine", [t.number.node()(1)])

    def start() -> str:
        with psycopg.connect(db.url) as connection:
            return spec.start(connection=connection).workflow_id

    workflow_id = await asyncio.to_thread(start)
    assert db.value("SELECT status FROM horsies_workflows WHERE id = %s", workflow_id) == "RUNNING"


async def test_a_start_that_is_repeated_is_the_same_start(t: SimpleNamespace, db: Database) -> None:
    workflow_id = str(uuid.uuid4())
    spec = t.app.workflow("again", [t.number.node()(1), t.where.node(node_id="place")()])
    await asyncio.gather(*(spec.start_async(workflow_id=workflow_id) for _ in range(10)))
    assert db.value("SELECT count(*) FROM horsies_workflow_tasks") == 2
    other = t.app.workflow("again", [t.number.node()(2), t.where.node(node_id="place")()])
    with pytest.raises(TaskSendError, match="PAYLOAD_MISMATCH"):
        await other.start_async(workflow_id=workflow_id)
    with pytest.raises(TaskSendError, match="VALIDATION_FAILED"):
        await spec.start_async(workflow_id="mine")


async def test_a_start_that_is_repeated_after_a_deploy(db: Database) -> None:
    """How the tasks are registered is not part of what was started; where a node gets its arguments from is."""
    workflow_id = str(uuid.uuid4())
    policy = RetryPolicy.fixed(1, 3, auto_retry_for=["SMTP_DOWN"])
    for registration in ({}, {"retry_policy": policy, "timeout_ms": 5_000}, {"priority": 3}):
        async with async_app_on(db) as app:
            add = add_task(app, **registration)
            one, two = add.node(node_id="one")(1), add.node(node_id="two")(2)
            inner = app.workflow("inner", [add.node()(3)]).node()
            await app.workflow("outer", [one, two, inner]).start_async(workflow_id=workflow_id)
            other = app.workflow("outer", [one, add.node(node_id="two")(5), inner])
            with pytest.raises(TaskSendError, match="PAYLOAD_MISMATCH"):
                await other.start_async(workflow_id=workflow_id)
    assert db.value("SELECT count(*) FROM horsies_workflow_tasks WHERE workflow_id = %s", workflow_id) == 3


async def test_deadlines_of_nodes(t: SimpleNamespace, db: Database) -> None:
    moment = datetime.now(UTC) + timedelta(hours=1)
    first = t.number.node(node_id="first", good_until=timedelta(minutes=5))(1)
    second = t.number.node(node_id="second", good_until=moment, waits_for=[first], priority=7)(2)
    await t.app.workflow("w", [first, second]).start_async()
    async with Engine.on(db, NAMES) as engine:
        (row,) = await engine.claim()
        assert factories.read(db, row["id"])["good_until"] > factories.read(db, row["id"])["enqueued_at"]
        engine.advancers[0].tasks_ended(await engine.end([row], answer))
        await engine.advance()
        (row,) = await engine.claim()
    assert row["priority"] == 7
    assert factories.read(db, row["id"])["good_until"] == moment


# -- guards ------------------------------------------------------------------------------------------------------


async def test_what_comes_back_to_a_paused_workflow_is_withdrawn_once(t: SimpleNamespace, db: Database) -> None:
    """A retry or a hand-back knows nothing of the pause: the first claim that meets it takes it out of the range."""
    handle = await t.app.workflow("w", [t.number.node()(1)]).start_async()
    async with Engine.on(db, NAMES) as engine:
        (row,) = await engine.claim()
        assert await handle.pause_async()
        assert await engine.hands.hand_back([row]) == {row["id"]}
        before = factories.read(db, row["id"])
        (met,) = await engine.hands.claim(10, sync_names=NAMES)
        assert met["status"] == "PENDING"
        withdrawn = factories.read(db, row["id"])
        assert withdrawn["status"] == "PENDING"
        assert withdrawn["claimed_by_worker_id"] is None
        assert withdrawn["withdrawn"]
        assert withdrawn["enqueued_at"] == before["enqueued_at"]
        assert not await engine.hands.claim(10, sync_names=NAMES)  # and no claim looks at it again
        assert await handle.resume_async()
        assert not factories.read(db, row["id"])["withdrawn"]
        await engine.drain(answer)
    assert await handle.status_async() is WorkflowStatus.COMPLETED
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


@pytest.mark.parametrize("verb", ["claim", "start"])
async def test_a_resume_while_a_claim_meets_the_task(t: SimpleNamespace, db: Database, verb: str) -> None:
    """The claim's snapshot says that the run is paused, and the resume does not see the claim: the task is not lost."""
    db.execute(
        "CREATE FUNCTION wait() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN PERFORM pg_advisory_xact_lock_shared(7); RETURN NEW; END $$"
    )
    handle = await t.app.workflow("w", [t.number.node()(1)]).start_async()
    async with Engine.on(db, NAMES) as engine:
        (row,) = await engine.hands.claim(1, sync_names=NAMES, room_sync=0 if verb == "start" else 1, prefetch=1)
        if verb == "claim":
            assert await handle.pause_async()
            assert await engine.hands.hand_back([row]) == {row["id"]}
        else:  # a pause that has not seen the claim
            db.execute("UPDATE horsies_workflows SET status = 'PAUSED'")
        db.execute("CREATE TRIGGER waits BEFORE UPDATE ON horsies_tasks FOR EACH ROW EXECUTE FUNCTION wait()")
        with psycopg.connect(db.url) as holder:
            holder.execute("SELECT pg_advisory_xact_lock(7)")
            met = asyncio.create_task(
                engine.hands.claim(10, sync_names=NAMES) if verb == "claim" else engine.hands.start([row])
            )
            waits = "SELECT count(*) FROM pg_stat_activity WHERE datname = %s AND wait_event = 'advisory'"
            await eventually_async(lambda: db.value(waits, db.name) == 1)
            assert await handle.resume_async()
        await met
        assert not factories.read(db, row["id"])["withdrawn"]
        db.execute("DROP TRIGGER waits ON horsies_tasks")
        await engine.drain(answer)
    assert await handle.status_async() is WorkflowStatus.COMPLETED


async def test_a_claim_that_is_held_does_not_start_in_a_stopped_workflow(t: SimpleNamespace, db: Database) -> None:
    handle = await t.app.workflow("w", [t.number.node()(1)]).start_async()
    async with Engine.on(db, NAMES) as engine:
        (row,) = await engine.hands.claim(1, sync_names=NAMES, room_sync=0, prefetch=1)
        assert row["status"] == "CLAIMED"
        # as if the pause had come between our look and our start, without having seen the claim
        db.execute("UPDATE horsies_workflows SET status = 'PAUSED'")
        assert await engine.hands.start([row]) == {row["id"]: "PENDING"}
        assert factories.read(db, row["id"])["claimed_by_worker_id"] is None
        assert await handle.resume_async()
        await engine.drain(answer)
    assert await handle.status_async() is WorkflowStatus.COMPLETED


async def test_a_pause_takes_back_what_a_worker_holds(t: SimpleNamespace, db: Database) -> None:
    handle = await t.app.workflow("w", [t.number.node()(1)]).start_async()
    async with Engine.on(db, NAMES) as engine:
        (row,) = await engine.hands.claim(1, sync_names=NAMES, room_sync=0, prefetch=1)
        assert await handle.pause_async()
        assert await engine.hands.start([row]) == {}
        assert not await engine.claim()
        assert await handle.cancel_async()
    assert factories.read(db, row["id"])["status"] == "CANCELLED"
    assert [node.status for node in await handle.tasks_async()] == [NodeStatus.SKIPPED]
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


async def test_pausing_and_claiming_at_the_same_time(t: SimpleNamespace, db: Database) -> None:
    """A hundred pauses against claims: what is not RUNNING when the pause is over does not start before the resume."""
    async with Engine.on(db, NAMES) as engine, Engine.on(db, NAMES) as other:
        for _ in range(100):
            handle = await t.app.workflow("w", [t.number.node(node_id=f"n{n}")(n) for n in range(3)]).start_async()
            claimed, paused = await asyncio.gather(engine.claim(2), handle.pause_async())
            assert paused
            assert not await other.claim(10)
            states = {row[0] for row in db.execute(
                "SELECT t.status FROM horsies_tasks t JOIN horsies_workflow_tasks n ON n.task_id = t.id"
                " WHERE n.workflow_id = %s AND t.id <> ALL (%s)", handle.workflow_id, [row["id"] for row in claimed],
            )}  # fmt: skip
            assert states <= {"PENDING"}
            await engine.end(claimed, answer)
            assert await handle.resume_async()
            await engine.drain(answer)
            assert await handle.status_async() is WorkflowStatus.COMPLETED
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


async def test_everybody_at_once_and_no_deadlock(t: SimpleNamespace, db: Database) -> None:
    """Two workers end, step and recover while somebody pauses, resumes, cancels and retries the same runs (F55)."""
    chance = random.Random(3)
    control = t.app.get_broker().workflows
    runs: list[str] = []
    for number in range(20):
        top = t.number.node(node_id="top")(number)
        inside = t.app.workflow("inside", [t.number.node(node_id=f"i{n}")(n) for n in range(4)])
        parts = [t.plus.node(node_id=f"n{n}")(from_node(top), n) for n in range(4)]
        last = t.number.node(node_id="last", waits_for=[*parts, sub := inside.node(node_id="sub", waits_for=[top])])(0)
        runs.append((await t.app.workflow("storm", [top, *parts, sub, last]).start_async()).workflow_id)

    def fails_sometimes(name: str, given: Any) -> Any:
        return TaskError("WANTED") if chance.random() < 0.1 else answer(name, given)

    async def work(engine: Engine) -> None:
        for _ in range(60):
            rows = await engine.claim(5)
            engine.advancers[0].tasks_ended(await engine.end(rows, fails_sometimes))
            await engine.advance()
            if not rows:
                await engine.recover()

    async def meddle() -> None:
        for _ in range(150):
            verb = chance.choice([control.pause, control.resume, control.resume, control.retry, control.cancel])
            await verb(chance.choice(runs))

    async with Engine.on(db, NAMES) as one, Engine.on(db, NAMES) as other:
        await asyncio.gather(work(one), work(other), meddle(), meddle())
        for _ in range(10):
            for workflow_id in runs:
                await control.resume(workflow_id)
            await one.drain(answer)
    assert db.value("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()") == 0
    assert db.value("SELECT count(*) FROM horsies_workflows WHERE completed_at IS NULL") == 0
    assert invariants.check(db, slack_s=0, wf_grace_s=0) == []


# -- steps -------------------------------------------------------------------------------------------------------


async def test_a_node_that_cannot_be_enqueued_fails_alone(t: SimpleNamespace, db: Database) -> None:
    one = t.number.node(node_id="one")(1)
    nodes = [t.plus.node(node_id=f"n{n}")(from_node(one), n) for n in range(5)]
    handle = await t.app.workflow("w", [one, *nodes]).start_async()
    db.execute('UPDATE horsies_workflow_tasks SET args_from = \'{"a": {"at": "x"}}\' WHERE node_id = \'n3\'')
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(answer)
    results = await handle.results_async()
    assert results["n3"].err_value.error_code == "WORKFLOW_ENQUEUE_FAILED"
    assert [results[f"n{n}"].ok for n in (0, 1, 2, 4)] == [1, 2, 3, 5]
    assert (await handle.get_async(1_000)).err_value.error_code == "WORKFLOW_FAILED"


async def test_arguments_that_grow_too_large_fail_the_node(t: SimpleNamespace, db: Database) -> None:
    @t.app.task("long")
    def long(text: str) -> TaskResult[str, TaskError]:
        return TaskResult(ok=text)

    first = long.node(node_id="first")("x")
    second = long.node(node_id="second")(from_node(first))
    handle = await t.app.workflow("w", [first, second]).start_async()
    async with Engine.on(db, ["long"], payload_max_bytes=100_000, payload_warn_bytes=1_000) as engine:
        await engine.drain(lambda _name, _given: "y" * 200_000)
    assert "larger than 100,000 bytes" in (await handle.results_async())["second"].err_value.message


async def test_values_reach_the_next_node_as_they_were_written(t: SimpleNamespace, db: Database) -> None:
    """Text in, text out: numbers beyond a double, keys in their order, escapes and nesting survive the way."""

    @t.app.task("any")
    def anything(value: Any) -> TaskResult[Any, TaskError]:
        return TaskResult(ok=value)

    first = anything.node(node_id="first")(0)
    second = anything.node(node_id="second")(from_node(first))
    await t.app.workflow("w", [first, second]).start_async()
    odd = '{"b":1,"a":[12345678901234567890123,1.10,"\\"}{\\\\",{"ok":null}],"é":"\\u2028"}'
    async with Engine.on(db, ["any"]) as engine:
        (row,) = await engine.claim()
        ended = await engine.end([row], lambda *_: 1)
        db.execute("UPDATE horsies_tasks SET result = %s WHERE id = %s", '{"ok":' + odd + "}", row["id"])
        engine.advancers[0].tasks_ended(ended)
        await engine.advance()
        (row,) = await engine.claim()
        assert row["kwargs"] == '{"value":' + odd + "}"
        # also when somebody else wrote it
        assert json.loads(row["kwargs"])["value"]["a"][0] == 12345678901234567890123


async def test_a_step_costs_what_its_nodes_cost(t: SimpleNamespace, db: Database) -> None:
    """The plans of a worker's session, made while the tables were empty, on a graph of thousands: no statement of a
    step reads the workflow."""
    queries = Queries(None, Identity())
    connection = await asyncpg.connect(db.url, server_settings=CLAIM_SETTINGS)
    workflow_id = str(uuid.uuid4())
    lookups = {
        "count_down": f"'{workflow_id}', ARRAY[5, 6], ARRAY[true, true], ARRAY[false, false]",
        "settle_tasks": f"'{workflow_id}', ARRAY['x', 'y'], '{{}}', true, true, NULL, 0",
        "end_nodes": f"'{workflow_id}', ARRAY[3001], ARRAY['SKIPPED'], ARRAY['{{}}'], ARRAY['upstream']",
        "enqueue_nodes": f"'{workflow_id}', ARRAY[3001], ARRAY['z'], '{{}}', 1000000, '{{}}'",
        "missing_values": f"'{workflow_id}', ARRAY[3001]",
        "word_errors": f"'{workflow_id}', ARRAY[3001], ARRAY['{{}}']",
        "ready_nodes": f"'{workflow_id}', 10",
    }
    try:
        for name in lookups:
            await connection.execute(f"PREPARE {name} AS {queries.sql(name)}")
        root = t.number.node(node_id="root")(1)
        spec = t.app.workflow("wide", [
            root, *(t.plus.node(node_id=f"n{n}")(from_node(root), n) for n in range(3000)),
            t.number.node(node_id="last", waits_for=[root])(1),
        ])  # fmt: skip
        await spec.start_async(workflow_id=workflow_id)
        for name, values in lookups.items():
            await connection.execute("BEGIN")
            rows = await connection.fetch(f"EXPLAIN (ANALYZE, BUFFERS, COSTS OFF) EXECUTE {name} ({values})")
            await connection.execute("ROLLBACK")
            plan = "\n".join(row[0] for row in rows)
            assert "Seq Scan on horsies_" not in plan, plan
            touched = sum(map(int, re.findall(r"Buffers: shared hit=(\d+)", plan)[:1]))
            assert touched < 200, (name, plan)
    finally:
        await connection.close()
