"""Receive, run, report: the two threads of a child.

The main thread runs `def` tasks, one at a time: it takes a start token from the pipe, runs that job, sends its
outcome, and only then takes the next token. A job whose token it took has started. A job whose token is still in
the pipe has not, and the parent can take it back at any moment. The second thread runs an event loop for
`async def` tasks, which start as soon as they arrive, and reads the parent's stop commands for both.
"""

import asyncio
import inspect
import os
import signal
import socket
import threading
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from signal import SIGTERM
from typing import Any, Final, cast

from horsies.app import Horsies
from horsies.completing import Claimant, TransactionCompleter
from horsies.context import BatchCall, StopReason, TaskContext, TaskStopped, enter_task, leave_task
from horsies.errors import UsageError
from horsies_worker.child import execute, frames, stacks
from horsies_worker.child.attempt_ends import AttemptEnds
from horsies_worker.child.frames import FrameReader, FrameType, StopCode
from horsies_worker.child.inbox import RECEIVE_BYTES, Inbox, leave
from horsies_worker.child.jobs import Job
from horsies_worker.child.kept_signals import KeptSignals, get_handler
from horsies_worker.child.meters import Meters
from horsies_worker.child.outcome import Outcome
from horsies_worker.child.reports import Reports
from horsies_worker.syncpoints import reached_in_child

# A real-time signal, because user code and libraries use SIGUSR1. A signal, and not PyThreadState_SetAsyncExc,
# because it also ends time.sleep(), recv() and lock waits in the main thread.
INTERRUPT: Final = getattr(signal, "SIGRTMIN", 0) + 7 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2

_REASONS: Final[dict[StopCode, StopReason]] = {
    StopCode.CANCEL: "cancelled",
    StopCode.TIMEOUT: "timeout",
    StopCode.SHUTDOWN: "shutdown",
    StopCode.ABANDON: "cancelled",
}
_SETTLE_S: Final = 1.0
_MEASURE_EVERY: Final = 32
_LONG_S: Final = 0.002
_BRIEF_S: Final = 0.000_05
"""A task that changes what signals do, as an event loop does, takes longer."""
_WATCH_S: Final = 1.0
_CLAIMANT_S: Final = 10.0
"""The parent names the claimant as soon as this child is ready; the thread that reads it may come later."""


@dataclass(slots=True, eq=False)
class _Run:
    """One running attempt."""

    seq: int
    job: Job
    runner: "Runner"
    stop: StopCode | None = None
    raised: bool = False
    shielded: bool = False
    task: asyncio.Task[None] | None = None
    """Of an async attempt, until its end."""
    contexts: Sequence[TaskContext] = ()
    """Of the members of a call."""

    # -- the control of its context ------------------------------------------------------------------

    def stop_reason(self) -> StopReason | None:
        return None if self.stop is None else _REASONS[self.stop]

    def report_progress(self, context: TaskContext, text: str) -> None:
        seq = self.seq + 1 + self.contexts.index(context) if self.contexts else self.seq
        self.runner.send_progress(self, seq, text)


