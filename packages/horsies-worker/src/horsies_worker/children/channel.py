"""The parent's ends of one child's sockets, pipes and lifeline: jobs and stops go out, reports come in."""

import asyncio
import contextlib
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable, Sequence
from typing import Final

from horsies_worker.child import frames
from horsies_worker.child.frames import FrameReader, StopCode
from horsies_worker.child.main import ChildDescriptors
from horsies_worker.children.assigned_jobs import AssignedJob
from horsies_worker.children.process_handle import ProcessHandle, readable
from horsies_worker.children.stacks import ChildStacks
from horsies_worker.children.template import Template

_RECEIVE_BYTES: Final = 256 * 1024


class Outbox:
    """Writes to one socket of a child without waiting for it: keeps the bytes that the socket does not take yet."""

    __slots__ = ("_broken", "_loop", "_socket", "_waiting", "accepted", "sent")

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._loop = loop
        self._socket = sock
        self._waiting = bytearray()
        self._broken = False
        self.accepted = 0
        """All bytes that `send` was given so far."""
        self.sent = 0
        """All bytes that the kernel has taken so far. A frame that ends above this has not reached the child."""

    def send(self, data: bytes) -> None:
        self.accepted += len(data)
        if self._broken:
            return
        if self._waiting:
            self._waiting += data
            return
        taken = self._write(data)
        if taken < len(data) and not self._broken:
            self._waiting += data[taken:]
            self._loop.add_writer(self._socket, self._flush)

    def _flush(self) -> None:
        taken = self._write(bytes(self._waiting[: 1 << 20]))
        del self._waiting[:taken]
        if self._broken or not self._waiting:
            self._waiting = bytearray()
            self._loop.remove_writer(self._socket)

    def _write(self, data: bytes) -> int:
        try:
            taken = self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self._broken = True  # the child is dead or dying; the template reports its exit
            return 0
        self.sent += taken
        return taken

    def close(self) -> None:
        self._broken = True
        if self._waiting:
            self._waiting = bytearray()
            self._loop.remove_writer(self._socket)


class TokenPipe:
    """Start tokens: eight bytes in a pipe permit a child to start one job. The parent keeps a read end as well.

    The kernel gives each token to exactly one reader. A token that the parent reads back proves that its job never
    started, even while C code holds the child's GIL. `child_end` is sent to the child and then closed here.
    """

    __slots__ = ("_reader", "_writer", "child_end")

    def __init__(self) -> None:
        self.child_end, self._writer = os.pipe()
        try:
            # A second open file on the same pipe: a dup would share O_NONBLOCK with the child's blocking read.
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            self._reader = os.open(f"/proc/self/fd/{self.child_end}", flags)
        except FileNotFoundError:
            self._reader = os.dup(self.child_end)  # no /proc: losing the race for the last token would block
        except OSError:
            os.close(self.child_end)
            os.close(self._writer)
            raise

    def sent(self) -> None:
        os.close(self.child_end)

    def permit(self, seqs: Sequence[int]) -> None:
        # A write of at most 4,096 bytes is atomic, and the pipe holds 8,192 tokens, so this never blocks.
        os.write(self._writer, frames.pack_tokens(seqs))

    def take(self) -> list[int]:
        """Return every token that the child has not taken."""
        seqs: list[int] = []
        while readable(self._reader):
            try:
                data = os.read(self._reader, frames.TOKEN_BYTES * 256)
            except BlockingIOError:
                break
            if not data:
                break
            seqs += frames.unpack_tokens(data)
        return seqs

    def waiting(self) -> int:
        """Return how many tokens the child has not taken, and leave them in the pipe."""
        size = fcntl.ioctl(self._reader, termios.FIONREAD, b"\0\0\0\0")
        return struct.unpack("i", size)[0] // frames.TOKEN_BYTES

    def end(self) -> None:
        """Close the pipe: the child's main thread returns when it has taken the tokens that are left."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def close(self) -> None:
        self.end()
        os.close(self._reader)


class ChildChannel:
    def __init__(
        self,
        number: int,
        template: Template,
        output: tuple[int, int],
        on_readable: Callable[[], object],
        on_closed: Callable[[], None],
    ) -> None:
        """Request the process from the template. Raises OSError when that is not possible."""
        self._loop = asyncio.get_running_loop()
        self._on_closed = on_closed
        self._frames = FrameReader()
        self._is_read = True
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            self._jobs, their_jobs = _pair(ours, theirs)
            self._commands, their_commands = _pair(ours, theirs)
            lifeline, their_lifeline = _pair(ours, theirs)
            self.process = ProcessHandle(lifeline)
            self.tokens = TokenPipe()
            ours.callback(self.tokens.close)
            theirs.callback(self.tokens.sent)
            self.stacks = ChildStacks(self.process, lambda: self.commands_out.send(frames.encode_stacks()))
            ours.callback(self.stacks.close)
            theirs.callback(self.stacks.sent)
            self._jobs.setblocking(False)
            self._commands.setblocking(False)
            template.fork(
                number,
                ChildDescriptors(
                    their_jobs.fileno(), their_commands.fileno(), self.tokens.child_end, their_lifeline.fileno(),
                    self.stacks.child_end, *output,
                ),
            )  # fmt: skip
            ours.pop_all()
        self.jobs_out = Outbox(self._loop, self._jobs)
        self.commands_out = Outbox(self._loop, self._commands)
        self._loop.add_reader(self._jobs, on_readable)

    def send_jobs(self, jobs: Sequence[AssignedJob]) -> None:
        """Send synchronous jobs to the child's main thread: payloads first, then the tokens that permit to start."""
        _send(self.jobs_out, jobs)
        self.tokens.permit([assigned.seq for assigned in jobs])

    def send_async_jobs(self, jobs: Sequence[AssignedJob]) -> None:
        """Send jobs to the child's event loop. They start on arrival, so they need no token."""
        _send(self.commands_out, jobs)

    def send_stop(self, assigned: AssignedJob, code: StopCode, *, interrupt: bool) -> None:
        self.commands_out.send(frames.encode_stop(assigned.seq, code, interrupt=interrupt))

    def receive(self) -> list[tuple[int, bytes]] | None:
        """Read once and return the complete frames; None when there was nothing to read."""
        if not self._is_read:
            return None
        try:
            data = self._jobs.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return None
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._jobs)
            self.process.is_cut_off = True
            self._on_closed()
            return None
        return self._frames.feed(data)

    def stop_reading(self) -> None:
        """Receive nothing more."""
        self._is_read = False
        self._loop.remove_reader(self._jobs)

    def close(self) -> None:
        self._loop.remove_reader(self._jobs)
        self.jobs_out.close()
        self.commands_out.close()
        self.process.close(self._loop)
        self._jobs.close()
        self._commands.close()
        self.tokens.close()
        self.stacks.close()


def _send(outbox: Outbox, jobs: Sequence[AssignedJob]) -> None:
    payloads: list[bytes] = []
    end = outbox.accepted
    for assigned in jobs:
        encode = frames.encode_call if assigned.job.members else frames.encode_job
        payload = encode(assigned.seq, assigned.job)
        payloads.append(payload)
        end += len(payload)
        assigned.frame_end = end
    outbox.send(b"".join(payloads))


def _pair(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    first, second = socket.socketpair()
    return ours.enter_context(first), theirs.enter_context(second)
