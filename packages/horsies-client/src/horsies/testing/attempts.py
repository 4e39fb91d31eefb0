"""Runs attempts in this process with the worker's own parts: `Executor` around user code, and `decide` after it.

A `def` task runs in the calling thread; `async def` tasks share one event loop, in a thread of its own, as in the child
of a worker. Both start with an empty `contextvars.Context`, as there: what a task needs from its sender must travel
with it, and a test notices when it does not. Timeouts and cancellation are not enforced.
"""

import asyncio
import atexit
import contextvars
import random
import threading
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final, TypeVar

from horsies.app import Horsies
from horsies.context import TaskContext, TaskStopped, enter_task
from horsies.errors import OperationalErrorCode, UsageError
from horsies.status import TaskStatus
from horsies.testing.records import Attempt
from horsies.testing.store import TaskRow

if TYPE_CHECKING:
    from horsies.registry import TaskDefinition
    from horsies.result import TaskError, TaskResult
    from horsies_worker.child.execute import Executor
    from horsies_worker.child.jobs import Job
    from horsies_worker.child.outcome import Outcome

R = TypeVar("R")
MAX_DEPTH: Final = 40
"""Sends inside sends. A task that sends itself again would otherwise end in a RecursionError, which says less."""
_depth: contextvars.ContextVar[int] = contextvars.ContextVar("horsies_testing_depth", default=0)


def require_worker(verb: str) -> None:
    try:
        import horsies_worker.child.execute  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        raise UsageError(f"testing.{verb} needs the worker's code: pip install 'horsies-client[testing]'") from None


# -- threads and loops ---------------------------------------------------------------------------


