"""Finds dead workers, declares them dead in the database, and recovers their tasks at once.

A worker is dead when it has missed heartbeats and no session holds its lock. That is much faster than the heartbeat
thresholds, which remain for the other cases: a stopped process keeps its lock, and a host that vanished keeps it until
TCP gives up. Every worker checks after each of its own heartbeats, and at the moment at which another worker becomes
suspect; the guard of `declare_dead` lets one of them succeed.
"""

import random
import time
from collections.abc import Callable
from typing import Any, Final

from horsies.config import AppConfig
from horsies.events import WorkerDeclaredDead
from horsies_worker.database.checks import Checks
from horsies_worker.database.session import Session
from horsies_worker.liveness.missed_beats import Instance, MissedBeats
from horsies_worker.liveness.recovery import Recovery
from horsies_worker.output.log_context import about, log
from horsies_worker.service import Service
from horsies_worker.syncpoints import reached

BATCH: Final = 500
SPREAD_S: Final = 0.05
MAX_SPREAD_S: Final = 1.0
"""All workers find the same suspect at the same moment. A check is delayed by a random time up to `SPREAD_S` per
worker, so that the first one has recovered the tasks before most of the others look."""


class DeadWorkers(Service):
    name = "dead workers"

    def __init__(
        self,
        session: Session,
        config: AppConfig,
        recovery: Recovery,
        *,
        checks: Session | None = None,
        on_dead: Callable[[], None] = lambda: None,
    ) -> None:
        """`checks`: a session whose connection is open anyway, to find and declare dead workers. Their tasks are
        recovered on `session`, because that may take long."""
        period_s = config.recovery.worker_state_interval_ms / 1000
        # By then the reporter has called `wake`, unless its heartbeat failed.
        super().__init__(session, config.resilience, 1.1 * period_s + 1.0)
        self._longest_delay_s = self._interval_s
        self._checks = Checks(checks, session)
        self._on_dead = on_dead
        self._with_claims = config.recovery.auto_requeue_stale_claimed
        self._recovery = recovery
        self._worker_id = session.queries.identity.worker_id
        self._missed = MissedBeats(self._interval_s)
        self._spread_s = 0.0
        self._connection: Any = None

    async def run_once(self) -> None:
        instances = await self._checks.run(self._read)
        suspects = self._missed.suspects(
            time.monotonic(),
            (id(self._connection), instances[0].server_start if instances else None),
            [one for one in instances if not one.is_judged_dead and one.worker_id != self._worker_id],
        )
        # a worker that declares another one dead may die before it has recovered all tasks: any worker continues
        dead = [one for one in instances if one.is_judged_dead]
        for suspect in suspects:
            if suspect.lock_key is not None and await self._checks.run(lambda c: self._declare_dead(c, suspect)):  # noqa: B023
                dead.append(suspect)
        for one in dead:
            while await self._session.run(lambda c: self._recover(c, one.worker_id)):  # noqa: B023  (awaited here)
                pass
        if dead:
            self._on_dead()
        self._interval_s = self._missed.next_check_s(instances)
        self._spread_s = min(MAX_SPREAD_S, SPREAD_S * len(instances))

    def pause_s(self) -> float:
        return self._interval_s + random.uniform(0.0, self._spread_s)

    async def _read(self, connection: Any) -> list[Instance]:
        self._connection = connection  # kept, so that another one cannot have the same id()
        rows = await connection.fetch(self._queries.sql("open_instances"))
        return [Instance(*row) for row in rows]

    async def _declare_dead(self, connection: Any, suspect: Instance) -> bool:
        async with self._session.transaction(connection):
            if not await connection.fetchval(self._queries.sql("try_lock_of_suspect"), suspect.lock_key):
                return False  # its session lives: the process is frozen, or was cut off a moment ago
            await reached("before_declared_dead")
            declared = await connection.fetchval(
                self._queries.sql("declare_dead"), suspect.worker_id, suspect.beats, self._worker_id
            )
        if declared is None:
            return False
        self._recovery.bus.emit(WorkerDeclaredDead(suspect.worker_id))
        log.warning("worker %s is dead: it sends no heartbeats and its session is gone", suspect.worker_id)
        await reached("after_declared_dead")
        return True

    async def _recover(self, connection: Any, worker_id: str) -> bool:
        """Recover one batch of a dead worker's tasks; True when there may be more."""
        async with self._session.transaction(connection):
            requeued: list[Any] = []
            if self._with_claims:
                requeued = await connection.fetch(self._queries.sql("requeue_dead_claims"), worker_id, BATCH)
            running = await connection.fetch(self._queries.sql("dead_running"), worker_id, BATCH)
            ended = await self._recovery.end(connection, running, "its worker died")
            if max(len(requeued), len(running)) < BATCH:
                await connection.fetchval(self._queries.sql("mark_recovered"), worker_id, self._with_claims)
        self._recovery.tasks_ended([row["id"] for row in ended])
        self._recovery.tell("requeued", requeued)
        self._recovery.tell("ended", ended)
        for what, rows in (("requeued", requeued), ("recovered", ended)):
            for row in rows:
                log.warning("%s task %s of dead worker %s", what, row["id"], worker_id, extra=about(row["id"]))
        return max(len(requeued), len(ended)) == BATCH
