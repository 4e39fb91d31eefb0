"""The connections of an app under test, closed with the event loops to which they belong.

Each test of pytest-asyncio or anyio has a loop of its own, which ends before the fixtures of the test do.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import Any, Final

from horsies._pg.pool import Database, LoopDatabase
from horsies.config import AppConfig

_closing: Final[set[asyncio.Task[None]]] = set()
"""A loop keeps only weak references to its tasks."""


class ClosingDatabase(Database):
    """Closes the connections of a loop when that is about to end, or when the test has ended."""

    def __init__(self, config: AppConfig) -> None:
        super().__init__(config.broker, config.resilience)
        self._enders: list[Any] = []

    def here(self) -> LoopDatabase:
        if asyncio.get_running_loop() in self.loops:
            return super().here()
        found = super().here()
        ender = self._ended()
        with suppress(StopIteration):
            ender.__anext__().send(None)
        self._enders.append(ender)
        return found

    async def _ended(self) -> AsyncGenerator[None]:
        """What ends a loop in good order (`asyncio.Runner`, hence the plugins) first closes the async generators that
        were begun on it."""
        try:
            yield
        finally:
            await self.close_here()

    def close_everywhere(self) -> None:
        """Close the connections of all loops, as far as that is possible from this thread."""
        here = asyncio._get_running_loop()
        for loop, found in list(self.loops.items()):
            self.loops.pop(loop, None)
            if loop.is_closed():
                continue
            if loop is here:
                _closing.add(task := loop.create_task(found.close()))
                task.add_done_callback(_closing.discard)
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(found.close(), loop).result(10)
            elif here is None:
                loop.run_until_complete(found.close())
