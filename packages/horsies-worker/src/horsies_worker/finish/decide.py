"""Decides what becomes of a task when an attempt has ended: outcome and retry policy make one transition. Pure.

The statement in finalize.sql may still change it, for three things that only the row knows: a cancel request, the
deadline and the retry budget.
"""

from collections.abc import Callable
from typing import Final, assert_never

from horsies.errors import OperationalErrorCode
from horsies.options import TaskOptions
from horsies.status import AttemptOutcome, TaskStatus
from horsies_worker.child.outcome import Outcome, OutcomeKind
from horsies_worker.database.transition import Transition

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
    if outcome.kind is not OutcomeKind.OK:
        status, recorded = _end_of(outcome, started)
        policy = options.retry_policy if status is TaskStatus.FAILED and attempt <= budget else None
        if policy is not None and outcome.error_code is not None and policy.allows(outcome.error_code):
            status = TaskStatus.PENDING
            asked = outcome.retry_after_ms
            delay = min(asked, MAX_RETRY_MS) if asked is not None else policy.delay_ms(attempt, random)
    # By position: this runs once per task.
    return Transition(task_id, generation, attempt, status, outcome, recorded, delay, budget, started, finished)


def _end_of(outcome: Outcome, started: float | None) -> tuple[TaskStatus, AttemptOutcome | None]:
    match outcome.kind:
        case OutcomeKind.OK:
            return TaskStatus.COMPLETED, AttemptOutcome.COMPLETED
        case OutcomeKind.ERR | OutcomeKind.TIMEOUT:
            return TaskStatus.FAILED, AttemptOutcome.FAILED
        case OutcomeKind.CANCELLED:
            return TaskStatus.CANCELLED, None if started is None else AttemptOutcome.FAILED
        case OutcomeKind.CRASHED | OutcomeKind.INTERRUPTED:
            # Such an attempt counts, but is retried only where the policy lists WORKER_CRASHED.
            assert outcome.error_code == OperationalErrorCode.WORKER_CRASHED, outcome.error_code
            return TaskStatus.FAILED, AttemptOutcome.WORKER_FAILURE
        case _:
            assert_never(outcome.kind)
