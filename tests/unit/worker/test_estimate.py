"""Which names are short enough to be handed ahead."""

from math import inf

from hypothesis import given, strategies as st

from horsies_worker.estimate import FLOOR_S, SHORT_S, Estimates


def observed(*spans: float, name: str = "t") -> Estimates:
    estimates = Estimates()
    for span in spans:
        estimates.observe(name, span)
    return estimates


def test_an_unknown_name_is_not_short() -> None:
    estimates = Estimates()
    assert not estimates.is_short("t")
    assert estimates.upper("t") == inf
    assert estimates.worst_short() == inf
    assert estimates.short_names() == frozenset()


def test_three_short_runs_prove_a_name() -> None:
    assert not observed(0.0001, 0.0001).is_short("t")
    estimates = observed(0.0001, 0.0002, 0.0003)
    assert estimates.is_short("t")
    assert estimates.upper("t") == 0.0003
    assert estimates.short_names() == {"t"}


def test_two_milliseconds_are_too_long() -> None:
    assert not observed(*[SHORT_S] * 100).is_short("t")
    assert observed(*[SHORT_S * 0.99] * 100).is_short("t")


def test_a_no_op_still_costs_something() -> None:
    assert observed(0.0, 0.0, 0.0).upper("t") == FLOOR_S


def test_noise_does_not_stop_run_ahead_but_a_pattern_does() -> None:
    calm = [0.0001] * 40
    assert observed(*calm, 0.006).is_short("t"), "one preempted run in forty"
    assert observed(*calm, 0.006, 0.006).is_short("t")
    assert not observed(*calm, 0.006, 0.006, 0.006).is_short("t")


def test_an_early_spike_counts_until_there_is_enough_to_judge() -> None:
    assert not observed(0.005, 0.0001, 0.0001).is_short("t")
    assert observed(0.005, *[0.0001] * 7).is_short("t")


def test_a_really_long_run_demotes_at_once() -> None:
    estimates = observed(*[0.0001] * 100, 0.5)
    assert not estimates.is_short("t")
    for _ in range(15):
        estimates.observe("t", 0.0001)
    assert not estimates.is_short("t")
    estimates.observe("t", 0.0001)
    assert estimates.is_short("t")


def test_demotion_asks_for_sixteen_proofs() -> None:
    estimates = observed(*[0.0001] * 100)
    estimates.demote("t")
    assert not estimates.is_short("t")
    for _ in range(15):
        estimates.observe("t", 0.0001)
        assert not estimates.is_short("t")
    estimates.observe("t", 0.0001)
    assert estimates.is_short("t")


def test_a_name_that_became_fast_is_found_again() -> None:
    estimates = observed(*[0.010] * 200)
    assert not estimates.is_short("t")
    for _ in range(64):
        estimates.observe("t", 0.0001)
    assert estimates.is_short("t")


def test_names_are_judged_apart() -> None:
    estimates = observed(0.0001, 0.0001, 0.0001, name="short")
    for _ in range(3):
        estimates.observe("long", 0.1)
        estimates.observe("middling", 0.0015)
    assert estimates.short_names() == {"short", "middling"}
    assert estimates.worst_short() == 0.0015


def test_memory_is_bounded_whatever_names_come() -> None:
    estimates = Estimates()
    for number in range(20_000):
        estimates.observe(f"name-{number}", 0.0001)
    assert len(estimates._names) <= 4096


@given(st.lists(st.floats(0, 0.019), max_size=300))
def test_the_upper_estimate_leaves_out_at_most_two_of_the_last_block(spans: list[float]) -> None:
    estimates = observed(*spans)
    if estimates.is_short("t"):
        assert sum(span > max(estimates.upper("t"), FLOOR_S) for span in spans[-32:]) <= 2
