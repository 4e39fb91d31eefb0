"""`current_task()`: the context of the running task; `current_call()`: that of a call of a batch task.

The worker's child process enters a `TaskContext` or a `BatchCall` around every call of user code, and passes itself in
as its `Control`.
"""

import json
from collections.abc import Mapping, Sequence
from contextvars import ContextVar, Token
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeVar

from horsies.errors import UsageError
from horsies.metadata import decode, has_nul

if TYPE_CHECKING:
    from typing import Never

    from horsies.result import TaskResult

T = TypeVar("T")
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


class Completer(Protocol):
    """Ends an attempt in a transaction of user code; `horsies.completing` has it."""

    def complete(self, context: "TaskContext", connection: Any, value: object) -> None: ...
    async def complete_async(self, context: "TaskContext", connection: Any, value: object) -> None: ...


class Control(Protocol):
    """What the process that runs a call does for the call's context."""

    def stop_reason(self) -> StopReason | None:
        """Why the call must stop, None while it need not."""
        ...

    def report_progress(self, context: "TaskContext", text: str) -> None:
        """Pass on the progress of one of its tasks, as JSON."""
        ...


class _NoControl:
    """Outside of a worker: a call is never stopped, and its progress is not kept."""

    def stop_reason(self) -> StopReason | None:
        return None

    def report_progress(self, context: "TaskContext", text: str) -> None:
        pass


NO_CONTROL: Final = _NoControl()


class _Call:
    """What an attempt and a call of a batch task have in common: middleware's state, and the reason to stop."""

    __slots__ = ("_control", "_state", "started_mono")

    def __init__(self, control: Control) -> None:
        self._control = control
        self._state: dict[Any, Any] | None = None
        self.started_mono = 0.0
        """For the worker: when user code began, on the monotonic clock."""

    @property
    def state(self) -> dict[Any, Any]:
        """For middleware: what it keeps for the length of this call, under a key of its own."""
        if self._state is None:
            self._state = {}
        return self._state

    @property
    def stop_reason(self) -> StopReason | None:
        """Why this call must stop, None while it need not. `TaskStopped.reason` says the same; the CancelledError of an
        async task says nothing."""
        return self._control.stop_reason()

    def is_cancelled(self) -> bool:
        """True once this call must stop: after a cancellation (of a batch call: of all its tasks), its timeout, or the
        worker's shutdown."""
        return self._control.stop_reason() is not None


