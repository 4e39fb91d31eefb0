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

from horsies.events import Event
from horsies_worker.events.bus import EventBus

MAX_WAITING: Final = 10_000
CLOSE_S: Final = 2.0
_TELL_EVERY_S: Final = 60.0
_log = logging.getLogger("horsies.worker")

Handler = Callable[[Any], object]


class UserHandlers:
    def __init__(self, bus: EventBus, handlers: Sequence[tuple[type[Event], Handler]]) -> None:
        self._waiting: queue.Queue[tuple[Handler, Event] | None] = queue.Queue(MAX_WAITING)
        self._thread = threading.Thread(target=self._serve, name="horsies-events", daemon=True)
        self.dropped = 0
        self._told_at = -_TELL_EVERY_S
        for kind, handler in handlers:
            bus.subscribe(kind, partial(self._put, handler))
        if handlers:
            self._thread.start()

    def close(self, seconds: float = CLOSE_S) -> None:
        """Let the handlers finish what waits, not for ever."""
        if self._thread.is_alive():
            try:
                self._waiting.put(None, timeout=seconds / 2)
            except queue.Full:
                return
            self._thread.join(seconds / 2)

    def _put(self, handler: Handler, event: Event) -> None:
        try:
            self._waiting.put_nowait((handler, event))
        except queue.Full:
            self.dropped += 1
            if time.monotonic() - self._told_at >= _TELL_EVERY_S:
                self._told_at = time.monotonic()
                _log.warning("the app's event handlers are too slow: %d events dropped so far", self.dropped)

    def _serve(self) -> None:
        while (item := self._waiting.get()) is not None:
            handler, event = item
            try:
                handler(event)
            except Exception:
                name = getattr(handler, "__qualname__", repr(handler))
                _log.exception("event handler %s failed on %s", name, type(event).__name__)
