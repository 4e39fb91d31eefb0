"""The parent's view of one child: what it was handed, what it started, how it is stopped, how it ended.

Attribution is exact. A job's start token lies in a pipe that child and parent both read: whoever reads it
has it, so a token that the parent gets back proves that the job never started. After a death the reports
are read to the end first, then the pipe: no report and no token means that it was running.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import Iterable, Sequence
from math import inf
from typing import Final

from horsies_worker import wire
from horsies_worker.child.main import ChildDescriptors
from horsies_worker.child_cpu import main_thread
from horsies_worker.estimate import SHORT_S, STEAL_AFTER_S
from horsies_worker.forensics import Exit
from horsies_worker.handed import ChildOwner, Handed, State
from horsies_worker.jobs import ChildSpec, Job
from horsies_worker.ladder import Rung, Stop
from horsies_worker.outbox import Outbox
from horsies_worker.process_handle import ProcessHandle
from horsies_worker.template import Template
from horsies_worker.tokens import TokenPipe
from horsies_worker.wire import FrameReader, FrameType, StopCode

_RECEIVE_BYTES: Final = 256 * 1024
_RESULT: Final = int(FrameType.RESULT)
_LINGER_S: Final = 5.0
"""A child that was told to leave may take this long over its exit functions."""
_CPU_WAIT_S: Final = 0.1
_STALL_S: Final = 2.0
"""A token that an idle child has not taken by then: the child is frozen or stuck between two jobs."""


class ChildProcess:
    def __init__(
        self, number: int, spec: ChildSpec, owner: ChildOwner, template: Template, output: tuple[int, int]
    ) -> None:
        """Asks the template for the process; OSError when that is not possible."""
        self.number = number
        self.name = f"{spec.name}-child-{number}"
        self.state = State.STARTING
        self.born = time.monotonic()
        self.tasks = 0
        """Jobs handed over and not taken back, ever."""
        self.finished = 0
        self.rss_kb = 0
        self.was_ready = False
        self.start_failure: str | None = None
        self.handed: dict[int, Handed] = {}
        """Synchronous jobs in the order of their tokens; the first is running or about to."""
        self.async_jobs: dict[int, Handed] = {}
        self.predicted = 0.0
        """Seconds of work in `handed`, by estimate."""
        self._spec = spec
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._frames = FrameReader()
        self._seq = 0
        self._front_since = 0.0
        self._late = (0, 0.0)
        """A front that was late at the last look, and its child's processor time then."""
        self._leaving = False
        self._watch: asyncio.TimerHandle | None = None
        self._watch_at = inf
        self._linger: asyncio.TimerHandle | None = None
        self._open(template, output)
        self._jobs_out = Outbox(self._loop, self._jobs)
        self._commands_out = Outbox(self._loop, self._commands)
        self._loop.add_reader(self._jobs, self._on_readable)
        self._start_timer: asyncio.TimerHandle | None = self._loop.call_later(spec.start_timeout_s, self._start_late)

    def _open(self, template: Template, output: tuple[int, int]) -> None:
        with contextlib.ExitStack() as theirs, contextlib.ExitStack() as ours:
            self._jobs, jobs = _pair(ours, theirs)
            self._commands, commands = _pair(ours, theirs)
            lifeline, their_lifeline = _pair(ours, theirs)
            self._process = ProcessHandle(lifeline)
            self._tokens = TokenPipe()
            ours.callback(self._tokens.close)
            theirs.callback(self._tokens.sent)
            self._jobs.setblocking(False)
            self._commands.setblocking(False)
            template.fork(
                self.number,
                ChildDescriptors(
                    jobs.fileno(), commands.fileno(), self._tokens.child_end, their_lifeline.fileno(), *output
                ),
            )
            ours.pop_all()

    # -- handing over --------------------------------------------------------------------------------

    @property
    def accepting(self) -> bool:
        return self.state is State.READY

    @property
    def idle(self) -> bool:
        return self.state is State.READY and not self.handed

    @property
    def lets_queue(self) -> bool:
        """Busy with something short that nobody is stopping: more short ones may wait behind it."""
        front = next(iter(self.handed.values()), None)
        return self.accepting and front is not None and front.estimate != inf and front.stop is None

    @property
    def nearly_free(self) -> bool:
        """The only job it has is about to end, by experience: the next one may be on its way. Not when it is late."""
        front = next(iter(self.handed.values()), None)
        if front is None or front.near_end == inf or len(self.handed) > 1 or front.stop is not None:
            return False
        ran = time.monotonic() - self._front_since
        return self.accepting and front.near_end <= ran < front.estimate

    @property
    def busy(self) -> bool:
        return bool(self.handed)

    @property
    def empty(self) -> bool:
        return not self.handed and not self.async_jobs

    def started_at(self, handed: Handed) -> float:
        """As the parent knows it: an async job starts on arrival, another when the one before it is done."""
        return handed.since if handed.job.is_async else max(handed.since, self._front_since)

    def inside(self) -> Iterable[Handed]:
        yield from self.handed.values()
        yield from self.async_jobs.values()

    def hand(self, jobs: Sequence[tuple[Job, float]]) -> None:
        """Synchronous jobs with their estimates: payloads first, then the tokens that permit to start them."""
        now = time.monotonic()
        if not self.handed:
            self._front_since = now
        frames: list[bytes] = []
        seqs: list[int] = []
        end = self._jobs_out.accepted
        for job, estimate in jobs:
            self._seq += 1
            frame = wire.encode_job(self._seq, job)
            end += len(frame)
            frames.append(frame)
            seqs.append(self._seq)
            near_end = self._owner.near_end(job.task_name) if estimate >= SHORT_S else inf
            self.handed[self._seq] = Handed(job, self._seq, estimate, now, end, near_end)
            if estimate != inf:
                self.predicted += estimate
        self.tasks += len(jobs)
        self._jobs_out.send(b"".join(frames))
        self._tokens.permit(seqs)
        if self._front_since == now:
            self._foresee_end()
        self._watch_front()

    def hand_async(self, jobs: Sequence[Job]) -> None:
        """Asynchronous jobs start on arrival: there is room for all of them, so no token is needed."""
        now = time.monotonic()
        frames: list[bytes] = []
        end = self._commands_out.accepted
        for job in jobs:
            self._seq += 1
            frame = wire.encode_job(self._seq, job)
            end += len(frame)
            frames.append(frame)
            self.async_jobs[self._seq] = Handed(job, self._seq, inf, now, end)
            if job.timeout_ms is not None:
                self._watch_by(now + job.timeout_ms / 1000)
        self.tasks += len(jobs)
        self._commands_out.send(b"".join(frames))

    def take_back(self) -> list[Handed]:
        """Every job whose token is still in the pipe: it has not started and now never will, here."""
        taken: list[Handed] = []
        for seq in self._tokens.take():
            handed = self.handed.pop(seq, None)
            if handed is not None:
                taken.append(handed)
                self._forget_estimate(handed)
        self.tasks -= len(taken)
        return taken

    def _put_back(self, handed: Sequence[Handed]) -> None:
        """Return tokens just taken; their payloads are still with the child, and nothing came in between."""
        if not handed:
            return
        for one in handed:
            self.handed[one.seq] = one
            if one.estimate != inf:
                self.predicted += one.estimate
        self.tasks += len(handed)
        self._tokens.permit([one.seq for one in handed])

    def _forget_estimate(self, handed: Handed) -> None:
        if handed.estimate != inf:
            # Never below zero, and exactly zero when empty: sums of floats drift.
            self.predicted = max(0.0, self.predicted - handed.estimate) if self.handed else 0.0

    def _foresee_end(self) -> None:
        """A new front: tell the owner when its successor may be sent for."""
        front = next(iter(self.handed.values()))
        if front.near_end != inf and len(self.handed) == 1:
            self._loop.call_later(front.near_end, self._near_end, front.seq)

    def _near_end(self, seq: int) -> None:
        if seq in self.handed and self.nearly_free:
            self._owner.child_moved(self)

    # -- reports -------------------------------------------------------------------------------------

    def _on_readable(self) -> None:
        self._pump()

    def _pump(self) -> bool:
        """Read once and deal with everything that has arrived; False when there was nothing."""
        if self.state is State.DEAD:
            return False
        try:
            data = self._jobs.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._jobs)
            # Dead, and its exit status is on its way; or user code closed our descriptors, and it is useless.
            self._linger_from_now(1.0)
            return False
        front_done = False
        for kind, frame in self._frames.feed(data):
            if kind == _RESULT:
                seq, report, started, finished, effort, rss_kb = wire.decode_result(frame)
                if rss_kb:
                    self.rss_kb = rss_kb
                handed = self.handed.pop(seq, None)
                if handed is not None:
                    front_done = True
                    self._forget_estimate(handed)
                else:
                    handed = self.async_jobs.pop(seq, None)
                if handed is not None:
                    self.finished += 1
                    self._owner.child_finished(self, handed, report, started, finished, effort)
            elif kind == FrameType.PROGRESS:
                seq, text = wire.decode_progress(frame)
                handed = self.handed.get(seq) or self.async_jobs.get(seq)
                if handed is not None:
                    self._owner.child_progress(self, handed, text)
            elif kind == FrameType.READY:
                self._on_ready(*wire.decode_ready(frame))
            elif kind == FrameType.START_FAILED:
                self.start_failure = wire.decode_start_failed(frame)
        if front_done and self.handed:
            self._front_since = time.monotonic()
            self._foresee_end()
            self._watch_front()
        self._owner.child_moved(self)
        return True

    def _on_ready(self, pid: int, rss_kb: int) -> None:
        self._process.pid = pid  # it may be faster than the template's message, and an outcome names its process
        self.rss_kb = rss_kb
        if self._start_timer is not None:
            self._start_timer.cancel()
            self._start_timer = None
        if self.state is State.STARTING:
            self.state = State.READY
            self.was_ready = True
            self._owner.child_ready(self)

    def _start_late(self) -> None:
        self._start_timer = None
        self.start_failure = f"the child was not ready after {self._spec.start_timeout_s:g} s (import or start hook)"
        self.kill()

    # -- the watch: timeouts, ladders, slow fronts ---------------------------------------------------

    def _watch_front(self) -> None:
        front = next(iter(self.handed.values()))
        due = self._front_since + _STALL_S
        if len(self.handed) > 1:
            due = self._front_since + self._patience(front)
        if front.job.timeout_ms is not None:
            due = min(due, self._front_since + front.job.timeout_ms / 1000)
        self._watch_by(due)

    @staticmethod
    def _patience(front: Handed) -> float:
        return (front.estimate if front.estimate != inf else 0.0) + STEAL_AFTER_S

    def _watch_by(self, when: float) -> None:
        """Look at this child at `when` at the latest. Timers are not cancelled as jobs pass: an early look is cheap."""
        if when >= self._watch_at and self._watch is not None:
            return
        if self._watch is not None:
            self._watch.cancel()
        self._watch_at = when
        self._watch = self._loop.call_later(max(0.0, when - time.monotonic()), self._look)

    def _look(self) -> None:
        self._watch = None
        self._watch_at = inf
        # This loop may be late: is the result already in the socket?
        while self._pump():
            pass
        if self.state is State.DEAD or self._process.killed:
            return
        now = time.monotonic()
        due = self._look_at_front(now)
        for handed in list(self.async_jobs.values()):
            due = min(due, self._look_at(handed, handed.since, now))
        if due != inf and not self._process.killed:
            self._watch_by(due)

    def _look_at_front(self, now: float) -> float:
        front = next(iter(self.handed.values()), None)
        if front is None:
            return inf
        if len(self.handed) > 1:
            slow_at = self._front_since + self._patience(front)
            if now < slow_at:
                return min(slow_at, self._look_at(front, self._front_since, now))
            if self._only_waits_for_cpu(front, now):
                return min(now + STEAL_AFTER_S, self._look_at(front, self._front_since, now))
            taken = self.take_back()
            # Nothing was running when even the front's token came back: the child did not get the processor.
            slow = front.job.task_name if front.seq in self.handed else None
            self._owner.child_unstarted(self, taken, slow)
        elif now >= self._front_since + _STALL_S and self._tokens.waiting():
            taken = self.take_back()
            self._owner.child_unstarted(self, taken, None)
            self._linger_from_now(1.0)  # nothing runs in it, so nothing is lost
            self.retire()
        if front.seq not in self.handed:
            return inf
        stalled_at = self._front_since + _STALL_S
        timeout = front.job.timeout_ms
        late = timeout is not None and now >= self._front_since + timeout / 1000
        if late and front.stop is None and self._tokens.waiting() == len(self.handed):
            return now + 0.05  # not started yet, so its time has not begun; the stall rule is next
        due = self._look_at(front, self._front_since, now)
        return min(due, stalled_at) if now < stalled_at else due

    def _only_waits_for_cpu(self, front: Handed, now: float) -> bool:
        """`front` is late, but has had no processor to run on. Bounded, so that nothing waits here for long."""
        sample = main_thread(self.pid)
        if sample is None or not sample.runnable or now - self._front_since > _CPU_WAIT_S:
            return False
        if self._late[0] != front.seq:
            self._late = (front.seq, sample.ran_s)
            return True
        return sample.ran_s - self._late[1] < STEAL_AFTER_S / 2

    def _look_at(self, handed: Handed, started: float, now: float) -> float:
        """Advance this job's timeout or ladder; when to look again."""
        stop = handed.stop
        if stop is None:
            if handed.job.timeout_ms is None:
                return inf
            deadline = started + handed.job.timeout_ms / 1000
            if now < deadline:
                return deadline
            stop = handed.stop = Stop(StopCode.TIMEOUT, self._spec.kill_grace_s, now)
        elif now < stop.due:
            return stop.due
        self._climb(handed, stop, now)
        return stop.due

    # -- stopping ------------------------------------------------------------------------------------

    def find(self, task_id: str, generation: int) -> Handed | None:
        for handed in self.inside():
            if handed.job.task_id == task_id and handed.job.generation == generation:
                return handed
        return None

    def withdraw(self, handed: Handed) -> bool:
        """Take this one back if it has not started; the others behind it keep their turn."""
        if handed.seq not in self.handed:
            return False
        taken = self.take_back()
        self._put_back([one for one in taken if one is not handed])
        return handed in taken

    def stop_job(self, handed: Handed, code: StopCode) -> None:
        """Begin the ladder for one started job, or change what it is for."""
        now = time.monotonic()
        if handed.stop is not None:
            handed.stop.rename(code)
            return
        handed.stop = Stop(code, self._spec.kill_grace_s, now)
        self._climb(handed, handed.stop, now)
        self._watch_by(handed.stop.due)

    def _climb(self, handed: Handed, stop: Stop, now: float) -> None:
        match stop.step(now):
            case Rung.FLAG:
                self._commands_out.send(wire.encode_stop(handed.seq, stop.code, interrupt=False))
            case Rung.INTERRUPT:
                self._commands_out.send(wire.encode_stop(handed.seq, stop.code, interrupt=True))
            case Rung.TERMINATE:
                if handed.seq in self.async_jobs:
                    # Others share its loop. Ask once more and let nobody new in, before they all die with it.
                    self._commands_out.send(wire.encode_stop(handed.seq, stop.code, interrupt=True))
                    self.retire()
                else:
                    self._process.signal(signal.SIGTERM)
            case Rung.KILL:
                self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def kill(self) -> None:
        self._process.kill()

    def interrupt_all(self) -> None:
        """The worker leaves now, with or without this child's agreement."""
        for handed in self.inside():
            if handed.stop is None:
                handed.stop = Stop(StopCode.SHUTDOWN, 0.0, time.monotonic())
        self.kill()

    def retire(self) -> None:
        """No new jobs; leaves as soon as it is empty."""
        if self.state is State.DEAD:
            return
        self.state = State.RETIRING
        if self.empty and not self._leaving:
            self._leaving = True
            self._tokens.end()
            self._linger_from_now(_LINGER_S)

    def _linger_from_now(self, seconds: float) -> None:
        if self._linger is None:
            self._linger = self._loop.call_later(seconds, self.kill)

    # -- the end -------------------------------------------------------------------------------------

    @property
    def left_on_request(self) -> bool:
        return self._leaving

    def forked(self, pid: int, pidfd: int | None) -> None:
        self._process.identify(pid, pidfd)

    def orphaned(self) -> None:
        """The template died, so nobody reports the exit status: watch the process itself."""
        if self._process.has_pidfd:
            self._process.when_gone(self._loop, lambda: self.exited(*self._process.collect()))
            self.retire()
        else:
            # Not forked yet, or no pidfds here: end it, the lifeline reaches whoever it is.
            self._leaving = True
            self.kill()
            self._loop.call_later(0.1, self.exited, None, 0)

    def exited(self, status: int | None, peak_kb: int) -> None:
        """The process has ended. Its reports first, then its tokens: see the module's text."""
        while self._pump():
            pass
        if self.state is State.DEAD:
            return
        unstarted = self.take_back()
        unsent = [h for h in self.handed.values() if h.end > self._jobs_out.sent]
        unsent += [h for h in self.async_jobs.values() if h.end > self._commands_out.sent]
        for handed in unsent:
            # Its payload never left this process whole, whatever became of the token.
            (self.handed if handed.seq in self.handed else self.async_jobs).pop(handed.seq)
        ran = list(self.inside())
        self.handed.clear()
        self.async_jobs.clear()
        self.state = State.DEAD
        self._close()
        self._owner.child_gone(self, Exit(status, peak_kb, self._process.killed), ran, [*unstarted, *unsent])

    def _close(self) -> None:
        for timer in (self._watch, self._linger, self._start_timer):
            if timer is not None:
                timer.cancel()
        self._loop.remove_reader(self._jobs)
        self._jobs_out.close()
        self._commands_out.close()
        self._process.close(self._loop)
        self._jobs.close()
        self._commands.close()
        self._tokens.close()


def _pair(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[socket.socket, socket.socket]:
    first, second = socket.socketpair()
    return ours.enter_context(first), theirs.enter_context(second)
