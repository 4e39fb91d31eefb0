"""A payload codec on a real database: keys, moved payloads, rolling introduction, repeated sends, operators."""

import asyncio
import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from horsies import (
    ConfigurationError,
    Daily,
    Horsies,
    PayloadCodec,
    PayloadContext,
    PayloadError,
    PostgresConfig,
    SendErrorCode,
    TaskSchedule,
    TaskSendError,
    WorkflowStatus,
    cli,
    testing,
)
from horsies.contrib.compression import ZlibCodec
from horsies.payload_codec import chain, decode_only, with_older
from horsies_tui.data.models import ScheduleDetail
from horsies_tui.data.postgres import PostgresSource
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.identity import Identity
from horsies_worker.scheduler.scheduler import Scheduler
from tests.support import codec_app, factories
from tests.support.apps import UNREACHABLE, make_app
from tests.support.codec_app import CANARY, everything, paused, saga
from tests.support.operator import Operator
from tests.support.payload_codecs import SealCodec
from tests.support.postgres import Database
from tests.support.roles import accounts

pytestmark = pytest.mark.shared_database

OLD, NEW = SealCodec({"k1": b"old"}), SealCodec({"k2": b"new", "k1": b"old"})
Tasks = Callable[..., Any]


@pytest.fixture
def on(db: Database) -> Iterator[Tasks]:
    """The tasks of `codec_app` in an app with this codec."""
    with ExitStack() as stack:

        def made(codec: PayloadCodec | None = None, **config: Any) -> Any:
            app = stack.enter_context(codec_app.make(db.url, codec, **config))
            tasks = codec_app.register(app)
            tasks.app = app
            return tasks

        yield made


def stored(db: Database, task_id: str, column: str) -> Any:
    return factories.read(db, task_id)[column]


# -- keys ------------------------------------------------------------------------------------------


def test_keys_rotate_while_tasks_wait(on: Tasks) -> None:
    old, new = on(OLD), on(NEW)
    waiting = old.echo.send(CANARY)
    with testing.real(new.app, in_place=True) as database:
        later = new.echo.send(CANARY)
        database.drain()
        assert new.app.handle(waiting.task_id, new.echo).get(0).ok == later.get(0).ok == CANARY
    result = old.app.handle(later.task_id, old.echo).get(0)  # a process that does not have the new key yet
    assert result.err_value.error_code == "RESULT_DESERIALIZATION_ERROR"
    assert result.err_value.message == "payload codec 'seal' cannot decode: no key 'k2'"


def test_a_worker_without_the_key(on: Tasks, db: Database) -> None:
    new, old = on(NEW), on(OLD)
    handle = new.echo.send(CANARY)
    with testing.real(old.app, in_place=True) as database:
        database.drain()
    error = handle.get(0).err_value
    assert error.error_code == "WORKER_SERIALIZATION_ERROR"
    assert "no key 'k2'" in error.message
    assert stored(db, handle.task_id, "error_code") == "WORKER_SERIALIZATION_ERROR"


def test_a_key_that_is_missing_when_the_result_is_stored(on: Tasks, db: Database) -> None:
    class Forgetful(SealCodec):
        def encode(self, data: bytes, context: PayloadContext) -> bytes | None:
            if context.kind == "result":
                raise PayloadError("the key is gone")
            return super().encode(data, context)

    t = on(Forgetful())
    with testing.real(t.app, in_place=True) as database:
        handle = t.echo.send(CANARY)
        database.drain()
        error = handle.get(0).err_value
    assert error.error_code == "WORKER_SERIALIZATION_ERROR"
    assert error.message == "the result cannot be stored: payload codec 'seal' cannot encode: the key is gone"
    assert CANARY not in stored(db, handle.task_id, "result")


