"""The queues of an app."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from horsies._checks import MANY, Checks
from horsies.config.limits import GroupPolicy, check_groups, check_limit_names, check_shares

DEFAULT_QUEUE: Final = "default"
"""The only queue of `QueueMode.DEFAULT`."""

DEFAULT_PRIORITY: Final = 100
"""Least urgent. The priority of a send wins over the task's, the task's over the queue's, the queue's over this."""


class QueueMode(StrEnum):
    """DEFAULT: only the queue `default`. CUSTOM: only the queues listed in `custom_queues`."""

    DEFAULT = "default"
    CUSTOM = "custom"


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomQueueConfig:
    """One queue of `QueueMode.CUSTOM`."""

    name: str = field(kw_only=False)
    """1 to 52 of `A-Z a-z 0-9 _ . -`: the channel `task_queue_<name>` must fit PostgreSQL's 63 bytes."""

    priority: int = DEFAULT_PRIORITY
    """Priority of tasks without a priority of their own. 1 (first) to 100 (last)."""

    max_concurrency: int | None = None
    """How many tasks of this queue may be in flight in the whole cluster; None: no limit."""

    groups: GroupPolicy | None = None
    """What holds for each group of tasks in this queue; None: groups take turns, without limits."""

    limits: Sequence[str] = ()
    """The names of limits in `AppConfig.limits` that all tasks of this queue share with other queues."""

    weight: int | None = None
    """The share of a worker's places while there are more tasks than places: of two queues with the weights 3 and 1,
    three of four tasks that start are of the first. 1 to 1,000. As soon as one queue has a weight, those without one
    have weight 1, and priorities order only the tasks inside a queue. None for all queues: priorities decide alone."""

    ageing_seconds: float | None = None
    """A task that has waited this long, 0.1 s to 31 days, may start before tasks that come first by priority or weight:
    one of ten tasks that a worker starts is the oldest such task. None: however long it waits."""

    def __post_init__(self) -> None:
        checks = Checks("CustomQueueConfig")
        checks.queue_name("name", self.name)
        if not checks.problems:
            checks.subject = f"CustomQueueConfig({self.name!r})"
        checks.integer("priority", self.priority, 1, 100)
        checks.integer("max_concurrency", self.max_concurrency, 1, MANY, optional=True)
        check_groups(checks, "groups", self.groups)
        check_shares(checks, self.weight, self.ageing_seconds)
        object.__setattr__(self, "limits", check_limit_names(checks, "limits", self.limits))
        checks.finish()
