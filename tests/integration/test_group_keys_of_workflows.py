"""The groups of workflow nodes and of schedules: their own, those that `group_by` gives them, and their run's."""

import threading
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from horsies import (
    ConfigurationError,
    Hourly,
    ScheduleConfig,
    SendErrorCode,
    TaskError,
    TaskResult,
    TaskSchedule,
    TaskSendError,
    WorkflowDefinition,
    WorkflowMeta,
    WorkflowStatus,
    from_node,
    testing,
)
from horsies.app import Horsies
from horsies.workflow.graph import WorkflowDefinitionError
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.identity import Identity
from horsies_worker.scheduler.scheduler import Scheduler, settled_schedules
from tests.support.apps import UNREACHABLE, add_task, app_on, make_app
from tests.support.engine import Engine
from tests.support.postgres import Database
from tests.support.schedulers import age

pytestmark = pytest.mark.shared_database

Number = TaskResult[int, TaskError]
NAMES = ("plain", "named", "called", "numbers", "placed")


def answer(name: str, given: Mapping[str, Any]) -> Any:
    return [given["n"], given["n"] + 1] if name == "numbers" else given.get("n", 0)


def register(app: Horsies) -> SimpleNamespace:
    """`named` is grouped by its parameter `tenant`, `called` and `placed` by a function of all their arguments."""

    def key(n: int, tenant: str = "none") -> str:
        if tenant == "broken":
            raise LookupError("no such tenant")
        return f"{tenant}/{n}"

    @app.task("plain")
    def plain(n: int) -> Number:
        return TaskResult(ok=n)

    @app.task("named", group_by="tenant")
    def named(n: int, tenant: str = "none") -> Number:
        return TaskResult(ok=n)

    @app.task("called", group_by=key)
    def called(n: int, tenant: str = "none") -> Number:
        return TaskResult(ok=n)

    @app.task("numbers")
    def numbers(n: int) -> TaskResult[list[int], TaskError]:
        return TaskResult(ok=[n, n + 1])

    @app.task("placed", group_by=lambda n, meta: "never asked")
    def placed(n: int, meta: WorkflowMeta | None = None) -> Number:
        return TaskResult(ok=n)

    return SimpleNamespace(app=app, plain=plain, named=named, called=called, numbers=numbers, placed=placed)


@pytest.fixture
async def t(db: Database) -> AsyncIterator[SimpleNamespace]:
    async with make_app(db) as app, Engine.on(db, NAMES) as engine:
        tasks = register(app)
        tasks.engine = engine
        yield tasks


async def drained(t: SimpleNamespace, db: Database, reply: Any = answer) -> list[tuple[str, str | None]]:
    """Run everything to its end. Returns the node and the group of each task, in the order of both.

    The engine claims tasks without a group: each task's group is noted, then taken from it.
    """
    seen: dict[str, tuple[str, str | None]] = {}
    while True:
        waiting = db.execute(
            """SELECT t.id, n.node_id, t.group_key
                 FROM horsies_tasks t JOIN horsies_workflow_tasks n ON n.task_id = t.id WHERE t.status = 'PENDING'"""
        )
        seen |= {task_id: (node_id, group) for task_id, node_id, group in waiting}
        db.execute("UPDATE horsies_tasks SET group_key = NULL WHERE status = 'PENDING'")
        rows = await t.engine.claim()
        if rows:
            t.engine.advancers[0].tasks_ended(await t.engine.end(rows, reply))
        await t.engine.advance()
        if not rows and not await t.engine.recover():
            return sorted(seen.values(), key=str)


def everything(t: SimpleNamespace) -> Any:
    """A workflow with a node of each kind."""
    first = t.plain.node(node_id="first")(1)
    own = t.plain.node(node_id="own", group="mine")(from_node(first))
    items = t.numbers.node(node_id="items")(5)
    inner = t.app.workflow("inner", [t.plain.node(node_id="inside")(1), t.named.node(node_id="by tenant")(1, "acme")])
    return t.app.workflow(
        "everything",
        [
            first, own, items,
            t.plain.node(node_id="mapped", group="each").map(items),
            t.plain.node(node_id="mapped too").map(items),
            inner.node(node_id="inner of the run"),
            inner.node(node_id="inner of its own", group="sub", waits_for=[own]),
        ],
    )  # fmt: skip


async def test_nodes_have_their_own_group_or_their_runs(t: SimpleNamespace, db: Database) -> None:
    handle = await everything(t).start_async(group="run")
    assert await drained(t, db) == [
        ("by tenant", "acme"), ("by tenant", "acme"), ("first", "run"), ("inside", "run"), ("inside", "sub"),
        ("item-0", "each"), ("item-0", "run"), ("item-1", "each"), ("item-1", "run"), ("items", "run"), ("own", "mine"),
    ]  # fmt: skip
    assert await handle.status_async() is WorkflowStatus.COMPLETED


