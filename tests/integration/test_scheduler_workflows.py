"""Schedules that start workflows: each slot one run, under an id of its own, with everything that a task's slot has."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from horsies import Cron, Horsies, Hourly, Interval, ScheduleConfig, TaskSchedule, WorkflowDefinition, from_node
from horsies.errors import ConfigurationError
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.identity import Identity
from horsies_worker.scheduler.scheduler import Scheduler, settled_schedules
from tests.support.apps import add_task, make_app
from tests.support.postgres import Database
from tests.support.schedulers import age, state

pytestmark = pytest.mark.shared_database


def planned(db: Database, *schedules: TaskSchedule) -> Horsies:
    """With the workflows `sums` (two nodes) and `from_here` (which takes a number)."""
    app = make_app(db, schedule=ScheduleConfig(schedules))
    add = add_task(app)
    app.add = add  # type: ignore[attr-defined]
    first = add.node(node_id="first")(1)
    app.workflow("sums", [first, add.node(node_id="second")(from_node(first))])

    class FromHere(WorkflowDefinition[None], app=app, name="from_here"):
        @classmethod
        def build_with(cls, start: int) -> Any:
            return cls.workflow([add.node(node_id="only")(start)])

    return app


@asynccontextmanager
async def scheduling(app: Horsies) -> AsyncIterator[Scheduler]:
    session = Session(app.config.broker, "scheduler", Queries(app.schema, Identity()))
    scheduler = Scheduler(session, app, settled_schedules(app))
    try:
        await scheduler.run_once()
        yield scheduler
    finally:
        await session.close()


def of(workflow: str, **fields: Any) -> TaskSchedule:
    return TaskSchedule("s", workflow=workflow, pattern=Hourly(), **fields)


def runs(db: Database) -> Sequence[tuple[Any, ...]]:
    return db.execute("SELECT id, name, status FROM horsies_workflows ORDER BY id")


async def test_a_slot_starts_one_run(db: Database) -> None:
    async with scheduling(planned(db, of("sums"))) as one, scheduling(planned(db, of("sums"))) as other:
        age(db, "30 minutes")
        for scheduler in (one, other, one):
            await scheduler.run_once()
    found = state(db)
    ((run, name, status),) = runs(db)
    assert (name, status) == ("sums", "RUNNING")
    assert (found["last_task_id"], found["run_count"]) == (run, 1)
    # its first node waits for a worker, and is no stranger there
    assert db.execute("SELECT task_name, status, is_workflow_task FROM horsies_tasks") == [("add", "PENDING", True)]


async def test_the_arguments_are_those_of_the_definition(db: Database) -> None:
    async with scheduling(planned(db, of("from_here", kwargs={"start": 41}))) as scheduler:
        age(db, "30 minutes")
        await scheduler.run_once()
    ((text,),) = db.execute("SELECT coalesce(args, '') || coalesce(kwargs, '') FROM horsies_tasks")
    assert "41" in text


async def test_a_schedule_runs_what_it_was_given_and_not_what_was_built_last(db: Database) -> None:
    app = planned(db, of("from_here", kwargs={"start": 41}))
    FromHere: Any = app.workflows.definition("from_here")
    FromHere.build_with(1)
    async with scheduling(app) as scheduler:
        FromHere.build_with(2)
        age(db, "30 minutes")
        await scheduler.run_once()
    ((text,),) = db.execute("SELECT coalesce(args, '') || coalesce(kwargs, '') FROM horsies_tasks")
    assert "41" in text


def test_a_schedule_that_could_mean_several_workflows_is_refused(db: Database) -> None:
    """Without arguments a `build_with` is called without any; what the app has built before is not taken instead."""
    app = planned(db, of("from_here"), TaskSchedule("t", workflow="dynamic", pattern=Hourly()))
    FromHere: Any = app.workflows.definition("from_here")
    FromHere.build_with(1)
    for n in range(2):
        app.workflow("dynamic", [app.add.node(node_id="only")(n)])
    with pytest.raises(ConfigurationError) as caught:
        settled_schedules(app)
    assert "missing 1 required positional argument: 'start'" in str(caught.value)
    assert "app.workflow has built 'dynamic' more than once and differently" in str(caught.value)


def test_a_definition_with_nodes_and_a_builder(db: Database) -> None:
    app = planned(db, of("both"), TaskSchedule("t", workflow="both", pattern=Hourly(), kwargs={"n": 5}))
    add = app.add

    class Both(WorkflowDefinition[None], app=app, name="both"):
        own = add.node()(1)

        @classmethod
        def build_with(cls, n: int) -> Any:
            return cls.workflow([add.node(node_id="built")(n)])

    Both.build_with(9)
    plain, given = settled_schedules(app)
    assert plain.target is Both.build()
    assert [wired.node_id for wired in given.target.wired] == ["built"]


async def test_a_run_that_was_asked_for_and_missed_slots(db: Database) -> None:
    schedule = of("sums", catch_up_missed=True, max_catch_up_runs=2)
    async with scheduling(planned(db, schedule)) as scheduler:
        age(db, "5 hours")
        await scheduler.run_once()
        assert len(runs(db)) == state(db)["run_count"] == 2
        db.execute("UPDATE horsies_schedule_state SET run_requested_at = now()")
        await scheduler.run_once()
        assert len(runs(db)) == state(db)["run_count"] == 3
        assert state(db)["last_task_id"] in {run[0] for run in runs(db)}


@pytest.mark.parametrize(("status", "count"), [("RUNNING", 1), ("PAUSED", 1), ("COMPLETED", 2)])
async def test_two_runs_do_not_overlap(db: Database, status: str, count: int) -> None:
    async with scheduling(planned(db, of("sums", overlap="skip"))) as scheduler:
        age(db, "30 minutes")
        await scheduler.run_once()
        if status == "COMPLETED":
            db.execute("TRUNCATE horsies_tasks, horsies_workflow_tasks CASCADE")
        done = "now()" if status == "COMPLETED" else "NULL"
        db.execute(f"UPDATE horsies_workflows SET status = '{status}', completed_at = {done}")
        db.execute("UPDATE horsies_schedule_state SET run_requested_at = now()")
        await scheduler.run_once()
        assert len(runs(db)) == count
    db.execute("TRUNCATE horsies_workflow_signals, horsies_workflows CASCADE")
    db.execute("TRUNCATE horsies_tasks CASCADE")


async def test_a_run_of_another_release_keeps_its_slot(db: Database) -> None:
    """The graph changed in a deploy; the slot has been run."""
    often = TaskSchedule("s", workflow="sums", pattern=Interval(hours=1_000))
    async with scheduling(planned(db, often)) as scheduler:
        age(db, "30 minutes")
        slot = state(db)["next_run_at"]
        await scheduler.run_once()
        db.execute("UPDATE horsies_workflows SET enqueue_sha = 'of another graph'")
        db.execute("UPDATE horsies_schedule_state SET next_run_at = %s", slot)
        await scheduler.run_once()
    assert len(runs(db)) == state(db)["run_count"] == 1


def wrong(db: Database, *schedules: TaskSchedule) -> str:
    with pytest.raises(ConfigurationError) as caught:
        settled_schedules(planned(db, *schedules))
    return str(caught.value)


def test_what_cannot_be_started_is_told_at_once(db: Database) -> None:
    told = wrong(
        db,
        TaskSchedule("a", workflow="nowhere", pattern=Hourly()),
        TaskSchedule("b", workflow="sums", pattern=Cron("* * * * *"), kwargs={"x": 1}),
        TaskSchedule("c", workflow="from_here", pattern=Hourly(), kwargs={"begin": 1}),
        TaskSchedule("d", workflow="from_here", pattern=Hourly(), kwargs={"start": "one"}),
    )
    for words in (
        "no workflow 'nowhere' is defined",
        "workflow 'sums' takes none",
        "begin",
        "TaskSchedule('d').kwargs",
    ):
        assert words in told


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"task_name": "add", "workflow": "sums"}, "give one of the two"),
        ({"workflow": "sums", "queue_name": "mail"}, "a workflow has none of its own"),
        ({"workflow": "sums", "jitter": 5}, "begins when its slot comes"),
        ({"workflow": ""}, "workflow"),
        ({}, "task_name"),
    ],
)
def test_what_makes_no_sense_is_refused(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        TaskSchedule("s", pattern=Hourly(), **fields)


def test_a_schedule_without_a_pattern_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="is not a pattern"):
        TaskSchedule("s", "add")