class TaskLoop:
    """The event loop of `async def` tasks and async lifespans, in a thread of its own. Started at the first use."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="horsies-testing", daemon=True)
                self._thread.start()
            return self._loop

    def close_connections(self, app: Horsies) -> None:
        """Close the connections that `async def` tasks of this app have opened."""
        if self._loop is not None:
            self.run(app.database.close_here, contextvars.Context())

    def close(self) -> None:
        """End the loop with the process: an open one would be a ResourceWarning."""
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(2)
            if not self._loop.is_running():
                self._loop.close()

    def run(self, work: Callable[[], Coroutine[Any, Any, R]], context: contextvars.Context) -> R:
        """Run a coroutine on the loop, in this context, and wait for it."""
        loop, done, ended = self.loop, threading.Event(), list[asyncio.Task[R]]()

        def finish(task: asyncio.Task[R]) -> None:
            ended.append(task)
            done.set()

        def start() -> None:
            loop.create_task(work(), context=context).add_done_callback(finish)

        loop.call_soon_threadsafe(start)
        done.wait()
        return ended[0].result()


async def in_thread(work: Callable[[], R]) -> R:
    """Run blocking code beside the running loop. A thread for each: those of an executor are few, and sends inside
    sends would wait for each other."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()
    context = contextvars.copy_context()

    def report(value: R | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # pyright: ignore[reportArgumentType] # R may be None

    def run() -> None:
        value, failed = None, None
        try:
            value = context.run(work)
        except BaseException as error:
            failed = error
        try:
            loop.call_soon_threadsafe(report, value, failed)
        except RuntimeError:
            pass  # the caller was cancelled, and its loop is closed

    threading.Thread(target=run, name="horsies-testing-task", daemon=True).start()
    return await future


def off_the_loop(work: Callable[[], R]) -> R:
    """Run blocking code here or, where this thread runs an event loop, in another one, and wait for it."""
    if not _runs_a_loop():
        return work()
    results: list[R] = []
    errors: list[BaseException] = []
    context = contextvars.copy_context()

    def run() -> None:
        try:
            results.append(context.run(work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="horsies-testing-task", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


_task_loop: Final = TaskLoop()


def close_connections(app: Horsies) -> None:
    _task_loop.close_connections(app)


# -- lifespans -----------------------------------------------------------------------------------

_opening: Final = threading.RLock()
_opened: Final[list[Any]] = []
"""What is closed when the process ends, last first."""


def open_app(app: Horsies) -> None:
    """Run the app's start hooks and enter its lifespans, once in this process, as a worker's child does. They stay open
    until the process ends."""
    with _opening:
        known: set[int] = vars(app).setdefault("_testing_opened", set())
        for hook in [hook for hook in app.child_start_hooks if id(hook) not in known]:
            known.add(id(hook))
            hook()
        if new := [lifespan for lifespan in app.lifespans if id(lifespan) not in known]:
            from horsies_worker.child.lifespans import Lifespans

            entered = Lifespans(new, _task_loop.loop)
            entered.enter()
            known.update(map(id, new))
            _opened.append(entered)


@atexit.register
def _close() -> None:
    while _opened:
        _opened.pop().exit()
    _task_loop.close()


# -- one attempt ---------------------------------------------------------------------------------


def run_attempt(app: Horsies, definition: "TaskDefinition", job: "Job", group: str | None) -> "Outcome":
    """Run user code once, inside the app's middleware, and call `on_attempt_end`."""
    from horsies_worker.child.attempt_ends import AttemptEnds
    from horsies_worker.child.execute import Executor

    depth = _depth.get() + 1
    if depth > MAX_DEPTH:
        raise UsageError(
            f"task {job.task_name!r} was sent from inside {MAX_DEPTH} other tasks: does it send itself again? Use "
            "testing.recorded for such a task"
        )
    open_app(app)
    context = _context(job, group)
    executor, inside = Executor(app), contextvars.Context()
    inside.run(_depth.set, depth)
    inside.run(enter_task, context)
    started = time.monotonic()
    try:
        if definition.is_async:
            outcome = _task_loop.run(partial(_awaited, executor, job, context), inside)
        else:
            outcome = inside.run(executor.call, job, context)
    except TaskStopped as error:  # raised by the task itself: nothing has stopped it
        outcome = executor.failed(error)
    finished = time.monotonic()
    _let_pass(outcome.exception)
    outcome.started_mono, outcome.finished_mono = started, finished
    outcome = _sendable(outcome)
    ends = AttemptEnds(app.config.middleware, app.registry)
    if ends.is_wanted:
        ends.add(context, outcome, finished - started)
        ends.close()
    return outcome


async def _awaited(executor: "Executor", job: "Job", context: TaskContext) -> "Outcome":
    try:
        return await executor.call_async(job, context)
    except asyncio.CancelledError as error:  # raised by the task itself
        return executor.failed(error)


def _context(job: "Job", group: str | None) -> TaskContext:
    deadline = None
    if job.timeout_ms is not None:
        deadline = datetime.now(UTC) + timedelta(milliseconds=job.timeout_ms)
    return TaskContext(
        task_id=job.task_id, task_name=job.task_name, attempt=job.attempt, deadline=deadline,
        fencing_token=job.generation, emit_progress=lambda _text: None, stop_asked=lambda: False,
        queue_name=job.queue_name, ready_at=job.ready_at, metadata_json=job.metadata,
        group=group,
    )  # fmt: skip


def _let_pass(error: BaseException | None) -> None:
    """Raise what is meant for the test and not for the task: Ctrl-C, and pytest's own `fail` and `skip`."""
    if error is None:
        return
    is_of_pytest = any(cls.__module__ == "_pytest.outcomes" for cls in type(error).__mro__)
    if is_of_pytest or isinstance(error, KeyboardInterrupt):
        raise error


def _sendable(outcome: "Outcome") -> "Outcome":
    """The outcome, or the error that the child reports in its place when it cannot be written to the parent."""
    from horsies_worker.child import frames
    from horsies_worker.child.outcome import error_outcome

    try:
        frames.encode_result(0, outcome, 0.0, 0)
    except (UnicodeEncodeError, OverflowError):
        replaced = error_outcome(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, "the result is not valid text")
        replaced.started_mono, replaced.finished_mono = outcome.started_mono, outcome.finished_mono
        return replaced
    return outcome


def decoded(definition: "TaskDefinition | None", text: str) -> "TaskResult[Any, TaskError]":
    """A stored result as a handle returns it."""
    from horsies.codec import DecodeError, decode_untyped_result
    from horsies.result import TaskError, TaskResult

    try:
        return decode_untyped_result(text) if definition is None else definition.codec.decode_result(text)
    except DecodeError as error:
        return TaskResult(err=TaskError(OperationalErrorCode.RESULT_DESERIALIZATION_ERROR, str(error)))


# -- one task with its retries -------------------------------------------------------------------


def run_row(app: Horsies, row: TaskRow, *, first_attempt: int = 1, only_one: bool = False) -> "Outcome":
    """Run a task until it ends, or once; fills in its record. The delays between attempts are recorded, not waited."""
    from horsies_worker.child.outcome import error_outcome, outside_of_workflows
    from horsies_worker.claim.claimed_task import claimed_task
    from horsies_worker.finish.decide import decide

    sent, definition = row.sent, row.definition
    sent.status = TaskStatus.RUNNING
    if definition is None or definition.is_stub:
        kind = "is not registered in this app" if definition is None else "is only declared in this app"
        message = f"task {sent.task_name!r} {kind}: its body is not here, so that it cannot run in this process"
        outcome = error_outcome(OperationalErrorCode.WORKER_RESOLUTION_ERROR, message)
        _end(row, TaskStatus.FAILED, outcome)
        return outcome
    attempt = first_attempt
    while True:
        claimed = claimed_task(
            {
                "id": sent.id, "task_name": sent.task_name, "task_options": row.task_options,
                "max_retries": row.max_retries, "claim_generation": attempt, "retry_count": attempt - 1,
                "args": row.args, "kwargs": row.kwargs, "queue_name": sent.queue_name, "ready_at": time.time(),
                "metadata": row.metadata, "is_workflow_task": sent.workflow_id is not None,
                "group_key": sent.group,
            },
            definition, run_ahead=False,
        )  # fmt: skip
        outcome = run_attempt(app, definition, claimed.job, sent.group)
        if sent.workflow_id is None:
            outcome = outside_of_workflows(outcome)
        end = decide(
            task_id=sent.id, generation=attempt, attempt=attempt, options=claimed.options, budget=claimed.max_retries,
            outcome=outcome, started=0.0, finished=0.0, random=random.random,
        )  # fmt: skip
        is_retried = end.status is TaskStatus.PENDING
        delay = timedelta(milliseconds=end.retry_delay_ms) if is_retried else None
        sent.attempts.append(Attempt(attempt, decoded(definition, outcome.result), outcome.exception, delay))
        if not is_retried or only_one:
            _end(row, TaskStatus.FAILED if is_retried else end.status, outcome)
            return outcome
        attempt += 1


def _end(row: TaskRow, status: TaskStatus, outcome: "Outcome") -> None:
    row.result = outcome.result
    row.sent.result = decoded(row.definition, outcome.result)
    row.sent.status = status
