"""Limits that hold across the cluster: how many tasks of a group, or of several queues, run or start at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, cast

from horsies._checks import MANY, Checks, shown

LONGEST_WINDOW_S: Final = 31 * 86_400.0
LIMIT_NAME_LENGTH: Final = 100
HEAVIEST: Final = 1_000
GROUP_KEY_LENGTH: Final = 255


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """At most `limit` starts of user code in any `per_seconds` seconds. Every attempt counts, retries too."""

    limit: int = field(kw_only=False)
    """How many starts. May be given by position."""

    per_seconds: float = field(default=1.0, kw_only=False)
    """The length of the window: 0.1 s to 31 days. May be given by position."""

    burst: int | None = None
    """How many tasks may start at the same moment after a quiet time; None: a tenth of `limit`, at least 1. At most
    `limit`. The others are spaced evenly, so a larger burst leaves fewer starts for the rest of the window."""

    def __post_init__(self) -> None:
        checks = Checks("Rate")
        is_limit = checks.integer("limit", self.limit, 1, MANY)
        checks.seconds("per_seconds", self.per_seconds, 0.1, LONGEST_WINDOW_S)
        most = self.limit if is_limit else MANY
        if checks.integer("burst", self.burst, 1, most, optional=True) and is_limit and self.burst is None:
            object.__setattr__(self, "burst", max(1, self.limit // 10))
        checks.finish()

    def as_json(self) -> dict[str, Any]:
        return {"limit": self.limit, "per_seconds": self.per_seconds, "burst": self.burst}

    def __str__(self) -> str:
        return f"{self.limit} per {self.per_seconds:g} s (burst {self.burst})"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPolicy:
    """What holds for each group of a queue. The group is the `group=` of a send, or the `group_by=` of its task."""

    max_concurrency: int | None = None
    """How many tasks of one group may be in flight in the whole cluster; None: no limit."""

    rate: Rate | None = None
    """How many tasks of one group may start in a time; None: no limit."""

    fair: bool = True
    """True: one task of each group in turn. False: as many of a group as fit, then the next group."""

    def __post_init__(self) -> None:
        checks = Checks("GroupPolicy")
        check_limits(checks, self.max_concurrency, self.rate)
        checks.boolean("fair", self.fair)
        checks.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A limit that the tasks of all queues share that name it in `CustomQueueConfig.limits`."""

    name: str = field(kw_only=False)
    """1 to 100 characters, without a comma. May be given by position."""

    max_concurrency: int | None = None
    """How many tasks of these queues together may be in flight in the whole cluster; None: no limit."""

    rate: Rate | None = None
    """How many tasks of these queues together may start in a time; None: no limit."""

    def __post_init__(self) -> None:
        checks = Checks("Limit")
        if checks.text("name", self.name):
            checks.subject = f"Limit({self.name!r})"
            if not self.name.isprintable():
                checks.add("name", "has characters that cannot be printed", "use letters, digits, spaces and signs")
            if len(self.name) > LIMIT_NAME_LENGTH:
                checks.add("name", f"has {len(self.name)} characters", f"use at most {LIMIT_NAME_LENGTH}")
            if self.name == "none" or "," in self.name:
                checks.add("name", "cannot be named in `horsies queues set --limits`", "use no comma, and not none")
        check_limits(checks, self.max_concurrency, self.rate)
        if self.max_concurrency is None and self.rate is None and not checks.problems:
            checks.add("max_concurrency", "and rate are both None: it limits nothing", "give at least one of them")
        checks.finish()

    def as_json(self) -> dict[str, Any]:
        return _limits_json(self.max_concurrency, self.rate)


def queue_policy_json(
    groups: GroupPolicy | None,
    limits: Sequence[str],
    weight: int | None = None,
    ageing_seconds: float | None = None,
) -> dict[str, Any] | None:
    """What a worker writes to `horsies_queue_state.declared`; None for a queue without a policy."""
    policy: dict[str, Any] = {}
    if groups is not None:
        policy = {**_limits_json(groups.max_concurrency, groups.rate), "fair": groups.fair}
    if limits:
        policy["limits"] = list(limits)
    if weight is not None:
        policy["weight"] = weight
    if ageing_seconds is not None:
        policy["ageing_seconds"] = ageing_seconds
    return policy or None


def _limits_json(max_concurrency: int | None, rate: Rate | None) -> dict[str, Any]:
    policy: dict[str, Any] = {}
    if max_concurrency is not None:
        policy["max_concurrency"] = max_concurrency
    if rate is not None:
        policy["rate"] = rate.as_json()
    return policy


def check_limits(checks: Checks, max_concurrency: object, rate: object) -> None:
    """The values of a policy that limit something, or None."""
    checks.integer("max_concurrency", max_concurrency, 1, MANY, optional=True)
    if rate is not None and not isinstance(rate, Rate):
        checks.add("rate", f"must be a Rate, got {shown(rate)}", "give Rate(limit, per_seconds), or None")


def check_shares(checks: Checks, weight: object, ageing_seconds: object) -> None:
    """How a queue shares the places of workers with others, or None."""
    checks.integer("weight", weight, 1, HEAVIEST, optional=True)
    checks.seconds("ageing_seconds", ageing_seconds, 0.1, LONGEST_WINDOW_S, optional=True)


def check_groups(checks: Checks, field: str, value: object) -> None:
    """`value` is a GroupPolicy or None."""
    if value is not None and not isinstance(value, GroupPolicy):
        checks.add(field, f"must be a GroupPolicy, got {shown(value)}", "give GroupPolicy(...), or None")


def check_limit_names(checks: Checks, field: str, value: object) -> tuple[str, ...]:
    """The names of limits that a queue shares, each once."""
    names = checks.listed(field, value, 'give a list of names, such as ["stripe"]')
    for name in names or ():
        if not isinstance(name, str):
            checks.add(field, f"must be names, got {shown(cast('object', name))}", "give a list of names")
    return tuple(dict.fromkeys(name for name in names or () if isinstance(name, str)))
