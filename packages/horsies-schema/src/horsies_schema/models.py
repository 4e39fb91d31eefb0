"""SQLAlchemy models of every horsies table, for people who query them.

The migrations own the database; these models describe it. A test creates one database from each and
demands that they are equal, down to the text of every CHECK and partial index, so a difference is a
failing test, not a surprise. `create_all()` is not a way to install horsies: it makes no triggers and functions.
"""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import (
    ARRAY,
    BigInteger,
    CheckConstraint,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Identity,
    Index,
    Integer,
    PrimaryKeyConstraint,
    String,
    Text,
    UniqueConstraint,
    false,
    func,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

_QUEUE_NAME = "queue_name ~ '^[A-Za-z0-9_.-]{1,52}$'"


class Base(DeclarativeBase):
    """The metadata of all horsies tables, apart from any of yours."""

    type_annotation_map = {  # noqa: RUF012  (SQLAlchemy reads it from the class)
        datetime: DateTime(timezone=True),
        int: Integer,
        float: Double,
        str: Text,
    }


class Task(Base):
    """One task, from its send to its end. `horsies.TaskStatus` explains the states."""

    __tablename__ = "horsies_tasks"

    id: Mapped[str] = mapped_column(String(36))
    task_name: Mapped[str] = mapped_column(String(255))
    queue_name: Mapped[str] = mapped_column(String(100), server_default="default")
    priority: Mapped[int] = mapped_column(server_default="100")
    args: Mapped[str | None]
    kwargs: Mapped[str | None]
    status: Mapped[str] = mapped_column(String(20), server_default="PENDING")
    sent_at: Mapped[datetime] = mapped_column(server_default=func.statement_timestamp())
    enqueued_at: Mapped[datetime] = mapped_column(server_default=func.statement_timestamp())
    is_workflow_task: Mapped[bool] = mapped_column(server_default=false())
    claimed: Mapped[bool] = mapped_column(server_default=false())
    claimed_at: Mapped[datetime | None]
    claimed_by_worker_id: Mapped[str | None] = mapped_column(String(255))
    claim_expires_at: Mapped[datetime | None]
    claim_generation: Mapped[int] = mapped_column(server_default="0")
    started_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    failed_at: Mapped[datetime | None]
    terminal_at: Mapped[datetime | None]
    cancel_requested_at: Mapped[datetime | None]
    result: Mapped[str | None]
    failed_reason: Mapped[str | None]
    error_code: Mapped[str | None]
    good_until: Mapped[datetime | None]
    retry_count: Mapped[int] = mapped_column(server_default="0")
    max_retries: Mapped[int] = mapped_column(server_default="0")
    manual_retries: Mapped[int] = mapped_column(server_default="0")
    next_retry_at: Mapped[datetime | None]
    task_options: Mapped[str | None]
    unique_key: Mapped[str | None] = mapped_column(String(255))
    progress: Mapped[Any | None] = mapped_column(JSONB)
    worker_pid: Mapped[int | None]
    worker_hostname: Mapped[str | None] = mapped_column(String(255))
    worker_process_name: Mapped[str | None] = mapped_column(String(255))
    finalizing_at: Mapped[datetime | None]
    finalizing_by_worker_id: Mapped[str | None]
    enqueue_sha: Mapped[str | None] = mapped_column(String(64))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())
    former_node_id: Mapped[str | None] = mapped_column(String(36))

    __table_args__ = (
        PrimaryKeyConstraint("id", name="pk_horsies_tasks"),
        # Which values and which combinations of them are legal: a function of revision 0011, which `create_all()` does
        # not make. As expressions, PostgreSQL would parse their 22 KB again for each statement.
        CheckConstraint(
            "horsies_task_is_sound(task_name, queue_name, unique_key, priority, status, claimed, "
            "claimed_by_worker_id, claimed_at, claim_expires_at, claim_generation, started_at, good_until, worker_pid, "
            "finalizing_at, completed_at, failed_at, terminal_at, result, error_code, retry_count, max_retries, "
            "manual_retries)",
            name="ck_horsies_tasks_sound",
        ),
        Index(
            "ix_horsies_tasks_claim",
            "queue_name",
            "priority",
            "enqueued_at",
            "id",
            postgresql_where=text("status = 'PENDING'"),
        ),
        Index(
            "ix_horsies_tasks_in_flight",
            "queue_name",
            postgresql_where=text("status IN ('CLAIMED', 'RUNNING')"),
        ),
        Index(
            "ix_horsies_tasks_good_until",
            "good_until",
            postgresql_where=text("good_until IS NOT NULL AND status IN ('PENDING', 'CLAIMED')"),
        ),
        Index(
            "ix_horsies_tasks_next_retry_at",
            "next_retry_at",
            postgresql_where=text("next_retry_at IS NOT NULL AND status = 'PENDING'"),
        ),
        Index(
            "ix_horsies_tasks_terminal_at",
            "terminal_at",
            postgresql_where=text("terminal_at IS NOT NULL"),
        ),
        Index("ix_horsies_tasks_error_code", "error_code", postgresql_where=text("error_code IS NOT NULL")),
        Index(
            "uq_horsies_tasks_unique_key",
            "task_name",
            "unique_key",
            unique=True,
            postgresql_where=text("unique_key IS NOT NULL AND status IN ('PENDING', 'CLAIMED', 'RUNNING')"),
        ),
        {
            "postgresql_with": {
                "fillfactor": 80,
                "autovacuum_vacuum_scale_factor": 0.01,
                "autovacuum_vacuum_threshold": 1000,
                "autovacuum_analyze_scale_factor": 0.02,
            }
        },
    )