def test_a_send_that_cannot_be_encoded_writes_nothing(on: Tasks, db: Database) -> None:
    class Broken(SealCodec):
        def encode(self, data: bytes, context: PayloadContext) -> bytes | None:
            raise KeyError(data)

    t = on(Broken())
    sends: list[Callable[[], Any]] = [
        lambda: t.echo.send(CANARY),
        lambda: t.echo.send_many([(CANARY,)]),
        lambda: t.app.send("unknown", CANARY),
        lambda: t.app.batch([t.echo.call(CANARY)]),
        lambda: everything(t.app, t).start(),
        lambda: t.app.workflow_handle("x").signal("other", CANARY),
    ]
    for send in sends:
        with pytest.raises(TaskSendError, match="payload codec 'seal' cannot encode: KeyError") as refused:
            send()
        assert refused.value.code is SendErrorCode.VALIDATION_FAILED
        assert CANARY not in str(refused.value)
    assert db.execute("SELECT count(*) FROM horsies_tasks") == [(0,)]


# -- payloads that were moved ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (KeyError("SECRET"), "payload codec 'seal' gives no fingerprint: KeyError"),
        (PayloadError("no hash key"), "payload codec 'seal' gives no fingerprint: no hash key"),
        ("short", "a text of at least 16 characters"),
        (b"bytes are not a text, not even here", "a text of at least 16 characters"),
    ],
)
def test_a_fingerprint_that_fails_refuses_the_send(answer: Any, why: str) -> None:
    class Wrong(SealCodec):
        def fingerprint(self, digest: bytes) -> str | None:
            if isinstance(answer, Exception):
                raise answer
            return answer

    with codec_app.make(UNREACHABLE, Wrong()) as app, testing.recorded(app) as sends:
        t = codec_app.register(app)
        for send in (
            lambda: t.echo.send(CANARY), lambda: t.echo.with_options(unique_by_args=True).send(CANARY),
            lambda: app.with_options(unique_by_args=True).send("echo", CANARY),
            lambda: app.send_many([t.echo.call(CANARY), t.pay.call(CANARY)]), lambda: saga(app, t).start(),
            lambda: app.batch([t.echo.call(CANARY)]),
        ):  # fmt: skip
            with pytest.raises(TaskSendError) as told:
                send()
            assert told.value.code is SendErrorCode.VALIDATION_FAILED
            assert why in str(told.value)
            assert "SECRET" not in str(told.value)
        assert sends.sent() == []


def test_a_payload_that_was_moved_is_refused(on: Tasks, db: Database) -> None:
    t = on()
    with testing.real(t.app, in_place=True) as database:
        first, second = t.explode.send(CANARY), t.echo.send("harmless")
        done, other = t.echo.send("harmless"), t.odd.send("other")
        db.execute(
            "UPDATE horsies_tasks t SET kwargs = (SELECT kwargs FROM horsies_tasks WHERE id = %s) WHERE id = %s",
            first.task_id, second.task_id,
        )  # fmt: skip
        database.drain()
        error = second.get(0).err_value
        assert (error.error_code, error.message) == (
            "WORKER_SERIALIZATION_ERROR", "the stored arguments: payload codec 'seal' cannot decode: ValueError",
        )  # fmt: skip
        db.execute(
            "UPDATE horsies_tasks t SET result = (SELECT result FROM horsies_tasks WHERE id = %s) WHERE id = %s",
            other.task_id, done.task_id,
        )  # fmt: skip
        assert "is a result of task 'odd'" in done.get(0).err_value.message


# -- with and without ------------------------------------------------------------------------------


def test_plain_rows_stay_readable(on: Tasks, db: Database) -> None:
    t = on()
    with make_app(db) as older:
        waiting = older.send("echo", text=f"plain {CANARY}")
        with testing.real(t.app, in_place=True) as database:
            database.drain()
        assert t.app.handle(waiting.task_id).get(0).ok == f"plain {CANARY}"
        error = older.handle(waiting.task_id).get(0).err_value  # the result is encoded
        assert error.error_code == "RESULT_DESERIALIZATION_ERROR"
        assert "encoded by 'seal', and this app has no payload_codec" in error.message


