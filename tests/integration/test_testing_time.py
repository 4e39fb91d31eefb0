"""Time passes in `testing.real`: schedules of the app and stored ones, and `drain(until_quiet=True)`."""

from collections.abc import Iterator
from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest

from horsies import (
    AppConfig,
    ConfigurationError,
    Cron,
    Daily,
    Horsies,
    Interval,
    Overlap,
    PostgresConfig,
    RetryPolicy,
    ScheduleConfig,
    TaskError,
    TaskResult,
    TaskSchedule,
    UsageError,
    current_task,
    sleep,
    snooze,
    testing,
)
from tests.support.postgres import Database

pytestmark = pytest.mark.shared_database

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
Text = TaskResult[str, TaskError]


@pytest.fixture
def app(db: Database) -> Iterator[Horsies]:
    schedules = [
        TaskSchedule("nightly", "report", pattern=Daily(time(3, 30)), kwargs={"of": "day"}),
        TaskSchedule("hourly", "report", pattern=Cron("0 * * * *"), kwargs={"of": "hour"}),
        TaskSchedule("alone", "slow", pattern=Interval(minutes=10), overlap=Overlap.SKIP),
    ]
    config = AppConfig(PostgresConfig(db.url), schedule=ScheduleConfig(schedules))
    with Horsies(config) as app:

        @app.task("report")
        def report(of: str) -> Text:
            return TaskResult(ok=of)

        @app.task("slow")
        def slow() -> Text:
            return TaskResult(ok="slow")

        yield app


def ran(report: testing.DrainReport) -> dict[str, int]:
    values = [str(one.ok) for one in report.results.values()]
    return {name: values.count(name) for name in sorted(set(values))}


def test_schedules_run_in_passed_time(app: Horsies, db: Database) -> None:
    with testing.real(app, in_place=True) as database:
        assert database.drain().attempts == 0
        database.advance(DAY)
        assert ran(database.drain()) == {"day": 1, "hour": 24, "slow": 1}
        for _ in range(3):  # in steps that are no multiple of the interval
            database.advance(timedelta(minutes=59, seconds=59))
        assert ran(database.drain())["hour"] in (2, 3)
        before = datetime.now(UTC)
        for name in ("nightly", "hourly"):
            row = db.execute("SELECT next_run_at FROM horsies_schedule_state WHERE schedule_name = %s", name)
            assert row[0][0] > before - HOUR
        minutes = db.execute(
            "SELECT DISTINCT extract(minute FROM t.sent_at + %s)::int FROM horsies_tasks t"
            " WHERE kwargs LIKE '%%hour%%'", DAY + 3 * timedelta(minutes=59, seconds=59),
        )  # fmt: skip
        assert minutes == [(0,)]  # in the time that the test has reached
        database.advance(DAY)
        assert ran(database.drain())["day"] == 1


def test_stored_schedules_and_requests(app: Horsies) -> None:
    with testing.real(app, in_place=True) as database:
        app.schedules.put(TaskSchedule("mine", "report", pattern=Interval(hours=1), kwargs={"of": "mine"}))
        database.advance(2.5 * HOUR)
        assert ran(database.drain())["mine"] in (2, 3)
        app.schedules.run_now("mine")
        app.schedules.run_now("nightly")
        assert ran(database.drain()) == {"day": 1, "mine": 1}
        app.schedules.delete("mine")
        database.advance(3 * HOUR)
        assert "mine" not in ran(database.drain())


def test_until_quiet_everything_that_comes_by_itself_has_come(app: Horsies) -> None:
    @app.task("again", retry_policy=RetryPolicy.fixed(600, 3, auto_retry_for=["AGAIN"]))
    def again() -> TaskResult[int, TaskError]:
        if current_task().attempt < 4:
            return TaskResult(err=TaskError("AGAIN"))
        return TaskResult(ok=current_task().attempt)

    @app.task("waits")
    def waits() -> TaskResult[int, TaskError]:
        return snooze(seconds=900) if current_task().snoozes < 2 else TaskResult(ok=current_task().snoozes)

    @app.task("for_ever")
    def for_ever() -> TaskResult[int, TaskError]:
        return snooze(seconds=900)

    nap = sleep(DAY, node_id="nap")
    end = again.node(node_id="end", waits_for=[nap])()
    flow = app.workflow("flow", [nap, end], output=end)
    with testing.real(app, in_place=True) as database:
        handles = [again.send(), waits.send(), again.schedule(3 * DAY)]
        run = flow.start(start_at=HOUR)
        report = database.drain(until_quiet=True)
        assert (report.completed, report.retried, report.snoozed) == (4, 9, 2)
        assert [handle.get().ok for handle in handles] == [4, 2, 4]
        assert run.get() == TaskResult(ok=4)
        for_ever.send()
        with pytest.raises(UsageError, match="50 attempts"):
            database.drain(until_quiet=True, limit=50)


def test_until_quiet_misses_no_task_that_becomes_due_beside_a_look(app: Horsies) -> None:
    @app.task("soon")
    def soon() -> Text:
        return TaskResult(ok="soon")

    with testing.real(app, in_place=True) as database:
        for step in range(60):
            handle = soon.schedule(timedelta(microseconds=500 * step))
            database.drain(until_quiet=True)
            assert handle.get(0) == TaskResult(ok="soon")


@pytest.mark.parametrize(
    "options",
    [{"queues": "default"}, {"queues": ["nowhere"]}, {"queues": [3]}, {"limit": 0}, {"limit": "9"}, {"recursive": 1},
     {"until_quiet": None}, {"until_quiet": True, "recursive": False}],
)  # fmt: skip
def test_options_of_drain_are_checked(app: Horsies, options: dict[str, Any]) -> None:
    with testing.real(app, in_place=True) as database, pytest.raises(ConfigurationError, match="drain"):
        database.drain(**options)


def test_more_time_than_the_tables_take_is_refused(app: Horsies) -> None:
    with testing.real(app, in_place=True) as database:
        database.advance(DAY)
        for time in (timedelta.max, 40 * 365.25 * DAY):
            with pytest.raises(UsageError, match="at most 40 years"):
                database.advance(time)
