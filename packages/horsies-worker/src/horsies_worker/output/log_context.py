"""Log records name the task that they belong to. Apps that configure no logging get a handler for stderr."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from horsies._text import one_line
from horsies.context import find_current_task

log: Final = logging.getLogger("horsies.worker")
_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "task", "taskName"}
"""The attributes of every record; the others are `extra`."""


def about(
    task_id: str, task_name: str | None = None, attempt: int | None = None, **fields: object
) -> dict[str, object]:
    """Return `extra=` for a record of the parent about a task, so that JSON lines can be searched by task."""
    known = {"task_id": task_id, "task_name": task_name, "attempt": attempt, **fields}
    return {name: value for name, value in known.items() if value is not None}


class _TaskFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        task = find_current_task()
        record.task = "" if task is None else f" [{one_line(task.task_name)} {task.task_id} attempt {task.attempt}]"
        return True


class _JsonFormatter(logging.Formatter):
    """One JSON object per line. The `extra` of the record is part of it, but cannot replace the fields of horsies."""

    def format(self, record: logging.LogRecord) -> str:
        task = find_current_task()
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        if _worker:
            line["worker_id"] = _worker[0]
        if task is not None:
            line |= about(task.task_id, task.task_name, task.attempt, queue=task.queue_name)
        line |= {name: value for name, value in vars(record).items() if name not in _STANDARD and name not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


_worker: list[str] = []


def name_worker(worker_id: str) -> None:
    """Add the worker's id to JSON lines from now on."""
    _worker[:] = [worker_id] if worker_id else []


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
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s%(task)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(level)
