"""Free slots become running tasks: look at the room, claim that much in one statement, hand it to the pool.

Wakes on a notification, on room in the pool, when the next delayed task is due, and every poll interval as a net. A
claim that comes back short does not mean an empty queue; only an empty discovery does.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from math import inf
from typing import Any

from horsies._pg.backoff import Backoff
from horsies.config import AppConfig
from horsies.registry import Registry
from horsies_worker.child.logs import about
from horsies_worker.claim_settings import ClaimSettings
from horsies_worker.claims import ClaimedTask, claimed_task
from horsies_worker.finalizer import Finalizer
from horsies_worker.held import Held
from horsies_worker.jobs import Room
from horsies_worker.lookout import Look, Lookout
from horsies_worker.pool import ChildPool
from horsies_worker.queries import ClaimRequest, NextRequest, Queries
from horsies_worker.reconciler import Reconciler
from horsies_worker.service import tell_trouble
from horsies_worker.session import Session
from horsies_worker.starter import Starter
from horsies_worker.streak import Streak
from horsies_worker.syncpoints import reached

_log = logging.getLogger("horsies.worker")

LOOK = 200
"""Where there are tasks of several kinds, those of one that has no room must not hide the others behind them: so far
a claim looks, without a lock. Not right after a full one: to look at 200 and take 64 is twice the work."""
CALM_S = 0.050
"""All that was heard of is taken: whether there is more is asked when nothing else has come for this long, or when the
next delayed task is due. A worker that is sent one task at a time spends two statements less on each. Not much less
than this: at 5 ms, a round trip that took longer was made slower still by those two."""
FRUITLESS = 3
"""After so many notifications that led to nothing, wait a few random milliseconds: others are faster anyway."""
HERD_S = 0.010
DUE_EVERY_S = 0.25
"""A worker that hears of one task after the other that is not for it asks this often when its next one is due."""
CAPPED_REST = 10
"""After a claim that a cap kept empty, ends of other workers' tasks are no reason to claim for so many times as long as
it took: every end announces itself, and every such claim counts under the one lock of the caps."""
BLOCKED_S = 0.1
"""A task that is ours to start, and whose row somebody holds: look again this soon."""


class Claimer:
    def __init__(
        self,
        settings: ClaimSettings,
        config: AppConfig,
        registry: Registry,
        session: Session,
        queries: Queries,
        pool: ChildPool,
        held: Held,
        starter: Starter,
        finalizer: Finalizer,
        reconciler: Reconciler,
        *,
        on_contact: Callable[[], None],
        on_workflow_task_ended: Callable[[Sequence[str]], None] = lambda _: None,
    ) -> None:
        self._on_workflow_task_ended = on_workflow_task_ended
        self._settings = settings
        self._session = session
        self._queries = queries
        self._pool = pool
        self._held = held
        self._starter = starter
        self._finalizer = finalizer
        self._reconciler = reconciler
        self._on_contact = on_contact
        self._poll_s = config.resilience.notify_poll_interval_ms / 1000
        self._backoff = Backoff(config.resilience)
        self._wake = asyncio.Event()
        self._lookout = Lookout()
        self._put_off_s: float | None = None
        self._looked_at = self._took_s = 0.0
        self._due_at = inf
        self._due_asked_at = -inf
        self._idle = False
        self._missed_room = False
        self._stopped = False
        self._stopping = asyncio.Event()
        self._is_blocked = False
        self._look = Look.FULL
        self._is_capped = False
        self._place_timer: asyncio.TimerHandle | None = None
        self._paused: set[str] = set()
        self._pauses_known = False
        self._fruitless = 0
        self._heard = 0
        self._was_full = False
        self._none_sync = self._none_async = False
        # Only these are claimed: tasks of other names are left in line for the workers that know them.
        self._known = {task.name: task for task in registry if not task.is_stub}
        self._async_names = [name for name, task in self._known.items() if task.is_async]
        self._sync_names = [name for name, task in self._known.items() if not task.is_async]
        self._streak = Streak(self._sync_names, self._async_names)
        # places under a cap must be counted, and a buffer be filled: work for a whole claim
        self._may_repeat = not settings.queue_caps and settings.cluster_cap is None and not settings.prefetch
        self.claimed = 0
        self.statements = 0

    # -- what wakes it ---------------------------------------------------------------------------

    def on_news(self, _payload: str = "") -> None:
        """A notification: somewhere in our queues something became claimable."""
        if self._idle:
            self._heard += 1
        else:
            self._lookout.news()
        self._wake.set()

    def look_everywhere(self) -> None:
        """There may be work where there was none, or where it could not be taken."""
        self._lookout.news()
        self._wake.set()

    def on_room(self) -> None:
        """The pool, or a limit, can take more. No reason to look into queues that were empty just now: whatever
        comes into them notifies. Without this an idle round trip would cost two statements more."""
        if not self._idle or len(self._starter):
            self._wake.set()
        else:
            # "just now" may be a look that is over: the one on its way may find work and no room for it
            self._missed_room = True

    def on_place_freed(self) -> None:
        """A task ended in another worker: if a cap kept the last claim from taking more, there may be a place now."""
        if self._is_capped and self._place_timer is None:
            delay = max(0.0, self._looked_at + (1 + CAPPED_REST) * self._took_s - time.monotonic())
            self._place_timer = asyncio.get_running_loop().call_later(delay, self._look_for_place)

    def _look_for_place(self) -> None:
        self._place_timer = None
        if self._is_capped:
            self.look_everywhere()

    def on_queue_state(self, _payload: str = "") -> None:
        """A queue was paused or resumed."""
        self._pauses_known = False
        self.look_everywhere()

    def stop(self) -> None:
        """Claim nothing more; `run` ends when the claim that may be on its way has been dealt with."""
        self._stopped = True
        self._stopping.set()
        self._wake.set()

    # -- the loop --------------------------------------------------------------------------------

    async def run(self) -> None:
        while not self._stopped:
            self._wake.clear()
            self._missed_room = False
            woken_by_news = self._lookout.has_news or bool(self._heard)
            try:
                taken = await self._take_what_was_heard()
                is_calm = taken > 0
                if is_calm:
                    patience = min(CALM_S, max(0.0, self._due_at - time.monotonic()))
                else:
                    taken, self._idle = await self._claim_while_room()
                    patience = await self._patience(self._idle)
            except Exception as error:
                delay = self._backoff.next()
                self._lookout.forget()
                self._streak.forget()
                self._pauses_known = False
                if not _is_caps_lock(error):
                    self._reconciler.doubt()
                _tell(error, delay)
                await self._pause(delay)
                continue
            self._backoff.reset()
            if self._missed_room and not self._idle:
                self._wake.set()
            self._fruitless = 0 if taken or not woken_by_news else self._fruitless + 1
            try:
                async with asyncio.timeout(patience):  # wait_for would swallow a cancel that meets the wake-up
                    await self._wake.wait()
            except TimeoutError:
                self._lookout.news()
                self._pauses_known = self._pauses_known and is_calm
            if self._fruitless >= FRUITLESS:
                await asyncio.sleep(random.uniform(HERD_S / 2, HERD_S))

        try:
            await self._reconciler.settle()
        except Exception as error:
            _tell(error, 0)

    async def _pause(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        except TimeoutError:
            pass

    async def _take_what_was_heard(self) -> int:
        """The queues were empty, and each notification since then stands for one task, probably where the last one
        was: take as many, with the simplest statement there is. Returns how many, when that explains all that was
        heard; else 0, and everything has to be looked at."""
        heard, self._heard = self._heard, 0
        if not heard:
            return 0
        request = None
        if self._idle and self._fruitless < FRUITLESS and self._pauses_known and self._lookout.may_put_off():
            request = self._next_request(*self._room(has_heard=True), at_most=heard + 1)
        if request is None:
            self._lookout.news()
            return 0
        rows = await self._claim(request)
        self._dispatch(rows)
        if len(rows) == heard < request.limit:
            return heard
        self._lookout.news()
        return 0

    async def _claim_while_room(self) -> tuple[int, bool]:
        """Claim until the room is full or the queues are empty; (how many, whether the queues are empty)."""
        taken = 0
        self._put_off_s = None
        await self._reconciler.settle()
        if not self._pauses_known:
            paused = await self._session.run(self._queries.paused_queues)
            self._pauses_known = True
            if paused != self._paused:
                self._paused = paused
                self._lookout.forget()
        self._is_blocked = await self._starter.start_waiting()
        while not self._stopped:
            request = self._request()
            if request is None:
                return taken, False
            rows = await self._claim(request)
            taken += len(rows)
            if isinstance(request, ClaimRequest) and request.discover and not self._was_full:
                self._learn(request, rows)
                if not rows:
                    return taken, self._had_room_for_all(request)
            self._was_full = len(rows) == request.limit
            if not self._was_full:
                self._lookout.news()  # the known pairs may be empty: look everywhere
                if not rows and (wait_s := self._lookout.wait_s()) is not None:
                    self._put_off_s = wait_s
                    return taken, False
            self._dispatch(rows)
        return taken, False

    def _learn(self, request: ClaimRequest, rows: Sequence[Mapping[str, Any]]) -> None:
        """Of which kinds is there nothing, as far as one looks: more could have been taken than came. A kind that had
        no room was not looked for."""
        of_async = sum(row["task_name"] in self._async_names for row in rows)
        is_short = len(rows) < request.limit and self._may_repeat  # what a cap holds back is there all the same
        if request.room_async:
            self._none_async = is_short and of_async < request.room_async
        if request.room_sync:
            self._none_sync = is_short and len(rows) - of_async < request.room_sync

    def _had_room_for_all(self, request: ClaimRequest) -> bool:
        """Nothing was found: are the queues empty, or only of what there was room for?"""
        sync = request.room_sync or self._none_sync or not self._sync_names
        return bool(sync and (request.room_async or self._none_async or not self._async_names))

    def _room(self, *, has_heard: bool = False) -> tuple[Room, int]:
        """Places in the pool by kind, and how many tasks may be claimed now."""
        settings = self._settings
        room = self._pool.room()
        sync, ahead = (room.sync, room.ahead) if self._sync_names else (0, 0)
        async_room = room.asynchronous if self._async_names else 0
        if len(self._starter):
            # those in the buffer are older claims: slots are theirs first
            sync = ahead = async_room = 0
        if not self._lookout.knows_enough():
            self._none_sync = self._none_async = False
        elif not has_heard:
            # Of a kind that was looked for everywhere and not found there is nothing to claim: without this, each
            # place that a task of one kind leaves would cost two statements that look for the other kind.
            sync, ahead = (0, 0) if self._none_sync else (sync, ahead)
            async_room = 0 if self._none_async else async_room
        if not settings.run_ahead:
            ahead = 0
        limit = min(settings.max_batch, sync + ahead + async_room + self._prefetch())
        if settings.max_per_worker is not None:
            limit = min(limit, settings.max_per_worker - len(self._held))
        if self._finalizer.backlog >= 2 * settings.max_batch:
            limit = 0  # results wait for the database: do not make more of them
        return Room(sync, ahead, async_room), limit

    def _prefetch(self) -> int:
        return max(0, self._settings.prefetch - len(self._starter))

    def _request(self) -> ClaimRequest | NextRequest | None:
        room, limit = self._room()
        queues = [name for name in self._settings.queues if name not in self._paused]
        if limit <= 0 or not queues:
            return None
        self._look = self._lookout.next_look()
        if self._look is Look.HINTS and len(self._lookout.hints) == 1:
            repeated = self._next_request(room, limit)
            if repeated is not None:
                return repeated
        discover = self._look is not Look.HINTS
        known = self._pool.short_names() if room.ahead else frozenset[str]()
        short = [name for name in self._sync_names if name in known]
        kinds = bool(self._async_names) + bool(short) + (len(short) < len(self._sync_names))
        return ClaimRequest(
            discover=queues if discover else (),
            hints=() if discover else self._lookout.hints,
            limit=limit,
            room_sync=room.sync,
            room_ahead=room.ahead,
            room_async=room.asynchronous,
            prefetch=self._prefetch(),
            async_names=self._async_names,
            short_names=short,
            other_names=self._sync_names,
            look=LOOK if kinds > 1 and not self._was_full else 0,
            floor=self._lookout.floor if self._look is Look.FLOOR else None,
        )

    def _next_request(self, room: Room, limit: int, *, at_most: int | None = None) -> NextRequest | None:
        if not self._may_repeat:
            return None
        most = limit if at_most is None else min(limit, at_most)
        return self._streak.next_request(room, most, short=self._pool.short_names(), paused=self._paused)

    async def _claim(self, request: ClaimRequest | NextRequest) -> Sequence[Mapping[str, Any]]:
        await reached("before_claim")
        rows = await self._session.run(lambda connection: self._ask(connection, request))
        self._took_s = took_s = time.monotonic() - self._looked_at
        self.statements += 1
        self._on_contact()
        # more of the same is alike by that statement's own conditions: one row stands for all
        told = rows[:1] if isinstance(request, NextRequest) else rows
        pairs = self._lookout.saw(told, self._look if request.discover else Look.HINTS, took_s=took_s)
        self._streak.saw(told)
        if isinstance(request, ClaimRequest) and (pairs > 1 or request.look):
            # they come back by queue and by kind; what is handed ahead runs in this order
            rows = sorted(rows, key=lambda row: (row["priority"], row["enqueued_at"], row["id"]))
        await reached("after_claim")
        return rows

    async def _ask(self, connection: Any, request: ClaimRequest | NextRequest) -> Sequence[Mapping[str, Any]]:
        self._looked_at = time.monotonic()  # the time in which the connection was opened says nothing
        settings, pooled = self._settings, self._session.pooled
        if isinstance(request, NextRequest):
            return await self._queries.claim_next(connection, request, pooled=pooled)
        claimed = await self._queries.claim(
            connection,
            request,
            lease_ms=settings.lease_ms,
            queue_caps=settings.queue_caps,
            cluster_cap=settings.cluster_cap,
            pooled=pooled,
        )
        self._is_capped = claimed.is_capped
        return claimed.rows

    def _dispatch(self, rows: Sequence[Mapping[str, Any]]) -> None:
        running: list[ClaimedTask] = []
        waiting: list[ClaimedTask] = []
        for row in rows:
            if row["status"] == "EXPIRED":
                _log.info(
                    "task %s (%s): expired before it could start", row["id"], row["task_name"],
                    extra=about(row["id"], row["task_name"]),
                )  # fmt: skip
                if row["is_workflow_task"]:
                    self._on_workflow_task_ended([row["id"]])
                continue
            if row["status"] == "PENDING":
                _log.info(
                    "task %s (%s): WORKFLOW_STOPPED, withdrawn until it goes on", row["id"], row["task_name"],
                    extra=about(row["id"], row["task_name"]),
                )  # fmt: skip
                continue
            task = claimed_task(row, self._known[row["task_name"]], run_ahead=self._settings.run_ahead)
            (running if row["status"] == "RUNNING" else waiting).append(task)
        if self._stopped:
            # the claim was on its way when the worker was told to leave
            self._finalizer.give_back([(task.job.task_id, task.job.generation) for task in (*running, *waiting)])
            return
        self.claimed += len(running) + len(waiting)
        self._held.add(running)
        self._held.add(waiting)
        self._starter.hold(waiting)
        if running:
            self._pool.submit([task.job for task in running])

    async def _patience(self, idle: bool) -> float:
        poll = self._poll_s * random.uniform(0.8, 1.2)
        if self._is_blocked:
            return BLOCKED_S
        if self._put_off_s is not None:
            return min(poll, self._put_off_s)
        queues = [name for name in self._settings.queues if name not in self._paused]
        if not idle or self._stopped or not queues:
            return poll
        now = time.monotonic()
        if self._fruitless >= FRUITLESS and now < self._due_asked_at + DUE_EVERY_S:
            return max(0.0, min(self._due_at, self._due_asked_at + DUE_EVERY_S) - now)
        self._due_asked_at = now
        due, asked_at, is_crowded = await self._session.run(
            lambda connection: self._queries.next_due(connection, queues, list(self._known))
        )
        if not self._is_capped:  # else tasks that wait for a place would be left behind the floor
            looked_at = asked_at - timedelta(seconds=time.monotonic() - self._looked_at)
            self._lookout.found_nothing(looked_at, is_crowded=is_crowded)
            self._streak.begin_at(self._lookout.floor)
        if (wait_s := self._lookout.wait_s()) is not None:
            poll = min(poll, wait_s)
        if due is None:
            self._due_at = inf
            return poll
        self._due_at = time.monotonic() + due
        if due < poll:
            self._lookout.news()  # it will be another pair than the hinted ones
        # a few random milliseconds, or every worker of the fleet wakes for the same task
        return min(poll, max(0.0, due) + random.uniform(0.001, 0.004))


def _is_caps_lock(error: Exception) -> bool:
    """The lock_timeout of the caps: nothing was claimed."""
    return getattr(error, "sqlstate", None) == "55P03"


def _tell(error: Exception, delay: float) -> None:
    if _is_caps_lock(error):
        _log.info("claim: another worker holds the lock of the caps; trying again in %.1f s", delay)
    else:
        tell_trouble("claim", error, delay)
