"""Where the kit runs things: blocking code beside a running event loop, coroutines in a thread without one, and the
event loop of `async def` tasks."""

import asyncio
import contextvars
import os
import queue
import threading
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, NoReturn, Protocol, TypeVar

R = TypeVar("R")
lent: Final[contextvars.ContextVar[asyncio.AbstractEventLoop | None]] = contextvars.ContextVar(
    "horsies_testing_loop", default=None
)
"""The loop for `async def` tasks, where they use a connection that belongs to it."""


class Runner(Protocol):
    """Runs blocking code for a coroutine."""

    def __call__(self, work: Callable[[], R], /) -> Awaitable[R]: ...


class TaskLoop:
    """The event loop of `async def` tasks and async lifespans, in a thread of its own. Started at the first use."""

    def __init__(self) -> None:
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None or self._pid != os.getpid():  # a forked child has no threads
                self._pid = os.getpid()
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="horsies-testing", daemon=True)
                self._thread.start()
            return self._loop

    def close(self) -> None:
        """End the loop with the process: an open one would be a ResourceWarning."""
        if self._loop is not None and self._thread is not None and self._pid == os.getpid():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(2)
            if not self._loop.is_running():
                self._loop.close()

    def run(self, work: Callable[[], Coroutine[Any, Any, R]], context: contextvars.Context) -> R:
        """Run a coroutine on the loop, or on the one that is `lent` here, in this context, and wait for it."""
        loop, done, ended = lent.get() or self.loop, threading.Event(), list[asyncio.Task[_End[R]]]()

        def finish(task: asyncio.Task[_End[R]]) -> None:
            ended.append(task)
            done.set()

        def start() -> None:
            loop.create_task(_ended(work()), context=context).add_done_callback(finish)

        loop.call_soon_threadsafe(start)
        done.wait()
        return ended[0].result()()


_End = Callable[[], R]


async def _ended(work: Coroutine[Any, Any, R]) -> _End[R]:
    """Keep what ends a process, such as Ctrl-C in a task that a drain runs, out of the event loop: it would end the
    loop, and all that wait for it would wait for ever. The caller gets it by calling what this returns."""
    try:
        value = await work
    except (KeyboardInterrupt, SystemExit) as error:
        return partial(_raise, error)
    return lambda: value


def _raise(error: BaseException) -> NoReturn:
    raise error


task_loop: Final = TaskLoop()


async def in_thread(work: Callable[[], R]) -> R:
    """Run blocking code beside the running loop. A thread for each: those of an executor are few, and sends inside
    sends would wait for each other."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()
    context = contextvars.copy_context()

    def report(value: R | None, error: BaseException | None) -> None:
        if future.cancelled():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # pyright: ignore[reportArgumentType] # R may be None

    def run() -> None:
        value, failed = None, None
        try:
            value = context.run(work)
        except BaseException as error:
            failed = error
        try:
            loop.call_soon_threadsafe(report, value, failed)
        except RuntimeError:
            pass  # the caller was cancelled, and its loop is closed

    threading.Thread(target=run, name="horsies-testing-task", daemon=True).start()
    return await future


def off_the_loop(work: Callable[[], R]) -> R:
    """Run blocking code here or, where this thread runs an event loop, in another one, and wait for it."""
    if not _runs_a_loop():
        return work()
    results: list[R] = []
    errors: list[BaseException] = []
    context = contextvars.copy_context()

    def run() -> None:
        try:
            results.append(context.run(work))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="horsies-testing-task", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


def _runs_a_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def with_this_thread(work: Callable[[Runner], Coroutine[Any, Any, R]]) -> R:
    """Run a coroutine on the kit's own event loop. What it gives to the `Runner` runs in this thread, which has no
    loop: thread locals are those of the caller, and synchronous sends are allowed."""
    jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
    loop = task_loop.loop
    started: list[asyncio.Task[_End[R]]] = []

    async def here(job: Callable[[], Any]) -> Any:
        future: asyncio.Future[Any] = loop.create_future()

        def run() -> None:
            try:
                value, report = job(), future.set_result
            except BaseException as error:
                value, report = error, future.set_exception
            loop.call_soon_threadsafe(lambda: None if future.done() else report(value))

        jobs.put(run)
        return await future

    def start() -> None:
        started.append(loop.create_task(_ended(work(here)), context=contextvars.Context()))
        started[0].add_done_callback(lambda _: jobs.put(None))

    loop.call_soon_threadsafe(start)
    try:
        while (job := jobs.get()) is not None:
            job()
    except BaseException:  # Ctrl-C while the database works
        for task in started:
            loop.call_soon_threadsafe(task.cancel)
        raise
    return started[0].result()()
