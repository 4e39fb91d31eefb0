"""When each pattern runs: a table of clocks and calendars, and what a change of the clock makes of them."""

from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import Any

import pytest

from horsies import Cron, Daily, Hourly, Interval, Monthly, TaskSchedule, Weekly
from horsies.schedule import Pattern
from horsies_worker.scheduler.local_times import cron_problem
from horsies_worker.scheduler.next_run import latest, slots_of


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def slots(pattern: Pattern, zone: str = "UTC", **fields: Any) -> Any:
    return slots_of(TaskSchedule("s", "t", pattern, timezone=zone, **fields))


def following(walker: Any, instant: str, count: int) -> list[str]:
    found: list[str] = []
    now = at(instant)
    for _ in range(count):
        slot = walker.after(now)
        assert slot is not None
        assert slot > now
        found.append(slot.strftime("%Y-%m-%d %H:%M:%S").removesuffix(":00"))
        now = slot
    return found


# -- patterns ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "since", "expected"),
    [
        (Interval(seconds=90), "2026-01-01 00:00:00", ["2026-01-01 00:01:30", "2026-01-01 00:03"]),
        (Interval(minutes=15), "2026-01-01 00:07:12.5", ["2026-01-01 00:15", "2026-01-01 00:30"]),
        # weeks since the epoch begin on a Thursday; who wants Mondays says Weekly
        (Interval(days=7), "2026-01-02 12:00", ["2026-01-08 00:00", "2026-01-15 00:00"]),
        (Hourly(30), "2026-01-01 00:30", ["2026-01-01 01:30", "2026-01-01 02:30"]),
        (Hourly(30, 15), "2026-01-01 00:30:14.999999", ["2026-01-01 00:30:15", "2026-01-01 01:30:15"]),
        (Daily("02:30"), "2026-01-01 02:29:59.9", ["2026-01-01 02:30", "2026-01-02 02:30"]),
        (Daily("00:00"), "2026-12-31 00:00", ["2027-01-01 00:00", "2027-01-02 00:00"]),
        (Weekly(["monday", "friday"], "08:00"), "2026-11-16 08:00", ["2026-11-20 08:00", "2026-11-23 08:00"]),
        (Monthly(31, "12:00"), "2026-01-31 12:00", ["2026-03-31 12:00", "2026-05-31 12:00", "2026-07-31 12:00"]),
        (Monthly(-1, "12:00"), "2028-01-31 12:00", ["2028-02-29 12:00", "2028-03-31 12:00"]),
        (Monthly(29, "00:00"), "2026-02-01 00:00", ["2026-03-29 00:00", "2026-04-29 00:00"]),
        (Cron("*/20 9-10 * * *"), "2026-01-01 09:50", ["2026-01-01 10:00", "2026-01-01 10:20", "2026-01-01 10:40"]),
        (Cron("0 0 29 2 *"), "2026-01-01 00:00", ["2028-02-29 00:00", "2032-02-29 00:00"]),
        (Cron("0 12 13 * fri"), "2026-11-12 13:00", ["2026-11-13 12:00", "2026-11-20 12:00"]),  # either day
        (Cron("0 0 l * *"), "2026-02-01 00:00", ["2026-02-28 00:00", "2026-03-31 00:00"]),
        (Cron("0 0 * * mon#1"), "2026-11-16 00:00", ["2026-12-07 00:00", "2027-01-04 00:00"]),
    ],
)
def test_the_table(pattern: Pattern, since: str, expected: list[str]) -> None:
    walker = slots(pattern)
    assert following(walker, since, len(expected)) == expected
    # and back again: the walk to the past meets the same slots
    last = walker.after(at(since))
    for _ in expected[1:]:
        last = walker.after(last)
    back = [
        slot.strftime("%Y-%m-%d %H:%M:%S").removesuffix(":00") for slot in islice(walker.until(last), len(expected))
    ]
    assert back == expected[::-1]
    assert next(walker.until(last - timedelta(microseconds=1)), last) != last


def test_weeks_and_years_beyond_2038() -> None:
    assert following(slots(Daily("09:00"), "America/New_York"), "2060-07-01 00:00", 1) == ["2060-07-01 13:00"]
    assert following(slots(Daily("09:00"), "America/New_York"), "2060-01-01 00:00", 1) == ["2060-01-01 14:00"]


# -- changes of the clock ----------------------------------------------------------------------------

BERLIN_FORWARD = "2026-03-28 12:00"  # on the 29th 02:00 -> 03:00, at 01:00 UTC
BERLIN_BACK = "2026-10-24 12:00"  # on the 25th 03:00 -> 02:00, at 01:00 UTC


