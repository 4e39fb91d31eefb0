"""Sentry: reports failed tasks, with a scope of their own for each attempt. `docs/guides/tracing.md` explains it.

    app = Horsies(AppConfig(..., middleware=[Sentry()]))

    @app.on_child_start
    def report() -> None:
        sentry_sdk.init(dsn=..., traces_sample_rate=0.1)

It needs `horsies-client[sentry]`. A failure in this code never reaches a task or a send; the first one is logged.
"""

import atexit
import logging
import os
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, cast

from horsies.context import BatchCall, TaskContext
from horsies.errors import TaskSendError
from horsies.metadata import NODE, RESERVED, TRACE, WORKFLOW
from horsies.middleware import AttemptEnd, Middleware, Outgoing
from horsies.result import TaskError, TaskResult

try:
    import sentry_sdk
    from sentry_sdk.integrations.logging import ignore_logger
    from sentry_sdk.scope import Scope, use_isolation_scope, use_scope
    from sentry_sdk.utils import event_from_exception
except ImportError as error:
    raise ImportError("horsies.contrib.sentry needs sentry-sdk: pip install 'horsies-client[sentry]'") from error

ORIGIN: Final = "auto.queue.horsies"
FLUSH_S: Final = 2.0
ATTEMPTS_LOGGER: Final = "horsies.worker.attempts"
_HEADERS: Final = {"sentry-trace": "sentry-trace", "baggage": "sentry-baggage"}
"""Sentry's headers by their names in the metadata: `baggage` belongs to OpenTelemetry there."""

_log = logging.getLogger("horsies")


def _returned_error(end: AttemptEnd) -> TaskError | None:
    """The error that the task returned; user code may have put anything in its place."""
    error = None if end.result is None else cast("object", end.result.err)
    return error if isinstance(error, TaskError) else None


@dataclass(slots=True)
class _Scopes:
    """What an attempt collected: tags, breadcrumbs and the trace. The tasks of one call of a batch task share it."""

    isolation: Scope
    current: Scope
    captured: BaseException | None = None


