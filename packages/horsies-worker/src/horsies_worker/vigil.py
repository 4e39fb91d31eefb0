"""Whose beats stand still, and for how long; counted on this process's own clock, never computed from the database's.

Pure: no database, no clock of its own. Subtracting times of two machines breaks when a failover brings another clock;
watching a counter does not.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Final

LOOK_EVERY_S: Final = 2.0
MISSED: Final = 3
"""Periods without a beat, after which a worker is suspected."""
MISSED_UNSEEN: Final = 5
"""The same for one that has not been seen to beat since the watch began (or began again): after an outage the others
may need a period to give up on a lost connection, and another one until they try again."""


@dataclass(frozen=True, slots=True)
class Instance:
    worker_id: str
    lock_key: int | None
    period_ms: int
    beats: int
    judged_dead_at: datetime | None
    server_start: datetime


@dataclass(slots=True)
class _Mark:
    beats: int
    since: float
    patience: int


class Vigil:
    """Give it what was read and when; it tells whom to suspect."""

    def __init__(self) -> None:
        self._marks: dict[str, _Mark] = {}
        self._source: object = None
        self._last_look = 0.0

    def look(self, now: float, source: object, instances: Iterable[Instance]) -> list[Instance]:
        """`source` names the contact: another one (a new connection, a restarted server) begins the watch again, and so
        does a look that comes late. Whatever held us up may have held up everybody."""
        is_new = source != self._source or now - self._last_look > 2 * LOOK_EVERY_S
        if is_new:
            self._marks.clear()
        self._source, self._last_look = source, now
        known = {instance.worker_id: instance for instance in instances}
        for gone in self._marks.keys() - known.keys():
            del self._marks[gone]
        suspects: list[Instance] = []
        for worker_id, instance in known.items():
            mark = self._marks.get(worker_id)
            if mark is None or mark.beats != instance.beats:
                self._marks[worker_id] = _Mark(instance.beats, now, MISSED_UNSEEN if is_new else MISSED)
            elif now >= mark.since + mark.patience * instance.period_ms / 1000:
                suspects.append(instance)
        return suspects

    def next_look(self, instances: Iterable[Instance]) -> float:
        """Seconds until the next look: sooner than usual when somebody's time is up before."""
        due = [
            mark.since + mark.patience * instance.period_ms / 1000 - self._last_look
            for instance in instances
            if (mark := self._marks.get(instance.worker_id)) is not None
        ]
        # one whose time was up is held to be alive by its lock: asking again sooner changes nothing
        return min([LOOK_EVERY_S, *(seconds + 0.01 for seconds in due if seconds > 0)])
