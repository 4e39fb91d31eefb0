"""The child pool on good days: jobs in, outcomes out, with real processes and without a database."""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from horsies_worker.jobs import OutcomeKind
from horsies_worker.pool import ChildStartError
from tests.support.pools import Yard, err, is_running, ok
from tests.support.waiting import eventually_async


async def test_a_job_runs_and_reports_its_span() -> None:
    async with Yard() as yard:
        before = time.monotonic()
        outcome = await yard.run("add", a=2, b=3)
        assert ok(outcome) == 5
        assert outcome.result == '{"ok":5}'
        assert outcome.started_mono is not None
        assert before <= outcome.started_mono <= outcome.finished_mono <= time.monotonic()
        assert outcome.pid in {child.pid for child in yard.pool.stats().children}
        assert outcome.process_name.startswith("horsies-child-")


async def test_sync_jobs_run_one_at_a_time_per_child() -> None:
    async with Yard(processes=2) as yard:
        await yard.all_ready()
        jobs = [yard.job("sleep", seconds=0.15) for _ in range(6)]
        yard.send(*jobs)
        spans = sorted((o.pid, o.started_mono or 0, o.finished_mono) for o in await yard.all_done(jobs))
        assert len({pid for pid, _, _ in spans}) == 2
        for (pid, _, end), (next_pid, start, _) in itertools.pairwise(spans):
            assert pid != next_pid or end <= start


async def test_a_thousand_async_jobs_share_one_child() -> None:
    async with Yard(processes=1, async_concurrency=1000) as yard:
        before = time.monotonic()
        jobs = [yard.job("async_sleep", seconds=1.0) for _ in range(1000)]
        yard.send(*jobs)
        await yard.all_done(jobs)
        assert time.monotonic() - before < 4
        assert yard.kinds() == {OutcomeKind.OK: 1000}


async def test_async_jobs_respect_their_places() -> None:
    async with Yard(processes=1, async_concurrency=5) as yard:
        assert yard.pool.room().asynchronous == 5
        jobs = [yard.job("async_sleep", seconds=0.1) for _ in range(20)]
        yard.send(*jobs)
        assert yard.pool.room().asynchronous == 0
        outcomes = await yard.all_done(jobs)
        points = [(o.started_mono or 0, 1) for o in outcomes] + [(o.finished_mono, -1) for o in outcomes]
        most = current = 0
        for _, change in sorted(points, key=lambda point: (point[0], point[1])):
            current += change
            most = max(most, current)
        assert most <= 5


async def test_sync_and_async_live_side_by_side() -> None:
    async with Yard(processes=1) as yard:
        slow = yard.send(yard.job("sleep", seconds=1.0))
        before = time.monotonic()
        assert ok(await yard.run("async_sleep", seconds=0.05)) > 0
        assert time.monotonic() - before < 0.8
        assert ok(await yard.outcome(slow)) > 0


async def test_current_task_and_progress() -> None:
    async with Yard() as yard:
        job = yard.send(yard.job("who", timeout_ms=60_000))
        value = ok(await yard.outcome(job))
        assert (value["id"], value["name"], value["attempt"]) == (job.task_id, "who", 1)
        assert value["token"] == job.generation
        assert value["cancelled"] is False
        left = datetime.fromisoformat(value["deadline"]) - datetime.now(UTC)
        assert 50 < left.total_seconds() <= 60
        async_job = yard.send(yard.job("async_who"))
        assert ok(await yard.outcome(async_job)) == async_job.task_id
        assert yard.progress == [(job.task_id, '{"half":0.5}'), (async_job.task_id, '"async"')]


async def test_short_jobs_are_handed_ahead_and_all_end_once() -> None:
    async with Yard(processes=2) as yard:
        jobs = [yard.job("noop") for _ in range(5000)]
        yard.send(*jobs)
        await yard.all_done(jobs)
        assert yard.kinds() == {OutcomeKind.OK: 5000}
        assert yard.pool.is_short("noop")
        assert "noop" in yard.pool.short_names()
        assert yard.pool.room().ahead > 0
        assert not yard.pool.running()


