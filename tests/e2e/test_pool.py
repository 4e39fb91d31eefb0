"""The child pool without faults: assigns jobs, reports outcomes, recycles, starts and stops. Real processes."""

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

from horsies_worker.child.outcome import OutcomeKind
from horsies_worker.children.child_starter import ChildStartError
from tests.support.pools import PoolHarness, err, is_running, ok
from tests.support.waiting import eventually_async


async def test_an_outcome_has_result_times_and_process() -> None:
    async with PoolHarness() as harness:
        before = time.monotonic()
        outcome = await harness.run("add", a=2, b=3)
        assert ok(outcome) == 5
        assert outcome.result == '{"ok":5}'
        assert outcome.started_mono is not None
        assert before <= outcome.started_mono <= outcome.finished_mono <= time.monotonic()
        assert outcome.pid in {child.pid for child in harness.pool.stats().children}
        assert outcome.process_name.startswith("horsies-child-")


async def test_sync_jobs_run_one_at_a_time_per_child() -> None:
    async with PoolHarness(processes=2) as harness:
        await harness.all_ready()
        jobs = [harness.job("sleep", seconds=0.15) for _ in range(6)]
        harness.send(*jobs)
        spans = sorted((o.pid, o.started_mono or 0, o.finished_mono) for o in await harness.all_done(jobs))
        assert len({pid for pid, _, _ in spans}) == 2
        for (pid, _, end), (next_pid, start, _) in itertools.pairwise(spans):
            assert pid != next_pid or end <= start


async def test_a_thousand_async_jobs_share_one_child() -> None:
    async with PoolHarness(processes=1, async_concurrency=1000) as harness:
        before = time.monotonic()
        jobs = [harness.job("async_sleep", seconds=1.0) for _ in range(1000)]
        harness.send(*jobs)
        await harness.all_done(jobs)
        assert time.monotonic() - before < 4
        assert harness.kinds() == {OutcomeKind.OK: 1000}


async def test_async_concurrency_is_respected() -> None:
    async with PoolHarness(processes=1, async_concurrency=5) as harness:
        assert harness.pool.room().asynchronous == 5
        jobs = [harness.job("async_sleep", seconds=0.1) for _ in range(20)]
        harness.send(*jobs)
        assert harness.pool.room().asynchronous == 0
        outcomes = await harness.all_done(jobs)
        points = [(o.started_mono or 0, 1) for o in outcomes] + [(o.finished_mono, -1) for o in outcomes]
        most = current = 0
        for _, change in sorted(points, key=lambda point: (point[0], point[1])):
            current += change
            most = max(most, current)
        assert most <= 5


async def test_short_async_jobs_wait_for_a_place_and_each_ends_once() -> None:
    async with PoolHarness(processes=2, async_concurrency=5) as harness:
        await harness.prove_short("async_sleep", seconds=0)
        assert harness.pool.room().asynchronous > 10
        jobs = [harness.job("async_sleep", seconds=0) for _ in range(3000)]
        harness.send(*jobs)
        assert len(harness.pool.running()) > 10
        assert all(child.running <= 5 for child in harness.pool.stats().children)
        await harness.all_done(jobs)
        assert set(harness.kinds()) == {OutcomeKind.OK}
        assert not harness.pool.running()
        # a long one shows that the next may be long as well
        await harness.run("async_sleep", seconds=0.05)
        assert harness.pool.room().asynchronous == 10


async def test_an_async_job_runs_beside_a_sync_job() -> None:
    async with PoolHarness(processes=1) as harness:
        slow = harness.send(harness.job("sleep", seconds=1.0))
        before = time.monotonic()
        assert ok(await harness.run("async_sleep", seconds=0.05)) > 0
        assert time.monotonic() - before < 0.8
        assert ok(await harness.outcome(slow)) > 0


async def test_an_async_job_leaves_nothing_for_the_garbage_collector() -> None:
    async with PoolHarness(processes=1) as harness:
        for _ in range(3):
            assert ok(await harness.run("async_leftovers")) == 0


async def test_current_task_and_progress() -> None:
    async with PoolHarness() as harness:
        job = harness.send(harness.job("who", timeout_ms=60_000))
        value = ok(await harness.outcome(job))
        assert (value["id"], value["name"], value["attempt"]) == (job.task_id, "who", 1)
        assert value["token"] == job.generation
        assert value["cancelled"] is False
        left = datetime.fromisoformat(value["deadline"]) - datetime.now(UTC)
        assert 50 < left.total_seconds() <= 60
        async_job = harness.send(harness.job("async_who"))
        assert ok(await harness.outcome(async_job)) == async_job.task_id
        assert harness.progress == [(job.task_id, '{"half":0.5}'), (async_job.task_id, '"async"')]


