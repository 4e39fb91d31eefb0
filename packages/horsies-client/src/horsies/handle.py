"""`TaskHandle`: a sent task, from the sender's side. Also `gather` and `as_completed` for many of them.

asyncio is imported where it is used: 30 ms of ssl, sockets and subprocesses that defining tasks need not pay.
"""

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from horsies._checks import shown
from horsies.errors import OperationalErrorCode, RetrievalCode
from horsies.ids import is_storable_id
from horsies.result import TaskError, TaskResult

if TYPE_CHECKING:
    from horsies._pg.waiters import Seen
    from horsies.app import Horsies
    from horsies.info import TaskAttempt, TaskInfo
    from horsies.registry import TaskDefinition

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class CancelResult(StrEnum):
    """What a cancellation did."""

    CANCELLED = "CANCELLED"
    """It had not started and never will."""
    REQUESTED = "REQUESTED"
    """It is running; its worker was asked to stop it. `get()` tells how it ends."""
    ALREADY_ENDED = "ALREADY_ENDED"
    NOT_FOUND = "NOT_FOUND"


class TaskHandle(Generic[T_co]):
    """Refers to a task by its id; cheap, and can be rebuilt anywhere with `app.handle(task_id)`."""

    __slots__ = ("_app", "_definition", "_result", "is_duplicate", "task_id")

    def __init__(
        self, app: "Horsies", task_id: str, *, definition: "TaskDefinition | None" = None, is_duplicate: bool = False
    ) -> None:
        self._app = app
        self._definition = definition
        self._result: TaskResult[T_co, TaskError] | None = None
        self.task_id = task_id
        self.is_duplicate = is_duplicate
        """True when the send found a live task with the same `unique_key`; this handle is that task's."""

    def __repr__(self) -> str:
        name = f" {self._definition.name}" if self._definition else ""
        return f"<TaskHandle{name} {self.task_id}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskHandle) and self.task_id == other.task_id

    def __hash__(self) -> int:
        return hash(self.task_id)

    # -- result ----------------------------------------------------------------------------------

    def get(self, timeout_ms: int | None = None) -> TaskResult[T_co, TaskError]:
        """Wait for the task's end and return its result. Never raises for what the task or the database did:
        a time-out is an err WAIT_TIMEOUT, a lost database an err BROKER_ERROR. A final result is kept here."""
        from horsies.sync import refuse_on_a_loop

        refuse_on_a_loop("get")
        if self._result is not None:
            return self._result
        return self._app.run_sync("get", lambda: self.get_async(timeout_ms))

    async def get_async(self, timeout_ms: int | None = None) -> TaskResult[T_co, TaskError]:
        """See `get`."""
        if self._result is not None:
            return self._result
        if timeout_ms is not None and timeout_ms < 0:
            raise ValueError(f"timeout_ms must not be negative, got {timeout_ms}")
        if not is_storable_id(self.task_id):
            return _err(RetrievalCode.TASK_NOT_FOUND, f"{shown(self.task_id)} cannot be the id of a task")
        import asyncio

        waiters = self._app.database.here().waiters
        bound = asyncio.timeout(timeout_ms / 1000 if timeout_ms else None)
        try:
            async with bound:
                seen = await (waiters.look if timeout_ms == 0 else waiters.wait)(self.task_id)
        except Exception as error:
            if not bound.expired():
                return self._broker_error(error)
            if waiters.last_error is not None:
                return self._broker_error(waiters.last_error)
            return self._not_ended(timeout_ms)
        if seen is None:
            return _err(RetrievalCode.TASK_NOT_FOUND, f"there is no task {self.task_id}: never sent, or pruned since")
        if not seen.status.is_terminal:
            return self._not_ended(timeout_ms)
        self._result = self._decode(seen)
        return self._result

    def _not_ended(self, timeout_ms: int | None) -> TaskResult[T_co, TaskError]:
        return _err(RetrievalCode.WAIT_TIMEOUT, f"task {self.task_id} has not ended within {timeout_ms} ms")

    def _decode(self, ended: "Seen") -> TaskResult[T_co, TaskError]:
        from horsies.codec import DecodeError, decode_untyped_result

        if ended.result is None:
            return _err(RetrievalCode.RESULT_NOT_AVAILABLE, f"task {self.task_id} is {ended.status} without a result")
        definition = self._definition or self._app.registry.get(ended.task_name)
        if definition is not None and definition.name != ended.task_name:
            return _err(
                OperationalErrorCode.RESULT_DESERIALIZATION_ERROR,
                f"task {self.task_id} is a {ended.task_name!r}, this handle was made for {definition.name!r}",
            )
        try:
            if definition is None:
                return decode_untyped_result(ended.result, task_name=ended.task_name)
            return definition.codec.decode_result(ended.result)
        except DecodeError as error:
            return _err(OperationalErrorCode.RESULT_DESERIALIZATION_ERROR, str(error))

    def _broker_error(self, error: BaseException) -> TaskResult[T_co, TaskError]:
        text = self._app.config.broker.redact(f"{type(error).__name__}: {error}")
        return _err(OperationalErrorCode.BROKER_ERROR, f"the result of task {self.task_id} could not be read: {text}")

    # -- everything else -------------------------------------------------------------------------

    def info(self) -> "TaskInfo | None":
        """What the database knows of it now; None when there is no such task."""
        return self._app.run_sync("info", self.info_async)

    async def info_async(self) -> "TaskInfo | None":
        """See `info`."""
        return await self._app.get_broker().get_task_info(self.task_id)

    def attempts(self) -> "list[TaskAttempt]":
        """Its finished attempts, first to last."""
        return self._app.run_sync("attempts", self.attempts_async)

    async def attempts_async(self) -> "list[TaskAttempt]":
        """See `attempts`."""
        return await self._app.get_broker().get_attempts(self.task_id)

    def cancel(self) -> CancelResult:
        """Stop it: for good when it has not started, by asking its worker when it runs."""
        return self._app.run_sync("cancel", self.cancel_async)

    async def cancel_async(self) -> CancelResult:
        """See `cancel`."""
        return await self._app.get_broker().cancel(self.task_id)


