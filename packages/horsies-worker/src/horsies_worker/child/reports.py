"""Sends what a child reports to its parent: the results of attempts, and frames that others have encoded.

It never holds a report back: a result that is still in this process when the child dies would turn finished work into a
crash.
"""

import logging
import socket
import threading
from collections import deque
from collections.abc import Sequence
from typing import Final

from horsies.context import TaskContext
from horsies.envelopes import Envelopes
from horsies.errors import OperationalErrorCode, UsageError
from horsies_worker.child import frames
from horsies_worker.child.error_text import exception_text
from horsies_worker.child.jobs import Job
from horsies_worker.child.meters import Meters
from horsies_worker.child.outcome import Outcome, OutcomeKind, error_outcome, in_envelopes, unless_completed
from horsies_worker.output.log_context import about

_PIECE_BYTES: Final = 1_000_000
"""The results of a call go to the parent in pieces of about this size."""

_log = logging.getLogger("horsies.worker")


class Reports:
    def __init__(self, jobs: socket.socket, envelopes: Envelopes, meters: Meters) -> None:
        self._jobs = jobs
        self._envelopes = envelopes
        self._meters = meters
        # Both threads of the child write to one stream; their frames must not interleave. An RLock, whose owner C
        # code sets: no signal handler waits for a lock that its own thread has just taken.
        self._sending = threading.RLock()
        self._is_sending = False
        self._nested: deque[bytes] = deque()
        """The frames of signal handlers that interrupted a thread while it sent."""
        self._is_copy = False

    def become_copy(self) -> None:
        """User code forked, and this is the copy: it has the same stream, which is the original's alone."""
        self._is_copy = True

    def send(self, frame: bytes) -> None:
        if self._is_copy:
            raise UsageError(
                "a fork of the process that runs the task cannot report: call report_progress() and complete() in the "
                "task itself"
            )
        with self._sending:
            if self._is_sending:
                # A signal handler of user code reports, and interrupted this thread while it sends. Its frame would
                # fall into the middle of the other one.
                self._nested.append(frame)
                return
            while True:
                self._is_sending = True
                try:
                    self._jobs.sendall(frame)
                finally:
                    self._is_sending = False
                if not self._nested:
                    return
                try:
                    frame = self._nested.popleft()
                except IndexError:  # another handler has sent it meanwhile
                    return

    def result(
        self, context: TaskContext, seq: int, outcome: Outcome, started: float, finished: float, duration: float, *,
        measure: bool = False,
    ) -> None:  # fmt: skip
        rss_kb = self._meters.resident_kb() if measure else 0
        if context.completion is not None:
            if outcome.kind is OutcomeKind.OK and outcome.result != context.completion:
                _log.warning(
                    "task %s (%s) returned another value than it gave to complete(): the latter is kept",
                    context.task_id, context.task_name,
                    extra=about(context.task_id, context.task_name, context.attempt),
                )  # fmt: skip
            outcome = unless_completed(outcome, context.completion)
        outcome = in_envelopes(outcome, self._envelopes, context.task_name)
        self.send(_result_frame(seq, outcome, started, finished, duration, rss_kb))

    def members(self, call: Job, seq: int, outcomes: Sequence[Outcome], started: float, finished: float) -> None:
        """Report every member of this call. The parent takes the call for ended when it has all of them."""
        rss_kb, size = self._meters.resident_kb(), 0
        pieces: list[bytes] = []
        for at, one in enumerate(outcomes, 1):
            stored = in_envelopes(one, self._envelopes, call.task_name)
            pieces.append(_result_frame(seq + at, stored, started, finished, finished - started, rss_kb))
            size += len(pieces[-1])
            if size >= _PIECE_BYTES or at == len(outcomes):
                self.send(b"".join(pieces))
                pieces, size = [], 0


def _result_frame(seq: int, outcome: Outcome, started: float, finished: float, duration: float, rss_kb: int) -> bytes:
    outcome.started_mono, outcome.finished_mono = started, finished
    try:
        return frames.encode_result(seq, outcome, duration, rss_kb)
    except Exception as error:  # such as a codec that let surrogates into the result
        is_text = isinstance(error, UnicodeEncodeError | OverflowError)
        message = (
            "the result is not valid text" if is_text else f"the result cannot be reported: {exception_text(error)}"
        )
        outcome = error_outcome(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message)
        outcome.started_mono, outcome.finished_mono = started, finished
        return frames.encode_result(seq, outcome, duration, rss_kb)
