"""Rows of runs that name each other as parents: every statement that goes through a tree ends."""

import asyncio
import json

import asyncpg
import pytest

from horsies import WorkflowStatus
from horsies._pg.statements import load
from tests.support import workflow_app
from tests.support.apps import make_app
from tests.support.postgres import Database

pytestmark = pytest.mark.breaks("W1", "W2", "W3", "W4", "W5", "W6", "W7", "W8")


@pytest.fixture
async def runs(db: Database) -> tuple[str, str]:
    """Two runs, each inside the other; as a superuser writes them."""
    async with make_app(db) as app:
        spec = app.workflow("mine", [workflow_app.register(app).number.node()(1)])
        first, second = [(await spec.start_async()).workflow_id for _ in range(2)]
    for one, other in ((first, second), (second, first)):
        db.execute(
            "UPDATE horsies_workflows SET parent_workflow_id = %s, parent_task_index = 0, depth = 1 WHERE id = %s",
            other, one,
        )  # fmt: skip
    return first, second


async def test_the_verbs_of_control_end(db: Database, runs: tuple[str, str]) -> None:
    first, second = runs
    async with make_app(db) as app, asyncio.timeout(30):
        control = app.get_broker().workflows
        assert await control.pause(first)
        assert [run.id for run in await control.paused(first)] == sorted(runs, key=lambda one: one != first)
        assert await control.resume(first)
        await control.retry(first)
        assert await control.cancel(second)
        assert not await control.cancel(first)
        with pytest.raises(Exception, match="retry that one"):
            await control.retry(first)
    assert db.execute("SELECT DISTINCT status FROM horsies_workflows") == [(WorkflowStatus.CANCELLED,)]


@pytest.mark.parametrize("name", ["enqueue_nodes", "missing_values", "launch_map"])
async def test_the_statements_of_a_step_end(db: Database, runs: tuple[str, str], name: str) -> None:
    first, _ = runs
    pattern = json.dumps({"map": {"max_width": 1}})
    db.execute(
        "UPDATE horsies_workflow_tasks SET status = 'READY', kwargs = %s,"
        """ args_from = '{"*": {"up": 1, "at": 0, "bare": true}}' WHERE workflow_id = %s""",
        pattern, first,
    )  # fmt: skip
    statement = load("horsies_worker.database", "workflows.sql")[name]
    values = {
        "enqueue_nodes": [first, [0], ["new"], "{}", 1000, "{}"], "missing_values": [first, [0]],
        "launch_map": [first, 0, "child", None],
    }[name]  # fmt: skip
    connection = await asyncpg.connect(db.url, server_settings={"statement_timeout": "10s"})
    try:
        async with connection.transaction():
            await connection.fetch(statement.sql, *values)
    finally:
        await connection.close()
