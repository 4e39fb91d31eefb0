"""How one attempt ended: the one value that travels from the child's report, or from its death, to the task's row."""

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from horsies.codec import encode_error
from horsies.errors import ContractCode
from horsies.result import TaskError
from horsies_worker.child.error_text import short

CONTINUES: Final = '{"continue":'
"""The beginning of the result of a task that continues as a workflow."""


class OutcomeKind(StrEnum):
    OK = "OK"
    """User code returned an ok result."""
    ERR = "ERR"
    """User code returned an err, raised, or could not be called."""
    CRASHED = "CRASHED"
    """The child died while this job ran. `failed_reason` says how."""
    TIMEOUT = "TIMEOUT"
    CANCELLED = "CANCELLED"
    """Stopped on request; `started_mono` is None when user code never began."""
    INTERRUPTED = "INTERRUPTED"
    """Stopped because the worker shuts down."""


@dataclass(slots=True)
class Outcome:
    """The child fills in everything but the process, which the parent adds.

    Times are `time.monotonic()`, a clock that parent and child share.
    """

    kind: OutcomeKind
    result: str
    error_code: str | None = None
    error_message: str | None = None
    failed_reason: str | None = None
    retry_after_ms: int | None = None
    started_mono: float | None = None
    finished_mono: float = 0.0
    pid: int | None = None
    process_name: str = ""
    returned: object = None
    """What user code returned, and the exception that it raised: in the child alone, for middleware."""
    exception: BaseException | None = None


def outside_of_workflows(outcome: "Outcome") -> "Outcome":
    """The outcome of a task that is no node of a workflow: it cannot continue as one."""
    if outcome.kind is not OutcomeKind.OK or not (outcome.result or "").startswith(CONTINUES):
        return outcome
    message = "the task returned Continue, and is no node of a workflow: start the workflow from the task instead"
    code = ContractCode.RETURN_TYPE_MISMATCH
    text = encode_error(TaskError(code, message))
    return replace(outcome, kind=OutcomeKind.ERR, result=text, error_code=str(code), error_message=message)


def error_outcome(code: str, message: str, data: object = None) -> Outcome:
    return Outcome(OutcomeKind.ERR, encode_error(TaskError(code, message, data)), str(code), short(message))