async def test_short_jobs_queue_in_children_and_each_ends_once() -> None:
    async with PoolHarness(processes=2) as harness:
        jobs = [harness.job("noop") for _ in range(5000)]
        harness.send(*jobs)
        await harness.all_done(jobs)
        assert harness.kinds() == {OutcomeKind.OK: 5000}
        assert harness.pool.is_short("noop")
        assert "noop" in harness.pool.short_names()
        assert harness.pool.room().ahead > 0
        assert not harness.pool.running()


async def test_run_ahead_can_be_switched_off_for_the_worker_and_for_a_job() -> None:
    async with PoolHarness(processes=1, run_ahead=False) as harness:
        jobs = [harness.job("noop") for _ in range(50)]
        harness.send(*jobs)
        await harness.all_done(jobs)
        assert not harness.pool.is_short("noop")
        assert harness.pool.room().ahead == 0
    async with PoolHarness(processes=1) as harness:
        jobs = [harness.job("noop", run_ahead=False) for _ in range(50)]
        harness.send(*jobs)
        await harness.all_done(jobs)
        assert harness.pool.room().ahead == 0  # the claimer takes no more of them than there are idle children
    async with PoolHarness(processes=1, feed=False) as harness:
        for _ in range(50):
            await harness.run("noop")
        jobs = [harness.job("noop", run_ahead=False) for _ in range(3)]
        harness.send(*jobs)
        # The idle child gets the first job; the others must not wait behind it.
        assert harness.unstarted == jobs[1:]


async def test_jobs_behind_an_overrunning_current_job_are_taken_back(tmp_path: Path) -> None:
    async with PoolHarness(processes=1, feed=False) as harness:
        trace = str(tmp_path / "trace")
        while not harness.pool.is_short("counted"):
            await harness.run("counted", path=trace)
        slow = harness.job("counted", path=trace, seconds=0.5)
        others = [harness.job("counted", path=trace) for _ in range(10)]
        harness.send(slow, *others)
        # Jobs beyond 10 ms of predicted work come back at once, the others from behind the slow job.
        at_once = len(harness.unstarted)
        assert at_once < len(others)
        await eventually_async(lambda: len(harness.unstarted) == len(others), timeout=0.4, interval=0.001)
        assert {job.task_id for job in harness.unstarted} == {job.task_id for job in others}
        assert not harness.pool.is_short("counted")
        await harness.outcome(slow)
        started = Path(trace).read_text().split()
        assert not set(started) & {job.task_id for job in others}


async def test_an_eight_megabyte_result_does_not_hold_up_the_loop() -> None:
    async with PoolHarness(processes=2) as harness:
        await harness.all_ready()
        big = harness.send(harness.job("big", size=8_000_000))
        longest = 0.0
        while big.task_id not in harness.outcomes:
            before = time.monotonic()
            await asyncio.sleep(0)
            longest = max(longest, time.monotonic() - before)
        assert len(ok(harness.outcomes[big.task_id][0])) == 8_000_000
        assert longest < 0.2
        assert ok(await harness.run("length", text="y" * 8_000_000)) == 8_000_000


@pytest.mark.parametrize(
    ("kind", "code", "text"),
    [
        ("exit", "UNHANDLED_EXCEPTION", "SystemExit: 3"),
        ("system_exit", "UNHANDLED_EXCEPTION", "SystemExit: bye"),
        ("interrupt", "UNHANDLED_EXCEPTION", "KeyboardInterrupt"),
        ("group", "UNHANDLED_EXCEPTION", "ExceptionGroup: both (2 sub-exceptions)"),
        ("base", "UNHANDLED_EXCEPTION", "BaseException: base"),
        ("unprintable", "UNHANDLED_EXCEPTION", "Unprintable: <its __str__ raised RuntimeError>"),
        ("exits", "UNHANDLED_EXCEPTION", "Exits: <its __str__ raised SystemExit>"),
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
        ("retry_after_float", "LATER", "try again"),
        ("retry_after_negative", "LATER", "try again"),
    ],
)
async def test_every_exception_and_return_value_becomes_an_outcome(
    odd_harness: PoolHarness, kind: str, code: str, text: str
) -> None:
    outcome = await odd_harness.run("odd", kind=kind)
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
async def odd_harness() -> AsyncIterator[PoolHarness]:
    async with PoolHarness(processes=1) as harness:
        yield harness
        assert harness.names() == {"horsies-child-1"}, "the child was replaced"