def test_the_first_deploy_reads_what_the_second_writes(on: Tasks, db: Database) -> None:
    first, second = on(decode_only(SealCodec())), on()
    with testing.real(first.app, in_place=True) as database:
        handles = [first.echo.send(CANARY), second.echo.send(CANARY)]
        run = everything(second.app, second).start()
        run.signal("approval", True)
        run.signal("note", [CANARY])
        database.drain(until_quiet=True)
        assert [handle.get(0).ok for handle in handles] == [CANARY, CANARY]
        assert run.get(0).is_ok()
    assert CANARY in stored(db, handles[0].task_id, "result")


def test_from_one_codec_to_another(on: Tasks) -> None:
    old, new = on(ZlibCodec(threshold=10)), on(with_older(chain(ZlibCodec(), SealCodec()), ZlibCodec()))
    with testing.real(new.app, in_place=True) as database:
        handle = old.echo.send("a" * 500)
        database.drain()
        assert new.app.handle(handle.task_id, new.echo).get(0).ok == "a" * 500
        message = handle.get(0).err_value.message
        assert "encoded by 'zlib+seal', and this app's payload_codec is 'zlib'" in message


def test_large_values_are_stored_small(on: Tasks, db: Database) -> None:
    t = on(ZlibCodec())
    with testing.real(t.app, in_place=True) as database:
        handle = t.echo.send("large and dull " * 2_000, times=3)
        database.drain()
        assert len(handle.get(0).ok_value) == 90_000
    assert len(stored(db, handle.task_id, "kwargs")) < 1_000
    assert json.loads(stored(db, handle.task_id, "kwargs"))["times"] == 3  # below the threshold


# -- repeated sends --------------------------------------------------------------------------------


@pytest.mark.parametrize("keyed", [True, False])
def test_a_repeated_send_is_the_same_send(on: Tasks, db: Database, keyed: bool) -> None:
    t, task_id = on(SealCodec(keyed=keyed)), str(uuid.uuid4())
    sender = t.echo.with_options(task_id=task_id)
    assert sender.send(CANARY).task_id == sender.send(CANARY).task_id == task_id
    with pytest.raises(TaskSendError, match="PAYLOAD_MISMATCH"):
        sender.send("another")
    run_id = str(uuid.uuid4())
    spec = saga(t.app, t)
    assert spec.start(workflow_id=run_id).workflow_id == spec.start(workflow_id=run_id).workflow_id
    batch_id = str(uuid.uuid4())
    t.app.batch([t.echo.call(CANARY)], batch_id=batch_id)
    t.app.batch([t.echo.call(CANARY)], batch_id=batch_id)
    with pytest.raises(TaskSendError, match="PAYLOAD_MISMATCH"):
        t.app.batch([t.echo.call("another")], batch_id=batch_id)
    with make_app(db) as older:
        other = older.with_options(task_id=str(uuid.uuid4())).send("echo", text=CANARY)
        again = t.app.with_options(task_id=other.task_id).send("echo", text=CANARY)  # sent before the codec came
        assert again.task_id == other.task_id
        sha = "SELECT enqueue_sha FROM horsies_tasks WHERE id = %s"
        same = older.with_options(task_id=str(uuid.uuid4())).send("echo", text=CANARY)
        mine = t.app.send("echo", text=CANARY)
        # a keyed fingerprint cannot be compared with a guess
        assert (db.execute(sha, same.task_id) == db.execute(sha, mine.task_id)) is not keyed


# -- workflows -------------------------------------------------------------------------------------


