"""Signals that reach a child process. Real processes, no database."""

import os
import signal
from pathlib import Path

import pytest

from horsies_worker.child.outcome import OutcomeKind
from tests.support.pools import PoolHarness, ok
from tests.support.waiting import eventually, eventually_async


async def test_a_child_survives_all_signals_at_the_same_moment() -> None:
    """The kernel stacks one frame of 3 to 11 KB for each pending signal before the first handler runs. On the
    alternate stack of `faulthandler`, which has 16 KB, the sixth of them ended the child by SIGSEGV."""
    async with PoolHarness(processes=1) as harness:
        (pid,) = harness.pids()
        assert ok(await harness.run("signal_burst")) > 50
        assert harness.pids() == {pid}
        assert harness.deaths == []


@pytest.mark.parametrize("how", ["event loop", "signals"])
async def test_what_a_task_does_to_signals_ends_with_it(how: str, tmp_path: Path) -> None:
    async with PoolHarness(processes=1, kill_grace_s=1) as harness:
        (pid,) = harness.pids()
        assert ok(await harness.run("changes_signals", how=how)) == pid
        trace = tmp_path / "trace"
        job = harness.send(harness.job("cleans_up", path=str(trace), seconds=60))
        await eventually_async(trace.exists)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE):
            os.kill(pid, number)
        harness.pool.cancel(job.task_id, job.generation)
        # by the flag first, then by our signal
        await eventually_async(lambda: "cleanup" in trace.read_text())
        assert (await harness.outcome(job)).kind is OutcomeKind.CANCELLED
        assert harness.pids() == {pid}


async def test_a_stack_overflow_leaves_its_python_stack_on_stderr(tmp_path: Path) -> None:
    written = tmp_path / "stderr"
    sink = os.open(written, os.O_WRONLY | os.O_CREAT)
    try:
        async with PoolHarness(processes=1, output=(1, sink)) as harness:
            outcome = await harness.run("stack_overflow")
            assert outcome.kind is OutcomeKind.CRASHED
        eventually(lambda: "in stack_overflow" in written.read_text())
    finally:
        os.close(sink)
