"""Decode, call, encode: one attempt of user code becomes a Report, whatever it does. Runs in the child.

Nothing that user code raises or returns may escape from here: an attempt without a report would be
taken for a crash of the process. Only what ends the process itself (os._exit, a signal) gets through.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from horsies.codec import PayloadLimits, encode_error
from horsies.context import TaskStopped
from horsies.errors import OperationalErrorCode, OutcomeCode
from horsies.exceptions import error_code_for
from horsies.result import TaskError
from horsies_worker.error_text import exception_data, exception_text, short
from horsies_worker.jobs import OutcomeKind
from horsies_worker.wire import Report, StopCode

if TYPE_CHECKING:
    from horsies_worker.jobs import AppLike, DefinitionLike
    from horsies_worker.wire import ReceivedJob

_STOPS: dict[StopCode, tuple[OutcomeKind, str, str]] = {
    StopCode.CANCEL: (OutcomeKind.CANCELLED, OutcomeCode.TASK_CANCELLED, "the task was cancelled"),
    StopCode.TIMEOUT: (OutcomeKind.TIMEOUT, OutcomeCode.TASK_TIMEOUT, "the task ran longer than its timeout"),
    StopCode.SHUTDOWN: (OutcomeKind.INTERRUPTED, OperationalErrorCode.WORKER_CRASHED, "interrupted by shutdown"),
    StopCode.ABANDON: (OutcomeKind.CANCELLED, OutcomeCode.TASK_CANCELLED, "the worker lost its claim"),
}
_MAX_RETRY_AFTER_MS = 2**53


class _Unusable(Exception):
    """The call cannot be made; carries the report that says why."""

    def __init__(self, report: Report) -> None:
        super().__init__(report.error_message)
        self.report = report


class Executor:
    """One app's tasks, ready to be called."""

    def __init__(self, app: AppLike) -> None:
        self._app = app
        self._limits = PayloadLimits(app.config.payload_warn_bytes, app.config.payload_max_bytes)

    def call(self, job: ReceivedJob) -> Report:
        """Run a `def` task. Only TaskStopped comes out; the runner knows why it was raised."""
        try:
            definition, args, kwargs = self._prepare(job)
        except _Unusable as exc:
            return exc.report
        try:
            value = definition.fn(*args, **kwargs)
        except TaskStopped:
            raise
        except BaseException as exc:
            return self.failed(exc)
        return self._conclude(definition, value)

    async def call_async(self, job: ReceivedJob) -> Report:
        """Run an `async def` task. Only CancelledError comes out."""
        try:
            definition, args, kwargs = self._prepare(job)
        except _Unusable as exc:
            return exc.report
        try:
            value = await definition.fn(*args, **kwargs)
        except asyncio.CancelledError:
            raise
        except BaseException as exc:
            return self.failed(exc)
        return self._conclude(definition, value)

    def failed(self, exc: BaseException) -> Report:
        """The report of an exception that user code let escape."""
        config = self._app.config
        try:
            code = error_code_for(exc, config.exception_mapper, config.default_unhandled_error_code)
        except Exception:  # a mapper is user configuration, and a metaclass may do anything
            code = OperationalErrorCode.UNHANDLED_EXCEPTION
        return error_report(code, exception_text(exc), exception_data(exc))

    def _prepare(self, job: ReceivedJob) -> tuple[DefinitionLike, Sequence[Any], Mapping[str, Any]]:
        definition = self._app.registry.get(job.task_name)
        if definition is None:
            message = f"no task named {job.task_name!r} is registered in this worker's app"
            raise _Unusable(error_report(OperationalErrorCode.WORKER_RESOLUTION_ERROR, message))
        try:
            args, kwargs = definition.codec.decode_call(job.args, job.kwargs)
        except (TaskStopped, asyncio.CancelledError):
            raise
        except BaseException as exc:  # validators are user code, and a row may hold anything
            message = f"the stored arguments do not fit the task: {exception_text(exc)}"
            report = error_report(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message, exception_data(exc))
            raise _Unusable(report) from None
        return definition, args, kwargs

    def _conclude(self, definition: DefinitionLike, value: object) -> Report:
        try:
            encoded = definition.codec.encode_outcome(value, limits=self._limits)
        except (TaskStopped, asyncio.CancelledError):
            raise
        except BaseException as exc:  # SystemExit out of a serializer
            return error_report(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, exception_text(exc))
        error = encoded.error
        if error is None:
            return Report(OutcomeKind.OK, encoded.json)
        if inspect.iscoroutine(value):
            value.close()  # or it complains that nobody awaited it
        after = error.retry_after_ms
        return Report(
            OutcomeKind.ERR,
            encoded.json,
            short(str(error.error_code), 200),
            short(str(error.message)),
            retry_after_ms=None if after is None else min(after, _MAX_RETRY_AFTER_MS),
        )


def error_report(code: str, message: str, data: Any = None) -> Report:
    return Report(OutcomeKind.ERR, encode_error(TaskError(code, message, data)), str(code), short(message))


def stopped_report(stop: StopCode, report: Report | None, exc: BaseException | None = None) -> Report:
    """The report of an attempt that was asked to stop.

    An ok result stands: the work is done, and dropping it would do it twice. Everything else that ends
    after the request counts as the answer to it; what user code said goes into `data`.
    """
    if report is not None and report.kind is OutcomeKind.OK:
        return report
    kind, code, message = _STOPS[stop]
    data: object = None
    if report is not None:
        data = {"error_code": report.error_code, "message": report.error_message}
    elif exc is not None:
        data = exception_data(exc)
    reason = message if kind is OutcomeKind.INTERRUPTED else None
    return Report(kind, encode_error(TaskError(code, message, data)), str(code), message, reason)
