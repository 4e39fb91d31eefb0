"""Runs that another session has locked: they wait apart, so that the others go on at full speed.

Workers lock a run for milliseconds; a transaction of a producer that cancels it may stay open for minutes. The first
step waits a little for the lock, as long as another worker may need it. After that, one statement looks at all runs
that wait, and only those that are free again are stepped. Pure: no I/O, and the caller says what time it is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from horsies_worker.workflows.work import Work

LOCK_WAIT_MS: Final = 100
"""How long the first step of a run waits for a lock: longer than other workers need for theirs."""
RETRY_WAIT_MS: Final = 10
"""How long a step of a run waits that had to wait before."""
MIN_APART_S: Final = 0.01
MAX_APART_S: Final = 0.25
RETRIES: Final = 5
"""Steps of such runs in one round: each may wait again, for a run inside or for a task."""
TOLD_AFTER_S: Final = 5.0
TOLD_EVERY_S: Final = 60.0
_LOOKED_AT: Final = 1_000


class RunLocked(Exception):
    """Another session holds a row that the step of this run needs."""


@dataclass
class _Waiting:
    since: float
    work: Work = field(default_factory=Work)
    apart_s: float = MIN_APART_S
    again: float = 0.0
    tell: float = 0.0


class LockedRuns:
    """The runs that wait for a lock, with what their next steps check."""

    def __init__(self) -> None:
        self._runs: dict[str, _Waiting] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def __contains__(self, workflow_id: object) -> bool:
        return workflow_id in self._runs

    @property
    def lock_wait_ms(self) -> int:
        """How long the first step of a run may wait now. The more runs are locked, the shorter: a session that
        locks a thousand runs would otherwise hold up the others for a hundred seconds."""
        return max(RETRY_WAIT_MS, LOCK_WAIT_MS >> min(len(self._runs), 8))

    def add(self, workflow_id: str, work: Work) -> None:
        """More work of a run that waits."""
        self._runs[workflow_id].work.add(work)

    def hold(self, workflow_id: str, work: Work, now: float) -> None:
        """A step found this run locked, perhaps not for the first time."""
        run = self._runs.pop(workflow_id, None) or _Waiting(now, tell=now + TOLD_AFTER_S)
        self._runs[workflow_id] = run  # to the end of the line
        run.work.add(work)
        self._postpone(run, now)

    def due(self, now: float) -> list[str]:
        """Those to look at now; all of them if any is due, because one statement looks at many."""
        return [] if self.next_s(now) > 0 else list(islice(self._runs, _LOOKED_AT))

    def still_locked(self, workflow_ids: Sequence[str], now: float) -> None:
        """A look has found these locked: to the end of the line, behind those that were not looked at."""
        for workflow_id in workflow_ids:
            run = self._runs[workflow_id] = self._runs.pop(workflow_id)
            self._postpone(run, now)

    def take_work(self, workflow_id: str) -> Work:
        """What the step of this run checks. What comes meanwhile is for the step after it."""
        run = self._runs[workflow_id]
        work, run.work = run.work, Work()
        return work

    def release(self, workflow_id: str) -> Work:
        """It has been stepped; returns what has come meanwhile."""
        return self._runs.pop(workflow_id).work

    def next_s(self, now: float) -> float:
        """Seconds until the next look."""
        return min((run.again for run in self._runs.values()), default=float("inf")) - now

    def to_tell(self, now: float) -> list[str]:
        """Those that have waited for so long that the log says so, which it does once a minute."""
        late = [workflow_id for workflow_id, run in self._runs.items() if run.tell <= now]
        for workflow_id in late:
            self._runs[workflow_id].tell = now + TOLD_EVERY_S
        return late

    def waited_s(self, workflow_id: str, now: float) -> float:
        return now - self._runs[workflow_id].since

    @staticmethod
    def _postpone(run: _Waiting, now: float) -> None:
        run.again = now + run.apart_s
        run.apart_s = min(2 * run.apart_s, MAX_APART_S)
