"""Who is suspected, and when: beats that stand still on our own clock, and every reason to begin the watch again."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from horsies_worker.vigil import LOOK_EVERY_S, Instance, Vigil

START = datetime(2026, 1, 1, tzinfo=UTC)
ONE = Instance("one", 1, 5_000, 7, None, START)
SOURCE = "this connection"


def watch(vigil: Vigil, instance: Instance, begin: float, end: float) -> float | None:
    """Look as the judge does; when the instance is first suspected, or None."""
    now = begin
    while now <= end:
        if vigil.look(now, SOURCE, [instance]):
            return now
        now += vigil.next_look([instance])
    return None


def seen_beating() -> Vigil:
    vigil = Vigil()
    vigil.look(0, SOURCE, [replace(ONE, beats=6)])
    vigil.look(1, SOURCE, [ONE])
    return vigil


def test_three_missed_periods_make_a_suspect_exactly_then() -> None:
    assert watch(seen_beating(), ONE, 2, 60) == pytest.approx(16, abs=0.05)


def test_who_beats_is_never_suspected() -> None:
    vigil = Vigil()
    for step in range(200):
        assert vigil.look(step, SOURCE, [replace(ONE, beats=step // 10)]) == []


def test_one_that_was_never_seen_to_beat_is_given_five_periods() -> None:
    assert watch(Vigil(), ONE, 100, 200) == pytest.approx(125, abs=0.05)


def test_one_that_came_while_we_watched_is_given_three() -> None:
    vigil = Vigil()
    vigil.look(0, SOURCE, [])
    assert watch(vigil, ONE, 1, 60) == pytest.approx(16, abs=0.05)


@pytest.mark.parametrize("harm", ["another source", "a late look"])
def test_the_watch_begins_again_after(harm: str) -> None:
    vigil = seen_beating()
    assert watch(vigil, ONE, 2, 14) is None
    now = 15.5 if harm == "another source" else 15.5 + 2 * LOOK_EVERY_S
    assert vigil.look(now, "another" if harm == "another source" else SOURCE, [ONE]) == []
    if harm == "another source":
        assert vigil.look(now + 1, "another", [ONE]) == []
        assert vigil.look(now + 2, SOURCE, [ONE]) == []
        now += 2
    assert watch(vigil, ONE, now + 1, 200) == pytest.approx(now + 25, abs=0.05)


def test_a_suspect_that_is_let_live_does_not_make_us_look_all_the_time() -> None:
    vigil = seen_beating()
    assert watch(vigil, ONE, 2, 60) is not None
    assert vigil.next_look([ONE]) == LOOK_EVERY_S


def test_who_left_is_forgotten() -> None:
    vigil = seen_beating()
    vigil.look(2, SOURCE, [])
    assert watch(vigil, ONE, 3, 60) == pytest.approx(18, abs=0.05)
