"""A snapshot of this worker every few seconds, for the dashboard and for whoever asks whether it lives.

It is also the beat of the process itself: others judge by it. Late, it must come again soon, so the reporter gives up
on a statement after one period, and never waits longer than that for its next try.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any

import psutil

from horsies.config import AppConfig
from horsies_worker.claimer import ClaimSettings
from horsies_worker.identity import Identity
from horsies_worker.instance import WorkerInstance
from horsies_worker.pool import ChildPool
from horsies_worker.queries import Queries
from horsies_worker.service import Service
from horsies_worker.session import Session


class Reporter(Service):
    name = "reporter"

    def __init__(
        self,
        config: AppConfig,
        session: Session,
        queries: Queries,
        pool: ChildPool,
        identity: Identity,
        settings: ClaimSettings,
        instance: WorkerInstance,
        *,
        on_judged: Callable[[], None],
        counts: Callable[[], tuple[int, int]],
        started_at: Callable[[], datetime],
    ) -> None:
        super().__init__(config.recovery.worker_state_interval_ms / 1000, config.resilience)
        self._longest_delay_s = self._interval_s
        self._instance = instance
        self._on_judged = on_judged
        self._config = config
        self._session = session
        self._queries = queries
        self._pool = pool
        self._identity = identity
        self._settings = settings
        self._counts = counts
        self._started_at = started_at
        self._process = psutil.Process()
        self._process.cpu_percent()  # the first call only sets the mark that later ones measure from
        self._children: dict[int, psutil.Process] = {}

    async def run_once(self) -> None:
        values = self._values()
        statement = self._queries.sql("insert_snapshot")
        mine = await self._session.run(
            lambda connection: connection.fetchval(statement, *values, timeout=max(1.0, self._interval_s))
        )
        if mine is None:
            self._on_judged()

    def _values(self) -> tuple[Any, ...]:
        running, claimed = self._counts()
        memory = self._process.memory_info().rss / 2**20
        alive = self._pool.stats().children
        children = sum(child.rss_kb for child in alive) / 1024
        total = psutil.virtual_memory().total / 2**20
        priorities = {name: self._config.queue_priority(name) for name in self._settings.queues}
        return (
            self._identity.worker_id, self._identity.hostname, self._identity.pid, self._pool.spec.processes,
            list(self._settings.queues), running, claimed, memory, children,
            self._process.cpu_percent() + self._children_cpu({child.pid for child in alive}),
            100 * (memory + children) / total, self._settings.max_batch, self._settings.max_per_worker,
            self._settings.cluster_cap, json.dumps(priorities), json.dumps(dict(self._settings.queue_caps)),
            json.dumps(asdict(self._config.recovery)), self._started_at(), self._instance.lock_key,
            self._instance.backend_pid,
        )  # fmt: skip

    def _children_cpu(self, pids: set[int]) -> float:
        """Since the last snapshot, in percent of one processor. Each process is remembered, so that a look costs one
        read per child; a child that came since is counted from the next one on."""
        for gone in self._children.keys() - pids:
            del self._children[gone]
        total = 0.0
        for pid in pids:
            try:
                if pid not in self._children:
                    self._children[pid] = psutil.Process(pid)
                total += self._children[pid].cpu_percent()
            except psutil.Error:  # it ended just now
                self._children.pop(pid, None)
        return total
