"""Schedules that are made at run time: `app.schedules`, and what a scheduler makes of the rows."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from horsies import (
    ConfigurationError,
    Cron,
    Daily,
    Horsies,
    Hourly,
    Interval,
    Monthly,
    StoredSchedule,
    TaskError,
    TaskResult,
    TaskSchedule,
    UsageError,
    Weekly,
)
from horsies_worker.scheduler.scheduler import Scheduler
from tests.support import factories
from tests.support.apps import add_task, app_on, async_app_on, make_app
from tests.support.counting import HERE, start_counting
from tests.support.postgres import Database, waits_for_a_lock
from tests.support.schedulers import age, schedule, scheduling, slots, state
from tests.support.waiting import eventually_async

pytestmark = pytest.mark.shared_database

FAR = Monthly(1, "00:00")
HOUR = timedelta(hours=1)


@asynccontextmanager
async def shop(db: Database) -> AsyncIterator[Horsies]:
    """An app that has the task `add`, as the scheduler's has."""
    async with async_app_on(db) as app:
        add_task(app)
        yield app


def now(db: Database) -> datetime:
    return db.value("SELECT now()")


def sql_schedule(db: Database, name: str, pattern: dict[str, Any], **columns: Any) -> None:
    factories.insert(
        db, "horsies_schedules",
        **{"name": name, "task_name": "add", "pattern": json.dumps(pattern), "kwargs": '{"a": 1}', **columns},
    )  # fmt: skip


def past(db: Database, name: str = "s") -> list[tuple[Any, ...]]:
    return db.execute(
        "SELECT skipped, is_request, task_id IS NOT NULL FROM horsies_schedule_runs WHERE schedule_name = %s"
        " ORDER BY entry", name,
    )  # fmt: skip


# -- making, reading, deleting -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "pattern",
    [
        Interval(hours=1, minutes=30), Hourly(15, 30), Daily("02:30"), Weekly(["monday", "friday"], "08:00:01"),
        Monthly(-1, "23:00"), Cron("*/10 9-17 * * mon-fri"),
    ],
)  # fmt: skip
def test_a_schedule_reads_back_as_it_was_put(db: Database, pattern: Any) -> None:
    given = TaskSchedule(
        "s", "add", pattern, kwargs={"a": 1}, timezone="Europe/Berlin", overlap="skip", skipped_times="skip",
        catch_up_missed=True, max_catch_up_runs=7, jitter=2.5, enabled=False, group="acme",
    )  # fmt: skip
    with app_on(db) as app:
        add_task(app)
        stored = app.schedules.put(given)
        assert app.schedules.get("s") == stored
        assert stored.as_schedule() == given
        assert (stored.version, stored.target, stored.told_pattern) == (1, "add", str(pattern))
        assert app.schedules.put(given) == stored  # the same again changes nothing
        assert app.schedules.delete("s")
        assert app.schedules.get("s") is None
        assert not app.schedules.delete("s")
    assert db.value("SELECT count(*) FROM horsies_schedule_state") == 0


async def test_arguments_are_checked_against_a_task_that_the_app_has(db: Database) -> None:
    async with async_app_on(db) as app:

        @app.task("remind")
        def remind(at: datetime, names: list[str]) -> TaskResult[None, TaskError]:
            return TaskResult(ok=None)

        moment = datetime(2026, 1, 2, tzinfo=UTC)
        stored = await app.schedules.put_async(TaskSchedule("s", "remind", FAR, kwargs={"at": moment, "names": ["a"]}))
        assert stored.kwargs == {"at": "2026-01-02T00:00:00Z", "names": ["a"]}
        # what was read can be changed and put again
        again = await app.schedules.put_async(stored.as_schedule())
        assert again.version == 1
        with pytest.raises(ConfigurationError, match=r"TaskSchedule\('t'\).kwargs"):
            await app.schedules.put_async(TaskSchedule("t", "remind", FAR, kwargs={"at": 3, "names": ["a"]}))
        with pytest.raises(ConfigurationError, match="no time zone 'Mars/Base'"):
            await app.schedules.put_async(TaskSchedule("t", "unknown", FAR, timezone="Mars/Base"))
        with pytest.raises(ConfigurationError, match="pattern"):
            await app.schedules.put_async(TaskSchedule("t", "unknown", Cron("99 2 * * *")))
        with pytest.raises(ConfigurationError, match="not a queue of this app"):
            await app.schedules.put_async(
                TaskSchedule("t", "remind", FAR, kwargs={"at": moment, "names": []}, queue_name="elsewhere")
            )
        with pytest.raises(ConfigurationError, match="not JSON"):
            await app.schedules.put_async(TaskSchedule("t", "unknown", FAR, kwargs={"at": moment}))
        with pytest.raises(ConfigurationError, match="NUL"):
            await app.schedules.put_async(TaskSchedule("t", "unknown", FAR, kwargs={"at": "\0"}))
        with pytest.raises(UsageError, match="put takes a TaskSchedule"):
            await app.schedules.put_async("s")  # pyright: ignore[reportArgumentType]
        # a task of another code base is not checked here
        await app.schedules.put_async(TaskSchedule("elsewhere", "unknown", FAR, kwargs={"n": [1, 2.5, None, "x"]}))
        assert [one.schedule_name for one in await app.schedules.list_async()] == ["elsewhere", "s"]


