"""What this worker's processes use, from /proc; where there is none (macOS) only this process is known, by its peak."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Collection
from pathlib import Path

from horsies_worker.child.meters import PAGE_KB

_TICKS = os.sysconf("SC_CLK_TCK")


def machine_mb() -> float:
    return os.sysconf("SC_PHYS_PAGES") * PAGE_KB / 1024


def resident_kb(pid: int) -> int:
    """0 when nobody says, or the process is gone."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_KB
    except (OSError, IndexError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024 if pid == os.getpid() else 0


class Processors:
    """The processor time of a changing set of processes, in percent of one processor since the last look."""

    def __init__(self) -> None:
        self._seen: dict[int, float] = {}
        self._looked = time.monotonic()

    def percent(self, pids: Collection[int]) -> float:
        """A process that came since the last look is counted from the next one on."""
        now = time.monotonic()
        seen = {pid: used for pid in pids if (used := _used_s(pid)) is not None}
        used = sum(max(0.0, total - self._seen[pid]) for pid, total in seen.items() if pid in self._seen)
        passed, self._seen, self._looked = now - self._looked, seen, now
        return 100 * used / passed if passed > 0 else 0.0


def _used_s(pid: int) -> float | None:
    if pid == os.getpid():
        return time.process_time()
    try:
        # after the name, which may hold anything: state is the first field, utime and stime are the 12th and 13th
        fields = Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    except (OSError, IndexError, ValueError):
        return None
