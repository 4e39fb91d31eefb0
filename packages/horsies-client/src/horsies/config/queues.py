"""Which queues exist, and what a queue may be called."""

import re
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from horsies._checks import MANY, Checks, shown
from horsies.errors import Problem

DEFAULT_QUEUE: Final = "default"
"""The one queue of `QueueMode.DEFAULT`."""

DEFAULT_PRIORITY: Final = 100
"""Least urgent. A task's priority is that of the send, else of the task, else of its queue, else this."""

QUEUE_NAME_PATTERN: Final = re.compile(r"^[A-Za-z0-9_.-]{1,52}\Z")
r"""52, because the channel `task_queue_<name>` is an identifier and PostgreSQL cuts those at 63 bytes,
silently: two longer names would share a channel. `\Z` and not `$`, which would let a newline pass."""


class QueueMode(StrEnum):
    """DEFAULT: the one queue `default`. CUSTOM: the queues listed in `custom_queues`, and no other."""

    DEFAULT = "default"
    CUSTOM = "custom"


def queue_name_problem(name: object, where: str) -> Problem | None:
    """What is wrong with a queue name, or None. One rule for configuration, tasks and sends."""
    if isinstance(name, str) and QUEUE_NAME_PATTERN.match(name):
        return None
    return Problem(
        where=where,
        why=f"{shown(name)} is not a queue name",
        fix="use 1 to 52 of A-Z a-z 0-9 _ . - (the channel name task_queue_<name> must fit 63 bytes)",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomQueueConfig:
    """One queue of `QueueMode.CUSTOM`."""

    name: str = field(kw_only=False)
    """1 to 52 of `A-Z a-z 0-9 _ . -`."""

    priority: int = DEFAULT_PRIORITY
    """Priority of tasks that have none of their own. 1 (first) to 100 (last)."""

    max_concurrency: int | None = None
    """How many tasks of this queue may be in flight in the whole cluster; None: no limit."""

    def __post_init__(self) -> None:
        checks = Checks("CustomQueueConfig")
        problem = queue_name_problem(self.name, "CustomQueueConfig.name")
        if problem:
            checks.problems.append(problem)
        else:
            checks.subject = f"CustomQueueConfig({self.name!r})"
        checks.integer("priority", self.priority, 1, 100)
        checks.integer("max_concurrency", self.max_concurrency, 1, MANY, optional=True)
        checks.finish()
