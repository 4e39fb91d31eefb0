"""Memory, processor time and state of this worker's processes, from /proc. Without it (macOS): this process's peak."""

import os
import resource
import time
from collections.abc import Collection
from pathlib import Path
from typing import Final

from horsies_worker.child.meters import PAGE_KB

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_MAX_WAIT_S: Final = 0.1


def machine_mb() -> float:
    return os.sysconf("SC_PHYS_PAGES") * PAGE_KB / 1024


def resident_kb(pid: int) -> int:
    """Return the resident memory, or 0 when it is unknown or the process is gone."""
    try:
        return int(_read(f"/proc/{pid}/statm").split()[1]) * PAGE_KB
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024 if pid == os.getpid() else 0


def process_state(pid: int) -> str:
    """Return the kernel's letter, such as R for running, T for stopped and D for a sleep that no signal ends; empty
    when it is unknown."""
    try:
        return _stat(f"/proc/{pid}")[0].decode()
    except (OSError, IndexError):
        return ""


def handles_signal(pid: int, number: int) -> bool:
    """Return whether the process has a handler for this signal. False when that is unknown."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
        return bool(int(status.split("SigCgt:")[1].split()[0], 16) >> (number - 1) & 1)
    except (OSError, IndexError, ValueError):
        return False


class Processors:
    """The processor time of a changing set of processes since the last call, in percent of one processor."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}
        self._called = time.monotonic()

    def percent(self, pids: Collection[int]) -> float:
        """Return the percentage. A new process counts from the next call on."""
        now = time.monotonic()
        seen = {pid: used for pid in pids if (used := _used_s(pid)) is not None}
        used = sum(max(0.0, total - self._seen[pid]) for pid, total in seen.items() if pid in self._seen)
        passed, self._seen, self._called = now - self._called, seen, now
        return 100 * used / passed if passed > 0 else 0.0


def _used_s(pid: int) -> float | None:
    if pid == os.getpid():
        return time.process_time()
    try:
        fields = _stat(f"/proc/{pid}")
        return (int(fields[11]) + int(fields[12])) / _TICKS  # utime and stime
    except (OSError, IndexError, ValueError):
        return None


class CpuWait:
    """Decides whether the current job of one child is late only because it had no processor.

    On a busy machine the process of a no-op waits 5 to 20 ms for its turn. Taking its jobs back then costs two
    database writes each and makes nothing faster. Measured on 2 cores, with two busy loops beside two children and
    30,000 no-ops: 977 and 1,325 jobs were taken back without this check, none in three runs with it.
    """

    __slots__ = ("_ran_s", "_seq")

    def __init__(self) -> None:
        self._seq = 0
        self._ran_s = 0.0

    def explains(self, pid: int, seq: int, since_start_s: float, overrun_s: float) -> bool:
        """Return whether job `seq`, which started `since_start_s` ago and overran, has still used less than
        `overrun_s` of processor time since the first call for it. Never after 0.1 s: the jobs behind it wait."""
        ran_s = _runnable_main_thread_s(pid)
        if ran_s is None or since_start_s > _MAX_WAIT_S:
            return False
        if self._seq != seq:
            self._seq, self._ran_s = seq, ran_s
            return True
        return ran_s - self._ran_s < overrun_s


def _runnable_main_thread_s(pid: int) -> float | None:
    """Return the processor time of the main thread, which runs `def` tasks; None while it neither has a processor nor
    waits for one, and where the kernel does not say."""
    folder = f"/proc/{pid}/task/{pid}"
    try:
        state = _stat(folder)[0]
        ran_ns = int(_read(f"{folder}/schedstat").split()[0])
    except (OSError, IndexError, ValueError):
        return None
    return ran_ns / 1e9 if state == b"R" else None


def _stat(folder: str) -> list[bytes]:
    """Return the fields after the name, which may contain spaces."""
    return _read(f"{folder}/stat").rsplit(b")", 1)[1].split()


def _read(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, 1024)
    finally:
        os.close(descriptor)
