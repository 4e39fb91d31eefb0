"""`on_send` and `on_sent` on every road to a row: sends, batches, starts of workflows, schedules; and what they may do
wrong."""

import asyncio
import logging
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from horsies import (
    AppConfig,
    ConfigurationError,
    Horsies,
    Hourly,
    Middleware,
    Outgoing,
    PostgresConfig,
    ScheduleConfig,
    SendErrorCode,
    TaskSchedule,
    TaskSendError,
)
from horsies.contrib.opentelemetry import Tracing
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.identity import Identity
from horsies_worker.scheduler import announcing
from horsies_worker.scheduler.scheduler import Scheduler, settled_schedules
from tests.support import factories
from tests.support.apps import UNREACHABLE, add_task, app_on, async_app_on, make_app
from tests.support.chaosproxy import ChaosProxy, When
from tests.support.postgres import Database
from tests.support.schedulers import age, schedule, scheduling, state
from tests.support.seams_middleware import Mischief, Noting, OnlySync

pytestmark = pytest.mark.shared_database


class Marking(Middleware):
    """Gives every send this metadata, for roads on which the sender gives none."""

    def __init__(self, **metadata: Any) -> None:
        self.metadata = metadata

    def on_send(self, task: Outgoing) -> None:
        task.metadata |= self.metadata


