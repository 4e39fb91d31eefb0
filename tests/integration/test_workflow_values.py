"""What a node is given when a value does not exist: it is skipped, it fails, or it gets the error; its parameter's
default is never used in place of a value. And what it is given of nodes that may not have ended."""

import json
from collections.abc import AsyncIterator, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from horsies import (
    Horsies,
    NodeStatus,
    SuccessCase,
    SuccessPolicy,
    TaskError,
    WorkflowDefinition,
    WorkflowHandle,
    WorkflowSpec,
    WorkflowStatus,
    from_node,
    result_from,
)
from tests.support import workflow_app
from tests.support.apps import make_app
from tests.support.engine import Engine
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database
NAMES = ("number", "square", "spread", "fail", "code_of", "work", "gathered", "total")


def answer(name: str, given: Mapping[str, Any]) -> Any:
    match name:
        case "number":
            return given["n"]
        case "square":
            return given["x"] ** 2 + given.get("offset", 0)
        case "spread":
            return list(range(given["n"]))
        case "fail":
            return TaskError(given.get("code", "BROKEN"), "as the test wanted")
        case "code_of":
            return "ok" if "ok" in given["result"] else given["result"]["err"]["error_code"]
        case "work":
            return given["n"] + given.get("a", 1000)
        case "gathered":
            results = given["ctx"]["results"].items()
            return json.dumps({key: one.get("ok", one.get("err", {}).get("error_code")) for key, one in results})
        case _:
            return sum(given["numbers"])


@pytest.fixture
async def t(db: Database) -> AsyncIterator[SimpleNamespace]:
    async with make_app(db) as app, Engine.on(db, NAMES) as engine:
        tasks = workflow_app.register(app)
        tasks.app, tasks.engine, tasks.db = app, engine, db
        yield tasks


async def ended(t: SimpleNamespace, handle: WorkflowHandle[Any]) -> dict[str, str]:
    """Run everything; the states of the nodes."""
    await t.engine.drain(answer)
    return {node.node_id: node.status.value for node in await handle.tasks_async()}


def without_output(t: SimpleNamespace, name: str = "inside") -> WorkflowSpec[int]:
    """Completes by its policy, although its output node fails."""
    bad, good = t.fail.node(node_id="bad")(), t.number.node(node_id="good")(1)
    app: Horsies = t.app
    return app.workflow(name, [bad, good], output=bad, success_policy=SuccessPolicy([SuccessCase([good])]))


async def forget_results(t: SimpleNamespace, node_id: str) -> None:
    """The node completes, and its result is not stored."""
    await t.engine.hands.connection.execute(
        "UPDATE horsies_workflow_tasks SET result = NULL WHERE node_id = $1 AND status = 'COMPLETED'", node_id
    )


# -- a value that does not exist ---------------------------------------------------------------------------------


async def test_the_value_of_a_workflow_whose_output_failed_skips_its_taker(t: SimpleNamespace) -> None:
    inner = without_output(t).node(node_id="inner")
    taker = t.work.node(node_id="taker")(5, from_node(inner))  # its `a` has a default
    judge = t.code_of.node(node_id="judge")(result_from(inner))
    handle = await t.app.workflow("outer", [inner, taker, judge]).start_async()
    assert await ended(t, handle) == {"inner": "COMPLETED", "taker": "SKIPPED", "judge": "COMPLETED"}
    assert (await handle.result_for_async(taker)).err_value.error_code == "UPSTREAM_SKIPPED"
    assert (await handle.result_for_async(judge)).ok == "BROKEN"
    assert (await handle.result_for_async(inner)).err_value.error_code == "BROKEN"


