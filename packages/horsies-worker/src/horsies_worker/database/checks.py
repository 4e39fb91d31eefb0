"""Short checks that every worker repeats, on a connection that is open anyway.

Most of them find nothing to do, and need no connection of their own. They must not delay the heartbeats on that
connection: a check that takes long is given up there, and made on the service's own connection until it is quick again.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from horsies._pg.transient import is_transient
from horsies_worker.database.session import Session

R = TypeVar("R")

LIMIT_S: Final = 2.0
"""The longest time that a check may keep the shared connection."""
SLOW_S: Final = 1.0
"""After a check that took longer, the next one is made on the service's own connection."""


class Checks:
    """Runs actions on the connection of `shared`, and those that take long on that of `own`."""

    def __init__(self, shared: Session | None, own: Session) -> None:
        """Without a `shared` session, all checks use `own`."""
        self._shared = shared
        self._own = own
        self._was_slow = False

    async def run(self, action: Callable[[Any], Awaitable[R]]) -> R:
        """Run `action(connection)`, a second time if it takes too long: it must be repeatable."""
        if self._shared is not None and not self._was_slow:
            try:
                return await self._shared.run(lambda connection: self._timed(action, connection, LIMIT_S))
            except Exception as error:
                if not (self._was_slow and is_transient(error)):
                    raise
        return await self._own.run(lambda connection: self._timed(action, connection))

    async def _timed(self, action: Callable[[Any], Awaitable[R]], connection: Any, limit_s: float | None = None) -> R:
        began = time.monotonic()
        # Not a time-out: on a connection that has gone silent, the rollback of a transaction would wait as well.
        loop = asyncio.get_running_loop()
        timer = None if limit_s is None else loop.call_later(limit_s, connection.terminate)
        try:
            return await action(connection)
        finally:
            if timer is not None:
                timer.cancel()
            self._was_slow = time.monotonic() - began > SLOW_S

    async def ask(self, name: str, *values: Any) -> list[Any]:
        """Run one statement; return its rows."""
        own = self._own
        return await self.run(lambda connection: own.queries.fetch(connection, name, *values, pooled=own.pooled))
