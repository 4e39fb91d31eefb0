"""Carries out what the plan of grouped tasks decides: waits, claims, and tells other workers."""

import asyncio
import random
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from horsies._pg.backoff import Backoff
from horsies_worker.claim.claimed_task import ClaimedTask
from horsies_worker.claim.claimer import Claimer
from horsies_worker.claim.dispatch import Dispatcher
from horsies_worker.claim.generations import restart_generations
from horsies_worker.claim.groups import state
from horsies_worker.claim.groups.plan import GroupedPlan
from horsies_worker.claim.reconcile import Reconciler
from horsies_worker.claim.sharing import Shares
from horsies_worker.database.clock import DatabaseClock
from horsies_worker.database.grouped_claim import Group, GroupedRequest
from horsies_worker.database.session import Session
from horsies_worker.service import TroubleLog
from horsies_worker.syncpoints import reached


@dataclass(eq=False)
class GroupedClaimer:
    """`session` must be that of the other claimer: the reconciler runs on it while no claim is in flight."""

    plan: GroupedPlan
    session: Session
    dispatcher: Dispatcher
    reconciler: Reconciler
    backoff: Backoff
    others: Claimer
    """The claimer of tasks without a group, which holds the duty for both."""
    clock: DatabaseClock

    def __post_init__(self) -> None:
        self._queries = self.session.queries
        self._queues = frozenset(self.plan.settings.queues)
        self._wake = asyncio.Event()
        self._trouble = TroubleLog()
        self._unclaimed: set[Group] = set()
        now = time.monotonic()
        self.state = state.State(clock=(self.clock.at(now), now))

    # -- wake-ups --------------------------------------------------------------------------------

    def on_news(self, payload: str) -> None:
        """A notification of the channel `task_grouped`: a queue, and a group behind a space."""
        queue, space, key = payload.partition(" ")
        if queue in self._queues:
            self._change(self.state.with_news(queue, key if space else None))

    def on_ungrouped_news(self) -> None:
        """A notification of a task without a group."""
        if self.state.limited:
            self._change(self.state.with_ungrouped_news())

    def on_ended(self, tasks: Iterable[ClaimedTask]) -> None:
        """Tasks of this worker ended, and their ends are written."""
        for task in tasks:
            if task.frees is not None:
                group = (task.job.queue_name, task.job.group)
                if self.state.is_stopped:
                    self._unclaimed.add(group)
                is_shared = task.frees == "limit"
                changed = self.state.with_freed([group], shared=is_shared)
                self._change(changed.with_walk() if task.frees == "cap" else changed)

    def on_place_freed(self) -> None:
        """A place came free that this worker did not hold."""
        self._change(self.state.with_walk())

    def on_room(self) -> None:
        """The pool, or a limit, can take more."""
        if self.state.wants_claim or self.state.lacked_room or not self.state.is_waiting:
            self._change(self.state.with_room())

    def on_queue_state(self, _payload: str = "") -> None:
        """A queue was paused or resumed, or a policy changed."""
        self._change(self.state.with_policies())

    def on_duty(self) -> None:
        """This worker hears of new tasks from now on, or has no line in which to wait for that."""
        self._change(self.state.with_duty())

    def off_duty(self) -> None:
        """Another worker hears of new tasks from now on."""
        self._change(self.state.without_duty())

    def on_shares(self, shares: Shares) -> None:
        """The weights of the queues."""
        self._change(self.state.with_shares(shares))

    def drain(self) -> None:
        """Claim nothing until `resume`."""
        if not self.state.is_drained:
            self._change(self.state.with_drain())

    def resume(self) -> None:
        if self.state.is_drained:
            self._change(self.state.with_resume())

    @property
    def has_left(self) -> bool:
        """It is drained, and no claim is in flight."""
        return self.state.is_drained and self.state.is_waiting

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

    async def hand_over(self) -> None:
        """At the end of a stop: have another worker take the places that came free meanwhile."""
        if self._unclaimed:
            await self._tell(sorted(self._unclaimed, key=str))

    def _next_move(self, answer: state.Answer) -> state.Move:
        self._wake.clear()
        if self.state.on_duty and not self.others.state.on_duty:
            self.state = self.state.without_duty()
        self.state, move = self.plan.next_move(
            self.state, answer, now=time.monotonic(), places=self.dispatcher.places, jitter=random.random()
        )
        return move

    async def _carry_out(self, move: state.Move) -> state.Answer:
        match move:
            case state.Wait():
                return await self._wait(move)
            case state.Claim():
                return await self._claim(move.request)
            case state.LeaveDuty():
                self.others.on_news()  # it finds no room, and offers the duty
                return state.Told()
            case state.TellOthers():
                await self._tell(move.groups)
                return state.Told()
            case state.TellLimited():
                await self.session.ask("tell_limited_queues", list(move.queues))
                return state.Told()
            case state.Stop():
                return None

    async def _wait(self, move: state.Wait) -> None:
        try:
            async with asyncio.timeout(move.until - time.monotonic()):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _tell(self, groups: Sequence[Group]) -> None:
        await self.session.ask("tell_groups", [queue for queue, _ in groups], [key for _, key in groups])

    async def _failed(self, error: Exception) -> state.Failed:
        delay_s = self.backoff.next()
        self.reconciler.doubt()
        self._trouble.tell("claim of groups", error, delay_s)
        await restart_generations(self.session, error, self._trouble)
        return state.Failed(delay_s)

    async def _claim(self, request: GroupedRequest) -> state.Claimed:
        await reached("before_grouped_claim")
        with self.dispatcher.reserving(request.limit):
            claimed = await self.session.run(lambda connection: self._ask(connection, request))
        self.backoff.reset()
        self.others.need_news(bool(claimed.report.limited))
        await reached("after_grouped_claim")
        self.dispatcher.dispatch(
            claimed.rows, is_stopped=self.state.is_stopped or self.state.is_drained, grouped_at=claimed.sent_at
        )
        return claimed

    async def _ask(self, connection: Any, request: GroupedRequest) -> state.Claimed:
        sent_at = time.monotonic()  # without the time in which the connection was opened
        settings = self.plan.settings
        rows, report = await self._queries.claim_grouped(
            connection, request, queue_caps=settings.queue_caps, cluster_cap=settings.cluster_cap,
            pooled=self.session.pooled,
        )  # fmt: skip
        return state.Claimed(rows, report, sent_at, time.monotonic() - sent_at)
