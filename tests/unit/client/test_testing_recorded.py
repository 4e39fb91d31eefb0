"""`testing.recorded`: every way to send is kept, and nothing else of a send differs from production."""

import asyncio
import subprocess
import sys
import threading
import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from horsies import (
    Horsies,
    Middleware,
    Outgoing,
    SendErrorCode,
    TaskError,
    TaskResult,
    TaskSendError,
    UsageError,
    gather,
    testing,
)
from tests.support.apps import UNREACHABLE, make_app


@dataclass
class Order:
    number: int
    lines: tuple[str, ...] = ()


def register(app: Horsies) -> Any:
    class Tasks:
        @staticmethod
        def names() -> list[str]:
            return ["bill", "clean"]

    @app.task("bill", metadata={"team": "money"})
    def bill(order: Order, copies: int = 1, *, note: str = "") -> TaskResult[int, TaskError]:
        raise AssertionError("nothing runs")

    @app.task("clean")
    async def clean(days: int = 7) -> TaskResult[None, TaskError]:
        raise AssertionError("nothing runs")

    @app.task("rest")
    def rest(first: int, /, *others: int, **named: str) -> TaskResult[None, TaskError]:
        raise AssertionError("nothing runs")

    Tasks.bill, Tasks.clean, Tasks.rest = bill, clean, rest  # type: ignore[attr-defined]
    return Tasks


@pytest.fixture
def app() -> Horsies:
    return make_app(UNREACHABLE)


@pytest.fixture
def tasks(app: Horsies) -> Any:
    return register(app)


# -- what is kept ---------------------------------------------------------------------------------


def test_every_way_to_send_is_kept(app: Horsies, tasks: Any) -> None:
    moment = datetime(2030, 1, 1, tzinfo=UTC)
    flow = app.workflow("flow", [tasks.clean.node(node_id="one")(3)])
    with testing.recorded(app) as sends:
        handle = tasks.bill.send(Order(1))
        tasks.bill.schedule(60, Order(2))
        tasks.bill.schedule(moment, Order(3))
        tasks.bill.send_many([tasks.bill.call(Order(4)), (Order(5),), {"order": Order(6)}])
        tasks.bill.with_options(priority=3, metadata={"tenant": "acme"}, unique_key="seven").send(Order(7))
        app.send("bill", Order(8))
        app.with_options(delay=5).send("elsewhere", 9, to="x")
        run = flow.start(metadata={"tenant": "acme"})
    found = sends.sent(tasks.bill)
    assert [sent.kwargs["order"].number for sent in found] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert found[0].id == handle.task_id
    assert (found[1].delay, found[2].eta) == (timedelta(seconds=60), moment)
    seven = found[6]
    assert (seven.priority, seven.unique_key, seven.queue_name) == (3, "seven", "default")
    assert seven.metadata == {"team": "money", "tenant": "acme"}
    (elsewhere,) = sends.sent("elsewhere")
    assert (elsewhere.args, elsewhere.kwargs, elsewhere.delay) == ((9,), {"to": "x"}, timedelta(seconds=5))
    (started,) = sends.started(flow)
    assert (started.id, started.name, started.node_ids) == (run.workflow_id, "flow", ("one",))
    assert started.metadata == {"tenant": "acme"}
    assert sends.assert_started("flow") is started


async def test_the_asynchronous_verbs_are_kept(app: Horsies, tasks: Any) -> None:
    flow = app.workflow("flow", [tasks.clean.node()(3)])
    with testing.recorded(app) as sends:
        await tasks.bill.send_async(Order(1))
        await tasks.bill.schedule_async(1, Order(2))
        await tasks.bill.send_many_async([(Order(3),)])
        await app.send_async("clean", 4)
        await flow.start_async()
        with pytest.raises(UsageError, match="await send_async"):
            tasks.clean.send()  # as in production, where it would block the loop
    assert len(sends.sent(tasks.bill)) == 3
    assert len(sends) == 4
    assert len(sends.started()) == 1


def test_arguments_are_those_that_the_task_gets(app: Horsies, tasks: Any) -> None:
    with testing.recorded(app) as sends:
        tasks.bill.send(Order(1, ("a", "b")), note="n")
        tasks.rest.send(1, 2, 3, a="x")
    (bill,), (rest,) = sends.sent(tasks.bill), sends.sent(tasks.rest)
    assert bill.arguments == {"order": Order(1, ("a", "b")), "copies": 1, "note": "n"}
    assert rest.arguments == {"first": 1, "others": (2, 3), "named": {"a": "x"}}
    assert str(bill) == "bill(order=Order(number=1, lines=('a', 'b')), copies=1, note='n')"


