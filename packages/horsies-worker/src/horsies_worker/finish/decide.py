"""Decides what becomes of a task when an attempt has ended: outcome and retry policy make one transition. Pure.

The statement in finalize.sql may still change it, for four things that only the row knows: a cancel request, the
deadline, the retry budget and the number of crashes.
"""

from collections.abc import Callable
from typing import Final, assert_never

from horsies.codec import encode_error
from horsies.errors import OperationalErrorCode
from horsies.options import TaskOptions
from horsies.result import CONTINUES, NO_VALUE, TaskError
from horsies.status import AttemptOutcome, TaskStatus
from horsies_worker.child.outcome import Outcome, OutcomeKind
from horsies_worker.database.transition import Crash, Transition

NO_RETRY: Final = 0
MAX_RETRY_MS: Final = 3650 * 24 * 3_600_000
"""Ten years: user code may ask for any number, but an interval has an end."""


def decide(
    *,
    task_id: str,
    generation: int,
    attempt: int,
    options: TaskOptions,
    budget: int,
    outcome: Outcome,
    started: float | None,
    finished: float,
    random: Callable[[], float],
) -> Transition:
    """Return the transition for this outcome. `started` (None: user code never began) and `finished` are on the
    database's clock."""
    status, recorded, delay = TaskStatus.COMPLETED, AttemptOutcome.COMPLETED, NO_RETRY
    crash: Crash | None = None
    if outcome.kind is not OutcomeKind.OK:
        status, recorded = _end_of(outcome, started)
        crash = _crash(outcome, options)
        may_retry = status is TaskStatus.FAILED and (attempt <= budget or crash is not None)
        policy = options.retry_policy if may_retry else None
        code = outcome.error_code
        if policy is not None and code is not None and (crash is not None or policy.allows(code)):
            status = TaskStatus.PENDING
            asked = outcome.retry_after_ms
            delay = min(asked, MAX_RETRY_MS) if asked is not None else policy.delay_ms(attempt, random)
            if crash is not None:
                delay += outcome.apart_ms
        elif outcome.kind is OutcomeKind.SNOOZED:
            delay = min(outcome.retry_after_ms or 1, MAX_RETRY_MS)
    # By position: this runs once per task.
    end = Transition(task_id, generation, attempt, status, outcome, recorded, delay, budget, started, finished, crash)
    if not options.store_result:
        end.drops_value = _is_value(outcome)
    return end


def _crash(outcome: Outcome, options: TaskOptions) -> Crash | None:
    """What the row needs to count this crash against the policy's `max_crashes`; None without that."""
    limit = options.retry_policy.max_crashes if options.retry_policy is not None else None
    if limit is None or outcome.kind not in (OutcomeKind.CRASHED, OutcomeKind.INTERRUPTED):
        return None
    if outcome.kind is OutcomeKind.INTERRUPTED or not outcome.is_counted:
        return Crash(0, "")  # a shutdown, or a kill that was meant for another task, says nothing about this one
    times = "once, and its policy allows no crash" if limit == 1 else f"{limit} times, as often as its policy allows"
    last = outcome.failed_reason or outcome.error_message or "its reason is not known"
    message = f"the process of the task has died {times}; the last time: {last}"
    error = TaskError(OperationalErrorCode.CRASH_LIMIT, message, {"crashes": limit, "last": last})
    return Crash(limit, encode_error(error))


def _is_value(outcome: Outcome) -> bool:
    """Whether this is a value that `store_result=False` drops. An error is stored, and a graph to continue with; so is
    None, which says all that there is to say of a task without a value."""
    text = outcome.result
    return outcome.kind is OutcomeKind.OK and text != NO_VALUE and not text.startswith(CONTINUES)


def _end_of(outcome: Outcome, started: float | None) -> tuple[TaskStatus, AttemptOutcome | None]:
    match outcome.kind:
        case OutcomeKind.OK:
            return TaskStatus.COMPLETED, AttemptOutcome.COMPLETED
        case OutcomeKind.ERR | OutcomeKind.TIMEOUT:
            return TaskStatus.FAILED, AttemptOutcome.FAILED
        case OutcomeKind.CANCELLED:
            return TaskStatus.CANCELLED, None if started is None else AttemptOutcome.FAILED
        case OutcomeKind.CRASHED | OutcomeKind.INTERRUPTED:
            # Such an attempt counts, but is retried only where the policy lists WORKER_CRASHED or has `max_crashes`.
            assert outcome.error_code == OperationalErrorCode.WORKER_CRASHED, outcome.error_code
            return TaskStatus.FAILED, AttemptOutcome.WORKER_FAILURE
        case OutcomeKind.SNOOZED:
            return TaskStatus.PENDING, None  # no attempt: nothing is recorded
        case _:
            assert_never(outcome.kind)
