"""Batch tasks without a worker: their definition, middleware around calls, and the testing kit."""

import inspect
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest

from horsies import (
    BatchCall,
    BatchTaskFunction,
    Horsies,
    Middleware,
    RetryPolicy,
    TaskContext,
    TaskDefinitionError,
    TaskError,
    TaskResult,
    UsageError,
    current_call,
    current_task,
    testing,
)
from horsies.check import check_app
from tests.support.apps import UNREACHABLE, add_task, make_app

Length = TaskResult[int, TaskError]
lists: list[list[str]] = []


def make(**options: Any) -> tuple[Horsies, BatchTaskFunction[str, int]]:
    app = make_app(UNREACHABLE, **options)

    @app.batch_task("length", retry_policy=RetryPolicy.fixed(1, 1, auto_retry_for=["EMPTY"]))
    def length(texts: list[str]) -> list[Length]:
        lists.append(texts)
        return [TaskResult(ok=len(text)) if text else TaskResult(err=TaskError("EMPTY", "no text")) for text in texts]

    return app, length


def two(texts: list[str], more: int) -> list[Length]: ...
def no_list(text: str) -> list[Length]: ...
def bare_list(texts: list) -> list[Length]: ...
def one_result(texts: list[str]) -> Length: ...
def plain_values(texts: list[str]) -> list[int]: ...
def unannotated(texts): ...
def with_default(texts: list[str] = []) -> list[Length]: ...  # noqa: B006


def good(texts: list[str]) -> list[Length]: ...


@pytest.mark.parametrize(
    ("function", "why", "fix"),
    [
        (two, "takes 2 parameters", "one parameter, such as items: list[str]"),
        (no_list, "'text' is str, not a list of items", "items: list[str]"),
        (bare_list, "not a list of items", "items: list[str]"),
        (one_result, "not a list of TaskResults", "list[TaskResult[T, TaskError]]"),
        (plain_values, "returns list[int], not a list of TaskResults", "list[TaskResult[T, TaskError]]"),
        (unannotated, "'texts' has no annotation", "items: list[str]"),
        (with_default, "is no plain parameter", "items: list[str]"),
    ],
)
def test_a_function_that_cannot_work_is_refused(function: Callable[..., Any], why: str, fix: str) -> None:
    with pytest.raises(TaskDefinitionError) as refused:
        make_app(UNREACHABLE).batch_task("odd")(function)
    assert why in str(refused.value)
    assert fix in str(refused.value).partition("fix: ")[2]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"max_size": 0}, "max_size: 0 is out of range"),
        ({"max_size": 1_001}, "max_size: 1001 is out of range"),
        ({"max_size": True}, "max_size: must be a whole number"),
        ({"max_wait_ms": -1}, "max_wait_ms: -1 ms is out of range"),
        ({"max_wait_ms": 60_001}, "max_wait_ms: 60001 ms is out of range"),
        ({"group_by": "text"}, "the task has no parameter 'text'"),
        ({"group_by": lambda one, two: one}, "does not take the arguments"),
        ({"autoretry_for": ["X"]}, "@app.batch_task does not know autoretry_for"),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], why: str) -> None:
    with pytest.raises(TaskDefinitionError, match=why.replace("(", r"\(")):
        make_app(UNREACHABLE).batch_task("odd", **options)(good)


def test_the_function_is_called_with_a_list() -> None:
    assert list(make()[1](["a", "bb"])) == [TaskResult(ok=1), TaskResult(ok=2)]


def test_an_item_of_the_wrong_type_is_refused_by_the_send() -> None:
    app, length = make()
    with testing.recorded(app), pytest.raises(Exception, match="item"):
        length.send(["a"])  # type: ignore[arg-type]


def test_the_kit_runs_lists_of_one() -> None:
    app, length = make()
    lists.clear()
    assert testing.run(length, "abc") == TaskResult(ok=3)
    with testing.inline(app) as sends:
        handles = length.send_many([("a",), ("",)])
        assert [handle.get().ok for handle in handles] == [1, None]
        assert len(sends.assert_sent(length, "").attempts) == 2
    assert lists == [["abc"], ["a"], [""], [""]]