@pytest.mark.parametrize("allow_failed", [False, True])
async def test_a_value_that_was_not_stored_fails_its_taker(t: SimpleNamespace, allow_failed: bool) -> None:
    source = t.number.node(node_id="source")(1)
    gate = t.number.node(node_id="gate", waits_for=[source])(1)
    taker = t.work.node(node_id="taker", waits_for=[gate], allow_failed_deps=allow_failed)(5, from_node(source))
    judge = t.code_of.node(node_id="judge", waits_for=[gate])(result_from(source))
    context = t.gathered.node(node_id="context", waits_for=[gate], workflow_ctx_from=[source])()
    handle = await t.app.workflow("outer", [source, gate, taker, judge, context]).start_async()
    t.engine.advancers[0].tasks_ended(await t.engine.end(await t.engine.claim(), answer))
    await t.engine.advance()
    await forget_results(t, "source")
    states = await ended(t, handle)
    assert (states["taker"], states["judge"], states["context"]) == ("FAILED", "COMPLETED", "COMPLETED")
    error = (await handle.result_for_async(taker)).err_value
    assert error.error_code == "RESULT_NOT_AVAILABLE"
    assert "'source'" in error.message
    assert (await handle.result_for_async(judge)).ok == "RESULT_NOT_AVAILABLE"
    assert json.loads(t.db.execute("SELECT result FROM horsies_workflow_tasks WHERE node_id = 'context'")[0][0]) == {
        "ok": json.dumps({"source": "RESULT_NOT_AVAILABLE"})
    }
    # the handle says the same of it, and does not say that it has not ended
    assert (await handle.result_for_async(source)).err_value.error_code == "RESULT_NOT_AVAILABLE"
    assert (await handle.results_async())["source"].err_value.error_code == "RESULT_NOT_AVAILABLE"


@pytest.mark.parametrize("text", ['{"ok":null}', '{"ok": null}'])
async def test_null_is_a_value(t: SimpleNamespace, text: str) -> None:
    """It is given on, with and without a space in its text."""
    source = t.number.node(node_id="source")(1)
    gate = t.number.node(node_id="gate", waits_for=[source])(1)
    taker = t.work.node(node_id="taker", waits_for=[gate])(5, from_node(source))
    await t.app.workflow("outer", [source, gate, taker]).start_async()
    for _ in range(2):
        t.engine.advancers[0].tasks_ended(await t.engine.end(await t.engine.claim(), answer))
        t.db.execute(
            "UPDATE horsies_workflow_tasks SET result = %s WHERE node_id = 'source' AND result IS NOT NULL", text
        )
        await t.engine.advance()
        t.db.execute(
            "UPDATE horsies_workflow_tasks SET result = %s WHERE node_id = 'source' AND result IS NOT NULL", text
        )
    ((kwargs,),) = t.db.execute("SELECT kwargs FROM horsies_tasks WHERE task_name = 'work'")
    assert json.loads(kwargs) == {"n": 5, "a": None}


async def test_a_workflow_inside_that_takes_a_missing_value_is_skipped_or_fails(t: SimpleNamespace) -> None:
    first = without_output(t).node(node_id="first")
    stored = t.number.node(node_id="stored")(2)

    def inside(source: Any, name: str) -> Any:
        class Inside(WorkflowDefinition[int], app=t.app, name=name):
            @classmethod
            def build_with(cls, a: int) -> WorkflowSpec[int]:
                node = t.work.node(node_id="leaf")(5, a)
                return cls.workflow([node], output=node)

        return Inside.build_with(from_node(source)).node(node_id=name, waits_for=[gate])

    gate = t.number.node(node_id="gate", waits_for=[stored])(1)
    skipped, failed = inside(first, "skipped"), inside(stored, "failed")
    handle = await t.app.workflow("outer", [first, stored, gate, skipped, failed]).start_async()
    t.engine.advancers[0].tasks_ended(await t.engine.end(await t.engine.claim(), answer))
    await t.engine.advance()
    await forget_results(t, "stored")
    states = await ended(t, handle)
    assert (states["skipped"], states["failed"]) == ("SKIPPED", "FAILED")
    assert (await handle.result_for_async(failed)).err_value.error_code == "RESULT_NOT_AVAILABLE"


