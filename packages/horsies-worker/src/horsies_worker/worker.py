"""One worker: builds the services, starts them in order, stops them in order. No SQL, no decisions.

duty ──> claimer ──> pool ──> decide ──> finalizer ──> workflows
beside: heartbeats, cancel requests, reaper, dead workers, unknown names, reporter, revision, pruner, scheduler
"""

import asyncio
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from horsies._pg import channels
from horsies._pg.embedded import resolve_async
from horsies._pg.listener import Listener, OnNotify
from horsies._pg.refusals import worded
from horsies._text import plural
from horsies.app import Horsies
from horsies.completing import Claimant
from horsies.errors import HorsiesError, SchemaError
from horsies.events import WorkerStarted, WorkerStopped, WorkerStopping
from horsies_worker.attempts import Attempts
from horsies_worker.children.pool import ChildPool
from horsies_worker.claim.claimed_task import OwnedTasks
from horsies_worker.claim.claimers import Claimers
from horsies_worker.claim.settings import claim_settings
from horsies_worker.claim.unknown_names import TaskNames
from horsies_worker.control import Wish, WorkerControl
from horsies_worker.database.clock import DatabaseClock
from horsies_worker.database.connect import DatabaseGone, ListenTest, connect_listener, prepare_database
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Sessions
from horsies_worker.events.bus import SILENT, EventBus
from horsies_worker.finish.finalizer import Finalizer
from horsies_worker.identity import Identity
from horsies_worker.liveness.cancels import CancelRequests
from horsies_worker.liveness.dead_workers import DeadWorkers
from horsies_worker.liveness.heartbeats import Heartbeats
from horsies_worker.liveness.instance import WorkerInstance
from horsies_worker.liveness.progress import Progress
from horsies_worker.liveness.reaper import Reaper
from horsies_worker.liveness.recovery import Recovery
from horsies_worker.liveness.reporter import Reporter
from horsies_worker.liveness.revision_watch import RevisionWatch
from horsies_worker.options import WorkerOptions
from horsies_worker.output.log_context import log
from horsies_worker.retention.pruner import Pruner
from horsies_worker.stop import Stop
from horsies_worker.turns import Turns
from horsies_worker.workflows.advance import Advancer

if TYPE_CHECKING:
    from horsies_worker.scheduler.scheduler import Scheduler

LAST_STEPS_S = 5.0
"""The longest wait of a stop for the last steps of workflows, and for the last write to this worker's row."""


class ChildrenCannotStart(HorsiesError):
    """The pool gave up: the app does not import in a child, or the machine has no room for processes."""


