"""Timeouts and cancellations of jobs in children. Real processes and signals, no database."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from horsies_worker.child.jobs import Job
from horsies_worker.child.outcome import OutcomeKind
from horsies_worker.children import async_line
from tests.support.pools import PoolHarness, err, freeze, is_running, ok, running_pid
from tests.support.waiting import eventually_async


async def test_a_timeout_interrupts_and_the_child_lives_on(tmp_path: Path) -> None:
    async with PoolHarness(processes=1) as harness:
        trace = tmp_path / "trace"
        outcome = await harness.run("cleans_up", path=str(trace), timeout_ms=200)
        assert outcome.kind is OutcomeKind.TIMEOUT
        assert outcome.error_code == "TASK_TIMEOUT"
        assert trace.read_text() == "start\ncleanup timeout\n"
        assert "time.sleep" in err(outcome)["data"]["traceback"]
        assert outcome.started_mono is not None
        assert 0.15 < outcome.finished_mono - outcome.started_mono < 1
        assert ok(await harness.run("sleep", seconds=0)) == outcome.pid


async def test_a_timeout_in_c_code_kills_only_that_child(tmp_path: Path) -> None:
    async with PoolHarness(processes=2) as harness:
        await harness.all_ready()
        began = time.monotonic()
        job = harness.send(harness.job("in_c", seconds=60, timeout_ms=300))
        bystanders = [harness.job("sleep", seconds=0.3) for _ in range(5)]
        harness.send(*bystanders)
        outcome = await harness.outcome(job)
        # 0.3 s until the exception, which C does not see, 0.3 s to SIGTERM, 0.3 s to SIGKILL.
        assert time.monotonic() - began < 2.5
        assert outcome.kind is OutcomeKind.TIMEOUT
        assert outcome.error_code == "TASK_TIMEOUT"
        assert "SIGKILL, sent by this worker" in (outcome.failed_reason or "")
        assert all(ok(o) for o in await harness.all_done(bystanders))


async def test_user_code_that_swallows_exceptions_is_killed(tmp_path: Path) -> None:
    async with PoolHarness(processes=1) as harness:
        trace = tmp_path / "trace"
        outcome = await harness.run("stubborn", path=str(trace), timeout_ms=200)
        assert outcome.kind is OutcomeKind.TIMEOUT
        assert "swallowed TaskStopped" in trace.read_text()


async def test_a_job_that_ends_in_time_leaves_no_timeout_behind() -> None:
    async with PoolHarness(processes=1) as harness:
        assert ok(await harness.run("sleep", seconds=0.1, timeout_ms=200)) > 0
        # The next job outlives the deadline of the first one, and has no deadline itself.
        assert ok(await harness.run("sleep", seconds=0.5)) > 0
        assert ok(await harness.run("sleep", seconds=0.1, timeout_ms=10_000)) > 0


async def test_async_timeouts(tmp_path: Path) -> None:
    async with PoolHarness(processes=1) as harness:
        trace = tmp_path / "trace"
        other = harness.send(harness.job("async_sleep", seconds=0.6))
        outcome = await harness.run("async_cleans_up", path=str(trace), timeout_ms=200)
        assert outcome.kind is OutcomeKind.TIMEOUT
        assert trace.read_text() == "start\ncleanup\n"
        assert ok(await harness.outcome(other)) == outcome.pid


@contextlib.asynccontextmanager
async def blocked_line(tmp_path: Path) -> AsyncIterator[tuple[PoolHarness, list[Job], list[Job]]]:
    """Two async jobs in a child with two places, of which the first blocks the loop, and four short jobs that wait."""
    free, trace = tmp_path / "free", tmp_path / "trace"
    free.touch()
    options = {"path": str(trace), "until": str(free)}
    async with PoolHarness(processes=1, async_concurrency=2, feed=False) as harness:
        await harness.prove_short("async_blocks", **options)
        free.unlink()
        trace.unlink()
        jobs = [harness.job("async_blocks", **options) for _ in range(6)]
        harness.send(*jobs)
        assert len(harness.pool.running()) == 6
        await eventually_async(trace.exists)
        yield harness, jobs[:2], jobs[2:]


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs in the line wait for as long as the test takes."""
    monkeypatch.setattr(async_line, "MAX_WAIT_S", 60.0)


