"""The template process: imports the app once, then forks children from that clean state on request.

Forking a process that has imported the app takes milliseconds, so replacing a child is cheap. The template stays
single-threaded and never runs a task. It is the children's parent process, so only it can collect their exit
statuses; it reports them to the worker at once.

It starts as a new interpreter (`main`), or as a fork of a worker that has imported the app (`run_forked`).

On the control socket the worker sends the number of a child to fork, with its descriptors. The template sends one
JSON object per line; `forked` carries a pidfd.
"""

import contextlib
import gc
import importlib
import json
import os
import resource
import select
import signal
import socket
import stat
import struct
import sys
import threading
import traceback
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from horsies.app import Horsies
from horsies_worker import signals
from horsies_worker.child import lifeline, signal_stack
from horsies_worker.child.jobs import ChildSpec
from horsies_worker.child.kept_signals import ignore_signal, stay_alive
from horsies_worker.child.main import MAX_TEXT, ChildDescriptors, child_main, name_process

REQUEST = struct.Struct("<I")
_OUT_OF_DESCRIPTORS = 71
"""EX_OSERR of sysexits.h."""
_MOST_TRIED = 65_536


@dataclass(slots=True)
class Config:
    """Settings of a template; on its command line when it is a new interpreter."""

    control: int
    lifeline: int
    preload: bool
    child: ChildSpec


def main(argument: str) -> None:
    raw: dict[str, Any] = json.loads(argument)
    config = Config(raw["control"], raw["lifeline"], raw["preload"], ChildSpec(**raw["child"]))
    control = _begin(config)
    ours = descriptors()
    app: Horsies | None = None
    if config.preload:
        try:
            app = load_app(config.child.app_locator)
        except BaseException:
            _tell(control, {"event": "failed", "text": traceback.format_exc()[-MAX_TEXT:]})
            os._exit(3)
    # The worker decides about both: threads do not exist in a forked child, and all children would share a socket.
    _tell(control, {"event": "ready", "threads": threads(), "sockets": sockets(ours)})
    gc.collect()
    gc.freeze()  # the collector must not touch, and so copy, the pages that children share
    _Template(config, control, app).serve()


def run_forked(config: Config, app: Horsies, unwanted: Collection[int]) -> NoReturn:
    """Turn a fork of the worker into a template without the `unwanted` descriptors. Never returns."""
    try:
        for descriptor in unwanted:
            with contextlib.suppress(OSError):  # importing the app may have closed it
                os.close(descriptor)
        _replace_standard_descriptors()
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
        os.set_inheritable(descriptor, False)  # programs that user code starts must not inherit it
    sys.argv[:] = ["horsies-template"]  # the app's import must not see the worker's arguments
    name_process("horsies-tmpl")
    lifeline.hold(config.lifeline, thread=False)
    return socket.socket(fileno=config.control)


def _replace_standard_descriptors() -> None:
    """Leave nothing to read on stdin, and no standard number free that a later descriptor could get."""
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    for number in (1, 2):
        if not _is_open(number):
            os.dup2(nothing, number)
    if nothing > 2:
        os.close(nothing)


def load_app(locator: str) -> Horsies:
    module_name, _, attribute = locator.partition(":")
    found: Any = importlib.import_module(module_name)
    for part in (attribute or "app").split("."):
        found = getattr(found, part)
    return found


class _Template:
    def __init__(self, config: Config, control: socket.socket, app: Horsies | None) -> None:
        self._config = config
        self._control = control
        self._app = app
        self._children: dict[int, int] = {}
        self._partial = b""
        self._descriptors: list[int] = []

    def serve(self) -> NoReturn:
        signal_stack.enlarge()  # the app's import may have enabled faulthandler; children share the imported ctypes
        wake_in, wake_out = os.pipe()
        os.set_blocking(wake_in, False)
        os.set_blocking(wake_out, False)
        signals.repair()  # after the app's import; a blocked SIGCHLD would hide the ends of all children
        signal.signal(signal.SIGCHLD, ignore_signal)
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
        data, descriptors, flags, _ = socket.recv_fds(self._control, 4096, 64)
        if flags & socket.MSG_CTRUNC:
            # Another child would get what comes next. The worker starts another template, after a wait.
            sys.stderr.write("horsies: the template process has no file descriptors left\n")
            os._exit(_OUT_OF_DESCRIPTORS)
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)  # received descriptors are inheritable otherwise
        if not data:
            os._exit(0)  # the worker closed this template; its children have their own lifelines
        self._partial += data
        self._descriptors += descriptors
        per_child = len(ChildDescriptors._fields)
        while len(self._partial) >= REQUEST.size and len(self._descriptors) >= per_child:
            (number,) = REQUEST.unpack_from(self._partial)
            self._partial = self._partial[REQUEST.size :]
            mine, self._descriptors = self._descriptors[:per_child], self._descriptors[per_child:]
            self._fork(number, ChildDescriptors(*mine))

    def _fork(self, number: int, descriptors: ChildDescriptors) -> None:
        # Each child would print the text that is still in these buffers.
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
            # Only this process collects the child, so the pid cannot belong to another process yet.
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
            # Close the template's own descriptors; those of siblings were closed after their forks. Leave the others
            # open: they belong to the app, such as a log file that its import opened, and a closed number would soon
            # name another file.
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
        """Kill the programs that user code left in a dead child's process group."""
        dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if dead is not None and dead.si_pid in self._children:
            # It is still a zombie, so no other group can have its number.
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
    """Return the descriptors that are open now."""
    try:
        numbers: Iterable[int] = map(int, os.listdir("/dev/fd"))  # noqa: PTH208
    except OSError:  # no /proc, as in some chroots: try each number
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        numbers = range(_MOST_TRIED if limit == resource.RLIM_INFINITY else min(limit, _MOST_TRIED))
    return {number for number in numbers if _is_open(number)}


def _is_open(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return False  # such as the descriptor that listed the directory
    return True


def sockets(before: Collection[int]) -> int:
    """Count the sockets that are open now and are not in `before`."""
    found = 0
    for descriptor in descriptors().difference(before):
        with contextlib.suppress(OSError):
            found += stat.S_ISSOCK(os.fstat(descriptor).st_mode)
    return found


def threads() -> int:
    """Count the threads beside this one, including those that C code started."""
    try:
        return len(list(Path("/proc/self/task").iterdir())) - 1
    except OSError:
        return threading.active_count() - 1
