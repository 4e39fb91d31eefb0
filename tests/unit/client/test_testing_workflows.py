"""Workflows in `testing.inline`: 300 random graphs against the model that the engine is tested with, and what each kind
of node, join and end looks like."""

import random
from typing import Any

import pytest

from horsies import (
    NodeStatus,
    OutcomeCode,
    RetrievalCode,
    SuccessCase,
    SuccessPolicy,
    TaskFailed,
    TaskResult,
    WorkflowDefinition,
    WorkflowStatus,
    from_node,
    result_from,
    testing,
)
from tests.support import workflow_app
from tests.support.apps import UNREACHABLE, make_app
from tests.support.workflow_model import build, compare, random_graph


@pytest.fixture
def t(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(workflow_app.time, "sleep", lambda _seconds: None)  # `work` sleeps to mix the order of ends
    app = make_app(UNREACHABLE)
    tasks = workflow_app.register(app)
    tasks.app = app
    return tasks


@pytest.mark.parametrize("seed", range(10))
def test_random_graphs_end_as_the_model_says(t: Any, seed: int) -> None:
    chance = random.Random(seed)
    wrong: list[str] = []
    for number in range(30):
        graph = random_graph(chance)
        _let_fail(graph)
        spec = build(t.app, t, graph, f"graph-{seed}-{number}")
        with testing.inline(t.app) as sends:
            handle = spec.start()
            (run,) = sends.started()
            states = [str(run.nodes[node_id]) for node_id in run.node_ids]
            wrong += [f"{seed}/{number}: {what}" for what in compare(graph, run.status, states, handle.results())]
            assert handle.status() is run.status
    assert not wrong


def _let_fail(graph: Any) -> None:
    """The model says how a run ends, and a paused one does not."""
    graph.on_error = "fail"
    for plan in graph.nodes:
        if plan.inside is not None:
            _let_fail(plan.inside)


def test_values_maps_and_workflows_inside(t: Any) -> None:
    numbers = t.spread.node(node_id="numbers")(4)
    squares = t.square.node(node_id="squares").map(numbers, 1)
    total = t.total.node(node_id="total")(from_node(squares))
    inner = t.app.workflow("inner", [numbers, squares, total], output=total)
    sub = inner.node(node_id="sub")
    plus = t.plus.node(node_id="plus")(from_node(sub), 100)
    place = t.where.node(node_id="place", waits_for=[plus])()
    outer = t.app.workflow("outer", [sub, plus, place], output=plus)
    with testing.inline(t.app) as sends:
        handle = outer.start(metadata={"tenant": "acme"})
        assert handle.get() == TaskResult(ok=118)
        assert handle.result_for(place) == TaskResult(ok=[handle.workflow_id, "outer", "place", "2"])
    assert {sent.metadata["tenant"] for sent in sends.sent()} == {"acme"}
    items = sends.sent(t.square)
    assert [(sent.node_id, sent.arguments) for sent in items] == [
        (f"item-{x}", {"x": x, "offset": 1}) for x in range(4)
    ]
    assert sends.sent(t.plus)[0].workflow_id == handle.workflow_id


def test_a_map_over_nothing_and_over_too_much(t: Any) -> None:
    few, many = t.spread.node(node_id="few")(0), t.spread.node(node_id="many")(5)
    none = t.square.node(node_id="none").map(few)
    wide = t.square.node(node_id="wide", max_width=4).map(many)
    flow = t.app.workflow("maps", [few, many, none, wide], output=none)
    with testing.inline(t.app):
        handle = flow.start()
        assert handle.result_for(none) == TaskResult(ok=[])
        failed = handle.result_for(wide).err_value
    assert failed.error_code == "WORKFLOW_ENQUEUE_FAILED"
    assert failed.message == "the list has 5 items, more than its max_width of 4"


def test_a_failure_skips_what_waits_for_it_and_is_named(t: Any) -> None:
    bad = t.fail.node(node_id="bad")()
    after = t.plus.node(node_id="after")(from_node(bad), 1)
    sees = t.code_of.node(node_id="sees", allow_failed_deps=True)(result_from(bad))
    inner = t.app.workflow("inner", [bad, after, sees], output=sees)
    sub = inner.node(node_id="sub")
    outer = t.app.workflow("outer", [sub], output=sub)
    with testing.inline(t.app) as sends:
        error = outer.start().get().err_value
        run = inner.start()
        assert run.result_for(sees) == TaskResult(ok="BROKEN")
        assert run.result_for(after).err_value.error_code == OutcomeCode.UPSTREAM_SKIPPED
    assert error.error_code == OutcomeCode.WORKFLOW_FAILED
    assert error.message == "a node failed: sub/bad: BROKEN: as the test wanted"
    assert sends.started("inner")[0].nodes == {
        "bad": NodeStatus.FAILED, "after": NodeStatus.SKIPPED, "sees": NodeStatus.COMPLETED,
    }  # fmt: skip


def test_joins_and_a_success_policy(t: Any) -> None:
    good, bad = t.number.node(node_id="good")(1), t.fail.node(node_id="bad")()
    first = t.join.node(node_id="first", join="any", waits_for=[good, bad])("x")
    two = t.join.node(node_id="two", join="quorum", min_success=2, waits_for=[good, bad])("y")
    policy = SuccessPolicy([SuccessCase([first])])
    flow = t.app.workflow("joins", [good, bad, first, two], output=first, success_policy=policy)
    with testing.inline(t.app) as sends:
        assert flow.start().get() == TaskResult(ok="x")
    assert sends.started()[0].nodes["two"] is NodeStatus.SKIPPED


def test_on_error_pause_starts_no_more_nodes(t: Any) -> None:
    bad, waiting = t.fail.node(node_id="bad")(), t.number.node(node_id="waiting")(1)
    later = t.number.node(node_id="later", waits_for=[waiting])(2)
    paused = t.app.workflow("paused", [bad, waiting, later], output=later, on_error="pause")
    sub = paused.node(node_id="sub")
    outer = t.app.workflow("outer", [sub], output=sub)
    with testing.inline(t.app) as sends:
        handle = paused.start()
        assert handle.status() is WorkflowStatus.PAUSED
        assert handle.get().err_value.error_code == RetrievalCode.WAIT_TIMEOUT
        assert outer.start().status() is WorkflowStatus.PAUSED
    run = sends.assert_started(paused)
    assert run.error is not None
    assert run.error.message == "a node failed: bad: BROKEN: as the test wanted; on_error is pause"
    assert run.nodes["bad"] is NodeStatus.FAILED
    assert all(sent.status.value == "PENDING" for sent in sends.sent(t.number))


def test_a_workflow_that_is_a_class(t: Any) -> None:
    class Nightly(WorkflowDefinition[int], app=t.app, name="nightly"):
        one = t.number.node()(1)
        two = t.plus.node()(from_node(one), 1)
        output = two

    with testing.inline(t.app) as sends:
        assert Nightly.build().start().get() == TaskResult(ok=2)
    assert sends.assert_started(Nightly).nodes == {"one": NodeStatus.COMPLETED, "two": NodeStatus.COMPLETED}


def test_raise_errors_names_the_run_and_its_cause(t: Any) -> None:
    @t.app.task("explode")
    def explode() -> workflow_app.Number:
        raise ZeroDivisionError("bang")

    flow = t.app.workflow("flow", [explode.node(node_id="bang")()])
    with testing.inline(t.app, raise_errors=True), pytest.raises(TaskFailed, match="bang: UNHANDLED_EXCEPTION") as got:
        flow.start()
    assert isinstance(got.value.__cause__, ZeroDivisionError)


async def test_from_async_code(t: Any) -> None:
    @t.app.task("awaited")
    async def awaited(x: int) -> workflow_app.Number:
        return TaskResult(ok=x + 1)

    one = awaited.node(node_id="one")(1)
    two = awaited.node(node_id="two")(from_node(one))
    flow = t.app.workflow("flow", [one, two], output=two)
    with testing.inline(t.app):
        handle = await flow.start_async()
        assert await handle.get_async() == TaskResult(ok=3)
        assert (await handle.results_async())["one"] == TaskResult(ok=2)
