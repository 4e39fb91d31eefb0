"""Relays the stdout and stderr of children to the parent's own, without blocking either.

Children write into one pipe per stream. The event loop reads it; a thread writes to the parent's own descriptor,
where it may block. At most 1 MB lies between them. When that is full the loop stops reading the pipe, so a slow sink
slows its writers as usual. When the sink takes nothing for a second, new output is dropped and counted: a stopped log
collector stops neither children nor parent.
"""

import asyncio
import fcntl
import os
import re
import select
import threading
import time
from collections import deque

MAX_LINE = 8192
_HELD_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_PATIENCE_S = 1.0
_CHECK_S = 0.02
_CLOSE_S = 0.5
_F_SETPIPE_SZ = 1031

# C0 except tab, DEL, C1, and the bidirectional controls: a task's output must not control the terminal.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def printable(line: bytes, cut: int = 0) -> bytes:
    """Return one line without its end and with control characters escaped; `cut` bytes of it are missing."""
    text = _CONTROL.sub(_escape, line.decode(errors="backslashreplace").removesuffix("\r"))
    if cut:
        text += f"... [{cut} more bytes cut]"
    return text.encode()


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


class OutputRelay:
    """Copies one stream of all children to one descriptor of the parent."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._reader, self.writer = os.pipe()  # children inherit `writer`
        os.set_blocking(self._reader, False)
        try:
            fcntl.fcntl(self._reader, _F_SETPIPE_SZ, _HELD_BYTES)
        except OSError:
            pass  # not Linux, or above this user's limit: reads are smaller
        self._held: deque[bytes] = deque()
        # Only one thread writes each counter, so no lock is needed: held = accepted - passed.
        self._accepted_bytes = 0
        self._passed_bytes = 0
        self.dropped_bytes = 0
        self._dropped_told = 0
        self._dropping = False
        self._wake = threading.Event()
        self._ending = False
        self._ended = False
        self._line = bytearray()
        self._line_cut = 0
        self._thread = threading.Thread(target=self._write_on, name="horsies-output", daemon=True)
        self._loop = asyncio.get_running_loop()
        try:
            self._thread.start()
        except RuntimeError:
            os.close(self._reader)
            os.close(self.writer)
            raise
        self._loop.add_reader(self._reader, self._on_readable)

    async def close(self) -> None:
        """Write the rest, for half a second at most."""
        if self._ending:
            return
        self._ending = True
        self._loop.remove_reader(self._reader)
        os.close(self.writer)
        while self._on_readable():
            self._dropping = self._full()
        os.close(self._reader)
        self._ended = True
        self._wake.set()
        # Without another thread, because none may be left to start.
        deadline = time.monotonic() + _CLOSE_S
        while self._thread.is_alive() and time.monotonic() < deadline:
            await asyncio.sleep(_CHECK_S / 10)

    def _on_readable(self) -> bool:
        try:
            data = os.read(self._reader, _READ_BYTES)
        except BlockingIOError:
            return False
        if not data:
            return False
        if not self._full():
            self._dropping = False
        if self._dropping:
            self.dropped_bytes += len(data)
            return True
        self._accepted_bytes += len(data)
        self._held.append(data)
        self._wake.set()
        if self._full() and not self._ending:
            self._loop.remove_reader(self._reader)
            self._check_again(self._passed_bytes, time.monotonic())
        return True

    def _full(self) -> bool:
        return self._accepted_bytes - self._passed_bytes > _HELD_BYTES

    def _check_again(self, passed: int, since: float) -> None:
        if self._ending:
            return
        if self._passed_bytes != passed:
            passed, since = self._passed_bytes, time.monotonic()
        self._dropping = time.monotonic() - since > _PATIENCE_S
        if self._dropping or not self._full():
            self._loop.add_reader(self._reader, self._on_readable)
        else:
            self._loop.call_later(_CHECK_S, self._check_again, passed, since)

    # -- the writing thread --------------------------------------------------------------------------

    def _write_on(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            while self._held:
                data = self._held.popleft()
                self._write(self._lines(data))
                self._passed_bytes += len(data)
                self._tell_dropped()
            if self._ended:
                if self._line:
                    self._write(printable(bytes(self._line), self._line_cut) + b"\n")
                self._tell_dropped()
                return

    def _tell_dropped(self) -> None:
        count = self.dropped_bytes - self._dropped_told
        if count:
            self._dropped_told += count
            self._write(b"[horsies: %d bytes of children's output dropped, this sink was slow]\n" % count)

    def _lines(self, data: bytes) -> bytes:
        *ends, rest = data.split(b"\n")
        out: list[bytes] = []
        for end in ends:
            self._extend(end)
            out += (printable(bytes(self._line), self._line_cut), b"\n")
            self._line.clear()
            self._line_cut = 0
        self._extend(rest)
        return b"".join(out)

    def _extend(self, part: bytes) -> None:
        # Keep only the first 8 KB of a line and the count of the rest: a line may be 10 MB long.
        free = MAX_LINE - len(self._line)
        self._line += part[:free]
        self._line_cut += max(0, len(part) - free)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                try:
                    view = view[os.write(self._target, view) :]
                except BlockingIOError:  # another process that has the same sink made it non-blocking
                    self._wait_until_writable()
        except OSError:
            pass  # the sink is closed; go on, because the pipe must be emptied

    def _wait_until_writable(self) -> None:
        poll = select.poll()  # select() refuses descriptors above 1023
        poll.register(self._target, select.POLLOUT)
        poll.poll()