async def test_a_run_without_a_group(t: SimpleNamespace, db: Database) -> None:
    await everything(t).start_async()
    found = await drained(t, db)
    assert [group for node_id, group in found if node_id in ("first", "items")] == [None, None]
    assert sorted(group or "" for node_id, group in found if node_id.startswith("item-")) == ["", "", "each", "each"]
    assert sorted(group or "" for node_id, group in found if node_id == "inside") == ["", "sub"]


def test_inline_runs_have_the_same_groups() -> None:
    tasks = register(make_app(UNREACHABLE))
    with testing.inline(tasks.app) as sends:
        everything(tasks).start(group="run")
        assert sends.started()[0].group == "run"
        found = sorted(((sent.node_id, sent.group) for sent in sends.sent()), key=str)
    assert found == [
        ("by tenant", "acme"), ("by tenant", "acme"), ("first", "run"), ("inside", "run"), ("inside", "sub"),
        ("item-0", "each"), ("item-0", "run"), ("item-1", "each"), ("item-1", "run"), ("items", "run"), ("own", "mine"),
    ]  # fmt: skip


async def test_group_by_decides_where_its_arguments_are_known_at_the_start(t: SimpleNamespace, db: Database) -> None:
    first = t.plain.node(node_id="first")(1)
    items = t.numbers.node(node_id="items")(5)
    text = t.app.workflow("tenants", [
        first, items,
        t.named.node(node_id="known")(1, "acme"),
        t.named.node(node_id="known in part")(from_node(first), tenant="acme"),
        t.named.node(node_id="default")(1),
        t.named.node(node_id="wins", group="mine")(1, "acme"),
        t.named.node(node_id="map").map(items, "acme"),
        t.called.node(node_id="function", waits_for=[first])(2, tenant="acme"),
        t.called.node(node_id="function of a result")(from_node(first)),
        t.called.node(node_id="function of items").map(items),
        t.placed.node(node_id="function of a place")(1),
    ])  # fmt: skip
    await text.start_async(group="run")
    found = await drained(t, db)
    assert {node_id: group for node_id, group in found if not node_id.startswith("item")} == {
        "first": "run", "known": "acme", "known in part": "acme", "default": "none", "wins": "mine",
        "function": "acme/2", "function of a result": "run", "function of a place": "run",
    }  # fmt: skip
    of_items = sorted(str(group) for node_id, group in found if node_id.startswith("item-"))
    assert of_items == ["acme", "acme", "run", "run"]


async def test_a_retried_node_keeps_its_group(t: SimpleNamespace, db: Database) -> None:
    spec = t.app.workflow("w", [t.plain.node(node_id="own", group="mine")(1), t.plain.node(node_id="runs")(1)])
    handle = await spec.start_async(group="run")
    failed = await drained(t, db, lambda *_: TaskError("BROKEN"))
    assert await handle.status_async() is WorkflowStatus.FAILED
    assert await handle.retry_async()
    await t.engine.recover()
    assert await drained(t, db) == failed == [("own", "mine"), ("runs", "run")]
    assert await handle.status_async() is WorkflowStatus.COMPLETED


def test_the_group_is_part_of_a_starts_identity(db: Database) -> None:
    workflow_id = str(uuid.uuid4())
    with app_on(db) as app:
        t = register(app)

        def start(group: str | None, node_group: str | None, task: Any = t.plain) -> Any:
            spec = app.workflow("w", [task.node(node_id="n", group=node_group)(1)])
            return spec.start(workflow_id=workflow_id, group=group)

        start("acme", "mine")
        start("acme", "mine")
        for given in (("other", "mine"), (None, "mine"), ("acme", None), ("acme", "other")):
            with pytest.raises(TaskSendError) as raised:
                start(*given)
            assert raised.value.code is SendErrorCode.PAYLOAD_MISMATCH
    found = db.execute("SELECT w.group_key, n.group_key FROM horsies_workflows w JOIN horsies_workflow_tasks n ON true")
    assert found == [("acme", "mine")]


def test_a_start_after_a_deploy_that_adds_group_by_is_the_same_start(db: Database) -> None:
    workflow_id = str(uuid.uuid4())
    for options in ({}, {"group_by": "a"}):
        with app_on(db) as app:
            spec = app.workflow("w", [add_task(app, **options).node(node_id="n")(1)])
            assert spec.start(workflow_id=workflow_id).workflow_id == workflow_id
    assert db.execute("SELECT group_key FROM horsies_tasks") == [(None,)]


