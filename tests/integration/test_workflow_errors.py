"""The words of a failure: a run, a map and a workflow inside name the node, the item, and its own code and message."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from horsies import SuccessCase, SuccessPolicy, TaskError, WorkflowHandle, from_node
from tests.support import workflow_app
from tests.support.apps import make_app
from tests.support.engine import Engine
from tests.support.operator import Operator
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database


def answer(name: str, given: Mapping[str, Any]) -> Any:
    match name:
        case "spread":
            return list(range(given["n"]))
        case "square" if given["x"] in (3, 5):
            return TaskError(
                "ODD", f"cannot square {given['x']}", {"traceback": "Traceback\n" + "  x\n" * 2_000 + "Boom"}
            )
        case "fail":
            return TaskError(given.get("code", "BROKEN"), "as the test wanted")
        case _:
            return 1


@pytest.fixture
async def t(db: Database) -> AsyncIterator[SimpleNamespace]:
    async with make_app(db) as app, Engine.on(db, ["spread", "square", "fail", "number"]) as engine:
        tasks = workflow_app.register(app)
        tasks.app, tasks.engine = app, engine
        yield tasks


async def error_of(t: SimpleNamespace, handle: WorkflowHandle[Any]) -> TaskError:
    await t.engine.drain(answer)
    return (await handle.get_async(5_000)).err_value


async def test_a_map_names_its_item(t: SimpleNamespace, db: Database, capsys: pytest.CaptureFixture[str]) -> None:
    items = t.spread.node(node_id="items")(6)
    squares = t.square.node(node_id="squares").map(items)
    handle = await t.app.workflow("mapping", [items, squares]).start_async()
    error = await error_of(t, handle)
    assert error.error_code == "WORKFLOW_FAILED"
    assert error.message == "a node failed: squares/item[3]: ODD: cannot square 3"
    assert error.data == {
        "failed": ["squares"],
        "cause": {"path": "squares/item[3]", "error_code": "ODD", "message": "cannot square 3"},
    }
    node = (await handle.result_for_async(squares)).err_value
    assert node.error_code == "SUBWORKFLOW_FAILED"
    assert node.message == "inside it, a node failed: item[3]: ODD: cannot square 3, and 1 more"
    assert node.data["err"]["data"]["failed"] == ["item-3", "item-5"]

    shown = await asyncio.to_thread(Operator(db, capsys), "workflows", "show", handle.workflow_id)
    assert "\nthe run: WORKFLOW_FAILED: a node failed: squares/item[3]: ODD: cannot square 3\n" in shown.out
    assert (
        "\nsquares: SUBWORKFLOW_FAILED: inside it, a node failed: item[3]: ODD: cannot square 3, and 1 more"
        in shown.out
    )
    ((child,),) = db.execute("SELECT id FROM horsies_workflows WHERE definition_key = 'map'")
    inside = await asyncio.to_thread(Operator(db, capsys), "workflows", "show", child)
    assert "\nitem-3: ODD: cannot square 3\n  Boom\n" in inside.out


async def test_workflows_inside_name_the_node_that_failed(t: SimpleNamespace) -> None:
    items = t.spread.node(node_id="items")(4)
    inner = t.app.workflow("inner", [items, t.square.node(node_id="squares").map(items)])
    middle = t.app.workflow("middle", [t.number.node()(1), inner.node(node_id="in")])
    handle = await t.app.workflow(
        "outer", [middle.node(node_id="mid"), t.fail.node(node_id="too")("OTHER")]
    ).start_async()
    error = await error_of(t, handle)
    assert error.message == "a node failed: mid/in/squares/item[3]: ODD: cannot square 3, and 1 more"
    assert error.data["failed"] == ["mid", "too"]
    node = (await handle.results_async())["mid"].err_value
    assert node.message == "inside it, a node failed: in/squares/item[3]: ODD: cannot square 3"


async def test_a_policy_that_is_not_met_names_the_failure_too(t: SimpleNamespace) -> None:
    bad, good = t.fail.node(node_id="bad")("DEEP"), t.number.node(node_id="good")(1)
    policy = SuccessPolicy([SuccessCase([bad])])
    inner = t.app.workflow("inner", [bad, good], success_policy=policy).node(node_id="in")
    handle = await t.app.workflow("outer", [inner]).start_async()
    told = "no case of its success policy was met: bad: DEEP: as the test wanted"
    assert (await error_of(t, handle)).message == "a node failed: in/bad: DEEP: as the test wanted"
    node = (await handle.results_async())["in"].err_value
    assert node.message == f"inside it, {told}"


async def test_a_policy_that_is_not_met_for_skipped_nodes_names_them(t: SimpleNamespace) -> None:
    """The workflow inside completes by its own policy, although its output node failed: no node of the run failed."""
    bad, good = t.fail.node(node_id="bad")(), t.number.node(node_id="good")(1)
    sub = t.app.workflow("inner", [bad, good], output=bad, success_policy=SuccessPolicy([SuccessCase([good])]))
    inner = sub.node(node_id="in")
    takers = [t.plus.node(node_id=f"taker{n}")(from_node(inner), n) for n in range(2)]
    policy = SuccessPolicy([SuccessCase([taker, inner]) for taker in takers])
    handle = await t.app.workflow("outer", [inner, *takers], success_policy=policy).start_async()
    error = await error_of(t, handle)
    assert error.error_code == "WORKFLOW_SUCCESS_CASE_NOT_MET"
    assert error.message == "no case of its success policy was met: taker0 was skipped, and 1 more"
    assert error.data == {"failed": [], "skipped": ["taker0", "taker1"]}


async def test_a_workflow_inside_that_was_cancelled(t: SimpleNamespace, db: Database) -> None:
    inner = t.app.workflow("inner", [t.number.node(node_id="x")(1)]).node(node_id="in")
    handle = await t.app.workflow("outer", [inner]).start_async()
    t.engine.advancers[0].check([handle.workflow_id])
    await t.engine.advance()
    ((child,),) = db.execute("SELECT sub_workflow_id FROM horsies_workflow_tasks WHERE node_id = 'in'")
    await t.app.workflow_handle(child).cancel_async()
    error = await error_of(t, handle)
    assert error.message == "a node failed: in: SUBWORKFLOW_FAILED: inside it, the workflow was cancelled"


async def test_an_error_that_an_older_release_stored(t: SimpleNamespace, db: Database) -> None:
    """A node whose error names no cause, or none at all."""
    bad = t.fail.node(node_id="bad")()
    handle = await t.app.workflow("outer", [bad, t.number.node(node_id="last", waits_for=[bad])(1)]).start_async()
    rows = await t.engine.claim()
    await t.engine.end(rows, answer)
    for stored, told in (
        ('{"err":{"error_code":"SUBWORKFLOW_FAILED","message":"the workflow inside it has failed","data":{"err":1}}}',
         "SUBWORKFLOW_FAILED: the workflow inside it has failed"),
        (None, ": no error is stored"),
        ("not json", ": not json"),
    ):  # fmt: skip
        await t.engine.recover()
        db.execute("UPDATE horsies_workflow_tasks SET error = %s WHERE node_id = 'bad'", stored)
        db.execute("UPDATE horsies_workflows SET status = 'RUNNING', completed_at = NULL, error = NULL, nodes_left = 0")
        await t.engine.recover()
        assert told in (await t.app.workflow_handle(handle.workflow_id).get_async(5_000)).err_value.message
