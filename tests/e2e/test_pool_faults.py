"""The child pool on bad days: kills, crashes, timeouts, cancellations, floods. Real processes, real signals."""

import asyncio
import contextlib
import os
import random
import resource
import signal
import time
from pathlib import Path

import pytest

from horsies_worker.jobs import OutcomeKind
from tests.support.pools import Yard, err, freeze, is_running, ok
from tests.support.waiting import eventually_async


async def running_pid(trace: Path) -> int:
    """The pid that a task wrote as the last word of its first line."""
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
async def test_a_death_is_told_exactly(task: str, kwargs: dict[str, int], words: list[str] | None) -> None:
    async with Yard(processes=2) as yard:
        await yard.all_ready()
        bystander = yard.send(yard.job("sleep", seconds=0.5))
        if words is None:
            # SIGTERM that the parent did not ask for is ignored.
            dying = yard.send(yard.job("die", how=15, timeout_ms=700))
            assert (await yard.outcome(dying)).kind is OutcomeKind.TIMEOUT
            return
        outcome = await yard.run(task, **kwargs)
        assert outcome.kind is OutcomeKind.CRASHED
        assert outcome.error_code == "WORKER_CRASHED"
        assert err(outcome)["error_code"] == "WORKER_CRASHED"
        for word in words:
            assert word in (outcome.failed_reason or "")
        assert outcome.started_mono is not None
        assert ok(await yard.outcome(bystander)) > 0
        assert yard.pool.stats().deaths == 1


async def test_a_dead_child_is_replaced_within_a_second(tmp_path: Path) -> None:
    async with Yard(processes=1) as yard:
        trace = tmp_path / "trace"
        job = yard.send(yard.job("in_c", seconds=60, path=str(trace)))
        pid = await running_pid(trace)
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        assert (await yard.outcome(job)).kind is OutcomeKind.CRASHED
        assert time.monotonic() - began < 0.5
        assert ok(await yard.run("add", a=1, b=1)) == 2
        assert time.monotonic() - began < 1.0


async def test_killed_at_random_every_job_is_attributed(tmp_path: Path) -> None:
    """Handed ahead and killed: what came back never started, what crashed is at most one per kill, nothing twice."""
    trace = tmp_path / "trace"
    chance = random.Random(7)
    crashed = kills = 0
    async with Yard(processes=2, feed=False) as yard:
        while not yard.pool.is_short("counted"):
            await yard.run("counted", path=str(trace))
        for _ in range(40):
            await yard.all_ready()
            jobs = [yard.job("counted", path=str(trace)) for _ in range(60)]
            del yard.unstarted[:]
            yard.send(*jobs)
            await asyncio.sleep(chance.uniform(0, 0.004))
            victim = chance.choice(sorted(yard.pids()) or [0])
            with contextlib.suppress(ProcessLookupError):  # the victim of the round before, not yet noticed
                if victim:
                    os.kill(victim, signal.SIGKILL)
                    kills += 1
            await eventually_async(
                lambda jobs=jobs: len(yard.unstarted) + sum(j.task_id in yard.outcomes for j in jobs) == len(jobs),
                interval=0.002,
            )
            started = set(trace.read_text().split())
            back = {job.task_id for job in yard.unstarted}
            assert not back & started, "a job was given back although it had started"
            assert not back & yard.outcomes.keys()
            crashed += sum(
                yard.outcomes[j.task_id][0].kind is OutcomeKind.CRASHED for j in jobs if j.task_id not in back
            )
        assert crashed <= kills
        assert all(len(outcomes) == 1 for outcomes in yard.outcomes.values())
        assert not yard.pool.running()
    lines = trace.read_text().split()
    assert len(lines) == len(set(lines)), "a job started twice"


async def test_poison_among_good_jobs() -> None:
    async with Yard(processes=2) as yard:
        jobs = [yard.job("die", how=9) if n % 25 == 24 else yard.job("noop") for n in range(500)]
        yard.send(*jobs)
        await yard.all_done(jobs, timeout=60)
        assert yard.kinds() == {OutcomeKind.OK: 480, OutcomeKind.CRASHED: 20}


async def test_user_code_that_closes_our_descriptors_is_a_crash(tmp_path: Path) -> None:
    async with Yard(processes=1) as yard:
        trace = tmp_path / "trace"
        job = yard.send(yard.job("close_descriptors", path=str(trace)))
        pid = await running_pid(trace)
        assert (await yard.outcome(job)).kind is OutcomeKind.CRASHED
        await eventually_async(lambda: not is_running(pid))
        assert ok(await yard.run("add", a=1, b=1)) == 2


