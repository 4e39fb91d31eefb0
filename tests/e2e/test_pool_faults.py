"""The child pool under faults: kills, crashes, timeouts, cancellations, floods. Real processes and signals."""

import asyncio
import contextlib
import json
import os
import random
import resource
import select
import signal
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from horsies_worker.child.frames import FrameReader
from horsies_worker.child.jobs import Job
from horsies_worker.child.outcome import OutcomeKind
from horsies_worker.children import async_line
from horsies_worker.children.child_starter import ChildStartError
from tests.support.pools import PoolHarness, err, freeze, is_running, ok
from tests.support.waiting import eventually_async


async def running_pid(trace: Path) -> int:
    """Return the pid that a task wrote as the last word of its first line."""
    await eventually_async(lambda: trace.exists() and "\n" in trace.read_text())
    return int(trace.read_text().split("\n")[0].split()[-1])


# -- death --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "kwargs", "words"),
    [
        ("die", {"how": 9}, ["signal 9 (SIGKILL)", "possibly out of memory", "peak memory"]),
        ("die", {"how": 15}, None),
        ("segfault", {}, ["signal 11 (SIGSEGV)"]),
        ("die", {"how": 6}, ["signal 6 (SIGABRT)"]),
        ("die", {"how": 0}, ["exited with code 0"]),
        ("die", {"how": -5}, ["exited with code 5"]),
    ],
)
async def test_the_failed_reason_names_signal_or_exit_code(
    task: str, kwargs: dict[str, int], words: list[str] | None
) -> None:
    async with PoolHarness(processes=2) as harness:
        await harness.all_ready()
        bystander = harness.send(harness.job("sleep", seconds=0.5))
        if words is None:
            # SIGTERM that the parent did not ask for is ignored.
            dying = harness.send(harness.job("die", how=15, timeout_ms=700))
            assert (await harness.outcome(dying)).kind is OutcomeKind.TIMEOUT
            return
        outcome = await harness.run(task, **kwargs)
        assert outcome.kind is OutcomeKind.CRASHED
        assert outcome.error_code == "WORKER_CRASHED"
        assert err(outcome)["error_code"] == "WORKER_CRASHED"
        for word in words:
            assert word in (outcome.failed_reason or "")
        assert outcome.started_mono is not None
        assert ok(await harness.outcome(bystander)) > 0
        assert len(harness.deaths) == 1


async def test_a_dead_child_is_replaced_within_a_second(tmp_path: Path) -> None:
    async with PoolHarness(processes=1) as harness:
        trace = tmp_path / "trace"
        job = harness.send(harness.job("in_c", seconds=60, path=str(trace)))
        pid = await running_pid(trace)
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        assert (await harness.outcome(job)).kind is OutcomeKind.CRASHED
        assert time.monotonic() - began < 0.5
        assert ok(await harness.run("add", a=1, b=1)) == 2
        assert time.monotonic() - began < 1.0


async def test_after_random_kills_each_job_either_ran_or_came_back(tmp_path: Path) -> None:
    """Jobs that come back never started, each kill crashes at most one job, and no job ends twice."""
    trace = tmp_path / "trace"
    chance = random.Random(7)
    crashed = kills = 0
    async with PoolHarness(processes=2, feed=False) as harness:
        while not harness.pool.is_short("counted"):
            await harness.run("counted", path=str(trace))
        for _ in range(40):
            await harness.all_ready()
            jobs = [harness.job("counted", path=str(trace)) for _ in range(60)]
            del harness.unstarted[:]
            harness.send(*jobs)
            await asyncio.sleep(chance.uniform(0, 0.004))
            victim = chance.choice(sorted(harness.pids()) or [0])
            with contextlib.suppress(ProcessLookupError):  # the pool has not noticed the last kill yet
                if victim:
                    os.kill(victim, signal.SIGKILL)
                    kills += 1
            await eventually_async(
                lambda jobs=jobs: (
                    len(harness.unstarted) + sum(j.task_id in harness.outcomes for j in jobs) == len(jobs)
                ),
                interval=0.002,
            )
            started = set(trace.read_text().split())
            back = {job.task_id for job in harness.unstarted}
            assert not back & started, "a job was given back although it had started"
            assert not back & harness.outcomes.keys()
            crashed += sum(
                harness.outcomes[j.task_id][0].kind is OutcomeKind.CRASHED for j in jobs if j.task_id not in back
            )
        assert crashed <= kills
        assert all(len(outcomes) == 1 for outcomes in harness.outcomes.values())
        assert not harness.pool.running()
    lines = trace.read_text().split()
    assert len(lines) == len(set(lines)), "a job started twice"


