"""Forecasts of durations: which names are short, and which end can be foreseen."""

from math import inf

import pytest
from hypothesis import given, strategies as st

from horsies_worker.children.durations import FLOOR_S, LEAD_S, MAX_NAMES, SHORT_S, Durations


def observed(*spans: float, name: str = "t") -> Durations:
    durations = Durations()
    for span in spans:
        durations.observe(name, span)
    return durations


def bounds(durations: Durations, name: str = "t") -> tuple[float, float] | None:
    """The shortest and the longest recent duration of a repeating name."""
    prefetch_after = durations.prefetch_after(name)
    return None if prefetch_after == inf else (pytest.approx(prefetch_after + LEAD_S), durations.longest(name))


# -- short names ---------------------------------------------------------------------------------------------------


def test_an_unknown_name_is_not_short() -> None:
    durations = Durations()
    assert not durations.is_short("t")
    assert durations.longest("t") == inf
    assert durations.worst_short() == inf
    assert durations.short_names() == frozenset()


def test_three_short_runs_prove_a_name() -> None:
    assert not observed(0.0001, 0.0001).is_short("t")
    durations = observed(0.0001, 0.0002, 0.0003)
    assert durations.is_short("t")
    assert durations.longest("t") == 0.0003
    assert durations.short_names() == {"t"}


def test_two_milliseconds_are_too_long() -> None:
    assert not observed(*[SHORT_S] * 100).is_short("t")
    assert observed(*[SHORT_S * 0.99] * 100).is_short("t")


def test_a_forecast_is_at_least_the_cost_of_a_no_op() -> None:
    assert observed(0.0, 0.0, 0.0).longest("t") == FLOOR_S


def test_a_name_stays_short_after_two_spikes_but_not_after_three() -> None:
    calm = [0.0001] * 40
    assert observed(*calm, 0.006).is_short("t"), "one preempted run in forty"
    assert observed(*calm, 0.006, 0.006).is_short("t")
    assert not observed(*calm, 0.006, 0.006, 0.006).is_short("t")


def test_an_early_spike_counts_until_eight_runs() -> None:
    assert not observed(0.005, 0.0001, 0.0001).is_short("t")
    assert observed(0.005, *[0.0001] * 7).is_short("t")


def test_after_a_long_run_a_name_needs_sixteen_short_runs() -> None:
    durations = observed(*[0.0001] * 100, 0.5)
    assert not durations.is_short("t")
    for _ in range(15):
        durations.observe("t", 0.0001)
        assert not durations.is_short("t")
    durations.observe("t", 0.0001)
    assert durations.is_short("t")


def test_after_an_overrun_a_name_needs_sixteen_short_runs() -> None:
    durations = observed(*[0.0001] * 100)
    durations.overran("t")
    assert not durations.is_short("t")
    for _ in range(15):
        durations.observe("t", 0.0001)
        assert not durations.is_short("t")
    durations.observe("t", 0.0001)
    assert durations.is_short("t")


def test_a_name_that_became_fast_becomes_short() -> None:
    durations = observed(*[0.010] * 200)
    assert not durations.is_short("t")
    for _ in range(64):
        durations.observe("t", 0.0001)
    assert durations.is_short("t")


def test_each_name_has_its_own_forecast() -> None:
    durations = observed(0.0001, 0.0001, 0.0001, name="short")
    for _ in range(3):
        durations.observe("long", 0.1)
        durations.observe("middling", 0.0015)
    assert durations.short_names() == {"short", "middling"}
    assert durations.worst_short() == 0.0015


@given(st.lists(st.floats(0, 0.019), max_size=300))
def test_the_forecast_leaves_out_at_most_two_of_the_last_block(spans: list[float]) -> None:
    durations = observed(*spans)
    if durations.is_short("t"):
        assert sum(span > max(durations.longest("t"), FLOOR_S) for span in spans[-32:]) <= 2


# -- repeating names -----------------------------------------------------------------------------------------------


def test_eight_similar_durations_make_a_name_repeating() -> None:
    assert bounds(observed(*[0.05] * 7)) is None
    assert bounds(observed(*[0.05] * 7, 0.055)) == (0.05, 0.055)
    assert bounds(observed(*[0.05] * 8), "video") is None


@pytest.mark.parametrize("odd", [0.003, 0.2])
def test_a_different_duration_counts_for_two_blocks(odd: float) -> None:
    durations = observed(*[0.05] * 16, odd)
    assert bounds(durations) is None
    for _ in range(15):
        durations.observe("t", 0.05)
    assert bounds(durations) is None
    for _ in range(17):
        durations.observe("t", 0.05)
    assert bounds(durations) == (0.05, 0.05)


def test_after_an_overrun_a_name_needs_eight_similar_durations_again() -> None:
    durations = observed(*[0.05] * 10)
    assert bounds(durations) == (0.05, 0.05)
    durations.overran("t")
    assert (durations.prefetch_after("t"), durations.longest("t")) == (inf, inf)
    for _ in range(8):
        assert bounds(durations) is None
        durations.observe("t", 0.05)
    assert bounds(durations) == (0.05, 0.05)


def test_a_short_name_needs_no_prefetch() -> None:
    durations = observed(*[0.0001] * 50)
    assert durations.prefetch_after("t") == inf
    assert durations.is_short("t")


def test_a_job_no_longer_than_a_claim_is_prefetched_behind_at_its_start() -> None:
    assert observed(*[0.003] * 10).prefetch_after("t") == 0.0


@pytest.mark.parametrize("span", [0.0001, 0.05])
def test_memory_is_bounded(span: float) -> None:
    durations = Durations()
    names = [f"name-{number}" for number in range(10_000)]
    for name in names:
        for _ in range(8):
            durations.observe(name, span)
    assert 0 < sum(durations.longest(name) != inf for name in names) <= MAX_NAMES