def _err(code: RetrievalCode | OperationalErrorCode, message: str) -> TaskResult[Any, TaskError]:
    return TaskResult(err=TaskError(code, message))


async def gather_async(
    handles: Iterable[TaskHandle[T]], *, timeout_ms: int | None = None
) -> list[TaskResult[T, TaskError]]:
    """The results of many tasks, in the order of the handles. One time-out for all of them."""
    import asyncio

    return list(await asyncio.gather(*(handle.get_async(timeout_ms) for handle in handles)))


def gather(handles: Iterable[TaskHandle[T]], *, timeout_ms: int | None = None) -> list[TaskResult[T, TaskError]]:
    """See `gather_async`."""
    from horsies.sync import refuse_on_a_loop

    refuse_on_a_loop("gather")
    many = list(handles)
    if not many:
        return []
    return _app_of(many).run_sync("gather", lambda: gather_async(many, timeout_ms=timeout_ms))


async def as_completed_async(
    handles: Iterable[TaskHandle[T]], *, timeout_ms: int | None = None
) -> AsyncGenerator[tuple[TaskHandle[T], TaskResult[T, TaskError]]]:
    """Pairs of handle and result, in the order in which the tasks end. Those that do not end in time come
    last, as err WAIT_TIMEOUT."""

    import asyncio

    async def one(handle: TaskHandle[T]) -> tuple[TaskHandle[T], TaskResult[T, TaskError]]:
        return handle, await handle.get_async(timeout_ms)

    waiting = [asyncio.ensure_future(one(handle)) for handle in handles]
    try:
        for ended in asyncio.as_completed(waiting):
            yield await ended
    finally:
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


def as_completed(
    handles: Iterable[TaskHandle[T]], *, timeout_ms: int | None = None
) -> Iterator[tuple[TaskHandle[T], TaskResult[T, TaskError]]]:
    """See `as_completed_async`."""
    from horsies.sync import refuse_on_a_loop

    refuse_on_a_loop("as_completed")
    many = list(handles)
    if not many:
        return
    app = _app_of(many)
    pairs = as_completed_async(many, timeout_ms=timeout_ms)
    try:
        while True:
            try:
                yield app.run_sync("as_completed", pairs.__anext__)
            except StopAsyncIteration:
                return
    finally:
        app.run_sync("as_completed", pairs.aclose)


def _app_of(handles: Sequence[TaskHandle[Any]]) -> "Horsies":
    return handles[0]._app  # pyright: ignore[reportPrivateUsage]
