"""OpenTelemetry: spans for sends and attempts, by the semantic conventions for messaging. `docs/guides/tracing.md`.

    app = Horsies(AppConfig(..., middleware=[Tracing()]))

It needs `horsies-client[otel]`, which is the API of OpenTelemetry alone: without an SDK nothing is recorded. A failure
in this code or in the SDK never reaches a task or a send; the first one is logged.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final, cast

from horsies.context import BatchCall, TaskContext, TaskStopped
from horsies.errors import ContractCode, OutcomeCode, TaskSendError
from horsies.metadata import NODE, TRACE, WORKFLOW
from horsies.middleware import Middleware, Outgoing
from horsies.result import TaskError, TaskResult

try:
    from opentelemetry import context as otel_context, propagate, trace
    from opentelemetry.context import Context
    from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, TracerProvider
    from opentelemetry.util.types import AttributeValue
except ImportError as error:
    raise ImportError(
        "horsies.contrib.opentelemetry needs opentelemetry: pip install 'horsies-client[otel]'"
    ) from error

SYSTEM: Final = "horsies"
SCHEMA_URL: Final = "https://opentelemetry.io/schemas/1.27.0"
"""The version of the conventions by which the attributes are named."""
BATCH: Final = "horsies-batch"
"""Beside the headers of the propagator: how many tasks the send wrote."""

_DONE: Final[TaskResult[Any, TaskError]] = TaskResult(ok=None)
"""The result of a call of a batch task that returned: its tasks have their own."""

_log = logging.getLogger("horsies")


@dataclass(slots=True)
class _Attempt:
    """The span of a running attempt, which is the current one until `token` is given back."""

    span: Span
    token: Any


class Tracing(Middleware):
    """Spans for sends, waits and attempts.

    `send <task>` is a child of the current span, and its context travels in the task's metadata. `process <task>` is
    one attempt: its parent is the send, and it links to it; tasks of one `send_many` have the link alone, each is a
    trace of its own. `wait <task>` is the time between. Nodes of a workflow are children of `start <workflow>`. A call
    of a batch task is one `process <task>`, with a link to each sender.
    """

    def __init__(self, tracer_provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("horsies", None, tracer_provider, SCHEMA_URL)
        self._has_failed = False

    # -- sends ----------------------------------------------------------------------------------------

    def on_send(self, task: Outgoing) -> None:
        try:
            span = self._tracer.start_span(
                f"{_verb(task)} {task.name}", kind=SpanKind.PRODUCER, attributes=_sent_attributes(task)
            )
            task.state[self] = span
            carrier = _carrier_for(task, trace.set_span_in_context(span))
            if carrier or task.is_workflow:  # an empty one makes workers name the run and the node in the metadata
                task.metadata[TRACE] = carrier
            else:
                task.metadata.pop(TRACE, None)
        except Exception:
            self._contain("the span of a send could not be started")

    def on_sent(self, task: Outgoing, error: TaskSendError | None) -> None:
        span: Span | None = task.state.pop(self, None)
        if span is None:  # a repeated try of a send whose span has ended
            return
        try:
            if error is not None:
                span.set_attribute("error.type", str(error.code))
                span.set_status(Status(StatusCode.ERROR, str(error)))
            span.end()
        except Exception:
            self._contain("the span of a send could not be ended")

    # -- attempts -------------------------------------------------------------------------------------

    def run_task(
        self, ctx: TaskContext, call: "Callable[[], TaskResult[Any, TaskError]]"
    ) -> "TaskResult[Any, TaskError]":
        attempt = self._begin(ctx)
        result: TaskResult[Any, TaskError] | None = None
        error: BaseException | None = None
        try:
            result = call()
            return result
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._end(ctx, attempt, result, error)

    async def run_task_async(
        self, ctx: TaskContext, call: "Callable[[], Awaitable[TaskResult[Any, TaskError]]]"
    ) -> "TaskResult[Any, TaskError]":
        attempt = self._begin(ctx)
        result: TaskResult[Any, TaskError] | None = None
        error: BaseException | None = None
        try:
            result = await call()
            return result
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._end(ctx, attempt, result, error)

    @contextmanager
    def batch_scope(self, call: BatchCall) -> Generator[None]:
        """One span for the call, with a link to the sender of each of its tasks: they belong to several traces."""
        attempt = self._begin_call(call)
        error: BaseException | None = None
        try:
            yield
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._end(call, attempt, _DONE, error)

    def _begin_call(self, call: BatchCall) -> _Attempt | None:
        try:
            first = call.tasks[0]
            parents = [propagate.extract(_carrier_of(task), context=Context()) for task in call.tasks]
            senders = [trace.get_current_span(parent).get_span_context() for parent in parents]
            span = self._tracer.start_span(
                f"process {call.task_name}", context=Context(), kind=SpanKind.CONSUMER,
                links=[Link(sender) for sender in senders if sender.is_valid],
                attributes={
                    "messaging.system": SYSTEM, "messaging.destination.name": first.queue_name,
                    "messaging.operation.type": "process", "messaging.operation.name": "process",
                    "messaging.batch.message_count": len(call.tasks), "horsies.task": call.task_name,
                },
            )  # fmt: skip
            return _Attempt(span, otel_context.attach(trace.set_span_in_context(span, Context())))
        except Exception:
            self._contain("the span of a call could not be started")
            return None

    def _begin(self, ctx: TaskContext) -> _Attempt | None:
        try:
            now = time.time_ns()
            carrier = _carrier_of(ctx)
            # Extract into an empty context, so that a span which an earlier task left open in this thread is no parent.
            parent = propagate.extract(carrier, context=Context())
            sender = trace.get_current_span(parent).get_span_context()
            links = [Link(sender)] if sender.is_valid else []
            if BATCH in carrier:
                parent = trace.set_span_in_context(trace.INVALID_SPAN, parent)  # keeps the baggage
            attributes = _attempt_attributes(ctx)
            span = self._tracer.start_span(
                f"process {ctx.task_name}", context=parent, kind=SpanKind.CONSUMER, links=links, start_time=now,
                attributes={**attributes, "messaging.operation.type": "process", "messaging.operation.name": "process"},
            )  # fmt: skip
            inside = trace.set_span_in_context(span, parent)
            self._record_wait(ctx, parent if sender.is_valid and BATCH not in carrier else inside, attributes, now)
            return _Attempt(span, otel_context.attach(inside))
        except Exception:
            self._contain("the span of an attempt could not be started")
            return None

    def _record_wait(
        self, ctx: TaskContext, parent: Context, attributes: Mapping[str, AttributeValue], now: int
    ) -> None:
        """Beside the attempt, under the sender's span; without one, under the attempt's."""
        ready = int(ctx.ready_at * 1_000_000_000)
        # The database's clock may be ahead of this machine's.
        if 0 < ready < now:
            self._tracer.start_span(
                f"wait {ctx.task_name}", context=parent, start_time=ready, attributes=attributes
            ).end(now)  # fmt: skip

    def _end(
        self,
        ctx: TaskContext | BatchCall,
        attempt: _Attempt | None,
        result: "TaskResult[Any, TaskError] | None",
        error: BaseException | None,
    ) -> None:
        if attempt is None:
            return
        try:
            otel_context.detach(attempt.token)
            _record_end(attempt.span, ctx, result, error)
        except Exception:
            self._contain("the end of an attempt could not be recorded")
        finally:
            try:
                attempt.span.end()
            except Exception:
                self._contain("the span of an attempt could not be ended")

    def _contain(self, what: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            _log.exception("tracing: %s; tasks and sends are not affected, and this is logged once", what)


def _verb(task: Outgoing) -> str:
    return "start" if task.is_workflow else "send"


def _sent_attributes(task: Outgoing) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {
        "messaging.system": SYSTEM,
        "messaging.operation.type": "send",
        "messaging.operation.name": _verb(task),
    }
    if task.queue_name is not None:
        found["messaging.destination.name"] = task.queue_name
    if task.is_workflow:
        found |= {"horsies.workflow.name": task.name, "horsies.workflow.id": task.ids[0]}
    else:
        found["horsies.task"] = task.name
        if len(task.ids) == 1:
            found["messaging.message.id"] = task.ids[0]
        else:
            found["messaging.batch.message_count"] = len(task.ids)
    if task.schedule is not None:
        found["horsies.schedule"] = task.schedule
    return found


def _attempt_attributes(ctx: TaskContext) -> dict[str, AttributeValue]:
    found: dict[str, AttributeValue] = {
        "messaging.system": SYSTEM,
        "messaging.destination.name": ctx.queue_name,
        "messaging.message.id": ctx.task_id,
        "horsies.task": ctx.task_name,
        "horsies.attempt": ctx.attempt,
    }
    for key, name in ((WORKFLOW, "horsies.workflow.id"), (NODE, "horsies.workflow.node")):
        if isinstance(value := ctx.metadata.get(key), str):
            found[name] = value
    return found


def _carrier_for(task: Outgoing, context: Context) -> dict[str, Any]:
    """What other middleware wrote stays; the headers of the task in which this send happens do not."""
    given: object = task.metadata.get(TRACE)
    carrier = dict(cast("Mapping[str, Any]", given)) if isinstance(given, Mapping) else {}
    for field in (BATCH, *propagate.get_global_textmap().fields):
        carrier.pop(field, None)
    headers: dict[str, str] = {}
    propagate.inject(headers, context=context)
    if headers and len(task.ids) > 1:
        headers[BATCH] = str(len(task.ids))
    return {**carrier, **headers}


def _carrier_of(ctx: TaskContext) -> dict[str, str]:
    """Other programs may have written the row: only texts are headers."""
    found: object = ctx.metadata.get(TRACE)
    if not isinstance(found, Mapping):
        return {}
    entries = cast("Mapping[str, object]", found)
    return {name: value for name, value in entries.items() if isinstance(value, str)}


def _record_end(
    span: Span, ctx: TaskContext | BatchCall, result: "TaskResult[Any, TaskError] | None", error: BaseException | None
) -> None:
    if error is not None:
        reason = error.reason if isinstance(error, TaskStopped) else ctx.stop_reason
        if isinstance(error, Exception) or reason is None:
            span.record_exception(error)
            span.set_attribute("error.type", _name(error))
            span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
        else:
            span.record_exception(error)
            span.set_attribute("error.type", reason)
            span.set_status(Status(StatusCode.ERROR, f"stopped: {reason}"))
    elif not isinstance(result, TaskResult) or not isinstance(cast("object", result.err), TaskError | None):
        # user code may return anything
        span.set_attribute("error.type", str(ContractCode.RETURN_TYPE_MISMATCH))
        span.set_status(Status(StatusCode.ERROR, "it did not return a TaskResult, or its err is no TaskError"))
    elif result.err is not None and result.err.error_code is OutcomeCode.TASK_SNOOZED:
        span.set_attribute("horsies.snoozed_s", (result.err.retry_after_ms or 0) / 1000)
    elif result.err is not None:
        span.set_attribute("error.type", str(result.err.error_code))
        span.set_status(Status(StatusCode.ERROR, str(result.err.message)))


def _name(error: BaseException) -> str:
    cls = type(error)
    return cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
