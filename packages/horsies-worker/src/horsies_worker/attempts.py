"""Starts and ends of attempts: tells the bus of both, and at the end decides what becomes of the task."""

import json
import random
import time
from collections.abc import Sequence
from typing import Any, Final, cast

from horsies.events import AttemptFailed, AttemptStarted, AttemptSucceeded, FailureKind
from horsies.status import TaskStatus
from horsies_worker.child.error_text import MAX_TRACEBACK, short
from horsies_worker.child.jobs import Job
from horsies_worker.child.outcome import Outcome, OutcomeKind, outside_of_workflows
from horsies_worker.claim.claimed_task import OwnedTasks
from horsies_worker.database.clock import DatabaseClock
from horsies_worker.database.transition import Transition
from horsies_worker.events.bus import EventBus
from horsies_worker.finish.decide import decide
from horsies_worker.finish.finalizer import Finalizer

_KINDS: Final[dict[OutcomeKind, FailureKind]] = {
    OutcomeKind.ERR: "error",
    OutcomeKind.TIMEOUT: "timeout",
    OutcomeKind.CANCELLED: "cancelled",
    OutcomeKind.CRASHED: "crashed",
    OutcomeKind.INTERRUPTED: "interrupted",
}


class Attempts:
    def __init__(self, bus: EventBus, clock: DatabaseClock, owned: OwnedTasks, finalizer: Finalizer) -> None:
        self._bus = bus
        self._clock = clock
        self._owned = owned
        self._finalizer = finalizer

    def started(self, jobs: Sequence[Job]) -> None:
        """These jobs go to child processes."""
        if self._bus.wants(AttemptStarted):
            now = self._clock.at(time.monotonic())
            for job in jobs:
                wait_s = max(0.0, now - job.ready_at)
                self._bus.emit(AttemptStarted(job.task_id, job.task_name, job.queue_name, job.attempt, wait_s))

    def ended(self, job: Job, outcome: Outcome) -> None:
        """The pool reports the end of an attempt: hand it to the finalizer."""
        task = self._owned.find(job.task_id, job.generation)
        if task is None:
            return  # the task was lost meanwhile
        if not task.is_workflow_task:
            outcome = outside_of_workflows(outcome)
        began = outcome.started_mono
        end = decide(
            task_id=job.task_id,
            generation=job.generation,
            attempt=job.attempt,
            options=task.options,
            budget=task.max_retries,
            outcome=outcome,
            started=None if began is None else self._clock.at(began),
            finished=self._clock.at(outcome.finished_mono),
            random=random.random,
        )
        self._finalizer.add(end)
        if self._bus.wants(AttemptSucceeded if outcome.kind is OutcomeKind.OK else AttemptFailed):
            self._tell(job, end)

    def _tell(self, job: Job, end: Transition) -> None:
        outcome = end.outcome
        duration_s = wait_s = None
        if end.started is not None:
            duration_s = max(0.0, end.finished - end.started)
            wait_s = max(0.0, end.started - job.ready_at)
        if outcome.kind is OutcomeKind.OK:
            self._bus.emit(
                AttemptSucceeded(
                    job.task_id, job.task_name, job.queue_name, job.attempt, duration_s or 0.0, wait_s or 0.0,
                    job.metadata, outcome.pid,
                )
            )  # fmt: skip
            return
        self._bus.emit(
            AttemptFailed(
                job.task_id, job.task_name, job.queue_name, job.attempt, _KINDS[outcome.kind], outcome.error_code,
                _message(outcome), _traceback(outcome.result),
                end.status is TaskStatus.PENDING, end.retry_delay_ms / 1000, duration_s, wait_s, job.metadata,
                outcome.pid,
            )
        )  # fmt: skip


def _message(outcome: Outcome) -> str | None:
    text = outcome.failed_reason or outcome.error_message
    return None if text is None else short(text)


def _traceback(result: str) -> str | None:
    """The traceback in the stored error of an exception; None for an err that the task returned."""
    if '"traceback"' not in result:
        return None
    try:
        data: Any = json.loads(result)["err"]["data"]
        found = cast("dict[str, Any]", data).get("traceback")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None
    # an err of the task's own may have a text of any length under this name
    return short(found, MAX_TRACEBACK) if isinstance(found, str) else None
