"""Error codes and exceptions.

The four families of codes are the built-in codes of a `TaskError` in a task's result. The exceptions are raised by the
library itself: for a configuration (`ConfigurationError`), a definition (`TaskDefinitionError`), a send
(`TaskSendError`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Protocol


class OperationalErrorCode(StrEnum):
    """Horsies or its environment failed, not the task's own logic."""

    UNHANDLED_EXCEPTION = "UNHANDLED_EXCEPTION"
    TASK_EXCEPTION = "TASK_EXCEPTION"
    WORKER_CRASHED = "WORKER_CRASHED"
    CRASH_LIMIT = "CRASH_LIMIT"
    BROKER_ERROR = "BROKER_ERROR"
    WORKER_RESOLUTION_ERROR = "WORKER_RESOLUTION_ERROR"
    WORKER_SERIALIZATION_ERROR = "WORKER_SERIALIZATION_ERROR"
    RESULT_DESERIALIZATION_ERROR = "RESULT_DESERIALIZATION_ERROR"
    WORKFLOW_ENQUEUE_FAILED = "WORKFLOW_ENQUEUE_FAILED"
    SUBWORKFLOW_LOAD_FAILED = "SUBWORKFLOW_LOAD_FAILED"
    COMPLETION_NOT_COMMITTED = "COMPLETION_NOT_COMMITTED"
    """The task called `complete()` and returned, but the transaction of that call did not commit."""


class ContractCode(StrEnum):
    """A task returned something that its signature or the library forbids."""

    RETURN_TYPE_MISMATCH = "RETURN_TYPE_MISMATCH"
    RESERVED_ERROR_CODE = "RESERVED_ERROR_CODE"


class RetrievalCode(StrEnum):
    """The result could not be read, or not yet; the code says nothing about how the task ends."""

    WAIT_TIMEOUT = "WAIT_TIMEOUT"
    TASK_NOT_FOUND = "TASK_NOT_FOUND"
    WORKFLOW_NOT_FOUND = "WORKFLOW_NOT_FOUND"
    RESULT_NOT_AVAILABLE = "RESULT_NOT_AVAILABLE"
    RESULT_NOT_READY = "RESULT_NOT_READY"


class OutcomeCode(StrEnum):
    """The task or workflow was ended on purpose, without a value."""

    TASK_CANCELLED = "TASK_CANCELLED"
    TASK_EXPIRED = "TASK_EXPIRED"
    TASK_TIMEOUT = "TASK_TIMEOUT"
    TASK_SNOOZED = "TASK_SNOOZED"
    WORKFLOW_PAUSED = "WORKFLOW_PAUSED"
    WORKFLOW_FAILED = "WORKFLOW_FAILED"
    WORKFLOW_CANCELLED = "WORKFLOW_CANCELLED"
    WORKFLOW_SUCCESS_CASE_NOT_MET = "WORKFLOW_SUCCESS_CASE_NOT_MET"
    WORKFLOW_DEADLINE = "WORKFLOW_DEADLINE"
    WORKFLOW_ENDED = "WORKFLOW_ENDED"
    UPSTREAM_SKIPPED = "UPSTREAM_SKIPPED"
    BRANCH_NOT_TAKEN = "BRANCH_NOT_TAKEN"
    SIGNAL_TIMEOUT = "SIGNAL_TIMEOUT"
    COMPENSATION_FAILED = "COMPENSATION_FAILED"
    SUBWORKFLOW_FAILED = "SUBWORKFLOW_FAILED"


_FAMILIES = (OperationalErrorCode, ContractCode, RetrievalCode, OutcomeCode)
BuiltInCode = OperationalErrorCode | ContractCode | RetrievalCode | OutcomeCode

BUILT_IN_CODES: Final[dict[str, BuiltInCode]] = {code.value: code for family in _FAMILIES for code in family}
"""Reserved: recovery and retries rely on them. A task that returns one ends with RESERVED_ERROR_CODE instead."""


class HorsiesError(Exception):
    """Base of every exception that horsies raises."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a configuration or a definition."""

    where: str
    why: str
    fix: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}\n    fix: {self.fix}"


class ConfigurationError(HorsiesError, ValueError):
    """All problems of a configuration, each with its place, the reason and the fix."""

    def __init__(self, problems: list[Problem], *, subject: str = "configuration") -> None:
        self.problems = tuple(problems)
        count = len(problems)
        head = f"{subject}: {count} problem{'s' if count != 1 else ''}"
        super().__init__("\n".join([head, *(f"  - {problem}" for problem in problems)]))


class TaskDefinitionError(HorsiesError, TypeError):
    """A task cannot be registered; raised at import, with file and line."""

    def __init__(self, task_name: str, why: str, fix: str, *, location: str | None = None) -> None:
        self.task_name = task_name
        self.location = location
        at = f" ({location})" if location else ""
        super().__init__(f"task {task_name!r}{at}: {why}\n    fix: {fix}")


class SchemaError(HorsiesError):
    """The database has no horsies tables, this role may not read them, or their revision does not fit this release."""


class BrokerError(HorsiesError):
    """The database could not be reached, or refused a statement. The driver's exception is the cause."""


class UsageError(HorsiesError, RuntimeError):
    """A method was called where it cannot work, such as a blocking one on an event loop."""


class ClaimLostError(HorsiesError):
    """`complete()` wrote nothing: this attempt no longer owns its task, because it was taken for dead, or has ended.

    Let it leave the block of your transaction, which rolls back: another attempt may be doing the same work."""

    def __init__(self, task_id: str, message: str) -> None:
        super().__init__(message)
        self.task_id = task_id


class SendErrorCode(StrEnum):
    VALIDATION_FAILED = "VALIDATION_FAILED"
    """The call is invalid; nothing was written, and sending it again cannot help."""
    ENQUEUE_FAILED = "ENQUEUE_FAILED"
    """The database refused the send, or its answer was lost. `.retry()` is safe where `retryable`."""
    PAYLOAD_MISMATCH = "PAYLOAD_MISMATCH"
    """A different task with this id exists; it was left untouched."""


class TaskSendError(HorsiesError):
    """A send failed. The same tasks, with the same ids, can be sent again where `retryable`."""

    def __init__(
        self,
        code: SendErrorCode,
        message: str,
        *,
        retryable: bool = False,
        task_ids: Sequence[str] = (),
        resend: "Resend | None" = None,
    ) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.retryable = retryable
        self.task_ids = tuple(task_ids)
        self._resend = resend

    @property
    def task_id(self) -> str | None:
        """The id that the task has, or would have had."""
        return self.task_ids[0] if self.task_ids else None

    def retry(self) -> Any:
        """Send the same tasks again and return what the first call would have: a handle, or a list of them."""
        return self._again().send()

    async def retry_async(self) -> Any:
        """See `retry`."""
        return await self._again().send_async()

    def _again(self) -> "Resend":
        if not self.retryable or self._resend is None:
            raise self
        return self._resend


class Resend(Protocol):
    """A send that can be repeated."""

    def send(self) -> Any: ...
    async def send_async(self) -> Any: ...


def error_code_for(exc: BaseException, mapper: Mapping[type[BaseException], str], default: str) -> str:
    """The code of an exception that escapes a task, by its most specific mapped class, in any order of the mapping:
    `{OSError: "IO", ConnectionError: "NET"}` calls a ConnectionResetError "NET"."""
    return next((mapper[cls] for cls in type(exc).__mro__ if cls in mapper), default)
