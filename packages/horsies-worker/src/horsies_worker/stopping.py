"""How long a stop may take: its deadlines, and the watchdog that ends the process when they are not kept."""

import logging
import os
import threading
import time
from collections.abc import Callable
from math import inf
from typing import Final

from horsies_worker.exit_codes import ExitCode

_log = logging.getLogger("horsies.worker")

HURRY_S: Final = 2.0
"""After a second signal the process ends within this time."""
SHORTEST_S: Final = 1.0
"""A stop may always take this long, even with a timeout of 0: interrupted tasks are still written to the database."""


class StopDeadlines:
    """The parts of one stop, on the monotonic clock. Pure: the caller says what time it is.

    Running tasks may go on until `drain_until`, and are interrupted then. Results may be written until `write_until`.
    At `end` the process is gone. All are infinite until `begin`.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self.drain_until = self.write_until = self.end = inf

    @property
    def has_begun(self) -> bool:
        return self.end != inf

    @property
    def drain_s(self) -> float:
        """How long running tasks may go on: the timeout less two seconds or a fifth of it, and at least half of it."""
        timeout = self._timeout_s
        return timeout - min(max(2.0, timeout / 5), timeout / 2)

    def begin(self, now: float) -> None:
        """The first signal. Later calls change nothing."""
        if not self.has_begun:
            self.drain_until = now + self.drain_s
            self._end_at(now + max(self._timeout_s, SHORTEST_S), now)

    def hurry(self, now: float) -> None:
        """The second signal: interrupt what runs, now."""
        self.drain_until = min(self.drain_until, now)
        self._end_at(min(self.end, now + HURRY_S), now)

    def _end_at(self, end: float, now: float) -> None:
        self.end = end
        # the last quarter, at most half a second, is for closing connections and for the interpreter's own exit
        self.write_until = end - min(0.5, (end - max(now, min(self.drain_until, end))) / 4)


class Watchdog:
    """Ends the process at a deadline, from a thread: an event loop that hangs cannot hold it up.

    The children die with the process, by their lifelines.
    """

    def __init__(self, told: Callable[[], tuple[ExitCode, str]]) -> None:
        """`told`: exit code and reason of a stop that has to be cut short."""
        self._told = told
        self._end: tuple[ExitCode, str] | None = None
        self._deadline = inf
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def arm(self, deadline: float) -> None:
        """End the process at this moment of `time.monotonic()`; `inf` takes it back."""
        with self._changed:
            self._deadline = deadline
            if self._thread is None and deadline != inf:
                self._thread = threading.Thread(target=self._watch, name="horsies-watchdog", daemon=True)
                self._thread.start()
            self._changed.notify()

    def ends_with(self, code: ExitCode, reason: str) -> None:
        """The work is over: a deadline that passes from now on only cuts the interpreter's own exit short."""
        self._end = (code, reason)

    def _watch(self) -> None:
        with self._changed:
            while (left := self._deadline - time.monotonic()) > 0:
                self._changed.wait(None if left == inf else left)
        code, reason = self._end or self._told()
        if reason:
            _log.critical("%s", reason)
        time.sleep(0.1)  # for the thread that writes the log; a sink that takes nothing must not hold us up
        os._exit(code)
