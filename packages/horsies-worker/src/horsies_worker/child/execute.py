"""Decode, call, encode: turns one attempt of user code into an Outcome. Runs in the child.

No exception of user code may escape: the parent would take an attempt without a report for a crash of
the process. Only calls that end the process (os._exit, a signal) get through.
"""

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from copy import copy
from functools import partial
from typing import Any

from horsies.app import Horsies
from horsies.codec import PayloadLimits, ResultError, encode_error
from horsies.context import BatchCall, TaskContext, TaskStopped
from horsies.errors import OperationalErrorCode, OutcomeCode
from horsies.payload_codec import PayloadError
from horsies.registry import TaskDefinition
from horsies.result import TaskError, TaskFailed
from horsies.snoozing import Snooze
from horsies_worker.child.around import Around
from horsies_worker.child.batch_calls import BatchCalls
from horsies_worker.child.error_text import exception_data, exception_text, short
from horsies_worker.child.frames import StopCode
from horsies_worker.child.jobs import Job
from horsies_worker.child.outcome import Outcome, OutcomeKind, error_outcome, snoozed_outcome

_STOPS: dict[StopCode, tuple[OutcomeKind, str, str]] = {
    StopCode.CANCEL: (OutcomeKind.CANCELLED, OutcomeCode.TASK_CANCELLED, "the task was cancelled"),
    StopCode.TIMEOUT: (OutcomeKind.TIMEOUT, OutcomeCode.TASK_TIMEOUT, "the task ran longer than its timeout"),
    StopCode.SHUTDOWN: (OutcomeKind.INTERRUPTED, OperationalErrorCode.WORKER_CRASHED, "interrupted by shutdown"),
    StopCode.ABANDON: (OutcomeKind.CANCELLED, OutcomeCode.TASK_CANCELLED, "the worker lost its claim"),
}
_MAX_RETRY_AFTER_MS = 2**53