async def test_run_ahead_can_be_switched_off_for_the_worker_and_for_a_job() -> None:
    async with Yard(processes=1, run_ahead=False) as yard:
        jobs = [yard.job("noop") for _ in range(50)]
        yard.send(*jobs)
        await yard.all_done(jobs)
        assert not yard.pool.is_short("noop")
        assert yard.pool.room().ahead == 0
    async with Yard(processes=1, feed=False) as yard:
        for _ in range(50):
            await yard.run("noop")
        jobs = [yard.job("noop", run_ahead=False) for _ in range(3)]
        yard.send(*jobs)
        # The idle child takes the first; the others may not wait behind it.
        assert yard.unstarted == jobs[1:]


async def test_jobs_behind_a_slow_front_come_back(tmp_path: Path) -> None:
    async with Yard(processes=1, feed=False) as yard:
        trace = str(tmp_path / "trace")
        while not yard.pool.is_short("counted"):
            await yard.run("counted", path=trace)
        slow = yard.job("counted", path=trace, seconds=0.5)
        others = [yard.job("counted", path=trace) for _ in range(10)]
        yard.send(slow, *others)
        # Some did not fit into 10 ms of predicted work and came back at once, the rest behind the slow one.
        at_once = len(yard.unstarted)
        assert at_once < len(others)
        await eventually_async(lambda: len(yard.unstarted) == len(others), timeout=0.4, interval=0.001)
        assert {job.task_id for job in yard.unstarted} == {job.task_id for job in others}
        assert not yard.pool.is_short("counted")
        await yard.outcome(slow)
        started = Path(trace).read_text().split()
        assert not set(started) & {job.task_id for job in others}


async def test_an_eight_megabyte_result_does_not_hold_up_the_loop() -> None:
    async with Yard(processes=2) as yard:
        await yard.all_ready()
        big = yard.send(yard.job("big", size=8_000_000))
        longest = 0.0
        while big.task_id not in yard.outcomes:
            before = time.monotonic()
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - before)
        assert len(ok(yard.outcomes[big.task_id][0])) == 8_000_000
        assert longest < 0.2
        assert ok(await yard.run("length", text="y" * 8_000_000)) == 8_000_000


@pytest.mark.parametrize(
    ("kind", "code", "text"),
    [
        ("exit", "UNHANDLED_EXCEPTION", "SystemExit: 3"),
        ("system_exit", "UNHANDLED_EXCEPTION", "SystemExit: bye"),
        ("interrupt", "UNHANDLED_EXCEPTION", "KeyboardInterrupt"),
        ("group", "UNHANDLED_EXCEPTION", "ExceptionGroup: both (2 sub-exceptions)"),
        ("base", "UNHANDLED_EXCEPTION", "BaseException: base"),
        ("unprintable", "UNHANDLED_EXCEPTION", "Unprintable: <its __str__ raised RuntimeError>"),
        ("nul", "UNHANDLED_EXCEPTION", "ValueError: a\ufffdb\ufffdc"),
        ("net", "NET", "ConnectionResetError: gone"),
        ("io", "IO", "FileNotFoundError: no such thing"),
        ("deep", "UNHANDLED_EXCEPTION", "RecursionError"),
        ("none", "RETURN_TYPE_MISMATCH", "not a TaskResult"),
        ("generator", "RETURN_TYPE_MISMATCH", "not a TaskResult"),
        ("wrong", "RETURN_TYPE_MISMATCH", "return value"),
        ("unserialisable", "RETURN_TYPE_MISMATCH", "return value"),
        ("nul_error", "MINE", "a\ufffdb"),
        ("retry_after", "LATER", "try again"),
    ],
)
async def test_odd_ends_are_recorded(odd_yard: Yard, kind: str, code: str, text: str) -> None:
    outcome = await odd_yard.run("odd", kind=kind)
    assert outcome.kind is OutcomeKind.ERR
    assert outcome.error_code == code
    assert text in (outcome.error_message or "")
    error = err(outcome)
    assert error["error_code"] == code
    assert "\0" not in outcome.result
    if "Error: " in text or "Exit" in text:
        assert "Traceback" in error["data"]["traceback"]
        assert "execute.py" not in error["data"]["traceback"]
    if kind == "retry_after":
        assert outcome.retry_after_ms == 1500


@pytest.fixture
async def odd_yard() -> AsyncIterator[Yard]:
    async with Yard(processes=1) as yard:
        yield yard
        assert yard.pool.stats().starts == 1, "an odd end cost a child"


async def test_a_fork_that_comes_back_twice_reports_once(odd_yard: Yard) -> None:
    assert ok(await odd_yard.run("odd", kind="forked")) == 7
    assert ok(await odd_yard.run("add", a=1, b=1)) == 2


