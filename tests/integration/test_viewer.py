"""A viewer uses every list and every screen, and reads no message, no argument and no result."""

import asyncio
import dataclasses
import json
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from horsies import TaskError
from horsies.codec import encode_error
from horsies.ids import new_id
from horsies.operate.session import NEEDS_OPERATOR
from horsies_schema.models import Base
from horsies_schema.roles import PRIVATE
from horsies_tui.data.filters import Query
from horsies_tui.data.postgres import PostgresSource
from horsies_tui.data.source import SourceError
from tests.support import factories, workflow_app
from tests.support.apps import async_app_on, make_app
from tests.support.dashboards import source_on
from tests.support.factories import ago
from tests.support.operator import Operator
from tests.support.postgres import Database
from tests.support.roles import accounts

SECRET = "hunter2"
ERROR = encode_error(TaskError("SMTP_DOWN", f"no mailbox {SECRET}", data={"traceback": f"File ... {SECRET}"}))
DEAD = "00000000-dead"
pytestmark = pytest.mark.breaks("T8", "W3")


@pytest.fixture
def failed(db: Database) -> str:
    """Rows whose every private column holds the secret."""
    told = {
        "args": f'["{SECRET}"]', "kwargs": f'{{"to": "{SECRET}"}}', "task_options": f'{{"x": "{SECRET}"}}',
        "unique_key": SECRET, "enqueue_sha": SECRET, "progress": f'{{"at": "{SECRET}"}}',
        "metadata": f'{{"tenant": "{SECRET}"}}',
    }  # fmt: skip
    ended = {"result": ERROR, "failed_reason": f"ValueError: {SECRET}", "claimed_by_worker_id": DEAD}
    task_id = factories.task(db, "FAILED", **told, **ended)
    old = {"claimed_at": ago(hours=1), "started_at": ago(hours=1), "enqueued_at": ago(hours=1)}
    factories.task(db, "RUNNING", **{**told, "unique_key": f"{SECRET} 2"}, **old, claimed_by_worker_id=DEAD)
    factories.task(db, "PENDING", **{**told, "unique_key": f"{SECRET} 3"})
    db.execute(
        "UPDATE horsies_task_attempts SET error_code = 'WORKER_CRASHED', outcome = 'WORKER_FAILURE', worker_id = %s,"
        " error_message = %s, failed_reason = %s",
        DEAD, f"ValueError: {SECRET}", f"reason {SECRET}",
    )  # fmt: skip
    factories.worker_state(db, worker_id=DEAD, snapshot_at=ago(minutes=30))
    db.execute(
        "INSERT INTO horsies_schedule_state (schedule_name, next_run_at, config_hash) VALUES ('nightly', now(), %s)",
        SECRET,
    )
    return task_id


@pytest.fixture
def run_id(db: Database, failed: str) -> str:
    """A failed run, and one that waits."""

    async def start() -> str:
        async with make_app(db) as app:
            tasks = workflow_app.register(app)
            spec = app.workflow("letters", [tasks.join.node()(SECRET)])
            await spec.start_async()
            return (await spec.start_async()).workflow_id

    run_id = asyncio.run(start())
    db.execute(
        "UPDATE horsies_workflows SET status = 'FAILED', completed_at = now(), error = %s, result = %s,"
        " success_policy = %s, metadata = %s WHERE id = %s",
        ERROR, SECRET, json.dumps(SECRET), json.dumps({"tenant": SECRET}), run_id,
    )  # fmt: skip
    db.execute(
        "UPDATE horsies_workflow_tasks SET status = 'FAILED', completed_at = now(), error = %s, result = %s, args = %s,"
        " args_from = %s, task_options = %s WHERE workflow_id = %s",
        ERROR, SECRET, SECRET, json.dumps(SECRET), SECRET, run_id,
    )  # fmt: skip
    return run_id


@pytest.fixture
def viewer(db: Database) -> Iterator[str]:
    """The URL of a viewer's account."""
    with accounts(db) as found:
        yield found["viewer"].url


def test_no_private_column_is_readable(viewer: str, run_id: str) -> None:
    with psycopg.connect(viewer, autocommit=True) as connection:
        for name, table in Base.metadata.tables.items():
            for column in table.columns:
                query = f"SELECT {column.name}::text FROM {name}"
                if column.name in PRIVATE.get(name, ()):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        connection.execute(query)  # type: ignore[call-overload]
                else:
                    rows = connection.execute(query).fetchall()  # type: ignore[call-overload]
                    assert not [row for row in rows if SECRET in (row[0] or "")], (name, column.name)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT * FROM horsies_tasks")
        stats = connection.execute("SELECT attname FROM pg_stats WHERE tablename LIKE 'horsies%'").fetchall()
        assert not {name for (name,) in stats} & {"args", "kwargs", "result", "failed_reason", "error_message"}


