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
    """The task raised, and no `exception_mapper` has a code for that class of exception. To do: Read the traceback
    (`horsies tasks show ID`); map the exception to a code of your own to tell it apart or to retry it."""
    TASK_EXCEPTION = "TASK_EXCEPTION"
    """Reserved; nothing ends with it. To do: Nothing."""
    WORKER_CRASHED = "WORKER_CRASHED"
    """The process that ran the task died (killed, out of memory, a fault in native code), or was taken away by a
    shutdown. Its code may have run. To do: Look for the reason in the log of the worker; list the code in
    `auto_retry_for`, or give `max_crashes`, if the task may run twice."""
    CRASH_LIMIT = "CRASH_LIMIT"
    """Its process died as often as the `max_crashes` of its policy allows: the task is in quarantine. `data` has the
    number of crashes and the last reason. To do: Find out what kills the process, then `horsies quarantine release ID`
    or `purge`."""
    BROKER_ERROR = "BROKER_ERROR"
    """`get()` could not reach the database, or had no answer from it for 250 ms or more when its time was over. To do:
    Ask again; the task itself is not touched."""
    WORKER_RESOLUTION_ERROR = "WORKER_RESOLUTION_ERROR"
    """No live worker of the task's queue knows its name, for longer than `unknown_task_grace_ms` (or
    `retired_task_grace_ms`, if one knew it before). The message lists the names that they know, and the queues whose
    workers know this one. To do: Deploy a worker that registers the task, or send it to the right queue; then `horsies
    tasks retry ID`."""
    WORKER_SERIALIZATION_ERROR = "WORKER_SERIALIZATION_ERROR"
    """The result cannot be stored as JSON or is too large; or the stored arguments do not fit the signature, such as
    `"5"`, `5.0` or `true` for an `int`, or an unknown key of a TypedDict, from a sender by name or an edge of a
    workflow; or the payload codec failed. To do: Read the message: it names the argument or the place in
    the value, and the type; what was refused of a result is `value` in `data`, which no log line repeats. Correct the
    sender, the annotation or the codec."""
    RESULT_DESERIALIZATION_ERROR = "RESULT_DESERIALIZATION_ERROR"
    """The stored result does not fit the type that the handle expects, or this app's payload codec cannot decode it. To
    do: Read it with the release that wrote it, or through `horsies tasks show ID`."""
    WORKFLOW_ENQUEUE_FAILED = "WORKFLOW_ENQUEUE_FAILED"
    """A node's arguments cannot be put together or are too large, a map's list is too wide, the row of its task is
    gone, or a task returned `Continue` once too often. To do: Correct the definition or the value that the message
    names, then `horsies workflows retry ID`."""
    SUBWORKFLOW_LOAD_FAILED = "SUBWORKFLOW_LOAD_FAILED"
    """Reserved; nothing ends with it. To do: Nothing."""
    COMPLETION_NOT_COMMITTED = "COMPLETION_NOT_COMMITTED"
    """The task called `complete()` and returned, but the transaction of that call did not commit. To do: Commit before
    you return; list the code in `auto_retry_for` if the work may be done again."""


class ContractCode(StrEnum):
    """A task returned something that its signature or the library forbids."""

    RETURN_TYPE_MISMATCH = "RETURN_TYPE_MISMATCH"
    """The task returned something else than its annotation says, also a key that its TypedDict does not have; or
    `Continue` with a workflow of another type, or outside a workflow; or a batch task returned another number of
    results than it got items. To do: Correct the return value or the annotation; the message names the types, and
    `value` in `data` is what was returned, which no log line repeats."""
    RESERVED_ERROR_CODE = "RESERVED_ERROR_CODE"
    """The task returned an error with one of these codes, also by passing the error of another task along. `data` is
    that error. To do: Return an error with a code of your own."""


class RetrievalCode(StrEnum):
    """The result could not be read, or not yet; the code says nothing about how the task ends."""

    WAIT_TIMEOUT = "WAIT_TIMEOUT"
    """The task or run had not ended within `timeout_ms`; or, as the message says then, a wait of less than 250 ms was
    over before the database had answered. It says nothing about how it will end. To do: Wait again, or look at its
    state."""
    TASK_NOT_FOUND = "TASK_NOT_FOUND"
    """No task has this id: never sent, not committed yet, or pruned. To do: Check the id; wait for the commit; see
    `terminal_record_retention_hours`."""
    WORKFLOW_NOT_FOUND = "WORKFLOW_NOT_FOUND"
    """No run has this id: never started, not committed yet, or pruned. To do: Check the id; wait for the commit; see
    `terminal_record_retention_hours`."""
    RESULT_NOT_AVAILABLE = "RESULT_NOT_AVAILABLE"
    """It ended without a stored result, as a task with `store_result=False` does; also the error of a node that takes
    the value of such a one, and what `get()` returns of a run whose output was not taken. To do: Store the result if
    you need it."""
    RESULT_NOT_READY = "RESULT_NOT_READY"
    """The result of a node, or of a member of a batch, was asked for before that had ended. To do: Wait for the run, or
    ask again."""


