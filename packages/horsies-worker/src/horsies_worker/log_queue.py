"""The parent's log lines go through a bounded queue to a thread that writes them.

A sink that stops reading must not stop claims, heartbeats and results. What does not fit is counted, and told once
there is room again.
"""

import logging
import queue
import threading
from collections.abc import Generator
from contextlib import contextmanager
from logging.handlers import QueueHandler, QueueListener
from typing import Final

_MAX_LINES: Final = 10_000
_FAREWELL_S: Final = 2.0


class _BoundedHandler(QueueHandler):
    dropped = 0

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
            if self.dropped:
                count, self.dropped = self.dropped, 0
                logging.getLogger("horsies.worker").warning(
                    "%d log lines were dropped: the log sink was blocked", count
                )
        except queue.Full:
            self.dropped += 1


class LogOutput:
    """`is_blocked`: the sink took nothing more at the end; waiting for it, as an ordinary exit does, would hang."""

    is_blocked = False


@contextmanager
def queued_logging() -> Generator[LogOutput]:
    """Put the root logger's handlers behind the queue for as long as the block runs."""
    output = LogOutput()
    root = logging.getLogger()
    handlers = list(root.handlers)
    lines: queue.Queue[logging.LogRecord] = queue.Queue(_MAX_LINES)
    front = _BoundedHandler(lines)
    listener = QueueListener(lines, *handlers, respect_handler_level=True)
    root.handlers[:] = [front]
    listener.start()
    try:
        yield output
    finally:
        root.handlers[:] = handlers
        # in a thread: with a blocked sink this would never return, and the worker is done
        ending = threading.Thread(target=listener.stop, daemon=True)
        ending.start()
        ending.join(_FAREWELL_S)
        output.is_blocked = ending.is_alive()
