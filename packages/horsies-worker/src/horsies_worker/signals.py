"""What each signal does to a worker or a scheduler; `docs/guides/workers.md` has the same as a table."""

import asyncio
import io
import logging
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Final

from horsies._text import printable

_log = logging.getLogger("horsies.worker")

STOP: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""Stop; a second one of these hurries."""


def handle(loop: asyncio.AbstractEventLoop, *, stop: Callable[[], None], hurry: Callable[[], None]) -> None:
    """Take the signals over, for as long as the loop lives."""
    for number in STOP:
        # a process under nohup was told to outlive its terminal
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGQUIT, hurry)
    loop.add_signal_handler(signal.SIGUSR1, log_stacks)
    loop.add_signal_handler(signal.SIGUSR2, _log.info, "SIGUSR2 means nothing here, and is ignored")


def log_stacks() -> None:
    """Where every thread and every asyncio task of this process is, into the log."""
    text = io.StringIO()
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():  # pyright: ignore[reportPrivateUsage] # documented
        text.write(f"\nthread {names.get(ident, '?')}\n")
        text.write("".join(traceback.format_stack(frame)))
    for task in sorted(asyncio.all_tasks(), key=lambda one: one.get_name()):
        text.write("\n")
        task.print_stack(file=text)
    _log.warning("SIGUSR1: the stacks of this process\n%s", printable(text.getvalue()))
