"""Who is suspected, and when: beats that stand still on our own clock, and every reason to begin the watch again."""

from dataclasses import replace
from datetime import UTC, datetime

import pytest

from horsies_worker.liveness.missed_beats import CHECK_EVERY_S, Instance, MissedBeats

START = datetime(2026, 1, 1, tzinfo=UTC)
ONE = Instance("one", 1, 5_000, 7, None, START)
SOURCE = "this connection"


def watch(missed: MissedBeats, instance: Instance, begin: float, end: float) -> float | None:
    """When the instance is first suspected by regular checks, or None."""
    now = begin
    while now <= end:
        if missed.suspects(now, SOURCE, [instance]):
            return now
        now += missed.next_check_s([instance])
    return None


def seen_beating() -> MissedBeats:
    missed = MissedBeats()
    missed.suspects(0, SOURCE, [replace(ONE, beats=6)])
    missed.suspects(1, SOURCE, [ONE])
    return missed


def test_three_missed_periods_make_a_suspect_exactly_then() -> None:
    assert watch(seen_beating(), ONE, 2, 60) == pytest.approx(16, abs=0.05)


def test_who_beats_is_never_suspected() -> None:
    missed = MissedBeats()
    for step in range(200):
        assert missed.suspects(step, SOURCE, [replace(ONE, beats=step // 10)]) == []


def test_one_that_was_never_seen_to_beat_is_given_five_periods() -> None:
    assert watch(MissedBeats(), ONE, 100, 200) == pytest.approx(125, abs=0.05)


def test_one_that_came_while_we_watched_is_given_three() -> None:
    missed = MissedBeats()
    missed.suspects(0, SOURCE, [])
    assert watch(missed, ONE, 1, 60) == pytest.approx(16, abs=0.05)


@pytest.mark.parametrize("harm", ["another source", "a late look"])
def test_the_watch_begins_again_after(harm: str) -> None:
    missed = seen_beating()
    assert watch(missed, ONE, 2, 14) is None
    now = 15.5 if harm == "another source" else 15.5 + 2 * CHECK_EVERY_S
    assert missed.suspects(now, "another" if harm == "another source" else SOURCE, [ONE]) == []
    if harm == "another source":
        assert missed.suspects(now + 1, "another", [ONE]) == []
        assert missed.suspects(now + 2, SOURCE, [ONE]) == []
        now += 2
    assert watch(missed, ONE, now + 1, 200) == pytest.approx(now + 25, abs=0.05)


def test_a_suspect_that_is_let_live_does_not_make_us_look_all_the_time() -> None:
    missed = seen_beating()
    assert watch(missed, ONE, 2, 60) is not None
    assert missed.next_check_s([ONE]) == CHECK_EVERY_S


def test_who_left_is_forgotten() -> None:
    missed = seen_beating()
    missed.suspects(2, SOURCE, [])
    assert watch(missed, ONE, 3, 60) == pytest.approx(18, abs=0.05)