async def test_odd_ends_of_async_jobs(odd_yard: Yard) -> None:
    assert (await odd_yard.run("async_odd", kind="exit")).error_message == "SystemExit: 1"
    assert (await odd_yard.run("async_odd", kind="cancel")).kind is OutcomeKind.ERR
    assert (await odd_yard.run("async_odd", kind="x")).error_message == "ValueError: x"
    assert ok(await odd_yard.run("async_odd", kind="sub_exit")) == 1
    assert ok(await odd_yard.run("async_sleep", seconds=0)) > 0


async def test_bad_rows_are_recorded(odd_yard: Yard) -> None:
    unknown = await odd_yard.run("no_such_task")
    assert unknown.error_code == "WORKER_RESOLUTION_ERROR"
    wrong = await odd_yard.run("add", a="x", b=1)
    assert wrong.error_code == "WORKER_SERIALIZATION_ERROR"
    assert "'a'" in (wrong.error_message or "")


async def test_too_large_a_result_is_a_failure(odd_yard: Yard) -> None:
    outcome = await odd_yard.run("big", size=17 * 1024 * 1024)
    assert outcome.error_code == "WORKER_SERIALIZATION_ERROR"


async def test_start_hooks_run_once_in_each_child() -> None:
    async with Yard("tests.support.pool_apps:hooked", processes=1) as yard:
        assert ok(await yard.run("hook_calls")) == 1