class Sentry(Middleware):
    """Reports an attempt that raised or timed out, when the task has failed for good.

    `capture_retried`: also attempts that will be tried again. `capture_returned`: also `TaskResult(err=...)`.
    `local_variables`: with the local variables of the stack, among which are the task's arguments; without it they do
    not leave the process, also where `include_local_variables` of the SDK is on.
    """

    def __init__(
        self,
        *,
        capture_retried: bool = False,
        capture_returned: bool = False,
        local_variables: bool = False,
        flush_s: float = FLUSH_S,
    ) -> None:
        # The worker logs each final failure too, which the SDK would report once more.
        ignore_logger(ATTEMPTS_LOGGER)
        self._capture_retried = capture_retried
        self._capture_returned = capture_returned
        self._local_variables = local_variables
        self._flush_s = flush_s
        self._flushing_in: int | None = None
        self._has_failed = False

    # -- sends ----------------------------------------------------------------------------------------

    def on_send(self, task: Outgoing) -> None:
        try:
            if not sentry_sdk.get_client().is_active():
                return
            given: object = task.metadata.get(TRACE)
            carrier = dict(cast("Mapping[str, Any]", given)) if isinstance(given, Mapping) else {}
            for name, value in zip(
                _HEADERS.values(), (sentry_sdk.get_traceparent(), sentry_sdk.get_baggage()), strict=True
            ):
                carrier.pop(name, None)
                if value:
                    carrier[name] = value
            if carrier:
                task.metadata[TRACE] = carrier
        except Exception:
            self._contain("the trace of a send could not be written")

    def on_sent(self, task: Outgoing, error: TaskSendError | None) -> None:
        try:
            if error is not None:
                sentry_sdk.add_breadcrumb(category="horsies", level="error", message=f"send of {task.name}: {error}")
        except Exception:
            self._contain("a breadcrumb could not be written")

    # -- attempts -------------------------------------------------------------------------------------

    def run_task(
        self, ctx: TaskContext, call: "Callable[[], TaskResult[Any, TaskError]]"
    ) -> "TaskResult[Any, TaskError]":
        with self._attempt(ctx) as note:
            result = call()
            note(result)
            return result

    async def run_task_async(
        self, ctx: TaskContext, call: "Callable[[], Awaitable[TaskResult[Any, TaskError]]]"
    ) -> "TaskResult[Any, TaskError]":
        with self._attempt(ctx) as note:
            result = await call()
            note(result)
            return result

    @contextmanager
    def _attempt(self, ctx: TaskContext) -> Generator[Callable[[object], None], None, None]:
        """The scope and the transaction of one attempt. Yields a function for what the task returned."""
        with ExitStack() as stack:
            transaction: Any = None
            try:
                self._flush_at_exit()
                isolation = stack.enter_context(sentry_sdk.isolation_scope())
                isolation.clear_breadcrumbs()
                _describe(isolation, ctx)
                continued = sentry_sdk.continue_trace(
                    _headers(ctx), op="queue.process", name=ctx.task_name, source="task", origin=ORIGIN
                )
                transaction = stack.enter_context(
                    sentry_sdk.start_transaction(
                        continued, custom_sampling_context={"horsies": {"task": ctx.task_name, "queue": ctx.queue_name}}
                    )
                )
                transaction.set_data("messaging.message.id", ctx.task_id)
                transaction.set_data("messaging.destination.name", ctx.queue_name)
                transaction.set_data("messaging.message.retry.count", ctx.attempt - 1)
                isolation.set_transaction_name(ctx.task_name, source="task")
                ctx.state[self] = _Scopes(isolation, sentry_sdk.get_current_scope())
            except Exception:
                self._contain("the scope of an attempt could not be made")

            def note(result: object) -> None:
                try:
                    if transaction is not None:
                        is_ok = isinstance(result, TaskResult) and cast("TaskResult[Any, Any]", result).err is None
                        transaction.set_status("ok" if is_ok else "internal_error")
                except Exception:
                    self._contain("the end of an attempt could not be recorded")

            yield note

    @contextmanager
    def batch_scope(self, call: BatchCall) -> Generator[None]:
        with ExitStack() as stack:
            try:
                self._flush_at_exit()
                isolation = stack.enter_context(sentry_sdk.isolation_scope())
                isolation.clear_breadcrumbs()
                isolation.set_tag("horsies.task", call.task_name)
                isolation.set_tag("horsies.queue", call.tasks[0].queue_name)
                isolation.set_context("horsies", {"task_ids": [task.task_id for task in call.tasks]})
                stack.enter_context(
                    sentry_sdk.start_transaction(
                        op="queue.process", name=call.task_name, source="task", origin=ORIGIN,
                        custom_sampling_context={
                            "horsies": {"task": call.task_name, "queue": call.tasks[0].queue_name}
                        },
                    )
                )  # fmt: skip
                isolation.set_transaction_name(call.task_name, source="task")
                scopes = _Scopes(isolation, sentry_sdk.get_current_scope())
                for task in call.tasks:
                    task.state[self] = scopes
            except Exception:
                self._contain("the scope of a call could not be made")
            yield

    def on_attempt_end(self, end: AttemptEnd) -> None:
        if end.outcome not in ("error", "timeout") or (end.retry_expected and not self._capture_retried):
            return
        scopes: _Scopes | None = end.context.state.pop(self, None)
        if scopes is None:  # its arguments did not fit: the task was not called
            return
        if end.exception is not None and scopes.captured is end.exception:
            return  # of another task in the same call of a batch task
        scopes.captured = end.exception
        with use_isolation_scope(scopes.isolation), use_scope(scopes.current):
            if end.exception is not None:
                self._capture(end.exception, end)
            elif self._capture_returned and (failure := _returned_error(end)) is not None:
                sentry_sdk.capture_event(
                    {
                        "message": f"{end.context.task_name}: {failure.error_code}: {failure.message}",
                        "level": "error",
                        "logger": "horsies",
                        "fingerprint": ["horsies", end.context.task_name, str(failure.error_code)],
                    }
                )

    def _capture(self, error: BaseException, end: AttemptEnd) -> None:
        event, hint = event_from_exception(
            (type(error), error, _of_user_code(error.__traceback__)),
            client_options=sentry_sdk.get_client().options,
            mechanism={"type": "horsies", "handled": False},
        )
        event["tags"] = {"horsies.outcome": end.outcome, "horsies.retry_expected": str(end.retry_expected).lower()}
        if not self._local_variables:
            _leave_out_variables(event)
        sentry_sdk.capture_event(event, hint=hint)

    def _flush_at_exit(self) -> None:
        """The SDK's own exit function is lost in a child that was forked after `init`."""
        if self._flushing_in != os.getpid():
            self._flushing_in = os.getpid()
            atexit.register(sentry_sdk.flush, timeout=self._flush_s)

    def _contain(self, what: str) -> None:
        if not self._has_failed:
            self._has_failed = True
            _log.exception("sentry: %s; tasks and sends are not affected, and this is logged once", what)


def _describe(scope: Scope, ctx: TaskContext) -> None:
    scope.set_tag("horsies.task", ctx.task_name)
    scope.set_tag("horsies.queue", ctx.queue_name)
    scope.set_tag("horsies.attempt", ctx.attempt)
    told: dict[str, Any] = {
        "task_id": ctx.task_id,
        "attempt": ctx.attempt,
        "metadata": {key: value for key, value in ctx.metadata.items() if not key.startswith(RESERVED)},
    }
    told |= {name: ctx.metadata[key] for key, name in ((WORKFLOW, "workflow"), (NODE, "node")) if key in ctx.metadata}
    scope.set_context("horsies", told)


def _headers(ctx: TaskContext) -> dict[str, Any]:
    carrier: object = ctx.metadata.get(TRACE)
    if not isinstance(carrier, Mapping):
        return {}
    found = cast("Mapping[str, object]", carrier)
    return {header: found[name] for header, name in _HEADERS.items() if isinstance(found.get(name), str)}


def _leave_out_variables(event: Any) -> None:
    for value in event["exception"]["values"]:
        stack: Any = value.get("stacktrace")
        for frame in stack["frames"] if stack else ():
            frame.pop("vars", None)


def _of_user_code(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the first frame that is not of horsies: those above it have the arguments as variables."""
    found = trace
    while found is not None and str(found.tb_frame.f_globals.get("__name__")).startswith(
        ("horsies.", "horsies_worker.")
    ):
        found = found.tb_next
    return found or trace