async def test_programs_of_a_dead_child_end_with_it(tmp_path: Path) -> None:
    async with Yard(processes=1) as yard:
        trace = tmp_path / "trace"
        job = yard.send(yard.job("with_subprocess", path=str(trace), seconds=60))
        inner = await running_pid(trace)
        child = int(trace.read_text().split()[0])
        os.kill(child, signal.SIGKILL)
        await yard.outcome(job)
        await eventually_async(lambda: not is_running(inner), timeout=1)


async def test_the_template_dies() -> None:
    async with Yard(processes=2) as yard:
        await yard.all_ready()
        await asyncio.sleep(1.1)  # a template that dies at once is a failed start
        old = yard.pids()
        running = yard.send(yard.job("sleep", seconds=0.8))
        template = yard.pool._template
        assert template is not None
        os.kill(template.pid, signal.SIGKILL)
        # What runs goes on; everybody is replaced from a new template.
        assert ok(await yard.outcome(running)) in old
        await eventually_async(lambda: len(yard.pids()) == 2 and not yard.pids() & old)
        assert ok(await yard.run("add", a=1, b=1)) == 2
        await eventually_async(lambda: not any(is_running(pid) for pid in old))
        assert yard.pool.stats().start_failures == 0


async def test_a_child_of_a_dead_template_crashes(tmp_path: Path) -> None:
    async with Yard(processes=1) as yard:
        await asyncio.sleep(1.1)
        trace = tmp_path / "trace"
        job = yard.send(yard.job("in_c", seconds=60, path=str(trace)))
        pid = await running_pid(trace)
        template = yard.pool._template
        assert template is not None
        os.kill(template.pid, signal.SIGKILL)
        await eventually_async(lambda: yard.pool._template is not template)
        assert is_running(pid)
        os.kill(pid, signal.SIGKILL)
        outcome = await yard.outcome(job)
        assert outcome.kind is OutcomeKind.CRASHED
        assert ok(await yard.run("add", a=1, b=1)) == 2


async def test_out_of_descriptors_backs_off_and_recovers() -> None:
    async with Yard(processes=1, start_attempts=10) as yard:
        (pid,) = yard.pids()
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (8, hard))
        try:
            os.kill(pid, signal.SIGKILL)
            await eventually_async(lambda: yard.pool._failures >= 2)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert ok(await yard.run("add", a=1, b=1)) == 2
        assert not yard.fatal


MEMORY = Path("/sys/fs/cgroup/memory")


async def test_an_oom_kill_is_named(tmp_path: Path) -> None:
    group = MEMORY / f"horsies-test-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as exc:
        pytest.skip(f"no writable memory cgroup: {exc}")
    try:
        async with Yard(processes=1) as yard:
            (pid,) = yard.pids()
            (group / "memory.limit_in_bytes").write_text(str(150 << 20))
            (group / "cgroup.procs").write_text(str(pid))
            outcome = await yard.run("grow", megabytes=400)
            assert outcome.kind is OutcomeKind.CRASHED
            assert "signal 9" in (outcome.failed_reason or "")
            assert "probably out of memory" in (outcome.failed_reason or "")
    finally:
        await eventually_async(lambda: not (group / "cgroup.procs").read_text())
        group.rmdir()


# -- time ---------------------------------------------------------------------------------------------


async def test_a_timeout_interrupts_and_the_child_lives_on(tmp_path: Path) -> None:
    async with Yard(processes=1) as yard:
        trace = tmp_path / "trace"
        outcome = await yard.run("cleans_up", path=str(trace), timeout_ms=200)
        assert outcome.kind is OutcomeKind.TIMEOUT
        assert outcome.error_code == "TASK_TIMEOUT"
        assert trace.read_text() == "start\ncleanup timeout\n"
        assert "time.sleep" in err(outcome)["data"]["traceback"]
        assert outcome.started_mono is not None
        assert 0.15 < outcome.finished_mono - outcome.started_mono < 1
        assert ok(await yard.run("sleep", seconds=0)) == outcome.pid


async def test_a_timeout_in_c_kills_that_child_alone(tmp_path: Path) -> None:
    async with Yard(processes=2) as yard:
        await yard.all_ready()
        began = time.monotonic()
        job = yard.send(yard.job("in_c", seconds=60, timeout_ms=300))
        bystanders = [yard.job("sleep", seconds=0.3) for _ in range(5)]
        yard.send(*bystanders)
        outcome = await yard.outcome(job)
        # 0.3 s until the exception, which C does not see, 0.3 s to SIGTERM, 0.3 s to SIGKILL.
        assert time.monotonic() - began < 2.5
        assert outcome.kind is OutcomeKind.TIMEOUT
        assert outcome.error_code == "TASK_TIMEOUT"
        assert "SIGKILL, sent by this worker" in (outcome.failed_reason or "")
        assert all(ok(o) for o in await yard.all_done(bystanders))


