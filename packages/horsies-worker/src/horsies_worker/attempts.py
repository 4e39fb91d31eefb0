"""Starts and ends of attempts: tells the bus of both, and at the end decides what becomes of the task."""

import json
import random
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, cast

from horsies.envelopes import PLAIN_ENVELOPES, Envelopes
from horsies.errors import OperationalErrorCode
from horsies.events import AttemptFailed, AttemptSnoozed, AttemptStarted, AttemptSucceeded, Event, FailureKind
from horsies.snoozing import MAX_COUNT
from horsies.status import TaskStatus
from horsies_worker.child.error_text import MAX_TRACEBACK, short
from horsies_worker.child.jobs import Job
from horsies_worker.child.outcome import Outcome, OutcomeKind, outside_of_workflows
from horsies_worker.claim.claimed_task import OwnedTasks
from horsies_worker.database.clock import DatabaseClock
from horsies_worker.database.transition import Transition
from horsies_worker.events.bus import EventBus
from horsies_worker.finish.decide import NO_RETRY, decide
from horsies_worker.finish.finalizer import Finalizer, Settled
from horsies_worker.finish.rerun_alone import options_of_end
from horsies_worker.output.log_context import about, log

_KINDS: Final[dict[OutcomeKind, FailureKind]] = {
    OutcomeKind.ERR: "error",
    OutcomeKind.TIMEOUT: "timeout",
    OutcomeKind.CANCELLED: "cancelled",
    OutcomeKind.CRASHED: "crashed",
    OutcomeKind.INTERRUPTED: "interrupted",
}


class Attempts:
    def __init__(
        self,
        bus: EventBus,
        clock: DatabaseClock,
        owned: OwnedTasks,
        finalizer: Finalizer,
        envelopes: Envelopes = PLAIN_ENVELOPES,
    ) -> None:
        self._envelopes = envelopes
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
        options, budget = task.options, task.max_retries
        if job.gather is not None:
            options, budget = options_of_end(outcome, options, budget, is_batch=True, attempt=job.attempt)
        end = decide(
            task_id=job.task_id,
            generation=job.generation,
            attempt=job.attempt,
            options=options,
            budget=budget,
            outcome=outcome,
            started=None if began is None else self._clock.at(began),
            finished=self._clock.at(outcome.finished_mono),
            random=random.random,
        )
        if outcome.may_be_completed or (end.crash is not None and end.crash.limit):
            # the row decides how this attempt has ended, or whether it was the last: events tell it afterwards
            settled = partial(self._settled, job, end)
            self._finalizer.add(end, settled, may_be_completed=outcome.may_be_completed)
            return
        self._finalizer.add(end)
        if self._bus.wants(_event_of(outcome)):
            self._tell(job, end)

    def _settled(self, job: Job, end: Transition, settled: Settled) -> None:
        """Tell of an attempt that may have completed itself, or may have been the last crash of its task."""
        outcome = end.outcome
        if settled is Settled.QUARANTINED:
            end = replace(end, status=TaskStatus.FAILED, retry_delay_ms=NO_RETRY)
        if settled is Settled.COMPLETED:
            end = replace(end, outcome=replace(outcome, kind=OutcomeKind.OK))
            if outcome.error_code != OperationalErrorCode.COMPLETION_NOT_COMMITTED:
                log.warning(
                    "task %s (%s) attempt %d completed itself and committed, and ended with %s after that: %s. It "
                    "stays COMPLETED", job.task_id, job.task_name, job.attempt, outcome.error_code or outcome.kind,
                    _message(outcome, self._envelopes), extra=about(job.task_id, job.task_name, job.attempt),
                )  # fmt: skip
        if self._bus.wants(AttemptSucceeded if settled is Settled.COMPLETED else AttemptFailed):
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
        if outcome.kind is OutcomeKind.SNOOZED:
            self._bus.emit(
                AttemptSnoozed(
                    job.task_id, job.task_name, job.queue_name, job.attempt, min(job.snoozes + 1, MAX_COUNT),
                    end.retry_delay_ms / 1000, duration_s or 0.0, wait_s or 0.0, job.metadata, outcome.pid,
                )
            )  # fmt: skip
            return
        self._bus.emit(
            AttemptFailed(
                job.task_id, job.task_name, job.queue_name, job.attempt, _KINDS[outcome.kind], outcome.error_code,
                _message(outcome, self._envelopes), _traceback(self._envelopes.unwrap_result(outcome.result)),
                end.status is TaskStatus.PENDING, end.retry_delay_ms / 1000, duration_s, wait_s, job.metadata,
                outcome.pid,
            )
        )  # fmt: skip


def _event_of(outcome: Outcome) -> type[Event]:
    if outcome.kind is OutcomeKind.OK:
        return AttemptSucceeded
    return AttemptSnoozed if outcome.kind is OutcomeKind.SNOOZED else AttemptFailed


def _message(outcome: Outcome, envelopes: Envelopes) -> str | None:
    text = outcome.failed_reason or envelopes.unwrap_message(outcome.error_message)
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
