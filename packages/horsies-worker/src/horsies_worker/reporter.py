"""A snapshot of this worker every few seconds, for the dashboard and for whoever asks whether it lives."""

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

import psutil

from horsies.config import AppConfig
from horsies_worker.claimer import ClaimSettings
from horsies_worker.identity import Identity
from horsies_worker.pool import ChildPool
from horsies_worker.queries import Queries
from horsies_worker.service import Service
from horsies_worker.session import Session

SNAPSHOT_EVERY_S: Final = 5.0


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
        *,
        counts: Callable[[], tuple[int, int]],
        started_at: Callable[[], datetime],
    ) -> None:
        super().__init__(SNAPSHOT_EVERY_S, config.resilience)
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

    async def run_once(self) -> None:
        values = self._values()
        await self._session.run(lambda connection: connection.execute(self._queries.sql("insert_snapshot"), *values))

    def _values(self) -> tuple[Any, ...]:
        running, claimed = self._counts()
        memory = self._process.memory_info().rss / 2**20
        children = sum(child.rss_kb for child in self._pool.stats().children) / 1024
        total = psutil.virtual_memory().total / 2**20
        priorities = {name: self._config.queue_priority(name) for name in self._settings.queues}
        return (
            self._identity.worker_id, self._identity.hostname, self._identity.pid, self._pool.spec.processes,
            list(self._settings.queues), running, claimed, memory, children, self._process.cpu_percent(),
            100 * (memory + children) / total, self._settings.max_batch, self._settings.max_per_worker,
            self._settings.cluster_cap, json.dumps(priorities), json.dumps(dict(self._settings.queue_caps)),
            json.dumps(asdict(self._config.recovery)), self._started_at(),
        )  # fmt: skip
