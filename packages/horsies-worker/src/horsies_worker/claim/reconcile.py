"""After an outage: finds tasks that are this worker's by the database, and that it does not have.

- The answer of a claim was lost. Such a row is RUNNING, but no child has it. Nothing would send its heartbeats, and the
  reaper would end it as a crash although its user code never ran. It is returned to the queue.
- This worker stopped a task, because it was cut off for longer than the threshold. The reaper recovers it like a crash.
  Returned to the queue as if it had not run, it would run again without being counted.
- A failover lost the end of a task that has run here (`finish/recent_ends.py`). The end is written again. Where it is
  not known, the row stays as it is, and the reaper recovers it like a crash.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from horsies._text import plural
from horsies_worker.claim.claimed_task import OwnedTasks
from horsies_worker.database.session import OUTLIVED_S, Session
from horsies_worker.database.transition import Transition
from horsies_worker.finish.finalizer import Finalizer
from horsies_worker.finish.recent_ends import Key
from horsies_worker.output.log_context import about, log

LOOK_EVERY_S: Final = 5.0


@dataclass(eq=False)
class Reconciler:
    """Runs inside the claimer, between two claims, while none is in flight."""

    session: Session
    owned: OwnedTasks
    finalizer: Finalizer
    tasks_ended: Callable[[Sequence[str]], None] = lambda _: None
    breaks: Callable[[], int] = lambda: 0
    """How often connections of this worker broke."""
    next_look: float = field(default=0.0, init=False)
    until: float = field(default=0.0, init=False)
    _breaks: int = field(default=0, init=False)
    """What `breaks` was at the last look."""
    _told: set[Key] = field(default_factory=set[Key], init=False)

    def doubt(self) -> None:
        """A claim failed; the server may have committed it, or may still be running it."""
        self.next_look = 0.0
        self.until = time.monotonic() + OUTLIVED_S + LOOK_EVERY_S

    async def settle(self) -> None:
        """Look for such tasks, if a claim failed lately, or if a connection broke: another server may lead."""
        if (breaks := self.breaks()) != self._breaks:
            self._breaks = breaks
            self.doubt()
        now = time.monotonic()
        if now >= self.until or now < self.next_look:
            return
        recent = (
            self.finalizer.recent.known()
        )  # as it was before the look: an end that is written meanwhile is not lost
        rows = await self.session.run(self.session.queries.list_owned)
        self.finalizer.recent.keep_stopped(rows)
        self.next_look = now + LOOK_EVERY_S
        known = {end.task_id for end in self.finalizer.unwritten()} | self.finalizer.returning()
        unknown = [key for key in rows if self.owned.find(*key) is None and key[0] not in known]
        lost = [key for key in unknown if key not in self.finalizer.recent]
        if lost:
            log.warning("a claim whose answer was lost took %s: returning", plural(len(lost), "task"))
            self.finalizer.give_back(lost)
        for key in unknown:
            if key in recent:
                self._recover(key, recent[key])

    def _recover(self, key: Key, end: Transition | None) -> None:
        """The task has run here under this claim, and the database does not have its end."""
        task_id = key[0]
        if end is not None:
            self.finalizer.write_again(end, lambda _: self.tasks_ended([task_id]))
        if key in self._told:
            return
        self._told.add(key)
        what = "writing it again" if end is not None else "the reaper will recover it"
        log.warning(
            "task %s has run here, and the database has lost its end, as after a failover to an asynchronous standby: "
            "%s", task_id, what, extra=about(task_id),
        )  # fmt: skip
