"""Values of users that look like envelopes of a payload codec: stored, handed on and read as they were given, in apps
without a codec and in those whose codec leaves some values plain."""

import base64
import json
import uuid
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from horsies import (
    Continue,
    Daily,
    Horsies,
    PayloadCodec,
    TaskError,
    TaskResult,
    TaskSchedule,
    TaskSendError,
    WorkflowContext,
    current_task,
    from_node,
    result_from,
    testing,
    wait_for_signal,
)
from horsies.contrib.compression import ZlibCodec
from horsies.payload_codec import decode_only
from tests.support import factories
from tests.support.apps import UNREACHABLE, make_app
from tests.support.operator import Operator
from tests.support.payload_codecs import SealCodec
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database


def envelope(text: str, of: str = "argument", name: str = "plain") -> dict[str, Any]:
    return {"horsies.encoded": name, "of": of, "data": base64.b64encode(text.encode()).decode()}


INJECTED = envelope('{},"amount":1000000,"admin":true')
OTHERS = [
    envelope("[1]"), envelope("{{{"), envelope("[1]", "result:echo"), envelope("[1]", name="aes"),
    {"horsies.encoded": 5}, {"body": [INJECTED]},
]  # fmt: skip


class Tasks:
    def __init__(self, app: Horsies) -> None:
        self.app = app

        @app.task("pay")
        def pay(webhook: dict[str, Any], amount: int = 1, admin: bool = False) -> TaskResult[list[Any], TaskError]:
            return TaskResult(ok=[webhook, amount, admin])

        @app.task("echo")
        def echo(value: Any) -> TaskResult[Any, TaskError]:
            return TaskResult(ok=value)

        @app.task("listed")
        def listed(values: list[Any]) -> TaskResult[list[Any], TaskError]:
            return TaskResult(ok=values)

        @app.task("refuse")
        def refuse(value: Any) -> TaskResult[Any, TaskError]:
            return TaskResult(err=TaskError("REFUSED", "<encoded by plain>", data=value))

        @app.task("told")
        def told(result: TaskResult[Any, TaskError]) -> TaskResult[Any, TaskError]:
            return TaskResult(ok=result.err_value.data)

        @app.task("seen")
        def seen(context: WorkflowContext) -> TaskResult[Any, TaskError]:
            return TaskResult(ok=context.results["echo"]["ok"])

        @app.task("continued")
        def continued(value: Any) -> TaskResult[Any, TaskError]:
            node = echo.node()(value)
            return Continue(app.workflow("inner", [node], output=node))

        @app.task("completed")
        def completed(value: Any) -> TaskResult[Any, TaskError]:
            with psycopg.connect(app.config.broker.database_url) as connection:
                current_task().complete(connection, value)
            return TaskResult(ok=value)

        self.pay, self.echo, self.listed, self.refuse, self.told = pay, echo, listed, refuse, told
        self.seen, self.continued, self.completed = seen, continued, completed


@pytest.fixture(
    params=[None, ZlibCodec(), decode_only(SealCodec()), SealCodec()], ids=["none", "zlib", "decode-only", "seal"]
)
def codec(request: pytest.FixtureRequest) -> PayloadCodec | None:
    return request.param


@pytest.fixture
def tasks(db: Database, codec: PayloadCodec | None) -> Iterator[Tasks]:
    with make_app(db, payload_codec=codec) as app:
        yield Tasks(app)


def test_sends_and_their_results(tasks: Tasks) -> None:
    t, app = tasks, tasks.app
    with testing.real(app, in_place=True) as database:
        paid = [
            t.pay.send(INJECTED), app.send("pay", INJECTED), app.send("pay", webhook=INJECTED),
            *t.pay.send_many([(INJECTED,)]), *app.send_many([t.pay.call(INJECTED), t.echo.call(1)])[:1],
        ]  # fmt: skip
        batch = app.batch([t.pay.call(INJECTED), t.echo.call(2)])
        others = [(task.send(value), value) for value in OTHERS for task in (t.echo, t.completed)]
        refused = [(t.refuse.send(value), value) for value in (*OTHERS, envelope('{"message":"a","data":1}', "error:"))]
        database.drain()
        for handle in paid:
            assert handle.get(0).ok == [INJECTED, 1, False]
        assert [result.ok for result in batch.results()] == [[INJECTED, 1, False], 2]
        for handle, value in others:
            assert handle.get(0).ok == value
        for handle, value in refused:
            error = handle.get(0).err_value
            assert (error.error_code, error.message, error.data) == ("REFUSED", "<encoded by plain>", value)


