"""`TaskHandle`: a sent task, from the sender's side. Also `gather` and `as_completed` for many of them.

asyncio is imported where it is used: 30 ms of ssl, sockets and subprocesses that defining tasks need not pay.
"""

from collections.abc import AsyncGenerator, Awaitable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from horsies._awaited import Awaited, err
from horsies._loading import load_verbs
from horsies.errors import OperationalErrorCode, RetrievalCode
from horsies.result import TaskError, TaskResult

if TYPE_CHECKING:
    from horsies._pg.waiters import Seen, Waiters
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


class TaskHandle(Awaited[T_co]):
    """Refers to a task by its id; cheap, and can be rebuilt anywhere with `app.handle(task_id)`."""

    __slots__ = ("_definition", "is_duplicate", "task_id")

    _kind = "task"
    _not_found = RetrievalCode.TASK_NOT_FOUND
    _never = "never sent"

    def __init__(
        self, app: "Horsies", task_id: str, *, definition: "TaskDefinition | None" = None, is_duplicate: bool = False
    ) -> None:
        self._app = app
        self._result = None
        self._definition = definition
        self.task_id = task_id
        self.is_duplicate = is_duplicate
        """True when the send found a live task with the same `unique_key`; this handle is that task's."""

    def __repr__(self) -> str:
        name = f" {self._definition.name}" if self._definition else ""
        return f"<TaskHandle{name} {self.task_id}>"

    # -- result ----------------------------------------------------------------------------------

    @property
    def _id(self) -> str:
        return self.task_id

    def _seen(self, waiters: "Waiters", *, at_once: bool) -> "Awaitable[Seen | None]":
        return waiters.look(self.task_id) if at_once else waiters.wait(self.task_id)

    def _decode(self, ended: "Seen") -> TaskResult[T_co, TaskError]:
        from horsies.codec import DecodeError, decode_untyped_result

        if ended.result is None:
            return err(RetrievalCode.RESULT_NOT_AVAILABLE, f"task {self.task_id} is {ended.status} without a result")
        definition = self._definition or self._app.registry.get(ended.task_name)
        if definition is not None and definition.name != ended.task_name:
            return err(
                OperationalErrorCode.RESULT_DESERIALIZATION_ERROR,
                f"task {self.task_id} is a {ended.task_name!r}, this handle was made for {definition.name!r}",
            )
        try:
            if definition is None:
                return decode_untyped_result(ended.result, task_name=ended.task_name)
            return definition.codec.decode_result(ended.result)
        except DecodeError as error:
            return err(OperationalErrorCode.RESULT_DESERIALIZATION_ERROR, str(error))

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


async def gather_async(
    handles: Iterable[TaskHandle[T]], *, timeout_ms: int | None = None
) -> list[TaskResult[T, TaskError]]:
    """The results of many tasks, in the order of the handles. One time-out for all of them."""
    import asyncio

    return list(await asyncio.gather(*(handle.get_async(timeout_ms) for handle in handles)))


def gather(handles: Iterable[TaskHandle[T]], *, timeout_ms: int | None = None) -> list[TaskResult[T, TaskError]]:
    """See `gather_async`."""
    load_verbs("gather")
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
    load_verbs("as_completed")
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
