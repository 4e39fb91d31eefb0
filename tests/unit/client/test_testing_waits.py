"""Runs that wait in `testing.inline`, virtual time, and signals in both modes."""

import asyncio
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from horsies import (
    Continue,
    NodeStatus,
    OutcomeCode,
    RetrievalCode,
    SignalError,
    TaskFailed,
    TaskResult,
    TaskSendError,
    UsageError,
    WorkflowStatus,
    from_node,
    sleep,
    testing,
    wait_for_signal,
)
from tests.support import kit_app
from tests.support.apps import UNREACHABLE, make_app

HOUR = timedelta(hours=1)


@pytest.fixture
def t() -> Any:
    app = make_app(UNREACHABLE)
    tasks = kit_app.register(app)
    tasks.app = app
    return tasks


def approval(t: Any, name: str = "approval", **options: Any) -> tuple[Any, Any]:
    node = wait_for_signal("approve", int, node_id="approve", **options)
    after = t.plus.node(node_id="after")(from_node(node), 1)
    return node, t.app.workflow(name, [node, after], output=after)


def test_a_run_waits_until_its_signal_comes(t: Any) -> None:
    node, flow = approval(t)
    with testing.inline(t.app) as sends:
        handle = flow.start()
        run = sends.assert_started(flow)
        assert (handle.status(), run.nodes["approve"]) == (WorkflowStatus.RUNNING, NodeStatus.WAITING)
        assert handle.get().err_value.error_code == RetrievalCode.WAIT_TIMEOUT
        assert handle.result_for(node).err_value.error_code == RetrievalCode.RESULT_NOT_READY
        receipt = handle.signal(node, 41, signal_id="hook-1")
        assert receipt.delivered
        assert not handle.signal(node, 42, signal_id="hook-1").delivered
        assert handle.status() is WorkflowStatus.COMPLETED
        with pytest.raises(SignalError, match="has ended") as ended:
            handle.signal(node, 1)
        with pytest.raises(SignalError) as unknown:
            t.app.workflow_handle("7d3c7a55-1a9c-4d3f-9b4c-3a5f1c2e8d90").signal("approve", 1)
        with pytest.raises(TaskSendError, match="does not fit"):
            handle.signal(node, "many")
    assert handle.get() == TaskResult(ok=42)  # kept, after the block too
    assert ended.value.code == OutcomeCode.WORKFLOW_ENDED
    assert unknown.value.code == RetrievalCode.WORKFLOW_NOT_FOUND
    assert [(sent.id, sent.value) for sent in sends.signalled(node)] == [("hook-1", 41)]
    assert run.nodes == {"approve": NodeStatus.COMPLETED, "after": NodeStatus.COMPLETED}


def test_early_signals_are_kept_and_each_feeds_one_node(t: Any) -> None:
    first = wait_for_signal("go", int, node_id="first")
    second = wait_for_signal("n", int, node_id="second", waits_for=[first])
    third = wait_for_signal("n", int, node_id="third", waits_for=[second])
    end = t.plus.node(node_id="end")(from_node(second), from_node(third))
    flow = t.app.workflow("flow", [first, second, third, end], output=end)
    with testing.inline(t.app) as sends:
        handle = flow.start()
        for value in (1, 2, 3):
            handle.signal("n", value)
        assert sends.started()[0].nodes["second"] is NodeStatus.PENDING
        handle.signal("go", 0)
        assert handle.get() == TaskResult(ok=3)
        assert handle.result_for(second) == TaskResult(ok=1)


