"""Warns of a task that waits for the result of another task or of a workflow."""

import logging
from typing import Final

from horsies.context import find_current_call, find_current_task

_log = logging.getLogger("horsies")
_warned: Final[set[str]] = set()


def warn_of_wait(what: str) -> None:
    """Log a warning when this code runs in a task, once per process and task name. `what`: what it waits for."""
    context = find_current_task() or find_current_call()
    if context is None or context.task_name in _warned:
        return
    _warned.add(context.task_name)
    _log.warning(
        "task %r waits inside a worker for the result of %s: its slot stays occupied meanwhile, and once all slots "
        "wait, none is left to run what they wait for; make both nodes of a workflow, or return Continue",
        context.task_name, what,
    )  # fmt: skip