@pytest.mark.parametrize("count", [0, 3])
@pytest.mark.parametrize("source", ["failed", "skipped", "without output", "not stored"])
async def test_a_map_whose_further_argument_is_missing(t: SimpleNamespace, count: int, source: str) -> None:
    """Also when there is no item that would take it: whether a node runs does not depend on the length of a list."""
    items = t.spread.node(node_id="items")(count)
    bad = t.fail.node(node_id="bad")()
    extra = {
        "failed": t.fail.node(node_id="extra"),
        "skipped": lambda: t.number.node(node_id="extra", waits_for=[bad])(1),
        "without output": lambda: without_output(t).node(node_id="extra"),
        "not stored": lambda: t.number.node(node_id="extra")(1),
    }[source]()
    gate = t.number.node(node_id="gate", waits_for=[items, extra], allow_failed_deps=True)(1)
    squares = t.square.node(node_id="squares", waits_for=[gate], allow_failed_deps=True).map(
        items, offset=from_node(extra)
    )
    handle = await t.app.workflow("outer", [items, bad, extra, gate, squares]).start_async()
    for _ in range(2 if source == "not stored" else 0):
        t.engine.advancers[0].tasks_ended(await t.engine.end(await t.engine.claim(), answer))
        await t.engine.advance()
        await forget_results(t, "extra")
    states = await ended(t, handle)
    wanted = ("FAILED", "RESULT_NOT_AVAILABLE") if source == "not stored" else ("SKIPPED", "UPSTREAM_SKIPPED")
    assert (states["squares"], (await handle.result_for_async(squares)).err_value.error_code) == wanted
    assert not t.db.execute("SELECT 1 FROM horsies_workflows WHERE definition_key = 'map'")


async def test_a_map_one_of_whose_results_was_not_stored_has_no_result(t: SimpleNamespace) -> None:
    items = t.spread.node(node_id="items")(3)
    squares = t.square.node(node_id="squares").map(items)
    taker = t.total.node(node_id="taker")(from_node(squares))
    handle = await t.app.workflow("outer", [items, squares, taker]).start_async()
    for _ in range(2):
        rows = await t.engine.claim()
        if rows[0]["task_name"] == "square":
            t.engine.advancers[0].tasks_ended(await t.engine.end(rows[:2], answer))
            await t.engine.advance()
            await forget_results(t, "item-1")
            rows = rows[2:]
        t.engine.advancers[0].tasks_ended(await t.engine.end(rows, answer))
        await t.engine.advance()
    assert (await ended(t, handle))["taker"] == "FAILED"
    assert (await handle.result_for_async(taker)).err_value.error_code == "RESULT_NOT_AVAILABLE"
    assert (await handle.result_for_async(squares)).err_value.error_code == "RESULT_NOT_AVAILABLE"


# -- the sources of a context ------------------------------------------------------------------------------------


async def end_only(t: SimpleNamespace, *node_ids: str) -> None:
    """Run the tasks of these nodes; others are given back."""
    rows = {row["id"]: row for row in await t.engine.claim()}
    nodes = dict(t.db.execute("SELECT task_id, node_id FROM horsies_workflow_tasks WHERE task_id IS NOT NULL"))
    t.kept = [*getattr(t, "kept", []), *(row for key, row in rows.items() if nodes[key] not in node_ids)]
    mine = [row for row in t.kept if nodes[row["id"]] in node_ids]
    mine += [row for key, row in rows.items() if nodes[key] in node_ids]
    t.kept = [row for row in t.kept if row not in mine]
    t.engine.advancers[0].tasks_ended(await t.engine.end(mine, answer))
    await t.engine.advance()


