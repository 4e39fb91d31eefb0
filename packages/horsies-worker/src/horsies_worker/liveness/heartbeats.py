"""Heartbeats for the tasks that this worker owns, on a session that no claim or finalize keeps busy.

A heartbeat that does not find its row owned by this worker means that the task was lost: its child is stopped and its
result dropped.
"""

import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from horsies.config import AppConfig
from horsies.events import ResultDropped
from horsies_worker.child.jobs import Job
from horsies_worker.children.pool import ChildPool
from horsies_worker.claim.buffer import Buffer
from horsies_worker.claim.claimed_task import ClaimedTask, OwnedTasks
from horsies_worker.database.session import Session
from horsies_worker.events.bus import SILENT, EventBus
from horsies_worker.finish.finalizer import Finalizer
from horsies_worker.finish.rerun_alone import reruns_alone
from horsies_worker.output.log_context import about, log
from horsies_worker.service import Service

TICK_S: Final = 0.5
IDLE_TICK_S: Final = 2.0
"""The same while this worker owns no task: half of the wake-ups of an idle worker were for its heartbeats."""
FIRST_BEAT_S: Final = 1.0
"""Age at which a task gets its first heartbeat: shorter tasks cost none."""
MAX_CLAIM_LEASES: Final = 10
"""A claim is renewed for this many leases. A task that has not started by then goes back to the queue."""

Key = tuple[str, int]
"""Task id and claim generation."""


