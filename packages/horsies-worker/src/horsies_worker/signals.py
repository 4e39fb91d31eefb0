"""The signals of workers and schedulers; `docs/guides/workers.md` has them as a table."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

_log = logging.getLogger("horsies.worker")


_STOPPING: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
_NEEDED: Final = (*_STOPPING, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCHLD)


def repair(*more: int | None) -> None:
    """Undo what the program that started this process, or the app's import, has set and what would break it. `more`:
    further signals that must arrive."""
    # Blocked signals are inherited: a stop would never arrive.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [*_NEEDED, *(number for number in more if number is not None)])
    # The usual recipe against tracebacks in `| head`. It ends a process at its first lost connection.
    if signal.getsignal(signal.SIGPIPE) == signal.SIG_DFL:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    # The usual recipe against zombies. It lets no process learn how its children ended.
    if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def handle(
    loop: asyncio.AbstractEventLoop,
    *,
    stop: Callable[[], None],
    hurry: Callable[[], None],
    log_stacks: Callable[[], None],
) -> None:
    """Install the handlers, for as long as the loop lives."""
    repair()
    ours: dict[signal.Signals, Callable[[], None]] = {
        signal.SIGTERM: stop,
        signal.SIGINT: stop,
        signal.SIGHUP: stop,
        signal.SIGQUIT: hurry,
        signal.SIGUSR1: log_stacks,
        signal.SIGUSR2: _ignored,
    }
    for number, action in ours.items():
        if may_handle(number):
            loop.add_signal_handler(number, action)


def exit_on_signal(code: int, loop: asyncio.AbstractEventLoop | None = None) -> None:
    """From now on a signal that stops the process ends it at once with this code: before `handle` there is no work yet,
    and at the end all work is done."""
    repair()
    for number in _STOPPING:
        if loop is not None:
            loop.remove_signal_handler(number)
        if may_handle(number):
            signal.signal(number, _Exit(code))


class _Exit:
    def __init__(self, code: int) -> None:
        self._code = code

    def __call__(self, _number: int, _frame: FrameType | None) -> None:
        os._exit(self._code)


def may_handle(number: signal.Signals) -> bool:
    """Keep a handler that the app has installed, and the ignored SIGHUP of a process under nohup. But shells ignore
    SIGINT and SIGQUIT for every command that they start with `&`."""
    if number in (signal.SIGTERM, signal.SIGINT):
        return True
    found = signal.getsignal(number)
    return found == signal.SIG_DFL or isinstance(found, _Exit) or (found == signal.SIG_IGN and number != signal.SIGHUP)


def _ignored() -> None:
    _log.info("SIGUSR2 has no meaning here and is ignored")
