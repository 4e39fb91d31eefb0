"""Batches: what a start refuses, and what it writes."""

import json
import uuid
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from horsies import (
    BatchProgress,
    BatchSummary,
    TaskError,
    TaskResult,
    TaskSendError,
    UsageError,
    WorkflowStatus,
    testing,
)
from horsies.batches import members
from horsies.batches.start import BatchStart
from horsies.workflow.run_options import RunOptions
from tests.support.apps import UNREACHABLE, make_app

Number = TaskResult[int, TaskError]
app = make_app(UNREACHABLE)


@app.task("double", group_by="tenant")
def double(n: int, tenant: str | None = None) -> Number:
    return TaskResult(ok=2 * n)


@app.task("shout")
def shout(text: str, /) -> TaskResult[str, TaskError]:
    return TaskResult(ok=text.upper())


@app.task("report")
def report(summary: BatchSummary, note: str = "") -> TaskResult[str, TaskError]:
    return TaskResult(ok=f"{summary.completed} {note}")


def start(calls: Any, then: Any = None, name: str = "batch", **options: Any) -> BatchStart[Any]:
    return BatchStart(app, "batch", calls, then, name, None, None, RunOptions(**options))


def written(made: BatchStart[Any]) -> dict[str, Any]:
    (text,), _ = made.announced().values()
    return json.loads(text)


def refused(calls: Any, then: Any = None, name: str = "batch", **options: Any) -> str:
    with pytest.raises(TaskSendError) as caught:
        start(calls, then, name, **options)
    return str(caught.value)


def test_one_node_for_each_call_and_one_for_then() -> None:
    run = written(start([double.call(1), shout.call("a"), double.call(2, tenant="x")], report))
    then, *nodes = run["nodes"]
    assert [node["task_name"] for node in nodes] == ["double", "shout", "double"]
    assert [node["node_id"] for node in nodes] == ["member-0", "member-1", "member-2"]
    assert [node.get("kwargs") for node in nodes] == ['{"n":1}', None, '{"n":2,"tenant":"x"}']
    assert [node.get("args") for node in nodes] == [None, '["a"]', None]
    assert [node.get("group_key") for node in nodes] == [None, None, "x"]
    assert all(node["dependents"] == [0] and node["dependencies"] == [] for node in nodes)
    assert (then["node_id"], then["deps_left"], then["allow_failed"]) == ("then", 3, True)
    assert then["args_from"] == {"summary": {"batch": True}}
    assert (run["output"], run["success_policy"], run["definition_key"]) == (0, {"cases": [[0]]}, "batch")
    assert len({node["id"] for node in run["nodes"]} | {node["task_id"] for node in nodes}) == 7


def test_without_then_every_end_is_good() -> None:
    run = written(start([double.call(1)]))
    assert (run["output"], run["success_policy"]) == (None, {"cases": [[]]})
    assert run["nodes"][0]["dependents"] == []


def test_options_of_calls_reach_their_members() -> None:
    later = datetime.now(UTC) + timedelta(hours=1)
    sender = double.with_options(priority=3, good_until=later, metadata={"a": 1}, group="g")
    (node,) = written(start([sender.call(1)]))["nodes"]
    assert (node["priority"], node["own_priority"], node["metadata"], node["group_key"]) == (3, True, {"a": 1}, "g")
    assert node["good_until"] == later.isoformat()


def test_the_same_calls_are_the_same_start() -> None:
    def sha(calls: Any, then: Any = None, **options: Any) -> str:
        return start(calls, then, **options).values()[1]

    same = sha([double.call(1), double.call(2)])
    assert sha(double.call(n) for n in (1, 2)) == same
    others = [
        sha([double.call(2), double.call(1)]), sha([double.call(1), double.call(2)], report),
        sha([double.call(1), double.call(2)], priority=5), sha([double.call(1), double.call(2)], name="b"),
        sha([double.call(1), double.with_options(priority=2).call(2)]),
    ]  # fmt: skip
    assert len({same, *others}) == 6


@pytest.mark.parametrize(
    ("calls", "why"),
    [
        ([], "has no members, so that nothing would run: give at least one call"),
        (double.call(1), "takes several calls, not a TaskCall"),
        ("abc", "takes several calls, not a str: give a list"),
        (5, "takes several calls, not an int"),
        ([double.call(1), (2,)], "member 1 is a tuple, not a call: write task.call(...)"),
        ([double.call(1), double], "member 1 is a TaskFunction"),
        ([double.call(1), double.call("x")], "member 1: "),  # type: ignore[arg-type]
        ([double.call()], "member 0: "),  # type: ignore[call-arg]
        ([double.call(1), double.with_options(delay=5).call(2)], "member 1 was made by with_options(delay=...)"),
        (
            [double.with_options(keep_for=timedelta(days=1)).call(1)],
            "member 0 was made by with_options(keep_for=...)",
        ),
        ([double.with_options(unique_key="k").call(2)], "member 0 was made by with_options(unique_key=...)"),
        ([double.with_options(priority=999).call(2)], "member 0.priority: 999"),
    ],
)
def test_a_wrong_member_is_named(calls: Any, why: str) -> None:
    text = refused(calls)
    assert text.startswith("VALIDATION_FAILED: batch 'batch' ")
    assert why in text


