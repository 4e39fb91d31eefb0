"""Takes start tokens and the jobs that they permit to start, in the main thread of a child.

Signal handlers of user code run in that thread, and may raise at any moment, such as that of an alarm which a task has
set and forgotten. While the child waits, such an exception does no harm. But a token or a part of the stream that was
read and then lost would leave a task RUNNING for ever: the parent knows that the token was taken, and waits.
"""

import io
import logging
import os
import socket
from collections import deque
from typing import Final, NoReturn

from horsies_worker.child import frames
from horsies_worker.child.error_text import exception_text
from horsies_worker.child.frames import FrameReader, FrameType
from horsies_worker.child.jobs import Job

RECEIVE_BYTES: Final = 256 * 1024
_SIZES: Final = (RECEIVE_BYTES,)
_JOB: Final = int(FrameType.JOB)
_BROKEN_STREAM_EXIT: Final = 70
"""EX_SOFTWARE of sysexits.h."""

_log = logging.getLogger("horsies.worker")


class Inbox:
    def __init__(self, jobs: socket.socket, tokens: int) -> None:
        self._jobs = jobs
        self._read = io.FileIO(tokens, closefd=False).readinto
        self._token = bytearray(frames.TOKEN_BYTES)
        self._last = 0
        """The number of the last token, once it is kept in `_seq`. Numbers rise, so another one in `_token` is lost."""
        self._seq: int | None = None
        """The number of a token that was taken and whose job has not been returned."""
        self._arrived: deque[bytes] = deque()
        """What was read last from the socket, until it is stored elsewhere."""
        self._holds = False
        """A job was taken out of the payloads. It may not have reached the caller."""
        self._payloads: deque[tuple[int, Job]] = deque()
        self._frames = FrameReader()

    def take(self) -> tuple[int, Job] | None:
        """Wait for the next job and return it with its number; None when the parent has closed the token pipe."""
        self._holds = False  # the job before this one has ended
        arrived, payloads, seq = self._arrived, self._payloads, self._seq
        if seq is None:
            # C code reads and stores: no signal handler can run in between, as it could before an assignment.
            if not self._read(self._token):
                return None
            seq = self._seq = self._last = int.from_bytes(self._token, "little")
        while True:
            # Numbers rise: the parent took the jobs before this one back, so drop them.
            while payloads:
                self._holds = True
                job = payloads.popleft()
                if job[0] == seq:
                    self._seq = None
                    return job
            self._holds = False
            arrived.extend(map(self._jobs.recv, _SIZES))  # in C code as well
            if not arrived[0]:
                os._exit(0)  # the parent is gone, or has closed this child
            payloads.extend(
                frames.decode_job(frame) if kind == _JOB else frames.decode_call(frame)
                for kind, frame in self._frames.feed(arrived[0])
            )
            arrived.clear()

    def survive(self, error: Exception) -> None:
        """Return if nothing was lost by what `take` has raised, so that it can be called again; else end the process,
        so that the parent learns of it."""
        if isinstance(error, OSError) and error.errno is not None:
            raise error
        is_lost = int.from_bytes(self._token, "little") != self._last or bool(self._arrived) or self._holds
        if is_lost or isinstance(error, MemoryError):
            leave(error)
        _log.error("a signal handler raised between two tasks: %s", exception_text(error))


def leave(error: Exception) -> NoReturn:
    """A part of the parent's stream is lost or cannot be read: run nothing of it. The parent reports the death of this
    process."""
    try:
        if isinstance(error, frames.BROKEN):
            _log.critical("what the worker sent is no job, the child leaves: %s", error)
        else:
            _log.critical("the child cannot receive its jobs any more and leaves: %s", exception_text(error))
    finally:
        os._exit(_BROKEN_STREAM_EXIT)  # also without the memory for a line of the log
