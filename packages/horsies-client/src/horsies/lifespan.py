"""Lifespans: what a worker's child process opens before its first task and closes after its last.

    @app.lifespan
    def engine() -> Iterator[Engine]:
        engine = create_engine(URL)
        yield engine
        engine.dispose()

    engine.value  # inside a task

A sync generator runs on the child's main thread, where `def` tasks run; an async one on the thread of its event loop.
"""

import inspect
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, Final, Generic, TypeVar, cast

from horsies.errors import UsageError

S = TypeVar("S")
_UNSET: Final = object()

LifespanFunction = Callable[[], Iterator[S]] | Callable[[], AsyncIterator[S]]


class LifespanError(UsageError):
    """A lifespan did not yield exactly once."""


class Lifespan(Generic[S]):
    """One lifespan of an app. `value` is what its generator yields."""

    def __init__(self, function: LifespanFunction[S], location: str) -> None:
        self.name: str = getattr(function, "__name__", type(function).__name__)
        self.is_async = inspect.isasyncgenfunction(function)
        self._function = function
        self._location = location
        self._generator: Any = None
        self._value: Any = _UNSET
        self._thread: int | None = None
        if not self.is_async and not inspect.isgeneratorfunction(function):
            raise UsageError(
                f"lifespan {self.name!r} ({location}) is not a generator function: open what tasks need, `yield` it, "
                "then close it"
            )

        if needed := [
            one.name
            for one in inspect.signature(function).parameters.values()
            if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
        ]:
            raise UsageError(
                f"lifespan {self.name!r} ({location}) takes {', '.join(needed)}, and is called without arguments: "
                "use the app of its module"
            )

    def __repr__(self) -> str:
        return f"<Lifespan {self.name!r}>"

    @property
    def value(self) -> S:
        """What the generator yielded in this process. UsageError outside of a worker's child process, and for an async
        lifespan outside of the event loop's thread."""
        if self._value is _UNSET:
            raise UsageError(
                f"lifespan {self.name!r} is not open: it is open in the child processes of a worker, from before the "
                "first task until after the last"
            )
        if self.is_async and threading.get_ident() != self._thread:
            raise UsageError(
                f"lifespan {self.name!r} is async and belongs to the event loop of async tasks: read it in an "
                "`async def` task, or make the lifespan a plain generator"
            )
        return cast("S", self._value)

    # -- for the worker ---------------------------------------------------------------------------

    def enter(self) -> None:
        """Run the sync generator up to its `yield`."""
        self._begin()
        try:
            self._value = next(self._generator)
        except StopIteration:
            raise self._wrong("never yielded: it must `yield` once") from None

    async def enter_async(self) -> None:
        """Run the async generator up to its `yield`, on the loop where it will be closed."""
        self._begin()
        try:
            self._value = await anext(self._generator)
        except StopAsyncIteration:
            raise self._wrong("never yielded: it must `yield` once") from None

    def exit(self) -> None:
        """Run the sync generator from its `yield` to its end."""
        self._value = _UNSET
        try:
            next(self._generator)
        except StopIteration:
            return
        self._generator.close()
        raise self._wrong("yielded twice: it must `yield` once")

    async def exit_async(self) -> None:
        self._value = _UNSET
        try:
            await anext(self._generator)
        except StopAsyncIteration:
            return
        await self._generator.aclose()
        raise self._wrong("yielded twice: it must `yield` once")

    def _begin(self) -> None:
        self._thread = threading.get_ident()
        self._generator = self._function()

    def _wrong(self, why: str) -> LifespanError:
        return LifespanError(f"lifespan {self.name!r} ({self._location}) {why}")
