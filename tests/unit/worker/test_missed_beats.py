"""Who is suspected, and when: beats that stand still on our own clock, and every reason to begin the watch again."""

import pytest

from horsies_worker.liveness.missed_beats import LATE_S, Instance, MissedBeats

CHECK_EVERY_S = 6.0
ONE = Instance("one", 1, 5_000, 7, is_judged_dead=False, beat_age_s=0.0, server_start=1.0)
SOURCE = "this connection"


def watch(missed: MissedBeats, instance: Instance, begin: float, end: float) -> float | None:
    """When the instance is first suspected by regular checks, or None."""
    now = begin
    while now <= end:
        if missed.suspects(now, SOURCE, [instance]):
            return now
        now += missed.next_check_s([instance])
    return None


def watching() -> MissedBeats:
    return MissedBeats(CHECK_EVERY_S)


def seen_beating(beat_age_s: float = 0.0) -> MissedBeats:
    """Last checked at 5."""
    missed = watching()
    missed.suspects(0, SOURCE, [ONE._replace(beats=6)])
    missed.suspects(5, SOURCE, [ONE._replace(beat_age_s=beat_age_s)])
    return missed


def test_three_missed_periods_make_a_suspect_exactly_then() -> None:
    assert watch(seen_beating(), ONE, 7, 60) == pytest.approx(20, abs=0.05)


def test_the_periods_count_from_the_beat_not_from_the_check_that_found_it() -> None:
    assert watch(seen_beating(beat_age_s=4), ONE, 7, 60) == pytest.approx(16, abs=0.05)


@pytest.mark.parametrize(("beat_age_s", "suspected_at"), [(-3_600.0, 20), (3_600.0, 15)])
def test_a_clock_that_jumped_moves_a_beat_by_one_check_at_most(beat_age_s: float, suspected_at: float) -> None:
    assert watch(seen_beating(beat_age_s), ONE, 7, 60) == pytest.approx(suspected_at, abs=0.05)


def test_who_beats_is_never_suspected() -> None:
    missed = watching()
    for step in range(200):
        assert missed.suspects(step, SOURCE, [ONE._replace(beats=step // 10, beat_age_s=step % 10)]) == []


def test_one_that_was_never_seen_to_beat_is_given_five_periods() -> None:
    assert watch(watching(), ONE._replace(beat_age_s=100), 100, 200) == pytest.approx(125, abs=0.05)


def test_one_that_came_while_we_watched_is_given_three() -> None:
    missed = watching()
    missed.suspects(0, SOURCE, [])
    assert watch(missed, ONE, 1, 60) == pytest.approx(16, abs=0.05)


@pytest.mark.parametrize("harm", ["another source", "a late look"])
def test_the_watch_begins_again_after(harm: str) -> None:
    missed = seen_beating()
    assert watch(missed, ONE, 7, 14) is None
    planned = missed.next_check_s([ONE])
    now = 18.5 if harm == "another source" else 13 + planned + LATE_S + 0.1
    assert missed.suspects(now, "another" if harm == "another source" else SOURCE, [ONE]) == []
    if harm == "another source":
        assert missed.suspects(now + 1, "another", [ONE]) == []
        assert missed.suspects(now + 2, SOURCE, [ONE]) == []
        now += 2
    assert watch(missed, ONE, now + 1, 200) == pytest.approx(now + 25, abs=0.05)


def test_a_suspect_that_is_let_live_does_not_make_us_look_all_the_time() -> None:
    missed = seen_beating()
    assert watch(missed, ONE, 7, 60) is not None
    assert missed.next_check_s([ONE]) == CHECK_EVERY_S


def test_who_left_is_forgotten() -> None:
    missed = seen_beating()
    missed.suspects(7, SOURCE, [])
    assert watch(missed, ONE, 8, 60) == pytest.approx(23, abs=0.05)