async def test_a_version_guards_against_two_editors(db: Database) -> None:
    async with shop(db) as app:
        first = await app.schedules.put_async(schedule("s", Hourly(1)), version=0)
        with pytest.raises(UsageError, match="schedule 's' exists already"):
            await app.schedules.put_async(schedule("s", Hourly(2)), version=0)
        second = await app.schedules.put_async(schedule("s", Hourly(2)), version=first.version)
        assert second.version == 2
        with pytest.raises(UsageError, match="version 1 was expected, it has version 2"):
            await app.schedules.put_async(schedule("s", Hourly(3)), version=first.version)
        await app.schedules.delete_async("s")
        with pytest.raises(UsageError, match="it is gone"):
            await app.schedules.put_async(schedule("s", Hourly(3)), version=2)
        assert await app.schedules.list_async() == []


async def test_many_at_once_and_pages(db: Database) -> None:
    async with shop(db) as app:
        many = [schedule(f"s{number:04}", Hourly(number % 60)) for number in range(1_200)]
        assert await app.schedules.put_many_async(many) == 1_200
        assert await app.schedules.put_many_async([*many[:5], schedule("s0005", Hourly(59))]) == 1
        with pytest.raises(UsageError, match="given twice"):
            await app.schedules.put_many_async([many[0], many[0]])
        names: list[str] = []
        while page := await app.schedules.list_async(500, after=names[-1] if names else None, kind="data"):
            names += [one.schedule_name for one in page]
        assert names == [one.name for one in many]
        assert await app.schedules.list_async(kind="code") == []


# -- firing ------------------------------------------------------------------------------------------


async def test_a_schedule_runs_from_its_next_slot_on(db: Database) -> None:
    async with shop(db) as app, scheduling(db) as scheduler:
        await app.schedules.put_async(schedule("s", Interval(hours=1), kwargs={"a": 3}, queue_name=None, group="g"))
        await scheduler.run_once()
        found = state(db)
        assert now(db) < found["next_run_at"] <= now(db) + HOUR
        assert factories.count(db) == 0
        age(db, "0 seconds")
        due = state(db)["next_run_at"]
        await scheduler.run_once()
        assert slots(db) == [due]
        assert db.execute("SELECT kwargs, priority, group_key, max_retries FROM horsies_tasks") == [
            ('{"a":3}', 7, "g", 3)
        ]
        (run,) = await app.schedules.history_async("s")
        assert (run.slot, run.status, run.skipped, run.is_request) == (due, "PENDING", None, False)
        assert run.task_id == state(db)["last_task_id"]
        (info,) = await app.schedules.list_async()
        assert (info.is_data, info.is_known, info.state, info.run_count) == (True, True, "active", 1)


async def test_it_is_told_at_once(db: Database) -> None:
    """The poll is a minute away."""
    async with shop(db) as app, scheduling(db, resilience={"notify_poll_interval_ms": 60_000}) as scheduler:
        services = [
            asyncio.create_task(scheduler.run()),
            asyncio.create_task(scheduler.hear(app.config.broker, "test")),
        ]
        try:
            listening = (
                "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%' OR query LIKE '%%schedule_state%%'"
            )
            await eventually_async(lambda: db.value(listening) > 0)
            await app.schedules.put_async(schedule("s", Interval(seconds=1)))
            await eventually_async(lambda: len(slots(db)) >= 1, timeout=8)
            await app.schedules.delete_async("s")
            count = len(slots(db))
            await app.schedules.put_async(schedule("t", FAR, kwargs={"a": 2}))
            await app.schedules.run_now_async("t")
            await eventually_async(lambda: len(slots(db)) == count + 1, timeout=8)
        finally:
            for service in services:
                service.cancel()
            await asyncio.gather(*services, return_exceptions=True)


