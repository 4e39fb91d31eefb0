"""A loop that does one thing every so often: `run_once`, jittered, woken early on request, never ended by an error."""

import asyncio
import logging
import random

from horsies._pg.backoff import Backoff
from horsies._pg.transient import is_refusal, is_transient
from horsies.config import ResilienceConfig

_log = logging.getLogger("horsies.worker")


def tell_trouble(what: str, error: Exception, delay: float) -> None:
    """One line for what passes by itself or is in an administrator's hands; a traceback for what should not happen."""
    if is_transient(error) or is_refusal(error):
        _log.warning("%s: %s: %s; trying again in %.1f s", what, type(error).__name__, error, delay)
    else:
        _log.error("%s failed unexpectedly; trying again in %.1f s", what, delay, exc_info=error)


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

    def pause_s(self) -> float:
        """How long to wait after a `run_once` that went well."""
        return self._interval_s * random.uniform(0.9, 1.1)

    async def run_once(self) -> None:
        raise NotImplementedError

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._wake.clear()
            try:
                await self.run_once()
                self._backoff.reset()
                delay = self.pause_s()
            except Exception as error:
                delay = min(self._backoff.next(), self._longest_delay_s or float("inf"))
                tell_trouble(self.name, error, delay)
            try:
                async with asyncio.timeout(delay):  # wait_for would swallow a cancel that meets the wake-up
                    await self._wake.wait()
            except TimeoutError:
                pass
