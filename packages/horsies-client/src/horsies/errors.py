"""Everything that can go wrong, by name.

Four families of codes can stand in a `TaskError` (what a task's result says); the exceptions
below are what the library itself raises: at definition (`TaskDefinitionError`), at configuration
(`ConfigurationError`), at send (`TaskSendError` lives in `send.py`, it carries a payload to retry).
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class OperationalErrorCode(StrEnum):
    """The machinery failed, not the task's own logic."""

    UNHANDLED_EXCEPTION = "UNHANDLED_EXCEPTION"
    TASK_EXCEPTION = "TASK_EXCEPTION"
    WORKER_CRASHED = "WORKER_CRASHED"
    BROKER_ERROR = "BROKER_ERROR"
    WORKER_RESOLUTION_ERROR = "WORKER_RESOLUTION_ERROR"
    WORKER_SERIALIZATION_ERROR = "WORKER_SERIALIZATION_ERROR"
    RESULT_DESERIALIZATION_ERROR = "RESULT_DESERIALIZATION_ERROR"
    WORKFLOW_ENQUEUE_FAILED = "WORKFLOW_ENQUEUE_FAILED"
    SUBWORKFLOW_LOAD_FAILED = "SUBWORKFLOW_LOAD_FAILED"


class ContractCode(StrEnum):
    """A task broke the promise of its own signature."""

    RETURN_TYPE_MISMATCH = "RETURN_TYPE_MISMATCH"
    RESERVED_ERROR_CODE = "RESERVED_ERROR_CODE"


class RetrievalCode(StrEnum):
    """The result could not be had (yet); says nothing about how the task ends."""

    WAIT_TIMEOUT = "WAIT_TIMEOUT"
    TASK_NOT_FOUND = "TASK_NOT_FOUND"
    WORKFLOW_NOT_FOUND = "WORKFLOW_NOT_FOUND"
    RESULT_NOT_AVAILABLE = "RESULT_NOT_AVAILABLE"
    RESULT_NOT_READY = "RESULT_NOT_READY"


class OutcomeCode(StrEnum):
    """The task or workflow ended, on purpose, without a value."""

    TASK_CANCELLED = "TASK_CANCELLED"
    TASK_EXPIRED = "TASK_EXPIRED"
    TASK_TIMEOUT = "TASK_TIMEOUT"
    WORKFLOW_PAUSED = "WORKFLOW_PAUSED"
    WORKFLOW_FAILED = "WORKFLOW_FAILED"
    WORKFLOW_CANCELLED = "WORKFLOW_CANCELLED"
    WORKFLOW_SUCCESS_CASE_NOT_MET = "WORKFLOW_SUCCESS_CASE_NOT_MET"
    UPSTREAM_SKIPPED = "UPSTREAM_SKIPPED"
    SUBWORKFLOW_FAILED = "SUBWORKFLOW_FAILED"


_FAMILIES = (OperationalErrorCode, ContractCode, RetrievalCode, OutcomeCode)
BuiltInCode = OperationalErrorCode | ContractCode | RetrievalCode | OutcomeCode

BUILT_IN_CODES: Final[dict[str, BuiltInCode]] = {code.value: code for family in _FAMILIES for code in family}
"""Reserved: they say how horsies itself ended an attempt, and recovery and retries rely on them. A task that returns
one ends with RESERVED_ERROR_CODE instead."""


class HorsiesError(Exception):
    """Base of every exception that horsies raises."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with a configuration or a definition."""

    where: str
    why: str
    fix: str

    def __str__(self) -> str:
        return f"{self.where}: {self.why}\n    fix: {self.fix}"


class ConfigurationError(HorsiesError, ValueError):
    """All problems of a configuration at once, each with where, why and how to fix."""

    def __init__(self, problems: list[Problem], *, subject: str = "configuration") -> None:
        self.problems = tuple(problems)
        count = len(problems)
        head = f"{subject}: {count} problem{'s' if count != 1 else ''}"
        super().__init__("\n".join([head, *(f"  - {problem}" for problem in problems)]))


class TaskDefinitionError(HorsiesError, TypeError):
    """A task cannot be registered as written; raised at import, with file and line."""

    def __init__(self, task_name: str, why: str, fix: str, *, location: str | None = None) -> None:
        self.task_name = task_name
        self.location = location
        at = f" ({location})" if location else ""
        super().__init__(f"task {task_name!r}{at}: {why}\n    fix: {fix}")


class SchemaError(HorsiesError):
    """The database has no horsies tables, or older ones than this code needs."""


class BrokerError(HorsiesError):
    """The database could not be reached, or refused a statement. The driver's own exception is the cause."""


class UsageError(HorsiesError, RuntimeError):
    """A verb was called where it cannot work, such as a blocking one on an event loop."""
