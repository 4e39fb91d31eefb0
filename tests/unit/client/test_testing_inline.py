"""`testing.inline`: what is sent runs at once, with the worker's own parts."""

import asyncio
import threading
from datetime import timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from horsies import (
    AttemptEnd,
    Middleware,
    OperationalErrorCode,
    RetrievalCode,
    RetryPolicy,
    TaskError,
    TaskFailed,
    TaskResult,
    TaskStatus,
    UsageError,
    as_completed,
    current_task,
    gather,
    gather_async,
    testing,
)
from tests.support.apps import UNREACHABLE, add_task, make_app
from tests.support.waiting import eventually

Number = TaskResult[int, TaskError]


def test_a_result_is_there_at_once() -> None:
    app = make_app(UNREACHABLE)
    add = add_task(app)
    with testing.inline(app) as sends:
        handle = add.send(1, 2)
        assert handle.get() == handle.get(0) == TaskResult(ok=3)
        many = add.send_many([(1, 1), (2, 2)])
        assert gather(many) == [TaskResult(ok=2), TaskResult(ok=4)]
        assert [result.ok for _, result in as_completed(many)] == [2, 4]
        assert app.send("add", 3, 3).get() == TaskResult(ok=6)
        assert app.handle(handle.task_id, add).get() == TaskResult(ok=3)
        sent = sends.assert_sent(add, 1, 2)
        assert app.handle("0" * 32).get(0).err_value.error_code == RetrievalCode.TASK_NOT_FOUND
        with pytest.raises(UsageError, match=r"inside testing\.inline"):
            handle.info()
    assert (sent.status, sent.result) == (TaskStatus.COMPLETED, TaskResult(ok=3))
    assert app.stand_in is None


def test_a_handle_keeps_its_result_after_the_block() -> None:
    app = make_app(UNREACHABLE)
    add = add_task(app)
    with testing.inline(app):
        one, many = add.send(1, 2), add.send_many([(1, 1), (2, 2)])
    assert one.get() == TaskResult(ok=3)
    assert gather(many) == [TaskResult(ok=2), TaskResult(ok=4)]
    app.close()


async def test_from_async_code() -> None:
    app = make_app(UNREACHABLE)
    add = add_task(app)

    @app.task("twice")
    async def twice(x: int) -> Number:
        await asyncio.sleep(0)
        return await (await add.send_async(x, x)).get_async()

    @app.task("four")
    async def four(x: int) -> Number:
        first = (await (await twice.send_async(x)).get_async()).unwrap()
        return await (await twice.send_async(first)).get_async()

    with testing.inline(app) as sends:
        handles = [await add.send_async(1, 2), await twice.send_async(2), await four.send_async(3)]
        assert [result.ok for result in await gather_async(handles)] == [3, 4, 12]
        concurrent = await asyncio.gather(*(four.send_async(at) for at in range(5)))
        assert [result.ok for result in await gather_async(concurrent)] == [0, 4, 8, 12, 16]
    assert len(sends.sent(four)) == 6


def test_retries_are_made_at_once_and_their_delays_kept() -> None:
    app = make_app(UNREACHABLE)

    @app.task("flaky", retry_policy=RetryPolicy.intervals([60, 3600], auto_retry_for=["AGAIN", "UNHANDLED_EXCEPTION"]))
    def flaky(succeeds_at: int) -> Number:
        attempt = current_task().attempt
        if attempt == succeeds_at:
            return TaskResult(ok=attempt)
        if attempt == 1:
            raise ValueError("first")
        return TaskResult(err=TaskError("AGAIN", retry_after_ms=5_000 if succeeds_at == 9 else None))

    with testing.inline(app) as sends:
        assert flaky.send(3).get() == TaskResult(ok=3)
        assert flaky.send(9).get().err_value.error_code == "AGAIN"
    third, ninth = sends.sent(flaky)
    assert [attempt.retry_delay for attempt in third.attempts] == [timedelta(minutes=1), timedelta(hours=1), None]
    assert [attempt.number for attempt in third.attempts] == [1, 2, 3]
    assert isinstance(third.attempts[0].exception, ValueError)
    assert third.attempts[1].result.err_value.error_code == "AGAIN"
    assert [attempt.retry_delay for attempt in ninth.attempts][1:] == [timedelta(seconds=5), None]
    assert ninth.status is TaskStatus.FAILED


def test_a_delayed_task_runs_at_once_and_keeps_its_delay() -> None:
    app = make_app(UNREACHABLE)
    add = add_task(app)
    with testing.inline(app) as sends:
        assert add.schedule(3600, 1, 2).get() == TaskResult(ok=3)
    assert sends.sent(add)[0].delay == timedelta(hours=1)


