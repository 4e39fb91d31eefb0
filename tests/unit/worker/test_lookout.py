"""When a claim looks everywhere, and when at the last places only."""

from datetime import UTC, datetime
from typing import Any

import pytest

from horsies_worker.lookout import EVERY_S, ROW_S, SHARE, SLOW_S, Lookout
from horsies_worker.queries import Hint

OLD, NEW = datetime(2024, 1, 1, tzinfo=UTC), datetime(2024, 1, 2, tzinfo=UTC)


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def rows(*pairs: tuple[str, int], since: datetime = OLD) -> list[dict[str, Any]]:
    return [{"queue_name": queue, "priority": priority, "since": since} for queue, priority in pairs]


def lookout(clock: Clock, *, took_s: float = 0.001) -> Lookout:
    """One that has found work in two pairs, by a discovery that took so long."""
    made = Lookout(clock)
    assert made.looks_everywhere()
    assert made.saw(rows(("mail", 1), ("mail", 1), ("video", 5)), everywhere=True, took_s=took_s) == 2
    return made


def test_the_first_look_is_everywhere_and_the_next_by_its_hints() -> None:
    made = lookout(Clock())
    assert not made.looks_everywhere()
    assert set(made.hints) == {Hint("mail", 1, OLD), Hint("video", 5, OLD)}


def test_a_hinted_look_moves_its_hints_on() -> None:
    made = lookout(Clock())
    made.saw(rows(("mail", 1), since=NEW), everywhere=False, took_s=0.001)
    assert set(made.hints) == {Hint("mail", 1, NEW), Hint("video", 5, OLD)}


def test_news_are_looked_for_everywhere_once() -> None:
    made = lookout(Clock())
    made.news()
    assert made.looks_everywhere()
    assert not made.looks_everywhere()


def test_everything_is_looked_at_every_second_anyway() -> None:
    clock = Clock()
    made = lookout(clock)
    clock.now += EVERY_S
    assert made.looks_everywhere()


def test_a_discovery_that_found_nothing_leaves_no_hint() -> None:
    made = lookout(Clock())
    made.saw([], everywhere=True, took_s=0.001)
    assert made.hints == ()
    assert made.looks_everywhere()


def test_a_slow_discovery_is_made_for_a_twentieth_of_the_time() -> None:
    clock = Clock()
    made = lookout(clock, took_s=0.2)
    rest = SHARE * (0.2 - 3 * ROW_S)
    made.news()
    assert not made.looks_everywhere()
    assert made.has_news
    assert made.wait_s() == pytest.approx(rest)
    clock.now += rest - 0.001
    assert not made.looks_everywhere()
    clock.now += 0.002
    assert made.wait_s() is None
    assert made.looks_everywhere()


def test_hints_outlive_a_slow_discovery_that_found_nothing() -> None:
    """Or the next task would cost another one."""
    made = lookout(Clock())
    made.saw([], everywhere=True, took_s=0.2)
    assert len(made.hints) == 2
    made.news()
    assert not made.looks_everywhere()


def test_without_hints_there_is_nothing_to_wait_with() -> None:
    made = Lookout(Clock())
    made.saw([], everywhere=True, took_s=5)
    assert made.wait_s() is None
    assert made.looks_everywhere()


def test_many_rows_take_their_time_and_are_not_called_slow() -> None:
    made = Lookout(Clock())
    made.saw(rows(*[("mail", 1)] * 500), everywhere=True, took_s=SLOW_S + 499 * ROW_S)
    made.news()
    assert made.looks_everywhere()


def test_what_is_forgotten_is_looked_for_everywhere() -> None:
    made = lookout(Clock(), took_s=0.2)
    made.forget()
    assert made.hints == ()
    assert made.looks_everywhere()
