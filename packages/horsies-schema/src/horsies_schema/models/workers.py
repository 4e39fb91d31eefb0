"""Workers: whether each lives, and what it says of itself."""

from datetime import datetime

from sqlalchemy import ARRAY, Identity, Index, String, text
from sqlalchemy.orm import Mapped, mapped_column

from horsies_schema.models import base


class WorkerState(base.Base):
    """What a worker said of itself at one moment; a time series."""

    __tablename__ = "horsies_worker_states"

    id: Mapped[base.Big] = mapped_column(Identity(), primary_key=True)
    """Ascending in the order of writing; retention deletes from its low end."""
    worker_id: Mapped[base.Name]
    """The worker."""
    snapshot_at: Mapped[datetime] = base.now()
    """When it said so."""
    hostname: Mapped[base.Name]
    """Its machine."""
    pid: Mapped[int]
    """Its parent process."""
    processes: Mapped[int]
    """Child processes that it is to have."""
    queues: Mapped[list[str]] = mapped_column(ARRAY(String), server_default="{}")
    """The queues that it serves."""
    tasks_running: Mapped[int] = mapped_column(server_default="0")
    """Tasks that its children run."""
    tasks_claimed: Mapped[int] = mapped_column(server_default="0")
    """Tasks that it holds ahead of a free place."""
    memory_usage_mb: Mapped[float | None]
    """Resident memory of the parent process."""
    children_memory_mb: Mapped[float | None]
    """Resident memory of its children together."""
    cpu_percent: Mapped[float | None]
    """CPU of the worker with its children; 100 is one core."""
    memory_percent: Mapped[float | None]
    """Its share of the machine's memory."""
    max_claim_batch: Mapped[int | None]
    """Its setting of that name."""
    max_claim_per_worker: Mapped[int | None]
    """Its setting of that name."""
    cluster_wide_cap: Mapped[int | None]
    """Its setting of that name."""
    queue_priorities: Mapped[base.Json | None]
    """By queue: the priority of tasks without their own."""
    queue_max_concurrency: Mapped[base.Json | None]
    """By queue: the limit in the whole cluster."""
    recovery_config: Mapped[base.Json | None]
    """Its thresholds and intervals; what is stale is judged by them."""
    worker_started_at: Mapped[datetime]
    """When it started."""

    __table_args__ = (
        base.check("counts", "processes >= 0 AND tasks_running >= 0 AND tasks_claimed >= 0"),
        base.time_range("snapshot_at", "worker_started_at"),
        Index("ix_horsies_worker_states_worker", "worker_id", text("snapshot_at DESC")),
    )


class WorkerInstance(base.Base):
    """One worker process: that it lives, that it left, or that it was judged dead. See migration 0008."""

    __tablename__ = "horsies_worker_instances"

    worker_id: Mapped[base.Name] = mapped_column(primary_key=True)
    """The worker."""
    lock_key: Mapped[base.Big | None]
    """The advisory lock that its session holds while it lives."""
    backend_pid: Mapped[int | None]
    """The server process of that session."""
    period_ms: Mapped[int]
    """How often it beats."""
    beats: Mapped[base.Big] = mapped_column(server_default=text("0"))
    """A counter, raised by each beat. Other workers measure on their own clocks how long it stands still."""
    started_at: Mapped[datetime] = base.statement_time()
    """When it started."""
    beat_at: Mapped[datetime] = base.statement_time()
    """Its last beat, for people: no verdict goes by it."""
    stopped_at: Mapped[datetime | None]
    """When it said good-bye."""
    judged_dead_at: Mapped[datetime | None]
    """When another worker found it dead."""
    judged_by: Mapped[base.Name | None]
    """That worker."""
    recovered_at: Mapped[datetime | None]
    """When all its tasks were moved on."""
    names_sha: Mapped[base.Sha | None]
    """The set of task names that it registers."""
    queues: Mapped[list[str] | None]
    """The queues that it serves."""
    completion_key: Mapped[base.Sha | None]
    """A random secret, from which its children prove which attempt completes itself. No role but the worker's reads
    it."""
    state: Mapped[str | None] = mapped_column(String(16))
    """What it does; NULL for a release that cannot be drained or resized. The `wanted` columns are an operator's wish,
    which it has carried out when `reached_at` is `wanted_at`. See migration 0026."""
    wanted_state: Mapped[str | None] = mapped_column(String(16))
    """RUNNING or DRAINED; NULL: no wish."""
    wanted_processes: Mapped[int | None]
    """The number of child processes that an operator wants."""
    wanted_at: Mapped[datetime | None]
    """When the operator asked."""
    wanted_by: Mapped[base.Name | None]
    """Who asked."""
    reached_at: Mapped[datetime | None]
    """The `wanted_at` of the wish that it has carried out completely."""

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
