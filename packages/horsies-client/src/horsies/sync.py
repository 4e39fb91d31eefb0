"""The synchronous verbs: one background thread with an event loop, made on first use.

Every `send()`, `get()` or `cancel()` is its `_async` twin run over there. Works from any thread, after a
fork (a child makes its own), in an atexit function, and inside a signal handler or a finalizer that interrupts
another such call. On a thread that already runs an event loop a blocking call would stop
that loop, so it is refused with a sentence that names the twin.

A signal handler runs on top of the frame that it interrupts, with every lock that the frame holds still held. So
nothing here waits for a lock that a caller can hold: shared state is changed by single dict and set operations,
and the two threads meet in a raw lock that the background thread only releases.
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
    """One per app."""

    def __init__(self, on_close: Callable[[], Awaitable[None]]) -> None:
        self._on_close = on_close
        self._threads: dict[int, _LoopThread] = {}  # by process: a forked child has none
        _loops.add(self)

    def run(self, verb: str, work: Work[R]) -> R:
        """Run `work()` there and wait for it. `verb` is what the caller called."""
        refuse_on_a_loop(verb)
        if sys.is_finalizing():
            raise _exiting(verb)
        while True:
            thread = None if _is_exiting else self._threads.get(os.getpid()) or self._start()
            if thread is None:
                return self._run_here(work)
            call = thread.run(work)
            if call.has_begun:
                return call.result(verb)
            # the app was closed at that very moment, or the thread has died: on another one, then
            if self._threads.get(os.getpid()) is thread:
                self._threads.pop(os.getpid(), None)

    def close(self) -> None:
        """End the thread; closes the connections that it held."""
        thread = self._threads.pop(os.getpid(), None)
        if thread is not None and not sys.is_finalizing():
            thread.close(self._on_close)

    def _start(self) -> "_LoopThread | None":
        """The thread of this process. Several callers may each start one; the first to be entered is kept."""
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
        """Run it on this thread, with connections of its own, where no thread can be started: while the interpreter
        exits, and in a handler that interrupted the start of another thread."""
        loop = _new_loop()
        try:
            return loop.run_until_complete(work())
        finally:
            loop.run_until_complete(_finish(self._on_close))
            loop.close()

    def reset_after_fork(self) -> None:
        """A forked child has none of its parent's threads."""
        self._threads.clear()


