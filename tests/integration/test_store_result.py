"""`store_result=False` on the rows: every road to an end, workflows of tasks that other code runs, operators."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from horsies import Horsies, TaskError, TaskResult, TaskStatus, from_node, result_from, testing
from tests.support import factories
from tests.support.apps import add_task, app_on, make_app
from tests.support.hands import Hands, end_of, running
from tests.support.operator import Operator
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database

Number = TaskResult[int, TaskError]


def register(define: Callable[..., Any], **of_quiet: Any) -> SimpleNamespace:
    """The same tasks for the worker, which defines them, and for a sender, which declares them."""

    @define("quiet", **of_quiet)
    def quiet(n: int) -> Number:
        return TaskResult(ok=n)

    @define("takes")
    def takes(n: int) -> Number:
        return TaskResult(ok=n)

    @define("code_of")
    def code_of(found: Number) -> TaskResult[str, TaskError]:
        return TaskResult(ok="ok" if found.is_ok() else str(found.err_value.error_code))

    @define("codes")
    def codes(found: list[Number]) -> TaskResult[list[str], TaskError]:
        return TaskResult(ok=["ok" if one.is_ok() else str(one.err_value.error_code) for one in found])

    @define("numbers")
    def numbers() -> TaskResult[list[int], TaskError]:
        return TaskResult(ok=[1, 2, 3])

    @define("undo")
    def undo(n: int) -> TaskResult[None, TaskError]:
        return TaskResult(ok=None)

    @define("fail")
    def fail() -> Number:
        return TaskResult(err=TaskError("BROKEN"))

    return SimpleNamespace(
        quiet=quiet, takes=takes, code_of=code_of, codes=codes, numbers=numbers, undo=undo, fail=fail
    )


@pytest.fixture
def sender(db: Database) -> Iterator[tuple[Horsies, Any, Callable[[], None]]]:
    """An app that only declares the tasks, the tasks, and a round of a worker whose own `quiet` stores no value."""
    with ExitStack() as stack:
        app, worker = (stack.enter_context(make_app(db)) for _ in range(2))
        register(worker.task, store_result=False)

        def work() -> None:
            with testing.real(worker, in_place=True) as database:
                database.drain()

        yield app, register(app.declare), work


Sender = tuple[Horsies, Any, Callable[[], None]]


@pytest.mark.breaks("T3")  # the rows do not tell it: the registration of the worker does
def test_the_registration_of_the_worker_decides_for_a_sender_that_does_not_know_it(
    db: Database, sender: Sender
) -> None:
    app, tasks, work = sender
    plain, wanted = tasks.quiet.send(1), tasks.quiet.with_options(store_result=True).send(2)
    named = app.with_options(store_result=False).send("takes", n=3)
    work()
    assert plain.get(0).err_value.error_code == "RESULT_NOT_AVAILABLE"
    assert wanted.get(0) == TaskResult(ok=2)
    assert named.get(0).err_value.error_code == "RESULT_NOT_AVAILABLE"
    info = plain.info()
    assert info is not None
    assert (info.status, info.error_code) == (TaskStatus.COMPLETED, None)
    assert [attempt.outcome.value for attempt in plain.attempts()] == ["COMPLETED"]


@pytest.mark.breaks("T3")  # the rows do not tell it: the registration of the worker does
def test_who_takes_a_value_that_was_not_stored_fails_or_gets_the_error(sender: Sender) -> None:
    app, tasks, work = sender
    quiet = tasks.quiet.node(node_id="quiet")(1)
    takes = tasks.takes.node(node_id="takes")(from_node(quiet))
    code = tasks.code_of.node(node_id="code")(result_from(quiet))
    items = tasks.quiet.node(node_id="items").map_partial(numbers := tasks.numbers.node(node_id="numbers")())
    codes = tasks.codes.node(node_id="codes")(from_node(items))
    spec = app.workflow("w", [quiet, takes, code, numbers, items, codes])
    run = spec.start()
    work()
    assert run.result_for(takes).err_value.error_code == "RESULT_NOT_AVAILABLE"
    assert "'quiet', whose value it takes, completed without a stored result" in run.result_for(takes).err_value.message
    assert run.result_for(code) == TaskResult(ok="RESULT_NOT_AVAILABLE")
    assert run.result_for(codes) == TaskResult(ok=["RESULT_NOT_AVAILABLE"] * 3)
    assert run.result_for(quiet).err_value.error_code == "RESULT_NOT_AVAILABLE"


@pytest.mark.breaks("T3")  # the rows do not tell it: the registration of the worker does
def test_a_compensation_without_the_value_is_not_passed_over_in_silence(sender: Sender) -> None:
    app, tasks, work = sender
    quiet = tasks.quiet.node(node_id="quiet", compensate=tasks.undo)(1)
    run = app.workflow("w", [quiet, tasks.fail.node(waits_for=[quiet])()]).start()
    work()
    found = run.get(0).err_value
    assert found.error_code == "BROKEN" or "BROKEN" in found.message
    assert "COMPENSATION_FAILED" in json.dumps(found.data)


@pytest.mark.breaks("T3")  # the rows do not tell it: the registration of the worker does
def test_a_batch_counts_members_without_values(sender: Sender) -> None:
    app, tasks, work = sender
    batch = app.batch([tasks.quiet.call(n) for n in range(3)])
    work()
    assert batch.get(0) == TaskResult(ok=None)
    progress = batch.progress()
    assert progress is not None
    assert progress.completed == 3
    assert {str(one.err_value.error_code) for one in batch.results()} == {"RESULT_NOT_AVAILABLE"}


async def test_ends_of_many_and_of_one_with_and_without_values(db: Database, hands: Hands) -> None:
    for count in (1, 4):
        rows = [running(db) for _ in range(count)]
        ends = [end_of(row) for row in rows]
        for end in ends[::2]:
            end.drops_value = True
        await hands.finalize(ends)
        found = [factories.read(db, row["id"])["result"] for row in rows]
        assert found == [None if at % 2 == 0 else '{"ok":1}' for at in range(count)]
        db.execute("UPDATE horsies_tasks SET task_options = '{\"store_result\":false}'")  # rule T3 of the suite


def test_a_repeated_send_with_another_option_is_another_call(db: Database) -> None:
    from horsies import TaskSendError
    from horsies.ids import new_id

    with app_on(db) as app:
        add = add_task(app)
        for options in ({"store_result": False}, {"keep_for": timedelta(hours=1)}):
            mine = add.with_options(task_id=new_id(), **options)
            assert mine.send(1).task_id == mine.send(1).task_id
            other: Any = {"store_result": True} if "store_result" in options else {"keep_for": timedelta(hours=2)}
            with pytest.raises(TaskSendError, match="is taken by a task with other arguments or options"):
                mine.with_options(**other).send(1)


def test_operators_see_both(db: Database, operator: Operator) -> None:
    with app_on(db) as app:
        task = add_task(app).with_options(store_result=False, keep_for=timedelta(days=30)).send(1)
        with testing.real(app, in_place=True) as database:
            database.drain()
        info = task.info()
    assert info is not None
    assert info.keep_for == timedelta(days=30)
    told = operator("tasks", "show", task.task_id).out
    assert "result  not stored (store_result=False)" in told
    assert "30 d after its end" in told
    assert operator.json("tasks", "show", task.task_id)["tasks"][0]["payload"]["result"] is None
