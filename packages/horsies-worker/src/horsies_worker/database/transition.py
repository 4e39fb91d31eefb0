"""The row change that ends one attempt: `decide` returns it, the finalizer and the recovery write it."""

from dataclasses import dataclass

from horsies.status import AttemptOutcome, TaskStatus
from horsies_worker.child.outcome import Outcome


@dataclass(frozen=True, slots=True)
class Crash:
    """A crash of a task with `max_crashes`. Only the row knows how many there were before."""

    limit: int
    """After so many crashes the task ends; 0: this one is retried and does not count."""
    limit_result: str
    """The result of the task when it ends with this crash."""


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
    crash: "Crash | None" = None
    """Set where the policy has `max_crashes` and the process died."""
    drops_value: bool = False
    """The task's value is not to be stored (`store_result=False`)."""

    @property
    def result(self) -> str | None:
        """What the row of the ended task keeps. A staged row keeps all of `outcome.result`: without a text, the reaper
        would take the attempt for a crash."""
        return None if self.drops_value else self.outcome.result

    @property
    def is_ok(self) -> bool:
        """User code returned ok: no column of the row can change that."""
        return self.recorded is AttemptOutcome.COMPLETED

    @property
    def size(self) -> int:
        """About how many bytes the statement sends for it."""
        outcome = self.outcome
        return len(outcome.result) + len(outcome.error_message or "") + len(outcome.failed_reason or "") + 300
