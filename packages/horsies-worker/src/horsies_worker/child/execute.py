"""Decode, call, encode: turns one attempt of user code into an Outcome. Runs in the child.

No exception of user code may escape: the parent would take an attempt without a report for a crash of
the process. Only calls that end the process (os._exit, a signal) get through.
"""

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from horsies.app import Horsies
from horsies.codec import PayloadLimits, encode_error
from horsies.context import TaskContext, TaskStopped
from horsies.errors import OperationalErrorCode, OutcomeCode, error_code_for
from horsies.registry import TaskDefinition
from horsies.result import TaskError
from horsies_worker.child.around import Around
from horsies_worker.child.error_text import exception_data, exception_text, short
from horsies_worker.child.frames import StopCode
from horsies_worker.child.jobs import Job
from horsies_worker.child.outcome import Outcome, OutcomeKind, error_outcome

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
        self._around = Around(app.config.middleware)
        self._limits = PayloadLimits(app.config.payload_warn_bytes, app.config.payload_max_bytes)

    def call(self, job: Job, context: TaskContext) -> Outcome:
        """Run a `def` task. Raises only TaskStopped; the runner knows the reason."""
        prepared = self._prepare(job)
        if isinstance(prepared, Outcome):
            return prepared
        definition, args, kwargs = prepared
        try:
            if self._around.is_empty:
                value = definition.fn(*args, **kwargs)
            else:
                value = self._around.call(context, partial(definition.fn, *args, **kwargs))
        except TaskStopped:
            raise
        except BaseException as exc:
            return self.failed(exc)
        return self._conclude(definition, value)

    async def call_async(self, job: Job, context: TaskContext) -> Outcome:
        """Run an `async def` task. Raises only CancelledError."""
        prepared = self._prepare(job)
        if isinstance(prepared, Outcome):
            return prepared
        definition, args, kwargs = prepared
        try:
            if self._around.is_empty:
                value = await definition.fn(*args, **kwargs)
            else:
                value = await self._around.call_async(context, partial(definition.fn, *args, **kwargs))
        except asyncio.CancelledError:
            raise
        except BaseException as exc:
            return self.failed(exc)
        return self._conclude(definition, value)

    def failed(self, exc: BaseException) -> Outcome:
        """Return the outcome of an exception that user code did not catch."""
        config = self._app.config
        try:
            code = error_code_for(exc, config.exception_mapper, config.default_unhandled_error_code)
        except Exception:  # a mapper is user code, and so is a metaclass
            code = OperationalErrorCode.UNHANDLED_EXCEPTION
        outcome = error_outcome(code, exception_text(exc), exception_data(exc))
        outcome.exception = exc
        return outcome

    def _prepare(self, job: Job) -> tuple[TaskDefinition, Sequence[Any], Mapping[str, Any]] | Outcome:
        """Return the call, or the outcome of an attempt that cannot call user code."""
        definition = self._app.registry.get(job.task_name)
        if definition is None:
            message = f"no task named {job.task_name!r} is registered in this worker's app"
            return error_outcome(OperationalErrorCode.WORKER_RESOLUTION_ERROR, message)
        try:
            args, kwargs = definition.codec.decode_call(job.args, job.kwargs)
        except (TaskStopped, asyncio.CancelledError):
            raise
        except BaseException as exc:  # validators are user code, and other programs may write rows
            message = f"the stored arguments do not fit the task: {exception_text(exc)}"
            outcome = error_outcome(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message, exception_data(exc))
            outcome.exception = exc
            return outcome
        return definition, args, kwargs

    def _conclude(self, definition: TaskDefinition, value: object) -> Outcome:
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
        after = error.retry_after_ms
        return Outcome(
            OutcomeKind.ERR,
            encoded.json,
            short(str(error.error_code), 200),
            short(str(error.message)),
            retry_after_ms=None if after is None else min(after, _MAX_RETRY_AFTER_MS),
            returned=value,
        )


def stopped_outcome(stop: StopCode, returned: Outcome | None, exc: BaseException | None = None) -> Outcome:
    """Return the outcome of an attempt that the parent stopped.

    An ok result stands: the work is done, and without its result it would be done twice. Any other end after the
    request counts as its effect, and the error of user code goes into `data`.
    """
    if returned is not None and returned.kind is OutcomeKind.OK:
        return returned
    kind, code, message = _STOPS[stop]
    data: object = None
    if returned is not None:
        data = {"error_code": returned.error_code, "message": returned.error_message}
    elif exc is not None:
        data = exception_data(exc)
    reason = message if kind is OutcomeKind.INTERRUPTED else None
    return Outcome(kind, encode_error(TaskError(code, message, data)), str(code), message, reason, exception=exc)
