"""Decides which child gets which job: one synchronous job per idle child, short jobs also behind others, async jobs by
free places. Plans and counts only; the pool assigns.
"""

import heapq
import time
from collections.abc import Collection, Sequence
from math import inf
from typing import Any, Final

from horsies_worker.child.jobs import ChildSpec, Job, Room
from horsies_worker.children.async_line import AsyncLine
from horsies_worker.children.child_process import ChildProcess
from horsies_worker.children.durations import MAX_QUEUED, PREDICTED_S, Durations
from horsies_worker.children.gathering import Gathering
from horsies_worker.children.size import PoolSize

_MAX_QUEUED_CHARS: Final = 64 * 1024
"""Jobs with longer arguments do not wait in a child, which keeps the payloads of jobs that were taken back from it."""
_NO_LIMIT: Final = 1 << 30
_NO_PREFETCH_S: Final = 10.0
"""After a job that may not wait in a child, only idle children count as room for this long."""


class Assignment:
    def __init__(
        self, spec: ChildSpec, size: PoolSize, durations: Durations, line: AsyncLine, gathering: Gathering
    ) -> None:
        self._spec = spec
        self._size = size
        self._gathering = gathering
        self._line = line
        self._durations = durations
        self._no_prefetch_until = 0.0

    def tasks_left(self, child: ChildProcess) -> int:
        limit = self._spec.max_tasks_per_child
        return _NO_LIMIT if limit is None else max(0, limit - child.jobs.total)

    def room(self, children: Collection[ChildProcess]) -> Room:
        processes = self._size.processes
        idle = busy = ahead = nearly_free = accepting = 0
        worst = self._durations.worst_short()
        depth = min(MAX_QUEUED, int(PREDICTED_S / worst)) if worst != inf else 0
        for child in children:
            jobs = child.jobs
            busy += bool(jobs.sync)
            if not child.accepting:
                continue
            accepting += 1
            left = self.tasks_left(child)
            if child.idle and left:
                idle += 1
                ahead += max(0, min(depth, left) - 1)
            elif child.nearly_free and left:
                nearly_free += 1
            elif depth and child.lets_queue:
                by_time = int((PREDICTED_S - jobs.predicted) / worst)
                ahead += max(0, min(MAX_QUEUED - len(jobs.sync), by_time, left))
        # A retiring child occupies its place until its job is done.
        sync = max(0, min(idle, processes - busy) - self._gathering.reserved_sync)
        if accepting > processes:
            ahead = nearly_free = 0  # the first children without a job leave, so none may wait in a busy one
        if not sync and ahead < depth * processes // 2:
            ahead = 0  # no child is idle, so wait for fewer, larger claims (no-ops: 11,400 instead of 10,200 tasks/s)
        if time.monotonic() < self._no_prefetch_until:
            nearly_free = 0
        if self._gathering.waits_for_child:
            nearly_free = ahead = 0  # behind jobs that follow one another, the call would get no child
        async_jobs = [child.jobs.asynchronous.values() for child in children]
        return Room(sync + nearly_free, ahead, self._line.room(async_jobs, self.async_places(children)))

    def async_places(self, children: Collection[ChildProcess]) -> int:
        """Return how many async jobs children can start now."""
        limit = self._spec.async_concurrency
        free, all_places = 0, self._size.processes * limit
        for child in children:
            count = len(child.jobs.asynchronous)
            all_places -= count
            if child.accepting:
                free += max(0, min(self.tasks_left(child), limit - count))
        return max(0, min(free, all_places) - self._gathering.reserved_async)

    def idle_child(self, children: Collection[ChildProcess], kept: int) -> ChildProcess | None:
        """Return a child for a call of a `def` batch task, if more than the `kept` places are free."""
        idle = [child for child in children if child.idle and self.tasks_left(child) > 0]
        free = min(len(idle), self._size.processes - sum(bool(child.jobs.sync) for child in children))
        return idle[0] if free > kept else None

    def plan(
        self, children: Collection[ChildProcess], jobs: Sequence[Job], *, queue: bool
    ) -> tuple[dict[ChildProcess, list[tuple[Job, float]]], list[Job]]:
        """Return synchronous jobs with their forecasts by child, and the jobs without a place.

        `queue`: jobs may also wait behind others."""
        idle = [child for child in children if child.idle and self.tasks_left(child) > 0]
        free = self._size.processes - sum(bool(child.jobs.sync) for child in children)
        free = min(free, len(idle)) - self._gathering.reserved_sync
        nearly_free = [child for child in children if queue and child.nearly_free and self.tasks_left(child) > 0]
        plans: dict[ChildProcess, list[tuple[Job, float]]] = {}
        # A heap of the children that let jobs queue, least loaded first. Each entry is a list, changed in place:
        # predicted seconds, child number (unique, so the rest is never compared), jobs, tasks left, plan.
        loads: list[list[Any]] = []
        for child in children:
            if queue and child.lets_queue:
                plan = plans[child] = []
                loads.append([child.jobs.predicted, child.number, len(child.jobs.sync), self.tasks_left(child), plan])
        heapq.heapify(loads)
        longest = self._durations.longest
        rest: list[Job] = []
        for job in jobs:
            forecast = longest(job.task_name)
            if free > 0 and idle:
                child = idle.pop()
                free -= 1
                plan = plans[child] = [(job, forecast)]
                left = self.tasks_left(child) - 1
                if queue and left and forecast != inf:
                    heapq.heappush(loads, [forecast, child.number, 1, left, plan])
            elif loads and loads[0][0] + forecast <= PREDICTED_S and _may_queue(job):
                load = loads[0]
                load[4].append((job, forecast))
                load[0] += forecast
                load[2] += 1
                load[3] -= 1
                if load[2] < MAX_QUEUED and load[3]:
                    heapq.heapreplace(loads, load)
                else:
                    heapq.heappop(loads)
            elif nearly_free and _may_queue(job):
                plans.setdefault(nearly_free.pop(), []).append((job, forecast))
            else:
                rest.append(job)
                if nearly_free:  # this job must not wait in a child, and others like it may follow
                    self._no_prefetch_until = time.monotonic() + _NO_PREFETCH_S
        return plans, rest

    def plan_async(
        self, children: Collection[ChildProcess], jobs: Sequence[Job]
    ) -> tuple[dict[ChildProcess, list[Job]], list[Job]]:
        """Return async jobs by child, emptiest child first, and the jobs without a place."""
        limit = self._spec.async_concurrency
        plans: dict[ChildProcess, list[Job]] = {}
        places = [
            (len(child.jobs.asynchronous), child.number, child)
            for child in children
            if child.accepting and len(child.jobs.asynchronous) < limit and self.tasks_left(child) > 0
        ]
        heapq.heapify(places)
        rest: list[Job] = []
        for job in jobs:
            if not places:
                rest.append(job)
                continue
            count, number, child = places[0]
            plan = plans.setdefault(child, [])
            plan.append(job)
            if count + 1 < limit and len(plan) < self.tasks_left(child):
                heapq.heapreplace(places, (count + 1, number, child))
            else:
                heapq.heappop(places)
        return plans, rest


def _may_queue(job: Job) -> bool:
    return job.run_ahead and len(job.args or "") + len(job.kwargs or "") <= _MAX_QUEUED_CHARS
