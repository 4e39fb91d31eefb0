"""`store_result=False` and `keep_for`: what a definition, a send and the testing kit make of them."""

import json
from datetime import timedelta
from typing import Any

import pytest

from horsies import (
    Horsies,
    RetrievalCode,
    TaskDefinitionError,
    TaskError,
    TaskResult,
    TaskSendError,
    TaskStatus,
    WorkflowContext,
    WorkflowDefinitionError,
    from_node,
    result_from,
    testing,
)
from tests.support.apps import UNREACHABLE, add_task, make_app


@pytest.fixture
def app() -> Horsies:
    return make_app(UNREACHABLE)


def quiet_task(app: Horsies, **options: Any) -> Any:
    @app.task("quiet", store_result=False, **options)
    def quiet(n: int) -> TaskResult[int | None, TaskError]:
        if n < 0:
            return TaskResult(err=TaskError("NEGATIVE", "as the test wanted"))
        return TaskResult(ok=n or None)

    return quiet


def test_a_handle_says_that_the_value_was_not_stored(app: Horsies) -> None:
    quiet, add = quiet_task(app), add_task(app)
    with testing.inline(app) as sends:
        found = quiet.send(7).get()
        assert found.err_value.error_code is RetrievalCode.RESULT_NOT_AVAILABLE
        assert "has completed, and its value was not stored" in found.err_value.message
        assert quiet.send(0).get() == TaskResult(ok=None)  # None is stored
        assert quiet.send(-1).get().err_value.error_code == "NEGATIVE"
        # a send wins over the registration, both ways
        assert quiet.with_options(store_result=True).send(7).get() == TaskResult(ok=7)
        assert add.with_options(store_result=False).send(1).get().err_value.error_code == "RESULT_NOT_AVAILABLE"
    first = sends.sent(quiet)[0]
    assert (first.status, first.result, first.store_result) == (TaskStatus.COMPLETED, TaskResult(ok=7), False)
    assert [sent.store_result for sent in sends.sent()] == [False, False, False, True, False]


def test_one_task_returns_its_value_to_its_own_test(app: Horsies) -> None:
    assert testing.run(quiet_task(app), 7) == TaskResult(ok=7)


def test_the_record_of_a_send_has_the_lifetime(app: Horsies) -> None:
    quiet = quiet_task(app, keep_for=timedelta(days=2))
    with testing.recorded(app) as sends:
        quiet.send(1)
        quiet.with_options(keep_for=timedelta(seconds=90.5)).send_many([(1,)])
        app.send_many([quiet.call(1), quiet.with_options(keep_for=timedelta(0)).call(2)])
        app.with_options(keep_for=timedelta(hours=1)).send("elsewhere")
    days = timedelta(days=2)
    lifetimes = [sent.keep_for for sent in sends.sent()]
    assert lifetimes == [days, timedelta(seconds=91), days, timedelta(0), timedelta(hours=1)]


def test_send_many_is_recorded_and_runs_in_the_order_of_the_calls(app: Horsies) -> None:
    quiet, add = quiet_task(app), add_task(app)
    calls = [add.call(1), quiet.with_options(store_result=True).call(2), add.call(3)]
    with testing.recorded(app) as sends:
        handles = app.send_many(calls)
        again = app.send_many([add.with_options(unique_key="k").call(n) for n in (1, 2)])
        assert [sent.id for sent in sends.sent()] == [handle.task_id for handle in (*handles, again[0])]
    assert [handle.is_duplicate for handle in again] == [False, True]
    with testing.inline(app):
        assert [handle.get().ok for handle in app.send_many(calls)] == [1, 2, 3]


