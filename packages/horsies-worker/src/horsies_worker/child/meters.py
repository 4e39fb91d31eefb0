"""A child's memory and its waits for a processor, cheap enough to read between two tasks."""

import os
import resource

PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024


class Meters:
    """Keeps the files open, so that a read takes about 2 µs. The child's main thread must create it."""

    def __init__(self) -> None:
        self._statm = _open("/proc/self/statm")
        self._schedstat = _open("/proc/thread-self/schedstat")

    def resident_kb(self) -> int:
        if self._statm is None:
            # No /proc (macOS): use the peak, which is in bytes there.
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
        return int(os.pread(self._statm, 128, 0).split()[1]) * PAGE_KB

    def waited_s(self) -> float:
        """Return how long the main thread was runnable but not running; 0 where the kernel does not count that."""
        if self._schedstat is None:
            return 0.0
        try:
            return int(os.pread(self._schedstat, 128, 0).split()[1]) / 1e9
        except (OSError, IndexError):
            return 0.0


def _open(path: str) -> int | None:
    try:
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
