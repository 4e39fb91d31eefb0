"""A snapshot of this worker every few seconds, for the dashboard and for the other workers.

The snapshot is also the heartbeat of the process itself, by which other workers detect that it died. A late snapshot
must be repeated soon: the reporter gives up on a statement after one period and tries again within one period.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any

from horsies.config import AppConfig
from horsies_worker.children.pool import ChildPool
from horsies_worker.children.usage import Processors, machine_mb, resident_kb
from horsies_worker.claim.settings import ClaimSettings
from horsies_worker.database.session import Session
from horsies_worker.liveness.instance import WorkerInstance
from horsies_worker.service import Service


class Reporter(Service):
    name = "reporter"

    def __init__(
        self,
        session: Session,
        config: AppConfig,
        pool: ChildPool,
        settings: ClaimSettings,
        instance: WorkerInstance,
        *,
        on_declared_dead: Callable[[], None],
        counts: Callable[[], tuple[int, int]],
        control: Callable[[], tuple[str, datetime | None]] = lambda: ("RUNNING", None),
        on_written: Callable[[Mapping[str, Any]], None] = lambda _: None,
    ) -> None:
        """`counts` returns how many tasks run and how many are buffered; `control` the worker's state, and the time of
        the last wish of an operator that holds. `on_written` gets what operators want."""
        super().__init__(session, config.resilience, config.recovery.worker_state_interval_ms / 1000)
        self._longest_delay_s = self._interval_s
        self._instance = instance
        self._on_declared_dead = on_declared_dead
        self._on_written = on_written
        self._pool = pool
        self._settings = settings
        self._fixed = _fixed_values(config, settings)
        self._counts = counts
        self._control = control
        self._identity = session.queries.identity
        self._processors = Processors()
        self._processors.percent([self._identity.pid])  # the start of the first measurement

    async def run_once(self) -> None:
        values = self._values()
        statement = self._queries.sql("insert_snapshot")
        bound = max(1.0, self._interval_s) * self._session.patience
        recorded = await self._session.run(lambda connection: connection.fetchrow(statement, *values, timeout=bound))
        if recorded is None:
            self._on_declared_dead()
        else:
            self._on_written(recorded)

    def _values(self) -> tuple[Any, ...]:
        running, claimed = self._counts()
        memory = resident_kb(self._identity.pid) / 1024
        alive = self._pool.stats().children
        children = sum(child.rss_kb for child in alive) / 1024
        return (
            self._identity.worker_id, self._identity.hostname, self._identity.pid, self._pool.processes,
            list(self._settings.queues), running, claimed, memory, children,
            self._processors.percent([self._identity.pid, *(child.pid for child in alive)]),
            100 * (memory + children) / machine_mb(), *self._fixed, self._instance.started_at, self._instance.lock_key,
            self._instance.backend_pid, *self._control(),
        )  # fmt: skip


def _fixed_values(config: AppConfig, settings: ClaimSettings) -> tuple[Any, ...]:
    """The settings in a snapshot."""
    priorities = {name: config.queue_priority(name) for name in settings.queues}
    return (
        settings.max_batch, settings.max_per_worker, settings.cluster_cap, json.dumps(priorities),
        json.dumps(dict(settings.queue_caps)), json.dumps(asdict(config.recovery)),
    )  # fmt: skip