class Executor:
    """Calls the tasks of one app."""

    def __init__(self, app: Horsies) -> None:
        self._app = app
        self.around = Around(app.config.middleware)
        self._batches = BatchCalls(self)
        self._codes = app.config.exception_codes
        self._limits = PayloadLimits(app.config.payload_warn_bytes, app.config.payload_max_bytes)

    def call(self, job: Job, context: TaskContext | BatchCall) -> Outcome:
        """Run a `def` task. Raises only TaskStopped; the runner knows the reason."""
        if isinstance(context, BatchCall):
            return self._batches.call(job, context)
        prepared = self.prepare(job)
        if isinstance(prepared, Outcome):
            return prepared
        definition, args, kwargs = prepared
        try:
            if self.around.is_empty:
                value = definition.fn(*args, **kwargs)
            else:
                value = self.around.call(context, partial(definition.fn, *args, **kwargs))
        except TaskStopped:
            raise
        except BaseException as exc:
            return self.failed(exc, definition)
        return self.conclude(definition, value)

    async def call_async(self, job: Job, context: TaskContext | BatchCall) -> Outcome:
        """Run an `async def` task. Raises only CancelledError."""
        if isinstance(context, BatchCall):
            return await self._batches.call_async(job, context)
        prepared = self.prepare(job)
        if isinstance(prepared, Outcome):
            return prepared
        definition, args, kwargs = prepared
        try:
            if self.around.is_empty:
                value = await definition.fn(*args, **kwargs)
            else:
                value = await self.around.call_async(context, partial(definition.fn, *args, **kwargs))
        except asyncio.CancelledError:
            raise
        except BaseException as exc:
            return self.failed(exc, definition)
        return self.conclude(definition, value)

    def failed(self, exc: BaseException, definition: TaskDefinition | None = None) -> Outcome:
        """Return the outcome of an exception that user code did not catch."""
        if isinstance(exc, TaskFailed) and isinstance(exc.error, Snooze):
            return snoozed_outcome(exc.error)  # user code unwrapped the result of its own helper
        codes = self._codes if definition is None else definition.exception_codes
        try:
            if isinstance(exc, ResultError):  # complete() was given a value that the task must not return
                code: str = exc.code
            else:
                code = codes.code_of(exc)
        except Exception:  # a mapper is user code, and so is a metaclass
            code = OperationalErrorCode.UNHANDLED_EXCEPTION
        outcome = error_outcome(code, exception_text(exc), exception_data(exc))
        outcome.exception = exc
        return outcome

    def prepare(self, job: Job) -> tuple[TaskDefinition, Sequence[Any], Mapping[str, Any]] | Outcome:
        """Return the call, or the outcome of an attempt that cannot call user code."""
        definition = self._app.registry.get(job.task_name)
        if definition is None:
            message = f"no task named {job.task_name!r} is registered in this worker's app"
            return error_outcome(OperationalErrorCode.WORKER_RESOLUTION_ERROR, message)
        try:
            stored = self._app.envelopes.unwrap_call(job.args, job.kwargs, job.task_name)
            args, kwargs = definition.codec.decode_call(*stored)
        except (TaskStopped, asyncio.CancelledError):
            raise
        except PayloadError as exc:
            outcome = error_outcome(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, f"the stored arguments: {exc}")
            outcome.is_plain, outcome.exception = True, exc
            return outcome
        except BaseException as exc:  # validators are user code, and other programs may write rows
            message = f"the stored arguments do not fit the task: {exception_text(exc)}"
            outcome = error_outcome(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message, exception_data(exc))
            outcome.exception = exc
            return outcome
        return definition, args, kwargs

    def conclude(self, definition: TaskDefinition, value: object) -> Outcome:
        """Return the outcome of what user code returned."""
        try:
            encoded = definition.codec.encode_outcome(value, limits=self._limits)
        except (TaskStopped, asyncio.CancelledError):
            raise
        except BaseException as exc:  # such as SystemExit from a serializer
            outcome = error_outcome(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, exception_text(exc))
            outcome.exception = exc
            return outcome
        error = encoded.error
        if error is None:
            return Outcome(OutcomeKind.OK, encoded.json, returned=value)
        if inspect.iscoroutine(value):
            value.close()  # otherwise Python warns that it was never awaited
        if isinstance(error, Snooze):
            return snoozed_outcome(error)
        after = error.retry_after_ms
        return Outcome(
            OutcomeKind.ERR,
            encoded.json,
            short(str(error.error_code), 200),
            short(str(error.message)),
            # user code may have set the attribute to anything
            retry_after_ms=min(after, _MAX_RETRY_AFTER_MS) if isinstance(after, int) and after >= 0 else None,
            returned=value,
        )


def stopped_outcome(stop: StopCode, returned: Outcome | None, exc: BaseException | None = None) -> Outcome:
    """Return the outcome of an attempt that the parent stopped.

    An ok result stands: the work is done, and without its result it would be done twice. So does a snooze when the
    worker shuts down: the task has found a place to stop and go on later. Any other end after the request counts as its
    effect, and the error of user code goes into `data`.
    """
    if returned is not None and returned.kind is OutcomeKind.OK:
        return returned
    if returned is not None and returned.kind is OutcomeKind.SNOOZED and stop is StopCode.SHUTDOWN:
        return returned
    kind, code, message = _STOPS[stop]
    data: object = None
    if returned is not None:
        data = {"error_code": returned.error_code, "message": returned.error_message}
    elif exc is not None:
        data = exception_data(exc)
    reason = message if kind is OutcomeKind.INTERRUPTED else None
    text = encode_error(TaskError(code, message, data))
    return Outcome(kind, text, str(code), message, reason, exception=exc, is_plain=data is None)


def member_outcomes(call: Job, outcome: Outcome, stop: StopCode | None) -> list[Outcome]:
    """How each member of a call of a batch task ended. A call that was stopped ended so for all of them, but results
    that it returned after the request stand."""
    if outcome.members is None:
        return [copy(outcome) for _ in call.members]
    return [one if stop is None else stopped_outcome(stop, one) for one in outcome.members]