async def test_jobs_that_kill_their_child_do_not_affect_others() -> None:
    async with PoolHarness(processes=2) as harness:
        jobs = [harness.job("die", how=9) if n % 25 == 24 else harness.job("noop") for n in range(500)]
        harness.send(*jobs)
        await harness.all_done(jobs, timeout=60)
        assert harness.kinds() == {OutcomeKind.OK: 480, OutcomeKind.CRASHED: 20}


async def test_user_code_that_closes_the_childs_descriptors_crashes(tmp_path: Path) -> None:
    async with PoolHarness(processes=1) as harness:
        trace = tmp_path / "trace"
        job = harness.send(harness.job("close_descriptors", path=str(trace)))
        pid = await running_pid(trace)
        outcome = await harness.outcome(job)
        assert outcome.kind is OutcomeKind.CRASHED
        assert outcome.is_counted, "a task that does this each time would be retried for ever"
        assert "SIGKILL, sent by this worker): it closed its connection to the worker" in (outcome.failed_reason or "")
        await eventually_async(lambda: not is_running(pid))
        assert ok(await harness.run("add", a=1, b=1)) == 2


async def test_a_child_that_sends_garbage_is_killed(tmp_path: Path) -> None:
    """Without that, the parent would wait for the rest of a frame of four gigabytes, and the task for its end."""
    async with PoolHarness(processes=1) as harness:
        trace = tmp_path / "trace"
        job = harness.send(harness.job("write_garbage", path=str(trace)))
        pid = await running_pid(trace)
        outcome = await harness.outcome(job)
        assert outcome.kind is OutcomeKind.CRASHED
        assert outcome.is_counted, "a task that does this each time would be retried for ever"
        assert "it sent what is no report" in (outcome.failed_reason or "")
        await eventually_async(lambda: not is_running(pid))
        assert ok(await harness.run("add", a=1, b=1)) == 2


