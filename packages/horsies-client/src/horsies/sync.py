"""The synchronous verbs: one background thread with an event loop, made on first use.

Every `send()`, `get()` or `cancel()` is its `_async` twin run over there. Works from any thread and after a
fork (a child makes its own). On a thread that already runs an event loop a blocking call would stop
that loop, so it is refused with a sentence that names the twin.
"""

import asyncio
import atexit
import concurrent.futures
import os
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from horsies.errors import UsageError

R = TypeVar("R")

_GRACE_S = 1.0


class BackgroundLoop:
    """One per app."""

    def __init__(self, on_close: Callable[[], Awaitable[None]]) -> None:
        self._on_close = on_close
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._pid = 0
        _loops.add(self)

    def run(self, verb: str, work: Callable[[], Coroutine[Any, Any, R]]) -> R:
        """Run `work()` there and wait for it. `verb` is what the caller called."""
        refuse_on_a_loop(verb)
        with self._lock:  # a close in between would leave the work on a loop that no longer turns
            future = asyncio.run_coroutine_threadsafe(work(), self._running_loop())
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            raise UsageError(f"the app was closed while {verb}() was under way") from None
        except BaseException:
            future.cancel()  # Ctrl-C while waiting: do not go on in the background
            raise

    def close(self) -> None:
        """End the thread; closes the connections that it held."""
        with self._lock:
            loop, thread, self._loop, self._thread = self._loop, self._thread, None, None
        if loop is None or thread is None or self._pid != os.getpid():
            return
        try:
            asyncio.run_coroutine_threadsafe(_finish(self._on_close), loop).result(10)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(5)

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        """Call with the lock held."""
        if self._loop is None or self._pid != os.getpid():
            loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=_serve, args=(loop,), name="horsies-sync", daemon=True)
            self._thread.start()
            self._loop, self._pid = loop, os.getpid()
        return self._loop

    def reset_after_fork(self) -> None:
        """In a forked child the thread does not exist, and the lock may be held by nobody."""
        self._lock = threading.Lock()
        self._loop = self._thread = None


def refuse_on_a_loop(verb: str) -> None:
    """Raise unless this thread may block."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise UsageError(f"{verb}() blocks and was called on a running event loop: use `await {verb}_async(...)` here")


def _serve(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        loop.close()


async def _finish(on_close: Callable[[], Awaitable[None]]) -> None:
    """Close what is open, then end what still runs: nobody waits for it any more."""
    await on_close()
    rest = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if rest:
        await asyncio.wait(rest, timeout=_GRACE_S)  # most have just been told, and say so to their callers
    for task in rest:
        task.cancel()
    await asyncio.gather(*rest, return_exceptions=True)


_loops: "weakref.WeakSet[BackgroundLoop]" = weakref.WeakSet()


def _after_fork() -> None:
    for loop in list(_loops):
        loop.reset_after_fork()


def _at_exit() -> None:
    for loop in list(_loops):
        loop.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