@pytest.mark.usefixtures("patient")
async def test_async_jobs_that_wait_survive_the_death_of_the_child(tmp_path: Path) -> None:
    async with blocked_line(tmp_path) as (harness, running, waiting):
        (pid,) = harness.pids()
        os.kill(pid, signal.SIGKILL)
        (tmp_path / "free").touch()
        assert {outcome.kind for outcome in await harness.all_done(running)} == {OutcomeKind.CRASHED}
        assert pid not in {ok(outcome) for outcome in await harness.all_done(waiting)}


@pytest.mark.usefixtures("patient")
async def test_an_async_job_that_waits_can_be_cancelled(tmp_path: Path) -> None:
    async with blocked_line(tmp_path) as (harness, running, waiting):
        cancelled = waiting.pop(1)
        harness.pool.cancel(cancelled.task_id, cancelled.generation)
        assert harness.unstarted == [cancelled]  # the statement that returns it to the queue sees the request
        (tmp_path / "free").touch()
        await harness.all_done([*running, *waiting])
        assert cancelled.task_id not in harness.outcomes


@pytest.mark.usefixtures("patient")
async def test_a_stop_returns_the_async_jobs_that_wait(tmp_path: Path) -> None:
    async with blocked_line(tmp_path) as (harness, running, waiting):
        (tmp_path / "free").touch()
        await harness.pool.stop(20)
        assert harness.unstarted == waiting
        assert {outcome.kind for outcome in await harness.all_done(running)} == {OutcomeKind.OK}


async def test_async_jobs_that_wait_behind_one_that_blocks_go_back(tmp_path: Path) -> None:
    async with blocked_line(tmp_path) as (harness, running, waiting):
        await eventually_async(lambda: harness.unstarted == waiting)
        assert harness.pool.room().asynchronous == 0
        (tmp_path / "free").touch()
        await harness.all_done(running)
        assert (tmp_path / "trace").read_text() == "start\n" * 2
        assert harness.pool.room().asynchronous == 2  # the name has to prove itself again


async def test_an_async_job_that_is_stopped_before_its_loop_can_start_it_ends(tmp_path: Path) -> None:
    async with PoolHarness(processes=1, kill_grace_s=60) as harness:
        trace, blocked, free = tmp_path / "trace", tmp_path / "blocked", tmp_path / "free"
        blocking = harness.send(harness.job("async_blocks", path=str(blocked), until=str(free)))
        await eventually_async(blocked.exists)
        late = harness.send(harness.job("async_cleans_up", path=str(trace), timeout_ms=20))
        await asyncio.sleep(0.2)  # until the stop, too, waits for the loop
        free.touch()
        assert (await harness.outcome(late)).kind is OutcomeKind.TIMEOUT
        assert not trace.exists()
        pid = ok(await harness.outcome(blocking))
        assert ok(await harness.run("async_sleep", seconds=0)) == pid


async def test_an_async_job_that_does_not_end_is_killed_with_its_child(tmp_path: Path) -> None:
    async with PoolHarness(processes=1) as harness:
        trace = tmp_path / "trace"
        stuck = harness.send(harness.job("async_stubborn", path=str(trace), timeout_ms=200))
        victim = harness.send(harness.job("async_sleep", seconds=60))
        outcome = await harness.outcome(stuck)
        assert outcome.kind is OutcomeKind.TIMEOUT
        assert trace.read_text().count("swallowed") >= 2
        shared = await harness.outcome(victim)
        assert shared.kind is OutcomeKind.CRASHED
        assert "to stop another task" in (shared.failed_reason or "")
        assert ok(await harness.run("async_sleep", seconds=0)) > 0


async def test_a_frozen_child_times_out() -> None:
    async with PoolHarness(processes=1) as harness:
        (pid,) = harness.pids()
        job = harness.send(harness.job("sleep", seconds=1, timeout_ms=1500))
        await asyncio.sleep(0.3)
        await freeze(pid)
        assert job in harness.pool.alive()
        outcome = await harness.outcome(job)
        assert outcome.kind is OutcomeKind.TIMEOUT


async def test_a_child_frozen_between_jobs_is_replaced() -> None:
    async with PoolHarness(processes=1, feed=True) as harness:
        (pid,) = harness.pids()
        await freeze(pid)
        assert ok(await harness.run("add", a=1, b=1)) == 2
        await eventually_async(lambda: not is_running(pid))
        assert harness.kinds() == {OutcomeKind.OK: 1}


async def test_a_child_in_c_code_counts_as_alive(tmp_path: Path) -> None:
    async with PoolHarness(processes=1) as harness:
        trace = tmp_path / "trace"
        job = harness.send(harness.job("in_c", seconds=2, path=str(trace)))
        await running_pid(trace)
        for _ in range(10):
            assert list(harness.pool.alive()) == [job]
            await asyncio.sleep(0.1)
        assert ok(await harness.outcome(job)) == 1


