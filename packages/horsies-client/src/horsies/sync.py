"""Runs the synchronous methods: a background thread with an event loop, started at the first use.

Every `send()`, `get()` or `cancel()` runs its `_async` twin on that thread. This works from any thread, after a fork (a
child starts its own thread), in an atexit function, and inside a signal handler or a finalizer that interrupts another
such call. On a thread that runs an event loop a blocking call would stop that loop, so it is refused.

A signal handler runs on top of the frame that it interrupts, while the frame's locks are held. So this module never
waits for a lock that a caller can hold: shared state is changed by single dict and set operations, and a caller waits
for a raw lock that only the background thread releases.
"""

import _thread
import asyncio
import os
import sys
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, Generic, TypeVar

from horsies._pg import log
from horsies.errors import UsageError

R = TypeVar("R")

_GRACE_S = 1.0
_CLOSE_S = 10.0
_START_S = 5.0

Work = Callable[[], Coroutine[Any, Any, R]]


class BackgroundLoop:
    """The background thread of an app."""

    def __init__(self, on_close: Callable[[], Awaitable[None]]) -> None:
        self._on_close = on_close
        self._threads: dict[int, _LoopThread] = {}  # by process: a forked child has none
        _loops.add(self)

    def run(self, verb: str, work: Work[R]) -> R:
        """Run `work()` on the background thread and wait for it. `verb` names the method of the caller."""
        refuse_on_a_loop(verb)
        if sys.is_finalizing():
            raise UsageError(
                f"{verb}() was called after the interpreter began to take itself apart, in which no thread runs any "
                "more: call it before the program ends, or in an atexit function"
            )
        while True:
            thread = None if _is_exiting else self._threads.get(os.getpid()) or self._start()
            if thread is None:
                return self._run_here(work)
            call = thread.run(work)
            if call.has_begun:
                return call.result(verb)
            # the app was closed at that moment, or the thread has died: start another one
            if self._threads.get(os.getpid()) is thread:
                self._threads.pop(os.getpid(), None)

    def close(self) -> None:
        """Stop the thread and close its connections."""
        thread = self._threads.pop(os.getpid(), None)
        if thread is not None and not sys.is_finalizing():
            thread.close(self._on_close)

    def _start(self) -> "_LoopThread | None":
        """Start the thread of this process. If several callers start one, the first in the dict is kept."""
        made = _LoopThread()
        try:
            if not made.start():
                return None
            kept = self._threads.setdefault(os.getpid(), made)
        except BaseException:
            made.stop()
            raise
        if kept is not made:
            made.stop()
        return kept

    def _run_here(self, work: Work[R]) -> R:
        """Run the work on this thread, with its own connections, where no thread can be started: while the interpreter
        exits, and in a handler that interrupted the start of another thread."""
        loop = _new_loop()
        try:
            return loop.run_until_complete(work())
        finally:
            loop.run_until_complete(_finish(self._on_close))
            loop.close()

    def reset_after_fork(self) -> None:
        """Forget the threads of the parent process."""
        self._threads.clear()


