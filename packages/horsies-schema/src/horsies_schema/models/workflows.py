"""Runs of workflows and their nodes."""

from datetime import datetime, timedelta

from sqlalchemy import ARRAY, ForeignKey, Index, String, UniqueConstraint, false, func
from sqlalchemy.orm import Mapped, mapped_column

from horsies_schema.models import base


class Workflow(base.Base):
    """One run of a workflow."""

    __tablename__ = "horsies_workflows"

    id: Mapped[base.Id] = mapped_column(primary_key=True)
    """The run."""
    name: Mapped[base.Name]
    """The name of the workflow."""
    status: Mapped[base.Word] = mapped_column(server_default="PENDING")
    """PENDING, RUNNING, PAUSED, COMPLETED, FAILED or CANCELLED."""
    on_error: Mapped[base.Word] = mapped_column(server_default="fail")
    """`fail` or `pause` when a node fails."""
    output_task_index: Mapped[int | None]
    """The node whose result is that of the run; NULL: the run has no output."""
    success_policy: Mapped[base.Json | None]
    """The cases of a `SuccessPolicy`; NULL: every node must succeed."""
    result: Mapped[str | None]
    """The result of the run, in the form of a task's."""
    error: Mapped[str | None]
    """The error of a run that failed, was cancelled or is paused."""
    definition_key: Mapped[base.Name | None]
    """Which definition made it; `batch` for a batch."""
    parent_workflow_id: Mapped[base.Id | None] = mapped_column(ForeignKey("horsies_workflows.id", ondelete="CASCADE"))
    """The run around it; it is deleted with that."""
    parent_task_index: Mapped[int | None]
    """The node of that run whose place it takes."""
    root_workflow_id: Mapped[base.Id | None]
    """The outermost run, or the run that this one is a past round of; NULL for an outermost one."""
    depth: Mapped[int] = mapped_column(server_default="0")
    """0 for an outermost run."""
    enqueue_sha: Mapped[base.Sha | None]
    """The fingerprint of the start. A start with the same id and another fingerprint is refused."""
    sent_at: Mapped[datetime] = base.statement_time()
    """When the start was called."""
    created_at: Mapped[datetime] = base.now()
    """When the row was written."""
    started_at: Mapped[datetime | None]
    """When it began: at once, or at `start_at`."""
    completed_at: Mapped[datetime | None]
    """When it ended, in whichever state."""
    updated_at: Mapped[datetime] = base.now()
    """When the row was last written."""
    nodes_left: Mapped[int] = mapped_column(server_default="0")
    """Nodes that have not ended."""
    paused_inside: Mapped[bool] = mapped_column(server_default=false())
    """Whether a run inside it is paused; if its own status is PAUSED as well, that is the only reason."""
    metadata_: Mapped[base.Json | None] = mapped_column("metadata")
    """Small JSON values that its tasks inherit."""
    group_key: Mapped[base.Key | None]
    """The group that its tasks have unless they have their own."""
    deadline: Mapped[datetime | None]
    """When it is stopped if it has not ended."""
    start_at: Mapped[datetime | None]
    """When it begins, if not at once."""
    wake_at: Mapped[datetime | None]
    """The earliest of its clocks: sleeps, timeouts, deadline, later start."""
    priority: Mapped[int | None]
    """The priority of tasks without their own."""
    unique_key: Mapped[str | None]
    """A JSON array of the name of the workflow and the key."""
    release: Mapped[base.Name | None]
    """`AppConfig.release` of the process that started it."""
    fingerprint: Mapped[base.Sha | None]
    """A hash of its definition and of the signatures of its tasks, for `horsies workflows check`."""
    ends_as: Mapped[base.Word | None]
    """The state that it will end in, while it undoes what it did."""
    continues: Mapped[int] = mapped_column(server_default="0")
    """How often it went on by `Continue` in its own place."""
    continued_from: Mapped[base.Id | None]
    """The run that keeps its round before."""
    ended_count: Mapped[int] = mapped_column(server_default="0")
    """How many nodes have ended so far, which numbers them."""
    unsettled: Mapped[bool] = mapped_column(server_default=false())
    """Whether the run around it has not taken note of its end."""

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
    """The node."""
    workflow_id: Mapped[base.Id] = mapped_column(ForeignKey("horsies_workflows.id", ondelete="CASCADE"))
    """The run."""
    task_index: Mapped[int]
    """The number of the node in its run, from 0."""
    node_id: Mapped[base.Name]
    """The name of the node in its run."""
    task_name: Mapped[base.Name]
    """The task; of other kinds, what stands in its place."""
    kwargs: Mapped[str | None]
    """The arguments by name that are known at the start."""
    queue_name: Mapped[base.QueueName] = mapped_column(server_default="default")
    """The queue of its task."""
    priority: Mapped[int] = mapped_column(server_default="100")
    """The priority of its task."""
    dependencies: Mapped[list[int]] = mapped_column(server_default="{}")
    """The nodes that it waits for, by number."""
    args_from: Mapped[base.Json | None]
    """Parameters that take the value or the result of another node."""
    workflow_ctx_from: Mapped[list[str] | None] = mapped_column(ARRAY(String))
    """The nodes whose results its `WorkflowContext` has."""
    join_type: Mapped[base.Word] = mapped_column(server_default="all")
    """`all`, `any` or `quorum` of its dependencies must succeed."""
    min_success: Mapped[int | None]
    """How many of them, for a quorum."""
    allow_failed_deps: Mapped[bool] = mapped_column(server_default=false())
    """Whether it also runs when a dependency has failed."""
    task_options: Mapped[str | None]
    """The options of its task."""
    status: Mapped[base.Word] = mapped_column(server_default="PENDING")
    """PENDING, READY, ENQUEUED, RUNNING, WAITING, COMPLETED, FAILED or SKIPPED."""
    task_id: Mapped[base.Id | None]
    """Its task. No foreign key: a deleted task must leave a node that can be ended."""
    sub_workflow_id: Mapped[base.Id | None]
    """The run inside, of a workflow or a map."""
    sub_workflow_name: Mapped[base.Name | None]
    """The name of that workflow."""
    result: Mapped[str | None]
    """Its result, in the form of a task's."""
    error: Mapped[str | None]
    """Its error."""
    created_at: Mapped[datetime] = base.now()
    """When the row was written."""
    started_at: Mapped[datetime | None]
    """When its task started, the run inside was made, or it began to wait."""
    completed_at: Mapped[datetime | None]
    """When it ended."""
    updated_at: Mapped[datetime] = base.now()
    """When the row was last written."""
    args: Mapped[str | None]
    """Arguments without a name that are known at the start."""
    max_retries: Mapped[int] = mapped_column(server_default="0")
    """Retries of its task."""
    good_until: Mapped[datetime | None]
    """Until when its task may start."""
    ttl: Mapped[timedelta | None]
    """The same, counted from when the node is ready."""
    dependents: Mapped[list[int]] = mapped_column(server_default="{}")
    """The nodes that wait for it: `dependencies` the other way round."""
    deps_left: Mapped[int] = mapped_column(server_default="0")
    """Dependencies that have not ended."""
    deps_ok: Mapped[int] = mapped_column(server_default="0")
    """Dependencies that have succeeded."""
    kind: Mapped[base.Word] = mapped_column(server_default="task")
    """`task`, `workflow`, `map`, `signal` or `sleep`."""
    metadata_: Mapped[base.Json | None] = mapped_column("metadata")
    """What the registration of its task says."""
    group_key: Mapped[base.Key | None]
    """The group of its task."""
    wake_at: Mapped[datetime | None]
    """When its sleep or its timeout is over; set in the state WAITING alone."""
    signal_name: Mapped[base.Name | None]
    """The signal that it waits for, of kind `signal`."""
    when_index: Mapped[int | None]
    """The node whose value decides whether it runs."""
    when_value: Mapped[bool | None]
    """The value that lets it run: `when` or `unless`."""
    decides: Mapped[list[int]] = mapped_column(server_default="{}")
    """The nodes that its value decides on: `when_index` the other way round."""
    skip_reason: Mapped[base.Word | None]
    """Why it was skipped: `upstream`, `not_taken`, `cancelled` or `deadline`."""
    deps_void: Mapped[int] = mapped_column(server_default="0")
    """Dependencies in branches that were not taken."""
    ended_seq: Mapped[int | None]
    """Its place in the order in which the nodes ended; compensations run the other way."""
    compensate: Mapped[base.Json | None]
    """The task that undoes it, with its arguments."""
    compensates: Mapped[base.Id | None]
    """The node that this one undoes."""

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
    """The `signal_id` of the sender, or a new one; unique in the whole table."""
    workflow_id: Mapped[base.Id] = mapped_column(ForeignKey("horsies_workflows.id", ondelete="CASCADE"))
    """The run; its signals are deleted with it."""
    name: Mapped[base.Name]
    """The name of the signal."""
    value: Mapped[str]
    """JSON text of at most 16 MB."""
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    """When it was sent."""
    consumed_by: Mapped[base.Id | None]
    """The node's row."""
    consumed_at: Mapped[datetime | None]
    """When that node took it."""
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