def test_signals_to_workflows_inside_go_by_their_path(t: Any) -> None:
    node, inner = approval(t, "inner")
    items = t.spread.node(node_id="items")(2)
    late = t.app.workflow("late", [other := wait_for_signal("x", int, node_id="other")], output=other)
    gate = wait_for_signal("gate", int, node_id="gate")
    sub = inner.node(node_id="sub")
    nodes = [sub, gate, late.node(node_id="late", waits_for=[gate]), items]
    outer = t.app.workflow("outer", nodes, output=sub)
    with testing.inline(t.app):
        handle = outer.start()
        handle.signal("approve", 1)  # kept by the outer run, and never for the one inside
        assert handle.status() is WorkflowStatus.RUNNING
        handle.signal(node, 7, path="sub")
        assert handle.result_for(sub) == TaskResult(ok=8)
        with pytest.raises(SignalError, match="ended"):
            handle.signal(node, 7, path="sub")
        with pytest.raises(UsageError, match="has not started"):
            handle.signal("x", 1, path="late")
        with pytest.raises(UsageError, match="no workflow at the path"):
            handle.signal("x", 1, path="nowhere")
        handle.signal(gate, 1)
        handle.signal(other, 1, path="late")
        assert handle.get() == TaskResult(ok=8)


def test_a_task_may_signal_the_run_that_it_is_in(t: Any) -> None:
    @t.app.task("poke")
    def poke(run_id: str) -> kit_app.Number:
        t.app.workflow_handle(run_id).signal("approve", 5)
        return TaskResult(ok=1)

    @t.app.task("poke_async")
    async def poke_async(run_id: str) -> kit_app.Number:
        await t.app.workflow_handle(run_id).signal_async("approve", 6)
        return TaskResult(ok=1)

    for number, task in enumerate((poke, poke_async)):
        run_id = f"7d3c7a55-1a9c-4d3f-9b4c-3a5f1c2e8d9{number}"
        node = wait_for_signal("approve", int, node_id="approve")
        flow = t.app.workflow(f"poked-{number}", [node, task.node(node_id="poke")(run_id)], output=node)
        with testing.inline(t.app):
            assert flow.start(workflow_id=run_id).get() == TaskResult(ok=5 + number)


