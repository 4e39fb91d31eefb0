"""Runs of workflows and their nodes."""

from datetime import datetime, timedelta

from sqlalchemy import ARRAY, ForeignKey, Index, String, UniqueConstraint, false, func
from sqlalchemy.orm import Mapped, mapped_column

from horsies_schema.models import base


class Workflow(base.Base):
    """One run of a workflow."""

    __tablename__ = "horsies_workflows"

    id: Mapped[base.Id] = mapped_column(primary_key=True)
    name: Mapped[base.Name]
    status: Mapped[base.Word] = mapped_column(server_default="PENDING")
    on_error: Mapped[base.Word] = mapped_column(server_default="fail")
    output_task_index: Mapped[int | None]
    success_policy: Mapped[base.Json | None]
    result: Mapped[str | None]
    error: Mapped[str | None]
    definition_key: Mapped[base.Name | None]
    parent_workflow_id: Mapped[base.Id | None] = mapped_column(ForeignKey("horsies_workflows.id", ondelete="CASCADE"))
    parent_task_index: Mapped[int | None]
    root_workflow_id: Mapped[base.Id | None]
    depth: Mapped[int] = mapped_column(server_default="0")
    enqueue_sha: Mapped[base.Sha | None]
    sent_at: Mapped[datetime] = base.statement_time()
    created_at: Mapped[datetime] = base.now()
    started_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    updated_at: Mapped[datetime] = base.now()
    nodes_left: Mapped[int] = mapped_column(server_default="0")
    paused_inside: Mapped[bool] = mapped_column(server_default=false())
    metadata_: Mapped[base.Json | None] = mapped_column("metadata")
    group_key: Mapped[base.Key | None]
    deadline: Mapped[datetime | None]
    start_at: Mapped[datetime | None]
    wake_at: Mapped[datetime | None]
    priority: Mapped[int | None]
    unique_key: Mapped[str | None]
    """A JSON array of the name of the workflow and the key."""
    release: Mapped[base.Name | None]
    fingerprint: Mapped[base.Sha | None]
    ends_as: Mapped[base.Word | None]
    continues: Mapped[int] = mapped_column(server_default="0")
    continued_from: Mapped[base.Id | None]
    ended_count: Mapped[int] = mapped_column(server_default="0")
    unsettled: Mapped[bool] = mapped_column(server_default=false())

    __table_args__ = (
        base.check("status", "status IN ('PENDING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED')"),
        base.check("on_error", "on_error IN ('fail', 'pause')"),
        base.check("completed_at", "(completed_at IS NOT NULL) = (status IN ('COMPLETED', 'FAILED', 'CANCELLED'))"),
        base.check(
            "parent",
            "(parent_workflow_id IS NULL) = (parent_task_index IS NULL) "
            "AND (parent_workflow_id IS NULL) = (depth = 0) AND depth >= 0",
        ),
        base.time_range(
            "sent_at", "created_at", "started_at", "completed_at", "updated_at", "deadline", "start_at", "wake_at"
        ),
        base.check("metadata", base.IS_METADATA),
        base.check("priority", "priority BETWEEN 1 AND 100"),
        base.check("ends_as", "ends_as IN ('FAILED', 'CANCELLED')"),
        base.partial(
            "ix_horsies_workflows_live", "status", "updated_at", where="status IN ('PENDING', 'RUNNING', 'PAUSED')"
        ),
        base.partial("ix_horsies_workflows_completed_at", "completed_at", where="completed_at IS NOT NULL"),
        base.partial(
            "ix_horsies_workflows_parent_workflow_id", "parent_workflow_id", where="parent_workflow_id IS NOT NULL"
        ),
        base.partial("ix_horsies_workflows_wake_at", "wake_at", where="wake_at IS NOT NULL"),
        base.partial("ix_horsies_workflows_finishing", "updated_at", where="nodes_left = 0 AND completed_at IS NULL"),
        base.partial("ix_horsies_workflows_unsettled", "completed_at", where="unsettled AND completed_at IS NOT NULL"),
        base.partial(
            "uq_horsies_workflows_unique_key",
            "unique_key",
            where="unique_key IS NOT NULL AND completed_at IS NULL",
        ),
    )


