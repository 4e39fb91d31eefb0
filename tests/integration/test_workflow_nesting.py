"""Workflows in workflows, many levels deep, and runs that an older client started."""

import json
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from horsies import WorkflowSpec, WorkflowStatus, from_node
from horsies.workflow.graph import MAX_LEVELS
from tests.support import workflow_app
from tests.support.apps import make_app
from tests.support.engine import Engine
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database


def answer(name: str, given: Mapping[str, Any]) -> Any:
    if name == "spread":
        return list(range(given["n"]))
    return given["x"] ** 2 if name == "square" else given["n"] if name == "number" else given["a"] + given["b"]


@pytest.fixture
async def t(db: Database) -> AsyncIterator[SimpleNamespace]:
    async with make_app(db) as app, Engine.on(db, ["number", "plus", "spread", "square"]) as engine:
        tasks = workflow_app.register(app)
        tasks.app, tasks.engine = app, engine
        yield tasks


def nested(t: SimpleNamespace, levels: int) -> WorkflowSpec[int]:
    spec: WorkflowSpec[int] = t.app.workflow("lowest level", [leaf := t.number.node(node_id="leaf")(0)], output=leaf)
    for _ in range(levels - 1):
        inner = spec.node(node_id="inner")
        more = t.plus.node(node_id="more")(from_node(inner), 1)
        spec = t.app.workflow("level", [inner, more], output=more)
    return spec


async def test_a_run_as_deep_as_the_limit_allows(t: SimpleNamespace, db: Database) -> None:
    handle = await nested(t, MAX_LEVELS).start_async()
    ((size,),) = db.execute("SELECT sum(length(kwargs)) FROM horsies_workflow_tasks")
    assert size < MAX_LEVELS * 2_000
    await t.engine.drain(answer)
    assert (await handle.get_async(5_000)).unwrap() == MAX_LEVELS - 1


async def test_a_run_that_an_older_client_started(t: SimpleNamespace, db: Database) -> None:
    """It wrote each graph inside as a text."""
    items = t.spread.node(node_id="items")(3)
    inner = t.app.workflow("maps", [items, squares := t.square.node(node_id="s").map(items)], output=squares)
    middle = t.app.workflow("around", [one := inner.node(node_id="one"), two := nested(t, 4).node(node_id="two")])
    handle = await t.app.workflow("outer", [middle.node(node_id="middle")]).start_async()

    def older(made: Any) -> Any:
        for node in made.get("nodes", ()):
            if isinstance(node["kwargs"], dict):
                node["kwargs"] = json.dumps(older(node["kwargs"]), separators=(",", ":"))
        return made

    ((text,),) = db.execute("SELECT kwargs FROM horsies_workflow_tasks")
    old = json.dumps(older(json.loads(text)), separators=(",", ":"))
    assert '\\\\\\"' in old
    db.execute("UPDATE horsies_workflow_tasks SET kwargs = %s", old)
    await t.engine.drain(answer)
    assert await handle.status_async() is WorkflowStatus.COMPLETED
    found = dict(db.execute("SELECT node_id, result FROM horsies_workflow_tasks WHERE node_id IN ('one', 'two')"))
    assert {name: json.loads(result)["ok"] for name, result in found.items()} == {"one": [0, 1, 4], "two": 3}
    assert (one.title, two.title) == ("maps", "level")
