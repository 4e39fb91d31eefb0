"""A log sink that stops reading: the worker goes on, and can still stop."""

import fcntl
import json
import os
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from horsies import gather
from tests.support.postgres import Database
from tests.support.waiting import eventually
from tests.support.workers import APP, LEDGER_VARIABLE, ROOT, VARIABLE, describe, tasks_on

F_SETPIPE_SZ = 1031


@pytest.mark.parametrize("module", ["horsies_worker", "horsies.cli worker"])
@pytest.mark.parametrize("closed", ["<&- >&- 2>&-", ">&-", "2>&-"])
def test_standard_descriptors_that_are_closed(db: Database, tmp_path: Path, module: str, closed: str) -> None:
    """Their numbers would go to sockets, into which a task that prints would write."""
    command = f'exec "$0" -m {module} {APP} --processes=1 --health-file={tmp_path / "health"} {closed}'
    worker = subprocess.Popen(
        ["sh", "-c", command, sys.executable], cwd=ROOT, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        env={**os.environ, VARIABLE: json.dumps(describe(db)), LEDGER_VARIABLE: str(tmp_path)},
    )  # fmt: skip
    try:
        with tasks_on(db) as tasks:
            for _ in range(2):
                assert tasks.say.send("something is odd", 3).get(20_000).ok == 48
                died = tasks.die.send(-3)
                assert died.get(20_000).err_value.error_code == "WORKER_CRASHED"
                assert "exited with code 3" in (died.info().failed_reason or "")
        for number in (0, 1, 2):
            assert Path(f"/proc/{worker.pid}/fd/{number}").readlink() == Path(os.devnull)
        worker.terminate()
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.wait()


def test_a_scheduler_whose_standard_descriptors_are_closed(db: Database, tmp_path: Path) -> None:
    health = tmp_path / "health"
    command = f'exec "$0" -m horsies.cli scheduler {APP} --health-file={health} <&- >&- 2>&-'
    scheduler = subprocess.Popen(
        ["sh", "-c", command, sys.executable], cwd=ROOT, start_new_session=True,
        env={**os.environ, VARIABLE: json.dumps(describe(db)), LEDGER_VARIABLE: str(tmp_path)},
    )  # fmt: skip
    try:
        eventually(health.exists)
        for number in (0, 1, 2):
            assert Path(f"/proc/{scheduler.pid}/fd/{number}").readlink() == Path(os.devnull)
        scheduler.terminate()
        assert scheduler.wait(30) == 0
    finally:
        scheduler.kill()
        scheduler.wait()


def test_a_blocked_log_sink_stops_neither_work_nor_exit(db: Database, tmp_path: Path) -> None:
    """No process reads the pipe; with DEBUG it is full after a few tasks."""
    reader, writer = os.pipe()
    fcntl.fcntl(writer, F_SETPIPE_SZ, 4096)
    options = ["--processes=1", "--loglevel=DEBUG", f"--health-file={tmp_path / 'health'}"]
    worker = subprocess.Popen(
        [sys.executable, "-m", "horsies_worker", APP, *options], stdout=writer, stderr=writer, cwd=ROOT,
        env={**os.environ, VARIABLE: json.dumps(describe(db)), LEDGER_VARIABLE: str(tmp_path)},
    )  # fmt: skip
    os.close(writer)
    try:
        with tasks_on(db) as tasks:
            results = gather(tasks.flaky.send_many([(2,) for _ in range(50)]), timeout_ms=60_000)
        assert {result.is_ok() for result in results} == {True}
        # a short write into a pipe is atomic: the pipe is full when the next line does not fit
        waiting = int.from_bytes(fcntl.ioctl(reader, termios.FIONREAD, bytes(4)), sys.byteorder)
        assert waiting > 3900, f"only {waiting} bytes in the pipe: this test would prove nothing"
        worker.terminate()
        assert worker.wait(30) == 0
    finally:
        worker.kill()
        worker.wait()
        os.close(reader)