async def test_user_code_that_forks_and_returns_twice_reports_once(odd_harness: PoolHarness) -> None:
    assert ok(await odd_harness.run("odd", kind="forked")) == 7
    assert ok(await odd_harness.run("add", a=1, b=1)) == 2


@pytest.mark.parametrize("how", ["returns", "awaits", "raises"])
async def test_an_async_task_that_forks_leaves_its_siblings_to_the_original(
    odd_harness: PoolHarness, tmp_path: Path, how: str
) -> None:
    """The copy has the same event loop: it must neither take jobs, nor report, nor step the tasks beside it."""
    trace, steps = tmp_path / "steps", 2_000
    sibling = odd_harness.send(odd_harness.job("async_steps", path=str(trace), steps=steps))
    await eventually_async(trace.exists)
    forking = [odd_harness.send(odd_harness.job("async_forks", how=how)) for _ in range(5)]
    jobs = [odd_harness.send(odd_harness.job("async_sleep", seconds=0.01)) for _ in range(50)]
    assert [ok(outcome) for outcome in await odd_harness.all_done(forking)] == [7] * 5
    assert {ok(outcome) for outcome in await odd_harness.all_done(jobs)} == odd_harness.pids()
    assert ok(await odd_harness.outcome(sibling)) in odd_harness.pids()
    assert [line.split()[0] for line in trace.read_text().splitlines()] == [str(step) for step in range(steps)]


async def test_every_exception_of_an_async_job_becomes_an_outcome(odd_harness: PoolHarness) -> None:
    assert (await odd_harness.run("async_odd", kind="exit")).error_message == "SystemExit: 1"
    assert (await odd_harness.run("async_odd", kind="cancel")).kind is OutcomeKind.ERR
    assert (await odd_harness.run("async_odd", kind="x")).error_message == "ValueError: x"
    exits = (await odd_harness.run("async_odd", kind="exits")).error_message or ""
    assert exits.endswith("Exits: <its __str__ raised SystemExit>")
    assert (await odd_harness.run("async_odd", kind="retry_after_float")).error_code == "LATER"
    assert ok(await odd_harness.run("async_odd", kind="sub_exit")) == 1
    assert ok(await odd_harness.run("async_sleep", seconds=0)) > 0


async def test_async_jobs_that_a_sibling_cancels_before_they_begin_are_reported(odd_harness: PoolHarness) -> None:
    """`for task in asyncio.all_tasks(): task.cancel()` in user code also finds tasks that have not taken a step."""
    await odd_harness.all_ready()
    jobs = [odd_harness.job("async_odd", kind="cancel_all")]
    jobs += [odd_harness.job("async_sleep", seconds=60) for _ in range(20)]
    odd_harness.send(*jobs)
    outcomes = await odd_harness.all_done(jobs)
    assert ok(outcomes[0]) == 1
    assert {outcome.kind for outcome in outcomes[1:]} == {OutcomeKind.ERR}
    assert any("its asyncio task was cancelled before it began" in (one.error_message or "") for one in outcomes)


async def test_an_alarm_that_a_task_forgot_ends_no_child(odd_harness: PoolHarness) -> None:
    """Its handler raises while the child waits for the next task."""
    sibling = odd_harness.send(odd_harness.job("async_sleep", seconds=1))
    assert ok(await odd_harness.run("odd", kind="alarm")) == 1
    assert ok(await odd_harness.outcome(sibling)) in odd_harness.pids()
    assert ok(await odd_harness.run("add", a=1, b=1)) == 2


async def test_an_unknown_name_and_wrong_arguments_become_outcomes(odd_harness: PoolHarness) -> None:
    unknown = await odd_harness.run("no_such_task")
    assert unknown.error_code == "WORKER_RESOLUTION_ERROR"
    wrong = await odd_harness.run("add", a="x", b=1)
    assert wrong.error_code == "WORKER_SERIALIZATION_ERROR"
    assert "'a'" in (wrong.error_message or "")


async def test_too_large_a_result_is_a_failure(odd_harness: PoolHarness) -> None:
    outcome = await odd_harness.run("big", size=17 * 1024 * 1024)
    assert outcome.error_code == "WORKER_SERIALIZATION_ERROR"


