"""The judgement of `just bench day`: a growth is found, a warm-up and a constant level are not taken for one."""

from collections.abc import Callable

from bench.endurance import judging
from bench.endurance.sampling import Process, Sample, Table

MB = 1024


def run(
    memory: Callable[[int], float] = lambda _: 30.0,
    descriptors: Callable[[int], int] = lambda _: 10,
    connections: Callable[[int], int] = lambda _: 16,
    size: Callable[[int], int] = lambda _: 50,
    seconds: int = 600,
) -> list[Sample]:
    """A sample every two seconds; each figure by the second."""
    return [
        Sample(
            float(at),
            {
                "client": Process(round(memory(at) * MB), 0, descriptors(at), 1),
                "worker": Process(20 * MB, 0, 39, 4),
                "worker, child 1": Process(5 * MB, 0, 7, 1),
            },
            {"horsies": connections(at)},
            {"horsies_tasks": Table(size(at) * 2**20, 0, 0, 0, 0), "horsies_limits": Table(8192, 0, 0, 0, 0)},
        )
        for at in range(0, seconds + 1, 2)
    ]


def missed(samples: list[Sample]) -> list[str]:
    found = (*judging.memory(samples), *judging.counts(samples), *judging.bloat(samples))
    return [one.title for one in found if not one.holds]


def test_what_is_flat_after_a_warm_up_holds() -> None:
    assert missed(run(memory=lambda at: min(30.0, 20 + at / 10), size=lambda at: min(50, at))) == []


def test_a_slow_leak_is_found() -> None:
    assert missed(run(memory=lambda at: 30 + at * 0.001)) == ["client"]


def test_one_more_descriptor_or_connection_is_found() -> None:
    assert missed(run(descriptors=lambda at: 10 + (at > 400))) == ["client: descriptors"]
    assert missed(run(connections=lambda at: 16 + (at > 400))) == ["connections of the server"]


def test_a_connection_that_comes_and_goes_is_no_growth() -> None:
    assert missed(run(connections=lambda at: 16 + (at % 10 == 0))) == []


def test_a_table_that_grows_to_the_end_is_found_and_small_ones_are_not_judged() -> None:
    assert missed(run(size=lambda at: 10 + at // 10)) == ["horsies_tasks", "all tables"]
    assert missed(run(size=lambda _: 0)) == []


def test_a_short_run_says_nothing_about_bloat() -> None:
    short = run(size=lambda at: 10 + at, seconds=60)
    assert missed(short) == []
    assert all(one.bar is None for one in judging.bloat(short))


def test_the_processes_of_the_worker_are_judged_together() -> None:
    by_title = {one.title: one for one in judging.memory(run())}
    assert by_title["worker, all processes"].after == 25.0
    assert by_title["worker, child 1"].bar is None
