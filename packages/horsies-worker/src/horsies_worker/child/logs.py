"""Logging of a worker whose app configured none: to stderr, each record naming the task it belongs to."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from horsies._text import one_line
from horsies.context import find_current_task

_ABOUT: Final = ("task_id", "task_name", "attempt")


def about(task_id: str, task_name: str | None = None, attempt: int | None = None) -> dict[str, object]:
    """`extra=` for a record that the parent writes about a task: JSON lines can then be searched by it."""
    known = {"task_id": task_id, "task_name": task_name, "attempt": attempt}
    return {name: value for name, value in known.items() if value is not None}


class _TaskFilter(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        task = find_current_task()
        record.task = "" if task is None else f" [{one_line(task.task_name)} {task.task_id} attempt {task.attempt}]"
        return True


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        task = find_current_task()
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        if task is not None:
            line |= about(task.task_id, task.task_name, task.attempt)
        else:
            line |= {name: getattr(record, name) for name in _ABOUT if hasattr(record, name)}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def configure_logging(level: str, style: str) -> None:
    root = logging.getLogger()
    if root.handlers:
        return  # the app's own choice
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_TaskFilter())
    if style == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s%(task)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(level)