# -- cancellation --------------------------------------------------------------------------------------


async def test_cancel_sets_the_flag_first(tmp_path: Path) -> None:
    async with PoolHarness(processes=2) as harness:
        await harness.all_ready()
        for answer in ("ok", "err"):
            trace = tmp_path / answer
            job = harness.send(harness.job("cooperative", path=str(trace), answer=answer))
            await eventually_async(trace.exists)
            harness.pool.cancel(job.task_id, job.generation)
            outcome = await harness.outcome(job)
            if answer == "ok":
                assert ok(outcome) == "partial"  # the work is done, so its result stands
            else:
                assert outcome.kind is OutcomeKind.CANCELLED
                assert outcome.error_code == "TASK_CANCELLED"
                assert err(outcome)["data"]["error_code"] == "STOPPED_EARLY"


async def test_cancel_interrupts_after_the_flag(tmp_path: Path) -> None:
    async with PoolHarness(processes=1) as harness:
        trace = tmp_path / "trace"
        job = harness.send(harness.job("cleans_up", path=str(trace)))
        await eventually_async(trace.exists)
        harness.pool.cancel(job.task_id, job.generation + 1)  # of another attempt
        harness.pool.cancel("task-999999", 1)
        harness.pool.cancel(job.task_id, job.generation)
        outcome = await harness.outcome(job)
        assert outcome.kind is OutcomeKind.CANCELLED
        assert outcome.started_mono is not None
        assert trace.read_text() == "start\ncleanup cancelled\n"
        assert ok(await harness.run("sleep", seconds=0)) == outcome.pid


async def test_cancel_of_a_job_in_c_code_and_of_an_async_job(tmp_path: Path) -> None:
    async with PoolHarness(processes=1) as harness:
        trace = tmp_path / "a"
        job = harness.send(harness.job("async_cleans_up", path=str(trace)))
        await eventually_async(trace.exists)
        harness.pool.cancel(job.task_id, job.generation)
        assert (await harness.outcome(job)).kind is OutcomeKind.CANCELLED
        deaf = harness.send(harness.job("in_c", seconds=60, path=str(tmp_path / "c")))
        await running_pid(tmp_path / "c")
        harness.pool.cancel(deaf.task_id, deaf.generation)
        assert (await harness.outcome(deaf)).kind is OutcomeKind.CANCELLED


async def test_cancel_of_a_job_that_waits_in_a_child(tmp_path: Path) -> None:
    async with PoolHarness(processes=1, feed=False) as harness:
        trace = tmp_path / "trace"
        while not harness.pool.is_short("counted"):
            await harness.run("counted", path=str(trace))
        # The child is frozen, so all of these wait in it.
        (pid,) = harness.pids()
        await freeze(pid)
        jobs = [harness.job("counted", path=str(trace)) for _ in range(4)]
        harness.send(*jobs)
        inside = [job for job in jobs if job in harness.pool.running()]
        assert len(inside) >= 2
        target = inside[-1]
        harness.pool.cancel(target.task_id, target.generation)
        outcome = harness.outcomes[target.task_id][0]
        assert outcome.kind is OutcomeKind.CANCELLED
        assert outcome.started_mono is None
        os.kill(pid, signal.SIGCONT)
        others = [job for job in inside if job is not target]
        await eventually_async(
            lambda: all(job.task_id in harness.outcomes or job in harness.unstarted for job in others)
        )
        assert target.task_id not in trace.read_text().split()


async def test_an_abandoned_job_is_stopped_without_an_outcome(tmp_path: Path) -> None:
    async with PoolHarness(processes=1) as harness:
        trace = tmp_path / "trace"
        job = harness.send(harness.job("cleans_up", path=str(trace)))
        await eventually_async(trace.exists)
        harness.pool.abandon(job.task_id, job.generation)
        await eventually_async(lambda: "cleanup" in trace.read_text())
        deaf = harness.send(harness.job("in_c", seconds=60, path=str(tmp_path / "c")))
        await running_pid(tmp_path / "c")
        harness.pool.abandon(deaf.task_id, deaf.generation)
        assert ok(await harness.run("add", a=1, b=1)) == 2
        assert job.task_id not in harness.outcomes
        assert deaf.task_id not in harness.outcomes
        assert not harness.pool.running()