async def test_send_many_async_runs_inline(app: Horsies) -> None:
    add = add_task(app)
    with testing.inline(app):
        handles = await app.send_many_async([add.call(1), add.with_options(priority=3).call(2)])
        assert [(await handle.get_async()).ok for handle in handles] == [1, 2]


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"store_result": "no"}, "store_result: must be True or False"),
        ({"keep_for": 3}, "keep_for: is 3"),
        ({"keep_for": timedelta(days=-1)}, "is not between 0 and ten years"),
        ({"keep_for": timedelta(days=36_500)}, "is not between 0 and ten years"),
        ({"ignore_result": True}, "store_result=False"),
        ({"result_ttl": 3}, r"keep_for=timedelta\(...\)"),
    ],
)
def test_a_wrong_option_is_refused_at_import(app: Horsies, options: dict[str, Any], why: str) -> None:
    with pytest.raises(TaskDefinitionError, match=why):
        add_task(app, **options)


@pytest.mark.parametrize("options", [{"store_result": 0}, {"keep_for": 60}, {"keep_for": timedelta(seconds=-1)}])
def test_a_wrong_option_of_a_send_is_refused(app: Horsies, options: dict[str, Any]) -> None:
    with pytest.raises(TaskSendError, match=next(iter(options))):
        add_task(app).with_options(**options).send(1)


def test_a_send_without_the_registration_tells_the_worker_only_what_it_was_asked_for(app: Horsies) -> None:
    """The row's text is the contract with workers: they take all the rest from their own registration."""
    from horsies.new_tasks import plan
    from horsies.options import SendOptions

    made = plan(app.config, "elsewhere", None, SendOptions(store_result=False))
    assert json.loads(made.task_options or "") == {"registered": True, "store_result": False}
    assert plan(app.config, "elsewhere", None, SendOptions()).task_options is None


# -- workflows ------------------------------------------------------------------------------------


def use_by(kind: str, app: Horsies, quiet: Any) -> dict[str, Any]:
    """A workflow that uses the value of `quiet`."""

    @app.task("takes")
    def takes(n: int | None) -> TaskResult[int, TaskError]:
        return TaskResult(ok=n or 0)

    @app.task("takes_result")
    def takes_result(found: TaskResult[int | None, TaskError]) -> TaskResult[int, TaskError]:
        return TaskResult(ok=found.ok or 0)

    @app.task("takes_context")
    def takes_context(ctx: WorkflowContext) -> TaskResult[int, TaskError]:
        return TaskResult(ok=0)

    @app.task("numbers")
    def numbers() -> TaskResult[list[int], TaskError]:
        return TaskResult(ok=[1])

    @app.task("all_of")
    def all_of(found: list[int | None]) -> TaskResult[int, TaskError]:
        return TaskResult(ok=0)

    node = quiet.node()(1)
    listed = numbers.node()()
    mapped = quiet.node(node_id="mapped").map(listed)
    return {
        "argument": lambda: {"tasks": [node, takes.node()(from_node(node))]},
        "result": lambda: {"tasks": [node, takes_result.node()(result_from(node))]},
        "context": lambda: {"tasks": [node, takes_context.node(workflow_ctx_from=[node])()]},
        "output": lambda: {"tasks": [node], "output": node},
        "compensate": lambda: {"tasks": [quiet.node(compensate=takes)(1)]},
        "map": lambda: {"tasks": [listed, mapped, all_of.node()(from_node(mapped))]},
    }[kind]()


@pytest.mark.parametrize("kind", ["argument", "result", "context", "output", "compensate", "map"])
def test_a_value_that_is_not_stored_cannot_be_used(app: Horsies, kind: str) -> None:
    graph = use_by(kind, app, quiet_task(app))
    with pytest.raises(WorkflowDefinitionError, match="its task has store_result=False: the value is not stored"):
        app.workflow("w", graph.pop("tasks"), **graph)


def test_a_node_whose_value_is_none_or_is_not_used_needs_no_store(app: Horsies) -> None:
    quiet = quiet_task(app)

    @app.task("nothing", store_result=False)
    def nothing(n: int = 0) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    first = quiet.node()(1)
    last = nothing.node(waits_for=[first])(2)
    spec = app.workflow("w", [first, last], output=last)
    with testing.inline(app):
        assert spec.start().get() == TaskResult(ok=None)
