"""The pool of child processes: assigns jobs to children, reports outcomes, and replaces children that leave or die.

Everything runs on one event loop and no call waits for a child. Outcomes go to callbacks, which must not block. A
child's death, timeout or size affects only the jobs that it has. No database; only children decode arguments.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from math import inf
from typing import Any, Final

from horsies._text import plural
from horsies.completing import Claimant
from horsies.events import ChildExited, ChildStarted
from horsies_worker.child.execute import stopped_outcome
from horsies_worker.child.frames import StopCode
from horsies_worker.child.jobs import ChildSpec, ChildStats, Job, PoolStats, Room
from horsies_worker.child.outcome import Outcome, OutcomeKind
from horsies_worker.children.apart import apart_ms
from horsies_worker.children.assigned_jobs import AssignedJob
from horsies_worker.children.assignment import Assignment
from horsies_worker.children.async_line import AsyncLine
from horsies_worker.children.child_process import ChildProcess, State
from horsies_worker.children.child_starter import ChildStarter, ChildStartError
from horsies_worker.children.durations import Durations
from horsies_worker.children.exit_reason import (
    Exit,
    OomWatch,
    describe,
    exit_reason,
    memory_limit_kb,
    outcome_of_death,
)
from horsies_worker.children.gathering import Gathering
from horsies_worker.children.size import PoolSize
from horsies_worker.children.stack_report import StackReport
from horsies_worker.children.template import TemplateProcess
from horsies_worker.children.usage import resident_kb
from horsies_worker.events.bus import SILENT, EventBus
from horsies_worker.output.stdio import OutputRelay

logger = logging.getLogger("horsies.worker.pool")

_TICK_S: Final = 1.0
_KILLED_S: Final = 5.0
_TELL_LATE_S: Final = 10.0
"""Tasks that came too late for their rate are told of this often."""
_REPORTED_S: Final = 0.25
"""At the end of a stop the template may take this long to report that the children were killed."""


class ChildPool:
    def __init__(
        self,
        spec: ChildSpec,
        *,
        on_outcome: Callable[[Job, Outcome], None],
        on_unstarted: Callable[[Sequence[Job]], None],
        on_room: Callable[[], None],
        on_progress: Callable[[Job, str], None],
        on_fatal: Callable[[str], None],
        output: tuple[int, int] = (1, 2),
        bus: EventBus = SILENT,
        claimant: Callable[[], Claimant] | None = None,
    ) -> None:
        """`output`: the descriptors that get the children's stdout and stderr. `claimant`: in whose name tasks complete
        themselves; None: they cannot."""
        self.spec = spec
        self._bus = bus
        self._claimant = claimant
        self._on_outcome = on_outcome
        self._on_unstarted = on_unstarted
        self._on_room = on_room
        self._on_progress = on_progress
        self._output = output
        self._relays: list[OutputRelay] = []
        self._durations = Durations()
        self._size = PoolSize(spec.processes)
        self._surplus: set[int] = set()
        """The numbers of the children that leave because the pool became smaller."""
        self._line = AsyncLine(spec, self._size, self._give_back_jobs)
        self.gathering = Gathering(self._start_call, self._give_back_jobs)
        self._assignment = Assignment(spec, self._size, self._durations, self._line, self.gathering)
        self._children: dict[int, ChildProcess] = {}
        self._starter = ChildStarter(
            spec, self._size, self._children, self, on_fatal=lambda text: self._call(on_fatal, text)
        )
        self._stack_report = StackReport(self._children)
        self._tick: asyncio.TimerHandle | None = None
        self._stopping = self._told_fresh_size = False
        self._late, self._late_told_at = 0, -inf
        self._oom = OomWatch()
        self._memory_limit_kb = memory_limit_kb()

    # -- start and stop ------------------------------------------------------------------------------

    def adopt(self, template: TemplateProcess | None) -> None:
        self._starter.adopt(template)

    async def start(self) -> None:
        """Return when the first child is ready. Raises ChildStartError when none can be started."""
        self._loop = asyncio.get_running_loop()
        self._hurried = asyncio.Event()
        self._all_gone = asyncio.Event()
        try:
            self._relays = [OutputRelay(target) for target in self._output]
        except (OSError, RuntimeError) as error:  # out of descriptors or threads
            raise ChildStartError(f"the output of children cannot be relayed: {error}") from error
        self._tick = self._loop.call_later(_TICK_S, self._on_tick)
        try:
            await self._starter.start((self._relays[0].writer, self._relays[1].writer))
        except BaseException:
            await self.stop(0)
            raise

    async def stop(self, drain_s: float, cleanup_s: float = 0.0) -> None:
        """Assign nothing more and return the jobs that have not started. Interrupt the others after `drain_s`, and kill
        them when their cleanup takes longer than `cleanup_s`."""
        if not self._stopping:
            self._stopping = True
            self._starter.end()
            self._line.clear()
            self.gathering.clear()
        for child in list(self._children.values()):
            if child.state is State.STARTING:
                child.process.kill()
            self._give_back(child.take_back())
            child.retire()
        if not await self._gone_within(drain_s):
            for child in list(self._children.values()):
                for assigned in list(child.jobs):
                    child.stop_job(assigned, StopCode.SHUTDOWN)
            if not await self._gone_within(cleanup_s):
                for child in list(self._children.values()):
                    child.kill_for_shutdown()
                self._hurried.clear()
                if not await self._gone_within(_REPORTED_S):
                    self._starter.give_up_template()
                    await self._gone_within(_KILLED_S)
        if self._tick is not None:
            self._tick.cancel()
        await self._starter.close()
        for relay in self._relays:
            await relay.close()

    def hurry(self) -> None:
        """Interrupt running jobs now, because a second signal came during `stop`."""
        self._hurried.set()

    async def _gone_within(self, seconds: float) -> bool:
        if not self._children:
            return True
        self._all_gone.clear()
        waiters = [asyncio.ensure_future(event.wait()) for event in (self._all_gone, self._hurried)]
        try:
            await asyncio.wait(waiters, timeout=max(0.0, seconds), return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()
        return not self._children

    # -- size ----------------------------------------------------------------------------------------

    @property
    def processes(self) -> int:
        """The number of children that the pool keeps."""
        return self._size.processes

    @property
    def has_its_size(self) -> bool:
        """So many children are ready, and those that were too many have left."""
        ready = sum(child.accepting for child in self._children.values())
        return not self._surplus and ready == self._size.processes

    def resize(self, processes: int) -> None:
        """Start the children that are missing at once. Those that are too many leave when they have no job."""
        self._size.change(processes)
        self._shrink()
        self._starter.fill()
        self._call(self._on_room)

    def _shrink(self) -> None:
        """Let children leave that are too many: those without a job, then those with async jobs alone, which end while
        the others go on. One with a synchronous job stays until that has ended; the first that is free leaves."""
        if len(self._children) <= self._size.processes:
            return
        current = [child for child in self._children.values() if child.state in (State.STARTING, State.READY)]
        surplus = len(current) - self._size.processes
        if surplus <= 0:
            return
        free = [child for child in current if child.state is State.READY and not child.jobs.sync]
        for child in sorted(free, key=lambda one: len(one.jobs.asynchronous))[:surplus]:
            self._surplus.add(child.number)
            child.retire()

    def take_back(self) -> None:
        """Return the jobs that have not started, for a worker that is drained. Those that run go on."""
        self._line.clear()
        self.gathering.clear()
        for child in list(self._children.values()):
            self._give_back(child.take_back())

    # -- jobs ----------------------------------------------------------------------------------------

    def room(self) -> Room:
        """Return how many jobs `submit` would take now."""
        return Room(0, 0, 0) if self._stopping else self._assignment.room(self._children.values())

    def submit(self, jobs: Sequence[Job]) -> None:
        """Assign these jobs. Those without a place, as after a child's death since `room()`, come back unstarted."""
        if self._stopping:
            self._give_back_jobs(jobs)
            return
        rest = self._assign([job for job in jobs if not job.is_async], queue=True)
        self._give_back_jobs(rest)
        if asynchronous := [job for job in jobs if job.is_async]:
            self._assign_async(self._line.add(asynchronous, self._async_places()))

    def gather(self, jobs: Sequence[Job]) -> None:
        """Take the jobs of batch tasks, which run together in calls."""
        if self._stopping:
            self._give_back_jobs(jobs)
        else:
            self.gathering.add(jobs)

    def _start_call(self, call: Job, kept: int) -> bool:
        children = self._children.values()
        if call.is_async:
            plans, _ = self._assignment.plan_async(children, [call])
            child = next(iter(plans), None)
        else:
            child = self._assignment.idle_child(children, kept)
        if child is None:
            return False
        child.assign_call(call)
        self._recycle_spent([child])
        return True

    def _assign(self, jobs: Sequence[Job], *, queue: bool) -> list[Job]:
        """Assign synchronous jobs; returns those without a place."""
        if not jobs:
            return []
        plans, rest = self._assignment.plan(self._children.values(), jobs, queue=queue)
        for child, plan in plans.items():
            if plan:
                child.assign(plan)
        self._recycle_spent(plans)
        return rest

    def _assign_again(self, jobs: Sequence[Job]) -> list[Job]:
        """Assign synchronous jobs that were taken back to idle children; returns the others, and all calls."""
        calls = [job for job in jobs if job.members]
        return calls + self._assign([job for job in jobs if not job.members] if calls else jobs, queue=False)

    def _async_places(self) -> int:
        return self._assignment.async_places(self._children.values())

    def _assign_async(self, jobs: Sequence[Job]) -> None:
        plans, rest = self._assignment.plan_async(self._children.values(), jobs)
        for child, plan in plans.items():
            child.assign_async(plan)
        self._recycle_spent(plans)
        self._give_back_jobs(rest)

    def is_short(self, task_name: str) -> bool:
        """Whether recent runs of this name all took less than 2 ms, so that its jobs may wait in a busy child."""
        return self._durations.is_short(task_name)

    def short_names(self) -> frozenset[str]:
        return self._durations.short_names()

    def prefetch_after(self, task_name: str) -> float:
        return self._durations.prefetch_after(task_name)

    def cancel(self, task_id: str, generation: int) -> None:
        """Cancel this attempt: take it back if it has not started, else begin its stop ladder."""
        if (found := self._withdraw_or_stop(task_id, generation, StopCode.CANCEL)) is not None:
            child, job = found
            self._report(child, job, stopped_outcome(StopCode.CANCEL, None))
            self.child_changed(child)

    def abandon(self, task_id: str, generation: int) -> None:
        """Stop this attempt and report no outcome, because its claim is lost."""
        if (found := self._withdraw_or_stop(task_id, generation, StopCode.ABANDON)) is not None:
            self.child_changed(found[0])

    def _withdraw_or_stop(self, task_id: str, generation: int, code: StopCode) -> tuple[ChildProcess, Job] | None:
        """Return the child and the job if it was taken back in time. Ignores an unknown attempt."""
        if self._line.withdraw(task_id, generation) or self.gathering.withdraw(task_id, generation):
            return None
        for child in self._children.values():
            assigned = child.jobs.find(task_id, generation)
            if assigned is not None:
                if assigned.call is not None:
                    child.stop_member(assigned, assigned.call, code)
                    return None
                if child.withdraw(assigned):
                    return child, assigned.job
                child.stop_job(assigned, code)
                return None
        return None

    def alive(self) -> Collection[Job]:
        """Return the jobs of children whose processes exist at this moment, for heartbeats."""
        children = [child for child in self._children.values() if child.process.is_alive()]
        jobs = (assigned.job for child in children for assigned in child.jobs.tasks())
        return [*self._line, *self.gathering, *jobs]

    def running(self) -> Collection[Job]:
        """Return all jobs that the pool has, started or not."""
        jobs = (assigned.job for child in self._children.values() for assigned in child.jobs.tasks())
        return [*self._line, *self.gathering, *jobs]

    def places(self) -> dict[tuple[str, int], tuple[int, str]]:
        """Return pid and name of the child by (task id, generation)."""
        return {
            (assigned.job.task_id, assigned.job.generation): (child.pid, child.name)
            for child in self._children.values()
            for assigned in child.jobs.tasks()
        }

    def log_stacks(self) -> None:
        """Log what each child does, as soon as it has answered."""
        self._stack_report.begin()

    def stats(self) -> PoolStats:
        return PoolStats(
            children=tuple(
                ChildStats(
                    child.name,
                    child.pid,
                    str(child.state),
                    resident_kb(child.pid) or child.rss_kb,
                    child.jobs.total,
                    sum(1 for _ in child.jobs),
                )
                for child in self._children.values()
            ),
            template_pid=self._starter.template_pid,
            start_failures=self._starter.failures,
            output_dropped_bytes=sum(relay.dropped_bytes for relay in self._relays),
        )

    def _give_back(self, jobs: Iterable[AssignedJob]) -> None:
        self._give_back_jobs([assigned.job for assigned in jobs])

    def _give_back_jobs(self, jobs: Sequence[Job]) -> None:
        if jobs:
            self._call(self._on_unstarted, [member for job in jobs for member in job.members or (job,)])

    def _report(self, child: ChildProcess, job: Job, outcome: Outcome) -> None:
        """Report an outcome that the child itself did not report."""
        outcome.finished_mono = time.monotonic()
        outcome.pid, outcome.process_name = child.pid, child.name
        self._call(self._on_outcome, job, outcome)

    def _call(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            callback(*args)
        except Exception:
            logger.exception("a callback of the pool failed")

    # -- reports of the children ---------------------------------------------------------------------

    def child_finished(self, assigned: AssignedJob, outcome: Outcome, duration: float) -> None:
        job = assigned.job
        # Without forecasts no job waits in a busy child. With a forecast of jobs that may not wait, the claimer would
        # take them for room that they do not use, return them, and take them again.
        if assigned.call is not None:
            if assigned.stop is not None and outcome.kind is OutcomeKind.ERR:
                stopped = stopped_outcome(assigned.stop.code, outcome)
                stopped.started_mono, stopped.finished_mono = outcome.started_mono, outcome.finished_mono
                stopped.pid, stopped.process_name, outcome = outcome.pid, outcome.process_name, stopped
        elif job.is_async:
            self._line.observe(job, duration)
        elif self.spec.run_ahead and job.run_ahead:
            self._durations.observe(job.task_name, duration)
        if assigned.stop is not None and assigned.stop.code is StopCode.ABANDON:
            return
        try:
            self._on_outcome(job, outcome)
        except Exception:
            logger.exception("on_outcome failed for task %s", job.task_id)

    def job_refused(self, assigned: AssignedJob) -> None:
        self._late += 1
        if (now := time.monotonic()) >= self._late_told_at + _TELL_LATE_S:
            logger.warning(
                "%s could not start within the slack of their rate (the last one is task %s of group %r): the machine "
                "is busy. They go back to the queue and take another token", plural(self._late, "task"),
                assigned.job.task_id, assigned.job.group,
            )  # fmt: skip
            self._late, self._late_told_at = 0, now
        self._give_back([assigned])

    def child_progress(self, assigned: AssignedJob, text: str) -> None:
        self._call(self._on_progress, assigned.job, text)

    def jobs_taken_back(self, child: ChildProcess, jobs: Sequence[AssignedJob], slow: str | None) -> None:
        if slow is not None:
            self._durations.overran(slow)
        rest = [assigned.job for assigned in jobs]
        self._give_back_jobs(rest if self._stopping else self._assign_again(rest))
        if child.state is State.RETIRING:
            child.retire()  # it may have no jobs left

    def child_changed(self, child: ChildProcess) -> None:
        limit = self.spec.max_memory_mb
        # even a child that is too large from its start runs one job, or no job would ever run
        if limit is not None and child.accepting and child.jobs.total and child.rss_kb > limit * 1024:
            logger.info("%s has %d MB resident, above %d: recycling it", child.name, child.rss_kb // 1024, limit)
            self._recycle(child)
        if child.state is State.RETIRING:
            child.retire()
        if not self._stopping:
            self._shrink()
            self.gathering.start_calls()
            # Half of the places at once: each message to a child costs this process as much as several jobs in it.
            if self._line and 2 * len(child.jobs.asynchronous) <= self.spec.async_concurrency:
                self._assign_async(self._line.take(self._async_places()))
            self._call(self._on_room)

    def child_ready(self, child: ChildProcess) -> None:
        self._starter.succeeded()
        if self._claimant is not None:
            child.name_claimant(self._claimant())
        self._bus.emit(ChildStarted(child.name, child.pid))
        limit = self.spec.max_memory_mb
        if limit is not None and child.rss_kb > limit * 1024 and not self._told_fresh_size:
            self._told_fresh_size = True
            logger.warning(
                "a fresh child has %d MB resident, above the %d of --max-memory-per-child-mb: each is replaced after "
                "its first task. Raise the limit.", child.rss_kb // 1024, limit,
            )  # fmt: skip
        if self._stopping:
            child.retire()
        else:
            self._shrink()

    def child_gone(
        self, child: ChildProcess, end: Exit, ran: Sequence[AssignedJob], unstarted: Sequence[AssignedJob]
    ) -> None:
        del self._children[child.number]
        self._surplus.discard(child.number)
        oom_kills = 0 if end.killed_by_us else self._oom.since_last_call()
        end = replace(end, oom_kills=oom_kills, memory_limit_kb=self._memory_limit_kb)
        reason = exit_reason(end, was_ready=child.was_ready, was_asked=child.left_on_request or self._stopping)
        self._bus.emit(ChildExited(child.name, child.pid, reason, describe(end), len(ran)))
        started = [child.jobs.started_at(assigned) for assigned in ran]
        now = time.monotonic()
        waits = apart_ms([now - at for at in started])
        for assigned, started_at, wait_ms in zip(ran, started, waits, strict=True):
            outcome = outcome_of_death(assigned.stop and assigned.stop.code, end)
            if outcome is not None:
                outcome.may_be_completed = assigned.is_completing
                outcome.started_mono, outcome.apart_ms = started_at, wait_ms
                self._report(child, assigned.job, outcome)
        if self._stopping:
            self._give_back(unstarted)
            if not self._children:
                self._all_gone.set()
            return
        if not child.left_on_request:
            self._count_death(child, end)
        self._give_back_jobs(self._assign_again([one.job for one in unstarted if not one.job.is_async]))
        self._give_back(one for one in unstarted if one.job.is_async)
        self._starter.fill()
        self._call(self._on_room)

    def _count_death(self, child: ChildProcess, end: Exit) -> None:
        text = describe(end)
        if not child.was_ready:
            self._starter.failed(child.start_failure or text)
            return
        logger.warning("%s (pid %d): %s", child.name, child.pid, text)
        if child.jobs.total == 0 and not end.is_by_us:
            # It died before its first job: count that as a failed start, whose wait prevents a busy loop.
            self._starter.failed(text)

    # -- recycling -----------------------------------------------------------------------------------

    def _recycle_spent(self, children: Iterable[ChildProcess]) -> None:
        if self.spec.max_tasks_per_child is not None:
            for child in children:
                if child.accepting and self._assignment.tasks_left(child) == 0:
                    self._recycle(child)

    def _recycle(self, child: ChildProcess) -> None:
        child.retire()
        self._starter.fill()

    def _on_tick(self) -> None:
        self._tick = self._loop.call_later(_TICK_S, self._on_tick)
        self._starter.check_template()
        if self._stopping:
            return
        if self.spec.max_age_s is not None:
            oldest = time.monotonic() - self.spec.max_age_s
            for child in list(self._children.values()):
                if child.accepting and child.ready_at < oldest:
                    self._recycle(child)
        self._starter.fill()
