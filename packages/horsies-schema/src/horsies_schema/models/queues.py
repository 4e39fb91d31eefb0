"""Queues, the limits of their tasks, and unique keys."""

from datetime import datetime

from sqlalchemy import ARRAY, BigInteger, Computed, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from horsies_schema.models import base


class QueueState(base.Base):
    """A queue that was ever paused, or has a policy for its tasks: declared by the app, and overridden by operators."""

    __tablename__ = "horsies_queue_state"

    queue_name: Mapped[base.QueueName] = mapped_column(primary_key=True)
    """The queue."""
    paused_at: Mapped[datetime | None]
    """Since when no worker claims from it; NULL: it is not paused."""
    updated_at: Mapped[datetime] = base.now()
    """When the row was last written."""
    declared: Mapped[base.Json | None]
    """The policy that the app declares, written by its workers at their start."""
    declared_at: Mapped[datetime | None]
    """When."""
    override: Mapped[base.Json | None]
    """What an operator has set in place of fields of it (`horsies queues set`)."""
    override_at: Mapped[datetime | None]
    """When."""
    policy: Mapped[base.Json | None] = mapped_column(Computed(base.EFFECTIVE_POLICY, persisted=True))
    """What holds: `declared` with `override` on top. Computed."""
    is_limited: Mapped[bool | None] = mapped_column(
        Computed("coalesce(override -> 'limits', declared -> 'limits', '[]') <> '[]'", persisted=True)
    )
    """Whether the policy names limits that it shares with other queues. Computed."""

    __table_args__ = (
        base.check("queue_name", base.QUEUE_NAME),
        base.check("policy", base.SOUND_POLICIES),
        base.time_range("paused_at", "updated_at", "declared_at", "override_at"),
    )


class SharedLimit(base.Base):
    """A limit that several queues share."""

    __tablename__ = "horsies_limits"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    """The name of the limit in `AppConfig.limits`."""
    declared: Mapped[base.Json | None]
    """What the app declares."""
    declared_at: Mapped[datetime | None]
    """When."""
    override: Mapped[base.Json | None]
    """What an operator has set in its place (`horsies limits set`)."""
    override_at: Mapped[datetime | None]
    """When."""
    policy: Mapped[base.Json | None] = mapped_column(Computed(base.EFFECTIVE_POLICY, persisted=True))
    """What holds. Computed."""
    free_at: Mapped[datetime | None]
    """When its rate allows the full burst again; NULL or past: now."""
    updated_at: Mapped[datetime] = base.now()
    """When the row was last written."""

    __table_args__ = (
        base.check("policy", base.SOUND_POLICIES),
        base.time_range("declared_at", "override_at", "free_at", "updated_at"),
        {"postgresql_with": {"fillfactor": 50}},
    )


class RateLimit(base.Base):
    """When the rate of one group, by queue and key, allows its full burst again; a group without a row has it now. The
    row with an empty name and key has the time of the last forward step of the server's clock."""

    __tablename__ = "horsies_rate_limits"

    name: Mapped[str] = mapped_column(String(100), primary_key=True)
    """The queue."""
    key: Mapped[base.Key] = mapped_column(primary_key=True)
    """The group."""
    free_at: Mapped[datetime]
    """When the full burst is there again."""

    __table_args__ = (base.time_range("free_at"), {"postgresql_with": {"fillfactor": 50}})


class UniqueKey(base.Base):
    """A key of tasks that were sent with `unique_for`, `debounce` or `on_conflict="replace"`, and the task that holds
    it. It is taken until `until`, also when that task has ended, and for as long as that task lives."""

    __tablename__ = "horsies_unique_keys"

    task_name: Mapped[base.Name] = mapped_column(primary_key=True)
    """The name of the tasks."""
    key: Mapped[base.Key] = mapped_column(primary_key=True)
    """The key."""
    task_id: Mapped[base.Id]
    """The task that holds it."""
    first_at: Mapped[datetime]
    """The first send of the key; `max_wait` counts from it."""
    until: Mapped[datetime]
    """The end of its `unique_for`."""
    replaced: Mapped[int] = mapped_column(server_default=text("0"))
    """How many later sends its task has taken over."""
    recent: Mapped[list[int]] = mapped_column(ARRAY(BigInteger), server_default=text("'{}'"))
    """Hashes of the last 64 sends, so that a repeated one is not counted twice."""

    __table_args__ = (
        base.check("sound", "task_name <> '' AND key <> '' AND replaced >= 0 AND cardinality(recent) <= 64"),
        base.time_range("first_at", "until"),
        Index("ix_horsies_unique_keys_until", "until"),
        Index("ix_horsies_unique_keys_task_id", "task_id"),
        {"postgresql_with": {"fillfactor": 70}},
    )
