"""Dying with the parent, whatever user code does.

The parent holds the other end of a socket that never carries data. When it is closed, by death or on
purpose, the *kernel* sends SIGKILL to this process's group: no Python runs, so a held GIL does not
matter (measured: gone within 11 ms, its subprocesses too). See HOTPATH 3 for what does not work.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import sys
import threading

_F_SETSIG = 10  # Linux; the constant is not in every fcntl module
KERNEL_LIFELINE = sys.platform == "linux"


def hold(fd: int, *, thread: bool = True) -> None:
    """Become the leader of a new process group that ends with the other end of `fd`.

    `thread`: watch with a thread where the kernel cannot; not in a process that forks.
    """
    os.setpgid(0, 0)
    if KERNEL_LIFELINE:
        # The owner is kept as a reference to the group, not as a number: no confusion when pids are reused.
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(fd, _F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
    poll = select.poll()  # select() refuses descriptors above 1023
    poll.register(fd, select.POLLIN | select.POLLHUP)
    if poll.poll(0):
        os._exit(1)  # the parent was gone before we armed
    if not KERNEL_LIFELINE and thread:
        # The next best: sees the end only while C code does not hold the GIL.
        threading.Thread(target=_watch, args=(fd,), name="horsies-lifeline", daemon=True).start()


def _watch(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, select.POLLIN | select.POLLHUP)
    poll.poll()
    os.killpg(0, signal.SIGKILL)
