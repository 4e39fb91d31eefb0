"""Calls user code inside the scopes and the `run_task` of the app's middleware, the first one outermost.

An exception of middleware ends the attempt like one of the task itself: a middleware may well translate exceptions. A
scope that swallows an exception leaves no result, which is an error that names it.
"""

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Final, cast

from horsies._checks import a_type, shown
from horsies.context import BatchCall, TaskContext
from horsies.middleware import Middleware, overrides
from horsies.result import TaskResult

_YIELDS: Final = ("generator didn't yield", "generator didn't stop", "generator didn't stop after throw()")
"""What contextlib says of a generator that does not yield once."""


class Around:
    """The layers around `def` and `async def` tasks. Methods that are not overridden cost nothing."""

    def __init__(self, middleware: Sequence[Middleware]) -> None:
        # built from the inside out
        self._sync: Final = _layers(middleware, "run_task")
        self._async: Final = _layers(middleware, "run_task_async")
        self.is_empty: Final = not (self._sync or self._async)
        self._of_batches: Final = [item for item in reversed(middleware) if overrides(item, "batch_scope")]

    def call(self, context: TaskContext, call: Callable[[], Any]) -> Any:
        for item, is_scoped, is_wrapped in self._sync:
            inner = partial(_wrapped, item, context, call) if is_wrapped else call
            call = partial(_in_scope, item, context, inner) if is_scoped else inner
        return call()

    async def call_async(self, context: TaskContext, call: Callable[[], Awaitable[Any]]) -> Any:
        for item, is_scoped, is_wrapped in self._async:
            inner: Callable[[], Awaitable[Any]] = partial(_wrapped_async, item, context, call) if is_wrapped else call
            call = partial(_in_scope_async, item, context, inner) if is_scoped else inner
        return await call()

    def call_batch(self, context: BatchCall, call: Callable[[], Any]) -> Any:
        for item in self._of_batches:
            call = partial(_in_scope, item, context, call)
        return call()

    async def call_batch_async(self, context: BatchCall, call: Callable[[], Awaitable[Any]]) -> Any:
        for item in self._of_batches:
            call = partial(_in_scope_async, item, context, call)
        return await call()


def _layers(middleware: Sequence[Middleware], method: str) -> list[tuple[Middleware, bool, bool]]:
    layers = [(item, overrides(item, "scope"), overrides(item, method)) for item in reversed(middleware)]
    return [layer for layer in layers if layer[1] or layer[2]]


def _wrapped(item: Middleware, context: TaskContext, call: Callable[[], Any]) -> Any:
    returned: list[object] = []

    def remembered() -> Any:
        returned.append(call())
        return returned[-1]

    return _own(item, "run_task", item.run_task(context, remembered), returned)


async def _wrapped_async(item: Middleware, context: TaskContext, call: Callable[[], Awaitable[Any]]) -> Any:
    returned: list[object] = []

    async def remembered() -> Any:
        returned.append(await call())
        return returned[-1]

    return _own(item, "run_task_async", await item.run_task_async(context, remembered), returned)


def _own(item: Middleware, method: str, result: object, returned: Sequence[object]) -> object:
    """What the middleware made of the result. The codec would blame the task for what is no result at all."""
    if not isinstance(result, TaskResult) and not any(result is one for one in returned[-1:] if one is not None):
        raise TypeError(f"{type(item).__name__}.{method} returned {a_type(result)}: return what call() returned")
    return cast("object", result)


def _in_scope(item: Middleware, context: TaskContext | BatchCall, call: Callable[[], Any]) -> Any:
    with _Scope(item, context):
        return call()
    raise _swallowed(item, context)


async def _in_scope_async(
    item: Middleware, context: TaskContext | BatchCall, call: Callable[[], Awaitable[Any]]
) -> Any:
    with _Scope(item, context):
        return await call()
    raise _swallowed(item, context)


class _Scope:
    """The scope of one middleware. Its errors name the class: contextlib's own do not."""

    __slots__ = ("_name", "_scope")

    def __init__(self, item: Middleware, context: TaskContext | BatchCall) -> None:
        is_batch = isinstance(context, BatchCall)
        self._name = _scope_name(item, context)
        self._scope: AbstractContextManager[None] = item.batch_scope(context) if is_batch else item.scope(context)
        if not hasattr(self._scope, "__exit__"):
            raise TypeError(f"{self._name} returned {shown(self._scope)}: decorate it with @contextmanager")

    def __enter__(self) -> None:
        try:
            self._scope.__enter__()
        except RuntimeError as error:
            raise self._named(error) from None

    def __exit__(self, cls: Any, error: BaseException | None, trace: Any) -> bool | None:
        try:
            return self._scope.__exit__(cls, error, trace)
        except RuntimeError as failure:
            raise self._named(failure) from None

    def _named(self, error: RuntimeError) -> RuntimeError:
        if str(error) not in _YIELDS:
            return error
        return RuntimeError(f"{self._name} must yield exactly once: {error}")


def _scope_name(item: Middleware, context: TaskContext | BatchCall) -> str:
    return f"{type(item).__name__}.{'batch_scope' if isinstance(context, BatchCall) else 'scope'}"


def _swallowed(item: Middleware, context: TaskContext | BatchCall) -> RuntimeError:
    name = _scope_name(item, context)
    return RuntimeError(f"{name} swallowed an exception, so that the attempt has no result")
