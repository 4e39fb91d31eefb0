"""The bases of services: a loop that calls `run_once` and survives its errors."""

import asyncio
import logging
import random

from horsies._pg.backoff import Backoff
from horsies._pg.refusals import worded
from horsies._pg.transient import is_refusal, is_transient
from horsies.config import ResilienceConfig
from horsies_worker.database.session import Session

_log = logging.getLogger("horsies.worker")


class TroubleLog:
    """Logs the errors of one service. An outage or a refused role takes one line. The unexpected comes with its
    traceback, which is left out while the same error repeats: a missing table would fill the log."""

    def __init__(self) -> None:
        self._traced: str | None = None

    def tell(self, what: str, error: Exception, delay: float) -> None:
        text = worded(error)
        if is_transient(error) or is_refusal(error):
            _log.warning("%s: %s; trying again in %.1f s", what, text, delay)
        elif text == self._traced:
            _log.error("%s failed unexpectedly once more: %s; trying again in %.1f s", what, text, delay)
        else:
            self._traced = text
            _log.error("%s failed unexpectedly; trying again in %.1f s", what, delay, exc_info=error)


class _Loop:
    """Subclasses implement `run_once`."""

    name = "service"

    def __init__(self, session: Session, resilience: ResilienceConfig) -> None:
        self._session = session
        self._queries = session.queries
        self._backoff = Backoff(resilience)
        self._trouble = TroubleLog()
        self._wake = asyncio.Event()

    async def run_once(self) -> None:
        raise NotImplementedError


class Service(_Loop):
    """Calls `run_once` at a jittered interval, or on request."""

    def __init__(self, session: Session, resilience: ResilienceConfig, interval_s: float) -> None:
        super().__init__(session, resilience)
        self._interval_s = interval_s
        self._longest_delay_s: float | None = None

    def wake(self) -> None:
        """Call `run_once` now."""
        self._wake.set()

    def pause_s(self) -> float:
        """Seconds to wait after a `run_once` without error."""
        return self._interval_s * random.uniform(0.9, 1.1)

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            self._wake.clear()
            try:
                await self.run_once()
                self._backoff.reset()
                delay = self.pause_s()
            except Exception as error:
                delay = min(self._backoff.next(), self._longest_delay_s or float("inf"))
                self._trouble.tell(self.name, error, delay)
            try:
                async with asyncio.timeout(delay):  # wait_for would swallow a cancel at the moment of the wake-up
                    await self._wake.wait()
            except TimeoutError:
                pass


class BacklogService(_Loop):
    """Calls `run_once` while it has a backlog, and sleeps otherwise. Subclasses implement `has_backlog` as well, and
    call `backlog_added`."""

    def __init__(self, session: Session, resilience: ResilienceConfig) -> None:
        super().__init__(session, resilience)
        self._idle = asyncio.Event()
        self._idle.set()

    def has_backlog(self) -> bool:
        raise NotImplementedError

    def backlog_added(self) -> None:
        self._idle.clear()
        self._wake.set()

    async def drained(self) -> None:
        """Wait until the backlog is empty."""
        await self._idle.wait()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self.has_backlog():
                try:
                    await self.run_once()
                    self._backoff.reset()
                except Exception as error:
                    delay = self._backoff.next()
                    self._trouble.tell(self.name, error, delay)
                    await asyncio.sleep(delay)
            self._idle.set()
