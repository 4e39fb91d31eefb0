"""`TaskHandle`: a sent task, for its sender. Also `gather` and `as_completed` for many handles."""

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from horsies._awaited import Awaited, err
from horsies._checks import shown
from horsies._loading import load_verbs
from horsies.errors import OperationalErrorCode, RetrievalCode, UsageError
from horsies.options import check_timeout
from horsies.result import TaskError, TaskResult
from horsies.status import CancelResult

if TYPE_CHECKING:
    from horsies._pg.waiters import Seen
    from horsies._runtime import AppRuntime
    from horsies.operate.views import TaskAttempt, TaskInfo
    from horsies.registry import TaskDefinition

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


class TaskHandle(Awaited[T_co]):
    """Refers to a task by its id. `app.handle(task_id)` makes another one in any process."""

    __slots__ = ("_definition", "is_duplicate", "task_id")

    _not_found = RetrievalCode.TASK_NOT_FOUND

    def __init__(
        self,
        app: "AppRuntime",
        task_id: str,
        *,
        definition: "TaskDefinition | None" = None,
        is_duplicate: bool = False,
    ) -> None:
        self._app = app
        self._result = None
        self._definition = definition
        self.task_id = task_id
        self.is_duplicate = is_duplicate
        """True when another task holds the unique key of the send, and this handle refers to it. With `debounce` and
        `on_conflict="replace"` that task has taken the arguments over."""

    def __repr__(self) -> str:
        name = f" {self._definition.name}" if self._definition else ""
        return f"<TaskHandle{name} {self.task_id}>"

    # -- result ----------------------------------------------------------------------------------

    @property
    def _id(self) -> str:
        return self.task_id

    def _decode(self, ended: "Seen") -> TaskResult[T_co, TaskError]:
        definition = self._definition or self._app.registry.get(ended.task_name)
        if definition is not None and definition.name != ended.task_name:
            return err(
                OperationalErrorCode.RESULT_DESERIALIZATION_ERROR,
                f"task {self.task_id} is a {ended.task_name!r}, this handle was made for {definition.name!r}",
            )
        return self._decoded(ended, None if definition is None else definition.codec)

    # -- everything else -------------------------------------------------------------------------

    def info(self) -> "TaskInfo | None":
        """The task's row without arguments and result; None when there is no such task."""
        return self._app.run_sync("info", self.info_async)

    async def info_async(self) -> "TaskInfo | None":
        """See `info`."""
        return await self._app.get_broker().get_task_info(self.task_id)

    def attempts(self) -> "list[TaskAttempt]":
        """The finished attempts, first to last."""
        return self._app.run_sync("attempts", self.attempts_async)

    async def attempts_async(self) -> "list[TaskAttempt]":
        """See `attempts`."""
        return await self._app.get_broker().get_attempts(self.task_id)

    def cancel(self) -> CancelResult:
        """Cancel the task if it has not started, else ask its worker to stop it. BrokerError if another transaction
        holds the task for ten seconds, such as that of a task that completes itself."""
        return self._app.run_sync("cancel", self.cancel_async)

    async def cancel_async(self) -> CancelResult:
        """See `cancel`."""
        return await self._app.get_broker().cancel(self.task_id)


async def gather_async(
    handles: Iterable[TaskHandle[T]], *, timeout_ms: int | None = None
) -> list[TaskResult[T, TaskError]]:
    """The results of many tasks, in the order of the handles, with one time-out for all."""
    import asyncio

    check_timeout("gather", timeout_ms)
    return list(await asyncio.gather(*(handle.get_async(timeout_ms) for handle in _listed("gather", handles))))


def gather(handles: Iterable[TaskHandle[T]], *, timeout_ms: int | None = None) -> list[TaskResult[T, TaskError]]:
    """See `gather_async`."""
    load_verbs("gather")
    from horsies.sync import refuse_on_a_loop

    refuse_on_a_loop("gather")
    check_timeout("gather", timeout_ms)
    many = _listed("gather", handles)
    if not many:
        return []
    for handle in many:
        handle.warn_of_wait(timeout_ms)
    return _app_of(many).run_sync("gather", lambda: gather_async(many, timeout_ms=timeout_ms))


def as_completed_async(
    handles: Iterable[TaskHandle[T]], *, timeout_ms: int | None = None
) -> AsyncGenerator[tuple[TaskHandle[T], TaskResult[T, TaskError]]]:
    """Pairs of handle and result, in the order in which the tasks end. Tasks that do not end in time come last, with an
    err WAIT_TIMEOUT."""
    check_timeout("as_completed", timeout_ms)
    return _as_completed_async(_listed("as_completed", handles), timeout_ms)


async def _as_completed_async(
    handles: list[TaskHandle[T]], timeout_ms: int | None
) -> AsyncGenerator[tuple[TaskHandle[T], TaskResult[T, TaskError]]]:
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
    check_timeout("as_completed", timeout_ms)
    return _as_completed(_listed("as_completed", handles), timeout_ms)


def _as_completed(
    handles: list[TaskHandle[T]], timeout_ms: int | None
) -> Iterator[tuple[TaskHandle[T], TaskResult[T, TaskError]]]:
    load_verbs("as_completed")
    from horsies.sync import refuse_on_a_loop

    refuse_on_a_loop("as_completed")
    if not handles:
        return
    for handle in handles:
        handle.warn_of_wait(timeout_ms)
    app = _app_of(handles)
    pairs = _as_completed_async(handles, timeout_ms)
    try:
        while True:
            try:
                yield app.run_sync("as_completed", pairs.__anext__)
            except StopAsyncIteration:
                return
    finally:
        app.run_sync("as_completed", pairs.aclose)


def _listed(verb: str, handles: object) -> list[Any]:
    """The handles as a list, or UsageError."""
    if not isinstance(handles, Iterable):
        raise UsageError(f"{verb} takes several handles, not {shown(handles)}: give a list of what send() returned")
    many = list(cast("Iterable[object]", handles))
    for at, handle in enumerate(many):
        if not isinstance(handle, Awaited):
            raise UsageError(
                f"{verb} item {at} is {shown(handle)}, not a handle: give what send() returned, or app.handle(task_id)"
            )
    return many


def _app_of(handles: Sequence[TaskHandle[Any]]) -> "AppRuntime":
    return handles[0]._app  # pyright: ignore[reportPrivateUsage]