class WorkflowTask(base.Base):
    """One node of a run's graph: a task, or a workflow inside the workflow."""

    __tablename__ = "horsies_workflow_tasks"

    id: Mapped[base.Id] = mapped_column(primary_key=True)
    workflow_id: Mapped[base.Id] = mapped_column(ForeignKey("horsies_workflows.id", ondelete="CASCADE"))
    task_index: Mapped[int]
    node_id: Mapped[base.Name]
    task_name: Mapped[base.Name]
    kwargs: Mapped[str | None]
    queue_name: Mapped[base.QueueName] = mapped_column(server_default="default")
    priority: Mapped[int] = mapped_column(server_default="100")
    dependencies: Mapped[list[int]] = mapped_column(server_default="{}")
    args_from: Mapped[base.Json | None]
    workflow_ctx_from: Mapped[list[str] | None] = mapped_column(ARRAY(String))
    join_type: Mapped[base.Word] = mapped_column(server_default="all")
    min_success: Mapped[int | None]
    allow_failed_deps: Mapped[bool] = mapped_column(server_default=false())
    task_options: Mapped[str | None]
    status: Mapped[base.Word] = mapped_column(server_default="PENDING")
    task_id: Mapped[base.Id | None]
    sub_workflow_id: Mapped[base.Id | None]
    sub_workflow_name: Mapped[base.Name | None]
    result: Mapped[str | None]
    error: Mapped[str | None]
    created_at: Mapped[datetime] = base.now()
    started_at: Mapped[datetime | None]
    completed_at: Mapped[datetime | None]
    updated_at: Mapped[datetime] = base.now()
    args: Mapped[str | None]
    max_retries: Mapped[int] = mapped_column(server_default="0")
    good_until: Mapped[datetime | None]
    ttl: Mapped[timedelta | None]
    dependents: Mapped[list[int]] = mapped_column(server_default="{}")
    deps_left: Mapped[int] = mapped_column(server_default="0")
    deps_ok: Mapped[int] = mapped_column(server_default="0")
    kind: Mapped[base.Word] = mapped_column(server_default="task")
    metadata_: Mapped[base.Json | None] = mapped_column("metadata")
    group_key: Mapped[base.Key | None]
    wake_at: Mapped[datetime | None]
    signal_name: Mapped[base.Name | None]
    when_index: Mapped[int | None]
    when_value: Mapped[bool | None]
    decides: Mapped[list[int]] = mapped_column(server_default="{}")
    skip_reason: Mapped[base.Word | None]
    deps_void: Mapped[int] = mapped_column(server_default="0")
    ended_seq: Mapped[int | None]
    compensate: Mapped[base.Json | None]
    compensates: Mapped[base.Id | None]

    __table_args__ = (
        UniqueConstraint("workflow_id", "task_index"),
        UniqueConstraint("workflow_id", "node_id"),
        base.check(
            "status",
            "status IN ('PENDING', 'READY', 'ENQUEUED', 'RUNNING', 'COMPLETED', 'FAILED', 'SKIPPED', 'WAITING')",
        ),
        base.check("queue_name", base.QUEUE_NAME),
        base.check("priority", "priority BETWEEN 1 AND 100"),
        base.check(
            "join",
            "join_type IN ('all', 'any', 'quorum') AND (join_type = 'quorum') = (min_success IS NOT NULL) "
            "AND min_success >= 1",
        ),
        base.check("graph", "task_index >= 0 AND task_index <> ALL (dependencies)"),
        base.time_range(
            "created_at",
            "started_at",
            "completed_at",
            "updated_at",
            "good_until",
            "wake_at",
            rest=" AND ttl BETWEEN make_interval() AND make_interval(years => 1000)",
        ),
        base.check("kind", "kind IN ('task', 'workflow', 'map', 'signal', 'sleep')"),
        base.check(
            "waits",
            "(kind = 'signal') = (signal_name IS NOT NULL) AND (when_index IS NULL) = (when_value IS NULL) "
            "AND (wake_at IS NULL OR status = 'WAITING')",
        ),
        base.check(
            "skip_reason",
            "skip_reason IS NULL "
            "OR status = 'SKIPPED' AND skip_reason IN ('upstream', 'not_taken', 'cancelled', 'deadline')",
        ),
        base.partial("uq_horsies_workflow_tasks_task_id", "task_id", where="task_id IS NOT NULL"),
        base.partial(
            "ix_horsies_workflow_tasks_sub_workflow_id", "sub_workflow_id", where="sub_workflow_id IS NOT NULL"
        ),
        base.partial(
            "ix_horsies_workflow_tasks_live",
            "workflow_id",
            "status",
            where="status IN ('READY', 'ENQUEUED', 'RUNNING')",
        ),
        base.partial("ix_horsies_workflow_tasks_open", "status", "updated_at", where="status IN ('READY', 'ENQUEUED')"),
        base.partial("ix_horsies_workflow_tasks_waiting", "workflow_id", where="status = 'WAITING'"),
        base.partial(
            "ix_horsies_workflow_tasks_signal",
            "signal_name",
            "started_at",
            where="status = 'WAITING' AND signal_name IS NOT NULL",
        ),
        base.partial("ix_horsies_workflow_tasks_compensate", "workflow_id", where="compensate IS NOT NULL"),
        base.partial("uq_horsies_workflow_tasks_compensates", "compensates", where="compensates IS NOT NULL"),
    )


class WorkflowSignal(base.Base):
    """A signal that was sent to a run; a node that waits for its name consumes it."""

    __tablename__ = "horsies_workflow_signals"

    id: Mapped[base.Name] = mapped_column(primary_key=True)
    workflow_id: Mapped[base.Id] = mapped_column(ForeignKey("horsies_workflows.id", ondelete="CASCADE"))
    name: Mapped[base.Name]
    value: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    consumed_by: Mapped[base.Id | None]
    """The node's row."""
    consumed_at: Mapped[datetime | None]
    noticed: Mapped[bool] = mapped_column(server_default=false())
    """A step of the run has looked for a node that waits for it."""

    __table_args__ = (
        base.check("consumed", "(consumed_by IS NULL) = (consumed_at IS NULL)"),
        base.check("value", "octet_length(value) <= 16777216"),
        base.time_range("created_at", "consumed_at"),
        Index("ix_horsies_workflow_signals_name", "workflow_id", "name", "created_at"),
        base.partial("ix_horsies_workflow_signals_new", "created_at", where="NOT noticed"),
        base.partial("uq_horsies_workflow_signals_consumed_by", "consumed_by", where="consumed_by IS NOT NULL"),
    )
