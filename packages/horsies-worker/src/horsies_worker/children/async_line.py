"""Async jobs on their way to a place in a child. Short ones may wait for it.

A statement costs nearly the same whether it claims a hundred tasks or four hundred, and short tasks leave the places of
two children within milliseconds. While the children run only short async jobs, the pool therefore takes more than it
has places for: as with synchronous ones, 10 ms of work for each child by forecast. They wait here and not in a child,
where async jobs start on arrival: a job in this line has not started, so the death of a child does not touch it.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from math import inf
from typing import Final

from horsies_worker.child.jobs import ChildSpec, Job
from horsies_worker.children.assigned_jobs import AssignedJob
from horsies_worker.children.durations import MAX_QUEUED, PREDICTED_S, Durations
from horsies_worker.children.size import PoolSize

MAX_WAIT_S: Final = 0.1
"""A job that has waited for this long waits behind jobs that are not short any more: the line goes back to the queue.
On a machine without a free processor, the jobs of 10 ms took up to 50."""


class AsyncLine:
    def __init__(self, spec: ChildSpec, size: PoolSize, give_back: Callable[[Sequence[Job]], None]) -> None:
        self._size = size
        # A child with a limit of tasks would leave the line to its successor, which must start first.
        self._is_used = spec.run_ahead and spec.max_tasks_per_child is None
        self._give_back = give_back
        self._durations = Durations()
        self._jobs: deque[tuple[Job, float]] = deque()
        """With the time at which each came."""
        self._last_name = ""
        self._may_wait: frozenset[str] = frozenset()
        """The names that were short when `room` last counted the line."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    def __iter__(self) -> Iterator[Job]:
        return (job for job, _ in self._jobs)

    def observe(self, job: Job, duration: float) -> None:
        """Record how long an async job took."""
        self._last_name = job.task_name
        if self._is_used and job.run_ahead:
            self._durations.observe(job.task_name, duration)

    def room(self, assigned: Sequence[Collection[AssignedJob]], free: int) -> int:
        """Return how many jobs may come while the children have these jobs, and `free` places."""
        left = max(0, free - len(self._jobs))
        worst = self._durations.worst_short()
        if worst == inf:
            return left
        most = self._size.processes * min(MAX_QUEUED, int(PREDICTED_S / worst))
        room = most - len(self._jobs)
        if room < most // 2:
            return left  # wait for fewer, larger claims
        is_short = self._durations.is_short
        # Of other jobs, those beyond the places would be claimed only to go back. The next are probably like these.
        is_usual = is_short(self._last_name) and all(is_short(one.job.task_name) for jobs in assigned for one in jobs)
        if not is_usual:
            return left
        self._may_wait = self._durations.short_names()
        return left + room

    def add(self, jobs: Sequence[Job], free: int) -> list[Job]:
        """Return the jobs that get the `free` places now. Those that may not wait come first, and go back to the queue
        when they get none. A job was claimed for the line as `room` counted it: it waits even if its name has been slow
        since."""
        now = time.monotonic()
        urgent: list[Job] = []
        for job in jobs:
            if job.run_ahead and job.task_name in self._may_wait:
                self._jobs.append((job, now))
            else:
                urgent.append(job)
        self._give_back(urgent[free:])
        return urgent[:free] + self.take(free - len(urgent))

    def take(self, free: int) -> list[Job]:
        """Return the first jobs of the line, for so many places."""
        jobs = [self._jobs.popleft()[0] for _ in range(min(free, len(self._jobs)))]
        if self._jobs and self._timer is None:
            self._check_after(MAX_WAIT_S)
        return jobs

    def withdraw(self, task_id: str, generation: int) -> bool:
        """Return this job to the queue, where a cancel request ends it. False when it is not in the line."""
        for place, job in enumerate(self):
            if job.task_id == task_id and job.generation == generation:
                del self._jobs[place]
                self._give_back([job])
                return True
        return False

    def clear(self) -> None:
        """Return all jobs to the queue."""
        jobs = list(self)
        self._jobs.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._give_back(jobs)

    def _check_after(self, seconds: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(seconds, self._check)

    def _check(self) -> None:
        self._timer = None
        if not self._jobs:
            return
        waited_s = time.monotonic() - self._jobs[0][1]
        if waited_s < MAX_WAIT_S:
            self._check_after(MAX_WAIT_S - waited_s)
            return
        for name in {job.task_name for job in self}:
            self._durations.overran(name)
        self.clear()
