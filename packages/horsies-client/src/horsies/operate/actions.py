"""Retry and cancel with a reason for each task that was left alone; for the command line and the dashboard."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from horsies.operate.broker import PostgresBroker
from horsies.operate.views import RetryResult
from horsies.status import CancelResult

NO_SUCH_TASK: Final = "there is no such task"
NOT_RETRIED: Final = {
    RetryResult.NOT_ENDED: "it has not ended",
    RetryResult.SUCCEEDED: "it is COMPLETED; send a new one to repeat it",
    RetryResult.IN_WORKFLOW: "it belongs to a workflow: retry that",
    RetryResult.REPLACED: "it belongs to a workflow, as a former task of one of its nodes: retry the workflow",
    RetryResult.KEY_TAKEN: "a live task holds its unique key: cancel or await that one first",
    RetryResult.NOT_QUARANTINED: "it is not in quarantine",
    RetryResult.CHANGED: "it changed meanwhile: look again",
    RetryResult.NOT_FOUND: NO_SUCH_TASK,
}
NOT_CANCELLED: Final = {CancelResult.ALREADY_ENDED: "it has ended already", CancelResult.NOT_FOUND: NO_SUCH_TASK}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an action did, to how many."""

    done: int
    asked: int = 0
    """Requests that a worker or a scheduler still has to carry out."""
    not_done: tuple[tuple[str, str], ...] = ()
    """The ids that were left alone, each with the reason."""


async def retry(broker: PostgresBroker, ids: Sequence[str], ended_before: datetime | None = None) -> Outcome:
    """Run each task again that can be; see `PostgresBroker.retry_tasks`."""
    results = await broker.retry_tasks(ids, ended_before=ended_before)
    left = {one: NOT_RETRIED[results[one]] for one in ids if results[one] in NOT_RETRIED}
    in_workflows = [one for one in left if results[one] in (RetryResult.IN_WORKFLOW, RetryResult.REPLACED)]
    for one, state in (await broker.get_task_states(in_workflows) if in_workflows else {}).items():
        left[one] = state.why_not_alone or left[one]
    return Outcome(len(results) - len(left), not_done=tuple(left.items()))


async def cancel(
    broker: PostgresBroker, ids: Sequence[str], on_wait: Callable[[str], None] = lambda _: None
) -> Outcome:
    """Cancel waiting tasks, and ask the workers of running ones to stop them. `on_wait` gets a text when another
    transaction holds some of them, for which it waits a few seconds."""
    results, held = await broker.cancel_within(ids, on_wait=on_wait)
    left = {one: NOT_CANCELLED[result] for one, result in results.items() if result in NOT_CANCELLED}
    asked = sum(result is CancelResult.REQUESTED for result in results.values())
    return Outcome(len(results) - len(left) - asked, asked, tuple((left | held).items()))
