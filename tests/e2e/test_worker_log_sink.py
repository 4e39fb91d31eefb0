"""A log sink that stops reading: the worker goes on, and can still stop."""

import fcntl
import json
import os
import subprocess
import sys
import termios
from pathlib import Path

from horsies import gather
from tests.support.postgres import Database
from tests.support.workers import APP, LEDGER_VARIABLE, ROOT, VARIABLE, describe, tasks_on

F_SETPIPE_SZ = 1031


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