async def test_user_code_that_swallows_everything_is_killed(tmp_path: Path) -> None:
    async with Yard(processes=1) as yard:
        trace = tmp_path / "trace"
        outcome = await yard.run("stubborn", path=str(trace), timeout_ms=200)
        assert outcome.kind is OutcomeKind.TIMEOUT
        assert "swallowed TaskStopped" in trace.read_text()


async def test_a_job_that_ends_in_time_leaves_no_timeout_behind() -> None:
    async with Yard(processes=1) as yard:
        assert ok(await yard.run("sleep", seconds=0.1, timeout_ms=200)) > 0
        # The next one is older than the first one's deadline, and has none.
        assert ok(await yard.run("sleep", seconds=0.5)) > 0
        assert ok(await yard.run("sleep", seconds=0.1, timeout_ms=10_000)) > 0


async def test_async_timeouts(tmp_path: Path) -> None:
    async with Yard(processes=1) as yard:
        trace = tmp_path / "trace"
        other = yard.send(yard.job("async_sleep", seconds=0.6))
        outcome = await yard.run("async_cleans_up", path=str(trace), timeout_ms=200)
        assert outcome.kind is OutcomeKind.TIMEOUT
        assert trace.read_text() == "start\ncleanup\n"
        assert ok(await yard.outcome(other)) == outcome.pid


async def test_an_async_job_that_will_not_end_costs_its_child(tmp_path: Path) -> None:
    async with Yard(processes=1) as yard:
        trace = tmp_path / "trace"
        stuck = yard.send(yard.job("async_stubborn", path=str(trace), timeout_ms=200))
        victim = yard.send(yard.job("async_sleep", seconds=60))
        outcome = await yard.outcome(stuck)
        assert outcome.kind is OutcomeKind.TIMEOUT
        assert trace.read_text().count("swallowed") >= 2
        shared = await yard.outcome(victim)
        assert shared.kind is OutcomeKind.CRASHED
        assert "to stop another task" in (shared.failed_reason or "")
        assert ok(await yard.run("async_sleep", seconds=0)) > 0


async def test_a_frozen_child_times_out() -> None:
    async with Yard(processes=1) as yard:
        (pid,) = yard.pids()
        job = yard.send(yard.job("sleep", seconds=1, timeout_ms=1500))
        await asyncio.sleep(0.3)
        await freeze(pid)
        assert job in yard.pool.alive()
        outcome = await yard.outcome(job)
        assert outcome.kind is OutcomeKind.TIMEOUT


async def test_a_child_frozen_between_jobs_loses_its_turn() -> None:
    async with Yard(processes=1, feed=True) as yard:
        (pid,) = yard.pids()
        await freeze(pid)
        assert ok(await yard.run("add", a=1, b=1)) == 2
        await eventually_async(lambda: not is_running(pid))
        assert yard.kinds() == {OutcomeKind.OK: 1}


async def test_a_child_in_c_is_alive(tmp_path: Path) -> None:
    async with Yard(processes=1) as yard:
        trace = tmp_path / "trace"
        job = yard.send(yard.job("in_c", seconds=2, path=str(trace)))
        await running_pid(trace)
        for _ in range(10):
            assert list(yard.pool.alive()) == [job]
            await asyncio.sleep(0.1)
        assert ok(await yard.outcome(job)) == 1


# -- cancellation --------------------------------------------------------------------------------------


async def test_cancel_asks_first(tmp_path: Path) -> None:
    async with Yard(processes=2) as yard:
        await yard.all_ready()
        for answer in ("ok", "err"):
            trace = tmp_path / answer
            job = yard.send(yard.job("cooperative", path=str(trace), answer=answer))
            await eventually_async(trace.exists)
            yard.pool.cancel(job.task_id, job.generation)
            outcome = await yard.outcome(job)
            if answer == "ok":
                assert ok(outcome) == "partial"  # the work is done: its result stands
            else:
                assert outcome.kind is OutcomeKind.CANCELLED
                assert outcome.error_code == "TASK_CANCELLED"
                assert err(outcome)["data"]["error_code"] == "STOPPED_EARLY"


async def test_cancel_then_interrupts(tmp_path: Path) -> None:
    async with Yard(processes=1) as yard:
        trace = tmp_path / "trace"
        job = yard.send(yard.job("cleans_up", path=str(trace)))
        await eventually_async(trace.exists)
        yard.pool.cancel(job.task_id, job.generation + 1)  # another attempt's
        yard.pool.cancel("task-999999", 1)
        yard.pool.cancel(job.task_id, job.generation)
        outcome = await yard.outcome(job)
        assert outcome.kind is OutcomeKind.CANCELLED
        assert outcome.started_mono is not None
        assert trace.read_text() == "start\ncleanup cancelled\n"
        assert ok(await yard.run("sleep", seconds=0)) == outcome.pid


