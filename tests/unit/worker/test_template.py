"""The worker's side of a template process, without a pool."""

import asyncio
import json
import os
import signal
import socket
from collections.abc import Iterator

import pytest

from horsies_worker.child.template import descriptors
from horsies_worker.children.process_handle import ProcessHandle
from horsies_worker.children.template import ForkedProcess, Template, TemplateProcess
from tests.support.waiting import eventually, eventually_async


@pytest.fixture
def sigchld_ignored() -> Iterator[None]:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGCHLD, before)


@pytest.mark.usefixtures("sigchld_ignored")
def test_a_template_whose_status_is_lost_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """The app ignores SIGCHLD, and the kernel gives the status to no process. Its number may be another's by now."""
    pid = os.fork()
    if pid == 0:
        os._exit(3)
    killed: list[int] = []
    process = ForkedProcess(pid)
    eventually(lambda: process.poll() is not None)
    monkeypatch.setattr(os, "kill", lambda number, _signal: killed.append(number))
    process.kill()
    assert killed == []
    assert process.wait(1) == 0


def test_descriptors_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in some chroots."""
    found = descriptors()

    def fails(_path: str) -> list[str]:
        raise FileNotFoundError

    monkeypatch.setattr(os, "listdir", fails)
    assert descriptors() == found


class Process:
    pid = 0

    def poll(self) -> int | None:
        return 0

    def kill(self) -> None: ...

    def wait(self, timeout: float) -> int:
        return 0


class Owner:
    def __init__(self) -> None:
        self.forked: dict[int, int | None] = {}

    def template_ready(self, threads: int, sockets: int) -> None: ...
    def template_lost(self, text: str, *, was_ready: bool) -> None: ...
    def child_exited(self, number: int, status: int, peak_kb: int) -> None: ...
    def fork_failed(self, number: int, text: str) -> None: ...

    def child_forked(self, number: int, pid: int, pidfd: int | None) -> None:
        self.forked[number] = pidfd


async def test_a_child_without_a_place_for_its_pidfd(monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker has no file descriptors left: the pidfd is lost, and the next child keeps its own."""
    control, theirs = socket.socketpair()
    lifeline, its_lifeline = socket.socketpair()
    control.setblocking(False)
    owner = Owner()
    template = Template(TemplateProcess(Process(), control, lifeline), owner)
    receive = socket.recv_fds

    def loses(*args: int) -> tuple[bytes, list[int], int, object]:
        data, descriptors, _, address = receive(*args)  # type: ignore[arg-type]
        for descriptor in descriptors:
            os.close(descriptor)
        monkeypatch.setattr(socket, "recv_fds", receive)
        return data, [], socket.MSG_CTRUNC, address

    monkeypatch.setattr(socket, "recv_fds", loses)
    for number in (1, 2):
        line = json.dumps({"event": "forked", "child": number, "pid": os.getpid(), "pidfd": True}).encode() + b"\n"
        pidfd = os.pidfd_open(os.getpid())
        socket.send_fds(theirs, [line], [pidfd])
        os.close(pidfd)
        await eventually_async(lambda number=number: number in owner.forked)
    assert owner.forked[1] is None
    assert owner.forked[2] is not None
    os.close(owner.forked[2])
    template.close()
    for one in (theirs, its_lifeline):
        one.close()


async def test_a_killed_child_without_pidfd_whose_end_nothing_reports() -> None:
    """Such as one whose template has lost its connection. Its sockets are closed, so it is gone."""
    ours, theirs = socket.socketpair()
    handle = ProcessHandle(ours)
    handle.identify(os.getpid(), None)
    handle.killed = True
    assert not handle.is_unreported
    handle.is_cut_off = True
    assert handle.is_unreported
    handle.close(asyncio.get_running_loop())
    theirs.close()