class TaskAttempt(Base):
    """One finished attempt; written once, with the task's own state change, and never again."""

    __tablename__ = "horsies_task_attempts"

    id: Mapped[int] = mapped_column(BigInteger, Identity())
    task_id: Mapped[str] = mapped_column(String(36))
    attempt: Mapped[int]
    outcome: Mapped[str] = mapped_column(String(32))
    will_retry: Mapped[bool] = mapped_column(server_default=false())
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime]
    error_code: Mapped[str | None]
    error_message: Mapped[str | None]
    failed_reason: Mapped[str | None]
    worker_id: Mapped[str | None] = mapped_column(String(255))
    worker_hostname: Mapped[str | None] = mapped_column(String(255))
    worker_pid: Mapped[int | None]
    worker_process_name: Mapped[str | None] = mapped_column(String(255))
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())

    __table_args__ = (
        PrimaryKeyConstraint("id", name="pk_horsies_task_attempts"),
        UniqueConstraint("task_id", "attempt", name="uq_horsies_task_attempts_task_id_attempt"),
        ForeignKeyConstraint(
            ["task_id"], ["horsies_tasks.id"], name="fk_horsies_task_attempts_task_id", ondelete="CASCADE"
        ),
        CheckConstraint(
            """attempt >= 1 AND finished_at >= started_at
            AND CASE WHEN error_code IS NULL THEN outcome = 'COMPLETED' AND NOT will_retry
                     ELSE outcome = 'FAILED' OR outcome = 'WORKER_FAILURE' END""",
            name="ck_horsies_task_attempts_sound",
        ),
        Index("ix_horsies_task_attempts_error_code", "error_code", postgresql_where=text("error_code IS NOT NULL")),
        Index("ix_horsies_task_attempts_finished_at", text("finished_at DESC")),
    )


class Heartbeat(Base):
    """A worker vouches for a task that it holds (`claimer`) or runs (`runner`)."""

    __tablename__ = "horsies_heartbeats"

    id: Mapped[int] = mapped_column(BigInteger, Identity())
    task_id: Mapped[str] = mapped_column(String(36))
    sender_id: Mapped[str] = mapped_column(String(255))
    role: Mapped[str] = mapped_column(String(20))
    sent_at: Mapped[datetime] = mapped_column(server_default=func.now())
    hostname: Mapped[str | None] = mapped_column(String(255))
    pid: Mapped[int | None]

    __table_args__ = (
        PrimaryKeyConstraint("id", name="pk_horsies_heartbeats"),
        CheckConstraint("role IN ('claimer', 'runner')", name="ck_horsies_heartbeats_role"),
        Index("ix_horsies_heartbeats_task", "task_id", "role", text("sent_at DESC")),
        {"postgresql_with": {"autovacuum_vacuum_scale_factor": 0.05}},
    )


