"""A snapshot of this worker every few seconds, for the dashboard and for whoever asks whether it lives.

It is also the beat of the process itself: others judge by it. Late, it must come again soon, so the reporter gives up
on a statement after one period, and never waits longer than that for its next try.
"""

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any

from horsies.config import AppConfig
from horsies_worker.claim_settings import ClaimSettings
from horsies_worker.identity import Identity
from horsies_worker.instance import WorkerInstance
from horsies_worker.pool import ChildPool
from horsies_worker.queries import Queries
from horsies_worker.service import Service
from horsies_worker.session import Session
from horsies_worker.usage import Processors, machine_mb, resident_kb


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
        self._processors = Processors()
        self._processors.percent([identity.pid])  # the mark that later looks measure from

    async def run_once(self) -> None:
        values = self._values()
        statement = self._queries.sql("insert_snapshot")
        bound = max(1.0, self._interval_s) * self._session.patience
        mine = await self._session.run(lambda connection: connection.fetchval(statement, *values, timeout=bound))
        if mine is None:
            self._on_judged()

    def _values(self) -> tuple[Any, ...]:
        running, claimed = self._counts()
        memory = resident_kb(self._identity.pid) / 1024
        alive = self._pool.stats().children
        children = sum(child.rss_kb for child in alive) / 1024
        priorities = {name: self._config.queue_priority(name) for name in self._settings.queues}
        return (
            self._identity.worker_id, self._identity.hostname, self._identity.pid, self._pool.spec.processes,
            list(self._settings.queues), running, claimed, memory, children,
            self._processors.percent([self._identity.pid, *(child.pid for child in alive)]),
            100 * (memory + children) / machine_mb(), self._settings.max_batch, self._settings.max_per_worker,
            self._settings.cluster_cap, json.dumps(priorities), json.dumps(dict(self._settings.queue_caps)),
            json.dumps(asdict(self._config.recovery)), self._started_at(), self._instance.lock_key,
            self._instance.backend_pid,
        )  # fmt: skip
