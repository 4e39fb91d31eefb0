"""When a claim looks everywhere, and when at the last places only."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from horsies_worker.lookout import EVERY_S, LATE_S, QUICK_S, ROW_S, SHARE, SLOW_S, Look, Lookout
from horsies_worker.queries import Hint

OLD, NEW = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def rows(*pairs: tuple[str, int], since: datetime = OLD) -> list[dict[str, Any]]:
    return [{"queue_name": queue, "priority": priority, "since": since} for queue, priority in pairs]


def seasoned(clock: Clock) -> Lookout:
    """One whose first look is over."""
    made = Lookout(clock)
    made.saw([], made.next_look(), took_s=0.001)
    return made


def lookout(clock: Clock, *, took_s: float = 0.001) -> Lookout:
    """One that has found work in two pairs, by a discovery that took so long."""
    made = seasoned(clock)
    assert made.next_look() is Look.FULL
    assert made.saw(rows(("mail", 1), ("mail", 1), ("video", 5)), Look.FULL, took_s=took_s) == 2
    return made


def test_the_first_look_is_everywhere_and_the_next_by_its_hints() -> None:
    made = lookout(Clock())
    assert made.next_look() is Look.HINTS
    assert set(made.hints) == {Hint("mail", 1, OLD), Hint("video", 5, OLD)}


def test_a_hinted_look_moves_its_hints_on() -> None:
    made = lookout(Clock())
    made.saw(rows(("mail", 1), since=NEW), Look.HINTS, took_s=0.001)
    assert set(made.hints) == {Hint("mail", 1, NEW), Hint("video", 5, OLD)}


def test_news_are_looked_for_everywhere_once() -> None:
    made = lookout(Clock())
    made.news()
    assert made.next_look() is Look.FULL
    assert made.next_look() is Look.HINTS


def test_everything_is_looked_at_every_second_anyway() -> None:
    clock = Clock()
    made = lookout(clock)
    clock.now += EVERY_S
    assert made.next_look() is Look.FULL


def test_a_discovery_that_found_nothing_leaves_no_hint() -> None:
    made = lookout(Clock())
    made.saw([], Look.FULL, took_s=0.001)
    assert made.hints == ()
    assert made.next_look() is Look.FULL


def test_a_slow_discovery_is_made_for_a_twentieth_of_the_time() -> None:
    clock = Clock()
    made = lookout(clock, took_s=0.2)
    rest = SHARE * (0.2 - 3 * ROW_S)
    made.news()
    assert made.next_look() is Look.HINTS
    assert made.has_news
    assert made.wait_s() == pytest.approx(rest)
    clock.now += rest - 0.001
    assert made.next_look() is Look.HINTS
    clock.now += 0.002
    assert made.wait_s() is None
    assert made.next_look() is Look.FULL


def test_hints_outlive_a_slow_discovery_that_found_nothing() -> None:
    """Or the next task would cost another one."""
    made = lookout(Clock())
    made.saw([], Look.FULL, took_s=0.2)
    assert len(made.hints) == 2
    made.news()
    assert made.next_look() is Look.HINTS


def test_without_hints_there_is_nothing_to_wait_with() -> None:
    made = seasoned(Clock())
    made.saw([], Look.FULL, took_s=5)
    assert made.wait_s() is None
    assert made.next_look() is Look.FULL


def test_many_rows_take_their_time_and_are_not_called_slow() -> None:
    made = seasoned(Clock())
    made.saw(rows(*[("mail", 1)] * 500), Look.FULL, took_s=SLOW_S + 499 * ROW_S)
    made.news()
    assert made.next_look() is Look.FULL


def test_what_is_forgotten_is_looked_for_everywhere() -> None:
    made = lookout(Clock(), took_s=0.2)
    made.forget()
    assert made.hints == ()
    assert made.next_look() is Look.FULL


# -- the floor -------------------------------------------------------------------------------------


def beside_unknown_names(clock: Clock) -> Lookout:
    """One that has found nothing by a full scan that took long: it walked tasks of names that it does not know."""
    made = seasoned(clock)
    assert made.next_look() is Look.FULL
    made.saw([], Look.FULL, took_s=0.2)
    made.found_nothing(NEW, is_crowded=True)
    return made


def test_after_a_slow_scan_that_found_nothing_the_next_look_begins_at_the_floor() -> None:
    clock = Clock()
    made = beside_unknown_names(clock)
    assert made.floor == NEW - timedelta(seconds=LATE_S)
    assert made.next_look() is Look.FLOOR


def test_a_look_from_the_floor_owes_a_full_scan_within_the_share() -> None:
    clock = Clock()
    made = beside_unknown_names(clock)
    made.news()
    assert made.next_look() is Look.FLOOR
    made.saw([], Look.FLOOR, took_s=0.001)
    assert made.wait_s() == pytest.approx(SHARE * 0.2)
    clock.now += SHARE * 0.2 + 0.001
    made.news()
    assert made.next_look() is Look.FULL
    made.saw([], Look.FULL, took_s=0.2)
    assert made.wait_s() is None  # nothing has come since


def test_news_are_looked_for_from_the_floor_each_time() -> None:
    made = beside_unknown_names(Clock())
    for _ in range(3):
        made.news()
        assert made.next_look() is Look.FLOOR
        made.saw([], Look.FLOOR, took_s=0.001)


def test_slow_looks_from_the_floor_are_bounded_too() -> None:
    """Dead entries at the front of the queue hold up the search for its priorities."""
    clock = Clock()
    made = beside_unknown_names(clock)
    assert made.next_look() is Look.FLOOR
    made.saw([], Look.FLOOR, took_s=0.1)
    made.news()
    assert made.next_look() is Look.HINTS
    assert made.wait_s() == pytest.approx(SHARE * 0.1)
    clock.now += SHARE * 0.1 + 0.001
    assert made.next_look() is Look.FLOOR


def test_the_floor_moves_older_hints_and_no_newer_ones() -> None:
    made = lookout(Clock())
    made.saw(rows(("video", 5), since=NEW), Look.HINTS, took_s=0.001)
    made.found_nothing(NEW, is_crowded=True)
    floor = NEW - timedelta(seconds=LATE_S)
    assert set(made.hints) == {Hint("mail", 1, floor), Hint("video", 5, NEW)}


def test_quick_full_scans_need_no_floor() -> None:
    made = seasoned(Clock())
    for _ in range(3):
        made.news()
        assert made.next_look() is Look.FULL
        made.saw([], Look.FULL, took_s=QUICK_S / 2)
        made.found_nothing(NEW, is_crowded=True)


def test_the_first_look_is_never_called_slow() -> None:
    """It also makes the statement's plan."""
    made = Lookout(Clock())
    made.saw(rows(("mail", 1)), made.next_look(), took_s=0.2)
    made.news()
    assert made.next_look() is Look.FULL


def test_without_a_crowd_a_slow_scan_is_repeated() -> None:
    """The machine was busy; nothing stands in the way of the next one."""
    made = seasoned(Clock())
    made.saw([], Look.FULL, took_s=0.2)
    made.found_nothing(NEW, is_crowded=False)
    assert made.next_look() is Look.FULL


def test_after_an_outage_there_is_no_floor() -> None:
    """The server that answers next may have another clock."""
    made = beside_unknown_names(Clock())
    made.forget()
    assert made.floor is None
    assert made.next_look() is Look.FULL