class WorkerState(Base):
    """What a worker said of itself at one moment; a time series."""

    __tablename__ = "horsies_worker_states"

    id: Mapped[int] = mapped_column(BigInteger, Identity())
    worker_id: Mapped[str] = mapped_column(String(255))
    snapshot_at: Mapped[datetime] = mapped_column(server_default=func.now())
    hostname: Mapped[str] = mapped_column(String(255))
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
    queue_priorities: Mapped[Any | None] = mapped_column(JSONB)
    queue_max_concurrency: Mapped[Any | None] = mapped_column(JSONB)
    recovery_config: Mapped[Any | None] = mapped_column(JSONB)
    worker_started_at: Mapped[datetime]

    __table_args__ = (
        PrimaryKeyConstraint("id", name="pk_horsies_worker_states"),
        CheckConstraint(
            "processes >= 0 AND tasks_running >= 0 AND tasks_claimed >= 0", name="ck_horsies_worker_states_counts"
        ),
        Index("ix_horsies_worker_states_worker", "worker_id", text("snapshot_at DESC")),
    )


class WorkerInstance(Base):
    """One worker process: that it lives, that it left, or that it was judged dead. See migration 0008."""

    __tablename__ = "horsies_worker_instances"

    worker_id: Mapped[str] = mapped_column(String(255))
    lock_key: Mapped[int | None] = mapped_column(BigInteger)
    backend_pid: Mapped[int | None]
    period_ms: Mapped[int]
    beats: Mapped[int] = mapped_column(BigInteger, server_default=text("0"))
    started_at: Mapped[datetime] = mapped_column(server_default=text("statement_timestamp()"))
    beat_at: Mapped[datetime] = mapped_column(server_default=text("statement_timestamp()"))
    stopped_at: Mapped[datetime | None]
    judged_dead_at: Mapped[datetime | None]
    judged_by: Mapped[str | None] = mapped_column(String(255))
    recovered_at: Mapped[datetime | None]
    names_sha: Mapped[str | None] = mapped_column(String(64))
    queues: Mapped[list[str] | None] = mapped_column(ARRAY(Text))

    __table_args__ = (
        PrimaryKeyConstraint("worker_id", name="pk_horsies_worker_instances"),
        CheckConstraint("period_ms > 0", name="ck_horsies_worker_instances_period"),
        CheckConstraint(
            "(judged_dead_at IS NULL) = (judged_by IS NULL) AND (recovered_at IS NULL OR judged_dead_at IS NOT NULL)",
            name="ck_horsies_worker_instances_verdict",
        ),
        Index(
            "ix_horsies_worker_instances_open",
            "worker_id",
            postgresql_where=text("stopped_at IS NULL AND recovered_at IS NULL"),
        ),
        {"postgresql_with": {"fillfactor": 50}},
    )


class TaskSet(Base):
    """The task names that one release registers. See migration 0012."""

    __tablename__ = "horsies_task_sets"

    sha: Mapped[str] = mapped_column(String(64))
    names: Mapped[list[str]] = mapped_column(ARRAY(Text))
    recorded_at: Mapped[datetime] = mapped_column(server_default=text("statement_timestamp()"))

    __table_args__ = (PrimaryKeyConstraint("sha", name="pk_horsies_task_sets"),)


class TaskName(Base):
    """When live workers knew a task name, and since when tasks wait for a worker that knows it."""

    __tablename__ = "horsies_task_names"

    task_name: Mapped[str] = mapped_column(String(255))
    first_known_at: Mapped[datetime | None]
    last_known_at: Mapped[datetime | None]
    missing_since: Mapped[datetime | None]

    __table_args__ = (
        PrimaryKeyConstraint("task_name", name="pk_horsies_task_names"),
        CheckConstraint(
            "(first_known_at IS NULL) = (last_known_at IS NULL)"
            " AND coalesce(first_known_at, missing_since) IS NOT NULL",
            name="ck_horsies_task_names_times",
        ),
        Index("ix_horsies_task_names_missing", "missing_since", postgresql_where=text("missing_since IS NOT NULL")),
        {"postgresql_with": {"fillfactor": 50}},
    )


