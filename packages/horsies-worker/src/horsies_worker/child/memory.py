"""This process's resident memory, cheaply enough to be looked at between tasks."""

from __future__ import annotations

import os
import resource

PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024
_statm: tuple[int, int] | None = None  # (pid that opened it, descriptor): /proc/self is fixed at open


def resident_kb() -> int:
    """Resident set in KB; about 2 µs with the descriptor kept open."""
    global _statm
    pid = os.getpid()
    try:
        if _statm is None or _statm[0] != pid:
            _statm = (pid, os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC))
        return int(os.pread(_statm[1], 128, 0).split()[1]) * PAGE_KB
    except OSError:
        # No /proc (macOS): the peak is the best there is; bytes there.
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
