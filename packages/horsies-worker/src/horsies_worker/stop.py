"""One stop of a process: begun by a signal or a failure, hurried by a second signal, bounded by deadlines, and cut
short by the watchdog when they are not kept."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Coroutine
from math import inf
from typing import Any, Final

from horsies_worker.exit_codes import ExitCode

_log = logging.getLogger("horsies.worker")

HURRY_S: Final = 2.0
"""After a second signal the process ends within this time."""
SHORTEST_S: Final = 1.0
"""A stop may always take this long, even with a timeout of 0: interrupted tasks are still written to the database."""


class StopDeadlines:
    """The parts of one stop, on the monotonic clock. Pure: the caller says what time it is.

    Running tasks may go on until `drain_until`, and are interrupted then; half of the time until `write_until` is for
    their cleanup, before SIGKILL. Results may be written until `write_until`.
    At `end` the process has ended. All are infinite until `begin`.
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
        """The second signal: interrupt running tasks now."""
        self.drain_until = min(self.drain_until, now)
        self._end_at(min(self.end, now + HURRY_S), now)

    def _end_at(self, end: float, now: float) -> None:
        self.end = end
        # the last quarter, at most half a second, is for closing connections and for the interpreter's own exit
        self.write_until = end - min(0.5, (end - max(now, min(self.drain_until, end))) / 4)


class Stop:
    def __init__(self, timeout_s: float, on_deadline: Callable[[float], None]) -> None:
        """`on_deadline` is called with the end of the stop, on the monotonic clock, when it begins or is hurried."""
        self.deadlines = StopDeadlines(timeout_s)
        self._on_deadline = on_deadline
        self._begun = asyncio.Event()
        self._hurried = asyncio.Event()

    @property
    def has_begun(self) -> bool:
        return self._begun.is_set()

    def begin(self) -> None:
        if not self.has_begun:
            self._begun.set()
            self.deadlines.begin(time.monotonic())
            self._on_deadline(self.deadlines.end)

    def begin_or_hurry(self) -> None:
        """The first signal begins the stop, each further one hurries it."""
        if self.has_begun:
            self.hurry()
        else:
            self.begin()

    def hurry(self) -> None:
        """Bring the deadlines forward; a stop that has not begun begins."""
        self.begin()
        self.deadlines.hurry(time.monotonic())
        self._on_deadline(self.deadlines.end)
        self._hurried.set()

    async def wait(self) -> None:
        """Until the stop begins."""
        await self._begun.wait()

    async def unless_begun(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run a part of the start, or the whole work of a process. False when the stop began first, and ended it."""
        started = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self.wait())
        try:
            await asyncio.wait({started, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if not started.done():
                return False
            await started
            return True
        finally:
            for task in (started, stopped):
                task.cancel()
            await asyncio.gather(started, stopped, return_exceptions=True)

    async def finished(self, *work: "asyncio.Future[Any]", until: Callable[[], float]) -> bool:
        """Wait for all of these, until a time that a hurry may bring forward. False when the time came first."""
        while pending := {one for one in work if not one.done()}:
            left = until() - time.monotonic()
            if left <= 0:
                return False
            hurried = asyncio.ensure_future(self._hurried.wait())
            await asyncio.wait(
                pending if self._hurried.is_set() else {*pending, hurried},
                timeout=None if left == inf else left,
                return_when=asyncio.FIRST_COMPLETED,
            )
            hurried.cancel()
        return True


class Watchdog:
    """Ends the process at a deadline, from a thread, even if the event loop hangs.

    The children die with the process, by their lifelines.
    """

    def __init__(self, outcome: Callable[[], tuple[ExitCode, str]]) -> None:
        """`outcome` returns the exit code and the reason of a stop that is cut short."""
        self._outcome = outcome
        self._end: tuple[ExitCode, str] | None = None
        self._deadline = inf
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def arm(self, deadline: float) -> None:
        """End the process at this time of `time.monotonic()`; `inf` disarms."""
        with self._changed:
            self._deadline = deadline
            if self._thread is None and deadline != inf:
                thread = threading.Thread(target=self._watch, name="horsies-watchdog", daemon=True)
                try:
                    thread.start()
                except RuntimeError as error:  # the limit of threads is reached: the stop itself must not fail
                    _log.warning("the stop has no watchdog, because it cannot start its thread: %s", error)
                else:
                    self._thread = thread
            self._changed.notify()

    @property
    def left_s(self) -> float:
        """Seconds until the deadline, without the last third of one, which belongs to the interpreter's exit."""
        return max(0.0, self._deadline - time.monotonic() - 0.3)

    def ends_with(self, code: ExitCode, reason: str) -> None:
        """The work is over: a deadline that passes from now on only cuts the interpreter's own exit short."""
        self._end = (code, reason)

    def _watch(self) -> None:
        with self._changed:
            while (left := self._deadline - time.monotonic()) > 0:
                self._changed.wait(None if left == inf else left)
        code, reason = self._end or self._outcome()
        if reason:
            _log.critical("%s", reason)
        time.sleep(0.1)  # time for the thread that writes the log, which may be blocked
        os._exit(code)