def test_raise_errors() -> None:
    app = make_app(UNREACHABLE)

    @app.task("fails")
    def fails(how: str) -> Number:
        if how == "raise":
            raise ZeroDivisionError("by the task")
        return TaskResult(err=TaskError("MINE", "m"))

    with testing.inline(app):
        assert fails.send("raise").get().err_value.error_code == OperationalErrorCode.UNHANDLED_EXCEPTION
    with testing.inline(app, raise_errors=True):
        with pytest.raises(ZeroDivisionError, match="by the task"):
            fails.send("raise")
        with pytest.raises(TaskFailed, match="MINE: m"):
            fails.send("err")
        with pytest.raises(ZeroDivisionError):
            asyncio.run(fails.send_async("raise"))
    with testing.inline(app, raise_errors=True) as sends:
        with pytest.raises(ZeroDivisionError):
            fails.send_many([("raise",), ("err",)])
        assert [sent.status for sent in sends.sent()] == [TaskStatus.FAILED] * 2
    assert app.stand_in is None


async def test_a_caller_that_is_cancelled_leaves_the_task_alone() -> None:
    app = make_app(UNREACHABLE)
    begun, goes_on = threading.Event(), threading.Event()

    @app.task("slow")
    def slow() -> Number:
        begun.set()
        goes_on.wait(20)
        return TaskResult(ok=1)

    with testing.inline(app) as sends:
        waiting = asyncio.create_task(slow.send_async())
        await asyncio.to_thread(begun.wait, 20)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        goes_on.set()
        eventually(lambda: sends.sent()[0].status is TaskStatus.COMPLETED, timeout=20)


def test_a_task_without_a_body_here_cannot_run() -> None:
    app = make_app(UNREACHABLE)

    @app.declare("declared")
    def declared() -> Number: ...  # type: ignore[empty-body]

    with testing.inline(app) as sends:
        for handle in (declared.send(), app.send("unknown", 1)):
            assert handle.get().err_value.error_code == OperationalErrorCode.WORKER_RESOLUTION_ERROR
    sends.assert_sent("unknown", 1)


class Order(Middleware):
    def __init__(self) -> None:
        self.seen: list[str] = []

    def on_send(self, task: Any) -> None:
        self.seen.append(f"on_send {task.name}")

    def on_sent(self, task: Any, error: Any) -> None:
        self.seen.append(f"on_sent {task.name}")

    def on_attempt_end(self, end: AttemptEnd) -> None:
        self.seen.append(f"end {end.context.task_name}")


def test_nested_sends_middleware_and_inherited_metadata() -> None:
    order = Order()
    app = make_app(UNREACHABLE, middleware=[order], propagate_metadata=["tenant"])

    @app.task("inner")
    def inner() -> TaskResult[dict[str, Any], TaskError]:
        return TaskResult(ok=dict(current_task().metadata))

    @app.task("outer")
    def outer() -> TaskResult[dict[str, Any], TaskError]:
        return inner.send().get()

    with testing.inline(app):
        result = outer.with_options(metadata={"tenant": "acme", "other": 1}).send().get()
    assert result == TaskResult(ok={"tenant": "acme"})
    assert order.seen == [
        "on_send outer", "on_sent outer", "on_send inner", "on_sent inner", "end inner", "end outer",
    ]  # fmt: skip


def test_a_unique_key_is_free_when_its_task_has_ended() -> None:
    app = make_app(UNREACHABLE)
    inside: list[bool] = []

    @app.task("only")
    def only(depth: int) -> Number:
        if depth == 0:
            inside.append(only.with_options(unique_key="k").send(1).is_duplicate)
        return TaskResult(ok=depth)

    with testing.inline(app) as sends:
        first = only.with_options(unique_key="k").send(0)
        second = only.with_options(unique_key="k").send(2)
    assert inside == [True]
    assert (first.is_duplicate, second.is_duplicate, len(sends)) == (False, False, 2)


def test_a_task_that_sends_itself_for_ever_is_told() -> None:
    app = make_app(UNREACHABLE)

    @app.task("again")
    def again(n: int) -> Number:
        return TaskResult(ok=again.send(n + 1).get().unwrap())

    with testing.inline(app) as sends:
        result = again.send(0).get()
    assert result.is_err()
    assert "does it send itself again?" in sends.sent()[-2].result.err_value.message  # type: ignore[union-attr]


def test_a_send_runs_when_its_transaction_commits() -> None:
    app = make_app(UNREACHABLE)
    add = add_task(app)
    engine = create_engine("sqlite://")
    with Session(engine) as session, testing.inline(app) as sends:
        handle = add.with_options(connection=session).send(1, 2)
        assert handle.get(0).err_value.error_code == RetrievalCode.TASK_NOT_FOUND
        session.commit()
        assert handle.get() == TaskResult(ok=3)
        lost = add.with_options(connection=session).send(3, 4)
        session.rollback()
        assert lost.get(0).err_value.error_code == RetrievalCode.TASK_NOT_FOUND
    engine.dispose()
    assert len(sends) == 1


def test_threads_send_at_the_same_time() -> None:
    app = make_app(UNREACHABLE)
    add = add_task(app)
    results: list[int | None] = []
    with testing.inline(app):
        threads = [
            threading.Thread(target=lambda at=at: results.append(add.send(at, 1).get().ok))  # type: ignore[misc]
            for at in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(number for number in results if number is not None) == list(range(1, 9))