class Kept(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(record.getMessage())


@pytest.fixture
def kept() -> Iterator[Kept]:
    handler = Kept()
    logging.getLogger("horsies").addHandler(handler)
    yield handler
    logging.getLogger("horsies").removeHandler(handler)


def told(noting: Noting) -> list[tuple[str, str, tuple[str, ...], str | None]]:
    return [(what, task.name, tuple(task.ids), error and str(error.code)) for what, task, error in noting.sends]


def metadata_of(db: Database, task_id: str) -> Any:
    return db.value("SELECT metadata FROM horsies_tasks WHERE id = %s", task_id)


async def test_every_verb(db: Database, conn: asyncpg.Connection) -> None:
    outer, inner = Noting("outer"), Noting("inner")
    async with async_app_on(db, middleware=[outer, inner]) as app:
        add = add_task(app)
        one = await add.send_async(1)
        many = await add.send_many_async([(1,), (2,)])
        later = await add.schedule_async(60, 1)
        by_name = await app.send_async("add", 1)
        mine = await add.with_options(connection=conn).send_async(1)
        run = await app.workflow("sums", [add.node()(1)]).start_async()
    names = [
        ("add", (one.task_id,)), ("add", tuple(handle.task_id for handle in many)), ("add", (later.task_id,)),
        ("add", (by_name.task_id,)), ("add", (mine.task_id,)), ("sums", (run.workflow_id,)),
    ]  # fmt: skip
    expected = [(what, *sent, None) for sent in names for what in ("on_send", "on_sent")]
    assert told(outer) == told(inner) == expected
    assert [task.queue_name for _, task, _ in outer.sends[::2]] == ["default"] * 5 + [None]
    assert [task.is_workflow for _, task, _ in outer.sends[::2]] == [False] * 5 + [True]
    for handle in (one, *many, later, by_name, mine):
        assert metadata_of(db, handle.task_id) == {"seen": ["outer", "inner"]}
    assert db.value("SELECT metadata FROM horsies_workflows") == {"seen": ["outer", "inner"]}
    assert db.value("SELECT metadata FROM horsies_tasks WHERE is_workflow_task") == {"seen": ["outer", "inner"]}


def test_the_synchronous_verbs(db: Database) -> None:
    noting = Noting("outer")
    with app_on(db, middleware=[noting]) as app, psycopg.connect(db.url) as connection:
        add = add_task(app)
        handles = [add.send(1), *add.send_many([(1,)]), add.with_options(connection=connection).send(3)]
        app.workflow("sums", [add.node()(1)]).start()
        connection.rollback()
    # the caller's transaction rolled back after on_sent
    assert [what for what, _, _ in noting.sends] == ["on_send", "on_sent"] * 4
    assert factories.count(db) == 3
    assert metadata_of(db, handles[0].task_id) == {"seen": ["outer"]}


def test_no_tasks_no_calls(db: Database) -> None:
    noting = Noting("outer")
    with app_on(db, middleware=[noting]) as app:
        assert add_task(app).send_many([]) == []
    assert noting.sends == []


@pytest.mark.parametrize("road", ["send", "send_many", "workflow"])
def test_a_refused_send_writes_nothing(db: Database, road: str) -> None:
    """The middleware before the one that raised learns of it; the one after it was never asked."""
    outer, inner = Noting("outer"), Noting("inner")
    with app_on(db, middleware=[outer, Marking(at_send="raise"), Mischief(), inner]) as app:
        add = add_task(app)
        roads = {
            "send": lambda: add.send(1),
            "send_many": lambda: add.send_many([(1,), (2,)]),
            "workflow": app.workflow("sums", [add.node()(1)]).start,
        }
        with pytest.raises(PermissionError, match="not for you"):
            roads[road]()
    assert factories.count(db) == 0
    assert db.value("SELECT count(*) FROM horsies_workflows") == 0
    assert [(what, error and error.code) for what, _, error in outer.sends] == [
        ("on_send", None), ("on_sent", SendErrorCode.ENQUEUE_FAILED),
    ]  # fmt: skip
    assert "PermissionError: not for you" in str(outer.sends[1][2])
    assert inner.sends == []


@pytest.mark.parametrize(
    ("at_send", "why"),
    [
        ("large", r"metadata is 20,\d+ bytes of JSON, the limit is 16,384"),
        ("not json", "metadata is not JSON: Object of type set is not JSON serializable"),
        ("not a dict", r"metadata must stay a dict, a middleware's on_send made it \['tenant'\]"),
    ],
)
def test_metadata_that_cannot_be_stored_refuses_the_send(db: Database, at_send: str, why: str) -> None:
    noting = Noting("outer")
    with app_on(db, middleware=[noting, Mischief()]) as app:
        add = add_task(app)
        with pytest.raises(TaskSendError, match=f"send of 'add': {why}") as raised:
            add.with_options(metadata={"at_send": at_send}).send(1)
    assert raised.value.code is SendErrorCode.VALIDATION_FAILED
    assert factories.count(db) == 0
    assert noting.sends[1][2] is raised.value


def test_an_edit_reaches_the_row(db: Database) -> None:
    with app_on(db, middleware=[Mischief()]) as app:
        handle = add_task(app).with_options(metadata={"at_send": "edit"}).send(1)
    assert metadata_of(db, handle.task_id) == {"at_send": "edit", "edited": True}


def test_on_sent_is_contained(db: Database, kept: Kept) -> None:
    outer = Noting("outer")
    with app_on(db, middleware=[outer, Mischief()]) as app:
        handle = add_task(app).with_options(metadata={"at_sent": True}).send(1)
    assert factories.count(db) == 1
    assert told(outer)[1] == ("on_sent", "add", (handle.task_id,), None)
    assert kept.texts == ["Mischief.on_sent failed; the send is not affected"]


async def test_a_retry_does_not_ask_again(db: Database) -> None:
    noting = Noting("outer")
    with ChaosProxy(db.url) as proxy:
        async with async_app_on(proxy.url, resilience={"send_attempts": 1}, middleware=[noting]) as app:
            add = add_task(app)
            await add.schedule_async(60, 0)
            noting.sends.clear()
            proxy.cut_at("CALL horsies_send_task", When.UNANSWERED)
            with pytest.raises(TaskSendError) as raised:
                await add.send_async(1)
            handle = await raised.value.retry_async()
    ids = (handle.task_id,)
    assert told(noting) == [
        ("on_send", "add", ids, None), ("on_sent", "add", ids, "ENQUEUE_FAILED"), ("on_sent", "add", ids, None),
    ]  # fmt: skip
    assert metadata_of(db, handle.task_id) == {"seen": ["outer"]}


# -- schedules ------------------------------------------------------------------------------------------


async def test_a_fired_schedule(db: Database) -> None:
    noting = Noting("outer")
    async with scheduling(db, schedule("s", Hourly()), middleware=[noting]) as scheduler:
        age(db, "0 seconds")
        await scheduler.run_once()
        task_id = state(db)["last_task_id"]
    assert told(noting) == [("on_send", "add", (task_id,), None), ("on_sent", "add", (task_id,), None)]
    assert [task.schedule for _, task, _ in noting.sends] == ["s", "s"]
    assert metadata_of(db, task_id) == {"seen": ["outer"]}


async def test_a_scheduled_workflow(db: Database) -> None:
    noting, spans = Noting("outer"), InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    every = TaskSchedule("s", workflow="sums", pattern=Hourly())
    app = make_app(db, schedule=ScheduleConfig([every]), middleware=[noting, Tracing(provider)])
    add = add_task(app)
    app.workflow("sums", [add.node(node_id="only")(1)])
    session = Session(app.config.broker, "scheduler", Queries(app.schema, Identity()))
    scheduler = Scheduler(session, app, settled_schedules(app))
    await scheduler.run_once()
    age(db, "0 seconds")
    await scheduler.run_once()
    await session.close()
    ((run_id, metadata),) = db.execute("SELECT id, metadata FROM horsies_workflows")
    assert told(noting) == [("on_send", "sums", (run_id,), None), ("on_sent", "sums", (run_id,), None)]
    (span,) = spans.get_finished_spans()
    assert (span.name, (span.attributes or {})["horsies.schedule"]) == ("start sums", "s")
    assert format(span.get_span_context().span_id, "016x") in metadata["horsies.trace"]["traceparent"]
    node = db.value("SELECT metadata FROM horsies_tasks")
    assert node == {**metadata, "horsies.workflow": run_id, "horsies.node": "only"}


class RefusesOne(Middleware):
    def on_send(self, task: Outgoing) -> None:
        if task.schedule == "s1":
            raise PermissionError("not at this hour")


async def test_a_refused_schedule_leaves_its_slot_out(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    noting = Noting("outer")
    both = [schedule(name, Hourly()) for name in ("s1", "s2")]
    async with scheduling(db, *both, middleware=[noting, RefusesOne()]) as scheduler:
        for name in ("s1", "s2"):
            age(db, "0 seconds", name)
        await scheduler.run_once()
        await scheduler.run_once()
        assert state(db, "s1")["run_count"] == 0
        assert state(db, "s2")["run_count"] == 1
    assert factories.count(db) == 1
    assert caplog.text.count("schedule 's1': its run of") == 1
    assert "is refused and left out: PermissionError: not at this hour" in caplog.text
    assert "has its run" not in caplog.text  # as it would say of a slot that another scheduler served
    ends = {task.schedule: error for what, task, error in noting.sends if what == "on_sent"}
    assert ends["s2"] is None
    assert isinstance(ends["s1"], TaskSendError)


class Odd(Middleware):
    """Hangs, or ends the process, in the thread that calls it."""

    def __init__(self) -> None:
        self.released = threading.Event()

    def on_send(self, task: Outgoing) -> None:
        if task.schedule == "hangs":
            self.released.wait(60)
        if task.schedule == "exits":
            sys.exit(0)


async def test_a_schedule_whose_middleware_hangs_or_exits_stops_no_other(
    db: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "PATIENCE_S", 0.3)
    odd = Odd()
    names = ("exits", "hangs", "plain")
    async with scheduling(db, *(schedule(name, Hourly()) for name in names), middleware=[odd]) as scheduler:
        for name in names:
            age(db, "0 seconds", name)
        ticks = 0

        async def tick() -> None:
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0.01)

        beside = asyncio.create_task(tick())
        await scheduler.run_once()
        beside.cancel()
        assert ticks > 5  # the event loop went on meanwhile
        odd.released.set()
        assert {name: state(db, name)["run_count"] for name in names} == {"exits": 0, "hangs": 0, "plain": 1}
    assert "SystemExit: 0" in caplog.text
    assert "has not returned within 0.3 s" in caplog.text


async def test_a_batch_that_is_split_asks_once_and_tells_all(db: Database) -> None:
    """The database refuses one of them: the others are written again, in halves."""
    noting = Noting("outer")
    many = [schedule(f"s{number}", Hourly(), kwargs={"a": number}) for number in range(8)]
    async with scheduling(db, *many, middleware=[noting]) as scheduler:
        db.execute("ALTER TABLE horsies_tasks ADD CONSTRAINT refused CHECK (kwargs <> '{\"a\":3}')")
        try:
            db.execute("UPDATE horsies_schedule_state SET next_run_at = date_trunc('second', now())")
            await scheduler.run_once()
        finally:
            db.execute("ALTER TABLE horsies_tasks DROP CONSTRAINT refused")
    asked = [task.schedule for what, task, _ in noting.sends if what == "on_send"]
    ends = {task.schedule: error for what, task, error in noting.sends if what == "on_sent"}
    assert sorted(set(asked)) == sorted(ends) == [f"s{number}" for number in range(8)]
    assert asked.count("s0") == 1
    assert [name for name, error in ends.items() if error is not None] == ["s3"]
    assert factories.count(db) == 7


# -- definitions ------------------------------------------------------------------------------------------


def test_what_is_no_middleware_is_refused() -> None:
    broker = PostgresConfig(UNREACHABLE)
    with pytest.raises(ConfigurationError, match=r"middleware\[0\]: .*Noting.* is not a Middleware object") as raised:
        AppConfig(broker, middleware=[Noting])  # type: ignore[list-item]
    assert "write Noting()" in str(raised.value)
    with pytest.raises(ConfigurationError, match=r"derive its class from horsies\.Middleware"):
        AppConfig(broker, middleware=[object()])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="give a list of Middleware objects"):
        AppConfig(broker, middleware=Noting("x"))  # type: ignore[arg-type]