def test_lists_and_conditions_that_cannot_be_read(on: Tasks) -> None:
    class Blind(SealCodec):
        def decode(self, data: bytes, context: PayloadContext) -> bytes:
            if context.kind == "result":
                raise PayloadError("no key today")
            return super().decode(data, context)

    t = on(Blind())
    listed = t.split.node(node_id="listed")(CANARY)
    mapped = t.echo.node(node_id="mapped").map(listed)
    long = t.is_long.node(node_id="long")(CANARY)
    then = t.echo.node(node_id="then", when=long)("x")
    spec = t.app.workflow("lists", [listed, mapped, long, then], output=mapped)
    with testing.real(t.app, in_place=True) as database:
        run = spec.start()
        database.drain()
        error = run.get(0).err_value
        results = run.results()
    assert error.error_code == "WORKFLOW_FAILED"
    assert results["mapped"].err_value.message == (
        "the list to map over: payload codec 'seal' cannot decode: no key today"
    )
    assert results["then"].err_value.error_code == "WORKER_SERIALIZATION_ERROR"
    assert results["long"].err_value.error_code == "RESULT_DESERIALIZATION_ERROR"


def test_a_paused_run_says_why_to_those_with_the_key(on: Tasks, db: Database) -> None:
    t = on()
    with testing.real(t.app, in_place=True) as database:
        run = paused(t.app, t).start()
        database.drain()
        assert run.status() is WorkflowStatus.PAUSED
    ((error,),) = db.execute("SELECT error FROM horsies_workflows WHERE id = %s", run.workflow_id)
    assert error.startswith('{"err":{"error_code":"WORKFLOW_PAUSED","message":"<encoded by seal>"')
    assert f"exploded: {CANARY}" in t.app.envelopes.unwrap(error)


def test_live_runs_are_checked_before_a_deploy(on: Tasks) -> None:
    t, other = on(), on(SealCodec({"k7": b"another"}))
    saga(t.app, t).start()
    run = everything(t.app, t).start()
    with testing.real(t.app, in_place=True) as database:
        database.drain()
    saga(t.app, t).start()
    assert run.status() is WorkflowStatus.RUNNING
    found = t.app.run_sync("check", lambda: t.app.get_broker().check_workflows(t.app.registry))
    assert found.is_fine, found.problems
    found = other.app.run_sync("check", lambda: other.app.get_broker().check_workflows(other.app.registry))
    assert {problem.kind for problem in found.problems} == {"UNREADABLE"}
    assert "no key 'k1'" in found.problems[0].what


# -- operators -------------------------------------------------------------------------------------


@pytest.fixture
def ended(on: Tasks) -> Any:
    """A failed task, a completed one and a failed run."""
    t = on()
    with testing.real(t.app, in_place=True) as database:
        t.failed, t.done, t.run = t.refuse.send(CANARY), t.echo.send(CANARY), saga(t.app, t).start()
        database.drain(until_quiet=True)
    return t


def test_operators_see_the_name_of_the_codec(ended: Any, operator: Operator) -> None:
    shown = operator("tasks", "show", ended.failed.task_id, ended.done.task_id)
    assert shown.out.count("<encoded by seal>") >= 4
    document = operator.json("tasks", "show", ended.failed.task_id)["tasks"][0]
    assert document["payload"]["kwargs"] == '{"text":"<encoded by seal>"}'
    assert document["payload_cut"] == []
    assert document["attempts"][0]["error_message"] == "<encoded by seal>"
    run = operator("workflows", "show", ended.run.workflow_id)
    assert "<encoded by seal>" in run.out
    for out in (shown.out, run.out, operator("tasks", "list").out, json.dumps(document)):
        assert CANARY not in out
        assert "horsies.encoded" not in out
    refused = operator("tasks", "show", "--decode", ended.done.task_id)
    assert (refused.code, refused.out) == (2, "")
    assert "--decode needs the app that has the payload codec: give --app module:app" in refused.err