class BeatTimes:
    """When each task was first seen and last sent a heartbeat. Pure: the caller says what time it is."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        # Half an interval: the first tick sees a task and a later one sends, and the first beat must still be in time.
        self._first_after_s = min(FIRST_BEAT_S, interval_s / 2)
        self._first_seen: dict[Key, float] = {}
        self._last_sent: dict[Key, float] = {}

    def due(self, keys: Collection[Key], now: float) -> list[Key]:
        """Those of `keys` that need a heartbeat now. All other tasks are forgotten."""
        for times in (self._first_seen, self._last_sent):
            for key in times.keys() - set(keys):
                del times[key]
        return [key for key in keys if self._is_due(key, now)]

    def _is_due(self, key: Key, now: float) -> bool:
        last = self._last_sent.get(key)
        if last is not None:
            return now - last >= self._interval_s
        return now - self._first_seen.setdefault(key, now) >= self._first_after_s

    def age(self, key: Key, now: float) -> float:
        """Seconds since a task of the last `due` was first seen."""
        return now - self._first_seen[key]

    def sent(self, keys: Iterable[Key], now: float) -> None:
        for key in keys:
            self._last_sent[key] = now


class Leases:
    """Leases of claimed tasks that wait in the buffer for a free slot: renewed with their heartbeats, not for ever."""

    def __init__(self, session: Session, lease_ms: int, interval_s: float) -> None:
        self._session = session
        self._lease_ms = lease_ms
        self._max_claim_s = MAX_CLAIM_LEASES * lease_ms / 1000
        self._times = BeatTimes(interval_s)

    def due(self, claims: Collection[Key], now: float) -> list[Key]:
        """Those of the buffered claims that are to be renewed now."""
        due = self._times.due(claims, now)
        too_old = [key for key in due if self._times.age(key, now) > self._max_claim_s]
        # A claim this old is stuck. It is not handed back from here, because it may be on its way to a child: its lease
        # ends, the reaper requeues it, and a start that comes later finds the claim lost.
        self._times.sent(too_old, now)  # one log line per interval
        for task_id, _ in too_old:
            log.warning(
                "task %s: claimed for more than %.0f s and not started; its claim is not renewed", task_id,
                self._max_claim_s, extra=about(task_id),
            )  # fmt: skip
        return [key for key in due if key not in too_old]

    async def renew(self, claims: Sequence[Key], now: float) -> None:
        if claims:
            await self._session.run(lambda c: self._session.queries.renew_claims(c, claims, self._lease_ms))
            self._times.sent(claims, now)


class Heartbeats(Service):
    name = "heartbeats"

    def __init__(
        self,
        session: Session,
        config: AppConfig,
        pool: ChildPool,
        owned: OwnedTasks,
        buffer: Buffer,
        finalizer: Finalizer,
        *,
        lease_ms: int,
        bus: EventBus = SILENT,
        afterwards: Sequence[Callable[[], Awaitable[None]]] = (),
        on_missed: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`afterwards`: further writes for the same tasks, made on the same session after the heartbeats of a tick.
        `on_missed`: heartbeats could not be written, and perhaps those of other workers could not either."""
        super().__init__(session, config.resilience, TICK_S)
        self._pool = pool
        self._owned = owned
        self._buffer = buffer
        self._finalizer = finalizer
        self._afterwards = afterwards
        self._on_missed = on_missed
        self._bus = bus
        self._clock = clock
        self._times = BeatTimes(config.recovery.runner_heartbeat_interval_ms / 1000)
        claimer_s = config.recovery.claimer_heartbeat_interval_ms / 1000
        self._leases = Leases(session, lease_ms, claimer_s)
        shortest_s = min(claimer_s, config.recovery.runner_heartbeat_interval_ms / 1000)
        # After a longer wait, a reaper that is back in contact before this worker would take it for dead.
        self._longest_delay_s = shortest_s
        self._idle_tick_s = min(IDLE_TICK_S, max(TICK_S, shortest_s / 4))
        self._running_stale_s = config.recovery.running_stale_threshold_ms / 1000
        self._last_contact = clock()
        self._is_idle = False

    async def run_once(self) -> None:
        now = self._clock()
        try:
            # Heartbeats first: nothing that delays the other writes may make this worker look dead.
            try:
                await self._beat(now)
            except Exception:
                self._on_missed()
                raise
            self._last_contact = now  # also if one of the writes below is refused
            for write in self._afterwards:
                await write()
        except Exception:
            if self._clock() - self._last_contact >= self._running_stale_s:
                self._stop_retryable()
            raise

    def pause_s(self) -> float:
        self._is_idle = not self._owned and not self._finalizer.backlog
        return self._idle_tick_s if self._is_idle else super().pause_s()

    def end_idle_pause(self) -> None:
        """Tick now if the pause began without a task: one that has started since has something to write."""
        if self._is_idle:
            self._is_idle = False
            self.wake()

    async def _beat(self, now: float) -> None:
        running = {(job.task_id, job.generation): job for job in self._pool.alive()}
        # a task whose result is not written yet is alive as well
        unwritten = {(end.task_id, end.generation): end for end in self._finalizer.unwritten()}
        waiting = {(task.job.task_id, task.job.generation): task.job for task in self._buffer.waiting()}
        due = self._times.due(running.keys() | unwritten.keys(), now)
        claims = self._leases.due(waiting.keys(), now)
        if not due and not claims:
            return
        children: Mapping[Key, tuple[int | None, str]] = {
            **{key: (end.outcome.pid, end.outcome.process_name) for key, end in unwritten.items()},
            **self._pool.places(),
        }
        beats: list[tuple[Any, ...]] = [(*key, "runner", *children.get(key, (None, ""))) for key in due]
        beats += [(*key, "claimer", self._queries.identity.pid, "") for key in claims]
        before = {key: self._owned.find(*key) for key in (*due, *claims)}
        owned = await self._session.run(lambda connection: self._queries.beat(connection, beats))
        await self._leases.renew(claims, now)
        self._times.sent(due, now)
        lost = [running.get(key) or waiting.get(key) for key in (*due, *claims) if key[0] not in owned]
        if jobs := [job for job in lost if job is not None]:
            await self._drop_lost(jobs, before)

    async def _drop_lost(self, jobs: Sequence[Job], before: Mapping[Key, ClaimedTask | None]) -> None:
        """`before`: what this worker owned when the heartbeats were sent."""
        keys = [(job.task_id, job.generation) for job in jobs]
        sure = await self._session.run(lambda connection: self._queries.confirm_lost(connection, keys))
        jobs = [job for job in jobs if job.task_id in sure]
        # A task that has completed itself may go on until its child reports: it is not lost.
        attempts = [(job.task_id, job.attempt) for job in jobs]
        completed = await self._session.run(lambda connection: self._queries.find_completed(connection, attempts))
        leaving = {end.task_id for end in self._finalizer.unwritten()} | self._finalizer.returning()
        waiting = {task.job.task_id for task in self._buffer.waiting()}
        for job in jobs:
            key = (job.task_id, job.generation)
            task = self._owned.find(*key)
            if task is None or job.task_id in leaving | completed:
                continue  # the task ended, or went back to the queue, while the heartbeat was under way
            if task is not before[key]:
                continue  # it was claimed again under the same generation meanwhile, of a database that was restored
            has_begun = job.task_id not in waiting
            self._stop(job, "CLAIM_LOST, stopping it", has_begun=has_begun)
            if has_begun:
                self._finalizer.recent.ran(key)
            self._buffer.drop([job.task_id])

    def _stop_retryable(self) -> None:
        """Stop tasks that another worker may run again: after so long without contact, its reaper may have requeued
        them, and two runs must not go on side by side. Other tasks may finish; no worker starts them again."""
        for job in list(self._pool.running()):
            task = self._owned.find(job.task_id, job.generation)
            if task is None:
                continue
            policy = task.options.retry_policy
            is_repeated = policy is not None and policy.may_rerun_crashed(job.attempt, task.max_retries)
            if is_repeated or reruns_alone(is_batch=job.gather is not None, attempt=job.attempt):
                self._stop(job, f"no contact with the database for {self._running_stale_s:.0f} s, stopping it")
                self._finalizer.recent.was_stopped((job.task_id, job.generation))

    def _stop(self, job: Job, reason: str, *, has_begun: bool = True) -> None:
        log.warning(
            "task %s (%s) attempt %d: %s", job.task_id, job.task_name, job.attempt, reason,
            extra=about(job.task_id, job.task_name, job.attempt),
        )  # fmt: skip
        if has_begun:
            self._bus.emit(ResultDropped(job.task_id, job.attempt, "claim_lost"))
        self._pool.abandon(job.task_id, job.generation)
        self._owned.drop([job])
