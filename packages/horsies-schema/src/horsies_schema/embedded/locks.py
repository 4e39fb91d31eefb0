"""Lock files: flock(2) on descriptors that no child process keeps.

A flock belongs to the open file description, so a forked child that kept the descriptor would keep the lock alive after
its parent died, and "the last user is gone" would never come true. Hence close-on-exec for subprocesses, and a hook
that closes every lock file in a forked child (close only: LOCK_UN there would take the lock from the parent).
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
from pathlib import Path
from typing import Final

SHARED: Final = fcntl.LOCK_SH
EXCLUSIVE: Final = fcntl.LOCK_EX

# Only starting and leaving poll; the keeper waits in the kernel.
POLL_SECONDS: Final = 0.01

_guard = threading.RLock()
_open: set[LockFile] = set()


class LockFile:
    """An open lock file. Locked or not, it lives until `close()` or the end of the process."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: Path) -> None:
        self._path = path
        # The guard makes "open and remember" one step for a fork in another thread.
        with _guard:
            self._fd: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            _open.add(self)

    @property
    def is_open(self) -> bool:
        """False after `close()`, and in a forked child."""
        return self._fd is not None

    @property
    def is_in_place(self) -> bool:
        """False when the file was moved or deleted since it was opened: others lock another one."""
        try:
            return os.path.samestat(os.fstat(self.fileno()), self._path.lstat())
        except FileNotFoundError:
            return False

    def fileno(self) -> int:
        if self._fd is None:
            raise ValueError("the lock file is closed")
        return self._fd

    def try_lock(self, mode: int) -> bool:
        """Take the lock if that is possible at once."""
        try:
            fcntl.flock(self.fileno(), mode | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def lock(self, mode: int, deadline: float) -> bool:
        """Take the lock before `deadline` (time.monotonic()); False when that did not work."""
        while not self.try_lock(mode):
            if time.monotonic() >= deadline:
                return False
            time.sleep(POLL_SECONDS)
        return True

    def wait_and_lock(self, mode: int) -> None:
        """Sleep in the kernel until the lock is ours."""
        fcntl.flock(self.fileno(), mode)

    def unlock(self) -> None:
        """Give the lock up, also for processes that inherited the descriptor in ways the hook cannot see."""
        fcntl.flock(self.fileno(), fcntl.LOCK_UN)

    def close(self) -> None:
        """Close our descriptor; the lock stays with any process it was handed to."""
        with _guard:
            _open.discard(self)
            if self._fd is not None:
                os.close(self._fd)
                self._fd = None


def _close_in_child() -> None:
    for lock_file in list(_open):
        lock_file.close()
    _guard.release()


os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_close_in_child)