def test_an_operator_with_the_app_decodes(
    ended: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codec_app, "app", ended.app, raising=False)

    def said(*arguments: str) -> str:
        assert cli.main([*arguments, "--app", "tests.support.codec_app:app"]) == 0
        return capsys.readouterr().out

    task = said("tasks", "show", "--decode", ended.failed.task_id)
    assert f'kwargs  {{"text":"{CANARY}"}}' in task
    assert f"message  refused: {CANARY}" in task
    assert f"message of attempt 1  refused: {CANARY}" in task
    cut = json.loads(said("tasks", "show", "--decode", "--json", ended.failed.task_id))
    assert cut["tasks"][0]["payload"]["kwargs"] == f'{{"text":"{CANARY}"}}'
    assert f"exploded: booked booked flight {CANARY}" in said("workflows", "show", "--decode", ended.run.workflow_id)
    assert CANARY not in said("tasks", "show", ended.failed.task_id)
    assert CANARY not in said("workflows", "show", ended.run.workflow_id)


async def test_the_dashboard_sees_the_name_of_the_codec(ended: Any, db: Database) -> None:
    source = PostgresSource(PostgresConfig(db.url))
    try:
        task, run = await source.task(ended.failed.task_id), await source.workflow(ended.run.workflow_id)
    finally:
        await source.close()
    assert task is not None
    assert run is not None
    assert (task.payload or {})["kwargs"] == '{"text":"<encoded by seal>"}'
    assert task.attempts[0].error_message == "<encoded by seal>"
    assert run.error == "WORKFLOW_FAILED: <encoded by seal>"
    assert CANARY not in f"{task}{run}"


# -- stored schedules ------------------------------------------------------------------------------


def test_a_stored_schedule_that_is_put_again_is_the_same(on: Tasks, db: Database) -> None:
    t = on(OLD)
    far = [
        TaskSchedule("task", "echo", Daily("03:00"), kwargs={"text": CANARY, "times": 1}),
        TaskSchedule("workflow", None, Daily("03:00"), workflow="reports", kwargs={"text": CANARY}),
        TaskSchedule("elsewhere", "unknown", Daily("03:00"), kwargs={"deep": [{"text": CANARY}], "flag": True}),
    ]
    assert t.app.schedules.put_many(far) == 3
    assert t.app.schedules.put_many(far) == 0
    for schedule in far:
        stored = t.app.schedules.put(schedule)
        assert (stored.version, stored.kwargs) == (1, schedule.kwargs)
        assert t.app.schedules.put(stored.as_schedule()).version == 1
        assert t.app.schedules.put(replace(stored.as_schedule(), pattern=Daily("04:00")), version=1).version == 2
    assert t.app.schedules.put(replace(far[2], kwargs={**far[2].kwargs, "flag": 1})).version == 3
    moved = replace(far[0], task_name="aecho", kwargs={"text": CANARY})
    with pytest.raises(ConfigurationError):
        t.app.schedules.put(moved)  # its parameter has no name
    moved = replace(t.app.schedules.get("task").as_schedule(), task_name="book", kwargs={"text": CANARY})
    assert t.app.schedules.put(moved).kwargs == {"text": CANARY}
    # another key reads them, and one that is missing is told
    new, other = on(NEW), on(SealCodec({"k9": b"another"}))
    assert new.app.schedules.get("task").kwargs == {"text": CANARY}
    assert new.app.schedules.put(moved).version == 3
    unread = other.app.schedules.get("task")
    assert unread.without_envelopes().kwargs == {"text": "<encoded by seal>"}
    with pytest.raises(ConfigurationError, match="no key 'k1'"):
        other.app.schedules.put(unread.as_schedule())
    with make_app(db) as plain:
        kept = plain.schedules.get("task").as_schedule()
        assert plain.schedules.put(kept).version == 3  # it does not know the task either, and keeps the text
        codec_app.register(plain)
        with pytest.raises(ConfigurationError, match="encoded by 'seal', and this app has no payload_codec"):
            plain.schedules.put(kept)
    assert CANARY not in str(db.execute("SELECT kwargs FROM horsies_schedules"))


async def _run_once(app: Horsies) -> None:
    session = Session(app.config.broker, "scheduler", Queries(app.schema, Identity()))
    try:
        await Scheduler(session, app, []).run_once()
    finally:
        await session.close()


