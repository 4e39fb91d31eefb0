"""Runs and schedules that another session holds: when each is tried again, and when the log tells of it. Pure."""

import pytest

from horsies_worker.scheduler.blocked import MAX_APART_S as MAX_SLOT_S, MIN_APART_S as MIN_SLOT_S, BlockedSchedules
from horsies_worker.workflows.locked import LOCK_WAIT_MS, MAX_APART_S, MIN_APART_S, RETRY_WAIT_MS, LockedRuns
from horsies_worker.workflows.work import Work


def test_the_more_runs_are_locked_the_shorter_is_the_wait_for_another_one() -> None:
    runs = LockedRuns()
    waited = 0
    for number in range(1_000):
        waited += runs.lock_wait_ms
        runs.hold(str(number), Work(), 0.0)
    assert waited <= 2 * LOCK_WAIT_MS + 1_000 * RETRY_WAIT_MS


def test_a_run_that_stays_locked_is_looked_at_less_and_less_often() -> None:
    runs = LockedRuns()
    runs.hold("a", Work(signals=True), 0.0)
    now, looks = 0.0, list[float]()
    while now < 3:
        assert runs.due(now) == []
        looks.append(runs.next_s(now))
        now += looks[-1]
        assert runs.due(now) == ["a"]
        runs.still_locked(["a"], now)
    assert looks[0] == pytest.approx(MIN_APART_S)
    assert max(looks) == pytest.approx(MAX_APART_S)
    assert looks == sorted(looks, key=lambda look: round(look, 6))


def test_no_work_of_a_locked_run_is_lost() -> None:
    runs = LockedRuns()
    runs.hold("a", Work(task_ids=["1"]), 0.0)
    runs.add("a", Work(signals=True))
    work = runs.take_work("a")
    assert work == Work(task_ids=["1"], signals=True)
    runs.add("a", Work(task_ids=["2"]))  # while it is being stepped
    runs.hold("a", work, 1.0)  # which finds it locked again
    assert runs.take_work("a") == Work(task_ids=["2", "1"], signals=True)
    assert runs.release("a") == Work()
    assert "a" not in runs
    assert runs.next_s(2.0) == float("inf")


def test_a_run_that_was_tried_goes_behind_the_others() -> None:
    runs = LockedRuns()
    for name in "abc":
        runs.hold(name, Work(), 0.0)
    runs.hold("a", runs.take_work("a"), 1.0)
    assert runs.due(2.0) == ["b", "c", "a"]


def test_a_long_wait_is_told_once_a_minute() -> None:
    runs = LockedRuns()
    runs.hold("a", Work(), 0.0)
    told = [now for now in range(130) if runs.to_tell(float(now))]
    assert told == [5, 65, 125]
    runs.release("a")
    runs.hold("a", Work(), 200.0)
    assert runs.to_tell(204.0) == [], "a new wait"


def test_a_schedule_is_tried_again_less_and_less_often() -> None:
    blocked = BlockedSchedules()
    now, waits = 0.0, list[float]()
    for _ in range(8):
        blocked.hold("s", 3, now)
        assert blocked.waiting(now) == {"s": 3}
        waits.append(blocked.next_s(now))
        now += waits[-1]
        assert (blocked.waiting(now), blocked.due(now)) == ({}, ["s"])
    assert (min(waits), max(waits)) == (MIN_SLOT_S, MAX_SLOT_S)
    assert blocked.release("s", now + 1) == pytest.approx(now + 1)
    assert not blocked


def test_a_schedule_that_was_not_tried_when_it_was_due_is_forgotten() -> None:
    blocked = BlockedSchedules()
    for name in "ab":
        blocked.hold(name, None, 0.0)
    due = blocked.due(5.0)
    blocked.hold("b", None, 5.1)
    blocked.forget_untried(due, 5.0)
    assert blocked.waiting(5.2) == {"b": None}
    assert blocked.due(100.0) == ["b"]
