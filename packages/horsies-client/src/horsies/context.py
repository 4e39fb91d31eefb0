"""`current_task()`: the context of the running task.

The worker's child process enters a `TaskContext` around every call of user code, and passes in the functions for its
I/O.
"""

import json
from collections.abc import Callable, Mapping
from contextvars import ContextVar, Token
from datetime import datetime
from typing import Any, Literal

from horsies.errors import UsageError
from horsies.metadata import decode, has_nul

StopReason = Literal["cancelled", "timeout", "shutdown"]


class TaskStopped(BaseException):
    """Raised inside a running synchronous task that must end: it was cancelled or timed out, or the worker shuts down.

    A BaseException, so that `except Exception` in user code does not swallow it. Catch it to clean up, then raise it
    again: the process of a task that goes on is terminated, then killed. An `async def` task gets
    `asyncio.CancelledError` instead.
    """

    def __init__(self, reason: StopReason) -> None:
        super().__init__(reason)
        self.reason: StopReason = reason


class TaskContext:
    """The running attempt. Get it with `current_task()`."""

    __slots__ = (
        "_emit_progress", "_metadata", "_metadata_json", "_state", "_stop_asked", "_stop_reason", "attempt",
        "deadline", "fencing_token", "group", "queue_name", "ready_at", "task_id", "task_name",
    )  # fmt: skip

    def __init__(
        self,
        *,
        task_id: str,
        task_name: str,
        attempt: int,
        deadline: datetime | None,
        fencing_token: int,
        emit_progress: Callable[[str], None],
        stop_asked: Callable[[], bool],
        queue_name: str = "default",
        ready_at: float = 0.0,
        metadata_json: str | None = None,
        group: str | None = None,
        stop_reason: Callable[[], StopReason | None] | None = None,
    ) -> None:
        self.task_id = task_id
        self.task_name = task_name
        self.attempt = attempt
        self.deadline = deadline
        """The end of `timeout_ms` by this machine's clock; None without a timeout."""
        self.fencing_token = fencing_token
        """Grows with every claim of this task. Pass it to systems that can refuse an older token: a worker that lost
        the database may still run the task while another worker runs the next attempt."""
        self.queue_name = queue_name
        self.ready_at = ready_at
        """When the task could have started, in seconds since 1970 on the database's clock: the time of the send, or the
        end of its delay or of the wait before a retry."""
        self.group = group
        """The group of the task, such as its tenant: of the send, or of the task's `group_by`. None without one."""
        self._metadata_json = metadata_json
        self._metadata: Mapping[str, Any] | None = None
        self._emit_progress = emit_progress
        self._stop_asked = stop_asked
        self._stop_reason = stop_reason
        self._state: dict[Any, Any] | None = None

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The task's metadata: of its registration, of the send, and what it inherited. Read-only."""
        if self._metadata is None:
            self._metadata = decode(self._metadata_json)
        return self._metadata

    @property
    def state(self) -> dict[Any, Any]:
        """For middleware: what it keeps for the length of this attempt, under a key of its own."""
        if self._state is None:
            self._state = {}
        return self._state

    @property
    def stop_reason(self) -> StopReason | None:
        """Why this attempt must stop, None while it need not. `TaskStopped.reason` says the same; the CancelledError of
        an async task says nothing."""
        return self._stop_reason() if self._stop_reason is not None else None

    def report_progress(self, value: Any) -> None:
        """Set the task's progress to a JSON value. Cheap to call; the worker writes only the latest value."""
        try:
            text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
            text.encode()  # raises for a lone surrogate
        except (TypeError, ValueError, RecursionError) as exc:
            raise UsageError(f"report_progress takes a JSON value: {exc}") from exc
        if has_nul(text):
            raise UsageError("report_progress takes a JSON value without NUL characters")
        self._emit_progress(text)

    def is_cancelled(self) -> bool:
        """True once this attempt must stop: after a cancellation, its timeout, or the worker's shutdown."""
        return self._stop_asked()

    def __repr__(self) -> str:
        return f"<TaskContext {self.task_name} {self.task_id} attempt {self.attempt}>"


_current: ContextVar[TaskContext] = ContextVar("horsies_current_task")


def current_task() -> TaskContext:
    """The task in which this code runs; UsageError outside of a task.

    A thread that user code starts does not inherit it: pass the object, or use `contextvars.copy_context()`.
    """
    try:
        return _current.get()
    except LookupError:
        raise UsageError("current_task() works only inside a task that a worker is running") from None


def find_current_task() -> TaskContext | None:
    """Like `current_task()`, for code that may run anywhere, such as a log filter."""
    return _current.get(None)


def enter_task(context: TaskContext) -> Token[TaskContext]:
    """For the worker: make `context` the current one until `leave_task`."""
    return _current.set(context)


def leave_task(token: Token[TaskContext]) -> None:
    """For the worker: undo `enter_task`."""
    _current.reset(token)
