"""Tasks, their attempts and heartbeats, and what is known of names and schedules."""

from datetime import datetime

from sqlalchemy import ForeignKey, Identity, Index, SmallInteger, String, UniqueConstraint, false, text, true
from sqlalchemy.orm import Mapped, mapped_column

from horsies_schema.models import base


class Task(base.Base):
    """One task, from its send to its end. `horsies.TaskStatus` explains the states."""

    __tablename__ = "horsies_tasks"

    id: Mapped[base.Id] = mapped_column(primary_key=True)
    task_name: Mapped[base.Name]
    queue_name: Mapped[base.QueueName] = mapped_column(server_default="default")
    priority: Mapped[int] = mapped_column(server_default="100")
    args: Mapped[str | None]
    kwargs: Mapped[str | None]
    status: Mapped[base.Word] = mapped_column(server_default="PENDING")
    sent_at: Mapped[datetime] = base.statement_time()
    enqueued_at: Mapped[datetime] = base.statement_time()
    is_workflow_task: Mapped[bool] = mapped_column(server_default=false())
    claimed: Mapped[bool] = mapped_column(server_default=false())
    claimed_at: Mapped[datetime | None]
    claimed_by_worker_id: Mapped[base.Name | None]
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
    unique_key: Mapped[base.Name | None]
    progress: Mapped[base.Json | None]
    worker_pid: Mapped[int | None]
    worker_hostname: Mapped[base.Name | None]
    worker_process_name: Mapped[base.Name | None]
    finalizing_at: Mapped[datetime | None]
    finalizing_by_worker_id: Mapped[str | None]
    enqueue_sha: Mapped[base.Sha | None]
    created_at: Mapped[datetime] = base.now()
    updated_at: Mapped[datetime] = base.now()
    former_node_id: Mapped[base.Id | None]
    withdrawn: Mapped[bool] = mapped_column(server_default=false())
    metadata_: Mapped[base.Json | None] = mapped_column("metadata")
    group_key: Mapped[base.Key | None]
    keep_until: Mapped[datetime | None]
    snoozes: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    crash_count: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    store_result: Mapped[bool] = mapped_column(server_default=true())
    keep_seconds: Mapped[int | None]

    __table_args__ = (
        # Which values and which combinations of them are legal: a function of revision 0011 (changed since), which
        # `create_all()` does not make. As expressions, PostgreSQL would parse their 22 KB again for each statement.
        base.check(
            "sound",
            "horsies_task_is_sound(task_name, queue_name, unique_key, priority, status, claimed, "
            "claimed_by_worker_id, claimed_at, claim_expires_at, claim_generation, started_at, good_until, worker_pid, "
            "finalizing_at, completed_at, failed_at, terminal_at, result, error_code, retry_count, max_retries, "
            "manual_retries, sent_at, enqueued_at, cancel_requested_at, next_retry_at, created_at, updated_at, "
            "keep_until, metadata)",
        ),
        base.partial(
            "ix_horsies_tasks_claim",
            "queue_name",
            "priority",
            "enqueued_at",
            "id",
            where="status = 'PENDING' AND NOT withdrawn AND group_key IS NULL",
        ),
        base.partial(
            "ix_horsies_tasks_grouped",
            "queue_name",
            "priority",
            "group_key",
            "enqueued_at",
            "id",
            where="status = 'PENDING' AND NOT withdrawn AND group_key IS NOT NULL",
        ),
        base.partial(
            "ix_horsies_tasks_grouped_age",
            "queue_name",
            "priority",
            "enqueued_at",
            "id",
            where="status = 'PENDING' AND NOT withdrawn AND group_key IS NOT NULL",
        ),
        base.partial(
            "ix_horsies_tasks_grouped_in_flight",
            "queue_name",
            "group_key",
            where="status IN ('CLAIMED', 'RUNNING') AND group_key IS NOT NULL",
        ),
        base.partial("ix_horsies_tasks_withdrawn", "queue_name", "priority", "enqueued_at", "id", where="withdrawn"),
        base.partial("ix_horsies_tasks_in_flight", "queue_name", where="status IN ('CLAIMED', 'RUNNING')"),
        base.partial(
            "ix_horsies_tasks_good_until",
            "good_until",
            where="good_until IS NOT NULL AND status IN ('PENDING', 'CLAIMED')",
        ),
        base.partial(
            "ix_horsies_tasks_next_retry_at", "next_retry_at", where="next_retry_at IS NOT NULL AND status = 'PENDING'"
        ),
        base.partial("ix_horsies_tasks_terminal_at", "terminal_at", where="terminal_at IS NOT NULL"),
        base.partial(
            "ix_horsies_tasks_kept",
            "keep_seconds",
            "terminal_at",
            where="keep_seconds IS NOT NULL AND terminal_at IS NOT NULL",
        ),
        base.partial("ix_horsies_tasks_error_code", "error_code", where="error_code IS NOT NULL"),
        base.partial(
            "uq_horsies_tasks_unique_key",
            "task_name",
            "unique_key",
            where="unique_key IS NOT NULL AND status IN ('PENDING', 'CLAIMED', 'RUNNING')",
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


class TaskAttempt(base.Base):
    """One finished attempt; written once, with the task's own state change, and never again."""

    __tablename__ = "horsies_task_attempts"

    id: Mapped[base.Big] = mapped_column(Identity(), primary_key=True)
    task_id: Mapped[base.Id] = mapped_column(ForeignKey("horsies_tasks.id", ondelete="CASCADE"))
    attempt: Mapped[int]
    outcome: Mapped[str] = mapped_column(String(32))
    will_retry: Mapped[bool] = mapped_column(server_default=false())
    started_at: Mapped[datetime]
    finished_at: Mapped[datetime]
    error_code: Mapped[str | None]
    error_message: Mapped[str | None]
    failed_reason: Mapped[str | None]
    worker_id: Mapped[base.Name | None]
    worker_hostname: Mapped[base.Name | None]
    worker_pid: Mapped[int | None]
    worker_process_name: Mapped[base.Name | None]
    created_at: Mapped[datetime] = base.now()

    __table_args__ = (
        UniqueConstraint("task_id", "attempt"),
        base.check(
            "sound",
            """attempt >= 1 AND finished_at >= started_at
            AND CASE WHEN error_code IS NULL THEN outcome = 'COMPLETED' AND NOT will_retry
                     ELSE outcome = 'FAILED' OR outcome = 'WORKER_FAILURE' END
            """
            "AND least(started_at, finished_at, created_at) >= to_timestamp(0) "
            "AND greatest(started_at, finished_at, created_at) <= to_timestamp(221845392000)",
        ),
        base.partial("ix_horsies_task_attempts_error_code", "error_code", where="error_code IS NOT NULL"),
        Index("ix_horsies_task_attempts_finished_at", text("finished_at DESC")),
    )


class Heartbeat(base.Base):
    """A worker vouches for a task that it holds (`claimer`) or runs (`runner`)."""

    __tablename__ = "horsies_heartbeats"

    id: Mapped[base.Big] = mapped_column(Identity(), primary_key=True)
    task_id: Mapped[base.Id]
    sender_id: Mapped[base.Name]
    role: Mapped[base.Word]
    sent_at: Mapped[datetime] = base.now()
    hostname: Mapped[base.Name | None]
    pid: Mapped[int | None]

    __table_args__ = (
        base.check("role", "role IN ('claimer', 'runner')"),
        base.time_range("sent_at"),
        Index("ix_horsies_heartbeats_task", "task_id", "role", text("sent_at DESC")),
        {"postgresql_with": {"autovacuum_vacuum_scale_factor": 0.05}},
    )


class TaskSet(base.Base):
    """The task names that one release registers. See migration 0012."""

    __tablename__ = "horsies_task_sets"

    sha: Mapped[base.Sha] = mapped_column(primary_key=True)
    names: Mapped[list[str]]
    recorded_at: Mapped[datetime] = base.statement_time()

    __table_args__ = (base.time_range("recorded_at"),)


class TaskName(base.Base):
    """When live workers knew a task name, and since when tasks wait for a worker that knows it."""

    __tablename__ = "horsies_task_names"

    task_name: Mapped[base.Name] = mapped_column(primary_key=True)
    first_known_at: Mapped[datetime | None]
    last_known_at: Mapped[datetime | None]
    missing_since: Mapped[datetime | None]

    __table_args__ = (
        base.check(
            "times",
            "(first_known_at IS NULL) = (last_known_at IS NULL)"
            " AND coalesce(first_known_at, missing_since) IS NOT NULL",
        ),
        base.time_range("first_known_at", "last_known_at", "missing_since"),
        base.partial("ix_horsies_task_names_missing", "missing_since", where="missing_since IS NOT NULL"),
        {"postgresql_with": {"fillfactor": 50}},
    )