CHECKED = """
from horsies import AppConfig, Horsies, PostgresConfig, TaskError, TaskResult
from tests.support.seams_middleware import OnlySync
app = Horsies(AppConfig(PostgresConfig("postgresql://nobody@127.0.0.1:1/nowhere"), middleware=[OnlySync()]))
@app.task("one")
{prefix}def one() -> TaskResult[int, TaskError]:
    return TaskResult(ok=1)
"""


@pytest.mark.parametrize(("prefix", "code"), [("", 0), ("async ", 1)])
def test_check_knows_middleware_that_forgets_a_kind_of_tasks(tmp_path: Path, prefix: str, code: int) -> None:
    (tmp_path / "shop.py").write_text(CHECKED.format(prefix=prefix))
    run = subprocess.run(
        [sys.executable, "-m", "horsies.cli", "check", "shop:app"], cwd=tmp_path, capture_output=True, text=True,
        env={"PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert run.returncode == code, run.stdout + run.stderr
    complaint = "OnlySync has run_task and not run_task_async: the app's `async def` tasks would run without it"
    assert (complaint in run.stdout + run.stderr) == bool(prefix)


def test_a_client_that_only_sends_is_not_asked_for_both() -> None:
    app = make_app(UNREACHABLE, middleware=[OnlySync()])
    assert isinstance(app, Horsies)
