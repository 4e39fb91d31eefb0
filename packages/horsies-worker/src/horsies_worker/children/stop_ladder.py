"""Stops one running attempt step by step: flag, exception, SIGTERM, SIGKILL, with a wait after each. Pure.

A ladder belongs to the attempt, not to the process: a child that finishes in time runs its next job undisturbed.
"""

from enum import IntEnum
from math import inf

from horsies_worker.child.frames import StopCode


class Rung(IntEnum):
    FLAG = 0
    """`is_cancelled()` turns true."""
    INTERRUPT = 1
    """TaskStopped in a `def` task, CancelledError in an `async def` one."""
    TERMINATE = 2
    KILL = 3


class Stop:
    """The position of one attempt on the ladder."""

    __slots__ = ("_grace_s", "_next", "code", "due")

    def __init__(self, code: StopCode, grace_s: float, now: float) -> None:
        self.code = code
        self._grace_s = grace_s
        # Only a cancelled task gets the chance to end by itself; not after a timeout or a lost claim.
        self._next = Rung.FLAG if code is StopCode.CANCEL else Rung.INTERRUPT
        self.due = now

    def step(self, now: float) -> Rung:
        """Return the rung to take now, and set `due` to the time of the next one."""
        rung = self._next
        self.due = inf if rung is Rung.KILL else now + self._grace_s
        self._next = Rung(min(rung + 1, Rung.KILL))
        return rung

    def rename(self, code: StopCode) -> None:
        """Change the reason to a lost claim, which overrides every other: its result must not be written."""
        if code is StopCode.ABANDON:
            self.code = code
