"""Children and templates that die, break or cannot be started. Real processes and signals, no database."""

import asyncio
import contextlib
import json
import os
import random
import resource
import signal
import threading
import time
from pathlib import Path

import pytest

from horsies_worker.child.frames import FrameReader
from horsies_worker.child.outcome import OutcomeKind
from horsies_worker.children.child_starter import ChildStartError
from tests.support.pools import PoolHarness, err, freeze, is_running, ok, running_pid
from tests.support.waiting import eventually_async


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
