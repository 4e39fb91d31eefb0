"""Branches: `when`, `unless`, `either`, and partial maps. Each docstring begins with a row of the table of cases."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from horsies import WorkflowStatus, either, from_node, result_from, sleep, wait_for_signal
from horsies.workflow.mapping import map_workflow
from tests.support import cases
from tests.support.cases import HOUR, NAMES, Answers, pass_time, reasons, states
from tests.support.engine import Engine
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database

COMPLETED, FAILED = WorkflowStatus.COMPLETED, WorkflowStatus.FAILED


@pytest.fixture
async def t(db: Database) -> AsyncIterator[SimpleNamespace]:
    async with cases.tasks(db) as tasks:
        yield tasks


async def drained(db: Database, spec: Any, *, seed: int | None = None, answers: Answers | None = None) -> Any:
    """The handle of a run of this workflow, when nothing changes any more."""
    handle = await spec.start_async()
    async with Engine.on(db, NAMES) as engine:
        answers = answers or Answers()
        await (cases.with_deaths(engine, answers, seed) if seed else engine.drain(answers))
        assert await engine.recover() == 0
    cases.check(db)
    return handle


# -- when -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
@pytest.mark.parametrize("value", [True, False])
async def test_a_branch_that_is_not_taken(t: SimpleNamespace, db: Database, value: bool, seed: int | None) -> None:
    """`when` false: SKIPPED / not_taken; its edge leaves every join (`deps_void`): the rest counts; none left, or fewer
    than the quorum → not_taken"""
    check = t.is_true.node(node_id="check")(value)
    a, b, c = (t.number.node(node_id=name)(n) for n, name in enumerate("abc"))
    yes = t.number.node(node_id="yes", when=check)(1)
    no = t.number.node(node_id="no", unless=check)(2)
    rest = sleep(0, node_id="rest", when=check)

    def join(name: str, waits: Any, **options: Any) -> Any:
        return t.number.node(node_id=name, waits_for=waits, **options)(0)

    nodes = [
        check, a, b, c, yes, no, rest,
        join("rest_counts", [yes, a]), join("none_left", [yes]), join("none_left_any", [yes, rest], join="any"),
        join("one_left_any", [yes, a], join="any"), join("none_left_allowed", [yes], allow_failed_deps=True),
        join("enough", [yes, a, b], join="quorum", min_success=2),
        join("too_few", [yes, rest, a], join="quorum", min_success=2),
    ]  # fmt: skip
    nodes.append(join("behind", [nodes[8]]))  # behind none_left
    nodes.append(join("end", [yes, no, nodes[-1]]))
    handle = await drained(db, t.app.workflow("w", nodes), seed=seed)
    gone = {"yes", "rest", "none_left", "none_left_any", "none_left_allowed", "too_few", "behind"}
    skipped = {"no"} if value else gone
    assert await states(handle) == {
        node.node_id: "SKIPPED" if node.node_id in skipped else "COMPLETED" for node in nodes
    }
    assert reasons(db, handle.workflow_id) == dict.fromkeys(skipped, "not_taken")
    assert await handle.status_async() is COMPLETED
    results = await handle.results_async()
    assert {results[name].err_value.error_code for name in skipped} == {"BRANCH_NOT_TAKEN"}


async def test_a_branch_that_is_decided_before_or_after_its_dependencies(t: SimpleNamespace, db: Database) -> None:
    """`when` false: SKIPPED / not_taken, as soon as it is decided; taken, it still waits for its dependencies"""
    check = wait_for_signal("ok", bool, node_id="check")
    slow = wait_for_signal("go", int, node_id="slow")
    then = t.number.node(node_id="then", when=check, waits_for=[slow])(1)
    spec = t.app.workflow("w", [check, slow, then])
    runs = [await spec.start_async() for _ in range(3)]
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers())
        for run, value in zip(runs, (True, False, True), strict=True):
            if run is runs[2]:
                await run.signal_async(slow, 1)
                await engine.drain(Answers())
                assert (await states(run))["then"] == "PENDING"
            await run.signal_async(check, value)
        await engine.drain(Answers())
        assert [(await states(run))["then"] for run in runs] == ["PENDING", "SKIPPED", "COMPLETED"]
        await runs[0].pause_async()
        await runs[0].signal_async(slow, 1)
        await engine.drain(Answers())
        assert (await states(runs[0]))["then"] == "READY"
        await runs[0].resume_async()
        await runs[1].cancel_async()
        await engine.drain(Answers())
        assert (await states(runs[0]))["then"] == "COMPLETED"
    cases.check(db)


async def test_branches_of_whole_workflows_and_maps(t: SimpleNamespace, db: Database) -> None:
    """`when` false: SKIPPED / not_taken, for each kind of node"""
    check = t.is_true.node(node_id="check")(False)
    items = t.spread.node(node_id="items")(3)
    inner = t.app.workflow("inner", [t.number.node()(1)])
    nodes = [
        check, items, inner.node(node_id="sub", when=check), t.square.node(node_id="map", when=check).map(items),
        wait_for_signal("go", int, node_id="signal", when=check), inner.node(node_id="taken", unless=check),
    ]  # fmt: skip
    handle = await drained(db, t.app.workflow("w", nodes))
    skipped = ("sub", "map", "signal")
    assert reasons(db, handle.workflow_id) == dict.fromkeys(skipped, "not_taken")
    await cases.ended_as(handle, COMPLETED)


@pytest.mark.parametrize("kind", ["failed", "skipped", "timed out"])
async def test_a_condition_that_has_no_value(t: SimpleNamespace, db: Database, kind: str) -> None:
    """`when` source failed: SKIPPED / upstream, even with `allow_failed_deps`"""
    bad = t.fail.node(node_id="bad")()
    check: Any = t.is_true.node(node_id="check", waits_for=[bad] if kind == "skipped" else [])(True)
    if kind == "timed out":
        check = wait_for_signal("ok", bool, node_id="check", timeout=HOUR)
    one = t.number.node(node_id="one")(1)
    nodes = [
        bad, check, one, t.number.node(node_id="when", when=check, waits_for=[one], allow_failed_deps=True)(1),
        t.number.node(node_id="unless", unless=check)(1),
    ]  # fmt: skip
    handle = await t.app.workflow("w", nodes).start_async()
    answers = Answers()

    def answer(name: str, given: Any) -> Any:
        return answers("fail", {}) if name == "is_true" else answers(name, given)

    async with Engine.on(db, NAMES) as engine:
        await engine.drain(answer)
        if kind == "timed out":
            pass_time(db, HOUR + 1)
            await engine.drain(answer)
    found = reasons(db, handle.workflow_id)
    assert (found["when"], found["unless"]) == ("upstream", "upstream")
    await cases.ended_as(handle, FAILED)
    cases.check(db)


async def test_a_condition_in_a_branch_that_is_not_taken(t: SimpleNamespace, db: Database) -> None:
    """`when` false: SKIPPED / not_taken. A condition that was not taken itself decides the same"""
    outer = t.is_true.node(node_id="outer")(False)
    inner = t.is_true.node(node_id="inner", when=outer)(True)
    nodes = [outer, inner, t.number.node(node_id="when", when=inner)(1), t.number.node(node_id="not", unless=inner)(1)]
    handle = await drained(db, t.app.workflow("w", nodes))
    assert reasons(db, handle.workflow_id) == dict.fromkeys(("inner", "when", "not"), "not_taken")
    await cases.ended_as(handle, COMPLETED)


# -- values of branches ---------------------------------------------------------------------------


@pytest.mark.parametrize("value", [True, False])
async def test_takers_of_a_branch(t: SimpleNamespace, db: Database, value: bool) -> None:
    """taker of a not-taken bare value: SKIPPED; `either(a, b)` takes the branch that ran; output not taken →
    RESULT_NOT_AVAILABLE"""
    check = t.is_true.node(node_id="check")(value)
    a = t.number.node(node_id="a", when=check)(1)
    b = t.number.node(node_id="b", unless=check)(2)
    one = t.number.node(node_id="one")(5)
    bare = t.plus.node(node_id="bare")(from_node(a), from_node(one))
    chosen = t.plus.node(node_id="chosen")(either(a, b), from_node(one))
    seen = t.code_of.node(node_id="seen", waits_for=[one])(result_from(a))
    items = t.spread.node(node_id="items", when=check)(2)
    mapped = t.square.node(node_id="mapped", waits_for=[one]).map(items)
    nodes = [check, a, b, one, bare, chosen, seen, items, mapped]
    handle = await drained(db, t.app.workflow("w", nodes, output=bare))
    results = await handle.results_async()
    assert results["chosen"].ok == (6 if value else 7)
    assert results["seen"].ok == ("ok" if value else "BRANCH_NOT_TAKEN")
    result = await cases.ended_as(handle, COMPLETED)
    if value:
        assert result.ok == 6
        assert reasons(db, handle.workflow_id) == {"b": "not_taken"}
    else:
        assert result.err_value.error_code == "RESULT_NOT_AVAILABLE"
        assert reasons(db, handle.workflow_id) == dict.fromkeys(("a", "bare", "items", "mapped"), "not_taken")


async def test_either_where_no_branch_ran(t: SimpleNamespace, db: Database) -> None:
    """taker of a not-taken bare value: SKIPPED; `either(a, b)` of two branches that were not taken too, and where one
    failed the reason is upstream"""
    check = t.is_true.node(node_id="check")(False)
    a, b = (t.number.node(node_id=name, when=check)(1) for name in "ab")
    bad = t.fail.node(node_id="bad", unless=check)()
    neither = t.number.node(node_id="neither")(either(a, b))
    broken = t.number.node(node_id="broken")(either(a, bad))
    handle = await drained(db, t.app.workflow("w", [check, a, b, bad, neither, broken]))
    assert reasons(db, handle.workflow_id) == {
        "a": "not_taken", "b": "not_taken", "neither": "not_taken", "broken": "upstream"
    }  # fmt: skip
    await cases.ended_as(handle, FAILED)


async def test_the_output_of_a_child_that_was_not_taken(t: SimpleNamespace, db: Database) -> None:
    """taker of a not-taken bare value: SKIPPED. Of a child whose output was not taken there is no value either"""
    check = t.is_true.node(node_id="check")(False)
    out = t.number.node(node_id="out", when=check)(1)
    sub = t.app.workflow("inner", [check, out], output=out).node(node_id="sub")
    bare = t.number.node(node_id="bare")(from_node(sub))
    seen = t.code_of.node(node_id="seen")(result_from(sub))
    handle = await drained(db, t.app.workflow("outer", [sub, bare, seen]))
    assert await states(handle) == {"sub": "COMPLETED", "bare": "SKIPPED", "seen": "COMPLETED"}
    assert (await handle.results_async())["seen"].ok == "RESULT_NOT_AVAILABLE"


async def test_a_retry_decides_again(t: SimpleNamespace, db: Database) -> None:
    """`when` false: SKIPPED / not_taken. A retry of other nodes keeps the decision; a retried condition decides anew"""
    check = t.is_true.node(node_id="check")(True)
    then = t.number.node(node_id="then", unless=check)(1)
    other = t.number.node(node_id="other", when=check)(7)
    handle = await t.app.workflow("w", [check, then, other]).start_async()
    async with Engine.on(db, NAMES) as engine:
        await engine.drain(Answers(7))
        await cases.ended_as(handle, FAILED)
        await handle.retry_async()
        await engine.drain(Answers())
        await cases.ended_as(handle, COMPLETED)
        assert reasons(db, handle.workflow_id) == {"then": "not_taken"}
        again = await t.app.workflow("w", [check, then, other]).start_async()
        bad = Answers()
        await engine.drain(lambda name, given: bad("fail", {}) if name == "is_true" else bad(name, given))
        assert reasons(db, again.workflow_id) == dict.fromkeys(("then", "other"), "upstream")
        await again.retry_async("check")
        await engine.drain(lambda name, given: False if name == "is_true" else bad(name, given))
        assert await states(again) == {"check": "COMPLETED", "then": "COMPLETED", "other": "SKIPPED"}
        await cases.ended_as(again, COMPLETED)
    cases.check(db)


# -- partial maps ---------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", [(), (1,), (0, 1, 2)])
async def test_a_partial_map(t: SimpleNamespace, db: Database, broken: tuple[int, ...]) -> None:
    """partial map: always COMPLETED with a list of TaskResults; item failures neither pause nor compensate"""
    first = t.book.node(node_id="first", compensate=t.unbook)(9)
    items = t.spread.node(node_id="items", waits_for=[first])(3)
    parts = t.square.node(node_id="parts").map_partial(items)
    runs = map_workflow(items, lambda item: one_square(t, item), node_id="runs", partial=True)
    spec = t.app.workflow("w", [first, items, parts, runs], on_error="pause", output=parts)
    answers = Answers(*broken)
    handle = await drained(db, spec, answers=answers)
    result = await cases.ended_as(handle, COMPLETED)
    assert [one.ok if one.is_ok() else str(one.err_value.error_code) for one in result.ok] == [
        "BROKEN" if n in broken else n * n for n in range(3)
    ]
    found = (await handle.results_async())["runs"].ok
    assert [one.is_ok() for one in found] == [n not in broken for n in range(3)]
    assert answers.undone == []


def one_square(t: SimpleNamespace, item: Any) -> Any:
    node = t.square.node(node_id="square")(item)
    return t.app.workflow("one square", [node], output=node)


async def test_a_partial_map_over_nothing_and_a_cancelled_one(t: SimpleNamespace, db: Database) -> None:
    """partial map: always COMPLETED; but a run that is stopped stops it as well"""
    items = t.spread.node(node_id="items")(0)
    parts = t.square.node(node_id="parts").map_partial(items)
    handle = await drained(db, t.app.workflow("w", [items, parts], output=parts))
    assert (await cases.ended_as(handle, COMPLETED)).ok == []
    items = t.spread.node(node_id="items")(3)
    parts = t.square.node(node_id="parts").map_partial(items)
    stopped = await t.app.workflow("w", [items, parts], output=parts).start_async()
    async with Engine.on(db, NAMES) as engine:
        await cases.end_some(engine, Answers())
        assert await stopped.cancel_async()
        await engine.drain(Answers())
        assert await states(stopped) == {"items": "COMPLETED", "parts": "FAILED"}
        assert await stopped.retry_async()
        await engine.drain(Answers(2))
        result = await cases.ended_as(stopped, COMPLETED)
        assert [one.is_ok() for one in result.ok] == [True, True, False]
    cases.check(db)
