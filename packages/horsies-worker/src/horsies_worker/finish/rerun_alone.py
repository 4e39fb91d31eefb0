"""A task of a batch task whose call died runs once more, alone. Pure.

A crash ends all tasks of a call, and one of them may be its cause. Run alone, that one fails alone. The rule holds for
the first attempt, which is the only one that runs together with others. It holds also where the retry policy does not
retry crashes, and takes one retry of its own, so that the policy keeps all of its retries.
"""

from typing import Final

from horsies.errors import OperationalErrorCode
from horsies.options import TaskOptions
from horsies.retry import RetryPolicy
from horsies_worker.child.outcome import Outcome, OutcomeKind

_AT_ONCE: Final = TaskOptions(
    retry_policy=RetryPolicy.fixed(0, 1, auto_retry_for=[OperationalErrorCode.WORKER_CRASHED])
)


def reruns_alone(*, is_batch: bool, attempt: int) -> bool:
    """Whether a crash of this attempt is followed by another one."""
    return is_batch and attempt == 1


def options_of_end(
    outcome: Outcome, options: TaskOptions, budget: int, *, is_batch: bool, attempt: int
) -> tuple[TaskOptions, int]:
    """The options and the retry budget by which `decide` ends this attempt."""
    is_crash = outcome.kind in (OutcomeKind.CRASHED, OutcomeKind.INTERRUPTED)
    if not is_crash or not reruns_alone(is_batch=is_batch, attempt=attempt):
        return options, budget
    return _AT_ONCE, budget + 1
