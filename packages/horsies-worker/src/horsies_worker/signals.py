"""What each signal does to a worker or a scheduler; `docs/guides/workers.md` has the same as a table."""

import asyncio
import io
import logging
import signal
import sys
import threading
import traceback
from collections.abc import Callable

from horsies._text import Lines

_log = logging.getLogger("horsies.worker")


def handle(loop: asyncio.AbstractEventLoop, *, stop: Callable[[], None], hurry: Callable[[], None]) -> None:
    """Take the signals over, for as long as the loop lives."""
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    # A handler that the app has installed stays; and a process under nohup was told to outlive its terminal.
    ours: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGHUP: stop,
        signal.SIGQUIT: hurry,
        signal.SIGUSR1: log_stacks,
        signal.SIGUSR2: _ignored,
    }
    for number, action in ours.items():
        if signal.getsignal(number) == signal.SIG_DFL:
            loop.add_signal_handler(number, action)


def _ignored() -> None:
    _log.info("SIGUSR2 has no meaning here and is ignored")


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
    _log.warning("SIGUSR1: the stacks of this process\n%s", Lines(text.getvalue()))
