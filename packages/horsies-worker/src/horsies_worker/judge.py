"""Finds workers that are dead beyond doubt, says so durably, and gives their tasks back at once.

Much faster than the heartbeat thresholds, which remain for everything that this cannot tell: a stopped process keeps
its lock, a host that vanished keeps it until TCP gives up. Every worker watches; the guard of the verdict lets one of
them speak.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from horsies.config import AppConfig
from horsies_worker.child.logs import about
from horsies_worker.identity import Identity
from horsies_worker.queries import Queries
from horsies_worker.recovery import Recovery
from horsies_worker.service import Service
from horsies_worker.session import SET_LOCAL_LIMITS, Session
from horsies_worker.syncpoints import reached
from horsies_worker.vigil import LOOK_EVERY_S, Instance, Vigil

_log = logging.getLogger("horsies.worker")

BATCH: Final = 500


class Judge(Service):
    name = "judge"

    def __init__(
        self,
        config: AppConfig,
        recovery: Recovery,
        session: Session,
        queries: Queries,
        identity: Identity,
        *,
        on_ended: Callable[[Sequence[str]], None] = lambda _: None,
        on_dead: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_ended = on_ended
        self._on_dead = on_dead
        super().__init__(LOOK_EVERY_S, config.resilience)
        self._with_claims = config.recovery.auto_requeue_stale_claimed
        self._recovery = recovery
        self._session = session
        self._queries = queries
        self._identity = identity
        self._vigil = Vigil()
        self._connection: Any = None

    async def run_once(self) -> None:
        instances = await self._session.run(self._read)
        silent = self._vigil.look(
            time.monotonic(),
            (id(self._connection), instances[0].server_start if instances else None),
            [one for one in instances if one.judged_dead_at is None and one.worker_id != self._identity.worker_id],
        )
        # a verdict whose judge died before it had recovered everything is carried out by whoever sees it
        dead = [one for one in instances if one.judged_dead_at is not None]
        for suspect in silent:
            if suspect.lock_key is not None and await self._session.run(lambda c: self._judge(c, suspect)):  # noqa: B023
                dead.append(suspect)
        for one in dead:
            while await self._session.run(lambda c: self._recover(c, one.worker_id)):  # noqa: B023  (awaited here)
                pass
        if dead:
            self._on_dead()  # what it had ended and not yet told its workflows is the reaper's to find
        self._interval_s = self._vigil.next_look(instances)

    async def _read(self, connection: Any) -> list[Instance]:
        self._connection = connection  # kept, so that another one cannot have the same id()
        rows = await connection.fetch(self._queries.sql("watch_instances"))
        return [Instance(**row) for row in rows]

    async def _judge(self, connection: Any, suspect: Instance) -> bool:
        async with connection.transaction(isolation="read_committed"):
            await self._limit(connection)
            if not await connection.fetchval(self._queries.sql("try_lock_of_silent"), suspect.lock_key):
                return False  # its session lives: frozen, or cut off a moment ago. The thresholds decide.
            await reached("before_verdict")
            judged = await connection.fetchval(
                self._queries.sql("judge_instance"), suspect.worker_id, suspect.beats, self._identity.worker_id
            )
        if judged is None:
            return False
        _log.warning("worker %s is dead: its session is gone and so are its beats", suspect.worker_id)
        await reached("after_verdict")
        return True

    async def _recover(self, connection: Any, worker_id: str) -> bool:
        """One batch; True when there may be more."""
        async with connection.transaction(isolation="read_committed"):
            await self._limit(connection)
            requeued: list[Any] = []
            if self._with_claims:
                requeued = await connection.fetch(self._queries.sql("requeue_dead_claims"), worker_id, BATCH)
            running = await connection.fetch(self._queries.sql("dead_running"), worker_id, BATCH)
            ended = await self._recovery.end(connection, running, "its worker died")
            if max(len(requeued), len(running)) < BATCH:
                await connection.fetchval(self._queries.sql("mark_recovered"), worker_id, self._with_claims)
        self._on_ended([row["id"] for row in ended])
        for what, rows in (("requeued", requeued), ("recovered", ended)):
            for row in rows:
                _log.warning("judge: %s task %s of worker %s", what, row["id"], worker_id, extra=about(row["id"]))
        return max(len(requeued), len(ended)) == BATCH

    async def _limit(self, connection: Any) -> None:
        if self._session.pooled:
            await connection.execute(SET_LOCAL_LIMITS)