class Worker:
    """Runs until `stop()` is called or a service fails for good."""

    def __init__(
        self,
        app: Horsies,
        options: WorkerOptions,
        bus: EventBus = SILENT,
        *,
        on_deadline: Callable[[float], None] = lambda _: None,
        wish: Wish | None = None,
    ) -> None:
        """`on_deadline` is called with the time at which a stop must be over, when it begins and when it is hurried.
        `wish`: what operators wanted of this process under its former id."""
        self.bus = bus
        self.app = app
        self.options = options
        self.identity = Identity()
        self.owned = OwnedTasks()
        self.clock = DatabaseClock()
        self._stop = Stop(options.shutdown_timeout_s, on_deadline)
        self._fatal: HorsiesError | None = None
        self._listen_test = ListenTest(self.identity.worker_id)
        self._is_up = False
        self.is_declared_dead = False
        """The database does not have this worker as a live one: the process continues as another worker."""
        self._wish = wish or Wish()
        self._queues = options.queues or app.config.queue_names
        self._shares: str | None = None
        self._broker = app.config.broker
        self.queries = Queries(app.schema, self.identity)
        self.instance = WorkerInstance(
            self.queries,
            app.config.recovery.worker_state_interval_ms,
            queues=self._queues,
            names=[task.name for task in app.registry if not task.is_stub],
            wanted=(self._wish.state, self._wish.processes, self._wish.by),
        )
        spec = options.child_spec(self.identity.worker_id)
        self.pool = ChildPool(
            replace(spec, processes=self._wish.processes or spec.processes),
            on_outcome=lambda job, outcome: self.attempts.ended(job, outcome),  # noqa: PLW0108  (built later)
            on_unstarted=lambda jobs: self.finalizer.give_back([(job.task_id, job.generation) for job in jobs]),
            on_room=lambda: self.claimers.on_room(),  # noqa: PLW0108
            on_progress=lambda job, text: self.progress.on_progress(job, text),  # noqa: PLW0108
            on_fatal=self._on_fatal,
            bus=bus,
            claimant=lambda: Claimant(self.identity.worker_id, self.identity.completion_key, self.clock.at(0.0)),
        )

    # -- life ------------------------------------------------------------------------------------

    def stop(self, *, hurry: bool = False) -> None:
        """Finish running tasks and leave. A second call, or `hurry`, interrupts them."""
        if hurry or self._stop.has_begun:
            self._stop.hurry()
            log.warning("hurried stop: interrupting running tasks")
            self._interrupt()
        else:
            self._stop.begin()

    def _interrupt(self) -> None:
        if self._is_up:
            self.pool.hurry()

    @property
    def is_up(self) -> bool:
        """It has started and is not stopping."""
        return self._is_up and not self._stop.has_begun

    @property
    def is_claiming(self) -> bool:
        """It is up, and operators have not drained it."""
        return self.is_up and self.control.state == "RUNNING"

    @property
    def is_connected(self) -> bool:
        return self._is_up and self.sessions.is_connected

    @property
    def unwritten(self) -> int:
        """Results that exist only in this process."""
        return self.finalizer.backlog if self._is_up else 0

    async def run(self) -> None:
        """Start, work until stopped, drain. Raises an error that makes further work impossible."""
        self._broker = await resolve_async(self.app.config.broker)
        if not await self._unless_stopped(self._prepare_database()):
            return
        self._build()
        self.control.learn(self._wish)
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
        log.info("worker %s is up", self.identity.worker_id)
        self.bus.emit(WorkerStarted(self.identity.worker_id, self.identity.hostname, self.identity.pid,
                                    self.settings.queues, self.options.processes))  # fmt: skip
        try:
            await self._stop.wait()
            if "scheduler" in services:
                services["scheduler"].cancel()  # a slot is fired whole or not at all; another scheduler fires it
            await self._drain([services["claimer"], services["grouped claimer"]])
            # a claim without an answer may still take tasks, and a child that cannot be killed may still have one: then
            # the other workers must find this one dead
            has_claimed = services["claimer"].done() and services["grouped claimer"].done()
            could_write = self._fatal is None or isinstance(self._fatal, SchemaError)
            if could_write and has_claimed and not len(self.owned):
                await self._leave()
        finally:
            for service in services.values():
                service.cancel()
            await self._stop.finished(*services.values(), until=lambda: self._stop.deadlines.end)
            await self._close_sessions()
            self.bus.emit(WorkerStopped(self.identity.worker_id))
        if self._fatal is not None and not self.is_declared_dead:
            raise self._fatal
        log.info("worker %s has stopped", self.identity.worker_id)

    async def _unless_stopped(self, work: Coroutine[Any, Any, None]) -> bool:
        """Run a part of the start, which may take long. False when the worker was stopped first."""
        if await self._stop.unless_begun(work):
            return True
        if self._fatal is not None:  # the pool gave up, and reports it this way first
            raise self._fatal
        log.info("stopped before it was up")
        return False

    def _build(self) -> None:
        config = self.app.config
        broker = self._broker
        settings = claim_settings(
            config,
            queues=self._queues,
            max_batch=self.options.max_claim_batch,
            max_per_worker=self.options.max_claim_per_worker,
            run_ahead=self.options.run_ahead,
        )
        self.settings = settings
        self.sessions = sessions = Sessions(broker, self.queries, self.bus)
        self.advancer = Advancer(sessions.workflows, config, self.bus, checks=sessions.heartbeat)
        tasks_ended = self.advancer.tasks_ended
        self.finalizer = Finalizer(sessions.finalize, config.resilience, self.bus, on_done=self._on_done)
        self.attempts = Attempts(self.bus, self.clock, self.owned, self.finalizer, self.app.envelopes)
        self.claimers = Claimers(
            self.app, settings, sessions.claim, self.pool, self.owned, self.finalizer, self.clock,
            Listener(partial(connect_listener, broker), config.resilience, redact=broker.redact),
            bus=self.bus, started=self.attempts.started, tasks_ended=tasks_ended,
            on_policy_change=lambda: self.reporter.wake(),  # noqa: PLW0108  (built later)
            on_contact=self.options.touch_health_file, breaks=lambda: sessions.breaks,
        )  # fmt: skip
        self.claimers.on_policies(self._shares)
        buffer = self.claimers.buffer
        self.progress = Progress(sessions.heartbeat, self.owned, lambda: self.heartbeats.end_idle_pause())  # noqa: PLW0108
        self.cancels = CancelRequests(
            sessions.heartbeat, config.resilience, self.pool, self.owned, hears=lambda: self.claimers.duty.is_listening
        )
        self.heartbeats = Heartbeats(
            sessions.heartbeat, config, self.pool, self.owned, buffer, self.finalizer, lease_ms=settings.lease_ms,
            bus=self.bus, afterwards=(partial(self.finalizer.stage_late, sessions.heartbeat), self.progress.run_once),
            on_missed=self._on_missed_beats,
        )  # fmt: skip
        recovery = Recovery(
            self.queries, self.app.registry, tasks_ended, self.bus, on_recovered=self.claimers.on_recovered
        )
        checks = sessions.heartbeat
        self.reaper = Reaper(
            sessions.reaper, config, recovery, checks=checks, check_workflows=self.advancer.check,
            look_at_clocks=self.advancer.look_at_clocks,
        )  # fmt: skip
        self.names = TaskNames(sessions.reaper, config, checks=checks, tasks_ended=tasks_ended)
        self.dead_workers = DeadWorkers(
            sessions.reaper, config, recovery, checks=checks,
            on_dead=self.reaper.find_halted_workflows,  # the workflows of a dead worker may have stopped half-way
        )  # fmt: skip
        self.pruner = Pruner(sessions.pruner, config, self.bus)
        self.revision = RevisionWatch(
            sessions.reaper, config.resilience, self.app.schema, checks=checks, on_problem=self._on_schema_problem
        )
        self.reporter = Reporter(
            sessions.heartbeat, config, self.pool, settings, self.instance, on_declared_dead=self._on_declared_dead,
            counts=lambda: (len(self.owned) - len(buffer), len(buffer)), on_written=self._on_reported,
            control=lambda: (self.control.state, self.control.reached_at),
        )  # fmt: skip
        self.control = WorkerControl(
            sessions.heartbeat, config.resilience, self.claimers, self.pool, self.owned, self.finalizer, self.bus,
            on_change=self.reporter.wake,
        )  # fmt: skip
        self.scheduler = self._find_scheduler()

    def _find_scheduler(self) -> "Scheduler | None":
        if not self.options.with_scheduler:
            return None
        # half a megabyte, only where it is used
        from horsies_worker.scheduler.scheduler import Scheduler, settled_schedules

        return Scheduler(self.sessions.scheduler, self.app, settled_schedules(self.app), bus=self.bus)

    def _services(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        heard: dict[str, OnNotify] = {
            **self.claimers.handlers(),
            channels.TASK_CANCEL: self.cancels.on_cancel,
            channels.WORKER_CONTROL: self.control.on_control,
            channels.WORKFLOW_STEP: self.advancer.on_step,
            self._listen_test.channel: self._listen_test.on_notify,
        }
        optional: dict[str, Coroutine[Any, Any, None]] = {}
        if self.scheduler is not None:
            # on a connection of its own: a worker that waits for the duty hears nothing
            heard_of = self.scheduler.hear(self._broker, "worker schedules")
            optional |= {"scheduler": self.scheduler.run(), "schedule news": heard_of}
        if self.app.config.recovery.auto_fail_stale_running:  # declaring a worker dead fails its running tasks
            optional["dead workers"] = self.dead_workers.run()
        return {
            **optional,
            "duty": self.claimers.duty.run(heard, Turns(self.claimers, self.cancels, self.reaper), self._prepare_duty),
            **self.claimers.services(),
            "finalizer": self.finalizer.run(),
            "workflows": self.advancer.run(),
            "heartbeats": self.heartbeats.run(),
            "cancel requests": self.cancels.run(),
            "reaper": self.reaper.run(),
            "names": self.names.run(),
            "reporter": self.reporter.run(),
            "revision": self.revision.run(),
            "control": self.control.run(),
            "pruner": self.pruner.run(),
        }

    async def _drain(self, claiming: "Sequence[asyncio.Task[None]]") -> None:
        deadlines = self._stop.deadlines
        drain_s = max(0.0, deadlines.drain_until - time.monotonic())
        log.info("stopping: no new claims, running tasks have %.3g s", drain_s)
        self.bus.emit(WorkerStopping(self.identity.worker_id, drain_s))
        self.claimers.stop()
        draining = asyncio.ensure_future(self.pool.stop(drain_s, (deadlines.write_until - deadlines.drain_until) / 2))
        # tasks of a claim that is under way must be handed back, or the worker would seem to have crashed
        await self._stop.finished(*claiming, until=lambda: deadlines.drain_until)
        waiting = self.claimers.buffer.take_all()
        self.finalizer.give_back([(task.job.task_id, task.job.generation) for task in waiting])
        await self._stop.finished(draining, until=lambda: deadlines.write_until)
        # results exist only in this process now; wait for a database that is away until the deadline
        written = asyncio.ensure_future(self.finalizer.drained())
        if not await self._stop.finished(written, until=lambda: deadlines.write_until):
            written.cancel()
            if self.unwritten:
                self._fatal = self._fatal or DatabaseGone(self.told_unwritten())
            return
        # advance the workflows of tasks that ended here; otherwise the reaper of another worker does it later
        last = [asyncio.ensure_future(step) for step in (self.advancer.drained(), self.claimers.grouped.hand_over())]
        latest = time.monotonic() + LAST_STEPS_S
        await self._stop.finished(*last, until=lambda: min(latest, deadlines.write_until))
        for step in last:
            step.cancel()

    def told_unwritten(self) -> str:
        return (
            f"{plural(self.unwritten, 'result')} could not be written before the end of the stop; the reaper of "
            "another worker will recover the tasks"
        )

    async def _leave(self) -> None:
        """Record that this worker has left. If that fails, the other workers find it dead."""
        latest = time.monotonic() + LAST_STEPS_S
        recorded = asyncio.ensure_future(self.sessions.heartbeat.run(self.instance.close))
        await self._stop.finished(recorded, until=lambda: min(latest, self._stop.deadlines.write_until))
        if not recorded.cancel() and not recorded.cancelled() and (error := recorded.exception()) is not None:
            log.debug("the end of this worker could not be recorded: %s", worded(error))

    async def _close_sessions(self) -> None:
        await self.sessions.close(max(0.1, min(2.0, self._stop.deadlines.end - time.monotonic() - 0.2)))

    def _service_ended(self, service: "asyncio.Task[None]") -> None:
        if service.cancelled() or self._stop.has_begun:
            return
        error = service.exception()
        log.critical("service %s ended: %r", service.get_name(), error)
        self._fatal = DatabaseGone(f"service {service.get_name()} ended: {error!r}")
        self._stop.begin()

    # -- the database ----------------------------------------------------------------------------

    async def _prepare_database(self) -> None:
        """Connect, upgrade the schema, read the clock, write the policies of queues, register this worker. Waits for a
        server that is not up yet."""
        await prepare_database(self.app, self._broker, self._register, timeout_s=self.options.database_timeout_s)

    async def _register(self, connection: Any) -> None:
        await self.clock.read(connection)
        await self.queries.declare_policies(connection, self.app.config)
        await self.instance.register(connection)
        self._shares = await connection.fetchval(self.queries.sql("read_shares"), list(self._queues))

    async def _prepare_duty(self, connection: Any) -> bool:
        """Test that notifications arrive on a new direct connection, and take the lock of this worker."""
        if not await self._listen_test.passes(self.sessions.heartbeat):
            log.error(
                "LISTEN does not work on this connection (a transaction-mode pooler?): work is found by polling every "
                "%.1f s only. Set PostgresConfig.direct_url to the server itself.",
                self.app.config.resilience.notify_poll_interval_ms / 1000,
            )
            return False
        await self.instance.take_lock(connection)
        self.reporter.wake()  # publishes the lock, and finds out at once if this worker was declared dead meanwhile
        self.revision.wake()  # a restored or upgraded database ends its connections
        return True

    # -- what other services report --------------------------------------------------------------

    def _on_done(self, keys: Sequence[tuple[str, int]]) -> None:
        tasks = self.owned.take(keys)
        self.advancer.tasks_ended([task.job.task_id for task in tasks if task.is_workflow_task])
        self.claimers.on_done(tasks, keys)

    def _on_missed_beats(self) -> None:
        self.reaper.contact.lost()

    def _on_declared_dead(self) -> None:
        if self.is_declared_dead or self._stop.has_begun:
            return
        # A registration is older than every claim under it: a server that has lost it knows none of these claims.
        log.error(
            "another worker declared this one dead and took its tasks, or a failover or restore lost its registration: "
            "continuing under a new worker id"
        )
        self.is_declared_dead = True
        self._stop.begin()
        self._interrupt()  # it owns none of its running tasks any more

    def _on_reported(self, written: Mapping[str, Any]) -> None:
        self.control.learn(Wish.of(written))
        self.claimers.on_policies(written["shares"])
        if self.control.state != "RUNNING":
            self.options.touch_health_file()  # no claim does
        self.dead_workers.wake()
        self.sessions.end_unused_outages(2 * self.app.config.resilience.reconnect_max_ms / 1000)

    def _on_schema_problem(self, problem: str) -> None:
        if self._stop.has_begun:
            return
        log.critical("the schema was changed while this worker ran: %s; stopping", problem)
        self._fatal = SchemaError(problem)
        self._stop.begin()

    def _on_fatal(self, message: str) -> None:
        self._fatal = ChildrenCannotStart(message)
        self._stop.begin()
