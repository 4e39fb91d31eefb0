"""The parent's view of the template process: ask it for children, hear how they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
from collections import deque
from typing import Any, Protocol

from horsies_worker.child.main import ChildDescriptors
from horsies_worker.child.template import REQUEST
from horsies_worker.forensics import Exit, describe
from horsies_worker.template_start import TemplateProcess


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
        self._pidfds: deque[int] = deque()
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
        """Ask for a child with these descriptors; OSError when the template is gone."""
        socket.send_fds(self._control, [REQUEST.pack(number)], list(descriptors))

    def close(self) -> None:
        """End the template. Its children live on, under their own lifelines."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._control)
        self._control.close()
        self._lifeline.close()
        while self._pidfds:
            os.close(self._pidfds.popleft())
        if self._process.poll() is None:
            self._process.kill()
            self._collect()

    def _collect(self) -> None:
        # Killed, so it ends within a moment; the loop does not wait for that.
        if self._process.poll() is None and not self._loop.is_closed():
            self._loop.call_later(0.01, self._collect)

    async def wait_closed(self) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):  # killed, and stuck in the kernel
            await asyncio.to_thread(self._process.wait, 5.0)

    def _on_readable(self) -> None:
        try:
            data, descriptors, _, _ = socket.recv_fds(self._control, 65536, 64)
        except BlockingIOError:
            return
        except OSError:
            data, descriptors = b"", []
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        self._pidfds.extend(descriptors)
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
                # Descriptors arrive in the order of the lines that carry one.
                pidfd = self._pidfds.popleft() if message["pidfd"] else None
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
            # It closes its socket a moment before it can be collected.
            try:
                code = self._process.wait(timeout=0.1)
                status = -code if code < 0 else code << 8
                text = describe(Exit(status, 0)).replace("child process", "template process")
            except subprocess.TimeoutExpired:
                text = "the template process is gone"
        self._owner.template_lost(text, was_ready=was_ready)
