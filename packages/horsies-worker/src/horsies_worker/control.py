"""What operators want of this worker while it runs: that it drains, resumes, or has another number of children.

An operator writes the wish to the worker's row. The worker reads it with its heartbeat, or at once when it is on duty
and hears the notification. Workers that wait for the duty hear nothing, so a wish may take one heartbeat to arrive.
While a wish is being carried out, and while the worker is drained, it looks more often. What holds is written with the
heartbeat.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any, Final, Literal

from horsies.config import ResilienceConfig
from horsies.events import WorkerDrained, WorkerDraining, WorkerResized, WorkerResumed
from horsies_worker.children.pool import ChildPool
from horsies_worker.claim.claimed_task import OwnedTasks
from horsies_worker.claim.claimers import Claimers
from horsies_worker.database.session import Session
from horsies_worker.events.bus import EventBus
from horsies_worker.finish.finalizer import Finalizer
from horsies_worker.output.log_context import log
from horsies_worker.service import Service

LOOK_S: Final = 0.1
"""While a wish is being carried out, look this often whether it holds."""
READ_S: Final = 0.5
"""A worker that is drained or carries out a wish reads its row this often: it hears no notifications."""

State = Literal["RUNNING", "DRAINING", "DRAINED"]


@dataclass(frozen=True, slots=True)
class Wish:
    """The row of this worker, as far as it is written by operators. None: no operator has asked for it."""

    state: str | None = None
    processes: int | None = None
    at: datetime | None = None
    by: str | None = None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> "Wish":
        return cls(row["wanted_state"], row["wanted_processes"], row["wanted_at"], row["wanted_by"])

    @property
    def drains(self) -> bool:
        return self.state == "DRAINED"

    @property
    def asked_by(self) -> str:
        return self.by or "an operator"


class WorkerControl(Service):
    name = "control"

    def __init__(
        self,
        session: Session,
        resilience: ResilienceConfig,
        claimers: Claimers,
        pool: ChildPool,
        owned: OwnedTasks,
        finalizer: Finalizer,
        bus: EventBus,
        *,
        on_change: Callable[[], None],
    ) -> None:
        """`on_change` is called when other than what was written holds."""
        super().__init__(session, resilience, resilience.notify_poll_interval_ms / 1000)
        self._claimers = claimers
        self._pool = pool
        self._owned = owned
        self._finalizer = finalizer
        self._bus = bus
        self._on_change = on_change
        self._worker_id = session.queries.identity.worker_id
        self._is_announced = False
        self._read_at = -inf
        self.wish = Wish()
        self.state: State = "RUNNING"
        self._is_resize = False
        """The last wish is about the number of children alone: it holds before the worker is drained."""
        self.reached_at: datetime | None = None
        """The time of the last wish that holds."""

    # -- wishes ----------------------------------------------------------------------------------

    def on_control(self, worker_id: str) -> None:
        """A notification: an operator wants something of the worker with this id."""
        if worker_id == self._worker_id:
            self._is_announced = True
            self.wake()

    def learn(self, wish: Wish) -> None:
        """Carry out a wish, unless it is the one that is known."""
        if wish.at is None or (self.wish.at is not None and wish.at <= self.wish.at):
            return
        before, self.wish = self.wish, wish
        self._is_resize = wish.state == before.state and wish.processes != before.processes
        if wish.drains and not before.drains:
            log.info("drain: %s wants this worker to claim nothing more; running tasks go on", wish.asked_by)
            self.state = "DRAINING"
            self._claimers.drain()
            self._bus.emit(WorkerDraining(self._worker_id, wish.by))
        elif before.drains and not wish.drains:
            log.info("resume: %s wants this worker to claim again", wish.asked_by)
            self.state = "RUNNING"
            self._claimers.resume()
            self._bus.emit(WorkerResumed(self._worker_id, wish.by))
        if wish.processes is not None and wish.processes != (processes := self._pool.processes):
            log.info("resize: %s wants %d children instead of %d", wish.asked_by, wish.processes, processes)
            self._pool.resize(wish.processes)
            self._bus.emit(WorkerResized(self._worker_id, wish.processes, processes, wish.by))
        self._on_change()
        self.wake()

    # -- the loop --------------------------------------------------------------------------------

    async def run_once(self) -> None:
        now = time.monotonic()
        if self._is_announced or (self._is_attentive and now >= self._read_at + READ_S):
            self._is_announced = False
            self._read_at = now
            for row in await self._session.ask("read_wish", self._worker_id):
                self.learn(Wish.of(row))
        self._check()

    def pause_s(self) -> float:
        if self.wish.at != self.reached_at or self.state == "DRAINING":
            return LOOK_S
        return READ_S if self._is_attentive else self._interval_s

    @property
    def _is_attentive(self) -> bool:
        return self.wish.drains or self.wish.at != self.reached_at

    def _check(self) -> None:
        """Find out how far the wish is carried out."""
        if self.state == "DRAINING":
            self._pool.take_back()
            if self._claimers.have_left and not len(self._owned) and not self._finalizer.backlog:
                log.info("drained: this worker has no task, and waits until it is resumed or stopped")
                self.state = "DRAINED"
                self._bus.emit(WorkerDrained(self._worker_id))
                self._on_change()
        if self.wish.at != self.reached_at and self._holds:
            self.reached_at = self.wish.at
            self._on_change()

    @property
    def _holds(self) -> bool:
        has_state = self._is_resize or self.state == (self.wish.state or "RUNNING")
        is_sized = self.wish.processes is None or (
            self._pool.processes == self.wish.processes and self._pool.has_its_size
        )
        return has_state and is_sized
