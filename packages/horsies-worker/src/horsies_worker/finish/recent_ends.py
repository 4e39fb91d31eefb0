"""The ends of tasks that ran here lately, in case a failover loses them.

With asynchronous replication, the new leader may not have the last commits of the old one: a task that has ended is
RUNNING there again, in the name of this worker. It must not run a second time because of that. The same holds for an
end that a leader refused which had lost its place without knowing it (`database/leadership.py`).
"""

import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final, TypeAlias

from horsies_worker.database.transition import Transition

Key: TypeAlias = tuple[str, int]
"""(task id, claim generation)"""

KEPT_S: Final = 60.0
"""Longer than a standby is behind that becomes the leader."""
MAX_ENDS: Final = 4_000
MAX_END_CHARS: Final = 4_000
"""Larger results are not kept: only that the task has run."""


class RecentEnds:
    """Kept in batches, as they were written: every task is added, and hardly one is ever looked for."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._batches: deque[tuple[float, Sequence[Transition | Key]]] = deque()
        """Each with the time until which it counts, the oldest first."""
        self._count = 0
        self._by_key: dict[Key, Transition | None] | None = None
        """All of them, once one was looked for; None after a change."""
        self._stopped: set[Key] = set()
        """Claims under which this worker stopped a task while it was cut off."""

    def keep(self, ends: Sequence[Transition]) -> None:
        """The database has these ends, or should have them."""
        if ends:
            self._add([
                end if len(end.outcome.result) <= MAX_END_CHARS else (end.task_id, end.generation) for end in ends
            ])  # fmt: skip

    def ran(self, key: Key) -> None:
        """User code has run under this claim, and this worker does not have its end: the task wrote it itself, or the
        claim was lost."""
        self._add([key])

    def was_stopped(self, key: Key) -> None:
        """User code has run under this claim until this worker, cut off from the database, stopped it. The reaper
        recovers the row as a crash, which counts. Kept until it has, however long the outage takes."""
        self._stopped.add(key)

    def keep_stopped(self, owned: Collection[Key]) -> None:
        """Of the stopped ones, keep those that are this worker's by the database."""
        self._stopped.intersection_update(owned)

    def __contains__(self, key: Key) -> bool:
        return key in self._stopped or key in self.known()

    def _add(self, batch: Sequence[Transition | Key]) -> None:
        self._batches.append((self._clock() + KEPT_S, batch))
        self._count += len(batch)
        self._by_key = None
        self._drop_old()

    def _drop_old(self) -> None:
        now = self._clock()
        while self._batches and (self._batches[0][0] <= now or self._count - len(self._batches[0][1]) >= MAX_ENDS):
            self._count -= len(self._batches.popleft()[1])
            self._by_key = None

    def known(self) -> Mapping[Key, Transition | None]:
        """The ends by claim, as they are now; None: the task has run, and its end is not kept."""
        self._drop_old()
        if self._by_key is None:
            self._by_key = {}
            for _, batch in self._batches:
                for one in batch:
                    if isinstance(one, Transition):
                        self._by_key[one.task_id, one.generation] = one
                    else:
                        self._by_key[one] = None
        return self._by_key