def test_wrong_groups_of_nodes_are_told_with_the_other_problems(db: Database) -> None:
    with app_on(db) as app:
        t = register(app)
        inner = app.workflow("inner", [t.plain.node()(1)])
        with pytest.raises(WorkflowDefinitionError) as raised:
            app.workflow("w", [
                t.plain.node(node_id="a", group="", priority=0)(1),
                t.plain.node(node_id="b", group=7)(1),
                inner.node(node_id="c", group="x" * 256),
            ])  # fmt: skip
        for part in ("'' is not a text of 1 to 255", "7 is not a text of 1 to 255", "'xxx", "priority"):
            assert part in str(raised.value)
        assert len(raised.value.problems) == 4
        with pytest.raises(
            TaskSendError, match="start of workflow 'w': task 'called': its group_by raised Lookup"
        ) as bad:
            app.workflow("w", [t.called.node()(1, "broken")]).start()
        assert bad.value.code is SendErrorCode.VALIDATION_FAILED
    assert db.value("SELECT count(*) FROM horsies_workflows") == 0


# -- schedules ------------------------------------------------------------------------------------


def scheduled(where: Database | str, *schedules: TaskSchedule) -> Horsies:
    app = make_app(where, schedule=ScheduleConfig(schedules))
    tasks = register(app)
    app.workflow("static", [tasks.plain.node()(1)])

    class Of(WorkflowDefinition[None], app=app, name="of"):
        @classmethod
        def build_with(cls, tenant: str) -> Any:
            return cls.workflow([tasks.called.node(node_id="only")(1, tenant)])

    return app


@asynccontextmanager
async def running(app: Horsies) -> AsyncIterator[Scheduler]:
    session = Session(app.config.broker, "scheduler", Queries(app.schema, Identity()))
    scheduler = Scheduler(session, app, settled_schedules(app))
    try:
        await scheduler.run_once()
        yield scheduler
    finally:
        await session.close()


async def test_a_schedule_has_a_group_or_that_of_its_arguments(db: Database) -> None:
    hourly = Hourly()
    app = scheduled(
        db,
        TaskSchedule("own", "called", hourly, kwargs={"n": 1, "tenant": "acme"}, group="mine"),
        TaskSchedule("by function", "called", hourly, kwargs={"n": 1, "tenant": "acme"}),
        TaskSchedule("by name", "named", hourly, kwargs={"n": 2}),
        TaskSchedule("none", "plain", hourly, kwargs={"n": 3}),
        TaskSchedule("run", workflow="static", pattern=hourly, group="of the run"),
        TaskSchedule("run by function", workflow="of", pattern=hourly, kwargs={"tenant": "acme"}, group="of the run"),
    )
    async with running(app) as scheduler:
        for schedule in app.config.schedule.schedules:
            age(db, "30 minutes", schedule.name)
        await scheduler.run_once()
    found = db.execute("SELECT task_name, is_workflow_task, group_key FROM horsies_tasks")
    assert sorted(found, key=str) == [
        ("called", False, "acme/1"), ("called", False, "mine"), ("called", True, "acme/1"), ("named", False, "none"),
        ("plain", False, None), ("plain", True, "of the run"),
    ]  # fmt: skip


async def test_a_group_by_that_fails_when_a_slot_is_due_leaves_the_run_out(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    """It may fail only then, as it is asked at each start of a workflow. It does not run in the scheduler's loop."""
    asked: list[str] = []

    def key(n: int) -> str:
        asked.append(threading.current_thread().name)
        if len(asked) > 1:
            raise LookupError("no such tenant")
        return "acme"

    app = make_app(db, schedule=ScheduleConfig([TaskSchedule("s", workflow="w", pattern=Hourly())]))

    @app.task("work", group_by=key)
    def work(n: int) -> Number:
        return TaskResult(ok=n)

    app.workflow("w", [work.node()(1)])
    async with running(app) as scheduler:
        age(db, "30 minutes")
        await scheduler.run_once()
    assert db.value("SELECT count(*) FROM horsies_workflows") == 0
    assert "its group_by raised LookupError: no such tenant" in caplog.text
    assert asked[1:] == ["horsies-on-send"]


def test_wrong_groups_of_schedules_are_told_where_they_are_written() -> None:
    with pytest.raises(ConfigurationError, match=r"TaskSchedule\('s'\)\.group: 7 is not a text"):
        TaskSchedule("s", "plain", Hourly(), group=7)  # type: ignore[arg-type]
    wrong = {"kwargs": {"n": 1, "tenant": "broken"}}
    app = scheduled(
        UNREACHABLE,
        TaskSchedule("one", "called", Hourly(), **wrong),  # type: ignore[arg-type]
        TaskSchedule("two", workflow="of", pattern=Hourly(), kwargs={"tenant": "broken"}),
    )
    with pytest.raises(ConfigurationError) as raised:
        settled_schedules(app)
    assert str(raised.value).count("task 'called': its group_by raised LookupError: no such tenant") == 2
    fine = TaskSchedule("one", "called", Hourly(), group="mine", **wrong)  # type: ignore[arg-type]
    assert settled_schedules(scheduled(UNREACHABLE, fine))
