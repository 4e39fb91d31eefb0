"""When a node runs and when it never will, against the plain meaning of its join; and how runs end."""

from itertools import product

import pytest

from horsies.status import WorkflowStatus
from horsies_worker.workflows.resolve import Join, Readiness, outcome, readiness


@pytest.mark.parametrize(("total", "join", "allow"), [*product(range(1, 6), ["all", "any", "quorum"], [False, True])])
def test_every_course_of_events(total: int, join: str, allow: bool) -> None:
    """For all ways in which the dependencies can end, one after the other: decided once, rightly, and for good."""
    for quorum in range(1, total + 1) if join == "quorum" else [None]:
        for course in product([True, False], repeat=total):
            decided: list[Readiness] = []
            for ended in range(total + 1):
                ok = sum(course[:ended])
                decided.append(readiness(Join(join, quorum, allow, total, total - ended, ok)))
            needed = {"any": 1, "quorum": quorum}.get(join, total)
            final = Readiness.RUN if allow or sum(course) >= needed else Readiness.SKIP
            assert decided[-1] is final
            first = next(at for at, one in enumerate(decided) if one is not Readiness.WAIT)
            assert all(one is final for one in decided[first:]), (course, decided)


@pytest.mark.parametrize(("total", "join"), [*product(range(1, 6), ["any", "quorum"])])
def test_an_open_context_only_delays(total: int, join: str) -> None:
    """The end is the one that the join decides; it does not run before the last source of its context has ended."""
    for quorum in range(1, total + 1) if join == "quorum" else [None]:
        for course, last in product(product([True, False], repeat=total), range(1, total + 1)):
            decided = [
                readiness(Join(join, quorum, False, total, total - ended, sum(course[:ended]), ended < last))
                for ended in range(total + 1)
            ]
            final = Readiness.RUN if sum(course) >= (quorum or 1) else Readiness.SKIP
            assert decided[-1] is final
            assert Readiness.RUN not in decided[:last]


def test_without_dependencies_it_runs() -> None:
    assert readiness(Join("all", None, False, 0, 0, 0)) is Readiness.RUN


def test_how_a_run_ends() -> None:
    assert outcome(None, {}) is WorkflowStatus.COMPLETED
    assert outcome(None, {3: "FAILED"}) is WorkflowStatus.FAILED
    assert outcome([[0, 1], [2]], {0: "COMPLETED", 1: "FAILED", 2: "COMPLETED"}) is WorkflowStatus.COMPLETED
    assert outcome([[0, 1], [2]], {0: "COMPLETED", 1: "SKIPPED"}) is WorkflowStatus.FAILED
