"""One worker: builds the services, starts them in order, ends them in order. No SQL, no decisions.

listener ──> claimer ──> pool ──> decide ──> finalizer ──> workflows
beside: upkeep, reaper, names, judge, pruner, reporter
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from horsies._pg import channels
from horsies._pg.embedded import resolve_async
from horsies._pg.listener import Listener, OnNotify
from horsies._text import plural
from horsies.app import Horsies
from horsies.errors import HorsiesError
from horsies_worker.child.logs import about
from horsies_worker.claim_settings import claim_settings
from horsies_worker.claimer import Claimer
from horsies_worker.clock import DatabaseClock
from horsies_worker.database import DatabaseGone, connect_listener, connect_ready, refusals_told
from horsies_worker.decide import decide
from horsies_worker.finalizer import Finalizer
from horsies_worker.held import Held
from horsies_worker.identity import Identity
from horsies_worker.instance import WorkerInstance
from horsies_worker.jobs import Job, Outcome, OutcomeKind
from horsies_worker.judge import Judge
from horsies_worker.names import TaskNames
from horsies_worker.options import WorkerOptions
from horsies_worker.pool import ChildPool
from horsies_worker.pruner import Pruner
from horsies_worker.queries import Queries
from horsies_worker.reaper import Reaper
from horsies_worker.reconciler import Reconciler
from horsies_worker.recovery import Recovery
from horsies_worker.reporter import Reporter
from horsies_worker.session import CLAIM_SETTINGS, Session, close
from horsies_worker.starter import Starter
from horsies_worker.stopping import StopDeadlines
from horsies_worker.upkeep import Upkeep
from horsies_worker.workflows.advance import Advancer

if TYPE_CHECKING:
    from horsies_worker.scheduler.scheduler import Scheduler

_log = logging.getLogger("horsies.worker")

SELF_TEST_CHANNEL = "horsies_self_test"
SELF_TEST_S = 5.0
LAST_STEPS_S = 5.0
"""At most, within the deadline of the stop: for the workflows of tasks that ended at the last moment, which else
another worker's reaper moves on, and for the row of this worker."""


class ChildrenCannotStart(HorsiesError):
    """The pool gave up: the app does not import in a child, or the machine has no room for processes."""


@dataclass(frozen=True, slots=True)
class _Sessions:
    claim: Session
    finalize: Session
    upkeep: Session
    reaper: Session
    pruner: Session
    scheduler: Session
    workflows: Session