async def test_cancel_of_a_job_in_c_and_of_an_async_one(tmp_path: Path) -> None:
    async with Yard(processes=1) as yard:
        trace = tmp_path / "a"
        job = yard.send(yard.job("async_cleans_up", path=str(trace)))
        await eventually_async(trace.exists)
        yard.pool.cancel(job.task_id, job.generation)
        assert (await yard.outcome(job)).kind is OutcomeKind.CANCELLED
        deaf = yard.send(yard.job("in_c", seconds=60, path=str(tmp_path / "c")))
        await running_pid(tmp_path / "c")
        yard.pool.cancel(deaf.task_id, deaf.generation)
        assert (await yard.outcome(deaf)).kind is OutcomeKind.CANCELLED


async def test_cancel_of_a_job_that_waits_in_a_child(tmp_path: Path) -> None:
    async with Yard(processes=1, feed=False) as yard:
        trace = tmp_path / "trace"
        while not yard.pool.is_short("counted"):
            await yard.run("counted", path=str(trace))
        # The child is frozen, so all of these wait in it.
        (pid,) = yard.pids()
        await freeze(pid)
        jobs = [yard.job("counted", path=str(trace)) for _ in range(4)]
        yard.send(*jobs)
        inside = [job for job in jobs if job in yard.pool.running()]
        assert len(inside) >= 2
        target = inside[-1]
        yard.pool.cancel(target.task_id, target.generation)
        outcome = yard.outcomes[target.task_id][0]
        assert outcome.kind is OutcomeKind.CANCELLED
        assert outcome.started_mono is None
        os.kill(pid, signal.SIGCONT)
        others = [job for job in inside if job is not target]
        await eventually_async(lambda: all(job.task_id in yard.outcomes or job in yard.unstarted for job in others))
        assert target.task_id not in trace.read_text().split()


async def test_abandon_stops_and_says_nothing(tmp_path: Path) -> None:
    async with Yard(processes=1) as yard:
        trace = tmp_path / "trace"
        job = yard.send(yard.job("cleans_up", path=str(trace)))
        await eventually_async(trace.exists)
        yard.pool.abandon(job.task_id, job.generation)
        await eventually_async(lambda: "cleanup" in trace.read_text())
        deaf = yard.send(yard.job("in_c", seconds=60, path=str(tmp_path / "c")))
        await running_pid(tmp_path / "c")
        yard.pool.abandon(deaf.task_id, deaf.generation)
        assert ok(await yard.run("add", a=1, b=1)) == 2
        assert job.task_id not in yard.outcomes
        assert deaf.task_id not in yard.outcomes
        assert not yard.pool.running()


# -- output --------------------------------------------------------------------------------------------


async def test_a_flood_of_output_into_a_stopped_sink_blocks_nobody() -> None:
    reader, writer = os.pipe()  # nobody reads
    try:
        async with Yard(processes=2, output=(writer, writer)) as yard:
            await yard.all_ready()
            flood = yard.send(yard.job("say", text="x" * 65535 + "\n", times=4000))
            others = [yard.job("add", a=n, b=1) for n in range(200)]
            yard.send(*others)
            await yard.all_done(others, timeout=20)
            assert ok(await yard.outcome(flood, timeout=60)) == 4000 * 65536
            assert yard.pool.stats().output_dropped_bytes > 200 << 20
    finally:
        os.close(reader)
        os.close(writer)


async def test_output_is_cut_and_escaped(tmp_path: Path) -> None:
    sink = tmp_path / "sink"
    with sink.open("wb") as file:
        async with Yard(processes=1, output=(file.fileno(), file.fileno())) as yard:
            await yard.run("say", text="\x1b[2Jred\x07 %s {} \u202eevil\n")
            await yard.run("say", text="y" * 10_000_000 + "\n")
            await yard.run("printing", text="printed")
            await yard.run("say", text="to stderr\n", stream=2)
            await yard.run("say", text="no end of line")
    lines = sink.read_bytes().split(b"\n")
    assert b"\\x1b[2Jred\\x07 %s {} \\u202eevil" in lines
    assert b"printed" in lines
    assert b"to stderr" in lines
    assert b"no end of line" in lines
    (cut,) = [line for line in lines if line.startswith(b"yyy")]
    assert len(cut) < 8300
    assert cut.endswith(b"more bytes cut]")
