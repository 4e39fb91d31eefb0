"""The two claimers of a worker, of tasks with and without a group: built together, and woken by what concerns each."""

import json
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any

from horsies._pg import channels
from horsies._pg.backoff import Backoff
from horsies._pg.listener import Listener, OnNotify
from horsies.app import Horsies
from horsies_worker.child.jobs import Job
from horsies_worker.children.pool import ChildPool
from horsies_worker.claim.buffer import Buffer
from horsies_worker.claim.claimed_task import ClaimedTask, OwnedTasks
from horsies_worker.claim.claimer import Claimer
from horsies_worker.claim.dispatch import Dispatcher
from horsies_worker.claim.duty import Duty, Group
from horsies_worker.claim.groups.claimer import GroupedClaimer
from horsies_worker.claim.groups.plan import GroupedPlan
from horsies_worker.claim.plan import Plan
from horsies_worker.claim.reconcile import Reconciler
from horsies_worker.claim.settings import ClaimSettings, task_kinds
from horsies_worker.claim.sharing import Shares
from horsies_worker.database.clock import DatabaseClock
from horsies_worker.database.session import Session
from horsies_worker.events.bus import EventBus
from horsies_worker.finish.finalizer import Finalizer


class Claimers:
    def __init__(
        self,
        app: Horsies,
        settings: ClaimSettings,
        session: Session,
        pool: ChildPool,
        owned: OwnedTasks,
        finalizer: Finalizer,
        clock: DatabaseClock,
        listener: Listener,
        *,
        bus: EventBus,
        started: Callable[[Sequence[Job]], None],
        tasks_ended: Callable[[Sequence[str]], None],
        on_policy_change: Callable[[], None],
        on_contact: Callable[[], None],
        breaks: Callable[[], int] = lambda: 0,
    ) -> None:
        resilience = app.config.resilience
        self.settings = settings
        self._owned = owned
        self._on_policy_change = on_policy_change
        self._worker_id = session.queries.identity.worker_id
        self._ended_here = deque[str](maxlen=100)
        self._is_grouped_first = False
        self._all_queues = set(app.config.queue_names)
        self.buffer = Buffer(session, pool, owned, tasks_ended=tasks_ended, started=started)
        dispatcher = Dispatcher(
            app.registry, pool, owned, self.buffer, finalizer, run_ahead=settings.run_ahead, tasks_ended=tasks_ended,
            bus=bus, started=started, on_room=self.on_room,
        )  # fmt: skip
        kinds = task_kinds(app.registry)
        self.duty = Duty(listener, session.queries, Group(app.schema, settings.queues, kinds.known))
        reconciler = Reconciler(session, owned, finalizer, tasks_ended, breaks)
        # Batch tasks are claimed like tasks that run ahead, also where no task does.
        has_batches = any(task.batch is not None for task in app.registry)
        planned = replace(settings, run_ahead=True) if has_batches else settings
        self.plain = Claimer(
            Plan(planned, kinds), session, dispatcher, self.buffer, reconciler, self.duty, Backoff(resilience),
            on_contact=on_contact, on_asleep=lambda: self.grouped.on_ungrouped_news(),  # noqa: PLW0108  (built later)
        )  # fmt: skip
        self.grouped = GroupedClaimer(
            GroupedPlan(planned, kinds), session, dispatcher, reconciler, Backoff(resilience), self.plain, clock
        )

    def services(self) -> dict[str, Coroutine[Any, Any, None]]:
        return {"claimer": self.plain.run(), "grouped claimer": self.grouped.run()}

    def handlers(self) -> dict[str, OnNotify]:
        """The channels that the worker on duty hears, and what to do with their notifications."""
        queues = self.settings.queues
        news = (
            [channels.TASK_NEW] if set(queues) == self._all_queues else [channels.task_queue(name) for name in queues]
        )
        heard: dict[str, OnNotify] = dict.fromkeys(news, self._on_news)
        heard |= {channels.TASK_GROUPED: self.grouped.on_news, channels.QUEUE_STATE: self._on_queue_state}
        if self.settings.has_caps:
            heard |= {channels.TASK_DONE: self._on_task_done, channels.TASKS_ENDED: self._on_tasks_ended}
        return heard

    def drain(self) -> None:
        """Claim nothing until `resume`."""
        self.plain.drain()
        self.grouped.drain()

    def resume(self) -> None:
        self.plain.resume()
        self.grouped.resume()

    @property
    def have_left(self) -> bool:
        """Both are drained: no claim is in flight, nothing is buffered, and another worker is on duty."""
        return self.plain.has_left and self.grouped.has_left

    def on_policies(self, text: str | None) -> None:
        """The weights and ageing times of the queues, as `read_shares` returns them."""
        shares = Shares.of(self.settings.queues, json.loads(text) if text is not None else {})
        self.plain.on_shares(shares)
        self.grouped.on_shares(shares)

    def stop(self) -> None:
        """Claim nothing more."""
        self.plain.stop()
        self.grouped.stop()

    # -- what wakes them -------------------------------------------------------------------------

    def on_room(self) -> None:
        """The pool can take more. The claimer that is called first gets the places: they take turns."""
        self._is_grouped_first = not self._is_grouped_first
        if self._is_grouped_first:
            self.grouped.on_room()
            self.plain.on_room()
        else:
            self.plain.on_room()
            self.grouped.on_room()

    def on_done(self, tasks: Sequence[ClaimedTask], keys: Sequence[tuple[str, int]]) -> None:
        """The ends of these tasks are written."""
        self.grouped.on_ended(tasks)
        if self.settings.has_caps:
            self._ended_here.extend(key[0] for key in keys)
            self.plain.want_scan()  # a place under a cap came free
            self.grouped.on_room()
        else:
            self.on_room()

    def on_recovered(self) -> None:
        """Tasks of a dead worker were recovered: places of their groups came free."""
        self.grouped.on_place_freed()

    def _on_news(self, payload: str) -> None:
        self.plain.on_news(payload)
        self.grouped.on_ungrouped_news()

    def _on_queue_state(self, payload: str) -> None:
        self.plain.on_queue_state(payload)
        self.grouped.on_queue_state(payload)
        self._on_policy_change()

    def _on_task_done(self, task_id: str) -> None:
        """A task ended in another worker; `on_done` handles this worker's own."""
        if self._owned.get(task_id) is None and task_id not in self._ended_here:
            self._on_place_freed()

    def _on_tasks_ended(self, worker_id: str) -> None:
        """The same where the owner of the database has switched off `task_done`: some tasks of that worker ended."""
        if worker_id != self._worker_id:
            self._on_place_freed()

    def _on_place_freed(self) -> None:
        self.plain.on_place_freed()
        self.grouped.on_place_freed()