async def test_another_timing_counts_from_the_change(db: Database) -> None:
    async with shop(db) as app, scheduling(db) as scheduler:
        await app.schedules.put_async(schedule("s", Interval(hours=1), catch_up_missed=True))
        await scheduler.run_once()
        age(db, "3 hours")  # overdue by the old timing
        await app.schedules.put_async(schedule("s", Interval(hours=2), catch_up_missed=True))
        assert state(db)["next_run_at"] is None
        await scheduler.run_once()
        assert now(db) < state(db)["next_run_at"] <= now(db) + 2 * HOUR
        assert factories.count(db) == 0
        # other arguments keep the slot, and another zone is another timing
        promised = state(db)["next_run_at"]
        await app.schedules.put_async(schedule("s", Interval(hours=2), kwargs={"a": 5}))
        assert state(db)["next_run_at"] == promised
        await app.schedules.put_async(schedule("s", Daily("12:00"), timezone="Asia/Tokyo"))
        await scheduler.run_once()
        assert state(db)["next_run_at"].astimezone(UTC).hour == 3


async def test_no_slot_is_lost_between_a_change_and_its_plan(db: Database) -> None:
    """No scheduler ran when it was made: what passed since then counts as missed."""
    async with shop(db) as app:
        await app.schedules.put_async(schedule("s", Interval(hours=1), catch_up_missed=True))
    db.execute("UPDATE horsies_schedules SET timed_at = now() - interval '3 hours'")
    async with scheduling(db):
        pass
    assert len(slots(db)) == 3


async def test_pausing_keeps_the_history_of_runs(db: Database) -> None:
    async with shop(db) as app, scheduling(db) as scheduler:
        await app.schedules.put_async(schedule("s", Interval(hours=1)))
        await scheduler.run_once()
        age(db, "0 seconds")
        await scheduler.run_once()
        assert await app.schedules.pause_async("s")
        for _ in range(30):
            age(db, "1 hours")
            await scheduler.run_once()
        await app.schedules.put_async(schedule("s", Interval(hours=1), kwargs={"a": 2}))  # stays paused
        assert past(db) == [(None, False, True), ("paused", False, False)]
        assert await app.schedules.resume_async("s")
        age(db, "0 seconds")
        await scheduler.run_once()
        assert await app.schedules.run_now_async("s")
        await scheduler.run_once()
        assert past(db)[2:] == [(None, False, True), (None, True, True)]
        for _ in range(30):
            await app.schedules.run_now_async("s")
            await scheduler.run_once()
        assert len(past(db)) == 20
        assert db.value("SELECT run_count FROM horsies_schedule_state") == 33


async def test_overlap_and_missed_slots_are_in_the_history(db: Database) -> None:
    async with shop(db) as app, scheduling(db) as scheduler:
        await app.schedules.put_async(schedule("s", Interval(hours=1), overlap="skip"))
        await scheduler.run_once()
        for _ in range(2):
            age(db, "3 hours")
            await scheduler.run_once()
        skipped, run, missed = await app.schedules.history_async("s")
        assert (skipped.skipped, run.status, missed.skipped) == ("overlap", "PENDING", "missed")
        assert missed.slot < missed.last_slot < run.slot
        factories.finish(db, state(db)["last_task_id"], ok=1)
        age(db, "0 seconds")
        await scheduler.run_once()
        assert [one.status for one in await app.schedules.history_async("s", 1)] == ["PENDING"]
        with pytest.raises(ConfigurationError, match="limit"):
            await app.schedules.history_async("s", 21)


