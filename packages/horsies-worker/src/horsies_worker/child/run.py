"""Receive, run, report: the two threads of a child.

The main thread runs `def` tasks, one at a time: it takes a start token from the pipe, runs that job,
sends its result, and only then takes the next token. What it has taken has started; what is left in the
pipe has not, and the parent can take it back at any moment. The second thread runs an event loop for
`async def` tasks, which start as soon as they arrive, and reads the parent's stop commands for both.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import threading
import time
from collections import deque
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from horsies.context import StopReason, TaskContext, TaskStopped, enter_task, leave_task
from horsies.errors import OperationalErrorCode
from horsies_worker import execute, wire
from horsies_worker.child.meters import Meters
from horsies_worker.wire import FrameReader, FrameType, ReceivedJob, Report, StopCode

if TYPE_CHECKING:
    from horsies_worker.jobs import AppLike

# A real-time signal: nobody's user code or library has plans for it, unlike SIGUSR1. A signal, and not
# PyThreadState_SetAsyncExc, because it also ends time.sleep(), recv() and lock waits in the main thread.
INTERRUPT: Final = getattr(signal, "SIGRTMIN", 0) + 7 if hasattr(signal, "SIGRTMIN") else signal.SIGUSR2

_REASONS: Final[dict[StopCode, StopReason]] = {
    StopCode.CANCEL: "cancelled",
    StopCode.TIMEOUT: "timeout",
    StopCode.SHUTDOWN: "shutdown",
    StopCode.ABANDON: "cancelled",
}
_RECEIVE_BYTES: Final = 256 * 1024
_MEASURE_EVERY: Final = 32
_LONG_S: Final = 0.002


class _Run:
    """One attempt while it runs."""

    __slots__ = ("job", "raised", "shielded", "stop", "task")

    def __init__(self, job: ReceivedJob) -> None:
        self.job = job
        self.stop: StopCode | None = None
        self.raised = False
        self.shielded = False
        self.task: asyncio.Task[None] | None = None

    def stop_asked(self) -> bool:
        return self.stop is not None


class Runner:
    def __init__(self, app: AppLike, jobs: socket.socket, commands: socket.socket, tokens: int, meters: Meters) -> None:
        self._executor = execute.Executor(app)
        self._jobs = jobs
        self._commands = commands
        self._tokens = tokens
        self._pid = os.getpid()
        self._payloads: deque[ReceivedJob] = deque()
        self._frames = FrameReader()
        self._command_frames = FrameReader()
        # Both threads report on one stream; frames must not interleave.
        self._reporting = threading.Lock()
        self._running: _Run | None = None
        self._early_stops: dict[int, tuple[StopCode, bool]] = {}
        self._async_runs: dict[int, _Run] = {}
        self._loop = asyncio.new_event_loop()
        self._main_thread = threading.get_ident()
        self._meters = meters
        self._waited = 0.0
        self._done = 0
        self._async_done = 0

    def run(self) -> None:
        """Until the parent closes the token pipe."""
        signal.signal(INTERRUPT, self._on_interrupt)
        signal.signal(signal.SIGTERM, self._on_terminate)
        signal.siginterrupt(signal.SIGTERM, False)
        threading.Thread(target=self._serve_loop, name="horsies-async", daemon=True).start()
        while True:
            token = os.read(self._tokens, wire.TOKEN_BYTES)
            if not token:
                return
            job = self._payload(int.from_bytes(token, "little"))
            self._run_sync(job)

    # -- the main thread: `def` tasks ---------------------------------------------------------------

    def _payload(self, seq: int) -> ReceivedJob:
        """Numbers rise, so what lies before this one was taken back and can be forgotten."""
        payloads = self._payloads
        while True:
            while payloads:
                job = payloads.popleft()
                if job.seq == seq:
                    return job
            data = self._jobs.recv(_RECEIVE_BYTES)
            if not data:
                os._exit(0)  # the parent is gone or has given this child up
            payloads.extend(wire.decode_job(frame) for _, frame in self._frames.feed(data))

    def _run_sync(self, job: ReceivedJob) -> None:
        run = _Run(job)
        entered = enter_task(self._context(run))
        started = time.monotonic()
        report = self._guarded(run)
        finished = time.monotonic()
        leave_task(entered)
        if self._early_stops:
            for seq in [seq for seq in list(self._early_stops) if seq <= job.seq]:
                self._early_stops.pop(seq, None)
        if os.getpid() != self._pid:
            # User code forked and came back here twice; only the original may report or take a token.
            os._exit(0)
        effort = finished - started
        self._done += 1
        if effort > _LONG_S or self._done % _MEASURE_EVERY == 1:
            # A no-op that was preempted for 10 ms is still a no-op. Delays of the few jobs since the last look
            # are counted too: small, and on the side of calling a task short, which a slow front corrects.
            waited, self._waited = self._waited, self._meters.waited_s()
            self._report(job.seq, report, started, finished, max(0.0, effort - self._waited + waited), measure=True)
        else:
            self._report(job.seq, report, started, finished, effort)

    def _guarded(self, run: _Run) -> Report:
        # `_on_interrupt` raises at any bytecode while `_running` is set, but once per attempt. Inside `call`
        # most places turn it into a report; the outer except is for those between its handlers and here.
        report: Report | None = None
        escaped: BaseException | None = None
        try:
            try:
                self._running = run
                early = self._early_stops.get(run.job.seq)
                if early is not None:
                    self._stop_sync(run, *early)
                report = self._executor.call(run.job)
            finally:
                self._running = None
        except BaseException as exc:
            self._running = None
            escaped = exc
        if run.stop is not None:
            return execute.stopped_report(run.stop, report, escaped)
        if report is None:
            report = self._executor.failed(escaped or RuntimeError("no report"))
        return report

    def _stop_sync(self, run: _Run, stop: StopCode, interrupt: bool) -> None:
        run.stop = stop
        if interrupt:
            signal.pthread_kill(self._main_thread, INTERRUPT)

    def _on_interrupt(self, _number: int, _frame: object) -> None:
        run = self._running
        # Bound to the attempt: a late signal finds another run, without a stop, and does nothing.
        if run is None or run.stop is None or run.raised or run.shielded:
            return
        run.raised = True
        raise TaskStopped(_REASONS[run.stop])

    def _on_terminate(self, _number: int, _frame: object) -> None:
        run = self._running
        asked = (run is not None and run.stop is not None) or any(r.stop is not None for r in self._async_runs.values())
        if asked and os.getpid() == self._pid:
            # The parent's third rung, not a supervisor's signal to everybody.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGTERM)

    # -- the second thread: commands and `async def` tasks ------------------------------------------

    def _serve_loop(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._commands.setblocking(False)
        self._loop.add_reader(self._commands, self._on_commands)
        while True:
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                continue  # raised by a task that user code started; asyncio lets these two through

    def _on_commands(self) -> None:
        try:
            data = self._commands.recv(_RECEIVE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(self._commands)
            return
        for kind, frame in self._command_frames.feed(data):
            if kind == FrameType.JOB:
                run = _Run(wire.decode_job(frame))
                self._async_runs[run.job.seq] = run
                run.task = self._loop.create_task(self._run_async(run), name=f"horsies {run.job.task_name}")
            elif kind == FrameType.STOP:
                self._on_stop(*wire.decode_stop(frame))

    def _on_stop(self, seq: int, stop: StopCode, interrupt: bool) -> None:
        async_run = self._async_runs.get(seq)
        if async_run is not None:
            async_run.stop = stop
            if interrupt and async_run.task is not None:
                async_run.task.cancel()
            return
        run = self._running
        if run is not None and run.job.seq == seq:
            self._stop_sync(run, stop, interrupt)
        else:
            # Token taken, payload still on its way; or over already, then the number never comes again.
            self._early_stops[seq] = (stop, interrupt)
            run = self._running
            if run is not None and run.job.seq == seq:
                self._stop_sync(run, stop, interrupt)

    async def _run_async(self, run: _Run) -> None:
        enter_task(self._context(run))  # this asyncio task's own context, so nothing to undo
        started = time.monotonic()
        report: Report | None = None
        escaped: BaseException | None = None
        try:
            report = await self._executor.call_async(run.job)
        except BaseException as exc:
            escaped = exc
        finished = time.monotonic()
        if run.stop is not None:
            report = execute.stopped_report(run.stop, report, escaped)
        elif report is None:
            report = self._executor.failed(escaped or RuntimeError("no report"))
        del self._async_runs[run.job.seq]
        self._async_done += 1
        measure = self._async_done % _MEASURE_EVERY == 1
        self._report(run.job.seq, report, started, finished, finished - started, measure=measure)

    # -- both ------------------------------------------------------------------------------------------

    def _context(self, run: _Run) -> TaskContext:
        job = run.job
        deadline = None
        if job.timeout_ms is not None:
            deadline = datetime.now(UTC) + timedelta(milliseconds=job.timeout_ms)
        return TaskContext(
            task_id=job.task_id,
            task_name=job.task_name,
            attempt=job.attempt,
            deadline=deadline,
            fencing_token=job.generation,
            emit_progress=lambda text: self._progress(run, text),
            stop_asked=run.stop_asked,
        )

    def _progress(self, run: _Run, text: str) -> None:
        frame = wire.encode_progress(run.job.seq, text)
        if threading.get_ident() != self._main_thread:
            self._send(frame)
            return
        # Half a frame on the wire would spoil the stream: the exception waits until the frame is out.
        run.shielded = True
        try:
            self._send(frame)
        finally:
            run.shielded = False
        if run.stop is not None and self._running is run:
            signal.pthread_kill(self._main_thread, INTERRUPT)

    def _report(
        self, seq: int, report: Report, started: float, finished: float, effort: float, *, measure: bool = False
    ) -> None:
        rss_kb = self._meters.resident_kb() if measure else 0
        try:
            frame = wire.encode_result(seq, report, started, finished, effort, rss_kb)
        except (UnicodeEncodeError, OverflowError):  # a result text from a codec that lets surrogates through
            message = "the result is not valid text"
            report = execute.error_report(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message)
            frame = wire.encode_result(seq, report, started, finished, effort, rss_kb)
        self._send(frame)

    def _send(self, frame: bytes) -> None:
        # Each result leaves before the next task starts: one that waited in here would die with the child
        # and turn finished work into a crash.
        with self._reporting:
            self._jobs.sendall(frame)
