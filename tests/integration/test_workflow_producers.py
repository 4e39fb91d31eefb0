"""Runs that a producer starts with the function horsies_start_workflow itself, with rows that this library would never
write: each ends FAILED with a reason, or the function refuses it."""

import asyncio
import json
from typing import Any

import psycopg
import pytest

from horsies.ids import new_id
from tests.support.engine import Engine
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database


def node(name: str, dependencies: list[int] | None = None, dependents: list[int] | None = None, **more: Any) -> Any:
    return {
        "id": new_id(), "task_id": new_id(), "node_id": name, "task_name": "number", "kwargs": '{"n":1}',
        "kind": "task", "queue_name": "default", "priority": 100,
        "dependencies": dependencies or [], "dependents": dependents or [],
        "join_type": "all", "allow_failed": False, "max_retries": 0, **more,
    }  # fmt: skip


def start(db: Database, nodes: Any) -> str:
    run = {"id": new_id(), "name": "w", "on_error": "fail", "enqueue_sha": "x", "sent_at": "2026-01-01", "nodes": nodes}
    return db.value("SELECT horsies_start_workflow(%s::jsonb)", json.dumps(run))


def mapped(**pattern: Any) -> list[Any]:
    """A map over the list that the node before it returns."""
    from_first = {"*": {"up": 0, "at": 0}}
    return [
        node("a", dependents=[1]),
        node("b", [0], kind="map", sub_name="b[]", kwargs=json.dumps({"map": pattern}), args_from=from_first),
    ]


BAD: dict[str, tuple[list[Any], str]] = {
    "no nodes": ([], "it has no nodes"),
    "a circle": (
        [node("a", [1], [1]), node("b", [0], [0])],
        "none of the 2 that wait can ever run: nodes wait for each other: 'a' for 'b' for 'a'",
    ),
    "a circle behind others": (
        [node("a", dependents=[1]), node("b", [0, 3], [2]), node("c", [1], [3]), node("d", [2], [1])],
        "nodes wait for each other: 'b' for 'd' for 'c' for 'b'",
    ),
    "an unknown index": ([node("a", [7])], "column dependencies of node 'a' names node number 7, which does not exist"),
    "a negative index": ([node("a", [-1])], "names node number -1, which does not exist"),
    "no dependents": ([node("a"), node("b", [0])], "'b' waits for node 'a', whose column dependents does not name it"),
    "an index twice": ([node("a", dependents=[1]), node("b", [0, 0])], "node 'b' waits for node 'a' twice"),
    "a map without a width": (mapped(), "b: WORKFLOW_ENQUEUE_FAILED: its row has no pattern for the items, or"),
    "a map that is too wide": (mapped(max_width=1), "b: WORKFLOW_ENQUEUE_FAILED: the list has 2 items, more than its"),
    "no nodes inside": (
        [node("a", kind="workflow", sub_name="i", kwargs='{"name":"i","on_error":"fail","nodes":[]}')],
        "inside it, it has no nodes",
    ),
}  # fmt: skip


@pytest.mark.breaks("W7")
@pytest.mark.parametrize("case", BAD)
async def test_a_run_with_bad_rows_ends_with_a_reason(db: Database, case: str) -> None:
    nodes, words = BAD[case]
    run = start(db, nodes)
    async with Engine.on(db, ["number"]) as engine, asyncio.timeout(20):
        await engine.drain(lambda _name, _given: [1, 2])
        assert await engine.recover() == 0
    (((status, error),)) = db.execute("SELECT status, error FROM horsies_workflows WHERE id = %s", run)
    assert status == "FAILED"
    assert words in json.loads(error)["err"]["message"]


@pytest.mark.parametrize("nodes", [None, "a", [node("a") | {"dependencies": None}], [node("a", [0], [0])]])
def test_the_function_refuses_what_is_no_graph(db: Database, nodes: Any) -> None:
    with pytest.raises(psycopg.Error):
        start(db, nodes)
    assert db.value("SELECT count(*) FROM horsies_workflows") == 0


async def test_only_the_node_around_it_makes_a_run_a_map(db: Database) -> None:
    run = {"id": new_id(), "name": "w", "on_error": "fail", "enqueue_sha": "x", "sent_at": "2026-01-01", "output": 0,
           "definition_key": "map", "nodes": [node("a")]}  # fmt: skip
    db.execute("SELECT horsies_start_workflow(%s::jsonb)", json.dumps(run))
    async with Engine.on(db, ["number"]) as engine:
        await engine.drain(lambda _name, _given: 5)
    assert db.execute("SELECT status, result FROM horsies_workflows") == [("COMPLETED", '{"ok":5}')]
