"""A child process from its fork to its exit: tie it to the parent, load the app, run jobs, exit.

It runs user code only: it has no connection to the queue's database and makes no decision about tasks.
"""

import atexit
import contextlib
import faulthandler
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from horsies.app import Horsies
from horsies_worker import signals
from horsies_worker.child import frames, lifeline, signal_stack, stacks
from horsies_worker.child.jobs import ChildSpec
from horsies_worker.child.kept_signals import ignore_signal, stay_alive
from horsies_worker.child.lifespans import Lifespans
from horsies_worker.child.meters import Meters
from horsies_worker.child.run import INTERRUPT, Runner
from horsies_worker.output.log_context import configure_logging, name_worker

START_FAILED = 3
MAX_TEXT = 20_000


class ChildDescriptors(NamedTuple):
    jobs: int
    """Socket: jobs in, reports out."""
    commands: int
    """Socket: async jobs and stops in."""
    tokens: int
    """Pipe of start tokens, eight bytes each; the parent keeps a read end too."""
    lifeline: int
    stacks: int
    """Pipe: the stacks of this process, when Python cannot run to send them."""
    stdout: int
    stderr: int


def child_main(
    number: int,
    descriptors: ChildDescriptors,
    spec: ChildSpec,
    app: Horsies | None,
    load_app: Callable[[str], Horsies],
) -> int:
    """Return the exit code. The caller must exit without unwinding the template's stack."""
    lifeline.hold(descriptors.lifeline)
    name_process(f"{spec.name[:9]}-{number}")
    for descriptor, standard in ((descriptors.stdout, 1), (descriptors.stderr, 2)):
        os.dup2(descriptor, standard)
        os.close(descriptor)
    forked_from_app = app is not None
    if forked_from_app:
        # Exit functions that the app's import registered belong to the template. A child that ran them could,
        # for example, remove a temporary directory that its siblings still use.
        atexit._clear()  # pyright: ignore[reportPrivateUsage] # there is no public function; present in 3.11 to 3.14
    _set_signals(descriptors.stacks)
    reports = socket.socket(fileno=descriptors.jobs)
    reports.setblocking(True)
    try:
        _line_buffered()
        if app is None:
            app = load_app(spec.app_locator)
        name_worker(spec.worker_id)
        configure_logging(spec.log_level, spec.log_format)
        for hook in app.child_start_hooks:
            hook()
        meters = Meters()
        runner = Runner(app, reports, socket.socket(fileno=descriptors.commands), descriptors.tokens, meters)
        runner.start_loop()
        lifespans = Lifespans(app.lifespans, runner.loop)
        lifespans.enter()
    except BaseException:
        with contextlib.suppress(OSError):
            reports.sendall(frames.encode_start_failed(traceback.format_exc()[-MAX_TEXT:]))
        return START_FAILED
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        reports.sendall(frames.encode_ready(os.getpid(), meters.resident_kb()))
        runner.run()
    runner.close()  # before the lifespans: the hooks may use them
    lifespans.exit()
    # Do not wait for threads of user code. Code that must flush registers that with atexit.
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()  # pyright: ignore[reportPrivateUsage] # as multiprocessing does
    return 0


def name_process(name: str) -> None:
    """Set the name that `ps -o comm` and `top` show; Linux keeps 15 characters."""
    with contextlib.suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def _set_signals(stacks_pipe: int) -> None:
    # The app's import may have installed handlers in the template; a child starts from known ones. A supervisor may
    # send SIGTERM to every process of the worker's control group. The parent then drains and this child must go on:
    # `Runner` exits on SIGTERM only after the parent has asked for a stop.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signals.repair(INTERRUPT, stacks.WRITE_STACKS)
    stay_alive()
    with contextlib.suppress(Exception):
        faulthandler.enable(file=2)  # a segmentation fault leaves its Python stack on stderr
        signal_stack.enlarge()
        if signal.getsignal(signal.SIGUSR1) is ignore_signal:
            faulthandler.register(signal.SIGUSR1, file=2)  # kill -USR1 prints the stack to stderr
        stacks.write_on_signal(stacks_pipe)


def _line_buffered() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