class TaskContext(_Call):
    """The running attempt. Get it with `current_task()`."""

    __slots__ = (
        "_completer", "_metadata", "_metadata_json", "attempt", "completion", "deadline",
        "fencing_token", "group", "queue_name", "ready_at", "snoozes", "stores_result", "task_id", "task_name",
    )  # fmt: skip

    def __init__(
        self,
        *,
        task_id: str,
        task_name: str,
        attempt: int,
        deadline: datetime | None,
        fencing_token: int,
        queue_name: str = "default",
        ready_at: float = 0.0,
        metadata_json: str | None = None,
        group: str | None = None,
        control: Control = NO_CONTROL,
        completer: Completer | None = None,
        snoozes: int = 0,
        stores_result: bool = True,
    ) -> None:
        # without super(): this runs once per task, and the call takes a tenth of it
        self._control = control
        self._state = None
        self.started_mono = 0.0
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
        self.snoozes = snoozes
        """How often the task has returned `snooze` before; counted up to 32,767."""
        self.stores_result = stores_result
        """Whether the value of the task is stored; see `store_result`."""
        self._metadata_json = metadata_json
        self._metadata: Mapping[str, Any] | None = None
        self._completer = completer
        self.completion: str | None = None
        """For the worker: the JSON of the result that `complete()` has written in a transaction of user code."""

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The task's metadata: of its registration, of the send, and what it inherited. Read-only."""
        if self._metadata is None:
            self._metadata = decode(self._metadata_json)
        return self._metadata

    def report_progress(self, value: Any) -> None:
        """Set the task's progress to a JSON value. Cheap to call; the worker writes only the latest value."""
        try:
            text = json.dumps(value, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
            text.encode()  # raises for a lone surrogate
        except (TypeError, ValueError, RecursionError) as exc:
            raise UsageError(f"report_progress takes a JSON value: {exc}") from exc
        if has_nul(text):
            raise UsageError("report_progress takes a JSON value without NUL characters")
        self._control.report_progress(self, text)

    def complete(self, connection: Any, value: T) -> "TaskResult[T, Never]":
        """End this attempt as COMPLETED with this value, inside the transaction that is open on your connection: the
        end commits, or rolls back, together with what you wrote there. Return what it returns.

            with engine.begin() as connection:
                connection.execute(...)
                return current_task().complete(connection, order_id)

        Takes the same connections as `connection=` of a send. Raises `ClaimLostError` when this attempt no longer owns
        its task; let it pass, so that your transaction rolls back. Nothing is written either when the value does not
        fit the task's return type, or without an open transaction (autocommit).
        """
        self._require_completer().complete(self, connection, value)
        return _ok(value)

    async def complete_async(self, connection: Any, value: T) -> "TaskResult[T, Never]":
        """`complete` on an asynchronous connection."""
        await self._require_completer().complete_async(self, connection, value)
        return _ok(value)

    def _require_completer(self) -> Completer:
        if self._completer is None:
            raise UsageError(
                f"task {self.task_name!r} runs where it cannot complete itself: a worker has to run it, and not as a "
                "member of a batch task"
            )
        return self._completer

    def __repr__(self) -> str:
        return f"<TaskContext {self.task_name} {self.task_id} attempt {self.attempt}>"


def _ok(value: T) -> "TaskResult[T, Never]":
    from horsies.result import TaskResult

    return TaskResult(ok=value)


class BatchCall(_Call):
    """One call of a batch task, which runs several tasks at once. Get it with `current_call()`."""

    __slots__ = ("deadline", "tasks")

    def __init__(
        self,
        tasks: Sequence[TaskContext],
        *,
        deadline: datetime | None,
        control: Control = NO_CONTROL,
    ) -> None:
        super().__init__(control)
        self.tasks = tuple(tasks)
        """The tasks of this call, in the order of its items: id, attempt, metadata and group of each."""
        self.deadline = deadline
        """The end of `timeout_ms` by this machine's clock; None without a timeout."""

    @property
    def task_name(self) -> str:
        return self.tasks[0].task_name

    def __repr__(self) -> str:
        return f"<BatchCall {self.task_name}, {len(self.tasks)} tasks>"


_current: ContextVar[TaskContext | BatchCall] = ContextVar("horsies_current_task")


def current_task() -> TaskContext:
    """The task in which this code runs; UsageError outside of a task.

    A thread that user code starts does not inherit it: pass the object, or use `contextvars.copy_context()`.
    """
    found = _current.get(None)
    if isinstance(found, BatchCall):
        raise UsageError(
            f"current_task(): this call of the batch task {found.task_name!r} runs several tasks at once. Use "
            "current_call().tasks, which has them in the order of the items"
        )
    if found is None:
        raise UsageError("current_task() works only inside a task that a worker is running")
    return found


def current_call() -> BatchCall:
    """The call of a batch task in which this code runs; UsageError elsewhere."""
    found = _current.get(None)
    if isinstance(found, BatchCall):
        return found
    if found is not None:
        raise UsageError(f"current_call(): {found.task_name!r} is no batch task. Use current_task()")
    raise UsageError("current_call() works only inside a batch task that a worker is running")


def find_current_task() -> TaskContext | None:
    """Like `current_task()`, for code that may run anywhere, such as a log filter. None in a call of a batch task."""
    found = _current.get(None)
    return None if isinstance(found, BatchCall) else found


def find_current_call() -> BatchCall | None:
    """Like `current_call()`, for code that may run anywhere."""
    found = _current.get(None)
    return found if isinstance(found, BatchCall) else None


def enter_task(context: TaskContext | BatchCall) -> Token[TaskContext | BatchCall]:
    """For the worker: make `context` the current one until `leave_task`."""
    return _current.set(context)


def leave_task(token: Token[TaskContext | BatchCall]) -> None:
    """For the worker: undo `enter_task`."""
    _current.reset(token)
