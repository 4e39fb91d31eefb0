"""A payload codec in real processes: a worker, a scheduler and clients. No column of any table shows a payload."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from horsies import Interval, TaskSchedule, WorkflowStatus, from_node
from tests.support.codec_app import CANARY, everything, make, paused, register, saga
from tests.support.payload_codecs import SealCodec
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import ROOT, WorkerProcess, ended

LONG_MS = 30_000


@contextmanager
def working(db: Database, folder: Path, *options: str) -> Iterator[WorkerProcess]:
    command = [
        sys.executable, "-m", "horsies_worker", "tests.support.codec_app:app", "--processes=2",
        f"--health-file={folder / 'health'}", *options,
    ]  # fmt: skip
    variables = {**os.environ, "HORSIES_CODEC_URL": db.url, "PYTHONUNBUFFERED": "1"}
    process = WorkerProcess(command, variables, folder, cwd=ROOT)
    with ended(process):
        process.wait_up()
        yield process


def columns_with(db: Database, text: str) -> list[str]:
    """Every column of every table in which a row has this text."""
    tables = db.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public' ORDER BY 1")
    found: list[str] = []
    for (table,) in tables:
        names = db.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = 'public' AND table_name = %s",
            table,
        )
        for (name,) in names:
            if db.execute(f'SELECT 1 FROM "{table}" WHERE strpos("{name}"::text, %s) > 0 LIMIT 1', text):
                found.append(f"{table}.{name}")
    return found


@pytest.fixture
def t(db: Database) -> Iterator[Any]:
    with make(db.url) as app:
        tasks = register(app)
        tasks.app = app
        yield tasks


def test_no_column_shows_a_payload(db: Database, tmp_path: Path, t: Any) -> None:
    with working(db, tmp_path, "--with-scheduler") as process:
        assert t.echo.send(CANARY, times=2).get(LONG_MS).ok == 2 * CANARY
        assert t.aecho.send(CANARY, "!", CANARY).get(LONG_MS).ok == f"{CANARY}!{CANARY}"
        assert t.app.send("echo", f"by name {CANARY}").get(LONG_MS).ok == f"by name {CANARY}"
        handles = t.echo.send_many([t.echo.call(f"{at} {CANARY}") for at in range(3)])
        assert [handle.get(LONG_MS).ok for handle in handles] == [f"{at} {CANARY}" for at in range(3)]

        refused = t.refuse.send(CANARY)
        error = refused.get(LONG_MS).err_value
        assert (error.error_code, error.message) == ("TASK_FAILED_TWICE", f"refused: {CANARY}")
        assert error.data == {"why": [CANARY]}
        assert [one.error_message for one in refused.attempts()] == [f"refused: {CANARY}"] * 2
        watched = t.watch.send(CANARY)
        eventually(lambda: watched.info().progress == {"at": CANARY})
        watched.cancel()
        assert watched.get(LONG_MS).err_value.message == "the task was cancelled"
        error = t.explode.send(CANARY).get(LONG_MS).err_value
        assert f"exploded: {CANARY}" in error.message
        assert "RuntimeError" in error.data["traceback"]
        process.wait_for_log(f"exploded: {CANARY}")  # logs are not the database

        batch = t.app.batch([t.echo.call(CANARY), t.refuse.call(CANARY)])
        assert batch.get(LONG_MS).is_ok()
        assert [result.ok or result.err_value.message for result in batch.results()] == [CANARY, f"refused: {CANARY}"]

        run = everything(t.app, t).start()
        run.signal("approval", True)
        run.signal("note", [f"note {CANARY}"])
        parts = "+".join(f"{CANARY}-{at}" * 2 for at in range(3))
        assert run.get(LONG_MS).ok == parts
        results = run.results()
        assert results["weighed"].ok == f"refused: {CANARY}|yes {CANARY}|2"
        assert results["parts"].ok == f"{CANARY}-0+odd: {CANARY}-1+{CANARY}-2"
        assert results["nested"].ok == [f"{CANARY}-{at}" for at in range(3)]
        assert results["noted"].ok == [f"note {CANARY}"]
        assert results["going"].ok == f"done {CANARY}"
        assert run.result_for("nested/item[1]/two").ok == f"{CANARY}-1"

        failed = saga(t.app, t).start()
        error = failed.get(LONG_MS).err_value
        assert error.message.startswith("a node failed: last: UNHANDLED_EXCEPTION: RuntimeError: exploded: booked ")
        undone = [task for task in failed.tasks() if task.is_compensation]
        assert [(node.node_id, str(node.status)) for node in undone] == [
            ("undo-1-second", "COMPLETED"), ("undo-2-first", "COMPLETED"),
        ]  # fmt: skip
        held = paused(t.app, t).start()
        eventually(lambda: held.status() is WorkflowStatus.PAUSED)

        ticks = "SELECT count(*) FROM horsies_tasks WHERE id IN (SELECT last_task_id FROM horsies_schedule_state)"
        eventually(lambda: db.execute(f"{ticks} AND status = 'COMPLETED'") == [(1,)])
    assert columns_with(db, CANARY) == []
    assert columns_with(db, "TASK_FAILED_TWICE")  # the search does find what is there
    # codes, states and names stay readable
    assert db.execute("SELECT count(*) FROM horsies_tasks WHERE error_code = 'TASK_FAILED_TWICE'") == [(3,)]


def test_no_column_shows_a_payload_of_other_kinds_of_sends(db: Database, tmp_path: Path, t: Any) -> None:
    with working(db, tmp_path):
        minute = timedelta(minutes=1)
        several = t.app.send_many(
            [
                t.echo.call(CANARY), t.pay.with_options(unique_key="p").call(CANARY), t.shout.call(CANARY),
                t.echo.with_options(keep_for=minute, group="g", metadata={"m": 1}).call(CANARY, times=2),
            ]
        )  # fmt: skip
        assert [one.get(LONG_MS).ok for one in several] == [CANARY, f"paid {CANARY}", 2 * CANARY, 2 * CANARY]

        once = t.echo.with_options(unique_by_args=True, unique_for=minute)
        first, again = once.send(CANARY), once.send(text=CANARY, times=1)
        assert (again.is_duplicate, again.task_id) == (True, first.task_id)
        assert not once.send(f"other {CANARY}").is_duplicate
        last = t.echo.with_options(unique_key="e", debounce=timedelta(milliseconds=300))
        sent = [last.send(f"{at} {CANARY}") for at in range(3)]
        assert sent[0].get(LONG_MS).ok == f"2 {CANARY}"
        replaced = t.echo.with_options(unique_key="r", on_conflict="replace", delay=timedelta(seconds=0.5))
        sent = [replaced.send(f"{at} {CANARY}") for at in range(2)]
        assert sent[0].get(LONG_MS).ok == f"1 {CANARY}"
        assert first.get(LONG_MS).ok == CANARY
        assert db.execute("SELECT count(*) FROM horsies_unique_keys") == [(4,)]
        assert t.echo.with_options(keep_for=minute).send(CANARY).get(LONG_MS).ok == CANARY

        items = [CANARY, f"odd {CANARY}", f"wrong {CANARY}"]
        good, odd, wrong = (one.get(LONG_MS) for one in t.shout.send_many([(item,) for item in items]))
        assert (good.ok, odd.err_value.message, odd.err_value.data) == (
            2 * CANARY,
            f"odd: {items[1]}",
            {"text": items[1]},
        )
        assert wrong.err_value.error_code == "RETURN_TYPE_MISMATCH"
        assert f"raise {CANARY}" in t.shout.send(f"raise {CANARY}").get(LONG_MS).err_value.message
        assert t.ashout.send(CANARY).get(LONG_MS).ok == 2 * CANARY
        mapped = t.shout.node(node_id="mapped").map(listed := t.split.node(node_id="listed")(CANARY))
        run = t.app.workflow("shouts", [listed, mapped], output=mapped).start()
        assert run.get(LONG_MS).ok == [f"{CANARY}-{at}" * 2 for at in range(3)]

        assert t.pay.send(CANARY).get(LONG_MS).ok == f"paid {CANARY}"
        assert t.pay.send(CANARY, "fail").get(LONG_MS).ok == f"paid {CANARY}"
        assert f"not paid: {CANARY}" in t.pay.send(CANARY, "roll back").get(LONG_MS).err_value.message
        assert t.apay.send(CANARY).get(LONG_MS).ok == f"paid {CANARY}"
        paid = t.pay.node(node_id="paid")(CANARY)
        told = t.echo.node(node_id="told")(from_node(paid))
        assert t.app.workflow("paying", [paid, told], output=told).start().get(LONG_MS).ok == f"paid {CANARY}"

        assert t.nap.send(CANARY).get(LONG_MS).ok == CANARY
        poisoned = t.poison.send(CANARY)
        assert poisoned.get(LONG_MS).err_value.error_code == "CRASH_LIMIT"

        ((sent,),) = db.execute("""SELECT horsies_send('echo', '{"text": "by SQL"}')""")
        assert t.app.handle(sent).get(LONG_MS).ok == "by SQL"
        assert "by SQL" not in str(db.execute("SELECT result FROM horsies_tasks WHERE id = %s", sent))
    assert columns_with(db, CANARY) == []


def test_no_column_shows_the_arguments_of_stored_schedules(db: Database, tmp_path: Path, t: Any) -> None:
    def put(name: str, task: str | None = None, **kwargs: Any) -> None:
        workflow = None if task else "reports"
        t.app.schedules.put(TaskSchedule(name, task, Interval(seconds=1), kwargs=kwargs, workflow=workflow))

    put("task", "echo", text=CANARY)
    put("batch task", "shout", item=CANARY)
    put("workflow", text=CANARY)
    # by an app with other types: what does not fit is found by the scheduler
    with make(db.url) as other:
        kwargs = {"text": CANARY, "number": CANARY}
        other.schedules.put(TaskSchedule("typed", "picky", Interval(seconds=1), kwargs=kwargs))
        other.schedules.put(
            TaskSchedule("built", None, Interval(seconds=1), workflow="reports", kwargs={"text": f"refuse {CANARY}"})
        )
    with working(db, tmp_path, "--with-scheduler") as process:
        done = (
            "SELECT count(*) FROM horsies_schedule_state s WHERE EXISTS (SELECT FROM horsies_tasks t"
            " WHERE t.id = s.last_task_id AND t.status = 'COMPLETED') OR EXISTS (SELECT FROM horsies_workflows w"
            " WHERE w.id = s.last_task_id AND w.status = 'COMPLETED')"
        )
        eventually(lambda: db.execute(done) == [(4,)])
        eventually(
            lambda: db.execute("SELECT count(*) FROM horsies_schedule_state WHERE problem IS NOT NULL") == [(2,)]
        )
        process.wait_for_log("there is no report about")
    assert "there is no report about" in t.app.run_sync("", lambda: t.app.get_broker().schedules.problem("built"))
    assert columns_with(db, CANARY) == []


def test_a_worker_without_the_key_fails_tasks_and_says_why(db: Database, tmp_path: Path) -> None:
    with make(db.url, SealCodec({"k9": b"a key that the worker does not have"})) as app:
        t = register(app)
        with working(db, tmp_path):
            handle = t.echo.send(CANARY)
            error = handle.get(LONG_MS).err_value
            assert error.error_code == "WORKER_SERIALIZATION_ERROR"
            assert error.message == "the stored arguments: payload codec 'seal' cannot decode: no key 'k9'"
    assert columns_with(db, CANARY) == []
