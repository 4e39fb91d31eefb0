"""The parent's log lines go through a bounded queue to a thread that writes them.

A sink that stops reading must not stop claims, heartbeats and results. What does not fit is counted, and told once
there is room again.
"""

import copy
import logging
import queue
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from horsies._text import Lines, one_line, plural, printable

_MAX_LINES: Final = 10_000
_FAREWELL_S: Final = 2.0

# Not with logging.handlers: its two classes for this are short, and what that module imports is half a megabyte.


class _Front(logging.Handler):
    """Puts records into the queue, without the arguments and frames that they hold on to."""

    def __init__(self, lines: "queue.Queue[logging.LogRecord | None]") -> None:
        super().__init__()
        self._lines = lines
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        told = copy.copy(record)
        if record.name.partition(".")[0] == "horsies":
            told.args = _inert(record.args)
            told.msg = printable(self.format(told))
        else:
            told.msg = self.format(record)
        told.args = told.exc_info = told.exc_text = told.stack_info = None
        try:
            self._lines.put_nowait(told)
            if self._dropped:
                count, self._dropped = self._dropped, 0
                logging.getLogger("horsies.worker").warning(
                    "%s dropped: the log sink was blocked", plural(count, "log line")
                )
        except queue.Full:
            self._dropped += 1


def _inert(args: "tuple[object, ...] | Mapping[str, object] | None") -> Any:
    """Names of tasks, queues and workers, and what errors say, are hostile input: none may begin a line of its own."""
    if args is None or isinstance(args, tuple):
        return tuple(map(_inert_one, args or ()))
    return {name: _inert_one(value) for name, value in args.items()}


def _inert_one(value: object) -> object:
    if isinstance(value, Lines) or not isinstance(value, str | BaseException):
        return value
    return one_line(str(value))


def _write(lines: "queue.Queue[logging.LogRecord | None]", handlers: Sequence[logging.Handler]) -> None:
    while (record := lines.get()) is not None:
        for handler in handlers:
            if record.levelno >= handler.level:
                handler.handle(record)


class LogOutput:
    """`is_blocked`: the sink took nothing more at the end; waiting for it, as an ordinary exit does, would hang."""

    is_blocked = False


@contextmanager
def queued_logging() -> Generator[LogOutput]:
    """Put the root logger's handlers behind the queue for as long as the block runs."""
    output = LogOutput()
    root = logging.getLogger()
    handlers = list(root.handlers)
    lines: queue.Queue[logging.LogRecord | None] = queue.Queue(_MAX_LINES)
    writer = threading.Thread(target=_write, args=(lines, handlers), name="horsies-log", daemon=True)
    root.handlers[:] = [_Front(lines)]
    writer.start()
    try:
        yield output
    finally:
        root.handlers[:] = handlers
        # with a blocked sink there is no end to wait for, and the worker is done
        with suppress(queue.Full):
            lines.put(None, timeout=_FAREWELL_S)
            writer.join(_FAREWELL_S)
        output.is_blocked = writer.is_alive()
