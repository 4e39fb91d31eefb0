"""Workflows on real workers: what is injected, what is skipped, and what the handle says of it."""

import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from horsies import (
    NodeStatus,
    SuccessCase,
    SuccessPolicy,
    TaskError,
    TaskNode,
    TaskResult,
    TaskSendError,
    WorkflowDefinition,
    WorkflowDefinitionError,
    WorkflowSpec,
    WorkflowStatus,
    from_node,
    result_from,
)
from tests.support import postgres, workers, workflow_app
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.worker_app import build
from tests.support.workers import describe, ended, start_worker


@pytest.fixture(scope="module")
def db() -> Iterator[Database]:
    with postgres.database() as database:
        yield database


@pytest.fixture(scope="module", autouse=True)
def running(db: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    folder = tmp_path_factory.mktemp("worker")
    process = start_worker(describe(db), folder, app=workflow_app.APP)
    workers.shared.add(process.pid)
    with ended(process):
        process.wait_up()
        yield


@pytest.fixture
def t(db: Database) -> Iterator[SimpleNamespace]:
    with build(describe(db)) as app:
        tasks = workflow_app.register(app)
        tasks.app = app
        yield tasks
    eventually(
        lambda: not db.execute("SELECT 1 FROM horsies_workflow_tasks n JOIN horsies_tasks t ON t.id = n.task_id"
                               " WHERE n.status = 'ENQUEUED' AND t.terminal_at IS NOT NULL"))  # fmt: skip
    workers.check_invariants(db)


def test_a_value_that_would_be_changed_on_an_edge_is_refused(t: SimpleNamespace) -> None:
    """No float is equal to 2**53 + 1: only the value can tell. A bool for an int is told by the types."""
    for number, code in ((0, None), (2**53 + 1, "WORKER_SERIALIZATION_ERROR")):
        source = t.number.node()(number)
        taker = t.traced.node()("x", seconds=from_node(source))
        handle = t.app.workflow("rounded", [source, taker], output=taker).start()
        handle.get(20_000)
        error = handle.result_for(taker).err
        assert (error and error.error_code) == code
    assert error is not None
    assert "an integer only if a float is equal to it" in error.message

    @t.app.declare("flag")
    def flag() -> TaskResult[bool, TaskError]: ...

    @t.app.declare("raw")
    def raw() -> TaskResult[bytes, TaskError]: ...

    @t.app.declare("anything")
    def anything(value: Any) -> TaskResult[None, TaskError]: ...

    for one, other in ((flag, t.number), (raw, anything)):
        source = one.node()()
        with pytest.raises(WorkflowDefinitionError, match=r"takes .*, and .* returns"):
            t.app.workflow("changed", [source, other.node()(from_node(source))])


def test_a_send_by_name_is_read_as_strictly_as_it_would_be_sent(t: SimpleNamespace, db: Database) -> None:
    """From an app that does not know the task."""
    with build(describe(db)) as app:
        for value in ("5", True, 5.0):
            error = app.send("number", value).get(20_000).err
            assert error is not None
            assert error.error_code == "WORKER_SERIALIZATION_ERROR"
            assert "parameter 'n': input should be a valid integer" in error.message
        assert app.send("number", n=5).get(20_000).ok == 5


def test_values_and_results_are_injected(t: SimpleNamespace) -> None:
    one, two = t.number.node(node_id="one")(1), t.number.node(node_id="two")(n=2)
    both = t.plus.node()(from_node(one), from_node(two))
    seen = t.code_of.node()(result_from(both))
    place = t.where.node(node_id="place", waits_for=[seen])()
    first = t.where.node(node_id="first")()
    context = t.gathered.node(workflow_ctx_from=[one, two])()
    spec = t.app.workflow("sums", [one, two, both, seen, place, first, context], output=both)
    handle = spec.start()
    assert handle.get(20_000).unwrap() == 3
    assert handle.status() is WorkflowStatus.COMPLETED
    assert handle.result_for(seen).ok == "ok"
    assert handle.result_for(place).ok == [handle.workflow_id, "sums", "place", "4"]
    assert handle.result_for(first).ok == [handle.workflow_id, "sums", "first", "5"]
    assert handle.result_for(context).ok == {"one": 1, "two": 2}
    assert {name: result.ok for name, result in handle.results().items()}["plus"] == 3
    assert all(node.status is NodeStatus.COMPLETED for node in handle.tasks())
    assert t.app.workflow_handle(handle.workflow_id).get(0).ok == 3
    drawn = handle.diagram()
    assert drawn.splitlines()[0] == f"sums {handle.workflow_id}: COMPLETED, 7 of 7 nodes ended"
    assert "  ✓ plus" in drawn
    assert 'n2["plus<br/>COMPLETED"]:::completed' in handle.diagram("mermaid")


def test_a_failure_skips_what_depends_on_it_unless_allowed(t: SimpleNamespace) -> None:
    bad = t.fail.node(node_id="bad")("DOWN")
    good = t.number.node(node_id="good")(1)
    skipped = t.plus.node(node_id="skipped")(from_node(bad), 1)
    further = t.number.node(node_id="further", waits_for=[skipped])(5)
    told = t.code_of.node(node_id="told", allow_failed_deps=True)(result_from(bad))
    sentinel = t.code_of.node(node_id="sentinel", allow_failed_deps=True)(result_from(skipped))
    nodes = [bad, good, skipped, further, told, sentinel]
    handle = t.app.workflow("failing", nodes, output=good).start()
    result = handle.get(20_000)
    assert result.is_err()
    assert result.err_value.error_code == "WORKFLOW_FAILED"
    assert "bad: DOWN" in result.err_value.message
    states = {node.node_id: node.status.value for node in handle.tasks()}
    assert states == {
        "bad": "FAILED", "good": "COMPLETED", "skipped": "SKIPPED", "further": "SKIPPED", "told": "COMPLETED",
        "sentinel": "COMPLETED",
    }  # fmt: skip
    results = handle.results()
    assert results["told"].ok == "DOWN"
    assert results["sentinel"].ok == "UPSTREAM_SKIPPED"
    assert results["further"].err_value.error_code == "UPSTREAM_SKIPPED"


def test_joins(t: SimpleNamespace) -> None:
    good, better, bad = t.number.node()(1), t.number.node()(2), t.fail.node()()
    any_of = t.number.node(node_id="any", join="any", waits_for=[good, bad])(1)
    two = t.number.node(node_id="two", join="quorum", min_success=2, waits_for=[good, better, bad])(1)
    three = t.number.node(node_id="three", join="quorum", min_success=3, waits_for=[good, better, bad])(1)
    policy = SuccessPolicy([SuccessCase([three]), SuccessCase([any_of, two])])
    handle = t.app.workflow("joins", [good, better, bad, any_of, two, three], success_policy=policy).start()
    last = handle.get(20_000).unwrap()
    assert {name: result.is_ok() for name, result in last.items()} == {"any": True, "two": True, "three": False}
    states = {node.node_id: node.status.value for node in handle.tasks()}
    assert (states["any"], states["two"], states["three"]) == ("COMPLETED", "COMPLETED", "SKIPPED")
    not_met = t.app.workflow("not met", [good, bad], success_policy=SuccessPolicy([SuccessCase([good, bad])])).start()
    assert not_met.get(20_000).err_value.error_code == "WORKFLOW_SUCCESS_CASE_NOT_MET"


def nested(t: SimpleNamespace, depth: int) -> WorkflowSpec[int]:
    class Level(WorkflowDefinition[int], app=t.app, name=f"level {depth}"):
        @classmethod
        def build_with(cls, start: int, offset: int) -> WorkflowSpec[int]:
            if depth == 0:
                node = t.plus.node(node_id="leaf")(start, offset)
                return cls.workflow([node], output=node)
            own = t.plus.node(node_id="own")(start, 1)
            inner = nested(t, depth - 1).build_with(from_node(own), offset).node(node_id="inner")
            return cls.workflow([own, inner], output=inner)

    return Level  # type: ignore[return-value]


def test_workflows_inside_workflows_with_parameters(t: SimpleNamespace) -> None:
    begin = t.number.node(node_id="begin")(10)
    inner = nested(t, 4).build_with(from_node(begin), 100).node(node_id="inner")
    after = t.plus.node()(from_node(inner), 1)
    handle = t.app.workflow("outer", [begin, inner, after], output=after).start()
    assert handle.get(30_000).unwrap() == 10 + 4 + 100 + 1
    assert handle.result_for(inner).ok == 114
    lone = nested(t, 1).build_with(1, 2).start()
    assert lone.get(20_000).unwrap() == 4


def test_a_failed_workflow_inside_fails_its_node(t: SimpleNamespace) -> None:
    inside = t.app.workflow("inside", [t.fail.node(node_id="x")("DEEP")]).node(node_id="inner")
    after = t.number.node(waits_for=[inside])(1)
    handle = t.app.workflow("around", [inside, after]).start()
    assert handle.get(20_000).err_value.error_code == "WORKFLOW_FAILED"
    error = handle.results()["inner"].err_value
    assert error.error_code == "SUBWORKFLOW_FAILED"
    assert "DEEP" in error.data["err"]["message"]


@pytest.mark.parametrize("count", [0, 1, 250])
def test_map(t: SimpleNamespace, count: int) -> None:
    items = t.spread.node()(count)
    offset = t.number.node()(3)
    squares = t.square.node().map(items_from=items, offset=from_node(offset))
    summed = t.total.node()(from_node(squares))
    handle = t.app.workflow("squares", [items, offset, squares, summed], output=summed).start()
    assert handle.get(60_000).unwrap() == sum(x * x + 3 for x in range(count))
    assert handle.result_for(squares).ok == [x * x + 3 for x in range(count)]


def test_a_map_that_is_too_wide_fails(t: SimpleNamespace) -> None:
    items = t.spread.node()(11)
    handle = t.app.workflow("wide", [items, t.square.node(node_id="m", max_width=10).map(items)]).start()
    assert handle.get(20_000).is_err()
    error = handle.results()["m"].err_value
    assert error.error_code == "WORKFLOW_ENQUEUE_FAILED"
    assert error.message == "the list has 11 items, more than its max_width of 10"


def test_pause_resume(t: SimpleNamespace, db: Database) -> None:
    slow = t.traced.node(node_id="slow")("slow", 1.0)
    after = t.number.node(node_id="after", waits_for=[slow])(1)
    inside = t.app.workflow("inside", [t.traced.node()("inner", 1.0)]).node(node_id="inside")
    behind = t.number.node(node_id="behind", waits_for=[inside])(1)
    handle = t.app.workflow("paused", [slow, after, inside, behind]).start()
    eventually(lambda: [n.status.value for n in handle.tasks()][::2] == ["RUNNING", "RUNNING"])
    assert handle.pause() is True
    assert handle.pause() is False
    eventually(lambda: {n.node_id: n.status.value for n in handle.tasks()}["after"] == "READY")
    assert handle.get(300).err_value.error_code == "WAIT_TIMEOUT"
    assert handle.status() is WorkflowStatus.PAUSED
    assert handle.resume() is True
    assert handle.get(20_000).is_ok()


def test_a_paused_workflow_does_not_start_what_waits(t: SimpleNamespace, db: Database) -> None:
    broker = t.app.get_broker()
    t.app.run_sync("pause", lambda: broker.pause_queue("default"))
    handle = t.app.workflow("waits", [t.number.node()(1)]).start()
    assert handle.pause()
    t.app.run_sync("resume", lambda: broker.resume_queue("default"))
    t.number.send(1).get(10_000)
    assert handle.tasks()[0].status is NodeStatus.ENQUEUED
    assert handle.resume()
    assert handle.get(10_000).is_ok()


def test_on_error_pause_and_retry_of_a_node(t: SimpleNamespace, tmp_path: Path) -> None:
    flag = tmp_path / "flag"
    bad = t.fails_until.node(node_id="bad")(str(flag))
    after = t.plus.node(node_id="after")(from_node(bad), 1)
    handle = t.app.workflow("pauses", [bad, after], output=after, on_error="pause").start()
    eventually(lambda: handle.status() is WorkflowStatus.PAUSED)
    assert handle.retry("after") is False
    flag.touch()
    assert handle.retry(bad) is True
    assert handle.get(20_000).unwrap() == 2


def test_retry_of_a_failed_run_keeps_what_completed(t: SimpleNamespace, tmp_path: Path, db: Database) -> None:
    flag = tmp_path / "flag"
    done = t.number.node(node_id="done")(1)
    inner = t.fails_until.node(node_id="inner")(str(flag))
    inside = t.app.workflow("inside", [t.number.node(node_id="done2")(1), inner], output=inner).node()
    after = t.plus.node(node_id="after")(from_node(done), from_node(inside))
    handle = t.app.workflow("retried", [done, inside, after], output=after).start()
    assert handle.get(20_000).is_err()
    before = {node.node_id: node.task_id for node in handle.tasks()}
    assert handle.retry() is True
    assert handle.get(20_000).is_err()
    flag.touch()
    assert handle.retry() is True
    assert handle.get(20_000).unwrap() == 2
    assert {node.node_id: node.task_id for node in handle.tasks()}["done"] == before["done"]
    assert handle.retry() is False


def test_cancel(t: SimpleNamespace) -> None:
    slow = t.traced.node(node_id="slow")("slow", 30.0)
    after = t.number.node(node_id="after", waits_for=[slow])(1)
    inside = t.app.workflow("inside", [t.traced.node(node_id="x")("inner", 30.0)]).node(node_id="inside")
    handle = t.app.workflow("cancelled", [slow, after, inside]).start()
    eventually(lambda: [n.status.value for n in handle.tasks()][::2] == ["RUNNING", "RUNNING"])
    child = t.app.workflow_handle(handle.tasks()[2].sub_workflow_id)
    eventually(lambda: child.tasks()[0].status is NodeStatus.RUNNING)
    assert handle.cancel() is True
    assert handle.cancel() is False
    assert handle.get(5_000).err_value.error_code == "WORKFLOW_CANCELLED"
    assert child.status() is WorkflowStatus.CANCELLED
    eventually(lambda: {n.node_id: n.status.value for n in handle.tasks()}
               == {"slow": "FAILED", "after": "SKIPPED", "inside": "FAILED"})  # fmt: skip
    eventually(lambda: child.tasks()[0].status is NodeStatus.FAILED)


def test_a_node_task_is_cancelled_expired_or_deleted(t: SimpleNamespace, db: Database) -> None:
    broker = t.app.get_broker()
    t.app.run_sync("pause", lambda: broker.pause_queue("default"))
    runs = []
    for good_until in (None, None, 0.1):
        until = None if good_until is None else timedelta(seconds=good_until)
        node = t.number.node(node_id="x", good_until=until)(1)
        runs.append(t.app.workflow("ends", [node, t.number.node(node_id="y", waits_for=[node])(2)]).start())
    cancelled, deleted, expired = runs
    t.app.handle(cancelled.tasks()[0].task_id).cancel()
    db.execute("DELETE FROM horsies_tasks WHERE id = %s", deleted.tasks()[0].task_id)
    codes = [cancelled.get(10_000), deleted.get(10_000), expired.get(10_000)]
    t.app.run_sync("resume", lambda: broker.resume_queue("default"))
    assert all(code.err_value.error_code == "WORKFLOW_FAILED" for code in codes)
    found = [run.results()["x"].err_value.error_code for run in runs]
    assert found == ["TASK_CANCELLED", "WORKFLOW_ENQUEUE_FAILED", "TASK_EXPIRED"]


def test_a_start_can_be_repeated(t: SimpleNamespace, db: Database) -> None:
    spec = t.app.workflow("again", [t.number.node()(1)])
    workflow_id = str(uuid.uuid4())
    spec.start(workflow_id=workflow_id)
    assert spec.start(workflow_id=workflow_id).get(10_000).is_ok()
    with pytest.raises(TaskSendError, match="PAYLOAD_MISMATCH"):
        t.app.workflow("again", [t.number.node()(2)]).start(workflow_id=workflow_id)
    assert db.value("SELECT count(*) FROM horsies_workflow_tasks WHERE workflow_id = %s", workflow_id) == 1


def test_a_chain_of_a_hundred(t: SimpleNamespace) -> None:
    """Every link is moved on by the end of the one before, not by somebody's poll: that would take 100 of them."""
    nodes = [t.number.node(node_id="n0")(0)]
    for at in range(1, 100):
        nodes.append(TaskNode(t.plus, kwargs={"b": 1}, args_from={"a": nodes[-1]}, node_id=f"n{at}"))
    assert t.app.workflow("chain", nodes, output=nodes[-1]).start().get(60_000).unwrap() == 99
