"""What becomes of a schedule that is due, decided without a database."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from horsies import AppConfig, Daily, Horsies, Interval, PostgresConfig, ScheduleConfig, TaskSchedule
from horsies.scheduled import ScheduledTask, settle_schedules
from horsies_worker.scheduler.local_times import cron_problem
from horsies_worker.scheduler.next_run import slots_of
from horsies_worker.scheduler.slots import DueRow, KnownRow, PlanReason, Why, move, plan_row
from tests.support.apps import add_task

NOW = datetime(2026, 11, 16, 12, 0, 0, 250_000, tzinfo=UTC)
NOON = NOW.replace(microsecond=0)
HOUR = timedelta(hours=1)
MINUTE = timedelta(minutes=1)


def settled(**fields: Any) -> ScheduledTask:
    given = {"name": "s", "task_name": "add", "pattern": Interval(hours=1), "kwargs": {"a": 1}, **fields}
    app = Horsies(AppConfig(PostgresConfig("dbname=x"), schedule=ScheduleConfig([TaskSchedule(**given)])))
    add_task(app)
    return settle_schedules(app, cron_problem)[0]


def due(next_run_at: datetime | None = NOON, **fields: Any) -> DueRow:
    given = {"is_ours": True, "is_paused": False, "run_requested_at": None, "is_previous_live": False, **fields}
    return DueRow("s", next_run_at, **given)


def moved(task: ScheduledTask, row: DueRow, now: datetime = NOW) -> Any:
    return move(task, slots_of(task.schedule), row, now)


def test_one_slot_one_task() -> None:
    task = settled()
    made = moved(task, due())
    (fire,) = made.fires
    assert (fire.slot, fire.task_id, fire.not_before) == (NOON, task.id_of(NOON), NOON)
    assert (made.was, made.next_run_at, made.passed, made.is_request_fulfilled) == (NOON, NOON + HOUR, None, False)


def test_missed_slots_without_catching_up_are_the_latest_one() -> None:
    made = moved(settled(), due(NOON - 3 * HOUR))
    assert [fire.slot for fire in made.fires] == [NOON]
    assert (made.passed.why, made.passed.first, made.passed.until) == (Why.MISSED, NOON - 3 * HOUR, NOON)
    assert made.next_run_at == NOON + HOUR


@pytest.mark.parametrize(("bound", "ran"), [(1, 1), (2, 2), (4, 4), (9, 4)])
def test_missed_slots_with_catching_up_are_the_latest_ones_oldest_first(bound: int, ran: int) -> None:
    made = moved(settled(catch_up_missed=True, max_catch_up_runs=bound), due(NOON - 3 * HOUR))
    assert [fire.slot for fire in made.fires] == [NOON - n * HOUR for n in range(ran - 1, -1, -1)]
    assert [fire.task_id for fire in made.fires] == sorted(fire.task_id for fire in made.fires)
    assert (made.passed is None) == (ran == 4)


def test_a_paused_schedule_lets_its_slots_pass() -> None:
    made = moved(settled(), due(NOON - HOUR, is_paused=True))
    assert (made.fires, made.next_run_at, made.passed.why) == ((), NOON + HOUR, Why.PAUSED)


def test_where_two_must_not_run_the_slot_passes() -> None:
    made = moved(settled(overlap="skip"), due(is_previous_live=True))
    assert (made.fires, made.next_run_at, made.passed.why) == ((), NOON + HOUR, Why.OVERLAP)
    assert len(moved(settled(overlap="skip"), due()).fires) == 1
    assert len(moved(settled(overlap="allow"), due(is_previous_live=True)).fires) == 1


def test_where_two_must_not_run_catching_up_is_one_run() -> None:
    task = settled(overlap="skip", catch_up_missed=True)
    assert [fire.slot for fire in moved(task, due(NOON - 3 * HOUR)).fires] == [NOON]


def test_a_request_is_a_run_of_its_own() -> None:
    task, asked = settled(), NOW - MINUTE
    for row in (due(NOON + HOUR, run_requested_at=asked), due(None, run_requested_at=asked, is_paused=True)):
        made = moved(task, row)
        assert [fire.task_id for fire in made.fires] == [task.id_of_request(asked)]
        assert made.is_request_fulfilled
        assert made.next_run_at == row.next_run_at
    both = moved(task, due(run_requested_at=asked))
    assert [fire.task_id for fire in both.fires] == [task.id_of(NOON), task.id_of_request(asked)]


def test_a_request_waits_where_two_must_not_run() -> None:
    task = settled(overlap="skip")
    waits = moved(task, due(NOON + HOUR, run_requested_at=NOW, is_previous_live=True))
    assert waits.changes_nothing
    # the slot that is due goes first
    both = moved(task, due(run_requested_at=NOW))
    assert ([fire.slot for fire in both.fires], both.is_request_fulfilled) == ([NOON], False)


def test_of_a_row_of_another_release_only_the_request_is_ours() -> None:
    made = moved(settled(), due(NOON - HOUR, is_ours=False, run_requested_at=NOW))
    assert (len(made.fires), made.next_run_at, made.is_request_fulfilled) == (1, NOON - HOUR, True)


def test_what_was_promised_is_run() -> None:
    """Somebody set next_run_at by hand, to a moment that is no slot."""
    task = settled(pattern=Daily("03:00"))
    made = moved(task, due(NOON - MINUTE))
    assert [fire.slot for fire in made.fires] == [NOON - MINUTE]
    assert made.next_run_at == NOON.replace(hour=3) + timedelta(days=1)


def test_jitter_delays_a_task_by_its_slots_own_draw() -> None:
    task = settled(jitter=60, catch_up_missed=True, max_catch_up_runs=1_000, pattern=Interval(minutes=1))
    made = moved(task, due(NOON - 999 * MINUTE))
    delays = [(fire.not_before - fire.slot).total_seconds() for fire in made.fires]
    assert len(delays) == 1_000
    assert all(0 <= delay < 60 for delay in delays)
    assert len(set(delays)) > 900
    assert 27 < sum(delays) / 1_000 < 33
    again = moved(settled(jitter=60, pattern=Interval(minutes=1)), due(NOON))
    assert again.fires[0] == made.fires[-1]
    other = moved(settled(jitter=60, name="t", pattern=Interval(minutes=1)), due(NOON))
    assert other.fires[0].not_before != made.fires[-1].not_before


# -- planning ----------------------------------------------------------------------------------------


def known(task: ScheduledTask, **fields: Any) -> KnownRow:
    given: dict[str, Any] = {
        "next_run_at": NOON + HOUR, "last_run_at": None, "config_hash": task.schedule.config_hash,
        "updated_at": NOW - HOUR, **fields,
    }  # fmt: skip
    return KnownRow("s", **given)


def planned(task: ScheduledTask, row: KnownRow | None, *, at_start: bool = True) -> Any:
    return plan_row(task, slots_of(task.schedule), row, NOW, at_start=at_start)


def test_a_new_schedule_begins_with_its_next_slot() -> None:
    made = planned(settled(), None)
    assert (made.reason, made.next_run_at) == (PlanReason.NEW, NOON + HOUR)
    assert planned(settled(enabled=False), None).next_run_at is None


def test_a_row_that_is_as_it_should_be_stays() -> None:
    task = settled()
    assert planned(task, known(task)) is None
    assert planned(task, known(task, next_run_at=NOON - HOUR)) is None  # missed slots are not planned away
    assert planned(task, known(task), at_start=False) is None


def test_another_timing_is_planned_anew_at_the_start() -> None:
    task = settled(pattern=Daily("15:00"))
    made = planned(task, known(task, config_hash="other", next_run_at=NOON - HOUR))
    assert (made.reason, made.next_run_at) == (PlanReason.CHANGED, NOON + 3 * HOUR)
    # never before the last run, wherever the database's clock is now
    made = planned(task, known(task, config_hash="other", last_run_at=NOON + 4 * HOUR))
    assert made.next_run_at == NOON + 27 * HOUR


def test_after_a_clock_that_was_years_ahead_a_request_plans_anew() -> None:
    task = settled()
    years = 3_650 * timedelta(days=1)
    wrong = {"next_run_at": NOON + years + HOUR, "last_run_at": NOON + years}
    assert moved(task, due(**wrong)).changes_nothing
    assert moved(task, due(**wrong, run_requested_at=NOW)).next_run_at == NOON + HOUR
    by_hand = due(None, last_run_at=NOON + years, run_requested_at=NOW)
    assert moved(settled(enabled=False), by_hand).next_run_at is None
    # of another release, whose timing is not known here
    assert moved(task, due(**wrong, run_requested_at=NOW, is_ours=False)).next_run_at == wrong["next_run_at"]


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (Interval(seconds=3600), Interval(hours=1)),
        (Interval(hours=1), Interval(seconds=3600)),
        (Interval(minutes=60), Interval(hours=1)),
        (Interval(hours=36), Interval(days=1, hours=12)),
        (Interval(minutes=1, seconds=30), Interval(seconds=90)),
    ],
)
def test_the_same_interval_in_other_units_keeps_its_slots(before: Interval, now: Interval) -> None:
    old, new = settled(pattern=before), settled(pattern=now)
    missed = known(old, next_run_at=NOON - 3 * HOUR, last_run_at=NOON - 4 * HOUR)
    made = planned(new, missed)
    assert (made.reason, made.next_run_at) == (PlanReason.RESPELT, NOON - 3 * HOUR)
    assert made.config_hash == new.schedule.config_hash
    assert planned(new, missed, at_start=False).reason is PlanReason.ORPHANED
    other = settled(pattern=now, enabled=False)
    assert planned(other, missed).reason is PlanReason.CHANGED


def test_a_running_scheduler_leaves_the_row_to_the_other_release_while_that_serves_it() -> None:
    task = settled()
    served = known(task, config_hash="other", next_run_at=NOW - timedelta(seconds=30))
    assert planned(task, served, at_start=False) is None
    left = known(task, config_hash="other", next_run_at=NOW - timedelta(seconds=90))
    assert planned(task, left, at_start=False).reason is PlanReason.ORPHANED
    disabled = known(task, config_hash="other", next_run_at=None)
    assert planned(task, disabled, at_start=False).reason is PlanReason.ORPHANED
    fresh = known(task, config_hash="other", next_run_at=None, updated_at=NOW)
    assert planned(task, fresh, at_start=False) is None


def test_new_rules_of_a_time_zone_move_the_next_run() -> None:
    task = settled(pattern=Daily("03:00"), timezone="Europe/Berlin")
    stale = known(task, next_run_at=NOON + 20 * HOUR)
    made = planned(task, stale)
    assert (made.reason, made.next_run_at) == (PlanReason.RULES, NOON + 14 * HOUR)
    assert planned(task, stale, at_start=False) is None
