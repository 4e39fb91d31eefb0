"""Enters the app's lifespans before the first task of a child process, and leaves them in reverse order after the last.

Sync ones run on the main thread, async ones on the event loop of async tasks.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from horsies.lifespan import Lifespan

_log = logging.getLogger("horsies.worker")


class Lifespans:
    def __init__(self, lifespans: Sequence[Lifespan[Any]], loop: asyncio.AbstractEventLoop) -> None:
        self._lifespans = lifespans
        self._loop = loop
        self._entered: list[Lifespan[Any]] = []

    def enter(self) -> None:
        """Raises the error of the first that fails, after leaving the ones before it."""
        try:
            for lifespan in self._lifespans:
                if lifespan.is_async:
                    asyncio.run_coroutine_threadsafe(lifespan.enter_async(), self._loop).result()
                else:
                    lifespan.enter()
                self._entered.append(lifespan)
        except BaseException:
            self.exit()
            raise

    def exit(self) -> None:
        while self._entered:
            lifespan = self._entered.pop()
            try:
                if lifespan.is_async:
                    asyncio.run_coroutine_threadsafe(lifespan.exit_async(), self._loop).result()
                else:
                    lifespan.exit()
            except BaseException:  # a SystemExit must not keep the others open
                _log.exception("lifespan %r failed while it was closed", lifespan.name)
