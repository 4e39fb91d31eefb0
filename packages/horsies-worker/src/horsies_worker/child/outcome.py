"""How one attempt ended: the one value that travels from the child's report, or from its death, to the task's row."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from horsies.codec import encode_error
from horsies.envelopes import Envelopes
from horsies.errors import ContractCode, OperationalErrorCode
from horsies.payload_codec import PayloadError
from horsies.result import CONTINUES, TaskError, TaskResult
from horsies.snoozing import Snooze
from horsies_worker.child.error_text import short

NOT_COMMITTED: Final = (
    "the task called complete() and returned, but that was not committed: its transaction, or a savepoint around the "
    "call, was rolled back or never ended, and what was written in it is not there"
)


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
    SNOOZED = "SNOOZED"
    """User code asked to run again after `retry_after_ms`."""


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
    may_be_completed: bool = False
    """The task has called `complete()`: if that transaction has committed, the attempt is COMPLETED already, and this
    outcome is not written. The parent adds it."""
    is_counted: bool = True
    """Of a crash: whether it counts against `max_crashes`. Not where this worker killed the child for another task."""
    apart_ms: int = 0
    """Of a crash: how much longer to wait than the tasks that died in the same process (`children/apart.py`)."""
    returned: object = None
    """What user code returned, and the exception that it raised: in the child alone, for middleware."""
    exception: BaseException | None = None
    members: "Sequence[Outcome] | None" = None
    """Of a call of a batch task that returned: how each member ended. Only in the child, which reports each."""
    is_plain: bool = False
    """In the child alone: its error has no text of user code, and stays readable without the app's payload codec."""


def outside_of_workflows(outcome: "Outcome") -> "Outcome":
    """The outcome of a task that is no node of a workflow: it cannot continue as one."""
    if outcome.kind is not OutcomeKind.OK or not (outcome.result or "").startswith(CONTINUES):
        return outcome
    message = "the task returned Continue, and is no node of a workflow: start the workflow from the task instead"
    code = ContractCode.RETURN_TYPE_MISMATCH
    text = encode_error(TaskError(code, message))
    return replace(outcome, kind=OutcomeKind.ERR, result=text, error_code=str(code), error_message=message)


def unless_completed(outcome: "Outcome", completion: str | None) -> "Outcome":
    """The outcome to be written if the transaction of `complete()` has not committed. `completion` is what it wrote;
    None: the task has not called it.

    An ok result must not be written a second time: without the commit, the work that it stands for was not done."""
    if completion is None or outcome.kind is not OutcomeKind.OK:
        return outcome
    return error_outcome(OperationalErrorCode.COMPLETION_NOT_COMMITTED, NOT_COMMITTED)


def snoozed_outcome(error: Snooze) -> Outcome:
    """The outcome of user code that returned `snooze`. The result is never stored for readers: it is what a worker that
    loses the database leaves in the row, for the one that recovers it."""
    return Outcome(
        OutcomeKind.SNOOZED,
        encode_error(error),
        str(error.error_code),
        error.message,
        retry_after_ms=error.retry_after_ms,
        returned=TaskResult(err=error),
        is_plain=True,
    )


def in_envelopes(outcome: "Outcome", envelopes: Envelopes, task: str) -> "Outcome":
    """The outcome as it is stored: its value or error is encoded by the app's payload codec, if it has one. When that
    fails, an error that says so takes its place: what could not be encoded must not be stored plain."""
    if outcome.is_plain:
        return outcome
    try:
        result = envelopes.wrap_result(outcome.result, task)
        message = None if outcome.error_message is None else envelopes.wrap_message(outcome.error_message, task)
    except Exception as error:  # a MemoryError, or a text that is not JSON
        told = str(error) if isinstance(error, PayloadError) else type(error).__name__
        message = f"the result cannot be stored: {told}"
        text = encode_error(TaskError(OperationalErrorCode.WORKER_SERIALIZATION_ERROR, message))
        code = str(OperationalErrorCode.WORKER_SERIALIZATION_ERROR)
        kind = OutcomeKind.ERR if outcome.kind is OutcomeKind.OK else outcome.kind
        if kind is not OutcomeKind.ERR:  # how it was stopped stands
            code = outcome.error_code or code
            text = encode_error(TaskError(code, message))
        return replace(outcome, kind=kind, result=text, error_code=code, error_message=message)
    if result is outcome.result and message is outcome.error_message:
        return outcome
    return replace(outcome, result=result, error_message=message)


def error_outcome(code: str, message: str, data: object = None) -> Outcome:
    return Outcome(OutcomeKind.ERR, encode_error(TaskError(code, message, data)), str(code), short(message))