class ScheduleState(Base):
    """What the scheduler remembers of one schedule."""

    __tablename__ = "horsies_schedule_state"

    schedule_name: Mapped[str] = mapped_column(String(255))
    last_run_at: Mapped[datetime | None]
    next_run_at: Mapped[datetime | None]
    last_task_id: Mapped[str | None] = mapped_column(String(36))
    run_count: Mapped[int] = mapped_column(server_default="0")
    config_hash: Mapped[str | None] = mapped_column(String(64))
    paused_at: Mapped[datetime | None]
    run_requested_at: Mapped[datetime | None]
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())

    __table_args__ = (
        PrimaryKeyConstraint("schedule_name", name="pk_horsies_schedule_state"),
        CheckConstraint(
            "run_count = 0 OR (run_count > 0 AND last_run_at IS NOT NULL AND last_task_id IS NOT NULL)",
            name="ck_horsies_schedule_state_runs",
        ),
    )


class QueueState(Base):
    """A queue that was ever paused or resumed."""

    __tablename__ = "horsies_queue_state"

    queue_name: Mapped[str] = mapped_column(String(100))
    paused_at: Mapped[datetime | None]
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())

    __table_args__ = (
        PrimaryKeyConstraint("queue_name", name="pk_horsies_queue_state"),
        CheckConstraint(_QUEUE_NAME, name="ck_horsies_queue_state_queue_name"),
    )


class Workflow(Base):
    """One run of a workflow."""

    __tablename__ = "horsies_workflows"

    id: Mapped[str] = mapped_column(String(36))
    name: Mapped[str] = mapped_column(String(255))
    status: Mapped[str] = mapped_column(String(20), server_default="PENDING")
    on_error: Mapped[str] = mapped_column(String(20), server_default="fail")
    output_task_index: Mapped[int | None]
    success_policy: Mapped[Any | None] = mapped_column(JSONB)
    result: Mapped[str | None]
    error: Mapped[str | None]
    definition_key: Mapped[str | None] = mapped_column(String(255))
    parent_workflow_id: Mapped[str | None] = mapped_column(String(36))
    parent_task_index: Mapped[int | None]
    root_workflow_id: Mapped[str | None] = mapped_column(String(36))
    depth: Mapped[int] = mapped_column(server_default="0")
    enqueue_sha: Mapped[str | None] = mapped_column(String(64))
    sent_at: Mapped[datetime] = mapped_column(server_default=func.statement_timestamp())
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())
    nodes_left: Mapped[int] = mapped_column(server_default="0")
    paused_inside: Mapped[bool] = mapped_column(server_default=false())

    __table_args__ = (
        PrimaryKeyConstraint("id", name="pk_horsies_workflows"),
        ForeignKeyConstraint(
            ["parent_workflow_id"],
            ["horsies_workflows.id"],
            name="fk_horsies_workflows_parent_workflow_id",
            ondelete="CASCADE",
        ),
        CheckConstraint(
            "status IN ('PENDING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED')",
            name="ck_horsies_workflows_status",
        ),
        CheckConstraint("on_error IN ('fail', 'pause')", name="ck_horsies_workflows_on_error"),
        CheckConstraint(
            "(completed_at IS NOT NULL) = (status IN ('COMPLETED', 'FAILED', 'CANCELLED'))",
            name="ck_horsies_workflows_completed_at",
        ),
        CheckConstraint(
            "(parent_workflow_id IS NULL) = (parent_task_index IS NULL) "
            "AND (parent_workflow_id IS NULL) = (depth = 0) AND depth >= 0",
            name="ck_horsies_workflows_parent",
        ),
        Index(
            "ix_horsies_workflows_live",
            "status",
            "updated_at",
            postgresql_where=text("status IN ('PENDING', 'RUNNING', 'PAUSED')"),
        ),
        Index("ix_horsies_workflows_completed_at", "completed_at", postgresql_where=text("completed_at IS NOT NULL")),
        Index(
            "ix_horsies_workflows_parent_workflow_id",
            "parent_workflow_id",
            postgresql_where=text("parent_workflow_id IS NOT NULL"),
        ),
    )