async def test_a_schedule_of_a_workflow(db: Database) -> None:
    app = make_app(db)
    add = add_task(app)
    app.workflow("sums", [add.node()(a=1)])
    from horsies_worker.database.queries import Queries
    from horsies_worker.database.session import Session
    from horsies_worker.identity import Identity

    session = Session(app.config.broker, "scheduler", Queries(app.schema, Identity()))
    scheduler = Scheduler(session, app, [])
    await app.schedules.put_async(TaskSchedule("s", workflow="sums", pattern=FAR))
    await app.schedules.run_now_async("s")
    await scheduler.run_once()
    (run,) = await app.schedules.history_async("s")
    assert (run.status, run.is_request) == ("RUNNING", True)
    assert db.value("SELECT id FROM horsies_workflows") == run.task_id
    await session.close()
    await app.aclose()


# -- rows that cannot be served ----------------------------------------------------------------------


async def test_a_row_that_cannot_be_served_keeps_only_itself(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    """Written by SQL, all due now; the good one is the last."""
    sql_schedule(db, "kind", {"kind": "yearly"})
    sql_schedule(db, "cron", {"kind": "cron", "expression": "61 * * * *"})
    sql_schedule(db, "fields", {"kind": "daily", "at": "25:00"})
    sql_schedule(db, "zone", {"kind": "hourly"}, timezone="Mars/Base")
    sql_schedule(db, "arguments", {"kind": "hourly"}, kwargs='{"a": "x"}')
    sql_schedule(db, "queue", {"kind": "hourly"}, queue_name="elsewhere")
    sql_schedule(db, "unknown", {"kind": "hourly"}, task_name="gone")
    sql_schedule(db, "good", {"kind": "hourly"})
    async with shop(db) as app, scheduling(db) as scheduler:
        db.execute("UPDATE horsies_schedule_state SET next_run_at = now(), config_hash = coalesce(config_hash, 'x')")
        await scheduler.run_once()
        assert db.execute("SELECT count(*) FROM horsies_tasks") == [(1,)]
        assert scheduler.pause_s() > 0  # it does not spin
        states = {one.schedule_name: str(one.state) for one in await app.schedules.list_async()}
        assert states == {
            "kind": "cannot run", "cron": "cannot run", "fields": "cannot run", "zone": "cannot run",
            "arguments": "cannot run", "queue": "cannot run", "unknown": "unknown task", "good": "active",
        }  # fmt: skip
        control = app.get_broker().schedules
        assert "not a kind of pattern" in str(await control.problem("kind"))
        assert "Mars/Base" in str(await control.problem("zone"))
        assert "elsewhere" in str(await control.problem("queue"))
        assert "schedule 'arguments' cannot run" in caplog.text
        findings = [one.what for one in await app.get_broker().diagnose() if one.check == "schedules"]
        assert any("6 schedules cannot run: arguments, cron, fields and 3 more" in one for one in findings)
        assert any("no running scheduler knows the task of 1 schedule: unknown (gone)" in one for one in findings)
        # paused, it is silent
        for name in ("cron", "unknown"):
            await control.pause(name)
        assert {str(one.state) for one in await control.list() if one.paused_at is not None} == {"paused"}
        findings = [one.what for one in await app.get_broker().diagnose() if one.check == "schedules"]
        assert [one for one in findings if "cannot" in one or "knows" in one] == [
            "5 schedules cannot run: arguments, fields, kind and 2 more"
        ]
        # corrected, it runs
        db.execute("UPDATE horsies_schedules SET kwargs = '{\"a\": 2}' WHERE name = 'arguments'")
        assert await control.problem("arguments") is None
        await scheduler.run_once()
        await control.run_now("arguments")
        await scheduler.run_once()
        assert '{"a":2}' in [row[0] for row in db.execute("SELECT kwargs FROM horsies_tasks")]


def test_sql_cannot_write_what_makes_no_sense(db: Database) -> None:
    for columns in (
        {"task_name": None}, {"workflow": "w"}, {"kwargs": "[]"}, {"overlap": "never"}, {"jitter_s": -1},
        {"max_catch_up_runs": 0}, {"name": ""},
    ):  # fmt: skip
        with pytest.raises(psycopg.errors.CheckViolation):
            sql_schedule(db, **{"name": "s", "pattern": {"kind": "hourly"}, **columns})
    sql_schedule(db, "s", {"kind": "hourly"})
    with pytest.raises(psycopg.errors.CheckViolation, match="cannot get another name"):
        db.execute("UPDATE horsies_schedules SET name = 't'")
    db.execute("UPDATE horsies_schedules SET version = 77")
    assert db.value("SELECT version FROM horsies_schedules") == 1
    # a test that lets time pass moves all times back
    db.execute("UPDATE horsies_schedules SET timed_at = now() - interval '1 day', updated_at = '2020-01-01'")
    assert db.execute("SELECT version, timed_at < now() FROM horsies_schedules") == [(1, True)]
    db.execute("UPDATE horsies_schedules SET kwargs = '{}'")
    assert db.value("SELECT version FROM horsies_schedules") == 2


# -- the code's own ----------------------------------------------------------------------------------


async def test_a_row_takes_the_place_of_a_schedule_in_code(db: Database, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", logger="horsies.scheduler")
    async with shop(db) as app, scheduling(db, schedule("s", Hourly(1))) as scheduler:
        age(db, "0 seconds")
        await scheduler.run_once()
        assert factories.count(db) == 1
        await app.schedules.put_async(schedule("s", Daily("12:00"), kwargs={"a": 9}))
        await scheduler.run_once()
        assert state(db)["next_run_at"].hour == 12
        assert state(db)["run_count"] == 1
        await app.schedules.run_now_async("s")
        await scheduler.run_once()
        assert [row[0] for row in db.execute("SELECT kwargs FROM horsies_tasks ORDER BY created_at")][1:] == ['{"a":9}']
        assert "schedule 's' of the code is skipped" in caplog.text
        findings = [one.what for one in await app.get_broker().diagnose() if one.check == "schedules"]
        assert any("1 schedule of the code is skipped" in one and "s of " in one for one in findings)
        await app.schedules.delete_async("s")
        await scheduler.run_once()
        found = state(db)
        assert (found["next_run_at"].minute, found["run_count"]) == (1, 2)
        assert len(await app.schedules.history_async("s")) == 2
        assert "schedule 's' is that of the code again" in caplog.text


async def test_a_paused_schedule_of_the_code_stays_paused_when_its_name_is_given_back(db: Database) -> None:
    async with shop(db) as app, scheduling(db, schedule("s", Hourly(1))) as scheduler:
        await app.schedules.pause_async("s")
        paused_at = state(db)["paused_at"]
        await app.schedules.put_async(schedule("s", Daily("12:00")))
        await scheduler.run_once()
        await app.schedules.delete_async("s")
        (listed,) = await app.schedules.list_async(kind="code")
        assert listed.state == "paused"
        await scheduler.run_once()
        assert (state(db)["paused_at"], state(db)["next_run_at"].minute) == (paused_at, 1)
        age(db, "0 seconds")
        await scheduler.run_once()
        assert (factories.count(db), past(db)) == (0, [("paused", False, False)])
        await app.schedules.resume_async("s")
        age(db, "0 seconds")
        await scheduler.run_once()
        assert factories.count(db) == 1


async def test_it_stays_paused_when_no_scheduler_is_running_meanwhile(db: Database) -> None:
    async with shop(db) as app:
        async with scheduling(db, schedule("s", Hourly(1))):
            await app.schedules.pause_async("s")
        await app.schedules.put_async(schedule("s", Daily("12:00")))
        seen = (await app.schedules.list_async())[0].scheduler_seen
        await app.schedules.delete_async("s")
        again = (await app.schedules.list_async())[0].scheduler_seen
        assert seen is not None
        assert again is not None
        assert again > seen  # a delete is no sign of a scheduler
        async with scheduling(db, schedule("s", Hourly(1))):
            assert state(db)["paused_at"] is not None
            assert state(db)["next_run_at"].minute == 1


async def test_a_paused_schedule_that_is_not_in_the_code_is_deleted_with_its_state(db: Database) -> None:
    async with shop(db) as app, scheduling(db, schedule("s", Hourly(1))) as scheduler:
        await app.schedules.put_async(schedule("t", Daily("12:00")))
        await app.schedules.pause_async("t")
        await scheduler.run_once()
        await app.schedules.delete_async("t")
        assert [one.schedule_name for one in await app.schedules.list_async()] == ["s"]


# -- several at once ---------------------------------------------------------------------------------


async def test_an_edit_and_a_delete_wait_for_a_fire(db: Database) -> None:
    """A slot that is being fired is fired by the old row, once; then the change holds."""
    async with shop(db) as app, scheduling(db) as scheduler:
        await app.schedules.put_async(schedule("s", Interval(hours=1)))
        await scheduler.run_once()
        for change in (
            lambda: app.schedules.put_async(schedule("s", Interval(hours=2))),
            lambda: app.schedules.delete_async("s"),
        ):
            with psycopg.connect(db.url) as firing:
                firing.execute("SELECT 1 FROM horsies_schedule_state WHERE schedule_name = 's' FOR UPDATE")
                changing = asyncio.create_task(change())
                await eventually_async(lambda: waits_for_a_lock(db), describe="the change waits for the fire")
                firing.execute("UPDATE horsies_schedule_state SET run_count = run_count")
            await changing
            await scheduler.run_once()
        assert db.execute("SELECT 1 FROM horsies_schedule_state") == []


async def test_editors_and_schedulers_at_once(db: Database) -> None:
    """Schedules are edited, paused, deleted and made again while two schedulers fire: no slot has two tasks, nothing
    deadlocks, and the rows agree at the end."""
    names = [f"s{number}" for number in range(8)]
    async with shop(db) as app, scheduling(db) as one, scheduling(db) as two:

        async def edit(name: str) -> None:
            for number in range(12):
                await app.schedules.put_async(schedule(name, Interval(seconds=1 + number % 2), kwargs={"a": number}))
                await asyncio.sleep(0.02)
                await (app.schedules.delete_async if number % 5 == 4 else app.schedules.run_now_async)(name)

        async def fire(scheduler: Scheduler, over: asyncio.Event) -> None:
            while not over.is_set():
                await scheduler.run_once()
                await asyncio.sleep(0.01)

        over = asyncio.Event()
        firing = [asyncio.create_task(fire(scheduler, over)) for scheduler in (one, two)]
        await asyncio.gather(*map(edit, names))
        over.set()
        await asyncio.gather(*firing)
        await one.run_once()
    assert db.value("SELECT count(*) FROM horsies_schedule_state WHERE is_data AND config_hash IS NOT NULL") == 8
    assert db.value("SELECT count(*) FROM horsies_schedules") == 8
    assert db.value("SELECT count(*) FROM horsies_tasks") > 0


async def test_what_is_not_due_is_not_read(db: Database) -> None:
    """Of 1,500 schedules 20 are due. The statement finds them by the index, also before the first ANALYZE."""
    async with shop(db) as app, scheduling(db) as scheduler:
        await app.schedules.put_many_async([schedule(f"s{number:05}", FAR) for number in range(1_500)])
        await scheduler.run_once()
        assert db.value("SELECT count(*) FROM horsies_schedule_state WHERE next_run_at IS NOT NULL") == 1_500
        db.execute("UPDATE horsies_schedule_state SET next_run_at = now() WHERE schedule_name < 's00020'")
        start_counting(db)
        await scheduler.run_once()
        assert factories.count(db) == 20
        blocks = (
            "SELECT coalesce(sum(shared_blks_hit + shared_blks_read), 0) FROM pg_stat_statements"
            f" WHERE dbid = {HERE} AND query LIKE '%%horsies_schedules d%%'"
        )
        # two outlooks and one lock: some descents of small indexes for each due row, and no scan of all
        assert db.value(blocks) < 1_500


async def test_names_and_schedules_of_the_wrong_type_are_refused(db: Database) -> None:
    async with async_app_on(db) as app:
        control = app.get_broker().schedules
        for name in (None, 5, ["s"], b"s"):
            for verb in (control.get, control.delete, control.pause, control.run_now, control.history, control.state):
                with pytest.raises(UsageError, match="the name of a schedule is a str"):
                    await verb(name)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="the name of a schedule is a str"):
            await control.list(after=5)  # type: ignore[arg-type]
        for wrong in (None, TaskSchedule("s", "report", Interval(hours=1))):
            with pytest.raises(UsageError, match="put_many takes several TaskSchedule"):
                await control.put_many(wrong)  # type: ignore[arg-type]


def test_the_view_of_a_row_that_makes_no_sense(db: Database) -> None:
    sql_schedule(db, "s", {"kind": "yearly"})
    with app_on(db) as app:
        stored = app.schedules.get("s")
        assert isinstance(stored, StoredSchedule)
        assert stored.told_pattern == '{"kind": "yearly"}'
        with pytest.raises(ConfigurationError, match="give one of: interval, hourly"):
            stored.as_schedule()
