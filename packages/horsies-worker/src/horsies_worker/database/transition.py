"""The row change that ends one attempt: `decide` returns it, the finalizer and the recovery write it."""

from dataclasses import dataclass

from horsies.status import AttemptOutcome, TaskStatus
from horsies_worker.child.outcome import Outcome


@dataclass(slots=True)
class Transition:
    """One row of `finalize_batch`."""

    task_id: str
    generation: int
    attempt: int
    status: TaskStatus
    """The next state of the task."""
    outcome: Outcome
    recorded: AttemptOutcome | None
    """The outcome in the attempt's row; None when user code never began, which leaves no attempt."""
    retry_delay_ms: int
    budget: int
    started: float | None
    """When user code began, in seconds since 1970 by the database's clock; None takes the start from the row."""
    finished: float

    @property
    def is_ok(self) -> bool:
        """User code returned ok: no column of the row can change that."""
        return self.recorded is AttemptOutcome.COMPLETED

    @property
    def size(self) -> int:
        """About how many bytes the statement sends for it."""
        outcome = self.outcome
        return len(outcome.result) + len(outcome.error_message or "") + len(outcome.failed_reason or "") + 300
