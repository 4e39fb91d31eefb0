"""Recognises a server that another one has replaced, by the timeline of its WAL.

A leader that was frozen or cut off believes for some seconds longer that it leads. It knows nothing of what was claimed
and written since then. A worker that asked it whether a task is still its own would drop a result that the new leader
waits for.
"""

import time
from collections.abc import Callable
from typing import Any, Final

from horsies._pg.refusals import worded
from horsies._pg.transient import is_transient
from horsies_worker.output.log_context import log

REFUSED_S: Final = 120.0
"""A server that is refused for so long is the one that is left: it was restored from a backup of an earlier time."""


class Leadership:
    """The newest timeline that any session of this worker has seen."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._system = 0
        self._timeline = 0
        self._refused_at: float | None = None

    async def check(self, connection: Any, statement: str) -> None:
        """Raise ConnectionError if another server has taken the place of this one. `statement` reads the identifier of
        the cluster and the timeline; a server that does not tell them is believed."""
        try:
            row = await connection.fetchrow(statement)
        except Exception as error:
            if is_transient(error):
                raise
            log.debug("the server does not tell its timeline: %s", worded(error))
            return
        self.compare(row[0], row[1])

    def compare(self, system: int, timeline: int) -> None:
        now = self._clock()
        if system == self._system and timeline < self._timeline:
            self._refused_at = self._refused_at or now
            if now < self._refused_at + REFUSED_S:
                raise ConnectionError(
                    f"this server is on timeline {timeline}, and another one leads on timeline {self._timeline}"
                )
        self._system, self._timeline, self._refused_at = system, timeline, None