class OutcomeCode(StrEnum):
    """The task or workflow was ended on purpose, without a value."""

    TASK_CANCELLED = "TASK_CANCELLED"
    """A client or an operator cancelled the task. To do: `horsies tasks retry ID` runs it again."""
    TASK_EXPIRED = "TASK_EXPIRED"
    """The task had not started by its `good_until`. To do: Look at the depth of its queue; `horsies tasks retry ID`
    runs it again."""
    TASK_TIMEOUT = "TASK_TIMEOUT"
    """The attempt ran longer than the `timeout_ms` of its task, and was stopped. To do: Raise `timeout_ms`, make the
    task shorter, or list the code in `auto_retry_for`."""
    TASK_SNOOZED = "TASK_SNOOZED"
    """In the result of `snooze(...)`, which only the worker, middleware and tests see; no task ends with it. To do:
    Nothing: the task runs again by itself."""
    WORKFLOW_PAUSED = "WORKFLOW_PAUSED"
    """The error of a run that `on_error="pause"` has paused, or that is paused along with the run around it. To do:
    Correct the cause, then `horsies workflows resume ID`."""
    WORKFLOW_FAILED = "WORKFLOW_FAILED"
    """A node of the run failed. The message names the first failed node with its code and message, `data` all of them
    (`failed`) and that one (`cause`). To do: Correct the cause, then `horsies workflows retry ID`."""
    WORKFLOW_CANCELLED = "WORKFLOW_CANCELLED"
    """A client or an operator cancelled the run. To do: `horsies workflows retry ID` runs again what was skipped or
    stopped."""
    WORKFLOW_SUCCESS_CASE_NOT_MET = "WORKFLOW_SUCCESS_CASE_NOT_MET"
    """No case of the run's `SuccessPolicy` was met. The message names the first failed node or, where none failed, the
    first that was skipped; `data` has all of them (`failed`, `skipped`). To do: Correct the cause, then `horsies
    workflows retry ID`."""
    WORKFLOW_DEADLINE = "WORKFLOW_DEADLINE"
    """The run had not ended by its deadline; also the result of the nodes that were skipped for it. To do: Give it more
    time, or find out which node is slow."""
    WORKFLOW_ENDED = "WORKFLOW_ENDED"
    """The code of a `SignalError`: the run has ended, or undoes what it did, and takes no signal. Nothing was stored.
    To do: Nothing: the run does not wait for it any more."""
    UPSTREAM_SKIPPED = "UPSTREAM_SKIPPED"
    """The result of a node that was skipped because a node before it failed or was skipped. To do: Look at the node
    before it."""
    BRANCH_NOT_TAKEN = "BRANCH_NOT_TAKEN"
    """The result of a node in a branch that was not taken, which is no failure. If it is the output, the run completes
    and `get()` returns RESULT_NOT_AVAILABLE. To do: Nothing."""
    SIGNAL_TIMEOUT = "SIGNAL_TIMEOUT"
    """No signal came for a node of `wait_for_signal` within its `timeout`. To do: Send the signal in time, or give the
    node a longer timeout."""
    COMPENSATION_FAILED = "COMPENSATION_FAILED"
    """In `data["compensation"]` of the error of a run that could not undo everything, beside the original error: the
    compensation (`node_id`) and why it failed (`cause`). To do: Undo it by hand, or correct the cause and `horsies
    workflows retry ID`."""
    SUBWORKFLOW_FAILED = "SUBWORKFLOW_FAILED"
    """The node is a workflow or a map, and that failed. The message names the node or item inside with its code and
    message; its own error is the `data`. To do: Look at the run inside: `horsies workflows show ID --path NODE`."""


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
    """Why a send failed: the `code` of a `TaskSendError`."""

    VALIDATION_FAILED = "VALIDATION_FAILED"
    """The call is invalid; nothing was written. To do: Correct the call: sending it again cannot help."""
    ENQUEUE_FAILED = "ENQUEUE_FAILED"
    """The database refused the send, or its answer was lost. To do: Call `.retry()`, which is safe where
    `retryable`."""
    PAYLOAD_MISMATCH = "PAYLOAD_MISMATCH"
    """A different task with this id exists; it was left untouched. To do: Use an id of its own for each call."""


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