def test_sent_filters(app: Horsies, tasks: Any) -> None:
    with testing.recorded(app) as sends:
        tasks.clean.send_many([(1,), (2,), (3,)])
    assert len(sends.sent(queue="default")) == 3
    assert sends.sent(queue="other") == []
    assert [sent.args or sent.kwargs for sent in sends.sent(where=lambda sent: sent.arguments["days"] > 1)] == [
        {"days": 2},
        {"days": 3},
    ]


# -- assertions -----------------------------------------------------------------------------------


def test_defaults_and_positions_do_not_matter(app: Horsies, tasks: Any) -> None:
    with testing.recorded(app) as sends:
        tasks.bill.send(Order(1), 1)
        tasks.clean.send()
    assert sends.assert_sent(tasks.bill, order=Order(1)) is sends.sent(tasks.bill)[0]
    sends.assert_sent(tasks.bill, Order(1), copies=1, note="")
    sends.assert_sent("bill", Order(1))
    sends.assert_sent(tasks.clean, 7)
    sends.assert_sent(tasks.clean)
    sends.refute_sent(tasks.rest)


def test_a_failed_assertion_says_what_was_sent_instead(app: Horsies, tasks: Any) -> None:
    with testing.recorded(app) as sends:
        tasks.bill.send(Order(1), 2)
        tasks.bill.send(Order(2), 3, note="n")
        with pytest.raises(AssertionError) as wrong:
            sends.assert_sent(tasks.bill, Order(1), 3)
        with pytest.raises(AssertionError, match=r"task 'clean' was not sent.\nSent were: task 'bill' \(2 times\)\."):
            sends.assert_sent(tasks.clean)
        with pytest.raises(AssertionError) as refuted:
            sends.refute_sent(tasks.bill)
        with pytest.raises(AssertionError, match="workflow 'flow' was not started"):
            sends.assert_started("flow")
        with pytest.raises(UsageError, match="cannot be sent with these arguments"):
            sends.assert_sent(tasks.bill, "no order")
    assert str(wrong.value) == (
        "task 'bill' was not sent with these arguments:\n"
        "    order=Order(number=1, lines=()), copies=3, note=''\n"
        "It was sent 2 times:\n"
        "  1. copies: was 2, expected 3\n"
        "  2. order.number: was 2, expected 1\n"
        "     note: was 'n', expected ''"
    )
    assert "task 'bill' was sent 2 times" in str(refuted.value)


def test_a_failed_assertion_shows_the_place_inside_a_value(app: Horsies) -> None:
    @app.task("save")
    def save(pages: dict[str, list[Order]], text: str) -> TaskResult[None, TaskError]: ...

    with testing.recorded(app) as sends:
        save.send({"a": [Order(1), Order(2, ("x",))], "c": []}, "-" * 500 + "old")
        with pytest.raises(AssertionError) as wrong:
            sends.assert_sent(save, {"a": [Order(1), Order(2, ("y",))], "b": []}, "-" * 500 + "new")
    assert str(wrong.value).partition("It was sent 1 time:\n")[2] == (
        "  1. pages['a'][1].lines[0]: was 'x', expected 'y'\n"
        "     pages['b']: was missing, expected []\n"
        "     pages['c']: was [], expected nothing\n"
        "     text: from character 500 on, was '...--------------------old', expected '...--------------------new'"
    )


def test_nothing_sent_is_said(app: Horsies, tasks: Any) -> None:
    with testing.recorded(app) as sends, pytest.raises(AssertionError, match=r"Nothing was sent\."):
        sends.assert_sent(tasks.clean, 3)


# -- as in production -----------------------------------------------------------------------------


def test_an_invalid_send_is_refused(app: Horsies, tasks: Any) -> None:
    with testing.recorded(app) as sends:
        with pytest.raises(TaskSendError) as refused:
            tasks.bill.send("no order")
        with pytest.raises(TaskSendError):
            tasks.bill.with_options(priority=1000).send(Order(1))
    assert refused.value.code is SendErrorCode.VALIDATION_FAILED
    assert not sends.sent()


