"""Log records name the task that they belong to. Apps that configure no logging get a handler for stderr."""

import json
import logging
import math
import re
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final, cast

from horsies._text import one_line, plural, printable
from horsies.context import find_current_call, find_current_task

log: Final = logging.getLogger("horsies.worker")
_TASK: Final = "horsies_task"
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName", _TASK}
"""The attributes of every record; the others are `extra`."""
_MAX_DEPTH: Final = 20


class QueuedRecord(logging.LogRecord):
    """A record of the parent, behind its log queue. `msg` is the whole text, for any formatter; JSON lines have the
    exception in a field of its own. In slots: formatters take what is in `__dict__` for `extra`."""

    __slots__ = ("exception", "plain_message")
    plain_message: str
    exception: str | None


def about(
    task_id: str, task_name: str | None = None, attempt: int | None = None, **fields: object
) -> dict[str, object]:
    """Return `extra=` for a record of the parent about a task, so that JSON lines can be searched by task."""
    known = {"task_id": task_id, "task_name": task_name, "attempt": attempt, **fields}
    return {name: value for name, value in known.items() if value is not None}


class _TaskFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        task = find_current_task()
        shown = "" if task is None else f" [{one_line(task.task_name)} {task.task_id} attempt {task.attempt}]"
        if task is None and (call := find_current_call()) is not None:
            shown = f" [{one_line(call.task_name)} {plural(len(call.tasks), 'task')} from {call.tasks[0].task_id}]"
        setattr(record, _TASK, shown)  # not `task`: that may be the user's own `extra`
        return True


_NOT_ASCII: Final = re.compile(r"[^\x00-\x7f]+")


class _TextFormatter(logging.Formatter):
    """Indents the lines behind the first: no message, no traceback may look like a line of the log."""

    def format(self, record: logging.LogRecord) -> str:
        return _UNINDENTED.sub("\n  ", super().format(record))


_UNINDENTED: Final = re.compile(r"\n(?! )")


class _JsonFormatter(logging.Formatter):
    """One JSON object per line. The `extra` of the record is part of it, but cannot replace the fields of horsies."""

    def format(self, record: logging.LogRecord) -> str:
        task = find_current_task()
        message, exception = _texts(record, self)
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": message,
            "pid": record.process,
        }
        if _worker:
            line["worker_id"] = _worker[0]
        if task is not None:
            line |= about(task.task_id, task.task_name, task.attempt, queue=task.queue_name)
        elif (call := find_current_call()) is not None:
            line |= {"task_name": call.task_name, "task_ids": [one.task_id for one in call.tasks]}
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD and name not in line}
        if exception:
            line["exception"] = exception
        if record.stack_info:
            line["stack"] = record.stack_info
        try:
            text = json.dumps(line, default=_text, allow_nan=False, ensure_ascii=False)
        except Exception:  # an `extra` of the app: NaN, a key that is no text, a cycle, or changed meanwhile
            plain = {name: _plain(value, _MAX_DEPTH) for name, value in line.items()}
            text = json.dumps(plain, ensure_ascii=False)
        if text.isascii():
            return text
        # half of a surrogate pair is no JSON: readers such as jq would stop there
        text = text.encode("utf-8", "replace").decode()
        return _NOT_ASCII.sub(lambda found: json.dumps(found.group())[1:-1], text)


def _texts(record: logging.LogRecord, formatter: logging.Formatter) -> tuple[str, str | None]:
    """Message and exception of the record, without the traceback that has a field of its own."""
    if isinstance(record, QueuedRecord):
        message, exception = record.plain_message, record.exception
    else:
        message = record.getMessage()
        exception = formatter.formatException(record.exc_info) if record.exc_info else None
    traceback = getattr(record, "traceback", None)
    if isinstance(traceback, str) and traceback:
        message = message.removesuffix(indented(traceback))
    return message, exception


def indented(traceback: str) -> str:
    """The lines of a traceback behind a message. Indented, because the message of its exception is hostile input: none
    of its lines may look like a line of the log."""
    return "".join(f"\n  {line}" for line in printable(traceback.rstrip()).split("\n"))


def _text(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<its __str__ raised {type(error).__name__}>"


def _plain(value: Any, depth: int) -> object:
    """Return the value with everything that JSON cannot hold turned into text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    try:
        if depth and isinstance(value, Mapping):
            items = list(cast("Mapping[object, object]", value).items())
            return {_text(name): _plain(item, depth - 1) for name, item in items}
        if depth and isinstance(value, list | tuple):
            return [_plain(item, depth - 1) for item in list(cast("list[object]", value))]
    except Exception as error:  # a mapping of the app's own
        return f"<unreadable: {type(error).__name__}>"
    return "..." if not depth and isinstance(value, Mapping | list | tuple) else _text(value)


_worker: list[str] = []


def name_worker(worker_id: str) -> None:
    """Add the worker's id to JSON lines from now on."""
    _worker[:] = [worker_id] if worker_id else []


def logs_json() -> bool:
    """Whether the lines of this process are JSON."""
    return any(isinstance(handler.formatter, _JsonFormatter) for handler in logging.getLogger().handlers)


def configure_logging(level: str, style: str) -> None:
    """Log to stderr, unless the app configured logging."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_TaskFilter())
    if style == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(_TextFormatter(f"%(asctime)s %(levelname)s %(name)s%({_TASK})s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(level)
