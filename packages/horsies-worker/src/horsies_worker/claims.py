"""A task in this worker's hands, and the options it runs under."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from horsies.options import TaskOptions
from horsies.registry import TaskDefinition
from horsies_worker.jobs import Job

_log = logging.getLogger("horsies.worker")


@dataclass(slots=True)
class ClaimedTask:
    """One claim: the row as the claim returned it, with the options settled."""

    job: Job
    queue_name: str
    retry_count: int
    max_retries: int
    """Retries that this task may use in all: the row's, or the registration's for a row that names no options."""
    options: TaskOptions
    is_workflow_task: bool = False


def claimed_task(row: Mapping[str, Any], definition: TaskDefinition, *, run_ahead: bool) -> ClaimedTask:
    """From a claimed row to what the yard needs. Arguments stay text."""
    options = options_of(row["task_name"], row["task_options"], definition.options)
    budget: int = row["max_retries"]
    if row["task_options"] is None:
        budget = max(budget, definition.options.max_retries)
    job = Job(
        task_id=row["id"],
        generation=row["claim_generation"],
        attempt=row["retry_count"] + 1,
        task_name=row["task_name"],
        args=row["args"],
        kwargs=row["kwargs"],
        timeout_ms=options.timeout_ms,
        is_async=definition.is_async,
        run_ahead=run_ahead and options.run_ahead,
    )
    return ClaimedTask(job, row["queue_name"], row["retry_count"], budget, options, row["is_workflow_task"])


def options_of(task_name: str, text: str | None, registered: TaskOptions) -> TaskOptions:
    """What the row says, else what the task is registered with here. A row is hostile input: options that cannot be
    read are told of and the registration's are used, so that a bad row still ends."""
    if text is None:
        return registered
    try:
        return _parsed(text)
    except (ValueError, RecursionError) as error:  # nested deeper than the parser goes
        _log.warning("task %r: its row has unusable options, the registered ones are used: %s", task_name, error)
        return registered


@lru_cache(maxsize=512)
def _parsed(text: str) -> TaskOptions:
    return TaskOptions.from_json(text)
