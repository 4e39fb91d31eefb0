"""Who sends signals and how: callers' transactions, roles, and what recovery pays for runs that wait. Each docstring
begins with a row of the table of cases, where there is one."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import asyncpg
import pytest

from horsies import WorkflowStatus, from_node, sleep, wait_for_signal
from tests.support import cases
from tests.support.apps import make_app
from tests.support.cases import HOUR, NAMES, Answers, states
from tests.support.engine import Engine
from tests.support.postgres import Database
from tests.support.roles import accounts, may

COMPLETED = WorkflowStatus.COMPLETED


@pytest.fixture
async def t(db: Database) -> AsyncIterator[SimpleNamespace]:
    async with cases.tasks(db) as tasks:
        yield tasks


def approval(t: SimpleNamespace) -> Any:
    """A wait for a number, and a task that takes it."""
    wait = wait_for_signal("go", int, node_id="wait")
    last = t.number.node(node_id="last")(from_node(wait))
    return t.app.workflow("approval", [wait, last], output=last)


def signals(db: Database) -> int:
    return db.value("SELECT count(*) FROM horsies_workflow_signals")


async def test_a_signal_belongs_to_the_callers_transaction(t: SimpleNamespace, db: Database, conn: Any) -> None:
    """signal before the node waits: kept, if and only if the caller's transaction commits"""
    handle = await approval(t).start_async()
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers())
        transaction = conn.transaction()
        await transaction.start()
        assert (await handle.signal_async("go", 1, signal_id="hook", connection=conn)).delivered
        await engine.drain(Answers())  # a step that comes meanwhile does not see it, and does not wait for it
        await transaction.rollback()
        assert signals(db) == 0
        await engine.drain(Answers())
        assert (await states(handle))["wait"] == "WAITING"
        async with conn.transaction():
            assert (await handle.signal_async("go", 2, signal_id="hook", connection=conn)).delivered
        await engine.drain(Answers())
        assert (await cases.ended_as(handle, COMPLETED)).ok == 2


async def test_a_signal_that_commits_during_a_step_is_not_lost(
    t: SimpleNamespace, db: Database, conn: asyncpg.Connection
) -> None:
    """signal before the node waits: kept. It commits while a step of the run is under way, and its notification is
    lost: recovery must still find it."""
    handle = await approval(t).start_async()
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers())
        transaction = conn.transaction()
        await transaction.start()
        await handle.signal_async("go", 1, connection=conn)
        engine.advancers[0].check([handle.workflow_id])
        await engine.advance()
        await transaction.commit()
        await engine.recover()
        await engine.drain(Answers())
        assert (await cases.ended_as(handle, COMPLETED)).ok == 1


async def test_roles(t: SimpleNamespace, db: Database) -> None:
    """A producer sends signals and cannot change or read them; a viewer cannot send any."""
    handle = await approval(t).start_async()
    call = f"SELECT horsies_signal('{handle.workflow_id}', 'go', '1')"
    with accounts(db) as roles:
        assert {name: may(role, call) for name, role in roles.items()} == {
            "producer": True, "worker": True, "operator": True, "viewer": False, "stranger": False
        }  # fmt: skip
        for change in (
            "UPDATE horsies_workflow_signals SET value = '2'",
            "DELETE FROM horsies_workflow_signals",
            "INSERT INTO horsies_workflow_signals (id, workflow_id, name, value) VALUES ('a', 'b', 'c', '1')",
        ):
            assert not may(roles["producer"], change)
            assert not may(roles["viewer"], change)
        async with make_app(roles["producer"]) as app:
            receipt = await app.workflow_handle(handle.workflow_id).signal_async("go", 8)
            assert receipt.delivered
        async with Engine.on(db, NAMES) as engine:
            await engine.drain(Answers())
        assert (await cases.ended_as(handle, COMPLETED)).ok == 8


async def test_a_run_that_waits_costs_recovery_nothing(t: SimpleNamespace, db: Database) -> None:
    """Signals that no node waits for, and runs that wait, are looked at once."""
    first = wait_for_signal("go", int, node_id="go")
    later = sleep(HOUR, node_id="later")
    runs = [await t.app.workflow("w", [first, later]).start_async(start_at=at) for at in (None, HOUR)]
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers())
        for run in runs:
            await run.signal_async("unknown", "x")
        await engine.recover()
        assert await engine.recover() == 0
        for run in runs:
            await run.cancel_async()
        await engine.drain(Answers())
        assert await engine.recover() == 0
    cases.check(db)
