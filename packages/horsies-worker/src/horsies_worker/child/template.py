"""The template process: imports the app once, then forks children from that clean state on request.

Forking an imported, single-threaded process takes milliseconds where a spawn takes the whole import;
that is what makes recycling cheap. It stays single-threaded and never runs a task. It is the
children's parent, so it alone collects their exit statuses, and passes them on at once.

It begins as a new interpreter (`main`), or as a fork of a worker that has imported the app (`run_forked`).

Control socket, parent to template: the number of a child to fork, with its descriptors. Template to parent: one JSON
object per line; `forked` carries a pidfd.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import stat
import struct
import sys
import threading
import traceback
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from horsies_worker.child import lifeline
from horsies_worker.child.main import ChildDescriptors, ChildSettings, child_main, name_process, stay_alive
from horsies_worker.jobs import AppLike

REQUEST = struct.Struct("<I")
MAX_TEXT = 20_000


@dataclass(slots=True)
class Config:
    """What a template is told at its start; on its command line, if it has one."""

    control: int
    lifeline: int
    preload: bool
    child: ChildSettings


def main(argument: str) -> None:
    raw: dict[str, Any] = json.loads(argument)
    config = Config(raw["control"], raw["lifeline"], raw["preload"], ChildSettings(**raw["child"]))
    control = _begin(config)
    ours = descriptors()
    app: AppLike | None = None
    if config.preload:
        try:
            app = load_app(config.child.app_locator)
        except BaseException:
            _tell(control, {"event": "failed", "text": traceback.format_exc()[-MAX_TEXT:]})
            os._exit(3)
    # What a fork would share or lose: threads stop existing in the child, a socket would be used by all of them.
    _tell(control, {"event": "ready", "threads": threads(), "sockets": sockets(ours)})
    gc.collect()
    gc.freeze()  # keeps the collector from touching, and so copying, the pages that children share
    _Template(config, control, app).serve()


def run_forked(config: Config, app: AppLike, unwanted: Collection[int]) -> NoReturn:
    """In a fork of the worker: becomes a template without these descriptors, and never returns."""
    try:
        for descriptor in unwanted:
            with contextlib.suppress(OSError):  # the app's import may have closed it already
                os.close(descriptor)
        _leave_standard_input()
        control = _begin(config)
        _tell(control, {"event": "ready", "threads": 0, "sockets": 0})
        _Template(config, control, app).serve()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(70)


def _begin(config: Config) -> socket.socket:
    stay_alive()
    for descriptor in (config.control, config.lifeline):
        os.set_inheritable(descriptor, False)  # not for the programs that user code starts
    sys.argv[:] = ["horsies-template"]  # ours are no business of the app's import
    name_process("horsies-tmpl")
    lifeline.hold(config.lifeline, thread=False)
    return socket.socket(fileno=config.control)


def _leave_standard_input() -> None:
    """As for an executed template: nothing to read, and no standard number left for somebody else's descriptor."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    for number in (1, 2):
        if not _is_open(number):
            os.dup2(nothing, number)
    if nothing > 2:
        os.close(nothing)


def load_app(locator: str) -> AppLike:
    module_name, _, attribute = locator.partition(":")
    found: Any = importlib.import_module(module_name)
    for part in (attribute or "app").split("."):
        found = getattr(found, part)
    return found