async def test_start_hooks_run_once_in_each_child() -> None:
    async with PoolHarness("tests.support.pool_apps:hooked", processes=1) as harness:
        assert ok(await harness.run("hook_calls")) == 1


async def test_with_one_task_per_child_each_job_runs_once(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with PoolHarness(processes=2, max_tasks_per_child=1) as harness:
        jobs = [harness.job("counted", path=str(trace)) for _ in range(100)]
        harness.send(*jobs)
        outcomes = await harness.all_done(jobs, timeout=60)
        assert harness.kinds() == {OutcomeKind.OK: 100}
        assert len({outcome.pid for outcome in outcomes}) == 100
        assert harness.deaths == []
    assert sorted(trace.read_text().split()) == sorted(job.task_id for job in jobs)


async def test_recycling_by_count_with_run_ahead() -> None:
    async with PoolHarness(processes=2, max_tasks_per_child=25) as harness:
        jobs = [harness.job("noop") for _ in range(1000)]
        harness.send(*jobs)
        outcomes = await harness.all_done(jobs)
        per_child: dict[int, int] = {}
        for outcome in outcomes:
            per_child[outcome.pid] = per_child.get(outcome.pid, 0) + 1
        assert max(per_child.values()) <= 25
        assert harness.deaths == []


async def test_recycling_by_memory_and_age() -> None:
    async with PoolHarness(processes=1, max_memory_mb=200) as harness:
        first = ok(await harness.run("grow", megabytes=10))
        assert ok(await harness.run("grow", megabytes=250)) == first
        await eventually_async(lambda: harness.pids() and first not in harness.pids())
        assert ok(await harness.run("grow", megabytes=1)) != first
        assert "horsies-child-3" not in harness.names(), "it was recycled once"
        assert harness.deaths == []
    async with PoolHarness(processes=1, max_age_s=0.5) as harness:
        first_pids = harness.pids()
        await eventually_async(lambda: harness.pids() and not harness.pids() & first_pids)


async def test_a_child_that_is_too_large_from_its_start_runs_one_job(caplog: pytest.LogCaptureFixture) -> None:
    async with PoolHarness(processes=1, max_memory_mb=1) as harness:
        first, second = ok(await harness.run("grow", megabytes=1)), ok(await harness.run("grow", megabytes=1))
        assert first != second, "replaced after its job"
    told = [record.getMessage() for record in caplog.records if "a fresh child has" in record.getMessage()]
    assert len(told) == 1, "once, however many children there were"
    assert "above the 1 of --max-memory-per-child-mb" in told[0]


async def test_the_age_of_a_child_counts_from_when_it_is_ready() -> None:
    """A slow start does not use up the time in which it takes jobs."""
    async with PoolHarness("tests.support.pool_apps:slow_start", processes=1, max_age_s=1.2) as harness:
        ready = time.monotonic()
        await eventually_async(lambda: "horsies-child-2" in harness.names())
        assert time.monotonic() - ready > 1


async def test_stop_lets_running_jobs_finish_and_gives_the_rest_back(tmp_path: Path) -> None:
    harness = PoolHarness(processes=1)
    async with harness:
        for _ in range(10):
            await harness.run("noop")
        slow = harness.send(harness.job("sleep", seconds=0.6, path=str(tmp_path / "t")))
        await eventually_async((tmp_path / "t").exists)
        harness.feed = False
        began = time.monotonic()
        await harness.pool.stop(10)
        assert time.monotonic() - began < 3
        assert harness.outcomes[slow.task_id][0].kind is OutcomeKind.OK
        harness.pool.submit([late := harness.job("noop")])
        assert harness.unstarted == [late]
        assert harness.pool.room().sync == 0


async def test_stop_interrupts_after_its_timeout(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    async with PoolHarness(processes=2) as harness:
        await harness.all_ready()
        polite = harness.send(harness.job("cleans_up", path=str(trace)))
        deaf = harness.send(harness.job("in_c", seconds=60, path=str(tmp_path / "c")))
        await eventually_async(lambda: trace.exists() and (tmp_path / "c").exists())
        began = time.monotonic()
        await harness.pool.stop(1.0, 0.5)
        assert time.monotonic() - began < 3
        assert "cleanup shutdown" in trace.read_text()
        for job in (polite, deaf):
            outcome = harness.outcomes[job.task_id][0]
            assert outcome.finished_mono - began >= 1.0, "all of its time"
            assert outcome.kind is OutcomeKind.INTERRUPTED
            assert outcome.error_code == "WORKER_CRASHED"
            assert "interrupted by shutdown" in (outcome.failed_reason or "")


async def test_hurry_interrupts_at_once(tmp_path: Path) -> None:
    async with PoolHarness(processes=1) as harness:
        job = harness.send(harness.job("sleep", seconds=60, path=str(tmp_path / "t")))
        await eventually_async((tmp_path / "t").exists)
        asyncio.get_running_loop().call_later(0.2, harness.pool.hurry)
        began = time.monotonic()
        await harness.pool.stop(60)
        assert time.monotonic() - began < 2
        assert harness.outcomes[job.task_id][0].kind is OutcomeKind.INTERRUPTED


async def test_children_ignore_signals_that_are_meant_for_the_parent(tmp_path: Path) -> None:
    """A supervisor may signal the whole control group, and a terminal all processes: only the parent reacts."""
    async with PoolHarness(processes=1) as harness:
        job = harness.send(harness.job("sleep", seconds=0.5, path=str(tmp_path / "t")))
        await eventually_async((tmp_path / "t").exists)
        (pid,) = harness.pids()
        assert os.getpgid(pid) != os.getpgid(0)
        for number in (
            signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
        ):  # fmt: skip
            os.kill(pid, number)
            os.kill(psutil.Process(pid).ppid(), number)  # the template
        assert ok(await harness.outcome(job)) == pid
        assert ok(await harness.run("add", a=1, b=1)) == 2


async def test_programs_that_user_code_starts_inherit_no_descriptor_of_the_worker() -> None:
    async with PoolHarness(processes=2) as harness:
        await harness.all_ready()
        found: list[str] = ok(await harness.run("inherited"))
        assert not [name for name in found if name.startswith(("socket:", "pipe:", "anon_inode:"))]


async def test_the_parents_descriptors_do_not_leak() -> None:
    async with PoolHarness(processes=3) as harness:
        await harness.all_ready()
        found: list[str] = ok(await harness.run("descriptors"))
        # Three sockets (jobs, commands, lifeline), and none of the siblings or the template.
        assert sum(name.startswith("socket:") for name in found) <= 3 + 2  # + the loop's own wake-up pair
        assert not any("postgres" in name for name in found)


async def test_an_app_that_cannot_be_imported_is_fatal_with_its_traceback() -> None:
    harness = PoolHarness("tests.support.no_such_module:app", start_attempts=2)
    with pytest.raises(ChildStartError, match="no_such_module"):
        await harness.pool.start()
    assert len(harness.fatal) == 1
    assert "ModuleNotFoundError" in harness.fatal[0]
    assert not harness.outcomes


async def test_a_broken_start_hook_backs_off_and_fails_no_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flag = tmp_path / "flag"
    flag.touch()
    monkeypatch.setenv("HORSIES_TEST_HOOK_FLAG", str(flag))
    async with PoolHarness("tests.support.pool_apps:broken_hook", processes=1, start_attempts=5) as harness:
        assert ok(await harness.run("noop")) == 0
        flag.unlink()
        (pid,) = harness.pids()
        os.kill(pid, signal.SIGKILL)
        await eventually_async(lambda: harness.pool.stats().start_failures >= 2)
        waiting = harness.send(harness.job("noop"))
        flag.touch()
        assert ok(await harness.outcome(waiting)) == 0
        assert harness.pool.stats().start_failures == 0
        flag.unlink()
        os.kill(harness.pids().pop(), signal.SIGKILL)
        await eventually_async(lambda: harness.fatal, timeout=15)
        assert "the hook is broken" in harness.fatal[0]
    assert set(harness.kinds()) == {OutcomeKind.OK}


async def test_children_import_an_app_themselves_whose_import_starts_threads(caplog: pytest.LogCaptureFixture) -> None:
    async with PoolHarness("tests.support.pool_threaded_app:app", processes=1) as harness:
        assert ok(await harness.run("threads")) >= 1
    assert "thread" in caplog.text


async def test_stop_leaves_no_process(tmp_path: Path) -> None:
    async with PoolHarness(processes=2) as harness:
        await harness.all_ready()
        pids = harness.pids()
        template = harness.pool.stats().template_pid
        assert template is not None
        assert is_running(template)
    assert not any(is_running(pid) for pid in {*pids, template})