class Tenant(Middleware):
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def on_send(self, task: Outgoing) -> None:
        if task.metadata.get("tenant") == "nobody":
            raise PermissionError("no such tenant")
        task.metadata["tenant"] = "acme"

    def on_sent(self, task: Outgoing, error: TaskSendError | None) -> None:
        self.seen.append((task.name, error and error.code))


def test_middleware_sees_and_refuses_sends() -> None:
    tenant = Tenant()
    app = make_app(UNREACHABLE, middleware=[tenant])
    tasks = register(app)
    one = str(uuid.uuid4())
    with testing.recorded(app) as sends:
        tasks.clean.with_options(task_id=one).send(1)
        with pytest.raises(PermissionError):
            tasks.clean.with_options(metadata={"tenant": "nobody"}).send()
        with pytest.raises(TaskSendError):
            tasks.clean.with_options(task_id=one).send(2)
    assert [sent.metadata for sent in sends.sent()] == [{"tenant": "acme"}]
    assert tenant.seen == [("clean", None), ("clean", SendErrorCode.PAYLOAD_MISMATCH)]


def test_a_unique_key_gives_a_duplicate(app: Horsies, tasks: Any) -> None:
    with testing.recorded(app) as sends:
        first = tasks.clean.with_options(unique_key="k").send(1)
        second = tasks.clean.with_options(unique_key="k").send(2)
        other = tasks.bill.with_options(unique_key="k").send(Order(1))
    assert (first.is_duplicate, second.is_duplicate, other.is_duplicate) == (False, True, False)
    assert second == first
    assert len(sends) == 2


def test_a_repeated_id_is_the_same_task_or_a_mismatch(app: Horsies, tasks: Any) -> None:
    one = str(uuid.uuid4())
    flow = app.workflow("flow", [tasks.clean.node(node_id="n")(3)])
    with testing.recorded(app) as sends:
        sender = tasks.clean.with_options(task_id=one)
        assert sender.send(1) == sender.send(1)
        with pytest.raises(TaskSendError) as refused:
            sender.send(2)
        assert flow.start(workflow_id=one) == flow.start(workflow_id=one)
    assert refused.value.code is SendErrorCode.PAYLOAD_MISMATCH
    assert (len(sends), len(sends.started())) == (1, 1)


def test_a_result_does_not_exist(app: Horsies, tasks: Any) -> None:
    flow = app.workflow("flow", [tasks.clean.node()(3)])
    with testing.recorded(app):
        handle, run = tasks.clean.send(), flow.start()
        for ask in (handle.get, lambda: gather([handle]), run.get, run.status, run.results):
            with pytest.raises(UsageError, match="nothing runs them"):
                ask()
        for ask in (handle.info, handle.cancel, handle.attempts, run.pause, run.tasks):
            with pytest.raises(UsageError, match="no database is asked"):
                ask()


# -- the caller's transaction ---------------------------------------------------------------------


@pytest.fixture
def session() -> Any:
    engine = create_engine("sqlite://")
    with Session(engine) as session:
        yield session
    engine.dispose()


def test_a_commit_keeps_the_send_and_a_rollback_leaves_nothing(app: Horsies, tasks: Any, session: Session) -> None:
    task = tasks.clean.with_options(connection=session)
    with testing.recorded(app) as sends:
        task.send(1)
        with pytest.raises(AssertionError, match="1 send waits for a transaction that has not committed"):
            sends.assert_sent(tasks.clean)
        session.commit()
        sends.assert_sent(tasks.clean, 1)
        task.send(2)
        session.rollback()
        task.send(3)
        session.close()
        task.send_many([(4,), (5,)])
        session.commit()
    assert [sent.arguments["days"] for sent in sends.sent()] == [1, 4, 5]


def test_a_savepoint_that_is_rolled_back_takes_its_sends_along(app: Horsies, tasks: Any, session: Session) -> None:
    task = tasks.clean.with_options(connection=session)
    with testing.recorded(app) as sends:
        task.send(1)
        outer = session.begin_nested()
        task.send(2)
        with session.begin_nested():
            task.send(3)
        outer.rollback()
        with session.begin_nested():
            task.send(4)
        assert not sends.sent()
        session.commit()
    assert [sent.arguments["days"] for sent in sends.sent()] == [1, 4]