class _Template:
    def __init__(self, config: Config, control: socket.socket, app: AppLike | None) -> None:
        self._config = config
        self._control = control
        self._app = app
        self._children: dict[int, int] = {}
        self._partial = b""
        self._descriptors: list[int] = []

    def serve(self) -> NoReturn:
        wake_in, wake_out = os.pipe()
        os.set_blocking(wake_in, False)
        os.set_blocking(wake_out, False)
        signal.signal(signal.SIGCHLD, _ignore)
        signal.set_wakeup_fd(wake_out, warn_on_full_buffer=False)
        self._wake = (wake_in, wake_out)
        while True:
            readable = select.select([self._control, wake_in], [], [])[0]
            if wake_in in readable:
                os.read(wake_in, 4096)
                self._collect()
            if self._control in readable:
                self._requests()

    def _requests(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self._control, 4096, 64)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)  # received ones are inherited by programs unless told otherwise
        if not data:
            os._exit(0)  # the parent closed us; its children have lifelines of their own
        self._partial += data
        self._descriptors += descriptors
        per_child = len(ChildDescriptors._fields)
        while len(self._partial) >= REQUEST.size and len(self._descriptors) >= per_child:
            (number,) = REQUEST.unpack_from(self._partial)
            self._partial = self._partial[REQUEST.size :]
            mine, self._descriptors = self._descriptors[:per_child], self._descriptors[per_child:]
            self._fork(number, ChildDescriptors(*mine))

    def _fork(self, number: int, descriptors: ChildDescriptors) -> None:
        # Text still in these buffers would be printed once per child.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        try:
            pid = os.fork()
        except OSError as exc:
            self._say({"event": "fork_failed", "child": number, "text": f"fork: {exc}"})
            pid = -1
        if pid == 0:
            self._become_child(number, descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        if pid < 0:
            return
        self._children[pid] = number
        try:
            # Taken while the child cannot have been collected yet, so it is this child and no other.
            handle = os.pidfd_open(pid)
        except (AttributeError, OSError):
            self._say({"event": "forked", "child": number, "pid": pid, "pidfd": False})
            return
        self._say({"event": "forked", "child": number, "pid": pid, "pidfd": True}, handle)
        os.close(handle)

    def _become_child(self, number: int, descriptors: ChildDescriptors) -> None:
        code = 70
        try:
            signal.set_wakeup_fd(-1)
            # Everything of ours that the fork copied; a sibling's descriptors were closed after its own fork.
            # Not every open descriptor: what the app's import opened, such as a log file, belongs to the app,
            # and a number closed behind its owner's back is soon somebody else's.
            for descriptor in (*self._wake, self._config.lifeline, self._control.fileno(), *self._descriptors):
                os.close(descriptor)
            code = child_main(number, descriptors, self._config.child, self._app, load_app)
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _collect(self) -> None:
        while True:
            try:
                if hasattr(os, "waitid"):  # macOS: only from Python 3.13
                    self._end_group()
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            number = self._children.pop(pid, None)
            if number is not None:
                peak_kb = usage.ru_maxrss if sys.platform == "linux" else usage.ru_maxrss // 1024
                self._say({"event": "exited", "child": number, "pid": pid, "status": status, "peak_kb": peak_kb})

    def _end_group(self) -> None:
        """Programs that user code left in a dead child's group end with it."""
        dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if dead is not None and dead.si_pid in self._children:
            # Still a zombie, so the number is still its own: nobody else's group can be meant.
            with contextlib.suppress(OSError):
                os.killpg(dead.si_pid, signal.SIGKILL)

    def _say(self, message: dict[str, object], *descriptors: int) -> None:
        _tell(self._control, message, *descriptors)


def _tell(control: socket.socket, message: dict[str, object], *descriptors: int) -> None:
    line = json.dumps(message).encode() + b"\n"
    try:
        if descriptors:
            sent = socket.send_fds(control, [line], list(descriptors))
            control.sendall(line[sent:])
        else:
            control.sendall(line)
    except OSError:
        os._exit(0)


def descriptors() -> set[int]:
    """Those open now."""
    return {number for number in map(int, os.listdir("/dev/fd")) if _is_open(number)}  # noqa: PTH208


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False  # such as the one with which the directory was read
    return True


def sockets(before: Collection[int]) -> int:
    """Open now, and not before."""
    found = 0
    for descriptor in descriptors().difference(before):
        with contextlib.suppress(OSError):
            found += stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    return found


def threads() -> int:
    """Threads beside this one, also those that C code started."""
    try:
        return len(list(Path("/proc/self/task").iterdir())) - 1
    except OSError:
        return threading.active_count() - 1


def _ignore(_number: int, _frame: object) -> None:
    pass
