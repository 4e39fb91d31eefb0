"""Vouches for what this worker holds: heartbeats, leases, progress, staged results; and hears who wants what stopped.

On a connection of its own: it must never wait behind a claim or a finalize. A beat that finds its row no longer ours
means that the task was lost to another worker; its child is stopped and its result dropped.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from horsies._pg.transient import is_transient
from horsies.config import AppConfig
from horsies.errors import OperationalErrorCode
from horsies_worker.child.logs import about
from horsies_worker.finalizer import Finalizer
from horsies_worker.held import Held
from horsies_worker.jobs import Job
from horsies_worker.pool import ChildPool
from horsies_worker.queries import Queries
from horsies_worker.service import Service
from horsies_worker.session import Session
from horsies_worker.starter import Starter
from horsies_worker.syncpoints import reached

_log = logging.getLogger("horsies.worker")

TICK_S: Final = 0.5
FIRST_BEAT_S: Final = 1.0
"""A task that runs longer gets its first beat now: shorter ones cost no beat at all."""
STAGE_AFTER_S: Final = 2.0
MAX_CLAIM_LEASES: Final = 10
"""So many leases long a claim is renewed; a task that could not be started by then goes back to everybody."""


class Upkeep(Service):
    name = "upkeep"

    def __init__(
        self,
        config: AppConfig,
        session: Session,
        queries: Queries,
        pool: ChildPool,
        held: Held,
        starter: Starter,
        finalizer: Finalizer,
        *,
        worker_pid: int,
        lease_ms: int,
        on_lost: Callable[[Job], None],
    ) -> None:
        super().__init__(TICK_S, config.resilience)
        self._session = session
        self._queries = queries
        self._pool = pool
        self._held = held
        self._starter = starter
        self._finalizer = finalizer
        self._worker_pid = worker_pid
        self._lease_ms = lease_ms
        self._max_claim_s = MAX_CLAIM_LEASES * lease_ms / 1000
        self._on_lost = on_lost
        self._runner_s = config.recovery.runner_heartbeat_interval_ms / 1000
        self._claimer_s = config.recovery.claimer_heartbeat_interval_ms / 1000
        self._poll_s = config.resilience.notify_poll_interval_ms / 1000
        self._first_seen: dict[tuple[str, int], float] = {}
        self._last_beat: dict[tuple[str, int], float] = {}
        self._progress: dict[tuple[str, int], str] = {}
        self._cancel_hints: set[str] = set()
        self._asked_to_stop: set[tuple[str, int]] = set()
        self._next_cancel_poll = 0.0
        self._running_stale_s = config.recovery.running_stale_threshold_ms / 1000
        self._last_contact = time.monotonic()

    def on_progress(self, job: Job, text: str) -> None:
        """The newest value wins; written with the next tick."""
        self._progress[job.task_id, job.generation] = text

    def on_cancel(self, task_id: str) -> None:
        """Somebody wants a running task stopped; it may be one of ours."""
        if self._held.get(task_id) is not None:
            self._cancel_hints.add(task_id)
            self.wake()

    async def run_once(self) -> None:
        now = time.monotonic()
        try:
            # beats first: whatever hinders the others must not make this worker look dead
            await self._beat(now)
            await self._stop_cancelled(now)
            await self._stage_late()
            await self._write_progress()
        except Exception:
            if time.monotonic() - self._last_contact >= self._running_stale_s:
                self._stop_what_others_may_run()
            raise
        self._last_contact = now

    def _stop_what_others_may_run(self) -> None:
        """Cut off for longer than the reaper waits: tasks whose policy lets another worker run them again are stopped,
        so that two runs do not go on side by side. The others may finish; nobody else will start them."""
        for job in list(self._pool.running()):
            task = self._held.find(job.task_id, job.generation)
            policy = task.options.retry_policy if task is not None else None
            if task is None or policy is None or job.attempt > task.max_retries:
                continue
            if policy.allows(OperationalErrorCode.WORKER_CRASHED):
                _log.warning(
                    "task %s (%s) attempt %d: no contact with the database for %.0f s, stopping it", job.task_id,
                    job.task_name, job.attempt, self._running_stale_s,
                    extra=about(job.task_id, job.task_name, job.attempt),
                )  # fmt: skip
                self._pool.abandon(job.task_id, job.generation)
                self._on_lost(job)

    # -- beats -----------------------------------------------------------------------------------

    async def _beat(self, now: float) -> None:
        running = {(job.task_id, job.generation): job for job in self._pool.alive()}
        # a result in hand that is not written yet is alive as well
        unwritten = {(end.task_id, end.generation): end for end in self._finalizer.unwritten()}
        waiting = {(task.job.task_id, task.job.generation): task.job for task in self._starter.waiting()}
        self._forget_others(running.keys() | unwritten.keys() | waiting.keys())
        due = [key for key in (running.keys() | unwritten.keys()) if self._is_due(key, now, self._runner_s)]
        claims = [key for key in waiting if self._is_due(key, now, self._claimer_s) and not self._is_too_old(key, now)]
        if not due and not claims:
            return
        places: dict[tuple[str, int], tuple[int | None, str]] = {
            **{key: (end.pid, end.process_name) for key, end in unwritten.items()},
            **self._pool.places(),
        }
        beats: list[tuple[str, int, str, int | None, str]] = []
        for task_id, generation in due:
            pid, name = places.get((task_id, generation), (None, ""))
            beats.append((task_id, generation, "runner", pid, name))
        beats += [(*key, "claimer", self._worker_pid, "") for key in claims]
        mine = await self._session.run(lambda connection: self._queries.beat(connection, beats))
        if claims:
            await self._session.run(lambda connection: self._queries.renew_claims(connection, claims, self._lease_ms))
        for key in (*due, *claims):
            self._last_beat[key] = now
        self._lose(
            job
            for key in (*due, *claims)
            if key[0] not in mine
            for job in (running.get(key) or waiting.get(key),)
            if job
        )

    def _is_due(self, key: tuple[str, int], now: float, interval: float) -> bool:
        last = self._last_beat.get(key)
        if last is not None:
            return now - last >= interval
        # half an interval: found by the first tick, beaten by a later one, the first beat must still be in time
        return now - self._first_seen.setdefault(key, now) >= min(FIRST_BEAT_S, interval / 2)

    def _is_too_old(self, key: tuple[str, int], now: float) -> bool:
        """A claim that is held for so long is behind something that does not move. It is not handed back from here,
        where it may be on its way to a child: nobody vouches for it any more, its lease ends, and the reaper requeues
        it; a start that comes later finds the claim lost."""
        is_too_old = now - self._first_seen[key] > self._max_claim_s
        if is_too_old:
            self._last_beat[key] = now  # not due again before another interval has passed: one line in the log for each
            _log.warning(
                "task %s: claimed for more than %.0f s and not started; its claim is not renewed", key[0],
                self._max_claim_s, extra=about(key[0]),
            )  # fmt: skip
        return is_too_old

    def _forget_others(self, known: Iterable[tuple[str, int]]) -> None:
        keep = set(known)
        for memory in (self._first_seen, self._last_beat):
            for key in memory.keys() - keep:
                del memory[key]

    def _lose(self, jobs: Iterable[Job]) -> None:
        leaving = {end.task_id for end in self._finalizer.unwritten()} | self._finalizer.returning()
        for job in jobs:
            if self._held.find(job.task_id, job.generation) is None or job.task_id in leaving:
                continue  # it ended, or went back, between our look and the beat
            _log.warning(
                "task %s (%s) attempt %d: CLAIM_LOST, stopping it", job.task_id, job.task_name, job.attempt,
                extra=about(job.task_id, job.task_name, job.attempt),
            )  # fmt: skip
            self._pool.abandon(job.task_id, job.generation)
            self._starter.drop([job.task_id])
            self._on_lost(job)

    # -- the rest --------------------------------------------------------------------------------

    async def _stop_cancelled(self, now: float) -> None:
        hints, self._cancel_hints = self._cancel_hints, set()
        if now >= self._next_cancel_poll:
            self._next_cancel_poll = now + self._poll_s
            hints = {job.task_id for job in self._pool.running()}
        if not hints:
            return
        wanted = await self._session.run(lambda connection: self._queries.cancel_requests(connection, sorted(hints)))
        running = {(job.task_id, job.generation) for job in self._pool.running()}
        self._asked_to_stop &= running
        for task_id, generation in set(wanted) - self._asked_to_stop:
            _log.info("task %s: cancel requested, stopping it", task_id, extra=about(task_id))
            self._asked_to_stop.add((task_id, generation))
            self._pool.cancel(task_id, generation)

    async def _stage_late(self) -> None:
        late = self._finalizer.waiting_longer_than(STAGE_AFTER_S)
        if late:
            await reached("before_stage")
            self._finalizer.staged(await self._session.run(lambda c: self._queries.stage(c, late)))
            await reached("after_stage")

    async def _write_progress(self) -> None:
        if not self._progress:
            return
        values, self._progress = self._progress, {}
        written: set[str] = set()
        try:
            written = await self._written([(*key, text) for key, text in values.items()])
        finally:
            # Not written, and still ours: the row was locked, or the database is away. Newer values came meanwhile,
            # or these are still the newest.
            left = {key: text for key, text in values.items() if key[0] not in written and self._held.find(*key)}
            self._progress = left | self._progress

    async def _written(self, items: Sequence[tuple[str, int, str]]) -> set[str]:
        """Write these; one that cannot be stored (a number of 200,000 digits) is dropped, alone."""
        try:
            return await self._session.run(lambda connection: self._queries.write_progress(connection, items))
        except Exception as error:
            if is_transient(error):
                raise
            if len(items) == 1:
                _log.warning("task %s: its progress cannot be stored: %s", items[0][0], error, extra=about(items[0][0]))
                return {items[0][0]}
        half = len(items) // 2
        return await self._written(items[:half]) | await self._written(items[half:])