def test_a_key_of_a_rolled_back_send_is_free(app: Horsies, tasks: Any, session: Session) -> None:
    with testing.recorded(app) as sends:
        tasks.clean.with_options(connection=session, unique_key="k").send(1)
        session.rollback()
        assert not tasks.clean.with_options(unique_key="k").send(2).is_duplicate
    assert [sent.arguments["days"] for sent in sends.sent()] == [2]


def test_a_workflow_starts_with_its_transaction(app: Horsies, tasks: Any, session: Session) -> None:
    flow = app.workflow("flow", [tasks.clean.node()(3)])
    with testing.recorded(app) as sends:
        flow.start(connection=session)
        session.rollback()
        flow.start(connection=session)
        assert not sends.started()
        session.commit()
    assert len(sends.started()) == 1


def test_a_connection_of_sqlalchemy_is_followed(app: Horsies, tasks: Any) -> None:
    engine = create_engine("sqlite://")
    with engine.connect() as connection, testing.recorded(app) as sends:
        task = tasks.clean.with_options(connection=connection)
        task.send(1)
        connection.rollback()
        task.send(2)
        assert not sends.sent()
        connection.commit()
    engine.dispose()
    assert [sent.arguments["days"] for sent in sends.sent()] == [2]


def test_a_wrong_connection_is_refused_as_in_production(app: Horsies, tasks: Any) -> None:
    with testing.recorded(app), pytest.raises(UsageError, match="connection= does not understand"):
        tasks.clean.with_options(connection=object()).send()


# -- the block ------------------------------------------------------------------------------------


def test_the_app_is_as_before_after_the_block(app: Horsies, tasks: Any) -> None:
    with pytest.raises(ZeroDivisionError), testing.recorded(app):
        raise ZeroDivisionError
    with pytest.raises(TaskSendError) as failed:
        tasks.clean.send()
    assert failed.value.code is SendErrorCode.ENQUEUE_FAILED
    app.close()


def test_blocks_nest(app: Horsies, tasks: Any) -> None:
    with testing.recorded(app) as outer:
        with testing.recorded(app) as inner:
            tasks.clean.send(1)
        tasks.clean.send(2)
    assert [sent.arguments["days"] for sent in inner.sent()] == [1]
    assert [sent.arguments["days"] for sent in outer.sent()] == [2]


def test_overlapping_blocks_take_away_only_themselves(app: Horsies, tasks: Any) -> None:
    first, second = testing.recorded(app), testing.recorded(app)
    first.__enter__()
    sends = second.__enter__()
    first.__exit__(None, None, None)
    tasks.clean.send(1)
    second.__exit__(None, None, None)
    assert len(sends) == 1
    assert app.stand_in is None


def test_threads_and_loops_send_into_the_block(app: Horsies, tasks: Any) -> None:
    with testing.recorded(app) as sends:
        threads = [threading.Thread(target=tasks.clean.send, args=(at,)) for at in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        asyncio.run(tasks.clean.send_async(8))
    assert sorted(sent.arguments["days"] for sent in sends.sent()) == list(range(9))


def test_another_app_is_not_touched(app: Horsies) -> None:
    other = make_app(UNREACHABLE)
    with testing.recorded(app), pytest.raises(TaskSendError):
        other.send("x")
    other.close()


ALONE = """
import sys

sys.modules["horsies_worker"] = None  # the import fails, as where it is not installed
from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult, UsageError, testing

app = Horsies(AppConfig(PostgresConfig("postgresql://nobody@127.0.0.1:1/nowhere")))

@app.task("add")
def add(a: int, b: int) -> TaskResult[int, TaskError]:
    return TaskResult(ok=a + b)

with testing.recorded(app) as sends:
    add.send(1, 2)
sends.assert_sent(add, 1, 2)
for use in (lambda: testing.run(add, 1, 2), lambda: testing.inline(app).__enter__()):
    try:
        use()
    except UsageError as error:
        print(error)
"""


def test_it_needs_the_client_alone_and_the_others_say_what_they_need() -> None:
    run = subprocess.run([sys.executable, "-c", ALONE], check=True, capture_output=True, text=True)
    assert run.stdout == (
        "testing.run needs the worker's code: pip install 'horsies-client[testing]'\n"
        "testing.inline needs the worker's code: pip install 'horsies-client[testing]'\n"
    )


def test_it_takes_an_app() -> None:
    with pytest.raises(UsageError, match="takes the app itself"), testing.recorded("app"):  # type: ignore[arg-type]
        pass
