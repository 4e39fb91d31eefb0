"""The yard: keeps the children, gives them jobs, replaces those that leave or die. No database, no decoding.

Everything runs on one event loop; nothing here waits for a child. Reports come back through the callbacks,
which must not block. A child's death, timeout or size concerns the jobs inside it and no others.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from math import inf
from typing import Any, Final

from horsies._text import Lines
from horsies.errors import HorsiesError
from horsies_worker.child_process import ChildProcess
from horsies_worker.distribution import Distribution
from horsies_worker.endings import ended_by_death, unstarted_cancel
from horsies_worker.estimate import Estimates
from horsies_worker.forensics import Exit, OomWatch, describe, memory_limit_kb
from horsies_worker.handed import Handed, State
from horsies_worker.jobs import ChildSpec, ChildStats, Job, Outcome, PoolStats, Room
from horsies_worker.stdio import OutputRelay
from horsies_worker.template import Template
from horsies_worker.template_start import TemplateProcess, execute_template
from horsies_worker.usage import resident_kb
from horsies_worker.wire import Report, StopCode

logger = logging.getLogger("horsies.worker.pool")

_BACKOFF_S: Final = 0.1
_TICK_S: Final = 1.0
_END_S: Final = 5.0


class ChildStartError(HorsiesError):
    """Children cannot be started; the text of the last failure is in the message."""


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
    ) -> None:
        """`output`: where the children's stdout and stderr go on to."""
        self.spec = spec
        self._on_outcome = on_outcome
        self._on_unstarted = on_unstarted
        self._on_room = on_room
        self._on_progress = on_progress
        self._on_fatal = on_fatal
        self._output = output
        self._relays: list[OutputRelay] = []
        self._estimates = Estimates()
        self._distribution = Distribution(spec, self._estimates)
        self._children: dict[int, ChildProcess] = {}
        self._number = 0
        self._template: Template | None = None
        self._template_since = 0.0
        self._adopted: TemplateProcess | None = None
        self._closed_templates: list[Template] = []
        self._preload = spec.preload
        self._failures = 0
        self._last_failure = ""
        self._fatal = False
        self._retry: asyncio.TimerHandle | None = None
        self._tick: asyncio.TimerHandle | None = None
        self._stopping = False
        self._starts = self._deaths = self._recycled = 0
        self._oom = OomWatch()
        self._memory_limit_kb = memory_limit_kb()

    # -- life ------------------------------------------------------------------------------------------

    def adopt(self, template: TemplateProcess | None) -> None:
        """Before the start: children come from this one, for as long as it lives."""
        self._adopted = template

    async def start(self) -> None:
        """Returns when the first child is ready; the others follow. ChildStartError when none can be started."""
        self._loop = asyncio.get_running_loop()
        self._hurried = asyncio.Event()
        self._all_gone = asyncio.Event()
        self._first: asyncio.Future[None] = self._loop.create_future()
        self._relays = [OutputRelay(target) for target in self._output]
        self._tick = self._loop.call_later(_TICK_S, self._on_tick)
        self._fill()
        try:
            await self._first
        except BaseException:
            await self.stop(0)
            raise

    async def stop(self, timeout: float) -> None:
        """Hand out nothing more; what has not started goes back; what runs is interrupted after `timeout` seconds."""
        if not self._stopping:
            self._stopping = True
            for timer in (self._retry, self._tick):
                if timer is not None:
                    timer.cancel()
        deadline = time.monotonic() + timeout
        for child in list(self._children.values()):
            if child.state is State.STARTING:
                child.kill()
            self._give_back(child.take_back())
            child.retire()
        # The last part of the time is for user code that cleans up when it is told to.
        farewell = min(self.spec.kill_grace_s, timeout / 4)
        if not await self._gone_within(deadline - farewell - time.monotonic()):
            for child in list(self._children.values()):
                for handed in list(child.inside()):
                    child.stop_job(handed, StopCode.SHUTDOWN)
            if not await self._gone_within(deadline - time.monotonic()):
                for child in list(self._children.values()):
                    child.interrupt_all()
                self._hurried.clear()
                await self._gone_within(_END_S)
        if self._template is not None:
            self._close_template()
        for template in self._closed_templates:
            await template.wait_closed()
        for relay in self._relays:
            await relay.close()

    def hurry(self) -> None:
        """A second signal: what still runs is interrupted now."""
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

    # -- jobs ------------------------------------------------------------------------------------------

    def room(self) -> Room:
        """What `submit` would take now."""
        return Room(0, 0, 0) if self._stopping else self._distribution.room(self._children.values())

    def submit(self, jobs: Sequence[Job]) -> None:
        """Hand these out. What finds no place (a child vanished since `room()`) goes back as unstarted."""
        if self._stopping:
            self._give_back_jobs(jobs)
            return
        rest = self._hand_out_sync([job for job in jobs if not job.is_async], queue=True)
        rest += self._hand_out_async([job for job in jobs if job.is_async])
        self._give_back_jobs(rest)

    def _hand_out_sync(self, jobs: Sequence[Job], *, queue: bool) -> list[Job]:
        if not jobs:
            return []
        plans, rest = self._distribution.plan(self._children.values(), jobs, queue=queue)
        for child, plan in plans.items():
            if plan:
                child.hand(plan)
        self._recycle_spent(plans)
        return rest

    def _hand_out_async(self, jobs: Sequence[Job]) -> list[Job]:
        if not jobs:
            return []
        plans, rest = self._distribution.plan_async(self._children.values(), jobs)
        for child, plan in plans.items():
            child.hand_async(plan)
        self._recycle_spent(plans)
        return rest

    def is_short(self, task_name: str) -> bool:
        """Recent runs were all below 2 ms: jobs of this name may be handed ahead."""
        return self.spec.run_ahead and self._estimates.is_short(task_name)

    def short_names(self) -> frozenset[str]:
        return self._estimates.short_names() if self.spec.run_ahead else frozenset()

    def cancel(self, task_id: str, generation: int) -> None:
        """Stop this attempt: taken back if it has not started, else by the ladder. Unknown ones are ignored."""
        child, handed = self._find(task_id, generation)
        if child is None or handed is None:
            return
        if child.withdraw(handed):
            self._call(self._on_outcome, handed.job, unstarted_cancel(child))
            self.child_moved(child)
        else:
            child.stop_job(handed, StopCode.CANCEL)

    def abandon(self, task_id: str, generation: int) -> None:
        """The claim is lost: stop this attempt and report nothing about it."""
        child, handed = self._find(task_id, generation)
        if child is None or handed is None:
            return
        if child.withdraw(handed):
            self.child_moved(child)
        else:
            child.stop_job(handed, StopCode.ABANDON)

    def _find(self, task_id: str, generation: int) -> tuple[ChildProcess | None, Handed | None]:
        for child in self._children.values():
            handed = child.find(task_id, generation)
            if handed is not None:
                return child, handed
        return None, None

    def alive(self) -> Collection[Job]:
        """Jobs in children that were seen alive just now, for heartbeats."""
        return [handed.job for child in self._children.values() if child.is_alive() for handed in child.inside()]

    def running(self) -> Collection[Job]:
        """Jobs inside children, started or waiting there."""
        return [handed.job for child in self._children.values() for handed in child.inside()]

    def places(self) -> dict[tuple[str, int], tuple[int, str]]:
        """(task id, generation) -> pid and name of the child that has it."""
        return {
            (handed.job.task_id, handed.job.generation): (child.pid, child.name)
            for child in self._children.values()
            for handed in child.inside()
        }

    def stats(self) -> PoolStats:
        return PoolStats(
            children=tuple(
                ChildStats(
                    child.name,
                    child.pid,
                    str(child.state),
                    resident_kb(child.pid) or child.rss_kb,
                    child.tasks,
                    sum(1 for _ in child.inside()),
                )
                for child in self._children.values()
            ),
            starts=self._starts,
            deaths=self._deaths,
            recycled=self._recycled,
            start_failures=self._failures,
            output_dropped_bytes=sum(relay.dropped_bytes for relay in self._relays),
        )

    def _give_back(self, handed: Sequence[Handed]) -> None:
        self._give_back_jobs([one.job for one in handed])

    def _give_back_jobs(self, jobs: Sequence[Job]) -> None:
        if jobs:
            self._call(self._on_unstarted, jobs)

    def _call(self, callback: Callable[..., None], *args: Any) -> None:
        try:
            callback(*args)
        except Exception:
            logger.exception("a callback of the pool failed")

    # -- what children report --------------------------------------------------------------------------

    def child_finished(
        self, child: ChildProcess, handed: Handed, report: Report, started: float, finished: float, effort: float
    ) -> None:
        job = handed.job
        if not job.is_async:
            self._estimates.observe(job.task_name, effort)
        if handed.stop is not None and handed.stop.code is StopCode.ABANDON:
            return
        outcome = Outcome(
            report.kind,
            report.result,
            report.error_code,
            report.error_message,
            report.failed_reason,
            report.retry_after_ms,
            started,
            finished,
            child.pid,
            child.name,
        )
        try:
            self._on_outcome(job, outcome)
        except Exception:
            logger.exception("on_outcome failed for task %s", job.task_id)

    def near_end(self, task_name: str) -> float:
        return self._estimates.near_end(task_name) if self.spec.run_ahead else inf

    def child_progress(self, child: ChildProcess, handed: Handed, text: str) -> None:
        self._call(self._on_progress, handed.job, text)

    def child_unstarted(self, child: ChildProcess, handed: Sequence[Handed], slow: str | None) -> None:
        if slow is not None:
            self._estimates.surprised(slow)
        jobs = [one.job for one in handed]
        self._give_back_jobs(jobs if self._stopping else self._hand_out_sync(jobs, queue=False))
        if child.state is State.RETIRING:
            child.retire()  # it may be empty now

    def child_moved(self, child: ChildProcess) -> None:
        limit = self.spec.max_memory_mb
        if limit is not None and child.accepting and child.rss_kb > limit * 1024:
            logger.info("%s has %d MB resident, above %d: recycling it", child.name, child.rss_kb // 1024, limit)
            self._recycle(child)
        if child.state is State.RETIRING:
            child.retire()
        if not self._stopping:
            self._call(self._on_room)

    def child_ready(self, child: ChildProcess) -> None:
        self._failures = 0
        self._starts += 1
        if not self._first.done():
            self._first.set_result(None)
        if self._stopping:
            child.retire()

    def child_gone(self, child: ChildProcess, end: Exit, ran: Sequence[Handed], unstarted: Sequence[Handed]) -> None:
        del self._children[child.number]
        oom_kills = 0 if end.killed_by_us else self._oom.since_last_look()
        end = Exit(end.status, end.peak_kb, end.killed_by_us, oom_kills, self._memory_limit_kb)
        for handed in ran:
            outcome = ended_by_death(handed, end, child)
            if outcome is not None:
                self._call(self._on_outcome, handed.job, outcome)
        if self._stopping:
            self._give_back(unstarted)
            if not self._children:
                self._all_gone.set()
            return
        if not child.left_on_request:
            self._count_death(child, end)
        self._give_back_jobs(self._hand_out_sync([one.job for one in unstarted if not one.job.is_async], queue=False))
        self._give_back_jobs([one.job for one in unstarted if one.job.is_async])
        self._fill()
        self._call(self._on_room)

    def _count_death(self, child: ChildProcess, end: Exit) -> None:
        text = describe(end)
        if not child.was_ready:
            self._start_failed(child.start_failure or text)
            return
        self._deaths += 1
        logger.warning("%s (pid %d): %s", child.name, child.pid, text)
        if child.tasks == 0 and not end.killed_by_us:
            # Died before it had anything to do: a start that failed late. Without the wait this would spin.
            self._start_failed(text)

    # -- what the template reports ---------------------------------------------------------------------

    def template_ready(self, threads: int, sockets: int) -> None:
        if self._preload and self._template is not None and (threads or sockets):
            # A thread does not survive the fork, the locks it holds do; a socket would be everybody's.
            logger.warning(
                "importing %s left %d thread(s) and %d socket(s) open: children will import it themselves, which makes "
                "their start slower. Open them in an on_child_start hook instead.",
                self.spec.app_locator,
                threads,
                sockets,
            )
            self._preload = False
            self._close_template()
        self._fill()

    def template_lost(self, text: str, *, was_ready: bool) -> None:
        self._close_template()
        for child in list(self._children.values()):
            child.orphaned()
        if was_ready and time.monotonic() - self._template_since > _TICK_S:
            logger.warning("%s; starting another one, its children are replaced as they finish", text)
            self._fill()
        else:
            self._start_failed(text)

    def _close_template(self) -> None:
        if self._template is not None:
            self._template.close()
            # Kept until its process is collected, so that `stop` can wait for that.
            self._closed_templates = [old for old in self._closed_templates if old.running]
            self._closed_templates.append(self._template)
            self._template = None

    def child_forked(self, number: int, pid: int, pidfd: int | None) -> None:
        child = self._children.get(number)
        if child is not None:
            child.forked(pid, pidfd)
        elif pidfd is not None:
            os.close(pidfd)

    def child_exited(self, number: int, status: int, peak_kb: int) -> None:
        child = self._children.get(number)
        if child is not None:
            child.exited(status, peak_kb)

    def fork_failed(self, number: int, text: str) -> None:
        child = self._children.get(number)
        if child is not None:
            child.start_failure = text
            child.exited(None, 0)

    # -- keeping the number of children ------------------------------------------------------------------

    def _fill(self) -> None:
        if self._stopping or self._fatal or self._retry is not None:
            return
        output = (self._relays[0].writer, self._relays[1].writer)
        try:
            if self._template is None:
                self._template_since = time.monotonic()
                started = self._adopted or execute_template(self.spec, output, preload=self._preload)
                self._adopted = None
                self._template = Template(started, self)
            if not self._template.ready:
                return
            current = sum(child.state in (State.STARTING, State.READY) for child in self._children.values())
            # Replacements start before the old ones leave, within reason.
            ceiling = 2 * self.spec.processes + 2 - len(self._children)
            for _ in range(min(self.spec.processes - current, ceiling)):
                self._number += 1
                self._children[self._number] = ChildProcess(self._number, self.spec, self, self._template, output)
        except OSError as exc:
            self._start_failed(f"cannot start a process: {exc}")

    def _start_failed(self, text: str) -> None:
        if self._stopping or self._fatal or self._retry is not None:
            return  # the siblings of a failed start fail too; they count once
        self._failures += 1
        self._last_failure = text
        if self._failures >= self.spec.start_attempts:
            self._fatal = True
            message = f"children cannot be started ({self._failures} attempts): {text}"
            if not self._first.done():
                self._first.set_exception(ChildStartError(message))
            self._call(self._on_fatal, message)
            return
        wait = _BACKOFF_S * 2 ** (self._failures - 1)
        logger.error("a child could not be started, next try in %.1f s: %s", wait, Lines(text))
        self._retry = self._loop.call_later(wait, self._on_retry)

    def _on_retry(self) -> None:
        self._retry = None
        self._fill()

    def _recycle_spent(self, children: Iterable[ChildProcess]) -> None:
        if self.spec.max_tasks_per_child is not None:
            for child in children:
                if child.accepting and self._distribution.tasks_left(child) == 0:
                    self._recycle(child)

    def _recycle(self, child: ChildProcess) -> None:
        self._recycled += 1
        child.retire()
        self._fill()

    def _on_tick(self) -> None:
        self._tick = self._loop.call_later(_TICK_S, self._on_tick)
        if self.spec.max_age_s is not None:
            oldest = time.monotonic() - self.spec.max_age_s
            for child in list(self._children.values()):
                if child.accepting and child.born < oldest:
                    self._recycle(child)
        self._fill()