async def test_a_report_that_does_not_fit_into_the_memory_of_the_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of the stream is lost with it, so that no later report can be read either."""
    feed = FrameReader.feed

    def feeds(self: FrameReader, data: bytes) -> list[tuple[int, bytes]]:
        if b"x" * 1000 in data:
            raise MemoryError
        return feed(self, data)

    async with PoolHarness(processes=1) as harness:
        await harness.all_ready()
        monkeypatch.setattr(FrameReader, "feed", feeds)
        outcome = await harness.run("big", size=1_000_000)
        assert outcome.kind is OutcomeKind.CRASHED
        assert outcome.is_counted
        assert "its report did not fit into the memory of the worker" in (outcome.failed_reason or "")
        assert ok(await harness.run("add", a=1, b=1)) == 2


async def test_a_signal_handler_that_reports_while_the_task_reports() -> None:
    """It interrupts the thread that sends, and would wait for the end of that for ever."""
    async with PoolHarness(processes=1) as harness:
        job = harness.send(harness.job("handler_reports", seconds=1))
        rung = ok(await harness.outcome(job))
        progress = [json.loads(text) for task_id, text in harness.progress if task_id == job.task_id]
        assert sorted(one["rung"] for one in progress if isinstance(one, dict)) == list(range(1, rung + 1))
        assert len(harness.pids()) == 1
        assert harness.deaths == []


async def test_copies_of_a_task_do_not_report_on_its_connection() -> None:
    """Their frames would fall into the middle of others, and the child would be killed for what it sent."""
    async with PoolHarness(processes=1) as harness:
        answers = ok(await harness.run("forks_report", copies=4))
        assert len(answers) == 4
        assert all("a fork of the process that runs the task cannot report" in answer for answer in answers)
        assert {text[1] for _, text in harness.progress} == {"y"}
        assert harness.deaths == []


@pytest.mark.parametrize(("task", "kwargs"), [("add", {"a": 1, "b": 1}), ("async_sleep", {"seconds": 0})])
async def test_a_child_that_has_no_memory_for_its_job_leaves(task: str, kwargs: dict[str, int]) -> None:
    """A part of the stream is lost, so that the task would stay RUNNING for ever."""
    async with PoolHarness(processes=1) as harness:
        first = ok(await harness.run("out_of_memory"))
        outcome = await harness.run(task, **kwargs)
        assert outcome.kind is OutcomeKind.CRASHED
        assert "exited with code 70" in (outcome.failed_reason or "")
        assert ok(await harness.run("sleep", seconds=0)) != first


async def test_programs_of_a_dead_child_end_with_it(tmp_path: Path) -> None:
    async with PoolHarness(processes=1) as harness:
        trace = tmp_path / "trace"
        job = harness.send(harness.job("with_subprocess", path=str(trace), seconds=60))
        inner = await running_pid(trace)
        child = int(trace.read_text().split()[0])
        os.kill(child, signal.SIGKILL)
        await harness.outcome(job)
        await eventually_async(lambda: not is_running(inner), timeout=1)


async def test_a_dead_template_is_replaced() -> None:
    async with PoolHarness(processes=2) as harness:
        await harness.all_ready()
        await asyncio.sleep(1.1)  # a template that dies at once is a failed start
        old = harness.pids()
        running = harness.send(harness.job("sleep", seconds=0.8))
        template = harness.pool.stats().template_pid
        assert template is not None
        os.kill(template, signal.SIGKILL)
        # The running job goes on; a new template replaces all children.
        assert ok(await harness.outcome(running)) in old
        await eventually_async(lambda: len(harness.pids()) == 2 and not harness.pids() & old)
        assert ok(await harness.run("add", a=1, b=1)) == 2
        await eventually_async(lambda: not any(is_running(pid) for pid in old))
        assert harness.pool.stats().start_failures == 0


async def test_a_crash_is_reported_without_a_template(tmp_path: Path) -> None:
    async with PoolHarness(processes=1) as harness:
        await asyncio.sleep(1.1)
        trace = tmp_path / "trace"
        job = harness.send(harness.job("in_c", seconds=60, path=str(trace)))
        pid = await running_pid(trace)
        template = harness.pool.stats().template_pid
        assert template is not None
        os.kill(template, signal.SIGKILL)
        await eventually_async(lambda: harness.pool.stats().template_pid != template)
        assert is_running(pid)
        os.kill(pid, signal.SIGKILL)
        outcome = await harness.outcome(job)
        assert outcome.kind is OutcomeKind.CRASHED
        assert ok(await harness.run("add", a=1, b=1)) == 2


async def test_a_crash_is_reported_beside_a_stopped_template(tmp_path: Path) -> None:
    """Only the template can report how a child ended, but not that it ended."""
    async with PoolHarness(processes=1) as harness:
        trace = tmp_path / "trace"
        job = harness.send(harness.job("in_c", seconds=60, path=str(trace)))
        pid = await running_pid(trace)
        template = harness.pool.stats().template_pid
        assert template is not None
        await freeze(template)
        os.kill(pid, signal.SIGKILL)
        assert (await harness.outcome(job)).kind is OutcomeKind.CRASHED
        await eventually_async(lambda: not is_running(template))
        assert ok(await harness.run("add", a=1, b=1)) == 2


async def test_a_stopped_template_is_replaced() -> None:
    """An idle child dies, and the template neither reports that nor starts another one."""
    async with PoolHarness(processes=1, start_timeout_s=0.5) as harness:
        await harness.all_ready()
        await asyncio.sleep(1.1)  # a template that dies at once is a failed start
        template = harness.pool.stats().template_pid
        assert template is not None
        (child,) = harness.pids()
        await freeze(template)
        os.kill(child, signal.SIGKILL)
        await eventually_async(lambda: not is_running(child))
        assert ok(await harness.run("add", a=1, b=1)) == 2
        await eventually_async(lambda: not is_running(template))


async def test_out_of_descriptors_backs_off_and_recovers() -> None:
    async with PoolHarness(processes=1, start_attempts=10) as harness:
        (pid,) = harness.pids()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, hard))
        try:
            os.kill(pid, signal.SIGKILL)
            await eventually_async(lambda: harness.pool.stats().start_failures >= 2)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert ok(await harness.run("add", a=1, b=1)) == 2
        assert not harness.fatal


MEMORY = Path("/sys/fs/cgroup/memory")


async def test_the_failed_reason_names_an_oom_kill(tmp_path: Path) -> None:
    group = MEMORY / f"horsies-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as exc:
        pytest.skip(f"no writable memory cgroup: {exc}")
    try:
        async with PoolHarness(processes=1) as harness:
            (pid,) = harness.pids()
            (group / "memory.limit_in_bytes").write_text(str(150 << 20))
            (group / "cgroup.procs").write_text(str(pid))
            outcome = await harness.run("grow", megabytes=400)
            assert outcome.kind is OutcomeKind.CRASHED
            assert "signal 9" in (outcome.failed_reason or "")
            assert "probably out of memory" in (outcome.failed_reason or "")
    finally:
        await eventually_async(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


# -- time ---------------------------------------------------------------------------------------------


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


# -- output --------------------------------------------------------------------------------------------


async def test_a_flood_of_output_into_a_stopped_sink_blocks_no_job() -> None:
    reader, writer = os.pipe()  # never read
    try:
        async with PoolHarness(processes=2, output=(writer, writer)) as harness:
            await harness.all_ready()
            flood = harness.send(harness.job("say", text="x" * 65535 + "\n", times=4000))
            others = [harness.job("add", a=n, b=1) for n in range(200)]
            harness.send(*others)
            await harness.all_done(others, timeout=20)
            assert ok(await harness.outcome(flood, timeout=60)) == 4000 * 65536
            assert harness.pool.stats().output_dropped_bytes > 200 << 20
    finally:
        os.close(reader)
        os.close(writer)


async def test_a_sink_that_is_full_and_not_blocking_loses_no_output() -> None:
    """Another process that has the same terminal or pipe may make it so."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    try:
        async with PoolHarness(processes=1, output=(writer, writer)) as harness:
            size, times = 1000, 500  # more than the pipe holds
            sent = harness.send(harness.job("say", text="x" * (size - 1) + "\n", times=times))

            def is_full() -> bool:
                # not by bytes: a page of the pipe may be half empty where the next write did not fit into it
                return not select.select([], [writer], [], 0)[1]

            await eventually_async(is_full)
            got = bytearray()
            while len(got) < size * times:
                got += await asyncio.wait_for(asyncio.to_thread(os.read, reader, 1 << 16), 10)
            assert ok(await harness.outcome(sent)) == size * times
            assert set(bytes(got).splitlines()) == {b"x" * (size - 1)}
            assert harness.pool.stats().output_dropped_bytes == 0
    finally:
        os.close(reader)
        os.close(writer)


