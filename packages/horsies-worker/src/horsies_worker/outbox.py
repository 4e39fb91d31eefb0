"""Writes to a child without ever waiting for it: what the socket does not take now is kept for later."""

from __future__ import annotations

import asyncio
import socket


class Outbox:
    """The parent's writing half of one non-blocking socket."""

    __slots__ = ("_broken", "_loop", "_socket", "_waiting", "accepted", "sent")

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket) -> None:
        self._loop = loop
        self._socket = sock
        self._waiting = bytearray()
        self._broken = False
        self.accepted = 0
        """Bytes given to `send`, ever."""
        self.sent = 0
        """Bytes that the kernel has taken, ever: what ends above this has provably not reached the child."""

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
            self._broken = True  # the child is dead or dying; its exit is reported elsewhere
            return 0
        self.sent += taken
        return taken

    def close(self) -> None:
        self._broken = True
        if self._waiting:
            self._waiting = bytearray()
            self._loop.remove_writer(self._socket)
