"""The parent's log lines go through a bounded queue to a thread that writes them.

A sink that stops reading must not stop claims, heartbeats and results. Lines that do not fit into the queue are
dropped; the next line that fits is followed by their count.
"""

import logging
import queue
import threading
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from horsies._text import Lines, one_line, plural, printable
from horsies_worker.output.log_context import QueuedRecord, indented

_MAX_LINES: Final = 10_000
_CLOSE_S: Final = 2.0

# QueueHandler and QueueListener would do, but importing logging.handlers costs half a megabyte.


class _QueueHandler(logging.Handler):
    """Puts records into the queue, without references to their arguments and frames."""

    def __init__(self, lines: "queue.Queue[logging.LogRecord | None]") -> None:
        super().__init__()
        self._lines = lines
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            queued = _queued(record)
        except Exception:  # arguments that do not fit the message: the caller must not fail because it logs
            self.handleError(record)
            return
        try:
            self._lines.put_nowait(queued)
            if self._dropped:
                count, self._dropped = self._dropped, 0
                logging.getLogger("horsies.worker").warning(
                    "%s dropped: the log sink was blocked", plural(count, "log line")
                )
        except queue.Full:
            self._dropped += 1


_texts: Final = logging.Formatter()


def _queued(record: logging.LogRecord) -> QueuedRecord:
    """A copy with the finished texts, and without references to arguments and frames."""
    queued = QueuedRecord.__new__(QueuedRecord)
    queued.__dict__.update(vars(record))
    exception = _texts.formatException(record.exc_info) if record.exc_info else record.exc_text
    stack = _texts.formatStack(record.stack_info) if record.stack_info else ""
    if record.name.partition(".")[0] == "horsies":
        queued.args = _escaped(record.args)
        queued.plain_message = printable(queued.getMessage())
        queued.msg = queued.plain_message + "".join(indented(text) for text in (exception, stack) if text)
    else:
        queued.plain_message = queued.getMessage()
        queued.msg = "\n".join(text for text in (queued.plain_message, exception, stack) if text)
    queued.exception = "\n".join(text for text in (exception, stack) if text) or None
    queued.args = queued.exc_info = queued.exc_text = queued.stack_info = None
    return queued


def _escaped(args: "tuple[object, ...] | Mapping[str, object] | None") -> Any:
    """Names of tasks, queues and workers, and texts of errors, are hostile input: none may start a new line."""
    if args is None or isinstance(args, tuple):
        return tuple(map(_escaped_one, args or ()))
    return {name: _escaped_one(value) for name, value in args.items()}


def _escaped_one(value: object) -> object:
    if isinstance(value, Lines) or not isinstance(value, str | BaseException):
        return value
    return one_line(str(value))


def _write(lines: "queue.Queue[logging.LogRecord | None]", handlers: Sequence[logging.Handler]) -> None:
    while (record := lines.get()) is not None:
        for handler in handlers:
            if record.levelno >= handler.level:
                handler.handle(record)


class LogOutput:
    """`is_blocked`: the sink did not take the last lines; an ordinary exit would wait for it forever."""

    is_blocked = False


@contextmanager
def queued_logging() -> Generator[LogOutput]:
    """Put the root logger's handlers behind the queue while the block runs."""
    output = LogOutput()
    root = logging.getLogger()
    handlers = list(root.handlers)
    lines: queue.Queue[logging.LogRecord | None] = queue.Queue(_MAX_LINES)
    writer = threading.Thread(target=_write, args=(lines, handlers), name="horsies-log", daemon=True)
    root.handlers[:] = [_QueueHandler(lines)]
    writer.start()
    try:
        yield output
    finally:
        root.handlers[:] = handlers
        # a blocked sink never takes the rest, so wait only this long
        with suppress(queue.Full):
            lines.put(None, timeout=_CLOSE_S)
            writer.join(_CLOSE_S)
        output.is_blocked = writer.is_alive()
