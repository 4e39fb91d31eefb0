"""Which workers have missed heartbeats, counted on this process's own clock.

Pure: no database, no clock of its own. It compares counters, not times of two machines: after a failover the database
may have another clock. A heartbeat that arrived since the last check is dated back by its age in the database, and at
most to that check.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

LATE_S: Final = 2.0
"""A check that comes this much later than planned begins the counting again."""
MISSED: Final = 3
"""Periods without a heartbeat after which a worker is suspected."""
MISSED_UNSEEN: Final = 5
"""The same for a worker that has sent no heartbeat since the counting began: after an outage it may need one period to
give up on a lost connection, and another one until it tries again."""


class Instance(NamedTuple):
    """A row of `open_instances`. A tuple, because each worker reads those of the whole fleet every few seconds."""

    worker_id: str
    lock_key: int | None
    period_ms: int
    beats: int
    is_judged_dead: bool
    beat_age_s: float
    """The time since the last heartbeat, on the database's clock."""
    server_start: float


@dataclass(slots=True)
class _Count:
    beats: int
    since: float
    patience: int

    def suspect_at(self, instance: Instance) -> float:
        return self.since + self.patience * instance.period_ms / 1000


class MissedBeats:
    def __init__(self, check_every_s: float) -> None:
        """`check_every_s`: the longest time between two checks."""
        self._check_every_s = self._planned_s = check_every_s
        self._counts: dict[str, _Count] = {}
        self._source: object = None
        self._last_check = 0.0

    def suspects(self, now: float, source: object, instances: Iterable[Instance]) -> list[Instance]:
        """The workers whose heartbeat counter has stood still for too long. `source` identifies the connection and the
        server: a new one begins the counting again, and so does a late check, because the same trouble may have
        delayed the heartbeats of all workers."""
        since_check_s = now - self._last_check
        is_new = source != self._source or since_check_s > self._planned_s + LATE_S
        if is_new:
            self._counts.clear()
            since_check_s = 0.0
        self._source, self._last_check = source, now
        known = {instance.worker_id: instance for instance in instances}
        for gone in self._counts.keys() - known.keys():
            del self._counts[gone]
        suspects: list[Instance] = []
        for worker_id, instance in known.items():
            count = self._counts.get(worker_id)
            if count is None or count.beats != instance.beats:
                age_s = min(max(0.0, instance.beat_age_s), since_check_s)
                self._counts[worker_id] = _Count(instance.beats, now - age_s, MISSED_UNSEEN if is_new else MISSED)
            elif now >= count.suspect_at(instance):
                suspects.append(instance)
        return suspects

    def next_check_s(self, instances: Iterable[Instance]) -> float:
        """Seconds until the next check: sooner than usual when a worker becomes suspect before."""
        due = [
            count.suspect_at(instance) - self._last_check
            for instance in instances
            if (count := self._counts.get(instance.worker_id)) is not None
        ]
        # A suspect that was not declared dead still holds its lock: an earlier check would change nothing.
        self._planned_s = min([self._check_every_s, *(seconds + 0.01 for seconds in due if seconds > 0)])
        return self._planned_s
