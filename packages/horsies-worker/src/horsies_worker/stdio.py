"""Where children's stdout and stderr go: through the parent, which never lets them wait for its own sink.

Children write into one pipe per stream. The event loop empties it; a thread writes on to the parent's own
descriptor and may block there for as long as it likes. Between them lies at most 1 MB. When that is full the
pipe is left alone, so a slow sink slows its writers as usual; but when the sink takes nothing at all for a
second, what comes is dropped and counted. So a stopped log collector stops neither children nor parent.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import threading
import time
from collections import deque

MAX_LINE = 8192
_HELD_BYTES = 1 << 20
_READ_BYTES = 1 << 16
_PATIENCE_S = 1.0
_LOOK_S = 0.02
_F_SETPIPE_SZ = 1031

# C0 but tab, DEL, C1, and the bidirectional controls: a task's output must not drive the terminal.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")


def printable(line: bytes, cut: int = 0) -> bytes:
    """One line without its end, control characters escaped; `cut` bytes of it were left out."""
    text = _CONTROL.sub(_escape, line.decode(errors="backslashreplace").removesuffix("\r"))
    if cut:
        text += f"... [{cut} more bytes cut]"
    return text.encode()


def _escape(match: re.Match[str]) -> str:
    code = ord(match.group())
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


class OutputRelay:
    """One stream, from all children to one descriptor of ours."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._reader, self.writer = os.pipe()
        """`writer` is what children inherit."""
        os.set_blocking(self._reader, False)
        try:
            fcntl.fcntl(self._reader, _F_SETPIPE_SZ, _HELD_BYTES)
        except OSError:
            pass  # not Linux, or above this user's limit: smaller reads, nothing else
        self._held: deque[bytes] = deque()
        # Each counter has one writing thread, so no lock: held = accepted - passed.
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
        self._loop.add_reader(self._reader, self._on_readable)
        self._thread.start()

    async def close(self) -> None:
        """Write what is left, for half a second at most."""
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
        await asyncio.to_thread(self._thread.join, 0.5)

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
            self._look_again(self._passed_bytes, time.monotonic())
        return True

    def _full(self) -> bool:
        return self._accepted_bytes - self._passed_bytes > _HELD_BYTES

    def _look_again(self, passed: int, since: float) -> None:
        if self._ending:
            return
        if self._passed_bytes != passed:
            passed, since = self._passed_bytes, time.monotonic()
        self._dropping = time.monotonic() - since > _PATIENCE_S
        if self._dropping or not self._full():
            self._loop.add_reader(self._reader, self._on_readable)
        else:
            self._loop.call_later(_LOOK_S, self._look_again, passed, since)

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
        # A 10 MB line without an end is not collected: the first 8 KB and the count are enough.
        free = MAX_LINE - len(self._line)
        self._line += part[:free]
        self._line_cut += max(0, len(part) - free)

    def _write(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                view = view[os.write(self._target, view) :]
        except OSError:
            pass  # the sink is closed: nothing to tell, and the pipe must be emptied all the same
