"""Batch tasks: one call of the function for many tasks of its name. `docs/guides/batch-tasks.md` explains them.

Each task is sent, claimed, retried and ended by itself, like any other. Only the call is shared: the worker gathers the
tasks that are ready and passes their items as one list. `app.batch` is another thing: it groups sends.
"""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast, overload

from horsies.result import TaskError, TaskResult
from horsies.tasks import Registered

I = TypeVar("I")  # noqa: E741  # the item of a batch task
T = TypeVar("T")


class BatchTaskFunction(Registered[[I], T], Generic[I, T]):
    """A registered batch task: `send(item)` sends one task. Calling it runs the function itself on a list of items in
    this process, for unit tests."""

    def __call__(self, items: list[I], /) -> Sequence[TaskResult[T, TaskError]]:
        return cast("Sequence[TaskResult[T, TaskError]]", self._definition.fn(items))


class AsyncBatchTaskFunction(Registered[[I], T], Generic[I, T]):
    """A registered `async def` batch task. Awaiting a call runs the function itself in this process."""

    def __call__(self, items: list[I], /) -> Coroutine[Any, Any, Sequence[TaskResult[T, TaskError]]]:
        return cast("Coroutine[Any, Any, Sequence[TaskResult[T, TaskError]]]", self._definition.fn(items))


class BatchTaskDecorator(Protocol):
    """What `@app.batch_task(...)` returns. It takes the type of the item from the list that the function takes."""

    @overload
    def __call__(
        self, fn: Callable[[list[I]], Coroutine[Any, Any, Sequence[TaskResult[T, TaskError]]]], /
    ) -> AsyncBatchTaskFunction[I, T]: ...
    @overload
    def __call__(self, fn: Callable[[list[I]], Sequence[TaskResult[T, TaskError]]], /) -> BatchTaskFunction[I, T]: ...
