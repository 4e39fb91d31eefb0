"""Start tokens: eight bytes in a pipe permit a child to start one job. The parent keeps a read end as well.

The kernel gives each token to exactly one reader, so a token that comes back proves that its job never
started, without atomics, without the child's help, and while C code holds its GIL (HOTPATH 4).
"""

from __future__ import annotations

import fcntl
import os
import select
import struct
import termios
from collections.abc import Sequence

from horsies_worker import wire


class TokenPipe:
    """The parent's ends. `child_end` is for the child, and closed here once it was sent."""

    __slots__ = ("_reader", "_writer", "child_end")

    def __init__(self) -> None:
        self.child_end, self._writer = os.pipe()
        try:
            # A second open file on the same pipe: a dup would share O_NONBLOCK with the child's blocking read.
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
            self._reader = os.open(f"/proc/self/fd/{self.child_end}", flags)
        except FileNotFoundError:
            self._reader = os.dup(self.child_end)  # no /proc: a lost race for the last token would block
        except OSError:
            os.close(self.child_end)
            os.close(self._writer)
            raise

    def sent(self) -> None:
        os.close(self.child_end)

    def permit(self, seqs: Sequence[int]) -> None:
        # One write of at most 4,096 bytes is atomic, and the pipe holds 8,192 tokens: it never blocks.
        os.write(self._writer, wire.pack_tokens(seqs))

    def take(self) -> list[int]:
        """Every token that the child has not taken."""
        seqs: list[int] = []
        while readable(self._reader):
            try:
                data = os.read(self._reader, wire.TOKEN_BYTES * 256)
            except BlockingIOError:
                break
            if not data:
                break
            seqs += wire.unpack_tokens(data)
        return seqs

    def waiting(self) -> int:
        """How many the child has not taken; takes none."""
        size = fcntl.ioctl(self._reader, termios.FIONREAD, b"\0\0\0\0")
        return struct.unpack("i", size)[0] // wire.TOKEN_BYTES

    def end(self) -> None:
        """End of file: the child's main thread returns when it has taken what is left."""
        if self._writer >= 0:
            os.close(self._writer)
            self._writer = -1

    def close(self) -> None:
        self.end()
        os.close(self._reader)


def readable(descriptor: int) -> bool:
    poll = select.poll()  # select() refuses descriptors above 1023
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))