def test_operators_see_the_codec_of_schedules(
    on: Tasks, operator: Operator, db: Database, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    t = on(OLD)
    monkeypatch.setattr(codec_app, "app", t.app, raising=False)
    for text, name in ((CANARY, "fine"), (f"refuse {CANARY}", "built")):
        with make_app(db, payload_codec=OLD) as other:  # knows no workflow, and does not build it
            other.schedules.put(TaskSchedule(name, None, Daily("03:00"), workflow="reports", kwargs={"text": text}))
    asyncio.run(_run_once(t.app))
    shown, broken = operator("schedules", "show", "fine"), operator("schedules", "show", "built")
    assert ["arguments", '{"text":', '"<encoded', "by", 'seal>"}'] in shown.lines
    assert ["problem", "<encoded", "by", "seal>"] in broken.lines
    document = operator.json("schedules", "show", "built")
    assert document["schedule"]["kwargs"] == {"text": "<encoded by seal>"}
    assert document["problem"] == "<encoded by seal>"
    edited = operator.json("schedules", "edit", "fine", "--daily", "05:00")
    assert edited["schedule"]["kwargs"] == {"text": "<encoded by seal>"}
    assert t.app.schedules.get("fine").kwargs == {"text": CANARY}
    refused = operator("schedules", "edit", "fine", "--task", "echo")
    assert refused.code == 2
    assert "are encoded for 'workflow reports': name the app" in refused.err
    assert operator("schedules", "show", "--decode", "fine").code == 2
    for out in (shown.out, broken.out, str(document), str(edited), operator("schedules").out):
        assert CANARY not in out
        assert "horsies.encoded" not in out

    def said(*arguments: str) -> str:
        capsys.readouterr()
        assert cli.main(["schedules", *arguments, "--app", "tests.support.codec_app:app"]) == 0
        return capsys.readouterr().out

    decoded = said("show", "--decode", "built")
    assert f'{{"text":"refuse {CANARY}"}}' in decoded
    assert f"there is no report about refuse {CANARY}" in decoded
    assert json.loads(said("show", "--decode", "fine", "--json"))["schedule"]["kwargs"] == {"text": CANARY}
    assert CANARY not in said("show", "built")
    assert CANARY not in said("edit", "fine", "--task", "echo", "--json")
    assert t.app.schedules.get("fine").kwargs == {"text": CANARY}

    async def look() -> ScheduleDetail | None:
        source = PostgresSource(PostgresConfig(db.url))
        try:
            return await source.schedule("built")
        finally:
            await source.close()

    found = asyncio.run(look())
    assert found is not None
    assert found.stored is not None
    assert (found.stored.kwargs, found.problem) == ({"text": "<encoded by seal>"}, "<encoded by seal>")


# -- the testing kit -------------------------------------------------------------------------------


def test_recorded_and_inline_pass_through_the_codec() -> None:
    codec = SealCodec()
    with codec_app.make(UNREACHABLE, codec) as app:
        t = codec_app.register(app)
        with testing.recorded(app) as sends:
            t.echo.send(CANARY, times=2)
            app.send("elsewhere", CANARY, key=CANARY)
            run = everything(app, t).start()
            run.signal("note", [CANARY])
            assert codec.encoded > 10
            assert sends.assert_sent(t.echo, CANARY, times=2).kwargs == {"text": CANARY, "times": 2}
            assert sends.sent("elsewhere")[0].kwargs == {"key": CANARY}
            assert sends.signalled("note")[0].value == [CANARY]
            with pytest.raises(AssertionError):
                sends.assert_sent(t.echo, "another")
        with testing.inline(app) as sends:
            assert t.echo.send(CANARY).get().ok == CANARY
            assert t.refuse.send(CANARY).get().err_value.message == f"refused: {CANARY}"
            run = everything(app, t).start()
            run.signal("approval", True)
            run.signal("note", [CANARY])
            assert run.get().ok == "+".join(f"{CANARY}-{at}" * 2 for at in range(3))
            assert run.results()["weighed"].ok == f"refused: {CANARY}|yes {CANARY}|2"
            failed = saga(app, t).start()
            assert f"exploded: booked booked flight {CANARY}" in failed.get().err_value.message
            assert [sent.result.ok for sent in sends.sent(t.unbook) if sent.result] == [
                f"unbooked booked flight {CANARY} {CANARY}", f"unbooked flight {CANARY}",
            ]  # fmt: skip
            held = paused(app, t).start()
            assert held.status() is WorkflowStatus.PAUSED
        assert testing.run(t.echo, CANARY).ok == CANARY


def test_the_kit_shows_a_codec_that_fails() -> None:
    class Broken(SealCodec):
        def decode(self, data: bytes, context: PayloadContext) -> bytes:
            raise PayloadError("no key") if context.kind == "argument" else ValueError(data)

    with codec_app.make(UNREACHABLE, Broken()) as app:
        t = codec_app.register(app)
        with testing.recorded(app), pytest.raises(PayloadError, match="no key"):
            t.echo.send(CANARY)


# -- batch tasks and complete() --------------------------------------------------------------------


def test_one_item_that_cannot_be_decoded_fails_alone(on: Tasks, db: Database) -> None:
    old, new = on(SealCodec({"k9": b"another"})), on(OLD)
    with testing.real(new.app, in_place=True) as database:
        lost = old.shout.send(CANARY)
        good, odd, wrong = new.shout.send_many([(CANARY,), (f"odd {CANARY}",), (f"wrong {CANARY}",)])
        plain = new.app.handle(db.execute("SELECT horsies_send('shout', '{\"item\": \"plain\"}')")[0][0])
        database.drain()
        assert lost.get(0).err_value.message == "the stored arguments: payload codec 'seal' cannot decode: no key 'k9'"
        assert (good.get(0).ok, plain.get(0).ok) == (2 * CANARY, "plainplain")
        assert odd.get(0).err_value.message == f"odd: odd {CANARY}"
        assert wrong.get(0).err_value.error_code == "RETURN_TYPE_MISMATCH"
    assert CANARY not in str(db.execute("SELECT t.*, a.* FROM horsies_tasks t JOIN horsies_task_attempts a ON true"))


class NoResults(SealCodec):
    """Has lost the key for results with this text."""

    def encode(self, data: bytes, context: PayloadContext) -> bytes | None:
        if context.kind == "result" and b"lost" in data:
            raise PayloadError("no key for results")
        return super().encode(data, context)


def test_one_result_that_cannot_be_encoded_fails_alone(on: Tasks) -> None:
    t = on(NoResults())
    with testing.real(t.app, in_place=True) as database:
        good, lost = t.shout.send_many([(CANARY,), ("lost",)])
        paid, unpaid = t.pay.send(CANARY), t.pay.send("lost")
        database.drain()
        assert (good.get(0).ok, paid.get(0).ok) == (2 * CANARY, f"paid {CANARY}")
        for handle in (lost, unpaid):
            error = handle.get(0).err_value
            assert error.error_code == "WORKER_SERIALIZATION_ERROR"
            assert "payload codec 'seal' cannot encode: no key for results" in error.message


def test_the_kit_passes_batch_tasks_and_complete_through_the_codec(on: Tasks) -> None:
    t = on(codec := NoResults())
    with testing.recorded(t.app) as sends:
        t.shout.send(CANARY)
        by_args = t.echo.with_options(unique_by_args=True, unique_for=timedelta(minutes=1))
        assert [by_args.send(CANARY).is_duplicate, by_args.send(text=CANARY).is_duplicate] == [False, True]
        last = t.echo.with_options(unique_key="e", debounce=timedelta(seconds=1))
        assert [last.send(f"{at} {CANARY}").is_duplicate for at in range(2)] == [False, True]
        assert sends.assert_sent(t.shout, CANARY).kwargs == {"item": CANARY}
        assert [sent.kwargs["text"] for sent in sends.sent(t.echo)] == [CANARY, f"1 {CANARY}"]
        t.app.send_many([t.pay.call(CANARY), t.shout.call(f"many {CANARY}")])
        assert sends.assert_sent(t.shout, f"many {CANARY}")
    with testing.inline(t.app) as sends:
        before = codec.encoded
        assert t.shout.send(CANARY).get().ok == 2 * CANARY
        assert t.shout.send(f"odd {CANARY}").get().err_value.data == {"text": f"odd {CANARY}"}
        assert t.ashout.send(CANARY).get().ok == 2 * CANARY
        assert t.pay.send(CANARY).get().ok == f"paid {CANARY}"
        assert t.apay.send(CANARY).get().ok == f"paid {CANARY}"
        assert t.nap.send(CANARY).get().ok == CANARY
        assert codec.encoded >= before + 12
        for handle in (t.shout.send("lost"), t.pay.send("lost")):
            assert handle.get().err_value.error_code == "WORKER_SERIALIZATION_ERROR"


def test_repeated_sends_of_keys_and_of_several_tasks(on: Tasks, db: Database) -> None:
    t, ids = on(), [str(uuid.uuid4()) for _ in range(3)]
    for options in (
        {"unique_for": timedelta(minutes=1)},
        {"debounce": timedelta(minutes=1)},
        {"on_conflict": "replace"},
    ):
        task_id, key = str(uuid.uuid4()), str(options)
        sender = t.echo.with_options(task_id=task_id, unique_key=key, **options)
        assert [sender.send(CANARY).task_id, sender.send(CANARY).task_id] == [task_id] * 2
        with pytest.raises(TaskSendError, match="PAYLOAD_MISMATCH"):
            sender.send("another")
        with make_app(db) as older:  # sent before the codec came, and repeated after it
            known = {"task_id": str(uuid.uuid4()), "unique_key": f"older {key}", **options}
            other = codec_app.register(older).echo.with_options(**known).send(CANARY)
            assert t.echo.with_options(**known).send(CANARY).task_id == other.task_id

    def several(text: str) -> list[str]:
        senders = (t.echo, t.pay, t.shout)
        calls = [one.with_options(task_id=task_id).call(text) for one, task_id in zip(senders, ids, strict=True)]
        return [handle.task_id for handle in t.app.send_many(calls)]

    assert several(CANARY) == several(CANARY) == ids
    with pytest.raises(TaskSendError, match="PAYLOAD_MISMATCH"):
        several("another")
    by_args = {"unique_by_args": True, "unique_for": timedelta(minutes=1)}
    with make_app(db) as older:
        echo, task_id = codec_app.register(older).echo, str(uuid.uuid4())
        older.send_many([echo.with_options(task_id=task_id).call(CANARY)])
        with pytest.raises(TaskSendError, match="PAYLOAD_MISMATCH"):  # SQL compares these, and has one fingerprint
            t.app.send_many([t.echo.with_options(task_id=task_id).call(CANARY)])
        assert t.echo.with_options(task_id=task_id).send(CANARY).task_id == task_id
        plain = echo.with_options(**by_args).send(CANARY)
    mine = t.echo.with_options(**by_args).send(CANARY)
    key = "SELECT unique_key FROM horsies_tasks WHERE id = %s"
    assert db.execute(key, plain.task_id) != db.execute(key, mine.task_id)  # a guess cannot be tested


def test_an_operator_account_puts_encoded_schedules(db: Database) -> None:
    schedule = TaskSchedule("s", "echo", Daily("03:00"), kwargs={"text": CANARY})
    with accounts(db) as roles:
        with codec_app.make(roles["operator"].url) as app:
            codec_app.register(app)
            assert [app.schedules.put(schedule).version, app.schedules.put(schedule).version] == [1, 1]
        with codec_app.make(roles["viewer"].url) as app:
            stored = app.schedules.get("s")
            assert stored is not None
            assert stored.without_envelopes().kwargs is None
