"""What is found wrong with an app's schedules before any of them runs, and what `horsies check` says about the rest."""

import os
import subprocess
import sys
import textwrap
from typing import Any

import pytest

from horsies import (
    AppConfig,
    ConfigurationError,
    Cron,
    CustomQueueConfig,
    Daily,
    Horsies,
    Hourly,
    Interval,
    PostgresConfig,
    QueueMode,
    ScheduleConfig,
    TaskError,
    TaskResult,
    TaskSchedule,
)
from horsies.check import check_app, describe
from horsies.scheduled import settle_schedules
from horsies_worker.scheduler.local_times import cron_problem
from tests.support.apps import add_task


def app_with(*schedules: TaskSchedule, **config: Any) -> Horsies:
    app = Horsies(AppConfig(PostgresConfig("dbname=x"), schedule=ScheduleConfig(schedules), **config))
    options = {"queue_name": "a"} if config else {}
    add_task(app, **options)
    return app


def problems(app: Horsies) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        settle_schedules(app, cron_problem)
    return [f"{problem.where}: {problem.why}" for problem in caught.value.problems]


def notes(app: Horsies) -> list[str]:
    return [finding.text for finding in check_app(app) if not finding.is_problem]


def test_all_problems_of_all_schedules() -> None:
    found = problems(
        app_with(
            TaskSchedule("a", "nobody", Interval(hours=1), timezone="Mars/Olympus", queue_name="mail"),
            TaskSchedule("b", "add", Cron("0 0 31 4 *"), kwargs={"a": 1, "c": 1}),
            TaskSchedule("c", "add", Daily("00:00"), kwargs={"a": 1}),
        )
    )
    assert [one.split(":")[0] for one in found] == [
        "TaskSchedule('a').timezone", "TaskSchedule('a').queue_name", "TaskSchedule('a').task_name",
        "TaskSchedule('b').pattern", "TaskSchedule('b').kwargs",
    ]  # fmt: skip
    assert "unexpected keyword argument 'c'" in found[-1]


def test_a_queue_that_only_the_app_can_know() -> None:
    queues = {"queue_mode": QueueMode.CUSTOM, "custom_queues": [CustomQueueConfig("a"), CustomQueueConfig("b")]}
    app = app_with(TaskSchedule("s", "add", Hourly(), kwargs={"a": 1}, queue_name="default"), **queues)
    assert problems(app) == ["TaskSchedule('s').queue_name: 'default' is not a queue of this app"]

    other = app_with(TaskSchedule("s", "add", Hourly(), kwargs={"a": 1}, queue_name="b"), **queues)
    (settled,) = settle_schedules(other, cron_problem)
    assert settled.target.plan.queue_name == "b"


def test_a_stub_can_be_scheduled() -> None:
    app = Horsies(
        AppConfig(PostgresConfig("dbname=x"), schedule=ScheduleConfig([TaskSchedule("s", "elsewhere", Hourly())]))
    )

    @app.declare("elsewhere", priority=3)
    def elsewhere() -> TaskResult[None, TaskError]: ...

    (settled,) = settle_schedules(app, cron_problem)
    # retries and time-outs are those of the worker that has its body
    assert (settled.target.plan.priority, settled.target.plan.task_options) == (3, None)


@pytest.mark.parametrize(
    ("pattern", "zone", "is_told"),
    [
        (Hourly(), "Europe/Berlin", True), (Cron("*/5 * * * *"), "Europe/Berlin", True),
        (Cron("0 9-17 * * *"), "America/New_York", True), (Hourly(), "UTC", False), (Hourly(), "Asia/Kolkata", False),
        (Cron("30 2 * * *"), "Europe/Berlin", False), (Daily("02:30"), "Europe/Berlin", False),
        (Interval(minutes=5), "Europe/Berlin", False), (Hourly(), "Australia/Lord_Howe", True),
    ],
)  # fmt: skip
def test_an_hour_in_which_nothing_runs_is_told(pattern: Any, zone: str, is_told: bool) -> None:
    app = app_with(TaskSchedule("s", "add", pattern, kwargs={"a": 1}, timezone=zone))
    told = f"runs several times a day in {zone}: of the time that comes twice when the clock is put back, its slots run"
    assert any(f"{told} the first time only" in note for note in notes(app)) == is_told
    assert not any(finding.is_problem for finding in check_app(app))


def test_a_schedule_with_a_problem_hides_no_note_on_the_others() -> None:
    app = app_with(
        TaskSchedule("wrong", "a_task_that_is_not_registered", Hourly(), timezone="Europe/Berlin"),
        TaskSchedule("right", "add", Hourly(), kwargs={"a": 1}, timezone="Europe/Berlin"),
    )
    assert ["'right'" in note for note in notes(app) if "several times a day" in note] == [True]
    (problem,) = (finding.text for finding in check_app(app) if finding.is_problem)
    assert "TaskSchedule('wrong').task_name" in problem


def test_schedules_are_described() -> None:
    app = app_with(
        TaskSchedule("nightly", "add", Daily("02:30"), timezone="Europe/Berlin", enabled=False),
        TaskSchedule("beat", "add", Interval(seconds=5)),
    )
    assert list(describe(app))[-3:] == [
        "schedules: 2",
        "  nightly  add: daily at 02:30:00 in Europe/Berlin, not enabled",
        "  beat     add: every 0:00:05",
    ]  # fmt: skip


BARE = """
    import sys
    if {without_tzdata}:
        sys.modules["tzdata"] = None
    from horsies import *
    app = Horsies(AppConfig(PostgresConfig("dbname=x"), schedule=ScheduleConfig([
        TaskSchedule("s", "t", Daily("02:30"), timezone="Europe/Berlin")])))

    @app.task("t")
    def t() -> TaskResult[None, TaskError]: ...

    from horsies.scheduled import settle_schedules
    try:
        print(len(settle_schedules(app, None)))
    except ConfigurationError as error:
        print(error.problems[0].why, "/", error.problems[0].fix)
"""


@pytest.mark.parametrize(
    ("without", "said"),
    [
        (False, "1\n"),
        (True, "'Europe/Berlin' cannot be read: this machine has no time zone data / pip install tzdata\n"),
    ],
)
def test_a_machine_without_time_zones(without: bool, said: str) -> None:
    """The tzdata package is enough; without it, too, it is said what is missing."""
    code = textwrap.dedent(BARE).replace("{without_tzdata}", str(without))
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONTZPATH": ""}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == (said, "")
