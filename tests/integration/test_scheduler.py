"""The scheduler's looks on a real database: what it fires, what it lets pass, and what its rows say afterwards."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import asyncpg
import psycopg
import pytest

import horsies_schema
from horsies import Cron, CustomQueueConfig, Daily, Hourly, Interval, QueueMode, TaskError, TaskSchedule
from horsies.scheduled import ScheduledTask
from horsies_worker.scheduler.next_run import Slots
from horsies_worker.scheduler.scheduler import BATCH, MAX_FIRES
from horsies_worker.scheduler.slots import DueRow, Move, move
from tests.support import factories
from tests.support.apps import async_app_on
from tests.support.chaosproxy import ChaosProxy, When
from tests.support.counting import calls, start_counting
from tests.support.postgres import Database, empty
from tests.support.schedulers import age, schedule, scheduled_app, scheduling, slots, state
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database

SECOND = timedelta(seconds=1)
FAR = Daily("00:00")


def now(db: Database) -> Any:
    return db.value("SELECT now()")


# -- planning ----------------------------------------------------------------------------------------


async def test_a_new_schedule_waits_for_its_first_slot(db: Database) -> None:
    async with scheduling(db, schedule("s", Hourly()), schedule("off", Hourly(), enabled=False)):
        found = state(db)
        assert now(db) < found["next_run_at"] <= now(db) + timedelta(hours=1)
        assert (found["last_run_at"], found["last_task_id"], found["run_count"]) == (None, None, 0)
        assert state(db, "off")["next_run_at"] is None
    assert factories.count(db) == 0


async def test_a_change_of_timing_is_planned_anew_and_one_of_arguments_is_not(db: Database) -> None:
    async with scheduling(db, schedule("s", Hourly())):
        pass
    age(db, "2 hours")
    missed = state(db)["next_run_at"]
    async with scheduling(db, schedule("s", Hourly(), kwargs={"a": 2})):
        # the slots that were missed during the deploy are still owed
        assert state(db)["last_run_at"] is not None
    assert len(slots(db)) == 1
    age(db, "2 hours")
    before = state(db)
    async with scheduling(db, schedule("s", Hourly(1))):
        after = state(db)
        assert after["config_hash"] != before["config_hash"]
        assert after["next_run_at"] > now(db) > missed
        assert after["next_run_at"].minute == 1
        assert (after["run_count"], after["last_task_id"]) == (before["run_count"], before["last_task_id"])
    assert len(slots(db)) == 1  # of the new timing nothing was missed


async def test_rows_that_this_deploy_does_not_know_are_kept(db: Database) -> None:
    async with scheduling(db, schedule("s", Hourly()), schedule("other", Hourly())):
        pass
    age(db, "2 hours", "other")
    db.execute("UPDATE horsies_schedule_state SET run_requested_at = now() WHERE schedule_name = 'other'")
    before = state(db, "other")
    async with scheduling(db, schedule("s", Hourly())) as scheduler:
        await scheduler.run_once()
    assert state(db, "other") == before
    assert factories.count(db) == 0


async def test_a_live_scheduler_confirms_what_it_lists(db: Database) -> None:
    """And nothing else: the row that only the release before had grows old, and is told as removed."""
    async with scheduling(db, schedule("s", Hourly()), schedule("other", Hourly())):
        pass
    db.execute("UPDATE horsies_schedule_state SET updated_at = now() - interval '1 minute'")
    before = state(db, "other")
    async with scheduling(db, schedule("s", Hourly())) as scheduler, async_app_on(db) as app:
        assert now(db) - state(db)["updated_at"] < timedelta(seconds=30)
        assert state(db, "other") == before
        found = {one.schedule_name: one.state for one in await app.get_broker().get_schedules()}
        assert found == {"s": "active", "other": "removed"}
        assert scheduler.pause_s() <= 10, "it looks again in time, whatever its poll interval"


async def test_the_timing_of_another_release_is_confirmed_too_but_not_kept_from_being_taken_over(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("horsies_worker.scheduler.scheduler.LISTED_EVERY", timedelta(0))  # each look confirms
    async with scheduling(db, schedule("s", Hourly(1))) as old, scheduling(db, schedule("s", Hourly(2))):
        db.execute("UPDATE horsies_schedule_state SET updated_at = now() - interval '1 minute'")
        await old.run_once()
        assert now(db) - state(db)["updated_at"] < timedelta(seconds=30)
        disabled = "UPDATE horsies_schedule_state SET next_run_at = NULL, updated_at = now() - interval '61 seconds'"
        db.execute(disabled)
        await old.run_once()
        assert state(db)["next_run_at"] is not None, "it was orphaned, by its age"


async def test_a_row_that_somebody_deleted_comes_back(db: Database) -> None:
    async with scheduling(db, schedule("s", Hourly())) as scheduler:
        db.execute("DELETE FROM horsies_schedule_state")
        await scheduler.run_once()
        assert state(db)["next_run_at"] > now(db)


async def test_two_releases_at_once(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """The one that started last decides; the other leaves the row alone until nobody serves it."""
    async with scheduling(db, schedule("s", Hourly(1))) as old, scheduling(db, schedule("s", Hourly(2))):
        new_plan = state(db)
        await old.run_once()
        assert state(db) == new_plan
        db.execute("UPDATE horsies_schedule_state SET next_run_at = now() - interval '30 seconds'")
        due = state(db)
        await old.run_once()
        assert state(db) == due
        db.execute("UPDATE horsies_schedule_state SET next_run_at = now() - interval '90 seconds'")
        await old.run_once()
        assert state(db)["next_run_at"].minute == 1
        assert "was left by the schedulers of another release" in caplog.text
    assert factories.count(db) == 0


# -- firing ------------------------------------------------------------------------------------------

KEPT = (
    "task_name", "queue_name", "priority", "args", "kwargs", "max_retries", "task_options", "enqueue_sha", "status",
    "retry_count", "unique_key", "good_until", "is_workflow_task", "keep_seconds",
)  # fmt: skip


async def test_a_run_is_the_same_row_as_a_send(db: Database) -> None:
    async with scheduling(db, schedule("s", Interval(hours=1), kwargs={"a": 3, "b": 4})) as scheduler:
        age(db, "0 seconds")
        promised = state(db)["next_run_at"]
        await scheduler.run_once()
        found = state(db)
    assert found["run_count"] == 1
    assert found["next_run_at"] > now(db)
    row = factories.read(db, found["last_task_id"])
    app = scheduled_app(db, [])
    try:
        handle = await app.with_options().send_async("add", a=3, b=4)
    finally:
        await app.aclose()
    sent = factories.read(db, handle.task_id)
    assert {name: row[name] for name in KEPT} == {name: sent[name] for name in KEPT}
    assert row["task_options"] is not None
    assert row["sent_at"] == promised
    assert row["enqueued_at"] >= promised


async def test_its_own_queue_and_deadline(db: Database) -> None:
    queues = [CustomQueueConfig("a", priority=3), CustomQueueConfig("b")]
    schedules = [schedule("s", Interval(hours=1)), schedule("t", Interval(hours=1), queue_name="b", jitter=30)]
    options = {"queue_name": "a", "good_until": timedelta(minutes=5)}
    async with scheduling(
        db, *schedules, options=options, queue_mode=QueueMode.CUSTOM, custom_queues=queues
    ) as scheduler:
        db.execute("UPDATE horsies_schedule_state SET next_run_at = date_trunc('second', now())")
        await scheduler.run_once()
    rows = {name: factories.read(db, state(db, name)["last_task_id"]) for name in "st"}
    assert [(row["queue_name"], row["priority"]) for row in rows.values()] == [("a", 3), ("b", 100)]
    for row in rows.values():  # a jitter does not eat the time that a task has
        assert row["good_until"] - row["enqueued_at"] == timedelta(minutes=5)


async def test_three_hours_down_without_catching_up(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    every = schedule("s", Interval(minutes=10))
    async with scheduling(db, every):
        pass
    age(db, "3 hours")
    async with scheduling(db, every):
        found = state(db)
    (slot,) = slots(db)
    assert now(db) - timedelta(minutes=11) < slot <= now(db)
    assert (found["run_count"], found["next_run_at"]) == (1, slot + timedelta(minutes=10))
    assert "schedule 's': 18 missed slots are not run" in caplog.text or "17 missed slots are not run" in caplog.text


async def test_three_hours_down_with_a_bound_of_two(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    every = schedule("s", Interval(hours=1), catch_up_missed=True, max_catch_up_runs=2)
    async with scheduling(db, every):
        pass
    age(db, "3 hours")
    async with scheduling(db, every):
        found = state(db)
    ran = slots(db)  # in the order in which they will be claimed
    assert len(ran) == 2
    assert ran[1] - ran[0] == timedelta(hours=1)
    assert ran[1] <= now(db) < ran[1] + timedelta(hours=1)
    assert (found["run_count"], found["next_run_at"]) == (2, ran[1] + timedelta(hours=1))
    assert factories.read(db, found["last_task_id"])["sent_at"] == ran[1]
    assert "schedule 's': 1 missed slot is not run" in caplog.text or "2 missed slots are not run" in caplog.text
    assert "the latest 2 are" in caplog.text


async def test_where_two_must_not_run(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    async with scheduling(db, schedule("s", Interval(hours=1), overlap="skip")) as scheduler:
        age(db, "0 seconds")
        await scheduler.run_once()
        first = state(db)
        age(db, "0 seconds")
        await scheduler.run_once()
        second = state(db)
        assert (second["run_count"], second["last_task_id"]) == (1, first["last_task_id"])
        assert second["next_run_at"] > now(db)
        assert "is skipped, the run before has not ended" in caplog.text
        factories.finish(db, first["last_task_id"], error=TaskError("DOWN", "also an end"))
        age(db, "0 seconds")
        await scheduler.run_once()
        assert state(db)["run_count"] == 2
        # a task that retention has taken away has ended
        db.execute("DELETE FROM horsies_task_attempts")
        db.execute("DELETE FROM horsies_tasks")
        age(db, "0 seconds")
        await scheduler.run_once()
        assert state(db)["run_count"] == 3


async def test_jitter_is_the_tasks_start_and_no_draw_of_the_moment(db: Database) -> None:
    starts: dict[tuple[str, datetime], set[datetime]] = {}
    for name in ("a", "b", "c", "d") * 2:
        empty(db)
        async with scheduling(db, schedule(name, Interval(minutes=1), jitter=3_600)) as scheduler:
            db.execute("UPDATE horsies_schedule_state SET next_run_at = date_trunc('minute', now())")
            await scheduler.run_once()
            slot, start, is_ahead = db.execute("SELECT sent_at, enqueued_at, enqueued_at > now() FROM horsies_tasks")[0]
            assert slot <= start <= slot + timedelta(hours=1)
            if is_ahead:  # a start that has passed already, one in sixty, becomes the moment of the insert
                starts.setdefault((name, slot), set()).add(start)
    assert starts
    assert all(len(of_slot) == 1 for of_slot in starts.values())  # the same slot, the same start


async def test_a_clock_that_was_put_back_makes_runs_late_not_double(db: Database) -> None:
    """F73: ten hours back, which is the same as rows that are ten hours ahead."""
    every = schedule("s", Interval(hours=1))
    async with scheduling(db, every) as scheduler:
        age(db, "0 seconds")
        await scheduler.run_once()
        db.execute(
            "UPDATE horsies_schedule_state SET next_run_at = next_run_at + interval '10 hours',"
            " last_run_at = last_run_at + interval '10 hours'"
        )
        ahead = state(db)
        await scheduler.run_once()
        assert state(db) == ahead
    # also with another timing, and with a run by hand meanwhile
    async with scheduling(db, schedule("s", Interval(hours=2))) as scheduler:
        found = state(db)
        assert ahead["last_run_at"] < found["next_run_at"] <= ahead["last_run_at"] + timedelta(hours=2)
        db.execute("UPDATE horsies_schedule_state SET run_requested_at = now()")
        await scheduler.run_once()
        assert state(db)["next_run_at"] == found["next_run_at"]
    assert len(slots(db)) == 2


async def test_an_interval_that_is_written_in_other_units_keeps_its_missed_slots(db: Database) -> None:
    async with scheduling(db, schedule("s", Interval(minutes=60))):
        age(db, "3 hours")
        due = state(db)["next_run_at"]
    async with scheduling(db, schedule("s", Interval(hours=1))) as scheduler:
        await scheduler.run_once()
    assert len(slots(db)) == 1
    assert slots(db)[0] > due


@pytest.mark.parametrize("stored", [False, True])
async def test_a_clock_that_was_years_ahead_is_told_and_a_run_by_hand_brings_the_schedule_back(
    db: Database, caplog: pytest.LogCaptureFixture, stored: bool
) -> None:
    every = schedule("s", Interval(hours=1))
    async with async_app_on(db) as app, scheduling(db, *([] if stored else [every])) as scheduler:
        if stored:
            await app.schedules.put_async(every)
            await scheduler.run_once()
        age(db, "0 seconds")
        await scheduler.run_once()
        db.execute(
            "UPDATE horsies_schedule_state SET next_run_at = next_run_at + interval '10 years',"
            " last_run_at = last_run_at + interval '10 years', updated_at = now() + interval '10 years'"
        )
        db.execute("UPDATE horsies_schedulers SET seen_at = now() + interval '10 years'")
    async with async_app_on(db) as app, scheduling(db, *([] if stored else [every])) as scheduler:
        await scheduler.run_once()
        assert state(db)["next_run_at"].year == db.value("SELECT extract(year FROM now() + interval '10 years')::int")
        assert stored or "schedule 's' waits until" in caplog.text
        assert db.value("SELECT count(*) FROM horsies_schedulers") == 1
        assert stored or db.value("SELECT updated_at <= now() FROM horsies_schedule_state")
        (found,) = [one for one in await app.get_broker().diagnose() if one.check == "schedules"]
        assert found.what.startswith("the last run of 1 schedule is in the future, by up to ")
        await app.schedules.run_now_async("s")
        await scheduler.run_once()
        assert db.value("SELECT next_run_at BETWEEN now() AND now() + interval '1 hour' FROM horsies_schedule_state")
        assert not [one for one in await app.get_broker().diagnose() if "in the future" in one.what]


async def test_a_slot_that_has_its_task_keeps_it(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """The row was restored from a backup, or deleted: the id stands guard."""
    async with scheduling(db, schedule("s", Interval(hours=1))) as scheduler:
        age(db, "0 seconds")
        due = state(db)["next_run_at"]
        await scheduler.run_once()
        first = state(db)
        db.execute("UPDATE horsies_schedule_state SET next_run_at = %s, last_run_at = %s", due, due - SECOND)
        await scheduler.run_once()
        found = state(db)
    assert (found["run_count"], found["last_task_id"]) == (1, first["last_task_id"])
    assert slots(db) == [due]
    assert "has its run" in caplog.text


# -- operators ---------------------------------------------------------------------------------------


async def test_a_paused_schedule_lets_slots_pass_and_goes_on(db: Database) -> None:
    async with scheduling(db, schedule("s", Interval(hours=1), catch_up_missed=True)) as scheduler:
        app = scheduled_app(db, [])
        broker = app.get_broker()
        assert await broker.pause_schedule("s")
        age(db, "3 hours")
        await scheduler.run_once()
        found = state(db)
        assert found["next_run_at"] > now(db)
        assert (found["run_count"], factories.count(db)) == (0, 0)
        since = found["paused_at"]
        assert await broker.pause_schedule("s")
        assert state(db)["paused_at"] == since
        assert await broker.resume_schedule("s")
        await scheduler.run_once()
        assert factories.count(db) == 0  # what passed is not owed
        age(db, "0 seconds")
        await scheduler.run_once()
        assert factories.count(db) == 1
        await app.aclose()


@pytest.mark.parametrize("fields", [{}, {"enabled": False}], ids=["enabled", "disabled"])
async def test_run_now_is_one_run_beside_the_slots(db: Database, fields: dict[str, Any]) -> None:
    async with scheduling(db, schedule("s", FAR, **fields)) as scheduler:
        promised = state(db)["next_run_at"]
        app = scheduled_app(db, [])
        broker = app.get_broker()
        for expected in (1, 2):
            await broker.run_schedule_now("s")
            await broker.run_schedule_now("s")  # asked twice before anybody came: once
            await broker.pause_schedule("s")  # an explicit wish counts for more
            await scheduler.run_once()
            await scheduler.run_once()
            found = state(db)
            assert (found["run_count"], found["run_requested_at"]) == (expected, None)
            assert found["next_run_at"] == promised
            assert factories.count(db) == expected
        assert not await broker.run_schedule_now("nobody")
        assert not await broker.pause_schedule("no\0body")
        await app.aclose()


async def test_run_now_waits_where_two_must_not_run(db: Database) -> None:
    async with scheduling(db, schedule("s", FAR, overlap="skip")) as scheduler:
        for _ in range(2):
            db.execute("UPDATE horsies_schedule_state SET run_requested_at = coalesce(run_requested_at, now())")
            await scheduler.run_once()
        assert factories.count(db) == 1
        assert state(db)["run_requested_at"] is not None
        assert 0 < scheduler.pause_s() < 1  # it will look again by itself, and not in a hot loop
        factories.finish(db, state(db)["last_task_id"], ok=1)
        await scheduler.run_once()
        assert factories.count(db) == 2
        assert state(db)["run_requested_at"] is None


async def test_where_two_must_not_run_two_schedulers_agree(db: Database) -> None:
    """A slot and a request at once, and two that look at the same moment: still one task at a time."""
    alone = schedule("s", FAR, overlap="skip")
    async with scheduling(db, alone) as one, scheduling(db, alone) as two:
        for number in range(1, 21):
            db.execute("UPDATE horsies_schedule_state SET next_run_at = now(), run_requested_at = now()")
            await asyncio.gather(one.run_once(), two.run_once())
            live = db.execute("SELECT id FROM horsies_tasks WHERE terminal_at IS NULL")
            assert len(live) == 1, number
            factories.finish(db, live[0][0], ok=1)
            await one.run_once()  # the request had to wait for the slot
            (waited,) = db.execute("SELECT id FROM horsies_tasks WHERE terminal_at IS NULL")
            factories.finish(db, waited[0], ok=1)


# -- several schedulers, many schedules --------------------------------------------------------------


def crowd(count: int, **fields: Any) -> list[TaskSchedule]:
    return [schedule(f"s{number:04}", Hourly(), **fields) for number in range(count)]


async def test_schedulers_at_once_fire_each_slot_once(db: Database) -> None:
    many = crowd(60, catch_up_missed=True)
    async with (
        scheduling(db, *many) as one, scheduling(db, *many) as two, scheduling(db, *many) as three,
    ):  # fmt: skip
        for _ in range(5):
            db.execute(
                "UPDATE horsies_schedule_state SET next_run_at = date_trunc('hour', now()) - interval '2 hours',"
                " run_requested_at = now(), last_run_at = last_run_at - interval '3 hours'"
            )
            db.execute("DELETE FROM horsies_tasks")
            await asyncio.gather(*(scheduler.run_once() for scheduler in (one, two, three)))
            await one.run_once()
            assert factories.count(db) == 60 * (3 + 1)
    assert set(db.execute("SELECT run_count FROM horsies_schedule_state")) == {(20,)}


async def test_a_row_that_another_scheduler_holds_does_not_keep_the_rest(db: Database) -> None:
    async with scheduling(db, *crowd(3)) as scheduler:
        db.execute("UPDATE horsies_schedule_state SET next_run_at = date_trunc('second', now())")
        with psycopg.connect(db.url) as holder:
            holder.execute("SELECT 1 FROM horsies_schedule_state WHERE schedule_name = 's0001' FOR UPDATE")
            await scheduler.run_once()
            assert factories.count(db) == 2
            await scheduler.run_once()
            assert 0 < scheduler.pause_s() < 1
            holder.rollback()
        await scheduler.run_once()
        assert factories.count(db) == 3
        assert scheduler.pause_s() > 0


async def test_a_thousand_at_once_are_a_handful_of_statements(db: Database) -> None:
    many = crowd(1_000)
    async with scheduling(db, *many) as scheduler:
        db.execute("UPDATE horsies_schedule_state SET next_run_at = date_trunc('second', now())")
        start_counting(db)
        await scheduler.run_once()
        used = calls(db, "query LIKE '%horsies_%' OR query LIKE 'BEGIN%' OR query = 'COMMIT'")
    assert factories.count(db) == 1_000
    # two looks; begin, lock, insert, move, commit; and again to see that there are no more
    assert used <= 2 + 5 * (1_000 // BATCH) + 3


async def test_a_long_catch_up_takes_several_transactions(db: Database) -> None:
    many = [
        schedule(f"s{number}", Interval(seconds=1), catch_up_missed=True, max_catch_up_runs=1_000)
        for number in range(8)
    ]
    async with scheduling(db, *many):
        pass
    db.execute("UPDATE horsies_schedule_state SET next_run_at = date_trunc('second', now()) - interval '2 hours'")
    async with scheduling(db, *many):
        pass
    assert MAX_FIRES < 8_000
    counts = db.execute("SELECT run_count FROM horsies_schedule_state")
    assert all(1_000 <= count <= 1_060 for (count,) in counts), counts


@contextmanager
def refusing(db: Database, names: str) -> Iterator[None]:
    """The owner of the database has rules of his own for what may be inserted."""
    db.execute(f"ALTER TABLE horsies_tasks ADD CONSTRAINT refused CHECK (kwargs NOT SIMILAR TO '{names}')")
    try:
        yield
    finally:
        db.execute("ALTER TABLE horsies_tasks DROP CONSTRAINT refused")


async def test_a_schedule_that_the_database_refuses_keeps_only_itself(
    db: Database, caplog: pytest.LogCaptureFixture
) -> None:
    many = [schedule(f"s{number}", Hourly(), kwargs={"a": number}) for number in range(20)]
    async with scheduling(db, *many) as scheduler:
        with refusing(db, '{"a":(3|11)}'):
            db.execute("UPDATE horsies_schedule_state SET next_run_at = date_trunc('second', now())")
            await scheduler.run_once()
            assert factories.count(db) == 18
            owed = "SELECT schedule_name FROM horsies_schedule_state WHERE next_run_at <= now() ORDER BY 1"
            assert db.execute(owed) == [("s11",), ("s3",)]
            await scheduler.run_once()
            assert 0 < scheduler.pause_s() < 1
        assert "schedule 's3': the database refuses its task" in caplog.text
        await scheduler.run_once()
        assert factories.count(db) == 20
        assert db.execute(owed) == []


async def test_a_schedule_whose_slots_cannot_be_found_keeps_only_itself(
    db: Database, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken_for_one(task: ScheduledTask, slots: Slots, row: DueRow, at: datetime) -> Move:
        if row.name == "s0001":
            raise ValueError("a bug in its pattern")
        return move(task, slots, row, at)

    monkeypatch.setattr("horsies_worker.scheduler.scheduler.move", broken_for_one)
    async with scheduling(db, *crowd(3)) as scheduler:
        db.execute("UPDATE horsies_schedule_state SET next_run_at = date_trunc('second', now())")
        await scheduler.run_once()
        assert factories.count(db) == 2
        assert "schedule 's0001': its next run cannot be computed" in caplog.text


async def test_a_row_that_changes_under_the_plan_is_planned_again(db: Database) -> None:
    """The old release fires just when the new one, starting, has read the row, which does not wait for it."""
    async with scheduling(db, schedule("s", Hourly(1))):
        pass
    async with scheduling(db, schedule("s", Hourly(2)), schedule("new", Hourly(3)), start=False) as new:
        with psycopg.connect(db.url) as old:
            old.execute("UPDATE horsies_schedule_state SET next_run_at = next_run_at + interval '1 hour'")
            await asyncio.wait_for(new.run_once(), 8)
            assert state(db, "new")["next_run_at"].minute == 3
        assert state(db)["next_run_at"].minute == 1
        await new.run_once()
        assert state(db)["next_run_at"].minute == 2


# -- time and trouble --------------------------------------------------------------------------------


async def test_it_wakes_for_every_slot_by_itself(db: Database) -> None:
    """The poll is a minute away: only the clock can wake it. It catches up, lest a machine that stood still for a
    second has a slot less."""
    slow = {"resilience": {"notify_poll_interval_ms": 60_000}}
    every = schedule("s", Interval(seconds=1), catch_up_missed=True)
    async with scheduling(db, every, schedule("t", FAR), **slow) as scheduler:
        serving = asyncio.create_task(scheduler.run())
        await eventually_async(lambda: len(slots(db)) >= 4, timeout=30)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    ran = slots(db)
    assert [later - slot for slot, later in pairwise(ran)] == [SECOND] * (len(ran) - 1)
    assert all(early >= timedelta(0) for (early,) in db.execute("SELECT created_at - sent_at FROM horsies_tasks"))


async def test_it_outlives_the_loss_of_its_connection(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    every = schedule("s", Interval(seconds=1), catch_up_missed=True)
    async with scheduling(db, every, resilience={"notify_poll_interval_ms": 200}) as scheduler:
        serving = asyncio.create_task(scheduler.run())
        for number in range(1, 4):
            await eventually_async(lambda number=number: len(slots(db)) >= number, timeout=30)
            db.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE application_name LIKE '%%scheduler' AND datname = current_database()"
            )
        await eventually_async(lambda: len(slots(db)) >= 5, timeout=30)
        assert not serving.done()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
    ran = slots(db)
    assert [later - slot for slot, later in pairwise(ran)] == [SECOND] * (len(ran) - 1)
    assert "unexpectedly" not in caplog.text


CUTS = {
    "lock": r"SELECT s\.schedule_name, s\.next_run_at, s\.config_hash =",
    "enqueue": "INSERT INTO horsies_tasks",
    "move": r"UPDATE horsies_schedule_state s\s+SET next_run_at",
    "commit": "^COMMIT",
}

OPEN = """SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND xact_start IS NOT NULL AND pid <> pg_backend_pid()"""


@pytest.mark.parametrize("when", When)
@pytest.mark.parametrize("what", CUTS)
async def test_a_cut_at_any_statement_leaves_one_task(db: Database, what: str, when: When) -> None:
    """F114 without a death: the statement never arrived, or its answer did not."""
    with ChaosProxy(db.url) as proxy:
        async with scheduling(proxy.url, schedule("s", Interval(hours=1), catch_up_missed=True)) as scheduler:
            age(db, "2 hours")
            due = state(db)["next_run_at"]
            proxy.cut_at(CUTS[what], when)
            with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
                await scheduler.run_once()
            assert proxy.cuts == 1
            # the server has noticed: until then the transaction holds the row of the schedule
            await eventually_async(lambda: db.value(OPEN) == 0)
            # both or nothing
            committed = what == "commit" and when is When.UNANSWERED
            await eventually_async(lambda: db.value("SELECT count(*) FROM horsies_tasks") == (2 if committed else 0))
            assert (state(db)["next_run_at"] == due) == (not committed)
            await scheduler.run_once()
            found = state(db)
    assert (found["run_count"], len(set(slots(db))), factories.count(db)) == (2, 2, 2)


async def test_in_a_schema_of_its_own(empty_db: Database) -> None:
    await horsies_schema.upgrade_async(empty_db.url, schema="jobs")
    async with scheduling(empty_db, schedule("s", Cron("* * * * *")), broker={"schema": "jobs"}) as scheduler:
        empty_db.execute("UPDATE jobs.horsies_schedule_state SET next_run_at = date_trunc('minute', now())")
        await scheduler.run_once()
    assert empty_db.value("SELECT count(*) FROM jobs.horsies_tasks") == 1