def test_a_call_of_a_task_of_another_app() -> None:
    other = make_app(UNREACHABLE)

    @other.task("elsewhere")
    def elsewhere() -> Number:
        return TaskResult(ok=1)

    assert "member 0 is a call of task 'elsewhere', which this app does not have" in refused([elsewhere.call()])
    from horsies import TaskCall

    assert "member 0 names no task" in refused([TaskCall((), {})])


def test_all_problems_of_then_and_of_the_options_at_once() -> None:
    @app.task("wrong")
    def wrong(n: int, m: int, *, k: int) -> Number:
        return TaskResult(ok=n)

    text = refused([double.call(1)], wrong, name="", priority=0)
    for why in (
        "batch.name", "its first parameter 'n' takes int", "parameter 'm' has no default",
        "parameter 'k' has no default", "batch.priority",
    ):  # fmt: skip
        assert why in text, text


def test_other_wrong_thens() -> None:
    calls = [double.call(1)]

    @app.task("nothing")
    def nothing() -> Number:
        return TaskResult(ok=1)

    @app.task("positional")
    def positional(summary: BatchSummary, /) -> Number:
        return TaskResult(ok=1)

    other = make_app(UNREACHABLE)

    @other.task("elsewhere")
    def elsewhere(summary: BatchSummary) -> Number:
        return TaskResult(ok=1)

    assert "it takes no first parameter" in refused(calls, nothing)
    assert "positional-only" in refused(calls, positional)
    assert "belongs to another app" in refused(calls, elsewhere)
    assert "do not reach it" in refused(calls, report.with_options(priority=1))
    assert "is 'report' (str), not a task" in refused(calls, "report")


def test_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(members, "MAX_MEMBERS", 3)
    assert len(written(start(double.call(n) for n in range(3)))["nodes"]) == 3
    assert "has more than 3 members, which is the limit" in refused(double.call(n) for n in range(4))
    monkeypatch.setattr(members, "MAX_BYTES", 500)
    text = refused(shout.call("é" * 150) for _ in range(3))
    assert "more than 500 bytes of arguments up to member " in text
    assert "store large data elsewhere" in text


def test_a_wrong_id_and_unknown_options() -> None:
    with pytest.raises(TaskSendError, match="batch_id"):
        app.batch([double.call(1)], batch_id="1")
    with pytest.raises(UsageError, match="instead of workflow_id use batch_id"):
        app.batch([double.call(1)], workflow_id=str(uuid.uuid4()))  # type: ignore[call-overload]
    with pytest.raises(UsageError, match="takes the task itself"):
        app.batch_handle("x", "report")  # type: ignore[call-overload]


def test_progress_in_words() -> None:
    progress = BatchProgress(WorkflowStatus.RUNNING, 3_000, 1_200, 1_000, 150, 50, 4, 1_796)
    assert f"{progress}" == (
        "1,200 of 3,000 members ended: 1,000 completed, 150 failed, 50 cancelled, 4 running, 1,796 waiting"
    )
    assert [field.name for field in fields(BatchSummary)] == ["batch_id", "total", "completed", "failed", "cancelled"]


def test_recorded_keeps_a_batch() -> None:
    with testing.recorded(app) as sends:
        batch = app.batch([double.call(1), double.call(2)], then=report, name="doubles")
        run = sends.assert_started("doubles")
        assert (run.id, run.node_ids) == (batch.batch_id, ("then", "member-0", "member-1"))


def test_inline_runs_a_batch() -> None:
    @app.task("picky")
    def picky(n: int) -> Number:
        return TaskResult(err=TaskError("ODD", "odd")) if n % 2 else TaskResult(ok=n)

    @app.task("told")
    def told(summary: BatchSummary) -> TaskResult[BatchSummary, TaskError]:
        return TaskResult(ok=summary)

    with testing.inline(app):
        batch = app.batch([picky.call(n) for n in range(5)], then=told)
        assert batch.get().ok == BatchSummary(batch.batch_id, 5, 3, 2, 0)
        assert batch.status() is WorkflowStatus.COMPLETED
        assert [result.ok for result in batch.results()] == [0, None, 2, None, 4]
        alone = app.batch([picky.call(1)])
        assert alone.get().is_ok()
    assert batch.get().ok == BatchSummary(batch.batch_id, 5, 3, 2, 0)