def test_every_command_that_looks(
    db: Database, viewer: str, failed: str, run_id: str, capsys: pytest.CaptureFixture[str]
) -> None:
    hand = Operator(Database(db.name, viewer), capsys)
    commands = [
        ["tasks", "list"], ["tasks", "list", "--status", "FAILED"], ["tasks", "count"], ["tasks", "show", failed],
        ["tasks", "show", failed, "--full"], ["workflows", "list"], ["workflows", "list", "--status", "FAILED"],
        ["workflows", "show", run_id], ["workflows"], ["stale", "list"], ["workers"], ["queues"], ["schedules"],
        ["tasks", "purge", failed, "--dry-run"], ["tasks", "retry", failed, "--dry-run"],
    ]  # fmt: skip
    for command in commands:
        for more in ([], ["--json"]):
            ran = hand(*command, *more)
            assert ran.code == 0, (command, ran.err)
            assert ran.out
            assert SECRET not in ran.out + ran.err, command
            assert "permission denied" not in ran.err, command
    assert hand("workflows", "show", run_id, "--mermaid").code == 0
    told = hand("doctor")
    assert "permission denied" not in told.out + told.err
    assert SECRET not in told.out
    shown = hand("tasks", "show", failed).out
    assert "SMTP_DOWN" in shown
    assert f"arguments, metadata, progress and result: {NEEDS_OPERATOR}" in shown
    assert hand.json("tasks", "show", failed)["tasks"][0]["metadata"] is None
    assert hand.json("workflows", "show", run_id)["workflow"]["metadata"] is None
    assert "need the operator role" in hand("workflows", "show", run_id).out
    assert SECRET in Operator(db, capsys)("workflows", "show", run_id).out  # which the owner sees


def test_a_condition_on_metadata_needs_the_right_to_read_it(
    db: Database, viewer: str, failed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    meta = ["--meta", f"tenant={SECRET}"]
    hand = Operator(Database(db.name, viewer), capsys)
    for command in (["list"], ["count"], ["retry", "--dry-run"], ["cancel", "--dry-run"], ["purge", "--dry-run"]):
        ran = hand("tasks", *command, *meta)
        assert (ran.code, ran.out) == (1, "")
        assert ran.err == f"horsies: metadata is {NEEDS_OPERATOR}\n"
    assert failed in Operator(db, capsys)("tasks", "list", *meta).out  # which the owner may


async def test_the_broker_of_a_viewer(viewer: str, failed: str) -> None:
    async with async_app_on(viewer) as app:
        broker = app.get_broker()
        info = await broker.get_task_info(failed)
        assert info is not None
        assert (info.error_code, info.failed_reason, info.unique_key, info.progress) == ("SMTP_DOWN", None, None, None)
        assert info.metadata is None
        assert [(one.error_code, one.error_message) for one in await broker.get_attempts(failed)] == [
            ("WORKER_CRASHED", None)
        ]
        assert await broker.get_task_info(new_id()) is None


async def test_every_screen(db: Database, viewer: str, failed: str, run_id: str) -> None:
    hidden = await _screens(source_on(viewer), failed, run_id)
    assert SECRET not in hidden
    assert "SMTP_DOWN" in hidden
    assert SECRET in await _screens(source_on(db.url), failed, run_id)  # which the owner sees


async def _screens(source: PostgresSource, failed: str, run_id: str) -> str:
    every, problems = Query.parse("")
    assert not problems
    hour = timedelta(hours=1)
    try:
        seen: list[Any] = [
            await source.session(), await source.overview(hour), await source.breakdown(every, since=None),
            await source.tasks(every, since=None, after=None, limit=50), await source.task(failed),
            await source.workers(), await source.worker(DEAD, hour), await source.stale(),
            await source.workflows(every, since=None, after=None, limit=50), await source.workflow(run_id),
            await source.schedules(), await source.maintenance(),
        ]  # fmt: skip
    except SourceError as error:
        raise AssertionError(str(error)) from error
    finally:
        await source.close()
    assert seen[7].lost
    return "\n".join(repr(dataclasses.asdict(one) if dataclasses.is_dataclass(one) else one) for one in seen)  # type: ignore[call-overload]


async def test_what_the_dashboard_offers_to_whom(db: Database) -> None:
    with accounts(db) as found:
        for role, cancels in (("viewer", False), ("operator", True), ("worker", True)):
            source = source_on(found[role].url)
            try:
                rights = (await source.session()).rights
            finally:
                await source.close()
            assert (rights.may_cancel, rights.sees_arguments) == (cancels, cancels), role
