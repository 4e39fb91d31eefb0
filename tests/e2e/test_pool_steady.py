"""Tasks that always take the same time: the successor is on its way when one is about to end."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from horsies_worker.jobs import Job, OutcomeKind
from tests.support.pools import Yard
from tests.support.waiting import eventually_async

SPAN_S = 0.25
"""Long enough that a busy machine does not make two of them look different."""


async def steady(yard: Yard, trace: str) -> None:
    await yard.all_ready()
    while yard.pool.near_end("counted") > 1:
        await yard.run("counted", path=trace, seconds=SPAN_S)


async def a_successor(yard: Yard, trace: str, *, seconds: float = SPAN_S) -> tuple[Job, Job]:
    """One that runs for so long, and its successor, handed over while it runs, as soon as there is room for it."""
    while True:
        await steady(yard, trace)
        front = yard.send(yard.job("counted", path=trace, seconds=seconds))
        assert yard.pool.room().sync == 0
        while front.task_id not in yard.outcomes:  # room is there for milliseconds: a busy machine may miss them
            if yard.pool.room().sync == 1:
                return front, yard.send(yard.job("counted", path=trace, seconds=SPAN_S))
            await asyncio.sleep(0.0005)


async def test_the_successor_waits_in_the_child_and_starts_when_its_time_has_come(tmp_path: Path) -> None:
    async with Yard(processes=1, feed=True) as yard:  # on a busy machine it may come back, and is sent again
        trace = str(tmp_path / "trace")
        front, after = await a_successor(yard, trace)
        assert list(yard.pool.running()) == [front, after]
        first, second = await yard.all_done([front, after])
        assert first.kind is second.kind is OutcomeKind.OK
        assert second.started_mono is not None
        assert second.started_mono >= first.finished_mono


async def test_there_is_no_room_for_a_third_one(tmp_path: Path) -> None:
    async with Yard(processes=1, feed=False) as yard:
        trace = str(tmp_path / "trace")
        front, after = await a_successor(yard, trace)
        assert yard.pool.room().sync == 0
        third = yard.send(yard.job("counted", path=trace, seconds=SPAN_S))
        assert yard.unstarted == [third]
        assert list(yard.pool.running()) == [front, after]


async def test_behind_one_that_does_not_end_in_time_it_comes_back(tmp_path: Path) -> None:
    async with Yard(processes=1, feed=False) as yard:
        trace = str(tmp_path / "trace")
        front, after = await a_successor(yard, trace, seconds=10 * SPAN_S)
        await eventually_async(lambda: yard.unstarted == [after], timeout=5 * SPAN_S, interval=0.005)
        assert front.task_id not in yard.outcomes
        assert yard.pool.room().sync == 0
        assert after.task_id not in Path(trace).read_text()
        assert (await yard.outcome(front)).kind is OutcomeKind.OK
        assert yard.pool.near_end("counted") > 1  # it has to prove itself again


async def test_a_child_that_dies_takes_only_the_one_that_ran(tmp_path: Path) -> None:
    async with Yard(processes=1, feed=False) as yard:
        trace = str(tmp_path / "trace")
        front, after = await a_successor(yard, trace, seconds=10 * SPAN_S)
        (pid,) = yard.pids()
        os.kill(pid, signal.SIGKILL)
        assert (await yard.outcome(front)).kind is OutcomeKind.CRASHED
        await eventually_async(lambda: yard.unstarted == [after])
        assert after.task_id not in Path(trace).read_text()


@pytest.mark.parametrize("whose", ["worker", "task"])
async def test_it_can_be_switched_off(tmp_path: Path, whose: str) -> None:
    async with Yard(processes=1, feed=False, run_ahead=whose != "worker") as yard:
        trace = str(tmp_path / "trace")
        await yard.all_ready()
        for _ in range(9):
            await yard.run("counted", path=trace, seconds=0.02)
        front = yard.send(yard.job("counted", path=trace, seconds=SPAN_S, run_ahead=False))
        for _ in range(20):
            if whose == "worker":
                assert yard.pool.room().sync == 0
            after = yard.send(yard.job("counted", path=trace, run_ahead=False))
            assert yard.unstarted[-1] == after
        await yard.outcome(front)
        assert len(yard.unstarted) == 20
