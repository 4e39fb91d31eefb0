"""The groups of a queue: how many tasks of each wait and run, and why a group's ready tasks do not start.

A queue may have more groups than anyone wants to read: the figures are those of a bounded number of groups, chosen so
that a group with a backlog is among them (see `top_groups` in policies.sql).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from horsies.operate.policies import SharedLimit, queue_policies, shared_limits
from horsies.operate.session import Fetch

TOP: Final = 20
WALKED: Final = 200
"""A queue with at most so many groups is looked at completely."""
SAMPLED: Final = 1_000
"""The number of oldest, newest and running tasks whose groups are looked at."""
LOOKED: Final = 300
"""The number of groups whose tasks are counted."""
FEW: Final = 100
"""The number up to which their waiting tasks are counted, to rank them."""
MANY: Final = 1_000
"""The same for the groups that are returned."""


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """The tasks of one group in one queue."""

    key: str
    waiting: int
    """Ready and delayed tasks; counting stops at a bound."""
    is_least: bool
    """There may be more waiting tasks."""
    running: int
    """Tasks that are CLAIMED or RUNNING."""
    max_concurrency: int | None
    oldest_ready: timedelta | None
    """How long its oldest ready task has waited; None when none is ready."""
    tokens: int | None
    """How many tasks its rate lets start now; None without a rate."""
    burst: int | None
    """The most tokens that it can have."""
    next_token_in: timedelta | None
    """The time until its next token; None when it has one."""
    throttled_by: tuple[str, ...]
    """Why its ready tasks do not start now; empty when nothing holds them back, or none is ready."""

    @property
    def throttled_for(self) -> timedelta | None:
        """The longest that it can have been throttled; None when it is not."""
        return self.oldest_ready if self.throttled_by else None

    @property
    def rate_used(self) -> float | None:
        """The part of its burst that is used up, from 0 to 1; None without a rate."""
        return None if self.tokens is None or not self.burst else 1 - self.tokens / self.burst


@dataclass(frozen=True, slots=True)
class QueueGroups:
    """The groups of one queue with the most waiting tasks."""

    queue_name: str
    groups: tuple[GroupStatus, ...]
    looked: int
    """How many groups were looked at."""
    is_complete: bool
    """These were all groups with waiting tasks."""
    throttled: int
    """How many of those that were looked at have ready tasks without a place or a token."""


async def top_groups(
    fetch: Fetch, queue_name: str, top: int = TOP, bound: int = MANY, looked: int = LOOKED
) -> QueueGroups:
    """The groups of a queue with the most waiting tasks, among those that were looked at. Counting stops at `bound`."""
    await fetch("plan_by_order")
    walked = min(WALKED, looked)
    rows = await fetch("top_groups", queue_name, walked, SAMPLED, max(looked, top), top, min(FEW, bound), bound)
    shared = await _held_back_by(fetch, queue_name) if rows else ()
    if not rows:
        return QueueGroups(queue_name, (), 0, is_complete=True, throttled=0)
    return QueueGroups(
        queue_name,
        tuple(_group(row, shared, bound) for row in rows),
        looked=rows[0]["looked"],
        is_complete=rows[0]["is_complete"],
        throttled=rows[0]["throttled"],
    )


async def _held_back_by(fetch: Fetch, queue_name: str) -> tuple[str, ...]:
    """Why no task of the queue starts: the limits that it shares."""
    policies = await queue_policies(fetch, queue_name)
    names = policies[0].effective.limits if policies else ()
    limits: Sequence[SharedLimit] = await shared_limits(fetch) if names else ()
    return tuple(told for limit in limits if limit.name in names and (told := limit.throttle) is not None)


def _group(row: Mapping[str, Any], shared: tuple[str, ...], bound: int) -> GroupStatus:
    most, running, wait_s = row["most"], row["running"], row["wait_s"]
    why: list[str] = []
    if most is not None and running >= most:
        why.append(f"concurrency is full ({running:,} of {most:,})")
    if wait_s is not None:
        why.append(f"the rate has no token for {wait_s:.1f} s")
    return GroupStatus(
        key=row["key"],
        waiting=row["waiting"],
        is_least=row["waiting"] >= bound,
        running=running,
        max_concurrency=most,
        oldest_ready=row["oldest_ready"],
        tokens=row["tokens"],
        burst=row["burst"],
        next_token_in=timedelta(seconds=wait_s) if wait_s is not None else None,
        throttled_by=(*why, *shared) if row["oldest_ready"] is not None else (),
    )
