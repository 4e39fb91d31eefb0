"""Carries out what `plan.py` decides: waits, claims ready tasks and dispatches them.

A notification, room in the pool, a paused or resumed queue and a freed place under a cap change the state and wake the
loop. Every decision is the plan's.
"""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from horsies._pg.backoff import Backoff
from horsies._pg.locks import CAPS_LOCK
from horsies._pg.transient import is_lock_timeout
from horsies_worker.claim import state
from horsies_worker.claim.buffer import Buffer
from horsies_worker.claim.dispatch import Dispatcher
from horsies_worker.claim.duty import Duty
from horsies_worker.claim.generations import restart_generations
from horsies_worker.claim.plan import Plan
from horsies_worker.claim.reconcile import Reconciler
from horsies_worker.claim.sharing import Shares
from horsies_worker.database.lock_watch import LockWatch
from horsies_worker.database.queries import ClaimRequest, NextRequest
from horsies_worker.database.session import Session
from horsies_worker.output.log_context import log
from horsies_worker.service import TroubleLog
from horsies_worker.syncpoints import reached


@dataclass(eq=False)
class Claimer:
    plan: Plan
    session: Session
    dispatcher: Dispatcher
    buffer: Buffer
    reconciler: Reconciler
    duty: Duty
    backoff: Backoff
    on_contact: Callable[[], None]
    on_asleep: Callable[[], None] = lambda: None
    """What was sent before this was not announced."""

    def __post_init__(self) -> None:
        self._queries = self.session.queries
        self._caps_watch = LockWatch("claim", CAPS_LOCK, self.session)
        self._wake = asyncio.Event()
        self._trouble = TroubleLog()
        self.state = state.State()

    # -- wake-ups --------------------------------------------------------------------------------

    def on_news(self, _payload: str = "") -> None:
        """A notification of a new task."""
        self._change(self.state.with_news())

    def want_scan(self) -> None:
        """A task of this worker ended under a cap: queues that looked empty may have a place now."""
        self._change(self.state.with_scan_wanted())

    def on_room(self) -> None:
        """The pool, or a limit, can take more."""
        self._change(self.state.with_room(buffered=len(self.buffer) > 0))

    def on_place_freed(self) -> None:
        """A task of another worker ended."""
        self._change(self.state.with_place_freed())

    def on_queue_state(self, _payload: str = "") -> None:
        """A queue was paused or resumed."""
        self._change(self.state.with_queue_state())

    def on_duty(self) -> None:
        """This worker hears of new tasks from now on, or has no line in which to wait for that."""
        self._change(self.state.with_duty(time.monotonic()))

    def need_news(self, is_needed: bool) -> None:
        """Every task must be announced, because another claimer waits for tasks of these queues."""
        if is_needed is not self.state.needs_news:
            self.state = self.state._replace(needs_news=is_needed)

    def off_duty(self) -> None:
        """Another worker hears of new tasks from now on."""
        self._change(self.state.without_duty())

    def drain(self) -> None:
        """Claim nothing, leave the duty and return buffered tasks, until `resume`."""
        if not self.state.is_drained:
            self._change(self.state.with_drain())

    def resume(self) -> None:
        if self.state.is_drained:
            self.duty.rejoin()
            resumed = self.state.with_resume()
            # without a line to wait in, every worker acts for itself
            self._change(resumed if self.duty.is_connected else resumed.with_duty(time.monotonic()))

    @property
    def has_left(self) -> bool:
        """It is drained: no claim is in flight, nothing is buffered, and another worker is on duty."""
        return self.state.has_left

    def on_shares(self, shares: Shares) -> None:
        """The weights and ageing times of the queues."""
        self._change(self.state.with_shares(shares))

    def stop(self) -> None:
        """Claim nothing more; `run` ends after the claim that may be in flight."""
        self._change(self.state.with_stop())

    def _change(self, changed: state.State) -> None:
        if changed is not self.state:
            self.state = changed
            self._wake.set()

    # -- the loop --------------------------------------------------------------------------------

    async def run(self) -> None:
        answer: state.Answer = None
        while not isinstance(move := self._next_move(answer), state.Stop):
            try:
                answer = await self._carry_out(move)
            except Exception as error:
                answer = await self._failed(error)
        await self.duty.resign()
        try:
            await self.reconciler.settle()
        except Exception as error:
            self._trouble.tell("claim", error, 0)

    def _next_move(self, answer: state.Answer) -> state.Move:
        self._wake.clear()
        self.state, move = self.plan.next_move(
            self.state, answer, now=time.monotonic(), places=self.dispatcher.places, jitter=random.random()
        )
        self.duty.seek(self.state.full_since is None and not self.state.is_drained)
        return move

    async def _carry_out(self, move: state.Move) -> state.Answer:
        if isinstance(move, state.Wait | state.Rest):
            return await self._wait(move)
        await self.reconciler.settle()
        match move:
            case state.Claim():
                return await self._claim(move)
            case state.LeaveDuty():
                return state.DutyOffered(await self.duty.offer())
            case state.Drain():
                await self.duty.resign()
                self.dispatcher.give_back(self.buffer.take_all())
                return state.Drained(self.duty.has_resigned, self.duty.is_connected)
            case state.StayAwake():
                await self.duty.stay_awake()
                return state.IsAwake()
            case state.GoToSleep():
                await self.duty.go_to_sleep()
                self.on_asleep()
                return state.IsAsleep()
            case state.StartBuffer():
                return state.Started(await self.buffer.start())
            case state.AskAged():
                return state.Aged(await self.session.run(lambda c: self._queries.heads(c, move.queues)))
            case state.AskDue():
                ask = partial(self._queries.next_due, queues=move.queues, names=move.names, since_s=move.since_s)
                return await self.session.run(ask)
            case state.Stop():
                return None

    async def _wait(self, move: state.Wait | state.Rest) -> None:
        if isinstance(move, state.Wait):
            self.backoff.reset()
        try:
            async with asyncio.timeout(move.until - time.monotonic()):  # wait_for would swallow a cancel at a wake-up
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _failed(self, error: Exception) -> state.Failed:
        delay_s = self.backoff.next()
        if is_lock_timeout(error):  # nothing was claimed
            log.info("claim: the lock of the caps was not free within a second; trying again in %.1f s", delay_s)
            await self._caps_watch.refused()
        else:
            self.reconciler.doubt()
            self._trouble.tell("claim", error, delay_s)
            await restart_generations(self.session, error, self._trouble)
        return state.Failed(delay_s)

    async def _claim(self, move: state.Claim) -> state.Claimed:
        await reached("before_claim")
        with self.dispatcher.reserving(move.request.limit):
            claimed = await self.session.run(lambda connection: self._ask(connection, move.request))
        self.backoff.reset()
        self._caps_watch.obtained()
        self.on_contact()
        await reached("after_claim")
        self.dispatcher.dispatch(claimed.rows, is_stopped=self.state.is_stopped or self.state.is_drained)
        return claimed

    async def _ask(self, connection: Any, request: ClaimRequest | NextRequest) -> state.Claimed:
        sent_at = time.monotonic()  # without the time in which the connection was opened
        settings, pooled = self.plan.settings, self.session.pooled
        rows: Sequence[Mapping[str, Any]]
        if isinstance(request, NextRequest):
            rows, is_capped = await self._queries.claim_next(connection, request, pooled=pooled), False
        else:
            rows, is_capped = await self._queries.claim(
                connection, request, lease_ms=settings.lease_ms, queue_caps=settings.queue_caps,
                cluster_cap=settings.cluster_cap, pooled=pooled,
            )  # fmt: skip
            # they come back by queue and by kind; tasks that are assigned ahead run in this order
            rows = sorted(rows, key=lambda row: (row["priority"], row["enqueued_at"], row["id"]))
        return state.Claimed(rows, is_capped, sent_at, time.monotonic() - sent_at)
