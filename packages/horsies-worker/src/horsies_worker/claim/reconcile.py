"""After a claim whose answer was lost: finds tasks that the database assigned to this worker, and returns them.

Such a row is RUNNING, but no child has it. Nothing would send its heartbeats, and the reaper would end it as a crash
although its user code never ran.
"""

import time
from dataclasses import dataclass, field
from typing import Final

from horsies._text import plural
from horsies_worker.claim.claimed_task import OwnedTasks
from horsies_worker.database.session import OUTLIVED_S, Session
from horsies_worker.finish.finalizer import Finalizer
from horsies_worker.output.log_context import log

LOOK_EVERY_S: Final = 5.0


@dataclass(eq=False)
class Reconciler:
    """Runs inside the claimer, between two claims, while none is in flight."""

    session: Session
    owned: OwnedTasks
    finalizer: Finalizer
    next_look: float = field(default=0.0, init=False)
    until: float = field(default=0.0, init=False)

    def doubt(self) -> None:
        """A claim failed; the server may have committed it, or may still be running it."""
        self.next_look = 0.0
        self.until = time.monotonic() + OUTLIVED_S + LOOK_EVERY_S

    async def settle(self) -> None:
        """Look for lost tasks, if a claim failed lately."""
        now = time.monotonic()
        if now >= self.until or now < self.next_look:
            return
        rows = await self.session.run(self.session.queries.list_owned)
        self.next_look = now + LOOK_EVERY_S
        known = {end.task_id for end in self.finalizer.unwritten()} | self.finalizer.returning()
        lost = [
            (task_id, generation)
            for task_id, generation in rows
            if self.owned.find(task_id, generation) is None and task_id not in known
        ]
        if lost:
            log.warning("a claim whose answer was lost took %s: returning", plural(len(lost), "task"))
            self.finalizer.give_back(lost)