@pytest.mark.parametrize(
    "pattern", [Daily("02:30"), Cron("30 2 * * *"), Weekly("sunday", "02:30"), Monthly(29, "02:30")]
)
def test_a_skipped_time_runs_when_the_clock_jumps_or_not_at_all(pattern: Pattern) -> None:
    fires, skips = (slots(pattern, "Europe/Berlin", skipped_times=word) for word in ("fire", "skip"))
    assert following(fires, BERLIN_FORWARD, 1) == ["2026-03-29 01:00"]
    assert "2026-03-29" not in following(skips, BERLIN_FORWARD, 1)[0]
    assert following(fires, "2026-03-29 01:00", 1) == following(skips, "2026-03-29 01:00", 1)


@pytest.mark.parametrize(
    "pattern", [Daily("02:30"), Cron("30 2 * * *"), Weekly("sunday", "02:30"), Monthly(25, "02:30")]
)
def test_a_time_that_comes_twice_runs_the_first_time(pattern: Pattern) -> None:
    walker = slots(pattern, "Europe/Berlin")
    first, second = following(walker, BERLIN_BACK, 2)
    assert first == "2026-10-25 00:30"
    assert not second.startswith("2026-10-25")
    # asked in the repeated hour, before and after its own time
    for moment in ("2026-10-25 01:10", "2026-10-25 01:30", "2026-10-25 01:50"):
        assert following(walker, moment, 1) == [second]
        assert next(walker.until(at(moment))) == at("2026-10-25 00:30")


def test_several_skipped_times_are_one_run() -> None:
    """02:00, 02:20 and 02:40 do not exist, 03:00 does: all are the instant of the jump."""
    walker = slots(Cron("*/20 * * * *"), "Europe/Berlin")
    expected = ["2026-03-29 00:20", "2026-03-29 00:40", "2026-03-29 01:00", "2026-03-29 01:20"]
    assert following(walker, "2026-03-29 00:00", 4) == expected


def test_by_the_hour_the_repeated_hour_is_silent() -> None:
    walker = slots(Hourly(15), "Europe/Berlin")
    expected = ["2026-10-24 23:15", "2026-10-25 00:15", "2026-10-25 02:15", "2026-10-25 03:15"]
    assert following(walker, "2026-10-24 23:00", 4) == expected
    # by elapsed time nothing is silent
    assert following(slots(Interval(hours=1), "Europe/Berlin"), "2026-10-25 00:15", 2) == [
        "2026-10-25 01:00", "2026-10-25 02:00",
    ]  # fmt: skip


def test_half_an_hour_and_two_hours() -> None:
    lord_howe = slots(
        Daily("02:15"), "Australia/Lord_Howe"
    )  # 2026-10-04: 02:00 -> 02:30 local, 15:30 UTC the day before
    assert following(lord_howe, "2026-10-03 00:00", 1) == ["2026-10-03 15:30"]
    troll = slots(Daily("02:30"), "Antarctica/Troll")  # 01:00 -> 03:00 local at 01:00 UTC
    assert following(troll, BERLIN_FORWARD, 1) == ["2026-03-29 01:00"]


# -- missed slots ------------------------------------------------------------------------------------


def test_the_latest_slots_of_a_span() -> None:
    walker = slots(Interval(hours=1))
    first, now = at("2026-01-01 01:00"), at("2026-01-01 04:00:07")
    assert latest(walker, first, now, 2) == [at("2026-01-01 03:00"), at("2026-01-01 04:00")]
    assert latest(walker, first, now, 9) == [at(f"2026-01-01 0{hour}:00") for hour in (1, 2, 3, 4)]
    assert latest(walker, at("2026-01-01 04:00:01"), now, 9) == []


# -- cron --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("60 * * * *", "bad minute"), ("* 24 * * *", "bad hour"), ("* * 0 * *", "bad day-of-month"),
        ("* * * 13 *", "bad month"), ("* * * * 8", "bad day-of-week"), ("* * 30 2 *", "bad day-of-month"),
        ("*/0 * * * *", "bad minute"), ("5-1 * * * *", "bad minute"), ("* * * * mon#6", "bad day-of-week"),
        ("L * * * *", "bad minute"), ("* * * * 1#2/3", "bad day-of-week"), ("* * * * L/2", "bad day-of-week"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_cron_string(text: str, why: str) -> None:
    told = cron_problem(text)
    assert told is not None
    assert why in told


@pytest.mark.parametrize("text", ["* * * * *", "0 0 29 2 *", "*/5 9-17 * * mon-fri", "0 0 lw * *", "0 0 * jan,dec 5l"])
def test_what_is_not(text: str) -> None:
    assert cron_problem(text) is None
