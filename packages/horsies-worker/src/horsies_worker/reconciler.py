"""After a claim whose answer was lost: finds what this worker holds without knowing it, and hands it back.

Such a row is RUNNING in the database, but no child has it: nobody would vouch for it, and the reaper would end it as a
crash although its user code never ran.
"""

import logging
import time
from typing import Final

from horsies._text import plural
from horsies_worker.finalizer import Finalizer
from horsies_worker.held import Held
from horsies_worker.queries import Queries
from horsies_worker.session import OUTLIVED_S, Session

_log = logging.getLogger("horsies.worker")

LOOK_EVERY_S: Final = 5.0


class Reconciler:
    """Runs inside the claimer, between two claims: none is on its way then."""

    def __init__(self, session: Session, queries: Queries, held: Held, finalizer: Finalizer) -> None:
        self._session = session
        self._queries = queries
        self._held = held
        self._finalizer = finalizer
        self._next_look = 0.0
        self._until = 0.0

    def doubt(self) -> None:
        """A claim failed; it may have been committed, or may still be at work on the server."""
        self._next_look = 0.0
        self._until = time.monotonic() + OUTLIVED_S + LOOK_EVERY_S

    async def settle(self) -> None:
        """Look, if there is any doubt."""
        now = time.monotonic()
        if now >= self._until or now < self._next_look:
            return
        rows = await self._session.run(self._queries.list_held)
        self._next_look = now + LOOK_EVERY_S
        known = {end.task_id for end in self._finalizer.unwritten()} | self._finalizer.returning()
        lost = [
            (task_id, generation)
            for task_id, generation in rows
            if self._held.find(task_id, generation) is None and task_id not in known
        ]
        if lost:
            _log.warning("a claim whose answer was lost took %s: handing back", plural(len(lost), "task"))
            self._finalizer.give_back(lost)
