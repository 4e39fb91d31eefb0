"""A session that has inserted the id of a slot and does not commit holds up that schedule, and no other."""

import asyncio
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any

import psycopg
import pytest

from horsies import Hourly, TaskSchedule
from horsies.ids import derived_id
from horsies_worker.scheduler.scheduler import Scheduler
from tests.integration.test_scheduler_workflows import planned, scheduling as scheduling_workflows
from tests.support import factories
from tests.support.apps import add_task, async_app_on
from tests.support.postgres import Database
from tests.support.schedulers import schedule, scheduling, state
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database

SOON_S = 6.0
"""Far less than the time for which a statement waits for a lock."""
TASK = "INSERT INTO horsies_tasks (id, task_name, enqueued_at) VALUES (%s, 'nonesuch', now() + interval '1 day')"
WORKFLOW = "INSERT INTO horsies_workflows (id, name, status, sent_at) VALUES (%s, 'other', 'RUNNING', now())"


def make_due(db: Database, *names: str) -> None:
    """The last full hour is the slot of these that is due."""
    db.execute(
        "UPDATE horsies_schedule_state SET next_run_at = date_trunc('hour', now()) WHERE schedule_name = ANY (%s)",
        list(names),
    )


def slot_id(db: Database, name: str) -> str:
    """The id of the task of the slot that is due: any client can compute it."""
    slot: datetime = state(db, name)["next_run_at"]
    return derived_id(slot, "schedule", name)


@contextmanager
def inserted(db: Database, ids: Sequence[str], sql: str = TASK) -> Iterator[psycopg.Connection[Any]]:
    """A transaction that has inserted these ids and stays open."""
    with psycopg.connect(db.url, application_name="shop") as connection:
        for one in ids:
            connection.execute(sql, (one,))  # type: ignore[arg-type]
        yield connection
        connection.rollback()


async def look(scheduler: Scheduler) -> None:
    await asyncio.wait_for(scheduler.run_once(), SOON_S)


def ran(db: Database) -> list[str]:
    return [
        row[0] for row in db.execute("SELECT schedule_name FROM horsies_schedule_state WHERE run_count > 0 ORDER BY 1")
    ]


async def test_the_other_schedules_run_in_time(db: Database) -> None:
    async with scheduling(db, schedule("a", Hourly()), schedule("b", Hourly()), schedule("c", Hourly())) as scheduler:
        make_due(db, "a", "b")
        before = state(db, "a")
        with inserted(db, [slot_id(db, "a")]) as producer:
            await look(scheduler)
            assert ran(db) == ["b"]
            assert state(db, "a") == before
            make_due(db, "c")
            await look(scheduler)
            assert ran(db) == ["b", "c"]
            await look(scheduler)
            assert 0 < scheduler.pause_s() <= 2, "it comes back by itself"
            producer.rollback()
        task_id = slot_id(db, "a")

        async def has_run() -> bool:
            await look(scheduler)
            return state(db, "a")["last_task_id"] == task_id

        await eventually_async(has_run)
        assert state(db, "a")["run_count"] == 1


async def test_the_slot_is_written_once_the_session_has_gone(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """By a scheduler that runs by itself; the log names the session, once."""
    caplog.set_level(logging.INFO)
    async with scheduling(db, schedule("a", Hourly()), schedule("b", Hourly())) as scheduler:
        make_due(db, "a")
        serving = asyncio.create_task(scheduler.run())
        try:
            with inserted(db, [slot_id(db, "a")]) as producer:
                scheduler.wake()

                def told() -> list[str]:
                    return [text for one in caplog.records if "its slot waits" in (text := one.getMessage())]

                (text,) = await eventually_async(told)
                assert text.startswith("schedule 'a': ")
                assert f"session {producer.info.backend_pid} (role " in text
                assert "application 'shop'" in text
                assert f"pg_terminate_backend({producer.info.backend_pid})" in text
            await eventually_async(lambda: ran(db) == ["a"])
            assert len(told()) == 1
            await eventually_async(lambda: "schedule 'a': its slot could be written after" in caplog.text)
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)
    assert "trying again" not in caplog.text, "the service itself had no trouble"


async def test_many_blocked_slots_hold_up_no_other(db: Database) -> None:
    names = [f"s{number:03}" for number in range(200)]
    async with scheduling(db, *(schedule(name, Hourly()) for name in names)) as scheduler:
        db.execute("UPDATE horsies_schedule_state SET next_run_at = date_trunc('hour', now())")
        with inserted(db, [slot_id(db, name) for name in names[::20]]):
            await eventually_async(lambda: _looked(scheduler, db, 190), timeout=15)
            assert not set(ran(db)) & set(names[::20])
        await eventually_async(lambda: _looked(scheduler, db, 200))


async def _looked(scheduler: Scheduler, db: Database, count: int) -> bool:
    await asyncio.wait_for(scheduler.run_once(), 10)
    return len(ran(db)) == count


async def test_a_schedule_made_at_run_time(db: Database) -> None:
    async with async_app_on(db) as app, scheduling(db, schedule("b", Hourly())) as scheduler:
        add_task(app)
        await app.schedules.put_async(TaskSchedule("a", "add", Hourly(), kwargs={"a": 1}))
        await look(scheduler)
        make_due(db, "a", "b")
        with inserted(db, [slot_id(db, "a")]):
            await look(scheduler)
            assert ran(db) == ["b"]
            assert db.value("SELECT problem FROM horsies_schedule_state WHERE schedule_name = 'a'") is None
        await eventually_async(lambda: _has_both(scheduler, db))


async def _has_both(scheduler: Scheduler, db: Database) -> bool:
    await look(scheduler)
    return ran(db) == ["a", "b"]


async def test_a_schedule_of_a_workflow(db: Database) -> None:
    schedules = [TaskSchedule("a", workflow="sums", pattern=Hourly()), schedule("b", Hourly())]
    async with scheduling_workflows(planned(db, *schedules)) as scheduler:
        make_due(db, "a", "b")
        with inserted(db, [slot_id(db, "a")], WORKFLOW):
            await look(scheduler)
            assert ran(db) == ["b"]
        await eventually_async(lambda: _has_both(scheduler, db))
        assert db.execute("SELECT name FROM horsies_workflows") == [("sums",)]


async def test_a_blocked_schedule_that_is_not_due_any_more_is_forgotten(db: Database) -> None:
    """Another scheduler may have written its slot: this one must not look for it without a pause."""
    async with scheduling(db, schedule("a", Hourly())) as scheduler:
        make_due(db, "a")
        with inserted(db, [slot_id(db, "a")]):
            await look(scheduler)
        db.execute("UPDATE horsies_schedule_state SET next_run_at = now() + interval '20 days'")

        async def rests() -> bool:
            await look(scheduler)
            return scheduler.pause_s() > 2

        await eventually_async(rests)
    assert factories.count(db) == 0


async def test_a_blocked_slot_is_no_reason_to_look_again_and_again(db: Database) -> None:
    """The slots of others would come in the pauses between those looks, which become longer and longer."""
    async with scheduling(db, schedule("a", Hourly()), schedule("b", Hourly())) as scheduler:
        make_due(db, "a")
        with inserted(db, [slot_id(db, "a")]):
            for _ in range(2):  # until one look has found nothing else
                await look(scheduler)
            assert scheduler.pause_s() > 0.4, "until the schedule is tried again, after a second"
            make_due(db, "b")
            await look(scheduler)
            assert ran(db) == ["b"]