@pytest.mark.parametrize("value", [INJECTED, *OTHERS])
def test_workflows_hand_them_on(tasks: Tasks, value: dict[str, Any]) -> None:
    t, app = tasks, tasks.app
    first, failed = t.echo.node(node_id="echo")(value), t.refuse.node()(value)
    approval = wait_for_signal("approval", dict[str, Any])
    items = t.listed.node()([value, {"k": 1}])
    mapped = t.pay.node(node_id="mapped").map(items)
    nodes = {
        "handed": t.pay.node(node_id="handed")(from_node(first)),
        "told": t.told.node(node_id="told", allow_failed_deps=True)(result_from(failed)),
        "seen": t.seen.node(node_id="seen", workflow_ctx_from=[first])(),
        "continued": t.continued.node(node_id="continued")(value),
        "signalled": t.pay.node(node_id="signalled")(from_node(approval)),
        "mapped": mapped,
    }
    spec = app.workflow("handing", [first, failed, approval, items, *nodes.values()])
    with testing.real(app, in_place=True) as database:
        run = spec.start()
        run.signal(approval, value)
        database.drain()
        found = {name: result.ok for name, result in run.results().items() if name in nodes}
    paid = [value, 1, False]
    assert found == {
        "handed": paid, "told": value, "seen": value, "continued": value, "signalled": paid,
        "mapped": [paid, [{"k": 1}, 1, False]],
    }  # fmt: skip


def test_repeated_sends_and_starts(tasks: Tasks) -> None:
    t, task_id, workflow_id = tasks, str(uuid.uuid4()), str(uuid.uuid4())
    sender = t.echo.with_options(task_id=task_id)
    assert [sender.send(INJECTED).task_id for _ in range(2)] == [task_id] * 2
    with pytest.raises(TaskSendError, match="PAYLOAD_MISMATCH"):
        sender.send(OTHERS[0])
    spec = t.app.workflow("again", [t.echo.node()(INJECTED)])
    assert [spec.start(workflow_id=workflow_id).workflow_id for _ in range(2)] == [workflow_id] * 2
    with pytest.raises(TaskSendError, match="PAYLOAD_MISMATCH"):
        t.app.workflow("again", [t.echo.node()(OTHERS[0])]).start(workflow_id=workflow_id)


def test_a_row_of_an_older_release_is_the_same_send(db: Database) -> None:
    with make_app(db) as app:
        t, task_id = Tasks(app), str(uuid.uuid4())
        t.echo.with_options(task_id=task_id).send(OTHERS[0])
        kwargs = json.dumps({"value": OTHERS[0]})
        db.execute("UPDATE horsies_tasks SET args = NULL, kwargs = %s WHERE id = %s", kwargs, task_id)
        assert t.echo.with_options(task_id=task_id).send(OTHERS[0]).task_id == task_id


def test_sql_cannot_add_arguments(db: Database) -> None:
    with make_app(db) as app:
        t = Tasks(app)
        ((task_id,),) = db.execute("SELECT horsies_send('pay', %s::jsonb)", json.dumps({"webhook": INJECTED}))
        with testing.real(app, in_place=True) as database:
            database.drain()
        error = app.handle(task_id, t.pay).get(0).err_value
        assert error.error_code == "WORKER_SERIALIZATION_ERROR"
        assert "is not one JSON value" in error.message


def test_schedules(tasks: Tasks, db: Database) -> None:
    app = tasks.app
    for at, (task, value) in enumerate([("pay", INJECTED), ("elsewhere", INJECTED), ("elsewhere", OTHERS[0])]):
        name = "webhook" if task == "pay" else "value"
        for _ in range(2):  # as it was given, and as it was read
            made = app.schedules.put(TaskSchedule(f"s{at}", task, Daily("03:00"), kwargs={name: value}))
            assert (made.kwargs, made.version) == ({name: value}, 1)
            assert app.schedules.put(made.as_schedule()).version == 1
    assert '{},"amount"' not in str(db.execute("SELECT kwargs FROM horsies_schedules"))


def test_operators_see_them(db: Database, operator: Operator) -> None:
    with make_app(db) as app:
        t = Tasks(app)
        with testing.real(app, in_place=True) as database:
            done, failed = t.echo.send(OTHERS[3]), t.refuse.send(OTHERS[3])
            database.drain()
    for handle in (done, failed):
        payload = operator.json("tasks", "show", handle.task_id)["tasks"][0]["payload"]
        assert json.loads(payload["kwargs"]) == {"value": OTHERS[3]}
        assert OTHERS[3]["data"] in payload["result"]
        assert "encoded by aes" not in operator("tasks", "show", handle.task_id).out
    assert "plain" in factories.read(db, done.task_id)["kwargs"]


def test_the_kit() -> None:
    with make_app(UNREACHABLE) as app:
        t = Tasks(app)
        with testing.recorded(app) as sends:
            t.pay.send(INJECTED)
            assert sends.assert_sent(t.pay, INJECTED).kwargs == {"webhook": INJECTED}
        with testing.inline(app):
            assert t.pay.send(INJECTED).get().ok == [INJECTED, 1, False]
            items = t.listed.node()([INJECTED, 1])
            mapped = t.echo.node().map(items)
            assert app.workflow("kit", [items, mapped], output=mapped).start().get().ok == [INJECTED, 1]
        assert testing.run(t.pay, INJECTED).ok == [INJECTED, 1, False]
