"""Which ends can be foreseen."""

from math import inf

import pytest

from horsies_worker.estimate import Estimates
from horsies_worker.steady import LEAD_S, Steady


def observed(*spans: float) -> Steady:
    made = Steady()
    for span in spans:
        made.observe("mail", span)
    return made


def test_eight_alike_are_enough() -> None:
    assert observed(*[0.05] * 7).bounds("mail") is None
    assert observed(*[0.05] * 7, 0.055).bounds("mail") == (0.05, 0.055)
    assert observed(*[0.05] * 8).bounds("video") is None


@pytest.mark.parametrize("odd", [0.001, 0.2])
def test_one_that_is_different_ends_it_until_it_is_long_ago(odd: float) -> None:
    made = observed(*[0.05] * 16, odd)
    assert made.bounds("mail") is None
    for _ in range(15):
        made.observe("mail", 0.05)
    assert made.bounds("mail") is None
    for _ in range(17):
        made.observe("mail", 0.05)
    assert made.bounds("mail") == (0.05, 0.05)


def test_a_surprise_has_to_be_lived_down() -> None:
    estimates = Estimates()
    for _ in range(10):
        estimates.observe("mail", 0.05)
    assert estimates.near_end("mail") == pytest.approx(0.05 - LEAD_S)
    assert estimates.upper("mail") == 0.05
    estimates.surprised("mail")
    assert (estimates.near_end("mail"), estimates.upper("mail")) == (inf, inf)
    for _ in range(8):
        estimates.observe("mail", 0.05)
    assert estimates.near_end("mail") == pytest.approx(0.05 - LEAD_S)


def test_short_ones_are_another_matter() -> None:
    estimates = Estimates()
    for _ in range(50):
        estimates.observe("noop", 0.0001)
    assert estimates.near_end("noop") == inf
    assert estimates.is_short("noop")


def test_a_successor_is_sent_for_at_the_start_of_what_takes_no_longer_than_the_way() -> None:
    estimates = Estimates()
    for _ in range(10):
        estimates.observe("mail", 0.003)
    assert estimates.near_end("mail") == 0.0


def test_memory_is_bounded() -> None:
    made = Steady()
    for number in range(10_000):
        made.observe(f"task {number}", 0.05)
    assert len(made._names) <= 4096
