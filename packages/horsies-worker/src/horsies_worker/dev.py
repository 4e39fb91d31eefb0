"""`horsies dev`: runs the worker as a subprocess and starts it again when a Python file changes.

The embedded server runs for as long as this process uses it, across restarts of the worker.
"""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from math import inf
from pathlib import Path
from types import FrameType

from horsies.config.dsn import is_embedded
from horsies.errors import HorsiesError
from horsies_worker import signals
from horsies_worker.exit_codes import ExitCode
from horsies_worker.process import OWNER_PIPE, complain
from horsies_worker.stop import HURRY_S, SHORTEST_S

_CHECK_EVERY_S = 0.5
_LATE_S = 2.0
_SKIPPED = frozenset({".git", ".venv", "venv", "node_modules", "__pycache__", ".mypy_cache", ".ruff_cache"})


def run_dev(arguments: Sequence[str], directories: Sequence[Path], *, reload: bool, shutdown_timeout_s: float) -> int:
    """Run `horsies worker <arguments>` with a database until Ctrl-C, restarting it after changes."""
    given = os.environ.get("HORSIES_DATABASE_URL") or "embedded://"
    if is_embedded(given):
        from horsies_schema import embedded

        try:
            os.environ["HORSIES_DATABASE_URL"] = embedded.resolve(given)
        except embedded.EmbeddedError as error:
            complain(str(error))
            return ExitCode.DATABASE
        url = shlex.quote(os.environ["HORSIES_DATABASE_URL"])
        sys.stderr.write(
            f"horsies dev: embedded PostgreSQL; for your other programs:\n\n  export HORSIES_DATABASE_URL={url}\n\n"
        )
    runner = _Runner([sys.executable, "-m", "horsies_worker", *arguments], shutdown_timeout_s)
    signals.repair()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        if signals.may_handle(number):
            signal.signal(number, runner.on_signal)
    try:
        return runner.run(directories if reload else ())
    except HorsiesError as error:
        complain(str(error))
        return ExitCode.FAILED


class _Runner:
    def __init__(self, command: Sequence[str], shutdown_timeout_s: float) -> None:
        self._command = command
        self._shutdown_timeout_s = shutdown_timeout_s
        self._kill_at = inf
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: int | None = None
        self._leaving = False

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        hurry = self._leaving or number == signal.SIGQUIT
        self._leaving = True
        self._tell_to_stop(hurry=hurry)

    def _tell_to_stop(self, *, hurry: bool = False) -> None:
        """The worker bounds its own stop; if it exceeds the bound, it is killed a little later."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGQUIT if hurry else signal.SIGTERM)
            left = HURRY_S if hurry else max(self._shutdown_timeout_s, SHORTEST_S)
            self._kill_at = min(self._kill_at, time.monotonic() + left + _LATE_S)

    def run(self, directories: Sequence[Path]) -> int:
        seen = _fingerprint(directories)
        self._start()
        while True:
            code = self._wait(_CHECK_EVERY_S)
            if self._leaving:
                if self._kill_at == inf:  # the signal came during a restart, before this worker could be told
                    self._tell_to_stop()
                code = self._wait_ended() or ExitCode.CLEAN
                if code == -signal.SIGKILL:
                    return ExitCode.FAILED
                return max(code, ExitCode.CLEAN)  # the signal kills a worker that has not installed its handlers yet
            if not directories:
                if code is not None:
                    return code
                continue
            found = _fingerprint(directories)
            if found != seen:
                changed = ", ".join(sorted({Path(path).name for path, _ in found ^ seen})[:3])
                sys.stderr.write(f"horsies dev: {changed} changed, starting again\n")
                seen = found
                self._end()
                if not self._leaving:
                    self._start()
            elif code is not None:
                sys.stderr.write(f"horsies dev: the worker ended with code {code}; waiting for a change\n")
                self._process = None

    def _start(self) -> None:
        # In a session of its own, the worker gets one signal from this process instead of Ctrl-C. If this process is
        # killed, the worker sees the end of the pipe.
        theirs, ours = os.pipe()
        with os.fdopen(theirs, "rb"):
            self._process = subprocess.Popen(
                self._command, start_new_session=True, pass_fds=(theirs,), env={**os.environ, OWNER_PIPE: str(theirs)}
            )
        if self._pipe is not None:
            os.close(self._pipe)
        self._pipe = ours
        self._kill_at = inf

    def _end(self) -> None:
        self._tell_to_stop()
        self._wait_ended()

    def _wait_ended(self) -> int | None:
        while self._process is not None:
            code = self._wait(_CHECK_EVERY_S)
            if code is not None:
                return code
            if time.monotonic() > self._kill_at:
                sys.stderr.write("horsies dev: the worker does not stop, killing it\n")
                self._process.kill()
        return None

    def _wait(self, timeout: float) -> int | None:
        if self._process is None:
            time.sleep(timeout)
            return None
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None


def _fingerprint(directories: Iterable[Path]) -> set[tuple[str, float]]:
    found: set[tuple[str, float]] = set()
    for directory in directories:
        for root, folders, files in os.walk(directory):
            folders[:] = [name for name in folders if name not in _SKIPPED]
            for name in files:
                if name.endswith(".py"):
                    path = os.path.join(root, name)  # noqa: PTH118  (os.walk returns strings)
                    try:
                        found.add((path, os.stat(path).st_mtime))  # noqa: PTH116
                    except OSError:
                        continue  # an editor is replacing the file; the next check sees it
    return found
