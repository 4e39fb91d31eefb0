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
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from horsies.app import Horsies
from horsies.context import BatchCall, TaskContext, TaskStopped, enter_task
from horsies.errors import OperationalErrorCode, UsageError
from horsies.status import TaskStatus
from horsies.testing.completing import InlineCompleter, KitCompleter
from horsies.testing.records import Attempt
from horsies.testing.store import TaskRow
from horsies.testing.threads import task_loop

if TYPE_CHECKING:
    from horsies.registry import TaskDefinition
    from horsies.result import TaskError, TaskResult
    from horsies_worker.child.execute import Executor
    from horsies_worker.child.jobs import Job
    from horsies_worker.child.outcome import Outcome

MAX_DEPTH: Final = 40
"""Sends inside sends. A task that sends itself again would otherwise end in a RecursionError, which says less."""
MAX_SNOOZES: Final = 100
"""A task that waits for something outside of it would otherwise snooze for ever: inline mode does not wait."""
_depth: contextvars.ContextVar[int] = contextvars.ContextVar("horsies_testing_depth", default=0)


def require_worker(verb: str) -> None:
    try:
        import horsies_worker.child.execute  # noqa: F401  # pyright: ignore[reportUnusedImport]
    except ImportError:
        raise UsageError(f"testing.{verb} needs the worker's code: pip install 'horsies-client[testing]'") from None


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

            entered = Lifespans(new, task_loop.loop)
            entered.enter()
            known.update(map(id, new))
            _opened.append(entered)


def forget_opened(app: Horsies) -> None:
    """In a forked child: open hooks and lifespans anew there, and leave those of the parent alone."""
    _opened.clear()
    vars(app).pop("_testing_opened", None)


@atexit.register
def _close() -> None:
    while _opened:
        _opened.pop().exit()
    task_loop.close()


# -- one attempt ---------------------------------------------------------------------------------


def run_attempt(
    app: Horsies, definition: "TaskDefinition", job: "Job", group: str | None, completer: KitCompleter
) -> "Outcome":
    """Run user code once, inside the app's middleware, and call `on_attempt_end`. A batch task gets a list of one."""
    if definition.batch is not None:
        return run_call(app, definition, [job], [group])[0]
    context = _context(job, group, completer)
    outcome = _run(app, definition, job, context)
    started, finished = outcome.started_mono, outcome.finished_mono
    (outcome,) = _finished(app, [context], [outcome])
    outcome = completer.settle(context, outcome)
    outcome.started_mono, outcome.finished_mono = started, finished
    return _stored(app, outcome, job)


def run_call(
    app: Horsies, definition: "TaskDefinition", jobs: "Sequence[Job]", groups: Sequence[str | None]
) -> "list[Outcome]":
    """Run these tasks of a batch task in one call."""
    from horsies_worker.child.execute import member_outcomes
    from horsies_worker.child.jobs import call_of

    call = call_of(jobs)
    contexts = [_context(job, group, None) for job, group in zip(jobs, groups, strict=True)]
    made = BatchCall(contexts, deadline=contexts[0].deadline)
    outcome = _run(app, definition, call, made)
    outcomes = member_outcomes(call, outcome, None)
    for one in outcomes:
        one.started_mono, one.finished_mono = outcome.started_mono, outcome.finished_mono
    return [_stored(app, one, job) for one, job in zip(_finished(app, contexts, outcomes), jobs, strict=True)]


def _run(app: Horsies, definition: "TaskDefinition", job: "Job", context: TaskContext | BatchCall) -> "Outcome":
    from horsies_worker.child.execute import Executor

    depth = _depth.get() + 1
    if depth > MAX_DEPTH:
        raise UsageError(
            f"task {job.task_name!r} was sent from inside {MAX_DEPTH} other tasks: does it send itself again? Use "
            "testing.recorded for such a task"
        )
    open_app(app)
    executor, inside = Executor(app), contextvars.Context()
    inside.run(_depth.set, depth)
    inside.run(enter_task, context)
    context.started_mono = started = time.monotonic()
    try:
        if definition.is_async:
            outcome = task_loop.run(partial(_awaited, executor, job, context), inside)
        else:
            outcome = inside.run(executor.call, job, context)
    except TaskStopped as error:  # raised by the task itself: nothing has stopped it
        outcome = executor.failed(error)
    outcome.started_mono, outcome.finished_mono = started, time.monotonic()
    return outcome


def _stored(app: Horsies, outcome: "Outcome", job: "Job") -> "Outcome":
    """The outcome as the child sends it: with a payload codec, its value or error is encoded."""
    from horsies_worker.child.outcome import in_envelopes

    return _sendable(in_envelopes(outcome, app.envelopes, job.task_name))