def test_a_call_knows_its_tasks_and_is_no_task() -> None:
    app = make_app(UNREACHABLE)

    @app.batch_task("look", metadata={"tenant": "acme"}, timeout_ms=1_000)
    def look(texts: list[str]) -> list[TaskResult[str, TaskError]]:
        with pytest.raises(UsageError, match=r"current_call\(\)\.tasks"):
            current_task()
        call = current_call()
        assert (len(call.tasks), call.is_cancelled(), call.deadline is None) == (1, False, False)
        task = call.tasks[0]
        return [TaskResult(ok=f"{text} {task.task_name} {task.attempt} {task.metadata['tenant']}") for text in texts]

    @app.task("plain")
    def plain() -> TaskResult[str, TaskError]:
        current_call()
        return TaskResult(ok="")

    assert testing.run_as(look, attempt=2)("a").ok == "a look 2 acme"
    assert "'plain' is no batch task" in str(testing.run(plain).err_value.message)
    with pytest.raises(UsageError, match="only inside a batch task"):
        current_call()


def test_an_async_batch_task() -> None:
    app = make_app(UNREACHABLE)

    @app.batch_task("later")
    async def later(texts: list[str]) -> list[Length]:
        return [TaskResult(ok=len(text)) for text in texts]

    assert testing.run(later, "four") == TaskResult(ok=4)


class Tenant(Middleware):
    seen: list[str]

    def __init__(self) -> None:
        self.seen = []

    @contextmanager
    def scope(self, ctx: TaskContext) -> Generator[None]:
        self.seen.append("scope")
        yield


class OfBatches(Tenant):
    @contextmanager
    def batch_scope(self, call: BatchCall) -> Generator[None]:
        self.seen.append(f"batch_scope of {len(call.tasks)}")
        yield


def test_middleware_is_entered_around_the_call() -> None:
    middleware = OfBatches()
    app, length = make(middleware=[middleware])
    assert testing.run(length, "a") == TaskResult(ok=1)
    assert testing.run(add_task(app), 1, 2) == TaskResult(ok=3)
    assert middleware.seen == ["batch_scope of 1", "scope"]
    assert not [finding for finding in check_app(app) if finding.is_problem]


def test_middleware_that_would_leave_out_batch_tasks_is_refused() -> None:
    app, _ = make(middleware=[Tenant()])
    (problem,) = [finding.text for finding in check_app(app) if finding.is_problem]
    assert "Tenant has scope and not batch_scope: the batch task 'length' would run without it" in problem


def test_a_batch_task_has_the_options_of_a_task() -> None:
    of_task, of_batch = (inspect.signature(verb).parameters for verb in (Horsies.task, Horsies.batch_task))
    assert of_task.keys() - of_batch.keys() == {"run_ahead", "task_name"}
    both = (of_task.keys() & of_batch.keys()) - {"name"}  # a task may have its name as task_name
    assert {name: of_batch[name].default for name in both} == {name: of_task[name].default for name in both}
    app, day = make_app(UNREACHABLE), timedelta(days=1)
    keyed = app.batch_task("keyed", unique_by_args=True, unique_for=day, store_result=False, keep_for=day)(good)
    last = app.batch_task("last", debounce=day, max_wait=2 * day)(good)
    with testing.recorded(app) as sends:
        assert [keyed.send("a").is_duplicate, keyed.send("a").is_duplicate, keyed.send("b").is_duplicate] == [
            False, True, False,
        ]  # fmt: skip
        assert [last.with_options(unique_key="k").send(text).is_duplicate for text in "xy"] == [False, True]
        assert [(one.store_result, one.keep_for) for one in sends.sent(keyed)] == [(False, day)] * 2
        sends.assert_sent(last, "y")
    with pytest.raises(TaskDefinitionError, match="max_wait"):
        app.batch_task("wrong", max_wait=day)(good)
