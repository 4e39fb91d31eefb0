"""How one running attempt is stopped: flag, exception, SIGTERM, SIGKILL, with a wait on each rung. Pure.

Bound to the attempt, never to the process: a child that finishes in time runs the next job undisturbed.
"""

from __future__ import annotations

from enum import IntEnum
from math import inf

from horsies_worker.wire import StopCode


class Rung(IntEnum):
    FLAG = 0
    """`is_cancelled()` turns true."""
    INTERRUPT = 1
    """TaskStopped in a `def` task, CancelledError in an `async def` one."""
    TERMINATE = 2
    KILL = 3


class Stop:
    """Where on the ladder an attempt is."""

    __slots__ = ("_grace_s", "_next", "code", "due")

    def __init__(self, code: StopCode, grace_s: float, now: float) -> None:
        self.code = code
        self._grace_s = grace_s
        # A cancelled task may end by itself first; one that is out of time, or no longer ours, may not.
        self._next = Rung.FLAG if code is StopCode.CANCEL else Rung.INTERRUPT
        self.due = now

    def step(self, now: float) -> Rung:
        """The rung to take now; `due` then says when the next one is."""
        rung = self._next
        self.due = inf if rung is Rung.KILL else now + self._grace_s
        self._next = Rung(min(rung + 1, Rung.KILL))
        return rung

    def rename(self, code: StopCode) -> None:
        """A lost claim beats every other reason: its result must not be written."""
        if code is StopCode.ABANDON:
            self.code = code
