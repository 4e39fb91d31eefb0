"""Calls the app's event handlers (`app.on_event`) on one thread, so that slow ones cannot hold up the worker.

The queue is bounded: events that find it full are dropped and counted.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from horsies._text import plural
from horsies.events import Event
from horsies_worker.events.bus import EventBus

MAX_WAITING: Final = 10_000
CLOSE_S: Final = 1.5
_TELL_EVERY_S: Final = 60.0
_log = logging.getLogger("horsies.worker")

Handler = Callable[[Any], object]


class UserHandlers:
    """Serves from the beginning to `close`. The thread is a daemon: a handler that hangs cannot keep the process."""

    def __init__(self, bus: EventBus, handlers: Sequence[tuple[type[Event], Handler]]) -> None:
        self._waiting: queue.Queue[tuple[Handler, Event] | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._serve, name="horsies-events", daemon=True)
        self.dropped = 0
        self._told_at = -_TELL_EVERY_S
        self._is_closed = False
        for kind, handler in handlers:
            bus.subscribe(kind, partial(self._put, handler))
        if handlers:
            self._thread.start()

    def close(self, seconds: float = CLOSE_S) -> None:
        """Let the handlers finish what waits, for so long; the rest is dropped and counted."""
        if not self._thread.is_alive():
            return
        began = time.monotonic()
        try:
            self._waiting.put(None, timeout=seconds)
            self._thread.join(max(0.0, seconds - (time.monotonic() - began)))
        except queue.Full:
            pass
        if self._thread.is_alive():
            self._is_closed = True
            left = self._discard()
            self.dropped += left
            _log.warning(
                "the app's event handlers have not finished within %.3g s: %s dropped", seconds, plural(left, "event")
            )

    def _discard(self) -> int:
        """Empty the queue, so that the thread ends after the handler that it is in."""
        left = 0
        while True:
            try:
                left += self._waiting.get_nowait() is not None
            except queue.Empty:
                break
        self._waiting.put(None)
        return left

    def _put(self, handler: Handler, event: Event) -> None:
        try:
            if self._is_closed:
                raise queue.Full
            self._waiting.put_nowait((handler, event))
        except queue.Full:
            self.dropped += 1
            if time.monotonic() - self._told_at >= _TELL_EVERY_S:
                self._told_at = time.monotonic()
                _log.warning("the app's event handlers are too slow: %s dropped so far", plural(self.dropped, "event"))

    def _serve(self) -> None:
        while (item := self._waiting.get()) is not None:
            handler, event = item
            try:
                handler(event)
            except BaseException:  # also SystemExit: the thread serves the other handlers as well
                _log.exception("event handler %s failed on %s", _named(handler), type(event).__name__)


def _named(handler: Handler) -> str:
    """The name of the function, or of the class of a callable object: its repr is user code, and may raise."""
    name = getattr(handler, "__qualname__", None)
    return name if isinstance(name, str) else type(handler).__qualname__
