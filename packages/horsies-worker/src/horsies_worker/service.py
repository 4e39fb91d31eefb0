"""A loop that does one thing every so often: `run_once`, jittered, woken early on request, never ended by an error."""

import asyncio
import logging
import random

from horsies._pg.backoff import Backoff
from horsies._pg.transient import is_transient
from horsies.config import ResilienceConfig

_log = logging.getLogger("horsies.worker")


class Service:
    """Subclasses say what `run_once` does."""

    name = "service"

    def __init__(self, interval_s: float, resilience: ResilienceConfig) -> None:
        self._interval_s = interval_s
        self._backoff = Backoff(resilience)
        self._longest_delay_s: float | None = None
        self._wake = asyncio.Event()

    def wake(self) -> None:
        """Do it now."""
        self._wake.set()

    async def run_once(self) -> None:
        raise NotImplementedError

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._wake.clear()
            delay = self._interval_s * random.uniform(0.9, 1.1)
            try:
                await self.run_once()
                self._backoff.reset()
            except Exception as error:
                delay = min(self._backoff.next(), self._longest_delay_s or float("inf"))
                if is_transient(error):
                    _log.warning("%s: %s: %s; trying again in %.1f s", self.name, type(error).__name__, error, delay)
                else:
                    _log.exception("%s failed unexpectedly; trying again in %.1f s", self.name, delay)
            try:
                await asyncio.wait_for(self._wake.wait(), delay)
            except TimeoutError:
                pass
