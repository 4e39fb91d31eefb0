"""Log records name the task that they belong to. Apps that configure no logging get a handler for stderr."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

from horsies._text import one_line
from horsies.context import find_current_task

log: Final = logging.getLogger("horsies.worker")
_ABOUT: Final = ("task_id", "task_name", "attempt", "task_ids", "child_pid")


def about(task_id: str, task_name: str | None = None, attempt: int | None = None) -> dict[str, object]:
    """Return `extra=` for a record of the parent about a task, so that JSON lines can be searched by task."""
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
        return  # the app configured logging
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(_TaskFilter())
    if style == "json":
        handler.setFormatter(_JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s%(task)s: %(message)s"))
    root.addHandler(handler)
    root.setLevel(level)
