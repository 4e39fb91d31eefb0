# pyright: strict
"""Schedules as users write them: what a checker accepts, and what it must not."""

from collections.abc import Sequence
from datetime import time, timedelta
from typing import assert_type

from horsies import (
    AppConfig,
    Cron,
    Daily,
    Horsies,
    Hourly,
    Interval,
    Monthly,
    Overlap,
    PostgresConfig,
    ScheduleConfig,
    ScheduleInfo,
    ScheduleRun,
    SkippedTime,
    StoredSchedule,
    TaskSchedule,
    Weekday,
    Weekly,
)

good = [
    TaskSchedule("a", "t", Interval(minutes=5), kwargs={"n": 1}, jitter=timedelta(seconds=5)),
    TaskSchedule("b", "t", Hourly(15), overlap="skip", skipped_times="skip", jitter=2.5),
    TaskSchedule("c", "t", Daily(time(2, 30)), overlap=Overlap.SKIP, skipped_times=SkippedTime.FIRE),
    TaskSchedule(name="d", task_name="t", pattern=Weekly(["monday", Weekday.FRIDAY], "08:00"), timezone="Asia/Tokyo"),
    TaskSchedule("e", "t", Monthly(-1, "23:00"), catch_up_missed=True, max_catch_up_runs=2, enabled=False),
    TaskSchedule("f", "t", Cron("0 0 * * *"), queue_name="mail"),
]
app = Horsies(AppConfig(PostgresConfig("dbname=x"), schedule=ScheduleConfig(good)))

TaskSchedule("g", "t", "daily")  # type: ignore[arg-type]
TaskSchedule("h", "t", Hourly(), overlap="maybe")  # type: ignore[arg-type]
Interval(15)  # type: ignore[call-arg]


async def look() -> None:
    assert_type(await app.get_broker().get_schedules(), list[ScheduleInfo])
    assert_type(await app.get_broker().run_schedule_now("a"), bool)
    assert_type(await app.get_broker().schedules.put(good[0]), StoredSchedule)
    assert_type(await app.schedules.put_async(good[0], version=3), StoredSchedule)
    assert_type(await app.schedules.history_async("a"), Sequence[ScheduleRun])


def make() -> None:
    assert_type(app.schedules.put(good[0]), StoredSchedule)
    assert_type(app.schedules.put_many(good), int)
    assert_type(app.schedules.get("a"), StoredSchedule | None)
    assert_type(app.schedules.list(kind="data"), Sequence[ScheduleInfo])
    assert_type(app.schedules.history("a"), Sequence[ScheduleRun])
    assert_type(app.schedules.delete("a"), bool)
    app.schedules.put("a")  # type: ignore[arg-type]
    app.schedules.list(kind="both")  # type: ignore[arg-type]
