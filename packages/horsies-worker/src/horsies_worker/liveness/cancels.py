"""Cancel requests for running tasks: heard by notification while this worker is on duty, else polled."""

import time
from collections.abc import Callable
from math import inf
from typing import Final

from horsies.config import ResilienceConfig
from horsies_worker.children.pool import ChildPool
from horsies_worker.claim.claimed_task import OwnedTasks
from horsies_worker.database.session import Session
from horsies_worker.output.log_context import about, log
from horsies_worker.service import Service

DEAF_POLL_S: Final = 0.5
"""The poll interval of a worker that hears no notifications and runs tasks. LISTEN would cost the server as much as
this poll as soon as 10 notifications per second are sent in the database, on any channel."""


class CancelRequests(Service):
    name = "cancel requests"

    def __init__(
        self,
        session: Session,
        resilience: ResilienceConfig,
        pool: ChildPool,
        owned: OwnedTasks,
        hears: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(session, resilience, resilience.notify_poll_interval_ms / 1000)
        self._pool = pool
        self._owned = owned
        self._hears = hears
        self._clock = clock
        self._announced: set[str] = set()
        self._polled_at = -inf
        self._stopping: set[tuple[str, int]] = set()

    def on_cancel(self, task_id: str) -> None:
        """A notification: a running task, perhaps of this worker, is to be stopped."""
        if self._owned.get(task_id) is not None:
            self._announced.add(task_id)
            self.wake()

    def poll(self) -> None:
        """Look at all running tasks now: requests may have been announced to another worker."""
        self._polled_at = -inf
        self.wake()

    async def run_once(self) -> None:
        now = self._clock()
        task_ids, self._announced = self._announced, set()
        every_s = self._interval_s if self._hears() else self.pause_s()
        is_poll = now >= self._polled_at + every_s
        if is_poll:
            task_ids = {job.task_id for job in self._pool.running()}
            self._polled_at = -inf  # poll again after a failed try
        if task_ids:
            self._stop(await self._session.run(lambda c: self._queries.cancel_requests(c, sorted(task_ids))))
        if is_poll:
            self._polled_at = now

    def pause_s(self) -> float:
        return min(self._interval_s, DEAF_POLL_S if self._pool.running() else 2 * DEAF_POLL_S)

    def _stop(self, requested: list[tuple[str, int]]) -> None:
        self._stopping &= {(job.task_id, job.generation) for job in self._pool.running()}
        for task_id, generation in set(requested) - self._stopping:
            log.info("task %s: cancel requested, stopping it", task_id, extra=about(task_id))
            self._stopping.add((task_id, generation))
            self._pool.cancel(task_id, generation)