class _LoopThread:
    """A thread with an event loop, and the calls that wait for it."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._loop.set_exception_handler(_report)
        self._thread = threading.Thread(target=self._serve, name="horsies-sync", daemon=True)
        self._calls: set[_Call[Any]] = set()
        self._is_closing = False
        self._has_ended = False

    def start(self) -> bool:
        """Start the thread and wait until its loop runs; False when that is impossible now."""
        if _is_interrupted_in_threading():
            return False
        first = _Call(_nothing)
        self._calls.add(first)
        self._loop.call_soon(first.begin)
        try:
            self._thread.start()
        except RuntimeError:  # "can't create new thread at interpreter shutdown", or too many of them
            self._loop.close()
            return False
        if first.wait(_START_S):
            return True
        self._tell(self._loop.stop)  # in case it starts later
        return False

    def run(self, work: Work[R]) -> "_Call[R]":
        """Run the work and wait for its end, unless this thread is ending."""
        call = _Call(work)
        self._calls.add(call)
        try:
            # The call is added before this check, because an ending thread first sets the flag, then ends all calls.
            if not self._has_ended and self._tell(partial(self._begin, call)):
                try:
                    call.wait()
                except BaseException:
                    self._tell(call.cancel)  # Ctrl-C while waiting: do not continue in the background
                    raise
        finally:
            self._calls.discard(call)
        return call

    def close(self, on_close: Callable[[], Awaitable[None]]) -> None:
        call = _Call(lambda: _finish(on_close))
        self._calls.add(call)
        if threading.get_ident() == self._thread.ident:  # in a finalizer that runs on that thread
            call.then(self._loop.stop)
            self._loop.call_soon(self._begin_last, call)
            return
        try:
            if self._tell(partial(self._begin_last, call)) and call.wait(_CLOSE_S):
                call.result("close")
        finally:
            self.stop()

    def stop(self) -> None:
        self._tell(self._loop.stop)
        if self._thread.ident is not None:
            self._thread.join(5)

    def _begin(self, call: "_Call[Any]") -> None:
        if self._is_closing:  # it would open connections that are never closed
            call.abandon()
        else:
            call.begin()

    def _begin_last(self, call: "_Call[Any]") -> None:
        self._is_closing = True
        call.begin()

    def _tell(self, callback: Callable[[], object]) -> bool:
        try:
            self._loop.call_soon_threadsafe(callback)
        except RuntimeError:  # the loop is closed
            return False
        return True

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        with log.from_a_thread_of_its_own():
            try:
                self._loop.run_forever()
            finally:
                self._has_ended = True
                self._loop.close()
                for call in list(self._calls):
                    call.abandon()


class _Call(Generic[R]):
    """A call that a thread waits for.

    Not a `concurrent.futures.Future`, whose lock both threads take: a handler that interrupts the caller while it holds
    the lock would wait for the background thread, which waits for the lock.
    """

    def __init__(self, work: Work[R]) -> None:
        self._work = work
        self._task: asyncio.Future[R] | None = None
        self._is_cancelled = False
        self._then: Callable[[], None] | None = None
        self._done = _thread.allocate_lock()
        self._done.acquire()

    # -- on the thread that waits ----------------------------------------------------------------

    def wait(self, timeout_s: float = -1) -> bool:
        return self._done.acquire(timeout=timeout_s)

    @property
    def has_begun(self) -> bool:
        return self._task is not None

    def result(self, verb: str) -> R:
        task = self._task
        if task is None or not task.done() or task.cancelled():
            raise UsageError(f"the app was closed while {verb}() was under way")
        return task.result()

    # -- on the thread of the loop ---------------------------------------------------------------

    def begin(self) -> None:
        if self._is_cancelled:
            return
        try:
            work = self._work()
        except BaseException as error:  # the caller waits for a task: without one it would wait for ever
            work = _raise(error)
        self._task = asyncio.ensure_future(work)
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    def then(self, callback: Callable[[], None]) -> None:
        """Call this function when the call has ended."""
        self._then = callback

    def abandon(self) -> None:
        """Wake the caller without a result, because the loop has ended."""
        if self._done.locked():
            self._done.release()

    def _end(self, task: "asyncio.Future[R]") -> None:
        if not task.cancelled():
            task.exception()  # the caller may be gone; asyncio would log the exception as never retrieved
        self._done.release()
        if self._then is not None:
            self._then()


def _new_loop() -> asyncio.AbstractEventLoop:
    """An event loop that looks up host names on a new thread per call. The thread pool of the standard library takes
    locks that an interrupted frame would keep, and accepts no work while the interpreter exits."""
    loop = asyncio.new_event_loop()

    def run_in_executor(executor: object, func: Callable[..., R], *args: Any) -> "asyncio.Future[R]":
        future: asyncio.Future[R] = loop.create_future()

        def call() -> None:
            try:
                end = partial(_settle, future, future.set_result, func(*args))
            except BaseException as error:
                end = partial(_settle, future, future.set_exception, error)
            with suppress(RuntimeError):  # the loop was closed in the meantime
                loop.call_soon_threadsafe(end)

        try:
            _thread.start_new_thread(call, ())
        except RuntimeError:  # no more threads: block the loop instead
            call()
        return future

    with suppress(AttributeError):  # a loop in C, such as uvloop's, has a fixed method
        loop.run_in_executor = run_in_executor
    return loop


def _settle(future: "asyncio.Future[Any]", settle: Callable[[Any], None], end: object) -> None:
    if not future.done():
        settle(end)


def _is_interrupted_in_threading() -> bool:
    """True if this thread holds the lock that a new thread needs before it runs: a signal handler or a finalizer has
    interrupted the start of a thread, and would wait for ever for another one."""
    is_owned = getattr(getattr(threading, "_active_limbo_lock", None), "_is_owned", None)
    return is_owned is not None and is_owned()


def refuse_on_a_loop(verb: str) -> None:
    """Raise UsageError if this thread runs an event loop."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(f"{verb}() blocks and was called on a running event loop: use `await {verb}_async(...)` here")


def _report(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    log.error("background loop: %s", context.get("message"), exc_info=error if error is not None else False)


async def _nothing() -> None:
    pass


async def _raise(error: BaseException) -> Any:
    raise error


async def _finish(on_close: Callable[[], Awaitable[None]]) -> None:
    """Close the connections, then cancel the remaining calls; their callers get a UsageError."""
    await on_close()
    rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if rest:
        await asyncio.wait(rest, timeout=_GRACE_S)  # most end with an error now, because their connections are closed
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


_loops: "weakref.WeakSet[BackgroundLoop]" = weakref.WeakSet()
_is_exiting = False


def _after_fork() -> None:
    for loop in list(_loops):
        loop.reset_after_fork()


def close_at_exit() -> None:
    """Stop the threads of all apps. Later calls, from other atexit functions, run on the caller's thread."""
    global _is_exiting
    _is_exiting = True
    for loop in list(_loops):
        loop.close()


os.register_at_fork(after_in_child=_after_fork)
