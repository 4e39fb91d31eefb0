"""Patterns and schedules as data: what they accept, what they refuse, all at once, and what their hash is made of."""

from datetime import UTC, datetime, time, timedelta
from typing import Any

import pytest

from horsies import (
    AppConfig,
    ConfigurationError,
    Cron,
    Daily,
    Hourly,
    Interval,
    Monthly,
    Overlap,
    PostgresConfig,
    ScheduleConfig,
    SkippedTime,
    TaskSchedule,
    Weekday,
    Weekly,
)
from horsies.ids import derived_id, id_problem


def schedule(**fields: Any) -> TaskSchedule:
    return TaskSchedule(**{"name": "nightly", "task_name": "report", "pattern": Daily("02:30"), **fields})


def problems(make: Any, *arguments: Any, **fields: Any) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        make(*arguments, **fields)
    return [problem.where.rpartition(".")[2] for problem in caught.value.problems]


# -- patterns ----------------------------------------------------------------------------------------


def test_times_of_day_are_given_as_text_or_as_times() -> None:
    assert Daily("02:30") == Daily(time(2, 30)) == Daily("2:30:00")
    assert Daily("23:59:59").at == time(23, 59, 59)


@pytest.mark.parametrize("at", ["24:00", "12:60", "12", "noon", "12:00 ", "-1:00", "12:00:60", 12, None, "",
                                time(1, tzinfo=UTC), time(1, 0, 0, 5)])  # fmt: skip
@pytest.mark.parametrize("make", [Daily, lambda at: Weekly(["monday"], at), lambda at: Monthly(1, at)])
def test_what_is_not_a_time_of_day(make: Any, at: Any) -> None:
    assert problems(make, at) == ["at"]


def test_the_days_of_a_week_have_an_order_and_come_once() -> None:
    weekly = Weekly(["friday", Weekday.MONDAY, "friday"], "08:00")
    assert weekly.days == (Weekday.MONDAY, Weekday.FRIDAY)
    assert Weekly("sunday", "08:00").days == (Weekday.SUNDAY,)
    assert problems(Weekly, ["mon", 3], "08:00") == ["days", "days"]
    assert problems(Weekly, [], "25:00") == ["days", "at"]


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        ({}, ["seconds"]), ({"days": 367}, ["seconds"]), ({"seconds": -1, "minutes": "x"}, ["seconds", "minutes"]),
        ({"seconds": True}, ["seconds"]), ({"seconds": 0.5}, ["seconds"]),
    ],
)  # fmt: skip
def test_what_is_not_an_interval(fields: dict[str, Any], wrong: list[str]) -> None:
    assert problems(Interval, **fields) == wrong


def test_an_interval_is_the_sum_of_its_parts() -> None:
    assert Interval(days=1, hours=2, minutes=3, seconds=4).every == timedelta(days=1, hours=2, minutes=3, seconds=4)


def test_hours_and_months() -> None:
    assert problems(Hourly, 60, -1) == ["minute", "second"]
    assert Monthly(-1, "00:00").day == -1
    for day in (0, 32, -2, "1"):
        assert problems(Monthly, day, "00:00") == ["day"]


@pytest.mark.parametrize("text", ["", "* * * *", "* * * * * *", "@daily", 7, "0 0 * * $", "0 0 * * 1;2", "0 0 * * é"])
def test_what_does_not_even_look_like_cron(text: Any) -> None:
    assert problems(Cron, text) == ["expression"]


def test_cron_is_the_same_whatever_its_spaces() -> None:
    assert Cron(" 0  0 * *\t1 ") == Cron("0 0 * * 1")


def test_patterns_are_told_in_words() -> None:
    told = [
        str(one)
        for one in (Interval(minutes=5), Hourly(7), Daily("02:30"), Weekly(["sunday", "monday"], "08:00"),
                    Monthly(-1, "00:00"), Monthly(3, "00:00"), Cron("0 0 * * 1"))
    ]  # fmt: skip
    assert told == [
        "every 0:05:00", "hourly at :07:00", "daily at 02:30:00", "weekly on monday, sunday at 08:00:00",
        "monthly on the last day at 00:00:00", "monthly on day 3 at 00:00:00", "cron 0 0 * * 1",
    ]  # fmt: skip


# -- schedules ---------------------------------------------------------------------------------------


