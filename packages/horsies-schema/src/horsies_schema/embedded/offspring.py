"""The keeper's child processes: started as the server's account, tied to the keeper's life, all reaped at its end.

On Linux a child gets a signal when the keeper dies (PR_SET_PDEATHSIG) and grandchildren come to the keeper when the
postmaster dies (PR_SET_CHILD_SUBREAPER). Elsewhere the next keeper clears up. Call these from the main thread only,
and spawn before any other thread exists: the death signal is bound to the thread that forked.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Final

from horsies_schema.embedded.account import Account
from horsies_schema.embedded.binaries import clean_environment

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_CHILD_SUBREAPER: Final = 36


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies."""
    if sys.platform == "linux":
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def spawn(
    command: Sequence[str], account: Account | None, *, output: int | IO[bytes], death_signal: signal.Signals
) -> subprocess.Popen[bytes]:
    """Start `command` as `account`, with a clean signal mask, to be ended by `death_signal` when we die."""
    return subprocess.Popen(
        command,
        cwd="/",
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
        preexec_fn=_tie_to_parent(death_signal),  # noqa: PLW1509  (no other thread exists yet, see above)
        user=None if account is None else account.uid,
        group=None if account is None else account.gid,
        extra_groups=None if account is None else account.groups,
    )


def run_bound(command: Sequence[str], account: Account | None, timeout: float) -> subprocess.CompletedProcess[str]:
    """Run `command` to its end and collect what it printed; killed at `timeout` or when we die."""
    process = spawn(command, account, output=subprocess.PIPE, death_signal=signal.SIGKILL)
    try:
        printed, _ = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, printed.decode(errors="replace"))


def end_orphans(patience: float = 2.0) -> None:
    """End and reap what a dead postmaster left to us: backends in a long query do not notice its death."""
    if sys.platform != "linux":
        return
    for step in (signal.SIGQUIT, signal.SIGKILL):
        for pid in _children():
            try:
                os.kill(pid, step)
            except ProcessLookupError:
                pass
        deadline = time.monotonic() + patience
        while time.monotonic() < deadline:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                time.sleep(0.01)


def _children() -> list[int]:
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text()
            except OSError:
                continue
            # "pid (name) state ppid ...", where the name may itself contain anything.
            if int(status.rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(entry.name))
    return found


def _tie_to_parent(death_signal: signal.Signals) -> Callable[[], None]:
    keeper = os.getpid()

    def tie() -> None:
        # subprocess calls this after it has dropped privileges, as it must be: setuid clears the death signal.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        if sys.platform == "linux":
            _prctl(_PR_SET_PDEATHSIG, death_signal)
            if os.getppid() != keeper:  # died before we asked
                os._exit(1)

    return tie


_libc: Final = ctypes.CDLL(None)


def _prctl(option: int, value: int) -> None:
    # Best effort: a sandbox that forbids it loses tidiness after kill -9, and the next start clears up.
    _libc.prctl(option, *(ctypes.c_ulong(argument) for argument in (value, 0, 0, 0)))
