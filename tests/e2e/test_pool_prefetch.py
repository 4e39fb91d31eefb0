"""Jobs that always take the same time: the child gets its next job shortly before the current one ends."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from horsies_worker.child.jobs import Job
from horsies_worker.child.outcome import OutcomeKind
from tests.support.pools import PoolHarness
from tests.support.waiting import eventually_async

SPAN_S = 0.25
"""Long enough that on a busy machine two of them still look alike."""


async def learn(harness: PoolHarness, trace: str) -> None:
    """Run the job until its duration can be forecast."""
    await harness.all_ready()
    while harness.pool.prefetch_after("counted") > 1:
        await harness.run("counted", path=trace, seconds=SPAN_S)


async def current_and_next(harness: PoolHarness, trace: str, *, seconds: float = SPAN_S) -> tuple[Job, Job]:
    """Start a job that takes `seconds`, and assign the next one to the same child as soon as there is room."""
    while True:
        await learn(harness, trace)
        current = harness.send(harness.job("counted", path=trace, seconds=seconds))
        assert harness.pool.room().sync == 0
        while (
            current.task_id not in harness.outcomes
        ):  # there is room only for milliseconds, which a busy machine may miss
            if harness.pool.room().sync == 1:
                return current, harness.send(harness.job("counted", path=trace, seconds=SPAN_S))
            await asyncio.sleep(0.0005)


async def test_the_next_job_starts_after_the_current_one(tmp_path: Path) -> None:
    async with PoolHarness(
        processes=1, feed=True
    ) as harness:  # on a busy machine the next job may come back, and is sent again
        trace = str(tmp_path / "trace")
        current, following = await current_and_next(harness, trace)
        assert list(harness.pool.running()) == [current, following]
        first, second = await harness.all_done([current, following])
        assert first.kind is second.kind is OutcomeKind.OK
        assert second.started_mono is not None
        assert second.started_mono >= first.finished_mono


async def test_there_is_no_room_for_a_third_job(tmp_path: Path) -> None:
    async with PoolHarness(processes=1, feed=False) as harness:
        trace = str(tmp_path / "trace")
        current, following = await current_and_next(harness, trace)
        assert harness.pool.room().sync == 0
        third = harness.send(harness.job("counted", path=trace, seconds=SPAN_S))
        assert harness.unstarted == [third]
        assert list(harness.pool.running()) == [current, following]


async def test_the_next_job_is_taken_back_when_the_current_one_overruns(tmp_path: Path) -> None:
    async with PoolHarness(processes=1, feed=False) as harness:
        trace = str(tmp_path / "trace")
        current, following = await current_and_next(harness, trace, seconds=10 * SPAN_S)
        await eventually_async(lambda: harness.unstarted == [following], timeout=5 * SPAN_S, interval=0.005)
        assert current.task_id not in harness.outcomes
        assert harness.pool.room().sync == 0
        assert following.task_id not in Path(trace).read_text()
        assert (await harness.outcome(current)).kind is OutcomeKind.OK
        assert harness.pool.prefetch_after("counted") > 1  # its forecast is forgotten


async def test_a_dying_child_crashes_only_the_current_job(tmp_path: Path) -> None:
    async with PoolHarness(processes=1, feed=False) as harness:
        trace = str(tmp_path / "trace")
        current, following = await current_and_next(harness, trace, seconds=10 * SPAN_S)
        (pid,) = harness.pids()
        os.kill(pid, signal.SIGKILL)
        assert (await harness.outcome(current)).kind is OutcomeKind.CRASHED
        await eventually_async(lambda: harness.unstarted == [following])
        assert following.task_id not in Path(trace).read_text()


@pytest.mark.parametrize("whose", ["worker", "task"])
async def test_prefetching_can_be_switched_off(tmp_path: Path, whose: str) -> None:
    async with PoolHarness(processes=1, feed=False, run_ahead=whose != "worker") as harness:
        trace = str(tmp_path / "trace")
        await harness.all_ready()
        for _ in range(9):
            await harness.run("counted", path=trace, seconds=0.02)
        current = harness.send(harness.job("counted", path=trace, seconds=SPAN_S, run_ahead=False))
        for _ in range(20):
            if whose == "worker":
                assert harness.pool.room().sync == 0
            following = harness.send(harness.job("counted", path=trace, run_ahead=False))
            assert harness.unstarted[-1] == following
        await harness.outcome(current)
        assert len(harness.unstarted) == 20
