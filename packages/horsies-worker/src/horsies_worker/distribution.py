"""Who gets which job: one synchronous job per idle child, short ones also behind others, async ones by free places.

Plans and counts; handing over is the pool's business.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Collection, Sequence
from math import inf
from typing import TYPE_CHECKING, Any, Final

from horsies_worker.estimate import MAX_AHEAD, PREDICTED_S, Estimates
from horsies_worker.jobs import ChildSpec, Job, Room

if TYPE_CHECKING:
    from horsies_worker.child_process import ChildProcess

_AHEAD_MAX_CHARS: Final = 64 * 1024
"""Longer arguments are not handed ahead: a child keeps the payloads of jobs that were taken back from it."""
_NO_LIMIT: Final = 1 << 30
_EXACT_S: Final = 10.0
"""For so long only children that are free get work, after a job came that may not wait in one."""


class Distribution:
    def __init__(self, spec: ChildSpec, estimates: Estimates) -> None:
        self._spec = spec
        self._estimates = estimates
        self._exact_until = 0.0

    def tasks_left(self, child: ChildProcess) -> int:
        limit = self._spec.max_tasks_per_child
        return _NO_LIMIT if limit is None else max(0, limit - child.tasks)

    def room(self, children: Collection[ChildProcess]) -> Room:
        spec = self._spec
        idle = busy = ahead = nearly = async_jobs = async_places = 0
        worst = self._estimates.worst_short() if spec.run_ahead else inf
        depth = min(MAX_AHEAD, int(PREDICTED_S / worst)) if worst != inf else 0
        for child in children:
            busy += child.busy
            async_jobs += len(child.async_jobs)
            if not child.accepting:
                continue
            left = self.tasks_left(child)
            async_places += max(0, min(left, spec.async_concurrency - len(child.async_jobs)))
            if child.idle and left:
                idle += 1
                ahead += max(0, min(depth, left) - 1)
            elif child.nearly_free and left:
                nearly += 1
            elif depth and child.lets_queue:
                by_time = int((PREDICTED_S - child.predicted) / worst)
                ahead += max(0, min(MAX_AHEAD - len(child.handed), by_time, left))
        # A retiring child still occupies its place until its job is done.
        sync = max(0, min(idle, spec.processes - busy))
        if not sync and ahead < depth * spec.processes // 2:
            ahead = 0  # nobody waits for work: fewer, larger claims (no-ops: 11,400 instead of 10,200 tasks/s)
        places = spec.processes * spec.async_concurrency - async_jobs
        if time.monotonic() < self._exact_until:
            nearly = 0
        return Room(sync + nearly, ahead, max(0, min(async_places, places)))

    def plan(
        self, children: Collection[ChildProcess], jobs: Sequence[Job], *, queue: bool
    ) -> tuple[dict[ChildProcess, list[tuple[Job, float]]], list[Job]]:
        """Synchronous jobs with their estimates by child, and those without a place. `queue`: also behind others."""
        idle = [child for child in children if child.idle and self.tasks_left(child) > 0]
        free = self._spec.processes - sum(child.busy for child in children)
        nearly = [child for child in children if queue and child.nearly_free and self.tasks_left(child) > 0]
        plans: dict[ChildProcess, list[tuple[Job, float]]] = {}
        # Children that let others queue, least loaded first; a list each, changed in place as jobs are planned:
        # predicted seconds, number (no two are equal), jobs, tasks left, plan.
        loads: list[list[Any]] = []
        for child in children:
            if queue and child.lets_queue:
                plan = plans[child] = []
                loads.append([child.predicted, child.number, len(child.handed), self.tasks_left(child), plan])
        heapq.heapify(loads)
        upper = self._estimates.upper
        rest: list[Job] = []
        for job in jobs:
            estimate = upper(job.task_name)
            if free > 0 and idle:
                child = idle.pop()
                free -= 1
                plan = plans[child] = [(job, estimate)]
                left = self.tasks_left(child) - 1
                if queue and left and estimate != inf:
                    heapq.heappush(loads, [estimate, child.number, 1, left, plan])
            elif loads and loads[0][0] + estimate <= PREDICTED_S and self._may_queue(job):
                load = loads[0]
                load[4].append((job, estimate))
                load[0] += estimate
                load[2] += 1
                load[3] -= 1
                if load[2] < MAX_AHEAD and load[3]:
                    heapq.heapreplace(loads, load)
                else:
                    heapq.heappop(loads)
            elif nearly and self._may_queue(job):
                plans.setdefault(nearly.pop(), []).append((job, estimate))
            else:
                rest.append(job)
                if nearly:  # it must not wait in a child; there may be more like it
                    self._exact_until = time.monotonic() + _EXACT_S
        return plans, rest

    def plan_async(
        self, children: Collection[ChildProcess], jobs: Sequence[Job]
    ) -> tuple[dict[ChildProcess, list[Job]], list[Job]]:
        """Asynchronous jobs by child, emptiest first, and those without a place."""
        limit = self._spec.async_concurrency
        plans: dict[ChildProcess, list[Job]] = {}
        places = [
            (len(child.async_jobs), child.number, child)
            for child in children
            if child.accepting and len(child.async_jobs) < limit and self.tasks_left(child) > 0
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

    def _may_queue(self, job: Job) -> bool:
        if not (job.run_ahead and self._spec.run_ahead):
            return False
        return len(job.args or "") + len(job.kwargs or "") <= _AHEAD_MAX_CHARS