@pytest.mark.parametrize("options", [{"join": "any"}, {"join": "quorum", "min_success": 2}])
@pytest.mark.parametrize("order", [("a", "b", "c", "bad"), ("bad", "c", "b", "a"), ("c", "bad", "a", "b")])
async def test_every_source_of_a_context_has_ended(
    t: SimpleNamespace, options: dict[str, Any], order: tuple[str, ...]
) -> None:
    """Whichever way they end: the join decides whether the node runs, its context decides when."""
    nodes = {name: t.number.node(node_id=name)(n) for n, name in enumerate("abc")}
    nodes["bad"] = t.fail.node(node_id="bad")()
    sources = [nodes["a"], nodes["b"], nodes["bad"]]
    taker = t.gathered.node(node_id="taker", waits_for=list(nodes.values()), workflow_ctx_from=sources, **options)()
    handle = await t.app.workflow("outer", [*nodes.values(), taker]).start_async()
    open_ = {"a", "b", "bad"}
    for name in order:
        state = {node.node_id: node.status for node in await handle.tasks_async()}["taker"]
        assert (state is NodeStatus.PENDING) == bool(open_), (name, state)
        await end_only(t, name)
        open_.discard(name)
    assert (await ended(t, handle))["taker"] == "COMPLETED"
    ((text,),) = t.db.execute("SELECT result FROM horsies_workflow_tasks WHERE node_id = 'taker'")
    assert json.loads(json.loads(text)["ok"]) == {"a": 0, "b": 1, "bad": "BROKEN"}


async def test_a_context_does_not_hold_back_a_skip(t: SimpleNamespace) -> None:
    """A quorum that cannot be met any more is decided at once."""
    slow = t.number.node(node_id="slow")(1)
    bad = [t.fail.node(node_id=f"bad{n}")() for n in range(2)]
    taker = t.gathered.node(
        node_id="taker", waits_for=[*bad, slow], workflow_ctx_from=[slow, *bad], join="quorum", min_success=2
    )()
    handle = await t.app.workflow("outer", [slow, *bad, taker]).start_async()
    await end_only(t, "bad0", "bad1")
    states = {node.node_id: node.status.value for node in await handle.tasks_async()}
    assert (states["slow"], states["taker"]) == ("RUNNING", "SKIPPED")


@pytest.mark.parametrize("sources", [["good", "bad"], ["bad"]])
async def test_a_retried_node_waits_for_its_context_again(t: SimpleNamespace, sources: list[str]) -> None:
    nodes = {"good": t.number.node(node_id="good")(1), "bad": t.fail.node(node_id="bad")()}
    taker = t.gathered.node(
        node_id="taker", join="any", waits_for=list(nodes.values()), workflow_ctx_from=[nodes[one] for one in sources]
    )()
    handle = await t.app.workflow("outer", [*nodes.values(), taker]).start_async()
    await t.engine.drain(lambda name, given: TaskError("ONCE") if name == "gathered" else answer(name, given))
    assert await handle.status_async() is WorkflowStatus.FAILED
    assert await handle.retry_async()
    for advancer in t.engine.advancers:
        advancer.check([handle.workflow_id])
    await t.engine.advance()
    states = {node.node_id: node.status.value for node in await handle.tasks_async()}
    assert states == {"good": "COMPLETED", "bad": "ENQUEUED", "taker": "PENDING"}
    await t.engine.drain(lambda name, given: 7 if name == "fail" else answer(name, given))
    ((text,),) = t.db.execute("SELECT result FROM horsies_workflow_tasks WHERE node_id = 'taker'")
    assert json.loads(json.loads(text)["ok"])["bad"] == 7


async def test_a_result_that_is_taken_from_a_branch_that_has_not_ended(t: SimpleNamespace) -> None:
    """With `any` a node starts at the first success: what it takes from a slower branch is err RESULT_NOT_READY."""
    fast, slow = t.number.node(node_id="fast")(1), t.number.node(node_id="slow")(2)
    taker = t.code_of.node(node_id="taker", join="any", waits_for=[fast])(result_from(slow))
    handle = await t.app.workflow("outer", [fast, slow, taker]).start_async()
    await end_only(t, "fast")
    await end_only(t, "taker")
    assert (await handle.result_for_async(taker)).ok == "RESULT_NOT_READY"
    await end_only(t, "slow")
    assert await handle.status_async() is WorkflowStatus.COMPLETED
