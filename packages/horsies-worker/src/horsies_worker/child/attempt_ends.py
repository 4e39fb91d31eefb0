"""Calls the middleware's `on_attempt_end` after an attempt has been reported, on a thread of its own.

A slow hook must hold up neither the next task nor the exit of the process: the queue is bounded, and so is the wait for
it at the end.
"""

import logging
import queue
import threading
import time
from collections.abc import Sequence
from typing import Any, Final, cast

from horsies.context import TaskContext, enter_task, leave_task
from horsies.middleware import AttemptEnd, AttemptOutcomeName, Middleware, overrides
from horsies.registry import Registry
from horsies.result import TaskError, TaskResult
from horsies_worker.child.outcome import Outcome, OutcomeKind

MAX_WAITING: Final = 1_000
CLOSE_S: Final = 2.0
_TELL_EVERY_S: Final = 60.0

_NAMES: Final[dict[OutcomeKind, AttemptOutcomeName]] = {
    OutcomeKind.OK: "ok",
    OutcomeKind.ERR: "error",
    OutcomeKind.TIMEOUT: "timeout",
    OutcomeKind.CANCELLED: "cancelled",
    OutcomeKind.INTERRUPTED: "interrupted",
    OutcomeKind.SNOOZED: "snoozed",
}
_log = logging.getLogger("horsies.worker")


class AttemptEnds:
    def __init__(self, middleware: Sequence[Middleware], registry: Registry) -> None:
        self._hooks = [item for item in reversed(middleware) if overrides(item, "on_attempt_end")]
        self._registry = registry
        self._waiting: queue.Queue[AttemptEnd | None] = queue.Queue(MAX_WAITING)
        self._thread: threading.Thread | None = None
        # the main thread and the event loop's thread may both see their first attempt end at the same moment
        self._starting = threading.Lock()
        self._dropped = 0
        self._told_at = 0.0

    @property
    def is_wanted(self) -> bool:
        return bool(self._hooks)

    def add(self, context: TaskContext, outcome: Outcome, duration_s: float) -> None:
        """Queue the hooks of one attempt; leave them out when too many wait."""
        returned = outcome.returned
        end = AttemptEnd(
            context=context,
            result=cast("TaskResult[Any, TaskError]", returned) if isinstance(returned, TaskResult) else None,
            exception=outcome.exception,
            outcome=_NAMES[outcome.kind],
            duration_s=duration_s,
            retry_expected=self._expects_retry(context, outcome),
        )
        if self._thread is None:
            self._start()
        try:
            self._waiting.put_nowait(end)
        except queue.Full:
            self._dropped += 1
            if time.monotonic() - self._told_at > _TELL_EVERY_S:
                self._told_at = time.monotonic()
                _log.warning("on_attempt_end is too slow: %d calls left out in this process so far", self._dropped)

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._serve, name="horsies-attempt-ends", daemon=True)
                thread.start()
                self._thread = thread

    def close(self) -> None:
        """Wait for the hooks of the last attempts, not for ever."""
        if self._thread is None:
            return
        until = time.monotonic() + CLOSE_S
        try:
            self._waiting.put(None, timeout=CLOSE_S)
            self._thread.join(max(0.0, until - time.monotonic()))
        except queue.Full:
            pass
        if self._thread.is_alive():
            _log.warning(
                "on_attempt_end has not finished within %g s of the exit: the calls of up to %d attempts are left out",
                CLOSE_S, self._waiting.qsize() + 1,
            )  # fmt: skip

    def _expects_retry(self, context: TaskContext, outcome: Outcome) -> bool:
        definition = self._registry.get(context.task_name)
        policy = definition.options.retry_policy if definition is not None else None
        if policy is None or outcome.error_code is None or outcome.kind is OutcomeKind.CANCELLED:
            return False
        return context.attempt <= policy.max_retries and policy.allows(outcome.error_code)

    def _serve(self) -> None:
        while (end := self._waiting.get()) is not None:
            entered = enter_task(end.context)
            for item in self._hooks:
                try:
                    item.on_attempt_end(end)
                except BaseException:  # a SystemExit would end the thread, and with it all later calls
                    _log.exception("%s.on_attempt_end failed; the task is not affected", type(item).__name__)
            leave_task(entered)
