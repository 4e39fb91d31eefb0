"""The parent's view of one child: assigns jobs, receives reports, watches deadlines, stops jobs, and finds what a death
interrupted.

The parent knows exactly which jobs started. A job's start token lies in a pipe that child and parent both read, and
only one of them gets it: a token that the parent reads back proves that the job never started. After a death the
parent reads the reports to the end first, then the pipe: a job without report and without token was running.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from functools import partial
from math import inf
from typing import Final, Protocol

from horsies.completing import Claimant
from horsies_worker.child import frames
from horsies_worker.child.frames import FrameType, StopCode
from horsies_worker.child.jobs import ChildSpec, Job
from horsies_worker.child.outcome import Outcome
from horsies_worker.children.assigned_jobs import AssignedJob, AssignedJobs, overrun_after
from horsies_worker.children.channel import ChildChannel
from horsies_worker.children.durations import OVERRUN_S, SHORT_S
from horsies_worker.children.exit_reason import Exit
from horsies_worker.children.stop_ladder import Rung, Stop
from horsies_worker.children.template import Template
from horsies_worker.children.usage import CpuWait

_log = logging.getLogger("horsies.worker.pool")
_RESULT: Final = int(FrameType.RESULT)
_EXIT_S: Final = 5.0
"""A child that was told to leave may take this long for its exit functions."""
_SLOW_EXIT: Final = f"its lifespans, hooks or exit functions did not end within {_EXIT_S:g} s"
_CLOSED_EXIT_S: Final = 1.0
_CLOSED: Final = "it closed its connection to the worker"
_NO_REPORT: Final = "it sent what is no report"
_NO_MEMORY: Final = "its report did not fit into the memory of the worker"
_STALL_S: Final = 2.0
"""An idle child that has not taken its token after this long is frozen or stuck between two jobs."""


class State(StrEnum):
    STARTING = "starting"
    READY = "ready"
    RETIRING = "retiring"
    """Finishes its jobs and gets no new ones."""
    DEAD = "dead"


class ChildOwner(Protocol):
    """What a child reports to the pool."""

    def child_ready(self, child: "ChildProcess") -> None: ...

    def child_finished(self, assigned: AssignedJob, outcome: Outcome, duration: float) -> None: ...

    def job_refused(self, assigned: AssignedJob) -> None:
        """The child did not start this job, because its time had passed."""
        ...

    def child_progress(self, assigned: AssignedJob, text: str) -> None: ...

    def prefetch_after(self, task_name: str) -> float: ...

    def jobs_taken_back(self, child: "ChildProcess", jobs: Sequence[AssignedJob], slow: str | None) -> None:
        """The parent took these jobs back from behind a job named `slow` that overran; None when no job was running."""
        ...

    def child_changed(self, child: "ChildProcess") -> None:
        """A report arrived, or the current job is about to end: there may be room."""
        ...

    def child_gone(
        self, child: "ChildProcess", end: Exit, ran: Sequence[AssignedJob], unstarted: Sequence[AssignedJob]
    ) -> None: ...


class ChildProcess:
    def __init__(
        self, number: int, spec: ChildSpec, owner: ChildOwner, template: Template, output: tuple[int, int]
    ) -> None:
        """Request the process from the template. Raises OSError when that is not possible."""
        self.number = number
        self.name = f"{spec.name}-child-{number}"
        self.state = State.STARTING
        self.ready_at = inf
        self.jobs = AssignedJobs()
        self.rss_kb = 0
        self.was_ready = False
        self.start_failure: str | None = None
        self.left_on_request = False
        self._spec = spec
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._seq = 0
        self._cpu_wait = CpuWait()
        self._check_at = inf
        """Finished jobs do not change it: a check that comes too early is cheap."""
        self._check_timer: asyncio.TimerHandle | None = None
        self._kill_timer: asyncio.TimerHandle | None = None
        # Without reports it is either dead, or useless because user code closed its descriptors.
        on_closed = partial(self._kill_later, _CLOSED_EXIT_S, broke_off=_CLOSED)
        self._channel = ChildChannel(number, template, output, self._receive, on_closed)
        self.process = self._channel.process
        self.stacks = self._channel.stacks
        self._start_timer: asyncio.TimerHandle | None = self._loop.call_later(spec.start_timeout_s, self._start_late)

    # -- assigning jobs ------------------------------------------------------------------------------

    @property
    def accepting(self) -> bool:
        return self.state is State.READY

    @property
    def idle(self) -> bool:
        return self.state is State.READY and not self.jobs.sync

    @property
    def lets_queue(self) -> bool:
        """Whether short jobs may wait behind the current one: it has a forecast, and is not being stopped."""
        current = self.jobs.current
        return self.accepting and current is not None and current.forecast != inf and current.stop is None

    @property
    def nearly_free(self) -> bool:
        """Whether the only job is about to end, by forecast. False once it is late."""
        current = self.jobs.current
        if current is None or current.prefetch_after == inf or len(self.jobs.sync) > 1 or current.stop is not None:
            return False
        ran = time.monotonic() - self.jobs.current_since
        return self.accepting and current.prefetch_after <= ran < current.forecast

    def assign(self, jobs: Sequence[tuple[Job, float]]) -> None:
        """Send synchronous jobs with their forecasts."""
        now = time.monotonic()
        added: list[AssignedJob] = []
        for job, forecast in jobs:
            self._seq += 1
            prefetch_after = self._owner.prefetch_after(job.task_name) if SHORT_S <= forecast < inf else inf
            added.append(AssignedJob(job, self._seq, now, forecast, prefetch_after))
        self.jobs.add(added, now)
        self._channel.send_jobs(added)
        if self.jobs.current_since == now:
            self._schedule_prefetch()
        self._check_current_later()

    def assign_async(self, jobs: Sequence[Job]) -> None:
        now = time.monotonic()
        added: list[AssignedJob] = []
        for job in jobs:
            self._seq += 1
            added.append(AssignedJob(job, self._seq, now, inf, inf))
            if job.timeout_ms is not None:
                self._check_by(now + job.timeout_ms / 1000)
        self.jobs.add_async(added)
        self._channel.send_async_jobs(added)

    def name_claimant(self, claimant: Claimant) -> None:
        """Tell the child in whose name it completes attempts. Its jobs come later."""
        self._channel.commands_out.send(frames.encode_claimant(replace(claimant, process_name=self.name)))

    def assign_call(self, call: Job) -> None:
        """Send a call of a batch task, sync or async. Its members take the numbers after its own."""
        now = time.monotonic()
        assigned = AssignedJob(call, self._seq + 1, now, inf, inf)
        self._seq += 1 + len(call.members)
        self.jobs.add_call(assigned, now)
        if not call.is_async:
            self._channel.send_jobs([assigned])
            self._check_current_later()
            return
        if call.timeout_ms is not None:
            self._check_by(now + call.timeout_ms / 1000)
        self._channel.send_async_jobs([assigned])

    def take_back(self) -> list[AssignedJob]:
        """Take back every job whose token is still in the pipe: it has not started, and now cannot."""
        return self.jobs.take(self._channel.tokens.take())

    def withdraw(self, assigned: AssignedJob) -> bool:
        """Take this job back if it has not started; the others keep their order."""
        if assigned.seq not in self.jobs.sync:
            return False
        taken = self.take_back()
        others = [one for one in taken if one is not assigned]
        if others:
            # The child still has their payloads, and got no other job in between.
            self.jobs.put_back(others)
            self._channel.tokens.permit([one.seq for one in others])
        return assigned in taken

    @property
    def unstarted(self) -> int:
        """How many of the synchronous jobs have not started; they are the last ones."""
        return self._channel.tokens.waiting()

    def _schedule_prefetch(self) -> None:
        """Tell the owner when the new current job is about to end."""
        current = self.jobs.current
        if current is not None and current.prefetch_after != inf and len(self.jobs.sync) == 1:
            self._loop.call_later(current.prefetch_after, self._near_end, current.seq)

    def _near_end(self, seq: int) -> None:
        if seq in self.jobs.sync and self.nearly_free:
            self._owner.child_changed(self)

    # -- reports -------------------------------------------------------------------------------------

    def _receive(self) -> bool:
        """Read once and handle all reports that have arrived; False when there was nothing to read."""
        if self.state is State.DEAD:
            return False
        try:
            arrived = self._channel.receive()
            return arrived is not None and self._handle(arrived)
        except (*frames.BROKEN, MemoryError) as error:
            self._channel.stop_reading()  # what follows cannot be trusted: a part of the stream is lost
            if not self.process.killed:
                why = _NO_MEMORY if isinstance(error, MemoryError) else _NO_REPORT
                self.process.kill(why)  # before the log line, which needs memory
                _log.error("%s is killed: %s: %s", self.name, why, error, exc_info=error)
            return False

    def _handle(self, arrived: Sequence[tuple[int, bytes]]) -> bool:
        jobs = self.jobs
        current_done = False
        for kind, frame in arrived:
            if kind == _RESULT:
                seq, outcome, duration, rss_kb = frames.decode_result(frame)
                if rss_kb:
                    self.rss_kb = rss_kb
                assigned = jobs.finish(seq)
                if assigned is not None:
                    current_done = current_done or not (assigned.job.is_async or assigned.call)
                    outcome.pid, outcome.process_name = self.pid, self.name
                    if assigned.is_completing:
                        outcome.may_be_completed = True
                    self._owner.child_finished(assigned, outcome, duration)
            elif kind == FrameType.PROGRESS:
                seq, text = frames.decode_progress(frame)
                assigned = jobs.sync.get(seq) or jobs.asynchronous.get(seq) or jobs.members.get(seq)
                if assigned is not None:
                    self._owner.child_progress(assigned, text)
            elif kind == FrameType.COMPLETING:
                if (assigned := jobs.find(*frames.decode_completing(frame))) is not None:
                    assigned.is_completing = True
            elif kind == FrameType.LATE:
                if (assigned := jobs.finish(frames.decode_late(frame))) is not None:
                    current_done = current_done or not assigned.job.is_async
                    self._owner.job_refused(assigned)
            elif kind == FrameType.READY:
                self._on_ready(*frames.decode_ready(frame))
            elif kind == FrameType.STACKS:
                self.stacks.answered(frames.decode_stacks(frame))
            elif kind == FrameType.START_FAILED:
                self.start_failure = frames.decode_start_failed(frame)
        if current_done and jobs.sync:
            jobs.current_since = time.monotonic()
            self._schedule_prefetch()
            self._check_current_later()
        self._owner.child_changed(self)
        return True

    def _on_ready(self, pid: int, rss_kb: int) -> None:
        self.process.pid = pid  # this may arrive before the template's message, and outcomes name the process
        self.rss_kb = rss_kb
        if self._start_timer is not None:
            self._start_timer.cancel()
        if self.state is State.STARTING:
            self.state = State.READY
            self.ready_at = time.monotonic()
            self.was_ready = True
            self._owner.child_ready(self)

    def _start_late(self) -> None:
        what = f"after {self._spec.start_timeout_s:g} s (import, start hook or lifespan; SIGUSR1 shows where it is)"
        self.start_failure = f"the child was not ready {what}"
        self.process.kill()

    # -- deadlines: timeouts, stop ladders, overrunning jobs -----------------------------------------

    def _check_current_later(self) -> None:
        current = self.jobs.current
        if current is None:
            return
        since = self.jobs.current_since
        due = since + (_STALL_S if len(self.jobs.sync) == 1 else overrun_after(current))
        if current.job.timeout_ms is not None:
            due = min(due, since + current.job.timeout_ms / 1000)
        self._check_by(due)

    def _check_by(self, when: float) -> None:
        """Check at this time, or earlier if an earlier check is due."""
        if when < self._check_at:
            if self._check_timer is not None:
                self._check_timer.cancel()
            self._check_at = when
            self._check_timer = self._loop.call_later(max(0.0, when - time.monotonic()), self._check)

    def _check(self) -> None:
        self._check_at = inf
        # This loop may be late, and the result may already be in the socket.
        while self._receive():
            pass
        if self.state is State.DEAD or self.process.killed:
            return
        now = time.monotonic()
        due = self._check_current(now)
        for assigned in list(self.jobs.asynchronous.values()):
            due = min(due, self._check_stop(assigned, assigned.assigned_at, now))
        if due != inf and not self.process.killed:
            self._check_by(due)

    def _check_current(self, now: float) -> float:
        """Take jobs back from behind a current job that overruns or stalls; return when to check again."""
        current = self.jobs.current
        if current is None:
            return inf
        since, tokens = self.jobs.current_since, self._channel.tokens
        if len(self.jobs.sync) > 1:
            overrun_at = since + overrun_after(current)
            if now < overrun_at:
                return min(overrun_at, self._check_stop(current, since, now))
            if self._cpu_wait.explains(self.pid, current.seq, now - since, OVERRUN_S / 2):
                return min(now + OVERRUN_S, self._check_stop(current, since, now))
            taken = self.take_back()
            # When even the current job's token came back, no job was running: the child had no processor.
            slow = current.job.task_name if current.seq in self.jobs.sync else None
            self._owner.jobs_taken_back(self, taken, slow)
        elif now >= since + _STALL_S and tokens.waiting():
            self._owner.jobs_taken_back(self, self.take_back(), None)
            self._kill_later(_CLOSED_EXIT_S)  # no job runs in it, so no work is lost
            self.retire()
        if current.seq not in self.jobs.sync:
            return inf
        stalled_at = since + _STALL_S
        timeout = current.job.timeout_ms
        late = timeout is not None and now >= since + timeout / 1000
        if late and current.stop is None and tokens.waiting() == len(self.jobs.sync):
            return now + 0.05  # it has not started, so its timeout has not begun; the stall check comes first
        due = self._check_stop(current, since, now)
        return min(due, stalled_at) if now < stalled_at else due

    def _check_stop(self, assigned: AssignedJob, started: float, now: float) -> float:
        """Begin or continue the stop ladder of a job that is due; return when to check again."""
        stop = assigned.stop
        if stop is None:
            if assigned.job.timeout_ms is None:
                return inf
            deadline = started + assigned.job.timeout_ms / 1000
            if now < deadline:
                return deadline
            stop = assigned.stop = Stop(StopCode.TIMEOUT, self._spec.kill_grace_s, now)
        elif now < stop.due:
            return stop.due
        self._climb(assigned, stop, now)
        return stop.due

    # -- stopping ------------------------------------------------------------------------------------

    def stop_member(self, member: AssignedJob, call: AssignedJob, code: StopCode) -> None:
        """Stop one task of a call. The call goes on for the others, and is stopped when no task in it is wanted."""
        if member.stop is None:
            member.stop = Stop(code, inf, time.monotonic())
        member.stop.rename(code)
        wanted = [seq for seq in call.unreported or () if self.jobs.members[seq].stop is None]
        if not wanted:
            self.stop_job(call, StopCode.CANCEL)

    def stop_job(self, assigned: AssignedJob, code: StopCode) -> None:
        """Begin the stop ladder for a job that has started, or change its reason."""
        now = time.monotonic()
        if assigned.stop is not None:
            assigned.stop.rename(code)
            return
        assigned.stop = Stop(code, self._spec.kill_grace_s, now)
        self._climb(assigned, assigned.stop, now)
        self._check_by(assigned.stop.due)

    def _climb(self, assigned: AssignedJob, stop: Stop, now: float) -> None:
        rung = stop.step(now)
        if rung is Rung.KILL:
            self.process.kill()
        elif rung is Rung.TERMINATE and not assigned.job.is_async:
            self.process.signal(signal.SIGTERM)
        else:
            # Other jobs share the event loop of an async one: interrupt it again and assign no new jobs, before SIGKILL
            # ends them all.
            interrupt = rung is not Rung.FLAG
            self._channel.send_stop(assigned, stop.code, interrupt=interrupt)
            if rung is Rung.TERMINATE:
                self.retire()

    @property
    def pid(self) -> int:
        return self.process.pid

    def kill_for_shutdown(self) -> None:
        """Kill the child, and count its jobs as interrupted by the shutdown."""
        for assigned in self.jobs:
            if assigned.stop is None:
                assigned.stop = Stop(StopCode.SHUTDOWN, 0.0, time.monotonic())
        self.process.kill()

    def retire(self) -> None:
        """Accept no new jobs, and end the process as soon as it has none."""
        if self.state is State.DEAD:
            return
        self.state = State.RETIRING
        if not self.left_on_request and not self.jobs.sync and not self.jobs.asynchronous:
            self.left_on_request = True
            self._channel.tokens.end()
            self._kill_later(_EXIT_S, _SLOW_EXIT)

    def _kill_later(self, seconds: float, reason: str = "", *, broke_off: str = "") -> None:
        self._kill_timer = self._kill_timer or self._loop.call_later(seconds, self._kill, reason, broke_off)

    def _kill(self, reason: str, broke_off: str) -> None:
        if reason:
            _log.warning("%s (pid %d) is killed: %s", self.name, self.pid, reason)
        self.process.kill(broke_off)

    # -- the end of the process ----------------------------------------------------------------------

    def orphaned(self) -> None:
        """The template died and cannot report the exit status: watch the process itself."""
        if self.process.has_pidfd:
            self.process.when_gone(self._loop, lambda: self.exited(*self.process.collect()))
            self.retire()
        else:
            # Not forked yet, or the system has no pidfds: kill it through the lifeline, which needs no pid.
            self.left_on_request = True
            self.process.kill()
            self._loop.call_later(0.1, self.exited, None, 0)

    def exited(self, status: int | None, peak_kb: int) -> None:
        """The process has ended: read its reports first, then its tokens, as the module's docstring explains."""
        while self._receive():
            pass
        if self.state is State.DEAD:
            return
        unstarted = self.take_back()
        # The child cannot have started a job whose payload it does not have, even if it took the token.
        unstarted += self.jobs.take_unsent(self._channel.jobs_out.sent, self._channel.commands_out.sent)
        ran = self.jobs.take_all()
        self.state = State.DEAD
        for timer in (self._check_timer, self._kill_timer, self._start_timer):
            if timer is not None:
                timer.cancel()
        self._channel.close()
        end = Exit(status, peak_kb, self.process.killed, self.process.broke_off)
        self._owner.child_gone(self, end, ran, unstarted)
