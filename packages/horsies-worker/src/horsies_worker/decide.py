"""What becomes of a task when an attempt ended: (what we know of it, how it ended) -> one transition. Pure.

The row has the last word on three things that only it knows (cancel wanted, deadline, budget); see finalize.sql.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, assert_never

from horsies.errors import OperationalErrorCode
from horsies.options import TaskOptions
from horsies.status import AttemptOutcome, TaskStatus
from horsies_worker.jobs import Outcome, OutcomeKind

NO_RETRY: Final = 0
MAX_RETRY_MS: Final = 3650 * 24 * 3_600_000
"""Ten years: user code may ask for any number, an interval has an end."""


@dataclass(slots=True)
class Transition:
    """One row's worth of `finalize_batch`. `outcome` None: it never started and leaves no attempt."""

    task_id: str
    generation: int
    attempt: int
    status: TaskStatus
    result: str
    error_code: str | None
    error_message: str | None
    failed_reason: str | None
    outcome: AttemptOutcome | None
    retry_delay_ms: int
    budget: int
    started: float | None
    """When user code began, in seconds since 1970 by the database's clock; None: as the row says."""
    finished: float
    pid: int | None
    process_name: str

    @property
    def is_ok(self) -> bool:
        """User code returned ok: there is nothing that the row could object to."""
        return self.outcome is AttemptOutcome.COMPLETED

    @property
    def size(self) -> int:
        """About how many bytes it sends."""
        return len(self.result) + len(self.error_message or "") + len(self.failed_reason or "") + 300


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
    """The transition for an attempt that ended like this; `started` and `finished` on the database's clock."""
    if outcome.kind is OutcomeKind.OK:  # once per task: without the table, and by position, it takes half the time
        return Transition(
            task_id, generation, attempt, TaskStatus.COMPLETED, outcome.result, None, None, None,
            AttemptOutcome.COMPLETED, NO_RETRY, budget, started, finished, outcome.pid, outcome.process_name,
        )  # fmt: skip
    status, recorded = _end_of(outcome)
    delay = NO_RETRY
    if status is TaskStatus.FAILED and attempt <= budget:
        policy = options.retry_policy
        if policy is not None and outcome.error_code is not None and policy.allows(outcome.error_code):
            status = TaskStatus.PENDING
            asked = outcome.retry_after_ms
            delay = min(asked, MAX_RETRY_MS) if asked is not None else policy.delay_ms(attempt, random)
    return Transition(
        task_id=task_id,
        generation=generation,
        attempt=attempt,
        status=status,
        result=outcome.result,
        error_code=outcome.error_code,
        error_message=outcome.error_message,
        failed_reason=outcome.failed_reason,
        outcome=recorded,
        retry_delay_ms=delay,
        budget=budget,
        started=started,
        finished=finished,
        pid=outcome.pid,
        process_name=outcome.process_name,
    )


def _end_of(outcome: Outcome) -> tuple[TaskStatus, AttemptOutcome | None]:
    match outcome.kind:
        case OutcomeKind.OK:
            return TaskStatus.COMPLETED, AttemptOutcome.COMPLETED
        case OutcomeKind.ERR | OutcomeKind.TIMEOUT:
            return TaskStatus.FAILED, AttemptOutcome.FAILED
        case OutcomeKind.CANCELLED:
            started = outcome.started_mono is not None
            return TaskStatus.CANCELLED, AttemptOutcome.FAILED if started else None
        case OutcomeKind.CRASHED | OutcomeKind.INTERRUPTED:
            # user code did not end it: counted, and retried only where the policy lists WORKER_CRASHED
            assert outcome.error_code == OperationalErrorCode.WORKER_CRASHED, outcome.error_code
            return TaskStatus.FAILED, AttemptOutcome.WORKER_FAILURE
        case _:
            assert_never(outcome.kind)