class WorkflowTask(Base):
    """One node of a run's graph: a task, or a workflow inside the workflow."""

    __tablename__ = "horsies_workflow_tasks"

    id: Mapped[str] = mapped_column(String(36))
    workflow_id: Mapped[str] = mapped_column(String(36))
    task_index: Mapped[int]
    node_id: Mapped[str] = mapped_column(String(255))
    task_name: Mapped[str] = mapped_column(String(255))
    kwargs: Mapped[str | None]
    queue_name: Mapped[str] = mapped_column(String(100), server_default="default")
    priority: Mapped[int] = mapped_column(server_default="100")
    dependencies: Mapped[list[int]] = mapped_column(ARRAY(Integer), server_default="{}")
    args_from: Mapped[Any | None] = mapped_column(JSONB)
    workflow_ctx_from: Mapped[list[str] | None] = mapped_column(ARRAY(String))
    join_type: Mapped[str] = mapped_column(String(20), server_default="all")
    min_success: Mapped[int | None]
    allow_failed_deps: Mapped[bool] = mapped_column(server_default=false())
    task_options: Mapped[str | None]
    status: Mapped[str] = mapped_column(String(20), server_default="PENDING")
    task_id: Mapped[str | None] = mapped_column(String(36))
    is_subworkflow: Mapped[bool] = mapped_column(server_default=false())
    sub_workflow_id: Mapped[str | None] = mapped_column(String(36))
    sub_workflow_name: Mapped[str | None] = mapped_column(String(255))
    result: Mapped[str | None]
    error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    started_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    updated_at: Mapped[datetime] = mapped_column(server_default=func.now())
    args: Mapped[str | None]
    max_retries: Mapped[int] = mapped_column(server_default="0")
    good_until: Mapped[datetime | None]
    ttl: Mapped[timedelta | None]
    dependents: Mapped[list[int]] = mapped_column(ARRAY(Integer), server_default="{}")
    deps_left: Mapped[int] = mapped_column(server_default="0")
    deps_ok: Mapped[int] = mapped_column(server_default="0")

    __table_args__ = (
        PrimaryKeyConstraint("id", name="pk_horsies_workflow_tasks"),
        UniqueConstraint("workflow_id", "task_index", name="uq_horsies_workflow_tasks_workflow_id_task_index"),
        UniqueConstraint("workflow_id", "node_id", name="uq_horsies_workflow_tasks_workflow_id_node_id"),
        ForeignKeyConstraint(
            ["workflow_id"],
            ["horsies_workflows.id"],
            name="fk_horsies_workflow_tasks_workflow_id",
            ondelete="CASCADE",
        ),
        CheckConstraint(
            "status IN ('PENDING', 'READY', 'ENQUEUED', 'RUNNING', 'COMPLETED', 'FAILED', 'SKIPPED')",
            name="ck_horsies_workflow_tasks_status",
        ),
        CheckConstraint(_QUEUE_NAME, name="ck_horsies_workflow_tasks_queue_name"),
        CheckConstraint("priority BETWEEN 1 AND 100", name="ck_horsies_workflow_tasks_priority"),
        CheckConstraint(
            "join_type IN ('all', 'any', 'quorum') AND (join_type = 'quorum') = (min_success IS NOT NULL) "
            "AND min_success >= 1",
            name="ck_horsies_workflow_tasks_join",
        ),
        CheckConstraint("task_index >= 0 AND task_index <> ALL (dependencies)", name="ck_horsies_workflow_tasks_graph"),
        Index(
            "uq_horsies_workflow_tasks_task_id",
            "task_id",
            unique=True,
            postgresql_where=text("task_id IS NOT NULL"),
        ),
        Index(
            "ix_horsies_workflow_tasks_sub_workflow_id",
            "sub_workflow_id",
            postgresql_where=text("sub_workflow_id IS NOT NULL"),
        ),
        Index(
            "ix_horsies_workflow_tasks_live",
            "workflow_id",
            "status",
            postgresql_where=text("status IN ('READY', 'ENQUEUED', 'RUNNING')"),
        ),
    )