def test_signals_from_other_threads(t: Any) -> None:
    nodes = [wait_for_signal("n", int, node_id=f"n{at}") for at in range(20)]
    flow = t.app.workflow("flow", nodes)
    with testing.inline(t.app):
        handle = flow.start()
        threads = [threading.Thread(target=handle.signal, args=("n", at)) for at in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert handle.status() is WorkflowStatus.COMPLETED
        assert sorted(handle.result_for(node).unwrap() for node in nodes) == list(range(20))


async def test_from_async_code(t: Any) -> None:
    node, flow = approval(t, timeout=HOUR)
    with testing.inline(t.app) as sends:
        one, two = await flow.start_async(), await flow.start_async()
        assert (await one.signal_async(node, 1)).delivered
        await sends.advance_async(HOUR)
        assert await one.get_async() == TaskResult(ok=2)
        assert (await two.get_async()).err_value.data["cause"]["error_code"] == "SIGNAL_TIMEOUT"
        with pytest.raises(Exception, match="advance"):
            sends.advance(HOUR)
        await asyncio.sleep(0)


def test_sleeps_end_at_once_in_the_order_of_their_times(t: Any) -> None:
    long, short = sleep(3 * HOUR, node_id="long"), sleep(HOUR, node_id="short")
    then = sleep(HOUR, node_id="then", waits_for=[short])
    nodes = [t.number.node(node_id=f"after-{one.node_id or at}", waits_for=[one])(at)
             for at, one in enumerate((long, short, then))]  # fmt: skip
    until = sleep(datetime.now(UTC) + 10 * HOUR, node_id="until")
    flow = t.app.workflow("naps", [long, short, then, until, *nodes])
    with testing.inline(t.app) as sends:
        assert flow.start().status() is WorkflowStatus.COMPLETED
    run = sends.assert_started(flow)
    assert [sent.arguments["n"] for sent in sends.sent(t.number)] == [1, 2, 0]
    assert run.sleeps["short"] == run.sleeps["then"] == HOUR
    assert timedelta(hours=9.9) < run.sleeps["until"] <= 10 * HOUR


def test_the_time_stands_still_before_a_timeout(t: Any) -> None:
    node, flow = approval(t, timeout=HOUR)
    reminder, rest = sleep(HOUR / 2, node_id="reminder"), sleep(2 * HOUR, node_id="rest")
    wide = t.app.workflow("wide", [flow.node(node_id="sub"), reminder, rest])
    with testing.inline(t.app) as sends:
        handle, other = wide.start(), wide.start()
        run = sends.started()[0]
        assert (run.nodes["reminder"], run.nodes["rest"]) == (NodeStatus.COMPLETED, NodeStatus.WAITING)
        other.signal(node, 1, path="sub")
        assert other.status() is WorkflowStatus.COMPLETED
        sends.advance(HOUR / 4)
        assert run.status is WorkflowStatus.RUNNING
        sends.advance(HOUR / 4)
        assert handle.get().err_value.data["cause"]["error_code"] == OutcomeCode.SIGNAL_TIMEOUT


def test_deadlines(t: Any) -> None:
    _, flow = approval(t)
    nap = t.app.workflow("nap", [sleep(2 * HOUR, node_id="nap")])
    begun = datetime.now(UTC)
    with testing.inline(t.app) as sends:
        handle = flow.start(deadline=HOUR)
        sends.advance(HOUR - timedelta(seconds=1))
        assert handle.status() is WorkflowStatus.RUNNING
        sends.advance(timedelta(seconds=1))
        assert handle.get().err_value.error_code == OutcomeCode.WORKFLOW_DEADLINE
        assert nap.start(deadline=HOUR).get().err_value.error_code == OutcomeCode.WORKFLOW_DEADLINE
        assert nap.start(start_at=5 * HOUR, deadline=3 * HOUR).status() is WorkflowStatus.COMPLETED
        late = nap.start(start_at=begun + 9 * HOUR, deadline=begun + 8 * HOUR)
        assert late.get().err_value.error_code == OutcomeCode.WORKFLOW_DEADLINE
    assert sends.started(flow)[0].nodes == {"approve": NodeStatus.SKIPPED, "after": NodeStatus.SKIPPED}
    assert [(run.start_at, run.deadline) for run in sends.started(nap)] == [
        (None, HOUR), (5 * HOUR, 3 * HOUR), (begun + 9 * HOUR, begun + 8 * HOUR),
    ]  # fmt: skip


def test_a_paused_run_takes_signals_and_times_out_never(t: Any) -> None:
    node, other = wait_for_signal("a", int, node_id="a"), wait_for_signal("b", int, node_id="b", timeout=HOUR)
    after = t.number.node(node_id="after", waits_for=[node])(1)
    bad = t.fail.node(node_id="bad")()
    flow = t.app.workflow("paused", [bad, node, other, after], on_error="pause")
    with testing.inline(t.app) as sends:
        handle = flow.start()
        assert handle.status() is WorkflowStatus.PAUSED
        assert handle.signal(node, 1).delivered
        sends.advance(2 * HOUR)
        assert sends.started()[0].nodes == {
            "bad": NodeStatus.FAILED, "a": NodeStatus.COMPLETED, "b": NodeStatus.WAITING, "after": NodeStatus.READY,
        }  # fmt: skip


def test_options_of_a_run(t: Any) -> None:
    node, flow = approval(t)
    with testing.inline(t.app) as sends:
        first = flow.start(unique_key="order-1", priority=7)
        assert flow.start(unique_key="order-1").workflow_id == first.workflow_id
        first.signal(node, 1)
        assert flow.start(unique_key="order-1").workflow_id != first.workflow_id
    assert [(run.unique_key, run.priority) for run in sends.started()] == [("order-1", 7), ("order-1", None)]
    assert sends.sent(t.plus)[0].priority == 7


def test_continue_outside_of_a_workflow_is_a_contract_error(t: Any) -> None:
    with testing.inline(t.app):
        error = t.countdown.send(1).get().err_value
    assert error == testing.run(t.countdown, 1).err_value
    assert error.error_code == "RETURN_TYPE_MISMATCH"
    assert isinstance(t.countdown(1), Continue)


def test_a_run_that_continues_for_ever_fails(t: Any) -> None:
    @t.app.task("forever")
    def forever() -> kit_app.Number:
        return Continue(t.app.workflow("forever", [again := forever.node(node_id="again")()], output=again))

    flow = t.app.workflow("start", [one := forever.node(node_id="one")()], output=one)
    with testing.inline(t.app) as sends:
        handle = flow.start()
        assert "continued 1,000 times" in handle.get().err_value.message
    assert len(sends.sent(forever)) == 1_001


def test_raise_errors_from_a_signal_and_from_time(t: Any) -> None:
    node = wait_for_signal("n", int, node_id="n", timeout=HOUR)
    odd = t.even.node(node_id="odd")(from_node(node))
    flow = t.app.workflow("flow", [node, odd], output=odd)
    with testing.inline(t.app, raise_errors=True) as sends:
        handle = flow.start()
        with pytest.raises(TaskFailed, match="ODD"):
            handle.signal(node, 1)
        flow.start()
        with pytest.raises(TaskFailed, match="SIGNAL_TIMEOUT"):
            sends.advance(HOUR)


def test_a_task_that_fails_is_undone_with_its_retries(t: Any) -> None:
    spec = kit_app.CASES["undone_half"].build(t.app, t)
    with testing.inline(t.app) as sends:
        spec.start()
    assert [sent.arguments["place"] for sent in sends.sent(t.unbook)] == ["oslo", "nowhere"]
    assert len(sends.sent(t.unbook)[1].attempts) == 2


def test_recorded_signals(t: Any) -> None:
    node, flow = approval(t)
    with testing.recorded(t.app) as sends:
        handle = flow.start(start_at=HOUR, deadline=2 * HOUR, unique_key="k", priority=3)
        assert handle.signal(node, 41, signal_id="one").delivered
        assert not handle.signal(node, 41, signal_id="one").delivered
        t.app.workflow_handle("7d3c7a55-1a9c-4d3f-9b4c-3a5f1c2e8d90").signal("cancel", {"why": [1]}, path="a/b")
        assert flow.start(unique_key="k").workflow_id == handle.workflow_id
    run = sends.assert_started(flow)
    assert (run.start_at, run.deadline, run.unique_key, run.priority) == (HOUR, 2 * HOUR, "k", 3)
    assert sends.assert_signalled(node).workflow_id == handle.workflow_id
    assert sends.assert_signalled(node, 41) is sends.assert_signalled("approve", 41)
    assert sends.assert_signalled("cancel", {"why": [1]}).path == "a/b"
    assert len(sends.signalled()) == 2
    sends.refute_signalled("other")
    with pytest.raises(AssertionError, match=r"was not sent with 42.\n  1. was sent with 41"):
        sends.assert_signalled(node, 42)
    with pytest.raises(
        AssertionError, match=r"'other' was not sent.\nSent were: workflow 'approval', signal 'approve'"
    ):
        sends.assert_signalled("other")
    with pytest.raises(AssertionError, match=r"'approve' was sent 1 time:\n  1. signal 'approve' with 41"):
        sends.refute_signalled(node)
    with pytest.raises(UsageError, match="does not fit"):
        sends.assert_signalled(node, "text")
    with pytest.raises(UsageError, match="not <"):
        sends.signalled(t.plus)
    with pytest.raises(UsageError, match=r"testing\.inline"):
        sends.advance(HOUR)


def test_advance_takes_a_time(t: Any) -> None:
    with testing.inline(t.app) as sends, pytest.raises(UsageError, match="timedelta"):
        sends.advance(60)  # pyright: ignore[reportArgumentType]
