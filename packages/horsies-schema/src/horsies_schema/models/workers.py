"""Workers: whether each lives, and what it says of itself."""

from datetime import datetime

from sqlalchemy import ARRAY, Identity, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from horsies_schema.models import base


class WorkerState(base.Base):
    """What a worker said of itself at one moment; a time series."""

    __tablename__ = "horsies_worker_states"

    id: Mapped[base.Big] = mapped_column(Identity(), primary_key=True)
    worker_id: Mapped[base.Name]
    snapshot_at: Mapped[datetime] = base.now()
    hostname: Mapped[base.Name]
    pid: Mapped[int]
    processes: Mapped[int]
    queues: Mapped[list[str]] = mapped_column(ARRAY(String), server_default="{}")
    tasks_running: Mapped[int] = mapped_column(server_default="0")
    tasks_claimed: Mapped[int] = mapped_column(server_default="0")
    memory_usage_mb: Mapped[float | None]
    children_memory_mb: Mapped[float | None]
    cpu_percent: Mapped[float | None]
    memory_percent: Mapped[float | None]
    max_claim_batch: Mapped[int | None]
    max_claim_per_worker: Mapped[int | None]
    cluster_wide_cap: Mapped[int | None]
    queue_priorities: Mapped[base.Json | None]
    queue_max_concurrency: Mapped[base.Json | None]
    recovery_config: Mapped[base.Json | None]
    worker_started_at: Mapped[datetime]

    __table_args__ = (
        base.check("counts", "processes >= 0 AND tasks_running >= 0 AND tasks_claimed >= 0"),
        base.time_range("snapshot_at", "worker_started_at"),
        Index("ix_horsies_worker_states_worker", "worker_id", text("snapshot_at DESC")),
    )


class WorkerInstance(base.Base):
    """One worker process: that it lives, that it left, or that it was judged dead. See migration 0008."""

    __tablename__ = "horsies_worker_instances"

    worker_id: Mapped[base.Name] = mapped_column(primary_key=True)
    lock_key: Mapped[base.Big | None]
    backend_pid: Mapped[int | None]
    period_ms: Mapped[int]
    beats: Mapped[base.Big] = mapped_column(server_default=text("0"))
    started_at: Mapped[datetime] = base.statement_time()
    beat_at: Mapped[datetime] = base.statement_time()
    stopped_at: Mapped[datetime | None]
    judged_dead_at: Mapped[datetime | None]
    judged_by: Mapped[base.Name | None]
    recovered_at: Mapped[datetime | None]
    names_sha: Mapped[base.Sha | None]
    queues: Mapped[list[str] | None]
    completion_key: Mapped[base.Sha | None]
    state: Mapped[str | None] = mapped_column(String(16))
    """What it does; NULL for a release that cannot be drained or resized. The `wanted` columns are an operator's wish,
    which it has carried out when `reached_at` is `wanted_at`. See migration 0026."""
    wanted_state: Mapped[str | None] = mapped_column(String(16))
    wanted_processes: Mapped[int | None]
    wanted_at: Mapped[datetime | None]
    wanted_by: Mapped[base.Name | None]
    reached_at: Mapped[datetime | None]

    __table_args__ = (
        base.check("period", "period_ms BETWEEN 1 AND 3600000"),
        base.check("state", "state IN ('RUNNING', 'DRAINING', 'DRAINED')"),
        base.check(
            "wanted",
            "wanted_state IN ('RUNNING', 'DRAINED') AND wanted_processes BETWEEN 1 AND 1000"
            " AND (wanted_at IS NOT NULL OR (wanted_state IS NULL AND wanted_processes IS NULL))",
        ),
        base.time_range(
            "started_at", "beat_at", "stopped_at", "judged_dead_at", "recovered_at", "wanted_at", "reached_at"
        ),
        base.check(
            "verdict",
            "(judged_dead_at IS NULL) = (judged_by IS NULL) AND (recovered_at IS NULL OR judged_dead_at IS NOT NULL)",
        ),
        base.partial(
            "ix_horsies_worker_instances_open", "worker_id", where="stopped_at IS NULL AND recovered_at IS NULL"
        ),
        {"postgresql_with": {"fillfactor": 50}},
    )
