"""A scheduler without a process: its looks one by one, on a database of the test's."""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from typing import Any

from horsies import Horsies, RetryPolicy, ScheduleConfig, TaskSchedule
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.identity import Identity
from horsies_worker.scheduler.scheduler import Scheduler, settled_schedules
from tests.support.apps import add_task, make_app
from tests.support.postgres import Database

OPTIONS: Mapping[str, Any] = {
    "retry_policy": RetryPolicy.fixed(7, max_retries=3, auto_retry_for=["WORKER_CRASHED"]),
    "timeout_ms": 4_000,
    "priority": 7,
    "keep_for": timedelta(days=2),
}


def schedule(name: str, pattern: Any, **fields: Any) -> TaskSchedule:
    """Of the task `add`, by default `add(a=1)`."""
    return TaskSchedule(name, fields.pop("task_name", "add"), pattern, **{"kwargs": {"a": 1}, **fields})


def scheduled_app(
    where: Database | str, schedules: Sequence[TaskSchedule], *, options: Mapping[str, Any] = OPTIONS, **config: Any
) -> Horsies:
    """An app with the task `add`, which has options of its own."""
    app = make_app(where, schedule=ScheduleConfig(schedules), **config)
    add_task(app, **options)
    return app


@asynccontextmanager
async def scheduling(
    where: Database | str, *schedules: TaskSchedule, start: bool = True, **config: Any
) -> AsyncIterator[Scheduler]:
    """A scheduler that has planned its rows."""
    app = scheduled_app(where, schedules, **config)
    session = Session(app.config.broker, "scheduler", Queries(app.schema, Identity()))
    scheduler = Scheduler(session, app, settled_schedules(app))
    try:
        if start:
            await scheduler.run_once()
        yield scheduler
    finally:
        await session.close()


COLUMNS = (
    "next_run_at", "last_run_at", "last_task_id", "run_count", "config_hash", "paused_at", "run_requested_at",
    "updated_at",
)  # fmt: skip


def state(db: Database, name: str = "s") -> dict[str, Any]:
    """The row of a schedule, by column."""
    row = db.execute(f"SELECT {', '.join(COLUMNS)} FROM horsies_schedule_state WHERE schedule_name = %s", name)[0]
    return dict(zip(COLUMNS, row, strict=True))


def age(db: Database, span: str, name: str = "s") -> None:
    """As if no scheduler had looked for so long: the next run was due then."""
    db.execute(
        "UPDATE horsies_schedule_state SET next_run_at = now() - %s::interval,"
        " last_run_at = last_run_at - %s::interval WHERE schedule_name = %s", span, span, name,
    )  # fmt: skip


def slots(db: Database, task_name: str = "add") -> list[datetime]:
    """The slots that have a task, in the order in which a worker would claim them."""
    rows = db.execute("SELECT sent_at FROM horsies_tasks WHERE task_name = %s ORDER BY enqueued_at, id", task_name)
    return [row[0] for row in rows]
