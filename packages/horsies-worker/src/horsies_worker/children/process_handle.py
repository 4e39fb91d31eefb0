"""Signals to a child process that this process did not fork itself, and that must not hit another process.

The kernel may reuse a pid once the template has collected the child. The pidfd and the lifeline refer to the process
and its group, not to a number. Without pidfds (macOS) the pid is used.
"""

import asyncio
import os
import select
import signal
import socket
from collections.abc import Callable


class ProcessHandle:
    __slots__ = ("_gone", "_lifeline", "_pidfd", "broke_off", "is_cut_off", "killed", "pid")

    def __init__(self, lifeline: socket.socket) -> None:
        self._lifeline = lifeline
        self._pidfd: int | None = None
        self._gone = False
        self.pid = 0
        self.killed = False
        """This worker killed it, or does so as soon as the pid is known."""
        self.broke_off = ""
        """What it did to its connection to this worker, if that is why it was killed."""
        self.is_cut_off = False
        """Its sockets are closed: it has ended, or has closed them."""

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

    def kill(self, broke_off: str = "") -> None:
        """Close the lifeline: the kernel kills the group. The signal is for a child that has closed its end."""
        if not self.killed and not self._gone:
            self.killed, self.broke_off = True, broke_off
            self._lifeline.close()
            self.signal(signal.SIGKILL)

    def is_alive(self) -> bool:
        """Return whether the process exists; C code may hold its GIL."""
        if self._gone:
            return False
        return self._pidfd is None or not readable(self._pidfd)

    @property
    def is_unreported(self) -> bool:
        """Whether it has ended, or was killed before it was forked, and the template has still to report that."""
        if self._gone:
            return False
        if self._pidfd is not None:
            return readable(self._pidfd)
        return self.killed and (self.is_cut_off or not self.pid)

    def when_gone(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        """Call `callback` when the process ends. Needs a pidfd."""
        if self._pidfd is not None:
            loop.add_reader(self._pidfd, callback)

    def collect(self) -> tuple[int | None, int]:
        """Return exit status and peak memory of a child whose template is dead, if this process is its init."""
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


def readable(descriptor: int) -> bool:
    poll = select.poll()  # select() refuses descriptors above 1023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