async def test_one_task_per_child_neither_loses_nor_doubles(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with Yard(processes=2, max_tasks_per_child=1) as yard:
        jobs = [yard.job("counted", path=str(trace)) for _ in range(300)]
        yard.send(*jobs)
        outcomes = await yard.all_done(jobs, timeout=60)
        assert yard.kinds() == {OutcomeKind.OK: 300}
        assert len({outcome.pid for outcome in outcomes}) == 300
        assert yard.pool.stats().deaths == 0
    assert sorted(trace.read_text().split()) == sorted(job.task_id for job in jobs)


async def test_recycling_by_count_with_run_ahead() -> None:
    async with Yard(processes=2, max_tasks_per_child=25) as yard:
        jobs = [yard.job("noop") for _ in range(1000)]
        yard.send(*jobs)
        outcomes = await yard.all_done(jobs)
        per_child: dict[int, int] = {}
        for outcome in outcomes:
            per_child[outcome.pid] = per_child.get(outcome.pid, 0) + 1
        assert max(per_child.values()) <= 25
        assert yard.pool.stats().deaths == 0


async def test_recycling_by_memory_and_age() -> None:
    async with Yard(processes=1, max_memory_mb=200) as yard:
        first = ok(await yard.run("grow", megabytes=10))
        assert ok(await yard.run("grow", megabytes=250)) == first
        await eventually_async(lambda: yard.pids() and first not in yard.pids())
        assert ok(await yard.run("grow", megabytes=1)) != first
        assert yard.pool.stats().recycled == 1
        assert yard.pool.stats().deaths == 0
    async with Yard(processes=1, max_age_s=0.5) as yard:
        first_pids = yard.pids()
        await eventually_async(lambda: yard.pids() and not yard.pids() & first_pids)


async def test_stop_lets_running_jobs_finish_and_gives_the_rest_back(tmp_path: Path) -> None:
    yard = Yard(processes=1)
    async with yard:
        for _ in range(10):
            await yard.run("noop")
        slow = yard.send(yard.job("sleep", seconds=0.6, path=str(tmp_path / "t")))
        await eventually_async((tmp_path / "t").exists)
        yard._feed = False
        began = time.monotonic()
        await yard.pool.stop(10)
        assert time.monotonic() - began < 3
        assert yard.outcomes[slow.task_id][0].kind is OutcomeKind.OK
        yard.pool.submit([late := yard.job("noop")])
        assert yard.unstarted == [late]
        assert yard.pool.room().sync == 0


async def test_stop_interrupts_after_its_timeout(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with Yard(processes=2) as yard:
        await yard.all_ready()
        polite = yard.send(yard.job("cleans_up", path=str(trace)))
        deaf = yard.send(yard.job("in_c", seconds=60, path=str(tmp_path / "c")))
        await eventually_async(lambda: trace.exists() and (tmp_path / "c").exists())
        began = time.monotonic()
        await yard.pool.stop(1.0)
        assert time.monotonic() - began < 2.5
        assert "cleanup shutdown" in trace.read_text()
        for job in (polite, deaf):
            outcome = yard.outcomes[job.task_id][0]
            assert outcome.kind is OutcomeKind.INTERRUPTED
            assert outcome.error_code == "WORKER_CRASHED"
            assert "interrupted by shutdown" in (outcome.failed_reason or "")


async def test_hurry_interrupts_at_once(tmp_path: Path) -> None:
    async with Yard(processes=1) as yard:
        job = yard.send(yard.job("sleep", seconds=60, path=str(tmp_path / "t")))
        await eventually_async((tmp_path / "t").exists)
        asyncio.get_running_loop().call_later(0.2, yard.pool.hurry)
        began = time.monotonic()
        await yard.pool.stop(60)
        assert time.monotonic() - began < 2
        assert yard.outcomes[job.task_id][0].kind is OutcomeKind.INTERRUPTED


async def test_signals_for_everybody_do_not_reach_children(tmp_path: Path) -> None:
    """A supervisor that signals the whole control group, and a Ctrl-C: the parent decides, children go on."""
    async with Yard(processes=1) as yard:
        job = yard.send(yard.job("sleep", seconds=0.5, path=str(tmp_path / "t")))
        await eventually_async((tmp_path / "t").exists)
        (pid,) = yard.pids()
        assert os.getpgid(pid) != os.getpgid(0)
        for number in (
            signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
        ):  # fmt: skip
            os.kill(pid, number)
            os.kill(psutil.Process(pid).ppid(), number)  # the template
        assert ok(await yard.outcome(job)) == pid
        assert ok(await yard.run("add", a=1, b=1)) == 2


async def test_programs_that_user_code_starts_inherit_no_descriptor_of_ours() -> None:
    async with Yard(processes=2) as yard:
        await yard.all_ready()
        found: list[str] = ok(await yard.run("inherited"))
        assert not [name for name in found if name.startswith(("socket:", "pipe:", "anon_inode:"))]


async def test_the_parents_descriptors_do_not_leak() -> None:
    async with Yard(processes=3) as yard:
        await yard.all_ready()
        found: list[str] = ok(await yard.run("descriptors"))
        # Three sockets (jobs, commands, lifeline), nothing of the siblings or the template.
        assert sum(name.startswith("socket:") for name in found) <= 3 + 2  # + the loop's own wake-up pair
        assert not any("postgres" in name for name in found)


async def test_an_app_that_cannot_be_imported_is_fatal_with_its_traceback() -> None:
    yard = Yard("tests.support.no_such_module:app", start_attempts=2)
    with pytest.raises(ChildStartError, match="no_such_module"):
        await yard.pool.start()
    assert len(yard.fatal) == 1
    assert "ModuleNotFoundError" in yard.fatal[0]
    assert not yard.outcomes


async def test_a_broken_start_hook_backs_off_and_fails_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    monkeypatch.setenv("HORSIES_TEST_HOOK_FLAG", str(flag))
    async with Yard("tests.support.pool_apps:broken_hook", processes=1, start_attempts=5) as yard:
        assert ok(await yard.run("noop")) == 0
        flag.unlink()
        (pid,) = yard.pids()
        os.kill(pid, signal.SIGKILL)
        await eventually_async(lambda: yard.pool.stats().start_failures >= 2)
        waiting = yard.send(yard.job("noop"))
        flag.touch()
        assert ok(await yard.outcome(waiting)) == 0
        assert yard.pool.stats().start_failures == 0
        flag.unlink()
        os.kill(yard.pids().pop(), signal.SIGKILL)
        await eventually_async(lambda: yard.fatal, timeout=15)
        assert "the hook is broken" in yard.fatal[0]
    assert set(yard.kinds()) == {OutcomeKind.OK}


async def test_an_import_that_leaves_threads_behind_falls_back(caplog: pytest.LogCaptureFixture) -> None:
    async with Yard("tests.support.pool_threaded_app:app", processes=1) as yard:
        assert ok(await yard.run("threads")) >= 1
    assert "thread" in caplog.text


async def test_no_process_is_left(tmp_path: Path) -> None:
    async with Yard(processes=2) as yard:
        await yard.all_ready()
        pids = yard.pids()
        template = yard.pool._template
        assert template is not None
    assert not any(is_running(pid) for pid in {*pids, template.pid})