def test_a_schedule_says_everything_that_is_wrong_at_once() -> None:
    wrong = problems(
        schedule, name="", task_name=7, pattern="daily", kwargs=[1], queue_name="no queue", timezone="Europe / Berlin",
        skipped_times="run", overlap="maybe", catch_up_missed="yes", max_catch_up_runs=0, enabled=1, jitter=-1,
    )  # fmt: skip
    assert sorted(wrong) == sorted(
        ["name", "task_name", "pattern", "kwargs", "queue_name", "timezone", "skipped_times", "overlap",
         "catch_up_missed", "max_catch_up_runs", "enabled", "jitter"]
    )  # fmt: skip


@pytest.mark.parametrize("jitter", [86_401, timedelta(days=2), float("nan"), 1e300, "5", True, None])
def test_what_is_not_a_jitter(jitter: Any) -> None:
    assert problems(schedule, jitter=jitter) == ["jitter"]


@pytest.mark.parametrize("name", ["x" * 256, "two\nlines", "\x1b[31mred", "nul\0"])
def test_names_that_nobody_could_read(name: str) -> None:
    assert problems(schedule, name=name) == ["name"]


@pytest.mark.parametrize("zone", ["/etc/passwd", "../UTC", "Europe/", "", 5])
def test_names_that_no_zone_has(zone: Any) -> None:
    assert problems(schedule, timezone=zone) == ["timezone"]


def test_plain_words_become_what_they_mean() -> None:
    made = schedule(overlap="skip", skipped_times="skip", jitter=1.5)
    assert made.overlap is Overlap.SKIP
    assert made.skipped_times is SkippedTime.SKIP
    assert made.max_jitter == timedelta(seconds=1.5)


def test_arguments_are_copied() -> None:
    given = {"day": 1}
    made = schedule(kwargs=given)
    given["day"] = 2
    assert made.kwargs == {"day": 1}


def test_the_hash_is_of_what_decides_when() -> None:
    base = schedule().config_hash
    assert len(base) == 64
    same = [schedule(kwargs={"a": 1}), schedule(task_name="other"), schedule(name="b"), schedule(overlap="skip"),
            schedule(jitter=5), schedule(catch_up_missed=True, max_catch_up_runs=2), schedule(queue_name="mail"),
            schedule(pattern=Daily("2:30"))]  # fmt: skip
    assert {one.config_hash for one in same} == {base}
    others = [schedule(pattern=Daily("02:31")), schedule(timezone="Europe/Berlin"), schedule(enabled=False),
              schedule(skipped_times="skip"), schedule(pattern=Cron("30 2 * * *")), schedule(pattern=Hourly(30)),
              schedule(pattern=Weekly("monday", "02:30")), schedule(pattern=Weekly("friday", "02:30"))]  # fmt: skip
    assert len({one.config_hash for one in others} | {base}) == len(others) + 1
    # stored in a row, compared by another release: it may never change by itself
    assert base == "b1384e50e9f557bfa4185a37c03796c8e73556fc28cf9df2c63e1d686ed01b43"


def test_an_app_has_schedules_of_different_names() -> None:
    assert problems(ScheduleConfig, [schedule(), schedule(), "nightly"]) == ["schedules[1]", "schedules[2]"]
    for wrong in ("nightly", {"nightly": schedule()}, 5):
        assert problems(ScheduleConfig, wrong) == ["schedules"]
    config = ScheduleConfig(one for one in [schedule()])  # type: ignore[arg-type]
    assert config.schedules == (schedule(),)
    assert AppConfig(PostgresConfig("dbname=x")).schedule.schedules == ()
    assert problems(AppConfig, PostgresConfig("dbname=x"), schedule=[schedule()]) == ["schedule"]


# -- ids ---------------------------------------------------------------------------------------------

NOON = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def test_a_derived_id_is_the_same_for_the_same_and_another_for_anything_else() -> None:
    one = derived_id(NOON, "schedule", "nightly")
    assert id_problem(one) is None
    assert one[14] == "7"
    assert one == derived_id(NOON.astimezone(tz=None), "schedule", "nightly")
    others = [derived_id(NOON + timedelta(microseconds=1), "schedule", "nightly"), derived_id(NOON, "schedule", "n"),
              derived_id(NOON, "run-now", "nightly"), derived_id(NOON, "schedulen", "ightly")]  # fmt: skip
    assert len({one, *others}) == 5
    # frozen: another release must give a slot the same id
    assert one == "01a1e43a-7a00-7566-b1bd-05b4da5c2a3d"


def test_derived_ids_sort_by_time() -> None:
    ids = [derived_id(NOON + timedelta(seconds=n), "schedule", str(n % 3)) for n in range(500)]
    assert ids == sorted(ids)
    assert len(set(ids)) == 500