class _LoopThread:
    """An event loop on a thread of its own, and the calls that wait for it."""

    def __init__(self) -> None:
        self._loop = _new_loop()
        self._loop.set_exception_handler(_report)
        self._thread = threading.Thread(target=self._serve, name="horsies-sync", daemon=True)
        self._calls: set[_Call[Any]] = set()
        self._is_closing = False
        self._has_ended = False

    def start(self) -> bool:
        """Start and wait until it serves; False when this cannot be had here and now."""
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
        self._tell(self._loop.stop)  # should it ever come up
        return False

    def run(self, work: Work[R]) -> "_Call[R]":
        """Run it and wait for its end, unless this thread is ending."""
        call = _Call(work)
        self._calls.add(call)
        try:
            # This order: a thread that ends marks itself first, and then ends the calls that it finds.
            if not self._has_ended and self._tell(partial(self._begin, call)):
                try:
                    call.wait()
                except BaseException:
                    self._tell(call.cancel)  # Ctrl-C while waiting: do not go on in the background
                    raise
        finally:
            self._calls.discard(call)
        return call

    def close(self, on_close: Callable[[], Awaitable[None]]) -> None:
        call = _Call(lambda: _finish(on_close))
        self._calls.add(call)
        if threading.get_ident() == self._thread.ident:  # a finalizer that the collector runs there
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
        if self._is_closing:  # it would open connections that no one closes
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
    """One call that a thread waits for.

    Not a `concurrent.futures.Future`: that one has a lock for both sides. A handler that interrupts the waiting side
    while it holds the lock would wait for a background thread that waits for the lock.
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
            raise _closed(verb)
        return task.result()

    # -- on the thread of the loop ---------------------------------------------------------------

    def begin(self) -> None:
        if self._is_cancelled:
            return
        self._task = asyncio.ensure_future(self._work())
        self._task.add_done_callback(self._end)

    def cancel(self) -> None:
        self._is_cancelled = True
        if self._task is not None:
            self._task.cancel()

    def then(self, callback: Callable[[], None]) -> None:
        """Call this at its end."""
        self._then = callback

    def abandon(self) -> None:
        """The loop has ended: wake the caller, if no result has."""
        if self._done.locked():
            self._done.release()

    def _end(self, task: "asyncio.Future[R]") -> None:
        if not task.cancelled():
            task.exception()  # the caller may be gone; asyncio would tell of an exception that no one has seen
        self._done.release()
        if self._then is not None:
            self._then()


def _new_loop() -> asyncio.AbstractEventLoop:
    """A loop that looks up host names on a thread per call. The pool of the standard library takes locks that a frame
    which was interrupted in it would keep, and takes no work while the interpreter exits."""
    loop = asyncio.new_event_loop()

    def run_in_executor(executor: object, func: Callable[..., R], *args: Any) -> "asyncio.Future[R]":
        future: asyncio.Future[R] = loop.create_future()

        def call() -> None:
            try:
                end = partial(_set_result, future, func(*args))
            except BaseException as error:
                end = partial(_set_exception, future, error)
            with suppress(RuntimeError):  # the loop was closed meanwhile
                loop.call_soon_threadsafe(end)

        try:
            _thread.start_new_thread(call, ())
        except RuntimeError:  # no more threads: block the loop for as long as it takes
            call()
        return future

    with suppress(AttributeError):  # a loop in C, such as uvloop's, has its own way
        loop.run_in_executor = run_in_executor
    return loop


def _set_result(future: "asyncio.Future[R]", value: R) -> None:
    if not future.done():
        future.set_result(value)


def _set_exception(future: "asyncio.Future[Any]", error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


def _is_interrupted_in_threading() -> bool:
    """Whether this thread holds the lock that a new thread needs before it runs: then a signal handler or a finalizer
    has interrupted the start of a thread, and waiting for another one would be for ever."""
    is_owned = getattr(getattr(threading, "_active_limbo_lock", None), "_is_owned", None)
    return is_owned is not None and is_owned()


def refuse_on_a_loop(verb: str) -> None:
    """Raise unless this thread may block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(f"{verb}() blocks and was called on a running event loop: use `await {verb}_async(...)` here")


def _closed(verb: str) -> UsageError:
    return UsageError(f"the app was closed while {verb}() was under way")


def _exiting(verb: str) -> UsageError:
    return UsageError(
        f"{verb}() was called after the interpreter began to take itself apart, in which no thread runs any more: "
        "call it before the program ends, or in an atexit function"
    )


def _report(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    error = context.get("exception")
    log.error("background loop: %s", context.get("message"), exc_info=error if error is not None else False)


async def _nothing() -> None:
    pass


async def _finish(on_close: Callable[[], Awaitable[None]]) -> None:
    """Close what is open, then end what still runs: its callers are told that the app was closed."""
    await on_close()
    rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if rest:
        await asyncio.wait(rest, timeout=_GRACE_S)  # most have just been told, and say so to their callers
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


_loops: "weakref.WeakSet[BackgroundLoop]" = weakref.WeakSet()
_is_exiting = False


def _after_fork() -> None:
    for loop in list(_loops):
        loop.reset_after_fork()


def close_at_exit() -> None:
    """End the threads of all apps. Calls that come later, from other atexit functions, run on their own thread."""
    global _is_exiting
    _is_exiting = True
    for loop in list(_loops):
        loop.close()


os.register_at_fork(after_in_child=_after_fork)
