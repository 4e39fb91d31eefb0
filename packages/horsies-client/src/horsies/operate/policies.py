"""What operators see of policies: those of queues, and those of the limits that queues share.

A policy has two parts. The app declares one, which its workers write when they start; an operator overrides fields of
it until they are unset. What holds is the declared part with the overridden fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, ClassVar, Final, Self

from horsies._pg.rows import FromRow, json_object
from horsies.config.limits import Rate
from horsies.operate.session import Fetch

QUEUE_FIELDS: Final = ("max_concurrency", "rate", "fair", "limits", "weight", "ageing_seconds")
LIMIT_FIELDS: Final = ("max_concurrency", "rate")


@dataclass(frozen=True, slots=True)
class Policy:
    """What holds. For a queue, the first two are limits of each group in it."""

    max_concurrency: int | None = None
    rate: Rate | None = None
    fair: bool = True
    limits: tuple[str, ...] = ()
    weight: int | None = None
    ageing_seconds: float | None = None

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Self:
        rate = found.get("rate")
        return cls(
            found.get("max_concurrency"),
            Rate(**rate) if rate is not None else None,
            found.get("fair", True),
            tuple(found.get("limits", ())),
            found.get("weight"),
            found.get("ageing_seconds"),
        )


@dataclass(frozen=True, slots=True)
class _Policies(FromRow):
    """The two parts of a policy and what holds."""

    CONVERTED: ClassVar = {"declared": json_object, "override": json_object, "policy": json_object}

    declared: Mapping[str, Any] | None
    """What the app's workers declared; None when none has."""
    declared_at: datetime | None
    declared_for: timedelta | None
    override: Mapping[str, Any] | None
    """The fields that an operator has overridden; null means no limit."""
    override_at: datetime | None
    """When the override was last changed."""
    override_for: timedelta | None
    policy: Mapping[str, Any]
    """What holds: the declared fields with the overridden ones."""

    @property
    def effective(self) -> Policy:
        return Policy.of(self.policy)

    @property
    def overridden(self) -> tuple[str, ...]:
        """The names of the overridden fields."""
        return tuple(name for name in QUEUE_FIELDS if name in (self.override or {}))


@dataclass(frozen=True, slots=True)
class QueuePolicy(_Policies):
    """The policy of one queue."""

    queue_name: str

    @classmethod
    def none(cls, queue_name: str) -> Self:
        """The policy of a queue for which none was declared or set."""
        return cls(None, None, None, None, None, None, {}, queue_name)


@dataclass(frozen=True, slots=True)
class SharedLimit(_Policies):
    """A limit that queues share, and how much of it is used."""

    CONVERTED: ClassVar = {**_Policies.CONVERTED, "queues": tuple, "wait_s": lambda value: timedelta(seconds=value)}

    name: str
    queues: tuple[str, ...]
    """The queues whose policy names it."""
    running: int
    """The tasks of these queues that are CLAIMED or RUNNING."""
    tokens: int | None
    """How many tasks its rate lets start now; None without a rate."""
    burst: int | None
    wait_s: timedelta | None
    """The time until the next token; None when there is one."""

    @property
    def throttle(self) -> str | None:
        """Why it lets no further task start; None when it does."""
        most = self.effective.max_concurrency
        if most is not None and self.running >= most:
            return f"limit {self.name} is full ({self.running:,} of {most:,})"
        if self.wait_s is not None:
            return f"limit {self.name} has no token for {self.wait_s.total_seconds():.1f} s"
        return None


async def queue_policies(fetch: Fetch, name: str | None = None) -> list[QueuePolicy]:
    """The policies of all queues that have one or were paused, or of one of them."""
    return [QueuePolicy.from_row(row) for row in await fetch("queue_policies", name)]


async def shared_limits(fetch: Fetch, name: str | None = None) -> list[SharedLimit]:
    """All limits by name, or one of them."""
    return [SharedLimit.from_row(row) for row in await fetch("shared_limits", name)]
