"""SIGUSR1 to a worker: what each child runs, for how long, and where it is. Real processes, no database."""

import asyncio
import logging
import os
import signal
from pathlib import Path

import pytest

from tests.support.pools import PoolHarness, freeze, ok
from tests.support.waiting import eventually_async

NO_ANSWER = "its event loop did not answer"


@pytest.fixture(autouse=True)
def log_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def reports(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if text.startswith("SIGUSR1: horsies-child-")]


async def report(harness: PoolHarness, caplog: pytest.LogCaptureFixture) -> str:
    """The report of the only child."""
    caplog.clear()
    harness.pool.log_stacks()
    return (await eventually_async(lambda: reports(caplog)))[0]


async def test_a_sync_task(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    async with PoolHarness(processes=1) as harness:
        (pid,) = harness.pids()
        job = harness.send(harness.job("sleep", seconds=60, path=str(tmp_path / "hunter2")))
        await eventually_async((tmp_path / "hunter2").exists)
        text = await report(harness, caplog)
        head, task, *stacks = text.splitlines()
        assert head.startswith(f"SIGUSR1: horsies-child-1, pid {pid}, ready, ")
        assert head.endswith("MB resident, 1 task")
        assert task.startswith(f"task sleep {job.task_id} attempt 1: running for ")
        assert "thread MainThread" in stacks
        assert "    time.sleep(seconds)" in stacks
        assert "hunter2" not in text, "values of arguments are not shown"
        fields = next(vars(record) for record in caplog.records if "task_ids" in vars(record))
        assert (fields["task_ids"], fields["child_pid"]) == ([job.task_id], pid)


async def test_an_idle_child_and_one_that_is_gone_when_it_should_answer(caplog: pytest.LogCaptureFixture) -> None:
    async with PoolHarness(processes=1) as harness:
        assert "MB resident, 0 tasks" in await report(harness, caplog)
        (pid,) = harness.pids()
        await freeze(pid)
        caplog.clear()
        harness.pool.log_stacks()
        os.kill(pid, signal.SIGKILL)
        await eventually_async(lambda: f"SIGUSR1: horsies-child-1 (pid {pid}) has ended meanwhile" in caplog.text)
    caplog.clear()
    harness.pool.log_stacks()
    assert not caplog.messages, "after the stop there are no children"


async def test_jobs_that_have_not_started(caplog: pytest.LogCaptureFixture) -> None:
    async with PoolHarness(processes=1, feed=False) as harness:
        while not harness.pool.is_short("noop"):
            await harness.run("noop")
        await freeze(*harness.pids())
        jobs = [harness.job("noop") for _ in range(3)]
        harness.pool.submit(jobs)
        harness.pool.log_stacks()
        # Only the tokens say which jobs have started, and the child of this report cannot take them.
        (text,) = await eventually_async(lambda: reports(caplog))
        assert text.count(": not started") == 3 - len(harness.unstarted)
        assert ": running" not in text


async def test_async_tasks_with_the_same_stack_are_shown_together(caplog: pytest.LogCaptureFixture) -> None:
    async with PoolHarness(processes=1, async_concurrency=500) as harness:
        jobs = [harness.job("async_sleep", seconds=60) for _ in range(300)]
        harness.send(*jobs)
        await harness.run("async_sleep", seconds=0)  # the others have begun before it
        text = await report(harness, caplog)
        assert f"async task async_sleep {jobs[0].task_id} attempt 1: running for " in text
        assert "and 280 more tasks" in text
        assert f"300 async tasks: async_sleep {jobs[0].task_id} attempt 1; " in text
        assert "and 295 more" in text
        assert text.count("    await asyncio.sleep(seconds)") == 1


async def test_an_async_task_that_blocks_the_loop(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    started, until = tmp_path / "started", tmp_path / "until"
    async with PoolHarness(processes=1) as harness:
        job = harness.send(harness.job("async_blocks", path=str(started), until=str(until)))
        await eventually_async(started.exists)
        for _ in range(2):
            text = await report(harness, caplog)
            assert NO_ANSWER in text
            assert "in async_blocks" in text
        until.touch()
        ok(await harness.outcome(job))
        text = await report(harness, caplog)
        assert NO_ANSWER not in text
        assert "thread MainThread" in text


@pytest.mark.parametrize("task", ["backtracks", "in_c"])
async def test_c_code_that_holds_the_gil(caplog: pytest.LogCaptureFixture, tmp_path: Path, task: str) -> None:
    """`in_c` blocks all signals in its thread as well: another thread runs the handler."""
    started = tmp_path / "started"
    async with PoolHarness(processes=1) as harness:
        (pid,) = harness.pids()
        more = {"seconds": 60} if task == "in_c" else {}
        job = harness.send(harness.job(task, path=str(started), **more))
        await eventually_async(started.exists)
        text = await report(harness, caplog)
        assert NO_ANSWER in text
        assert f"task {task} {job.task_id} attempt 1: running for " in text
        assert f"in {task}" in text
        assert "in _serve_loop" in text, "all threads"
        assert harness.pids() == {pid}


async def test_a_stopped_child(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    async with PoolHarness(processes=1) as harness:
        job = harness.send(harness.job("sleep", seconds=2, path=str(tmp_path / "t")))
        await eventually_async((tmp_path / "t").exists)
        (pid,) = harness.pids()
        await freeze(pid)
        text = await report(harness, caplog)
        assert f"task sleep {job.task_id} attempt 1: running for " in text
        assert f"the process is stopped by a signal or a debugger; `kill -CONT {pid}` continues it" in text
        os.kill(pid, signal.SIGCONT)
        assert ok(await harness.outcome(job)) == pid
        assert "thread MainThread" in await report(harness, caplog)


async def test_a_child_that_is_starting(
    caplog: pytest.LogCaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flag = tmp_path / "flag"
    monkeypatch.setenv("HORSIES_TEST_HOOK_FLAG", str(flag))
    harness = PoolHarness("tests.support.pool_apps:patient", processes=1)
    starting = asyncio.create_task(harness.pool.start())
    try:
        await eventually_async(lambda: harness.pool.stats().children)
        # The very first moments are before the handler of the child.
        while "in wait_for_file" not in (text := await report(harness, caplog)):
            assert "it is starting" in text
        assert ", starting, " in text
        flag.touch()
        await starting
        assert "thread MainThread" in await report(harness, caplog)
    finally:
        flag.touch()
        await starting
        await harness.pool.stop(0)


async def test_a_handler_of_the_app_is_left_alone(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    started, until = tmp_path / "started", tmp_path / "until"
    async with PoolHarness("tests.support.pool_handler_app:app", processes=1) as harness:
        job = harness.send(harness.job("async_blocks", path=str(started), until=str(until)))
        await eventually_async(started.exists)
        text = await report(harness, caplog)
        assert f"async task async_blocks {job.task_id} attempt 1: running for " in text
        assert "it has no signal handler that could write its stacks" in text
        until.touch()
        ok(await harness.outcome(job))
        assert harness.deaths == []


async def test_one_report_at_a_time(caplog: pytest.LogCaptureFixture) -> None:
    async with PoolHarness(processes=2) as harness:
        await harness.all_ready()
        for _ in range(3):
            harness.pool.log_stacks()
        await eventually_async(lambda: len(reports(caplog)) == 2)
        assert caplog.text.count("is being written already") == 2
        assert {text.split(",")[0] for text in reports(caplog)} == {f"SIGUSR1: {name}" for name in harness.names()}
        caplog.clear()
        harness.pool.log_stacks()
        await eventually_async(lambda: len(reports(caplog)) == 2)


async def test_names_that_are_no_text_and_a_child_without_stderr(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    async with PoolHarness(processes=1) as harness:
        harness.send(harness.job("odd_thread", path=str(tmp_path / "t")))
        await eventually_async((tmp_path / "t").exists)
        text = await report(harness, caplog)
        assert "thread half \\ud800\\nforged line\n" in text


async def test_a_report_does_not_hold_up_a_stop(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    async with PoolHarness(processes=1) as harness:
        harness.send(harness.job("in_c", seconds=60, path=str(tmp_path / "t")))
        await eventually_async((tmp_path / "t").exists)
        harness.pool.log_stacks()
        await harness.pool.stop(0)
        await eventually_async(lambda: "has ended meanwhile" in caplog.text)
    assert "no report of" not in caplog.text
