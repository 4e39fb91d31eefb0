"""The parent's way to the stacks of one child: a request to its event loop, or a signal when that does not answer."""

import asyncio
import os
from collections.abc import Callable
from typing import Final

from horsies_worker.child.stacks import WRITE_STACKS
from horsies_worker.children.process_handle import ProcessHandle
from horsies_worker.children.usage import handles_signal, process_state

_WRITTEN_S: Final = 1.0
_QUIET_S: Final = 0.1
"""The signal handler writes piece by piece and does not mark its end."""
_CHECK_S: Final = 0.02


class StacksUnknown(Exception):
    """The text says why."""


class ChildStacks:
    """`child_end` is sent to the child and then closed here."""

    __slots__ = (
        "_answer",
        "_process",
        "_reader",
        "_request",
        "_requested",
        "_signal_allowed",
        "child_end",
        "is_closed",
    )

    def __init__(self, process: ProcessHandle, request: Callable[[], None]) -> None:
        self._process = process
        self._request = request
        self._requested = False
        self._answer: asyncio.Future[str | None] | None = None
        self._signal_allowed = False
        self.is_closed = False
        """The child has ended."""
        self._reader, self.child_end = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self.child_end, False)  # a full pipe must not stop the child in its signal handler

    def sent(self) -> None:
        os.close(self.child_end)

    async def ask(self, timeout_s: float) -> str | None:
        """Return the answer of the child's event loop; None when there is none in time, or the child ends."""
        if self.is_closed:
            return None
        # A loop that is blocked answers an old request later. Another one would only pile up behind it.
        if not self._requested:
            self._requested = True
            self._request()
        self._answer = asyncio.get_running_loop().create_future()
        try:
            return await asyncio.wait_for(self._answer, timeout_s)
        except TimeoutError:
            return None
        finally:
            self._answer = None

    def answered(self, text: str) -> None:
        self._requested = False
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(text)

    async def write_by_signal(self) -> str:
        """Let the signal handler of the child write the stacks of its threads, and return them. The handler needs no
        interpreter, so it also works while C code holds the GIL."""
        pid = self._process.pid
        if process_state(pid) in ("T", "t"):
            raise StacksUnknown(f"the process is stopped by a signal or a debugger; `kill -CONT {pid}` continues it")
        self._read()  # what an earlier signal wrote too late
        # Without a handler this signal would end the process.
        if WRITE_STACKS is None or not self._signal_allowed or not handles_signal(pid, WRITE_STACKS):
            raise StacksUnknown("it has no signal handler that could write its stacks")
        self._process.signal(WRITE_STACKS)
        written = await self._written()
        if not written:
            where = " in an uninterruptible sleep, as on a disk or a network drive" if process_state(pid) == "D" else ""
            raise StacksUnknown(f"the process does not react to signals{where}")
        return written.decode(errors="backslashreplace").strip()

    async def _written(self) -> bytes:
        written = b""
        quiet_s = passed_s = 0.0
        while quiet_s < _QUIET_S and passed_s < _WRITTEN_S and not self.is_closed:
            await asyncio.sleep(_CHECK_S)
            passed_s += _CHECK_S
            more = self._read()
            quiet_s = 0.0 if more or not written else quiet_s + _CHECK_S
            written += more
        return written

    def _read(self) -> bytes:
        read = b""
        while not self.is_closed:
            try:
                more = os.read(self._reader, 1 << 16)
            except BlockingIOError:
                break
            # The child writes once when it has its handler, and closes the pipe when it has none. User code that closes
            # all descriptors closes it too: then the handler could write into a file of that code.
            self._signal_allowed = bool(more)
            if not more:
                break
            read += more
        return read

    def close(self) -> None:
        if self.is_closed:
            return
        self.is_closed = True
        os.close(self._reader)
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(None)
