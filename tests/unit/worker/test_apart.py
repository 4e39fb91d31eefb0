"""Tasks that died together run apart the next time."""

import itertools

from hypothesis import given, strategies as st

from horsies_worker.children.apart import MAX_S, MIN_S, apart_ms


def test_one_alone_waits_for_no_other() -> None:
    assert apart_ms([]) == []
    assert apart_ms([12.0]) == [0]


def test_the_shortest_goes_first_and_each_has_the_time_that_it_had_before() -> None:
    assert apart_ms([9.0, 2.0, 4.0]) == [6_000, 0, 2_000]


def test_even_the_shortest_have_a_second_each() -> None:
    assert apart_ms([0.0, 0.0, 0.0]) == [0, 1_000, 2_000]


def test_many_are_spread_over_a_minute() -> None:
    waits = apart_ms([60.0] * 100)
    assert waits == sorted(waits)
    assert waits[-1] == MAX_S * 1000
    assert len(set(waits)) == 100


@given(st.lists(st.floats(0, 10**7), max_size=40))
def test_whatever_they_ran(ran: list[float]) -> None:
    waits = apart_ms(ran)
    assert len(waits) == len(ran)
    assert all(0 <= wait <= MAX_S * 1000 for wait in waits)
    if ran:
        assert waits[ran.index(min(ran))] == 0
    ordered = sorted(waits)
    if len(ran) * max(MIN_S, max(ran, default=0)) <= MAX_S:
        assert all(after - before >= MIN_S * 1000 for before, after in itertools.pairwise(ordered))
