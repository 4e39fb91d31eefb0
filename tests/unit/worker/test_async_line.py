"""The line of short async jobs: how many may come, who gets a place first, and what goes back to the queue."""

from itertools import count

import pytest

from horsies_worker.child.jobs import ChildSpec, Job
from horsies_worker.children import async_line
from horsies_worker.children.assigned_jobs import AssignedJob
from horsies_worker.children.async_line import AsyncLine
from horsies_worker.children.size import PoolSize
from tests.support.waiting import eventually_async

SHORT_S, LONG_S = 0.001, 0.5
MOST = 20
"""Two children with 10 ms of work each."""
_numbers = count(1)


def job(name: str = "short", *, run_ahead: bool = True) -> Job:
    return Job(f"t{next(_numbers)}", 1, 1, name, None, None, is_async=True, run_ahead=run_ahead)


def running(*names: str) -> list[list[AssignedJob]]:
    return [[AssignedJob(job(name), 1, 0.0, 0.0, 0.0) for name in names], []]


class Line(AsyncLine):
    def __init__(self, **spec: object) -> None:
        self.returned: list[Job] = []
        described = ChildSpec("app", **spec)  # type: ignore[arg-type]
        super().__init__(described, PoolSize(described.processes), self.returned.extend)

    def prove(self, name: str = "short", seconds: float = SHORT_S, *, run_ahead: bool = True) -> None:
        for _ in range(20):
            self.observe(job(name, run_ahead=run_ahead), seconds)
        self.room(running(), 0)  # as before each claim


async def test_while_short_jobs_run_more_may_come_than_there_are_places() -> None:
    line = Line()
    assert line.room(running(), 4) == 4
    line.prove()
    assert line.room(running(), 4) == MOST + 4
    assert line.room(running(*["short"] * 4), 0) == MOST
    line.add([job() for _ in range(5)], 0)
    assert line.room(running(*["short"] * 4), 0) == MOST - 5
    assert line.room(running(), 4) == MOST - 5  # these places are for the first jobs of the line


async def test_claims_wait_until_half_of_the_line_is_gone() -> None:
    line = Line()
    line.prove()
    line.add([job() for _ in range(MOST // 2 + 1)], 0)
    assert line.room(running("short"), 0) == 0
    line.take(1)
    assert line.room(running("short"), 0) == MOST // 2


@pytest.mark.parametrize("names", [("long",), ("short", "long"), ("unknown",)])
def test_beside_other_jobs_only_places_count(names: tuple[str, ...]) -> None:
    line = Line()
    line.prove("long", LONG_S)
    line.prove()
    assert line.room(running(*names), 3) == 3


def test_after_a_long_job_only_places_count() -> None:
    line = Line()
    line.prove()
    line.observe(job("long"), LONG_S)
    assert line.room(running(), 3) == 3
    line.observe(job(), SHORT_S)
    assert line.room(running(), 3) == MOST + 3


@pytest.mark.parametrize("spec", [{"run_ahead": False}, {"max_tasks_per_child": 100}])
def test_without_run_ahead_or_with_a_limit_of_tasks_only_places_count(spec: dict[str, object]) -> None:
    line = Line(**spec)
    line.prove()
    assert line.room(running(), 3) == 3


def test_jobs_without_run_ahead_prove_nothing() -> None:
    line = Line()
    line.prove(run_ahead=False)
    assert line.room(running(), 3) == 3


async def test_jobs_that_may_not_wait_get_the_first_places_or_go_back() -> None:
    line = Line()
    line.prove()
    short, long = [job(), job(), job()], [job("long"), job(run_ahead=False), job("long")]
    assert line.add([*short, *long], 4) == [*long, short[0]]
    assert list(line) == short[1:]
    more = [job("long"), job("long")]
    assert line.add(more, 1) == more[:1]
    assert line.returned == more[1:]
    assert line.take(1) == short[1:2]
    line.clear()
    assert line.returned == [more[1], short[2]]
    assert not line


async def test_a_job_waits_although_its_name_was_slow_since_the_claim() -> None:
    line = Line()
    line.prove()
    line.observe(job(), LONG_S)
    jobs = [job(), job()]
    assert line.add(jobs, 1) == jobs[:1]
    assert line.returned == []
    assert line.room(running(), 3) == 2
    line.clear()


async def test_one_job_can_be_withdrawn() -> None:
    line = Line()
    line.prove()
    jobs = [job(), job(), job()]
    line.add(jobs, 0)
    assert line.withdraw(jobs[1].task_id, 1)
    assert not line.withdraw(jobs[1].task_id, 1)
    assert not line.withdraw(jobs[0].task_id, 2)
    assert line.returned == [jobs[1]]
    assert list(line) == [jobs[0], jobs[2]]
    line.clear()


async def test_jobs_that_wait_too_long_go_back_and_their_name_is_not_short_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(async_line, "MAX_WAIT_S", 0.01)
    line = Line()
    line.prove()
    jobs = [job(), job()]
    line.add(jobs, 0)
    await eventually_async(lambda: line.returned == jobs)
    assert not line
    assert line.room(running(), 3) == 3
