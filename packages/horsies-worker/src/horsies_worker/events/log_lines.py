"""Log lines of attempts: WARNING when a failed one is retried, ERROR with the traceback when it is final.

With `--log-tasks` every success is a line at INFO. A cancelled task is no error, and neither is a snooze.
`docs/guides/workers.md` has the table of levels, and the fields of a JSON line.
"""

import logging
from typing import Final

from horsies._text import Lines, one_line, plural
from horsies.events import AttemptFailed, AttemptSnoozed, AttemptSucceeded, TaskQuarantined
from horsies.metadata import RESERVED, decode
from horsies_worker.events.bus import EventBus
from horsies_worker.output.log_context import about, indented, log

attempts: Final = logging.getLogger("horsies.worker.attempts")
"""A logger of its own: a tool that reports attempts from inside the child (`horsies.contrib.sentry`) leaves it out, or
each failure would be reported twice. Crashes are logged by the worker's, because a child that died reports nothing."""

_ENDED: Final = {
    "error": "failed",
    "timeout": "timed out",
    "cancelled": "was cancelled",
    "crashed": "crashed",
    "interrupted": "was interrupted by the shutdown",
}


def subscribe(bus: EventBus, *, log_tasks: bool) -> None:
    bus.subscribe(AttemptFailed, _failed)
    bus.subscribe(AttemptSnoozed, _snoozed)
    bus.subscribe(TaskQuarantined, _quarantined)
    if log_tasks or attempts.isEnabledFor(logging.DEBUG):
        bus.subscribe(AttemptSucceeded, _Succeeded(logging.INFO if log_tasks else logging.DEBUG))


class _Succeeded:
    def __init__(self, level: int) -> None:
        self._level = level

    def __call__(self, event: AttemptSucceeded) -> None:
        extra = about(
            event.task_id, event.task_name, event.attempt, queue=event.queue_name, duration_s=event.duration_s,
            wait_s=event.wait_s, metadata=_shown(event.metadata), will_retry=False,
        )  # fmt: skip
        attempts.log(
            self._level, "task %s (%s) attempt %d: succeeded in %.3f s", event.task_id, one_line(event.task_name),
            event.attempt, event.duration_s, extra=extra,
        )  # fmt: skip


def _snoozed(event: AttemptSnoozed) -> None:
    if not attempts.isEnabledFor(logging.INFO):
        return
    extra = about(
        event.task_id, event.task_name, event.attempt, queue=event.queue_name, duration_s=event.duration_s,
        wait_s=event.wait_s, metadata=_shown(event.metadata), will_retry=False,
    )  # fmt: skip
    attempts.info(
        "task %s (%s) attempt %d: snoozed after %.3f s, runs again in %.3g s (snooze %d)", event.task_id,
        one_line(event.task_name), event.attempt, event.duration_s, event.delay_s, event.snoozes, extra=extra,
    )  # fmt: skip


def _quarantined(event: TaskQuarantined) -> None:
    log.error(
        "task %s attempt %d: CRASH_LIMIT, its process has died %s, and it is not retried: %s; look at it with "
        "`horsies tasks show`, then `horsies quarantine release` or `purge`",
        event.task_id, event.attempt, plural(event.crashes, "time"), one_line(event.reason),
        extra=about(event.task_id, attempt=event.attempt, error_code="CRASH_LIMIT", will_retry=False),
    )  # fmt: skip


def _failed(event: AttemptFailed) -> None:
    if event.kind == "cancelled":
        level = logging.INFO
    elif event.will_retry:
        level = logging.WARNING
    else:
        level = logging.ERROR
    logger = log if event.kind == "crashed" else attempts
    if not logger.isEnabledFor(level):
        return
    extra = about(
        event.task_id, event.task_name, event.attempt, queue=event.queue_name, duration_s=event.duration_s,
        wait_s=event.wait_s, error_code=event.error_code, will_retry=event.will_retry,
        metadata=_shown(event.metadata),
    )  # fmt: skip
    text = f"{event.error_code}: {event.message}" if event.message else str(event.error_code)
    what = _ENDED[event.kind]
    if event.duration_s is not None:
        what += f" after {event.duration_s:.3f} s"
    if event.will_retry:
        what += f", will be retried in {event.retry_delay_s:.3g} s"
    traceback = ""
    if level == logging.ERROR and event.traceback:
        extra["traceback"] = event.traceback
        traceback = indented(event.traceback)
    logger.log(
        level, "task %s (%s) attempt %d: %s: %s%s", event.task_id, one_line(event.task_name), event.attempt, what,
        one_line(text), Lines(traceback) if traceback else "", extra=extra,
    )  # fmt: skip


def _shown(metadata: str | None) -> dict[str, object] | None:
    """The metadata of a log line: what users gave, without the trace context."""
    shown = {key: value for key, value in decode(metadata).items() if not key.startswith(RESERVED)}
    return shown or None
