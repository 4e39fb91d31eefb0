"""Two ways to a template process: forked from this one while it is as clean as a template must be, or executed.

`horsies worker` has just imported the app when it starts, and has neither threads nor connections: a fork of it shares
what the import made with the worker and all its children, and costs a millisecond instead of a second import. It is
possible once, before the worker begins. Whoever needs a template later, or runs a worker in a process that has a life
of its own, executes one.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from typing import Protocol

from horsies_worker.child import template
from horsies_worker.child.main import ChildSettings
from horsies_worker.jobs import AppLike, ChildSpec

# One line, because the path must be set before anything of ours or the user's can be imported.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from horsies_worker.child.template import main; main(sys.argv[2])"
)
_STANDARD = frozenset((0, 1, 2))


class Process(Protocol):
    """What is needed of `subprocess.Popen`."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def kill(self) -> None: ...
    def wait(self, timeout: float) -> int: ...


@dataclass(slots=True)
class TemplateProcess:
    """A process on its way to being a template, and our ends of the sockets to it."""

    process: Process
    control: socket.socket
    lifeline: socket.socket


def execute_template(spec: ChildSpec, output: tuple[int, int], *, preload: bool) -> TemplateProcess:
    """A new interpreter, which imports the app itself if it is to `preload` it; OSError when it cannot be started."""
    with _sockets() as (ours, theirs):
        config = {"control": theirs[0], "lifeline": theirs[1], "preload": preload, "child": asdict(_settings(spec))}
        path = [*spec.sys_path, *(entry or os.getcwd() for entry in sys.path)]  # noqa: PTH109
        # -X and -W options of this interpreter, as multiprocessing passes them on.
        flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags")()  # noqa: B009
        process = subprocess.Popen(
            [sys.executable, *flags, "-c", _BOOT, json.dumps(path), json.dumps(config)],
            stdin=subprocess.DEVNULL,
            stdout=output[0],
            stderr=output[1],
            pass_fds=theirs,
            cwd=spec.cwd,
            process_group=0,  # a Ctrl-C in the terminal is for the parent alone, from the first instant
        )
        return TemplateProcess(process, *ours)


def fork_template(app: AppLike, spec: ChildSpec, found_open: Collection[int]) -> TemplateProcess | None:
    """A fork of this process, which has imported the app and done nothing else yet.

    `found_open`: the descriptors that were open before that import; not for a template, but for the standard ones.
    None when it is not possible here: because of what the import left behind, which an executed template will find and
    tell as well, or because the system has no room.
    """
    if template.threads() or template.sockets(found_open):
        return None
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, the pages that all will share
    with contextlib.suppress(OSError), _sockets() as (ours, theirs):
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()  # or what is left in there is written twice
        pid = os.fork()
        if pid == 0:
            config = template.Config(control=theirs[0], lifeline=theirs[1], preload=True, child=_settings(spec))
            unwanted = [*(one.fileno() for one in ours), *(set(found_open) - _STANDARD)]
            template.run_forked(config, app, unwanted)
        return TemplateProcess(_Forked(pid), *ours)
    return None


def _settings(spec: ChildSpec) -> ChildSettings:
    return ChildSettings(
        app_locator=spec.app_locator, name=spec.name, log_level=spec.log_level, log_format=spec.log_format
    )


@contextmanager
def _sockets() -> Generator[tuple[tuple[socket.socket, socket.socket], tuple[int, int]]]:
    """Control and lifeline: our ends, closed if the template cannot be started, and the numbers of theirs."""
    with ExitStack() as ours, ExitStack() as theirs:
        control, their_control = socket.socketpair()
        ours.enter_context(control)
        theirs.enter_context(their_control)
        lifeline, their_lifeline = socket.socketpair()
        ours.enter_context(lifeline)
        theirs.enter_context(their_lifeline)
        control.setblocking(False)
        yield (control, lifeline), (their_control.fileno(), their_lifeline.fileno())
        ours.pop_all()


class _Forked:
    """The part of `subprocess.Popen` that is about the end of a process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            with contextlib.suppress(ChildProcessError):  # another thread is just collecting it
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid:
                    self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def wait(self, timeout: float) -> int:
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("template", timeout)
            time.sleep(0.005)
        return code