class Runner:
    def __init__(self, app: Horsies, jobs: socket.socket, commands: socket.socket, tokens: int, meters: Meters) -> None:
        self._executor = execute.Executor(app)
        self._envelopes = app.envelopes
        self._reports = Reports(jobs, app.envelopes, meters)
        self.ends = AttemptEnds(app.config.middleware, app.registry)
        self._inbox = Inbox(jobs, tokens)
        self._commands = commands
        self._is_copy = False
        self._loop_thread: int | None = None
        # Asking for the pid after every task would be a system call.
        os.register_at_fork(after_in_child=self._forked)
        self._command_frames = FrameReader()
        self._running: _Run | None = None
        self._early_stops: dict[int, tuple[StopCode, bool]] = {}
        self._async_runs: dict[int, _Run] = {}
        self._watch: asyncio.TimerHandle | None = None
        self.loop = asyncio.new_event_loop()
        self._main_thread = threading.get_ident()
        self._meters = meters
        self._waited = 0.0
        self._done = 0
        self._async_done = 0
        self._claimant: Claimant | None = None
        self._is_named = threading.Event()
        self._completer = TransactionCompleter(app, self._require_claimant, self._announce)

    def start_loop(self) -> None:
        """Start the second thread."""
        threading.Thread(target=self._serve_loop, name="horsies-async", daemon=True).start()

    def run(self) -> None:
        """Run jobs until the parent closes the token pipe."""
        ours = {INTERRUPT: self._on_interrupt, SIGTERM: self._on_terminate}
        self._kept_signals = KeptSignals(ours, interrupts=INTERRUPT)
        self._terminates = get_handler(SIGTERM)
        while True:
            try:
                taken = self._inbox.take()
            except Exception as error:
                self._inbox.survive(error)
                continue
            if taken is None:
                return
            self._run_sync(*taken)

    def _forked(self) -> None:
        self._is_copy = True
        self._reports.become_copy()
        if threading.get_ident() == self._loop_thread:
            # An async task forked. The copy has this event loop and shares its sockets: it would take the original's
            # jobs, and run the next steps of the other tasks a second time. It ends when it returns to the loop.
            ready = getattr(self.loop, "_ready", None)  # the callbacks that are due; another kind of loop may have none
            if ready is not None:
                ready.clear()
            self.loop.call_soon(os._exit, 0)

    def close(self) -> None:
        """Call the hooks of the last attempts, for a limited time. The report of an async attempt may have made the
        parent close this child before the event loop's thread has queued the attempt's hooks."""
        if self.ends.is_wanted:
            settled = threading.Event()
            self.loop.call_soon_threadsafe(settled.set)
            settled.wait(_SETTLE_S)
            self.ends.close()

    # -- the main thread: `def` tasks ---------------------------------------------------------------

    def _run_sync(self, seq: int, job: Job) -> None:
        if job.start_by is not None and time.monotonic() > job.start_by:
            self._reports.send(frames.encode_late(seq))
            return
        run = _Run(seq, job, self)
        context = self._call_context(run) if job.members else self._context(job, run)
        entered = enter_task(context)
        context.started_mono = started = time.monotonic()
        outcome = self._guarded(run, context)
        finished = time.monotonic()
        leave_task(entered)
        if self._early_stops:
            for early in [early for early in list(self._early_stops) if early <= seq]:
                self._early_stops.pop(early, None)
        if self._is_copy:
            # User code forked, and both processes returned here: only the original may report or take a token.
            os._exit(0)
        duration = finished - started
        self._done += 1
        if isinstance(context, BatchCall):
            self._report_members(run, outcome, started, finished)
            self._kept_signals.restore()
            return
        if duration > _LONG_S or self._done % _MEASURE_EVERY == 1:
            # A no-op that was preempted for 10 ms is still a no-op. This also subtracts the waits of the few jobs
            # since the last measurement. They are small and make a task look shorter; the parent corrects that
            # when a current job overruns its estimate.
            waited, self._waited = self._waited, self._meters.waited_s()
            self._reports.result(
                context, seq, outcome, started, finished, max(0.0, duration - self._waited + waited), measure=True
            )
            self._kept_signals.restore()
        else:
            self._reports.result(context, seq, outcome, started, finished, duration)
            # Not all of them after each no-op. SIGTERM is the one that supervisors send to every process.
            if duration > _BRIEF_S or get_handler(SIGTERM) is not self._terminates:
                self._kept_signals.restore()
        if self.ends.is_wanted:
            self.ends.add(context, outcome, duration)

    def _guarded(self, run: _Run, context: TaskContext | BatchCall) -> Outcome:
        # `_on_interrupt` raises at any bytecode while `_running` is set, but only once per attempt. `call` turns
        # most of these exceptions into an outcome; the outer except is for those raised outside its handlers.
        outcome: Outcome | None = None
        escaped: BaseException | None = None
        try:
            try:
                self._running = run
                early = self._early_stops.get(run.seq)
                if early is not None:
                    self._stop_sync(run, *early)
                outcome = self._executor.call(run.job, context)
            finally:
                self._running = None
        except BaseException as exc:
            self._running = None
            escaped = exc
        if run.stop is not None:
            return execute.stopped_outcome(run.stop, outcome, escaped)
        return outcome or self._executor.failed(escaped or RuntimeError("no outcome"))

    def _stop_sync(self, run: _Run, stop: StopCode, interrupt: bool) -> None:
        run.stop = stop
        if interrupt:
            signal.pthread_kill(self._main_thread, INTERRUPT)

    def _on_interrupt(self, _number: int, _frame: object) -> None:
        run = self._running
        # A stop belongs to its attempt: a late signal finds another run, which has no stop, and does nothing.
        if run is None or run.stop is None or run.raised or run.shielded:
            return
        run.raised = True
        raise TaskStopped(_REASONS[run.stop])

    def _on_terminate(self, _number: int, _frame: object) -> None:
        run = self._running
        # The parent sends SIGTERM after its interruption. Any other is a supervisor's signal to all processes, and is
        # handled before the interruption, even if Python is as late as that.
        if run is not None and run.raised and not self._is_copy:
            signal.signal(SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), SIGTERM)

    # -- the second thread: commands and `async def` tasks ------------------------------------------

    def _serve_loop(self) -> None:
        asyncio.set_event_loop(self.loop)
        self._loop_thread = threading.get_ident()
        self._commands.setblocking(False)
        self.loop.add_reader(self._commands, self._on_commands)
        while True:
            try:
                self.loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue  # raised by an asyncio task of user code; asyncio re-raises these two
            except Exception as error:  # such as MemoryError in the loop itself
                leave(error)

    def _on_commands(self) -> None:
        try:
            data = self._commands.recv(RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        except MemoryError as error:
            leave(error)
        if not data:
            self.loop.remove_reader(self._commands)
            return
        try:
            self._obey(self._command_frames.feed(data))
        except Exception as error:  # such as MemoryError: jobs and commands of the stream are lost
            leave(error)

    def _obey(self, commands: Sequence[tuple[int, bytes]]) -> None:
        for kind, frame in commands:
            if kind in (FrameType.JOB, FrameType.CALL):
                run = _Run(*(frames.decode_job if kind == FrameType.JOB else frames.decode_call)(frame), self)
                self._async_runs[run.seq] = run
                run.task = self.loop.create_task(self._run_async(run), name=f"horsies {run.job.task_name}")
                if self._watch is None:
                    self._watch = self.loop.call_later(_WATCH_S, self._report_silent)
            elif kind == FrameType.STOP:
                self._on_stop(*frames.decode_stop(frame))
            elif kind == FrameType.CLAIMANT:
                self._claimant = frames.decode_claimant(frame)
                self._is_named.set()
            elif kind == FrameType.STACKS:
                runs = {run.task: run.job for run in self._async_runs.values() if run.task is not None}
                self._reports.send(frames.encode_stacks(stacks.describe(runs)))

    def _on_stop(self, seq: int, stop: StopCode, interrupt: bool) -> None:
        async_run = self._async_runs.get(seq)
        if async_run is not None:
            async_run.stop = stop
            if interrupt and async_run.task is not None and _has_begun(async_run.task):
                async_run.task.cancel()
            return
        run = self._running
        if run is not None and run.seq == seq:
            self._stop_sync(run, stop, interrupt)
        else:
            # Either the token is taken and the payload still on its way, or the job has ended and its number does not
            # come again.
            self._early_stops[seq] = (stop, interrupt)
            run = self._running
            if run is not None and run.seq == seq:
                self._stop_sync(run, stop, interrupt)

    async def _run_async(self, run: _Run) -> None:
        started = time.monotonic()
        if run.job.start_by is not None and started > run.job.start_by and run.stop is None:
            run.task = None
            del self._async_runs[run.seq]
            self._reports.send(frames.encode_late(run.seq))
            return
        context = self._call_context(run) if run.job.members else self._context(run.job, run)
        context.started_mono = started
        enter_task(context)  # in the context of this asyncio task, so `leave_task` is not needed
        outcome: Outcome | None = None
        escaped: BaseException | None = None
        if run.stop is None:
            try:
                outcome = await self._executor.call_async(run.job, context)
            except BaseException as exc:
                escaped = exc
            if self._is_copy:
                os._exit(0)  # as in `_run_sync`: only the original may report
        finished = time.monotonic()
        if run.stop is not None:
            outcome = execute.stopped_outcome(run.stop, outcome, escaped)
        elif outcome is None:
            outcome = self._executor.failed(escaped or RuntimeError("no outcome"))
        self._async_done += 1
        self._report_async(run, context, outcome, started, finished)

    def _report_async(
        self, run: _Run, context: TaskContext | BatchCall, outcome: Outcome, started: float, finished: float
    ) -> None:
        if isinstance(context, BatchCall):
            self._report_members(run, outcome, started, finished)
        else:
            measure = self._async_done % _MEASURE_EVERY == 1
            self._reports.result(context, run.seq, outcome, started, finished, finished - started, measure=measure)
        # The task's context holds the run. Without this line only the garbage collector could free them: 2.7 µs a task.
        run.task = None
        del self._async_runs[run.seq]
        if self.ends.is_wanted and not isinstance(context, BatchCall):
            self.ends.add(context, outcome, finished - started)

    def _report_silent(self) -> None:
        """Report the attempts whose asyncio task is over and has reported nothing: user code has cancelled it before
        its first step (`asyncio.all_tasks()`), or its report has failed. The parent would wait for them for ever."""
        self._watch = None
        for run in [run for run in self._async_runs.values() if run.task is not None and run.task.done()]:
            task = cast("asyncio.Task[None]", run.task)
            error = None if task.cancelled() else task.exception()
            error = error or asyncio.CancelledError("its asyncio task was cancelled before it began")
            now = time.monotonic()
            context = self._call_context(run) if run.job.members else self._context(run.job, run)
            context.started_mono = now
            outcome = self._executor.failed(error)
            if run.stop is not None:
                outcome = execute.stopped_outcome(run.stop, None, error)
            self._report_async(run, context, outcome, now, now)
        if self._async_runs:
            self._watch = self.loop.call_later(_WATCH_S, self._report_silent)

    # -- both ------------------------------------------------------------------------------------------

    def _report_members(self, run: _Run, outcome: Outcome, started: float, finished: float) -> None:
        outcomes = execute.member_outcomes(run.job, outcome, run.stop)
        self._reports.members(run.job, run.seq, outcomes, started, finished)
        if self.ends.is_wanted:
            for context, one in zip(run.contexts, outcomes, strict=True):
                self.ends.add(context, one, finished - started)

    def _context(self, job: Job, run: _Run) -> TaskContext:
        """`job`: that of the run, or a member of the call that the run is."""
        return TaskContext(
            task_id=job.task_id,
            task_name=job.task_name,
            attempt=job.attempt,
            deadline=None if run.job.timeout_ms is None else _deadline(run.job.timeout_ms),
            fencing_token=job.generation,
            control=run,
            queue_name=job.queue_name,
            ready_at=job.ready_at,
            metadata_json=job.metadata,
            group=job.group,
            completer=None if run.job.members else self._completer,
            snoozes=job.snoozes,
            stores_result=job.stores_result,
        )

    def _call_context(self, run: _Run) -> BatchCall:
        run.contexts = [self._context(job, run) for job in run.job.members]
        timeout_ms = run.job.timeout_ms
        return BatchCall(run.contexts, deadline=None if timeout_ms is None else _deadline(timeout_ms), control=run)

    def _require_claimant(self) -> Claimant:
        if not self._is_named.wait(_CLAIMANT_S) or self._claimant is None:
            raise UsageError("complete() cannot be used here: this child does not know its worker")
        return self._claimant

    def _announce(self, context: TaskContext) -> None:
        """Tell the parent, before it can be true, that the end of this attempt may be in the database."""
        reached_in_child("before_completing")
        frame = frames.encode_completing(context.task_id, context.fencing_token)
        run = self._running
        if run is None:
            self._reports.send(frame)
        else:
            self._send_whole(run, frame)
        reached_in_child("completing")

    def send_progress(self, run: _Run, seq: int, text: str) -> None:
        """Tell the parent the progress of the job with this number."""
        stored = self._envelopes.wrap_value(text, "progress", run.job.task_name)
        self._send_whole(run, frames.encode_progress(seq, stored))

    def _send_whole(self, run: _Run, frame: bytes) -> None:
        """Send a frame while `run` may be interrupted."""
        if threading.get_ident() != self._main_thread:
            self._reports.send(frame)
            return
        # Half a frame would corrupt the stream, so a stop exception waits until the frame is sent.
        is_nested, run.shielded = run.shielded, True  # in a signal handler that interrupted this very place
        try:
            self._reports.send(frame)
        finally:
            run.shielded = is_nested
        if not is_nested and run.stop is not None and self._running is run:
            signal.pthread_kill(self._main_thread, INTERRUPT)


def _deadline(timeout_ms: int) -> datetime:
    return datetime.now(UTC) + timedelta(milliseconds=timeout_ms)


def _has_begun(task: asyncio.Task[None]) -> bool:
    """A task that is cancelled before its first step never takes it, and could not report its end."""
    coroutine = cast("Coroutine[Any, Any, None]", task.get_coro())
    return inspect.getcoroutinestate(coroutine) != inspect.CORO_CREATED
