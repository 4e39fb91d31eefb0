"""The worker's side of the template process: starts it, requests children and receives their exit statuses."""

import asyncio
import gc
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Collection, Generator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from horsies.app import Horsies
from horsies_worker.child.jobs import ChildSpec
from horsies_worker.child.main import ChildDescriptors
from horsies_worker.child.template import REQUEST, Config, run_forked, sockets, threads
from horsies_worker.children.exit_reason import Exit, describe

# The path must be set before any other import.
_BOOT = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from horsies_worker.child.template import main; main(sys.argv[2])"
)
_STANDARD = frozenset((0, 1, 2))
_CLOSE_S = 5.0
_CHECK_S = 0.005


class Process(Protocol):
    """The part of `subprocess.Popen` that `Template` uses."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def kill(self) -> None: ...
    def wait(self, timeout: float) -> int: ...


@dataclass(slots=True)
class TemplateProcess:
    """A process that becomes a template, and the worker's ends of the sockets to it."""

    process: Process
    control: socket.socket
    lifeline: socket.socket


def execute_template(spec: ChildSpec, output: tuple[int, int], *, preload: bool) -> TemplateProcess:
    """Start a new interpreter, which imports the app when `preload` is set. Raises OSError when that fails."""
    with _sockets() as (ours, theirs):
        config = {"control": theirs[0], "lifeline": theirs[1], "preload": preload, "child": asdict(spec)}
        path = [*spec.sys_path, *(entry or os.getcwd() for entry in sys.path)]  # noqa: PTH109
        # The -X and -W options of this interpreter, as multiprocessing passes them.
        flags: list[str] = getattr(subprocess, "_args_from_interpreter_flags")()  # noqa: B009
        process = subprocess.Popen(
            [sys.executable, *flags, "-c", _BOOT, json.dumps(path), json.dumps(config)],
            stdin=subprocess.DEVNULL,
            stdout=output[0],
            stderr=output[1],
            pass_fds=theirs,
            cwd=spec.cwd,
            process_group=0,  # only the parent gets a Ctrl-C of the terminal
        )
        return TemplateProcess(process, *ours)


def fork_template(app: Horsies, spec: ChildSpec, found_open: Collection[int]) -> TemplateProcess | None:
    """Fork this process, which has imported the app and has neither threads nor connections yet. The fork shares the
    imported modules with all children and takes a millisecond instead of a second import. A later template, or one for
    a worker inside another program, is executed.

    `found_open` are the descriptors that were open before that import; the template closes all but the standard ones.
    Returns None when the import left threads or sockets open (an executed template reports that too), or when the
    system refuses the fork.
    """
    if threads() or sockets(found_open):
        return None
    gc.collect()
    gc.freeze()  # the collector must not touch, and so copy, the pages that all processes share
    with suppress(OSError), _sockets() as (ours, theirs):
        for stream in (sys.stdout, sys.stderr):
            with suppress(Exception):
                stream.flush()  # otherwise both processes write the buffered text
        pid = os.fork()
        if pid == 0:
            config = Config(control=theirs[0], lifeline=theirs[1], preload=True, child=spec)
            unwanted = [*(one.fileno() for one in ours), *(set(found_open) - _STANDARD)]
            run_forked(config, app, unwanted)
        return TemplateProcess(ForkedProcess(pid), *ours)
    return None


@contextmanager
def _sockets() -> Generator[tuple[tuple[socket.socket, socket.socket], tuple[int, int]]]:
    """Yield the worker's ends of control and lifeline, closed on an error, and the numbers of the template's ends."""
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


class ForkedProcess:
    """A `Process` that was forked and not started by `subprocess`."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        if self._code is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                # It has ended, and the kernel or user code took its status. As with `Popen.poll`, the
                # code is not known then. The number may belong to another process by now: it is not signalled.
                self._code = 0
            else:
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
            time.sleep(_CHECK_S)
        return code


class TemplateOwner(Protocol):
    def template_ready(self, threads: int, sockets: int) -> None: ...
    def template_lost(self, text: str, *, was_ready: bool) -> None: ...
    def child_forked(self, number: int, pid: int, pidfd: int | None) -> None: ...
    def child_exited(self, number: int, status: int, peak_kb: int) -> None: ...
    def fork_failed(self, number: int, text: str) -> None: ...


class Template:
    def __init__(self, started: TemplateProcess, owner: TemplateOwner) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._partial = b""
        self._pidfds: deque[int | None] = deque()
        """In the order of the lines that carry them; None: this process had no number left for it."""
        self._failure: str | None = None
        self._closed = False
        self.ready = False
        self._process = started.process
        self._control = started.control
        self._lifeline = started.lifeline
        self._loop.add_reader(self._control, self._on_readable)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    def fork(self, number: int, descriptors: ChildDescriptors) -> None:
        """Request a child with these descriptors. Raises OSError when the template is gone."""
        socket.send_fds(self._control, [REQUEST.pack(number)], list(descriptors))

    def close(self) -> None:
        """Kill the template. Its children go on: each has its own lifeline."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._control)
        self._control.close()
        self._lifeline.close()
        for pidfd in self._pidfds:
            if pidfd is not None:
                os.close(pidfd)
        self._pidfds.clear()
        if self._process.poll() is None:
            self._process.kill()
            self._collect()

    def _collect(self) -> None:
        # It was killed and ends soon; the loop must not block on that.
        if self._process.poll() is None and not self._loop.is_closed():
            self._loop.call_later(0.01, self._collect)

    async def wait_closed(self) -> None:
        # Without a thread, because none may be left to start. The bound is for a process that is stuck in the kernel.
        deadline = time.monotonic() + _CLOSE_S
        while self.running and time.monotonic() < deadline:
            await asyncio.sleep(_CHECK_S)

    def _on_readable(self) -> None:
        try:
            data, descriptors, flags, _ = socket.recv_fds(self._control, 65536, 64)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors, flags = b"", [], 0
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        # One call receives the descriptors of one line at most. Without a place for it the child goes on without one;
        # the next one must not be taken for its own.
        self._pidfds.extend(descriptors or ([None] if flags & socket.MSG_CTRUNC else []))
        if not data:
            self._on_lost()
            return
        *lines, self._partial = (self._partial + data).split(b"\n")
        for line in lines:
            if not self._closed:
                self._on_message(json.loads(line))

    def _on_message(self, message: dict[str, Any]) -> None:
        match message["event"]:
            case "ready":
                self.ready = True
                self._owner.template_ready(message["threads"], message["sockets"])
            case "failed":
                self._failure = message["text"]
            case "forked":
                pidfd = self._pidfds.popleft() if message["pidfd"] and self._pidfds else None
                self._owner.child_forked(message["child"], message["pid"], pidfd)
            case "fork_failed":
                self._owner.fork_failed(message["child"], message["text"])
            case _:
                self._owner.child_exited(message["child"], message["status"], message["peak_kb"])

    def _on_lost(self) -> None:
        text = self._failure
        was_ready = self.ready
        self.close()
        if text is None:
            # The process closes its socket shortly before its exit status is available.
            try:
                code = self._process.wait(timeout=0.1)
                status = -code if code < 0 else code << 8
                text = describe(Exit(status, 0)).replace("child process", "template process")
            except subprocess.TimeoutExpired:
                text = "the template process is gone"
        self._owner.template_lost(text, was_ready=was_ready)