async def test_a_pool_stops_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of processes and threads of a container is reached."""

    def refuses(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    async with PoolHarness(processes=1) as harness:
        assert ok(await harness.run("add", a=1, b=1)) == 2
        with monkeypatch.context() as limited:
            limited.setattr(threading.Thread, "start", refuses)
            await harness.pool.stop(0)
        assert not harness.pids()


async def test_a_pool_does_not_start_where_no_thread_can_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(_self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    harness = PoolHarness(processes=1)
    with monkeypatch.context() as limited:
        limited.setattr(threading.Thread, "start", refuses)
        with pytest.raises(ChildStartError, match="can't start new thread"):
            await harness.pool.start()
    await harness.pool.stop(0)


async def test_output_is_cut_and_escaped(tmp_path: Path) -> None:
    sink = tmp_path / "sink"
    with sink.open("wb") as file:
        async with PoolHarness(processes=1, output=(file.fileno(), file.fileno())) as harness:
            await harness.run("say", text="\x1b[2Jred\x07 %s {} \u202eevil\n")
            await harness.run("say", text="y" * 10_000_000 + "\n")
            await harness.run("printing", text="printed")
            await harness.run("say", text="to stderr\n", stream=2)
            await harness.run("say", text="no end of line")
    lines = sink.read_bytes().split(b"\n")
    assert b"\\x1b[2Jred\\x07 %s {} \\u202eevil" in lines
    assert b"printed" in lines
    assert b"to stderr" in lines
    assert b"no end of line" in lines
    (cut,) = [line for line in lines if line.startswith(b"yyy")]
    assert len(cut) < 8300
    assert cut.endswith(b"more bytes cut]")