class Worker:
    """Runs until `stop()` is called or a service fails for good."""

    def __init__(
        self, app: Horsies, options: WorkerOptions, *, on_deadline: Callable[[float], None] = lambda _: None
    ) -> None:
        """`on_deadline`: called with the moment at which a stop must be over, when one begins or is hurried."""
        self.app = app
        self.options = options
        self.identity = Identity()
        self.held = Held()
        self.clock = DatabaseClock()
        self.last_contact = time.monotonic()
        self._started_at: datetime | None = None
        self.deadlines = StopDeadlines(options.shutdown_timeout_s)
        self._on_deadline = on_deadline
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._fatal: HorsiesError | None = None
        self._self_test = asyncio.Event()
        self._is_up = False
        self._ended_here = deque[str](maxlen=100)
        self.is_judged = False
        """Other workers have declared this one dead and taken its tasks: it must go on as another one."""
        self._broker = app.config.broker
        self.queries = Queries(app.schema, self.identity)
        self.instance = WorkerInstance(
            self.identity,
            self.queries,
            app.config.recovery.worker_state_interval_ms,
            queues=options.queues or app.config.queue_names,
            names=[task.name for task in app.registry if not task.is_stub],
        )
        self.pool = ChildPool(
            options.child_spec(),
            on_outcome=self._on_outcome,
            on_unstarted=self._on_unstarted,
            on_room=self._on_room,
            on_progress=self._on_progress,
            on_fatal=self._on_fatal,
        )

    # -- life ------------------------------------------------------------------------------------

    def stop(self, *, hurry: bool = False) -> None:
        """Finish what runs and leave; a second call, or `hurry`, interrupts what runs."""
        hurry = hurry or self._stop.is_set()
        self._begin_stop()
        if hurry:
            self.deadlines.hurry(time.monotonic())
            self._on_deadline(self.deadlines.end)
            _log.warning("hurried stop: interrupting what still runs")
            self._interrupt()

    def _begin_stop(self) -> None:
        if not self._stop.is_set():
            self._stop.set()
            self.deadlines.begin(time.monotonic())
            self._on_deadline(self.deadlines.end)

    def _interrupt(self) -> None:
        self._hurry.set()
        if self._is_up:
            self.pool.hurry()

    @property
    def unwritten(self) -> int:
        """Results that exist only in this process."""
        return self.finalizer.backlog if self._is_up else 0

    async def run(self) -> None:
        """Start, work until stopped, drain. Raises what makes further work impossible."""
        self._broker = await resolve_async(self.app.config.broker)
        if not await self._unless_stopped(self._prepare_database()):
            return
        self._build()
        try:
            if not await self._unless_stopped(self.pool.start()):
                await self._leave()
                await self._close_sessions()
                return
        except HorsiesError as error:
            await self._leave()
            await self._close_sessions()
            raise ChildrenCannotStart(str(error)) from error
        self._is_up = True
        services = {name: asyncio.create_task(work, name=name) for name, work in self._services().items()}
        for service in services.values():
            service.add_done_callback(self._service_ended)
        _log.info("worker %s is up", self.identity.worker_id)
        try:
            await self._stop.wait()
            if "scheduler" in services:
                services["scheduler"].cancel()  # a slot is fired whole or not at all, by whoever comes next
            await self._drain(services["claimer"])
            # a claim that still waits for its answer may take tasks: then others must find this worker to be gone
            if self._fatal is None and services["claimer"].done():
                await self._leave()
        finally:
            for service in services.values():
                service.cancel()
            await self._wait(set(services.values()), lambda: self.deadlines.end)
            await self._close_sessions()
        if self._fatal is not None and not self.is_judged:
            raise self._fatal

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """A part of the start, which may wait for long; a signal ends it. False when one did."""
        started = asyncio.ensure_future(work)
        stopped = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({started, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if started.done():
                await started
                return True
            if self._fatal is not None:  # the pool gave up, and tells it this way first
                raise self._fatal
            _log.info("stopped before it was up")
            return False
        finally:
            for task in (started, stopped):
                task.cancel()
            await asyncio.gather(started, stopped, return_exceptions=True)

    def _build(self) -> None:
        config = self.app.config
        broker = self._broker
        settings = claim_settings(
            config,
            queues=self.options.queues or config.queue_names,
            max_batch=self.options.max_claim_batch,
            max_per_worker=self.options.max_claim_per_worker,
            run_ahead=self.options.run_ahead,
        )
        self.settings = settings
        self.sessions = _Sessions(
            Session(broker, "claim", settings=CLAIM_SETTINGS),
            Session(broker, "finalize", settings=CLAIM_SETTINGS),
            Session(broker, "upkeep", settings=CLAIM_SETTINGS),
            Session(broker, "reaper", settings=CLAIM_SETTINGS),
            Session(broker, "pruner", settings=CLAIM_SETTINGS),
            Session(broker, "scheduler", settings=CLAIM_SETTINGS),
            Session(broker, "workflows", settings=CLAIM_SETTINGS),
        )
        self.advancer = Advancer(config, self.sessions.workflows)
        self.finalizer = Finalizer(self.sessions.finalize, self.queries, config.resilience, on_done=self._on_done)
        self.starter = Starter(
            self.sessions.claim, self.queries, self.pool, self.held, on_workflow_task_ended=self.advancer.tasks_ended
        )
        reconciler = Reconciler(self.sessions.claim, self.queries, self.held, self.finalizer)
        self.claimer = Claimer(
            settings, config, self.app.registry, self.sessions.claim, self.queries, self.pool, self.held, self.starter,
            self.finalizer, reconciler, on_contact=self._on_contact,
            on_workflow_task_ended=self.advancer.tasks_ended,
        )  # fmt: skip
        self.upkeep = Upkeep(
            config, self.sessions.upkeep, self.queries, self.pool, self.held, self.starter, self.finalizer,
            worker_pid=self.identity.pid, lease_ms=settings.lease_ms, on_lost=lambda job: self.held.drop([job]),
        )  # fmt: skip
        recovery = Recovery(self.app.registry, self.queries)
        self.reaper = Reaper(
            config, recovery, self.sessions.reaper, self.queries, on_halted=self.advancer.look_at,
            on_ended=self.advancer.tasks_ended,
        )  # fmt: skip
        self.names = TaskNames(
            config, self.sessions.reaper, self.queries, self.identity, on_ended=self.advancer.tasks_ended
        )
        self.judge = Judge(
            config, recovery, self.sessions.reaper, self.queries, self.identity, on_ended=self.advancer.tasks_ended,
            on_dead=self.reaper.look_at_workflows,
        )  # fmt: skip
        self.pruner = Pruner(config, self.sessions.pruner, self.queries)
        self.reporter = Reporter(
            config, self.sessions.upkeep, self.queries, self.pool, self.identity, settings, self.instance,
            on_judged=self._on_judged,
            counts=lambda: (len(self.held) - len(self.starter), len(self.starter)),
            started_at=self._start_time,
        )  # fmt: skip
        self.scheduler = self._find_scheduler()
        self.listener = Listener(partial(connect_listener, broker), config.resilience, redact=broker.redact)

    def _find_scheduler(self) -> "Scheduler | None":
        if not (self.options.with_scheduler and self.app.config.schedule.schedules):
            return None
        from horsies_worker.scheduler.scheduler import Scheduler, settled_schedules  # half a megabyte that few need

        return Scheduler(self.app, settled_schedules(self.app), self.sessions.scheduler)

    def _services(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        news = (
            {channels.TASK_NEW: self.claimer.on_news}
            if set(self.settings.queues) == set(self.app.config.queue_names)
            else {channels.task_queue(name): self.claimer.on_news for name in self.settings.queues}
        )
        heard: dict[str, OnNotify] = {
            **news,
            channels.TASK_CANCEL: self.upkeep.on_cancel,
            channels.QUEUE_STATE: self.claimer.on_queue_state,
            channels.WORKFLOW_STEP: self.advancer.on_step,
            SELF_TEST_CHANNEL: self._on_self_test,
        }
        if self._has_caps:
            heard[channels.TASK_DONE] = self._on_task_done
        planning: dict[str, Coroutine[Any, Any, None]] = {}
        if self.scheduler is not None:
            heard[channels.SCHEDULE_STATE] = self.scheduler.on_news
            planning["scheduler"] = self.scheduler.run()
        # who must not fail what runs must not call anybody dead either
        judging = {"judge": self.judge.run()} if self.app.config.recovery.auto_fail_stale_running else {}
        return {
            **judging,
            **planning,
            "listener": self.listener.run(heard, on_live=self._on_listening),
            "claimer": self.claimer.run(),
            "finalizer": self.finalizer.run(),
            "workflows": self.advancer.run(),
            "upkeep": self.upkeep.run(),
            "reaper": self.reaper.run(),
            "names": self.names.run(),
            "reporter": self.reporter.run(),
            "pruner": self.pruner.run(),
        }

    async def _drain(self, claiming: "asyncio.Task[None]") -> None:
        drain_s = max(0.0, self.deadlines.drain_until - time.monotonic())
        _log.info("stopping: no new claims, running tasks have %.3g s", drain_s)
        self.claimer.stop()
        draining = asyncio.ensure_future(self.pool.stop(drain_s))
        # a claim may be on its way: what it brings must be handed back, or it would look like a crash
        await self._wait({claiming}, lambda: self.deadlines.drain_until)
        self.finalizer.give_back([(task.job.task_id, task.job.generation) for task in self.starter.take_all()])
        await self._wait({draining}, lambda: self.deadlines.write_until)
        # results exist only here now; a database that is away gets the rest of the time to come back
        written = asyncio.ensure_future(self.finalizer.drained())
        if not await self._wait({written}, lambda: self.deadlines.write_until):
            written.cancel()
            self._fatal = self._fatal or DatabaseGone(self.told_unwritten())
            return
        # what ended here should not have to wait for the reaper of another worker; but no result depends on it
        advanced = asyncio.ensure_future(self.advancer.drained())
        latest = time.monotonic() + LAST_STEPS_S
        await self._wait({advanced}, lambda: min(latest, self.deadlines.write_until))
        advanced.cancel()

    def told_unwritten(self) -> str:
        return (
            f"{plural(self.unwritten, 'result')} could not be written before the end of the stop; the reaper of "
            "another worker will recover the tasks"
        )

    async def _wait(self, work: "Collection[asyncio.Future[Any]]", until: Callable[[], float]) -> bool:
        """Wait for all of these, until a moment that a second signal may bring nearer. False when it came first."""
        while pending := {one for one in work if not one.done()}:
            left = until() - time.monotonic()
            if left <= 0:
                return False
            hurried = asyncio.ensure_future(self._hurry.wait())
            await asyncio.wait(
                pending if self._hurry.is_set() else {*pending, hurried},
                timeout=None if left == inf else left,
                return_when=asyncio.FIRST_COMPLETED,
            )
            hurried.cancel()
        return True

    async def _leave(self) -> None:
        """Everything is written: nobody needs to watch for us. If this is not told, we are found to be gone."""
        latest = time.monotonic() + LAST_STEPS_S
        told = asyncio.ensure_future(self.sessions.upkeep.run(self.instance.close))
        await self._wait({told}, lambda: min(latest, self.deadlines.write_until))
        if not told.cancel() and not told.cancelled() and (error := told.exception()) is not None:
            _log.debug("the end of this worker could not be recorded: %s", error)

    async def _close_sessions(self) -> None:
        """All at once: each may be the one whose server does not answer."""
        sessions = [getattr(self.sessions, field.name) for field in fields(self.sessions)]
        left = max(0.1, min(2.0, self.deadlines.end - time.monotonic() - 0.2))
        closing = [asyncio.ensure_future(session.close(left)) for session in sessions]
        await asyncio.wait(closing, timeout=left)
        for session in sessions:
            session.drop()

    def _service_ended(self, service: "asyncio.Task[None]") -> None:
        if service.cancelled() or self._stop.is_set():
            return
        error = service.exception()
        _log.critical("service %s ended: %r", service.get_name(), error)
        self._fatal = DatabaseGone(f"service {service.get_name()} ended: {error!r}")
        self._begin_stop()

    # -- the database ----------------------------------------------------------------------------

    async def _prepare_database(self) -> None:
        """Reach it, bring its schema up to date, read its clock. Waits for a server that is not up yet."""
        connection = await connect_ready(self.app, self._broker, timeout_s=self.options.database_timeout_s)
        try:
            with refusals_told(self._broker, "worker"):
                await self.clock.read(connection)
                await self.instance.register(connection)
                self._started_at = await connection.fetchval("SELECT clock_timestamp()")
        finally:
            await close(connection)

    async def _on_listening(self, connection: Any) -> None:
        """LISTEN is in force: prove that notifications arrive here, then look at what was missed."""
        self.claimer.on_queue_state()
        self.reaper.look_at_workflows()
        if self.scheduler is not None:
            self.scheduler.wake()
        self._self_test.clear()
        # From another session: a pooler does pass on what a session tells itself.
        told = "SELECT pg_notify($1, $2)"
        await self.sessions.upkeep.run(lambda c: c.execute(told, SELF_TEST_CHANNEL, self.identity.worker_id))
        try:
            async with asyncio.timeout(SELF_TEST_S):
                await self._self_test.wait()
        except TimeoutError:
            _log.error(
                "LISTEN does not work on this connection (a transaction-mode pooler?): work is found by polling every "
                "%.1f s only. Set PostgresConfig.direct_url to the server itself.",
                self.app.config.resilience.notify_poll_interval_ms / 1000,
            )
            return
        await self.instance.take_lock(connection)
        self.reporter.wake()  # others see the lock from now on; and we hear at once if we were judged meanwhile

    def _on_self_test(self, payload: str) -> None:
        if payload == self.identity.worker_id:
            self._self_test.set()

    def _on_contact(self) -> None:
        self.last_contact = time.monotonic()
        self.options.touch_health_file()

    def _start_time(self) -> datetime:
        if self._started_at is None:
            raise RuntimeError("the worker has not started")
        return self._started_at

    # -- what the pool reports -------------------------------------------------------------------

    def _on_outcome(self, job: Job, outcome: Outcome) -> None:
        task = self.held.find(job.task_id, job.generation)
        if task is None:
            return  # lost meanwhile: nobody wants to hear of it
        level = logging.DEBUG if outcome.kind is OutcomeKind.OK else logging.WARNING
        if _log.isEnabledFor(level):
            _log.log(
                level, "task %s (%s) attempt %d: %s %s", job.task_id, job.task_name, job.attempt, outcome.kind,
                outcome.failed_reason or outcome.error_message or "",
                extra=about(job.task_id, job.task_name, job.attempt),
            )  # fmt: skip
        started = outcome.started_mono
        self.finalizer.add(
            decide(
                task_id=job.task_id,
                generation=job.generation,
                attempt=job.attempt,
                options=task.options,
                budget=task.max_retries,
                outcome=outcome,
                started=None if started is None else self.clock.at(started),
                finished=self.clock.at(outcome.finished_mono),
                random=random.random,
            )
        )

    def _on_unstarted(self, jobs: Sequence[Job]) -> None:
        self.finalizer.give_back([(job.task_id, job.generation) for job in jobs])

    def _on_progress(self, job: Job, text: str) -> None:
        self.upkeep.on_progress(job, text)

    def _on_room(self) -> None:
        self.claimer.on_room()

    def _on_done(self, keys: Sequence[tuple[str, int]]) -> None:
        tasks = self.held.take(keys)
        # or went back to the queue: a step looks for itself
        self.advancer.tasks_ended([task.job.task_id for task in tasks if task.is_workflow_task])
        if self._has_caps:
            self._ended_here.extend(key[0] for key in keys)
            self.claimer.look_everywhere()  # a place under a cap came free: the queue that looked empty may not be
        else:
            self.claimer.on_room()

    @property
    def _has_caps(self) -> bool:
        return bool(self.settings.cluster_cap or self.settings.queue_caps)

    def _on_task_done(self, task_id: str) -> None:
        """Some worker's task ended; `_on_done` tells of our own."""
        if self.held.get(task_id) is None and task_id not in self._ended_here:
            self.claimer.on_place_freed()

    def _on_judged(self) -> None:
        if self.is_judged or self._stop.is_set():
            return
        _log.error("this worker was judged dead by another one, and its tasks were taken: going on under a new id")
        self.is_judged = True
        self._begin_stop()
        self._interrupt()  # nothing that it runs is its own any more

    def _on_fatal(self, message: str) -> None:
        self._fatal = ChildrenCannotStart(message)
        self._begin_stop()