def _finished(app: Horsies, contexts: Sequence[TaskContext], outcomes: "Sequence[Outcome]") -> "list[Outcome]":
    """The outcomes as the child reports them, after their `on_attempt_end`."""
    from horsies_worker.child.attempt_ends import AttemptEnds

    for outcome in outcomes:
        _let_pass(outcome.exception)
    reported = [_sendable(outcome) for outcome in outcomes]
    ends = AttemptEnds(app.config.middleware, app.registry)
    if ends.is_wanted:
        for context, outcome in zip(contexts, reported, strict=True):
            ends.add(context, outcome, outcome.finished_mono - (outcome.started_mono or outcome.finished_mono))
        ends.close()
    return reported


async def _awaited(executor: "Executor", job: "Job", context: TaskContext | BatchCall) -> "Outcome":
    try:
        return await executor.call_async(job, context)
    except asyncio.CancelledError as error:  # raised by the task itself
        return executor.failed(error)


def _context(job: "Job", group: str | None, completer: KitCompleter | None) -> TaskContext:
    deadline = None
    if job.timeout_ms is not None:
        deadline = datetime.now(UTC) + timedelta(milliseconds=job.timeout_ms)
    return TaskContext(
        task_id=job.task_id, task_name=job.task_name, attempt=job.attempt, deadline=deadline,
        fencing_token=job.generation, queue_name=job.queue_name, ready_at=job.ready_at, metadata_json=job.metadata,
        group=group, snoozes=job.snoozes, stores_result=job.stores_result, completer=completer,
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


def decoded(app: Horsies, definition: "TaskDefinition | None", text: str) -> "TaskResult[Any, TaskError]":
    """A stored result as a handle returns it."""
    from horsies.codec import DecodeError, decode_untyped_result
    from horsies.result import TaskError, TaskResult

    text = app.envelopes.unwrap_result(text)
    try:
        return decode_untyped_result(text) if definition is None else definition.codec.decode_result(text)
    except DecodeError as error:
        return TaskResult(err=TaskError(OperationalErrorCode.RESULT_DESERIALIZATION_ERROR, str(error)))


# -- one task with its retries -------------------------------------------------------------------


def run_row(
    app: Horsies, row: TaskRow, *, first_attempt: int = 1, snoozes: int = 0, only_one: bool = False
) -> "Outcome":
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
        _end(app, row, TaskStatus.FAILED, outcome)
        return outcome
    attempt = first_attempt
    while True:
        claimed = claimed_task(
            {
                "id": sent.id, "task_name": sent.task_name, "task_options": row.task_options,
                "max_retries": row.max_retries, "claim_generation": attempt, "retry_count": attempt - 1,
                "args": row.args, "kwargs": row.kwargs, "queue_name": sent.queue_name, "ready_at": time.time(),
                "metadata": row.metadata, "is_workflow_task": sent.workflow_id is not None,
                "group_key": sent.group, "snoozes": snoozes + len(sent.snoozes),
            },
            definition, run_ahead=False,
        )  # fmt: skip
        outcome = run_attempt(app, definition, claimed.job, sent.group, InlineCompleter(app))
        if sent.workflow_id is None:
            outcome = outside_of_workflows(outcome)
        end = decide(
            task_id=sent.id, generation=attempt, attempt=attempt, options=claimed.options, budget=claimed.max_retries,
            outcome=outcome, started=0.0, finished=0.0, random=random.random,
        )  # fmt: skip
        is_retried = end.status is TaskStatus.PENDING
        if is_retried and end.recorded is None:
            sent.snoozes.append(timedelta(milliseconds=end.retry_delay_ms))
            if only_one:
                _end(app, row, TaskStatus.PENDING, outcome)
                return outcome
            if len(sent.snoozes) >= MAX_SNOOZES:
                raise UsageError(
                    f"task {sent.task_name!r} has snoozed {MAX_SNOOZES} times: inline mode runs it again at once, and "
                    "nothing changes meanwhile. Use testing.real with drain() and advance() for such a task"
                )
            continue
        delay = timedelta(milliseconds=end.retry_delay_ms) if is_retried else None
        sent.attempts.append(Attempt(attempt, decoded(app, definition, outcome.result), outcome.exception, delay))
        if not is_retried or only_one:
            _end(app, row, TaskStatus.FAILED if is_retried else end.status, outcome, is_stored=not end.drops_value)
            return outcome
        attempt += 1


def _end(app: Horsies, row: TaskRow, status: TaskStatus, outcome: "Outcome", *, is_stored: bool = True) -> None:
    row.result = outcome.result if is_stored else None
    row.sent.result = decoded(app, row.definition, outcome.result)
    row.sent.status = status
