"""A child process from its fork to its exit: tie it to the parent, load the app, run jobs, leave.

Runs user code and nothing of the queue: it has no database connection of ours and decides nothing.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from horsies_worker import wire
from horsies_worker.child import lifeline
from horsies_worker.child.logs import configure_logging
from horsies_worker.child.meters import Meters
from horsies_worker.child.run import Runner
from horsies_worker.jobs import AppLike

START_FAILED = 3
MAX_TEXT = 20_000


class ChildDescriptors(NamedTuple):
    jobs: int
    """Stream: jobs in, reports out."""
    commands: int
    """Stream: async jobs and stops in."""
    tokens: int
    """Pipe: permission to start, eight bytes each; the parent keeps a read end too."""
    lifeline: int
    stdout: int
    stderr: int


@dataclass(slots=True)
class ChildSettings:
    """The part of a ChildSpec that travels to the child."""

    app_locator: str
    name: str
    log_level: str
    log_format: str


def child_main(
    number: int,
    descriptors: ChildDescriptors,
    settings: ChildSettings,
    app: AppLike | None,
    load_app: Callable[[str], AppLike],
) -> int:
    """Returns the exit code; the caller ends the process without unwinding the template's stack."""
    lifeline.hold(descriptors.lifeline)
    name_process(f"{settings.name[:9]}-{number}")
    for descriptor, standard in ((descriptors.stdout, 1), (descriptors.stderr, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    forked_from_app = app is not None
    if forked_from_app:
        # Exit functions registered by the app's import belong to the template. Run in every child they
        # would, for one, remove a temporary directory that the siblings still use.
        atexit._clear()  # pyright: ignore[reportPrivateUsage] # no public way, present in 3.11 to 3.14
    _set_signals()
    reports = socket.socket(fileno=descriptors.jobs)
    reports.setblocking(True)
    try:
        _line_buffered()
        if app is None:
            app = load_app(settings.app_locator)
        configure_logging(settings.log_level, settings.log_format)
        for hook in app.child_start_hooks:
            hook()
    except BaseException:
        with contextlib.suppress(OSError):
            reports.sendall(wire.encode_start_failed(traceback.format_exc()[-MAX_TEXT:]))
        return START_FAILED
    meters = Meters()
    runner = Runner(app, reports, socket.socket(fileno=descriptors.commands), descriptors.tokens, meters)
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        reports.sendall(wire.encode_ready(os.getpid(), meters.resident_kb()))
        runner.run()
    # Threads that user code left behind are not waited for; whoever needs a flush registers it with atexit.
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage] # as multiprocessing does
    return 0


def name_process(name: str) -> None:
    """What `ps -o comm` and `top` show; Linux keeps 15 characters."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def _set_signals() -> None:
    # The app's import may have installed handlers in the template; a child starts from known ones. SIGTERM: a
    # supervisor may signal every process of the worker's control group. The parent then drains, and this child must go
    # on; `Runner` dies of it only after the parent has asked for the stop.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    stay_alive()
    with contextlib.suppress(Exception):
        faulthandler.enable()  # a segmentation fault leaves its Python stack on stderr
        if signal.getsignal(signal.SIGUSR1) is _ignore:
            faulthandler.register(signal.SIGUSR1)  # kill -USR1: where the task is, on stderr


def stay_alive() -> None:
    """Signals that a terminal or a supervisor sends to every process of a worker do nothing here: the parent decides.

    Handlers that do nothing, not SIG_IGN: an ignored signal would stay ignored in the programs that user code starts.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, _ignore)
        signal.siginterrupt(number, False)
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        if signal.getsignal(number) == signal.SIG_DFL:  # what the app's import has installed stays
            signal.signal(number, _ignore)
            signal.siginterrupt(number, False)


def _line_buffered() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]


def _ignore(_number: int, _frame: object) -> None:
    pass
