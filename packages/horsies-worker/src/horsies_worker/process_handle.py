"""The parent's grip on one child process that it did not fork itself: signals that cannot hit anybody else.

A pid may be given away once the template has collected the child. The pidfd and the lifeline cannot: both
refer to the process and its group, not to a number. Without pidfds (macOS) the number has to do.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from collections.abc import Callable

from horsies_worker.tokens import readable


class ProcessHandle:
    __slots__ = ("_gone", "_lifeline", "_pidfd", "killed", "pid")

    def __init__(self, lifeline: socket.socket) -> None:
        self._lifeline = lifeline
        self._pidfd: int | None = None
        self._gone = False
        self.pid = 0
        self.killed = False
        """By us, or about to be as soon as we know who it is."""

    @property
    def has_pidfd(self) -> bool:
        return self._pidfd is not None

    def identify(self, pid: int, pidfd: int | None) -> None:
        self.pid = pid
        self._pidfd = pidfd
        if self.killed:
            self.signal(signal.SIGKILL)

    def signal(self, number: int) -> None:
        if self._gone or not self.pid:
            return
        try:
            if self._pidfd is not None:
                signal.pidfd_send_signal(self._pidfd, number)
            else:
                os.kill(self.pid, number)
        except OSError:
            pass

    def kill(self) -> None:
        """SIGKILL to its whole group, by the kernel as the lifeline closes; the signal is for a child that cut it."""
        if not self.killed and not self._gone:
            self.killed = True
            self._lifeline.close()
            self.signal(signal.SIGKILL)

    def is_alive(self) -> bool:
        """The process exists, whatever it does: C code that holds the GIL is alive."""
        if self._gone:
            return False
        return self._pidfd is None or not readable(self._pidfd)

    def when_gone(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        """Needs a pidfd."""
        if self._pidfd is not None:
            loop.add_reader(self._pidfd, callback)

    def collect(self) -> tuple[int | None, int]:
        """Exit status and peak memory of a child whose template is dead; ours to collect only if we are its init."""
        try:
            pid, status, usage = os.wait4(self.pid, os.WNOHANG)
        except ChildProcessError:
            return None, 0
        return (status, usage.ru_maxrss) if pid else (None, 0)

    def close(self, loop: asyncio.AbstractEventLoop) -> None:
        self._gone = True
        self._lifeline.close()
        if self._pidfd is not None:
            loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = None
