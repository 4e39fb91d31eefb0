"""Tasks, their attempts and heartbeats, and what is known of names and schedules."""

from datetime import datetime

from sqlalchemy import ForeignKey, Identity, Index, SmallInteger, String, UniqueConstraint, false, text, true
from sqlalchemy.orm import Mapped, mapped_column

from horsies_schema.models import base


class Task(base.Base):
    """One task, from its send to its end. `horsies.TaskStatus` explains the states."""

    __tablename__ = "horsies_tasks"

    id: Mapped[base.Id] = mapped_column(primary_key=True)
    """A UUID of version 7, so that ids sort by time; or one that the sender gave. Its last two characters are the
    bucket of `task_done_<xx>`."""
    task_name: Mapped[base.Name]
    """The name that the task is registered under."""
    queue_name: Mapped[base.QueueName] = mapped_column(server_default="default")
    """The queue that it waits in."""
    priority: Mapped[int] = mapped_column(server_default="100")
    """1 (first) to 100 (last)."""
    args: Mapped[str | None]
    """Arguments without a name (positional-only parameters and `*args`) as a JSON array; NULL without any."""
    kwargs: Mapped[str | None]
    """The arguments by name, however they were passed, as a JSON object. With a payload codec, encoded values stand in
    its place."""
    status: Mapped[base.Word] = mapped_column(server_default="PENDING")
    """PENDING, CLAIMED, RUNNING, COMPLETED, FAILED, CANCELLED or EXPIRED."""
    sent_at: Mapped[datetime] = base.statement_time()
    """When the sender made the call, by the sender's word or the database's clock."""
    enqueued_at: Mapped[datetime] = base.statement_time()
    """From when on it is due: the send, its `eta`, the next retry, or the end of a snooze. Claims go by it."""
    is_workflow_task: Mapped[bool] = mapped_column(server_default=false())
    """Whether it is the task of a workflow's node."""
    claimed: Mapped[bool] = mapped_column(server_default=false())
    """True in the state CLAIMED alone."""
    claimed_at: Mapped[datetime | None]
    """When its present or last owner claimed it."""
    claimed_by_worker_id: Mapped[base.Name | None]
    """The worker that holds it, or that ended it."""
    claim_expires_at: Mapped[datetime | None]
    """Until when a claim without user code is valid; set in the state CLAIMED alone."""
    claim_generation: Mapped[int] = mapped_column(server_default="0")
    """Raised by each claim. Every later write names it, so that a worker that lost the task writes nothing."""
    started_at: Mapped[datetime | None]
    """When the present or last attempt was handed to a child process."""
    completed_at: Mapped[datetime | None]
    """When it ended as COMPLETED."""
    failed_at: Mapped[datetime | None]
    """When it ended as FAILED or EXPIRED."""
    terminal_at: Mapped[datetime | None]
    """When it ended, in whichever state; retention counts from here."""
    cancel_requested_at: Mapped[datetime | None]
    """When a client or an operator asked that it stops."""
    result: Mapped[str | None]
    """`{"ok": value}` or `{"err": {"error_code": ..., "message": ...}}`; NULL until the end, and for a value that is
    not stored."""
    failed_reason: Mapped[str | None]
    """Why it was ended from outside, for a person: a crash, a stop, an unknown name; NULL for an error of its own."""
    error_code: Mapped[str | None]
    """The code of its error, for filters and counts."""
    good_until: Mapped[datetime | None]
    """Until when it may start; afterwards it becomes EXPIRED."""
    retry_count: Mapped[int] = mapped_column(server_default="0")
    """Attempts before the present or last one; a new attempt may follow while it is below `max_retries`."""
    max_retries: Mapped[int] = mapped_column(server_default="0")
    """Retries that its policy allows; a retry by hand raises it to `retry_count`."""
    manual_retries: Mapped[int] = mapped_column(server_default="0")
    """How often an operator has retried it."""
    next_retry_at: Mapped[datetime | None]
    """When the next attempt is due, after one that failed."""
    task_options: Mapped[str | None]
    """Retry policy, time limit and the like as JSON, as they were when it was sent."""
    unique_key: Mapped[base.Name | None]
    """At most one task of this name with this key is alive."""
    progress: Mapped[base.Json | None]
    """What the task last reported by `report_progress`."""
    worker_pid: Mapped[int | None]
    """The process of the child that runs or ran it; NULL until that is known."""
    worker_hostname: Mapped[base.Name | None]
    """The machine of that process."""
    worker_process_name: Mapped[base.Name | None]
    """The name of that child."""
    finalizing_at: Mapped[datetime | None]
    """When an outcome was staged that is not settled yet: `result` and `error_code` have it, the state does not."""
    finalizing_by_worker_id: Mapped[str | None]
    """The worker that staged it."""
    enqueue_sha: Mapped[base.Sha | None]
    """The fingerprint of the call. A send with the same id and another fingerprint is refused."""
    created_at: Mapped[datetime] = base.now()
    """When the transaction of the send began."""
    updated_at: Mapped[datetime] = base.now()
    """When the row was last written, heartbeats aside."""
    former_node_id: Mapped[base.Id | None]
    """The row of the node that it worked for until a retry of the workflow gave that node another task. Such a task
    is history."""
    withdrawn: Mapped[bool] = mapped_column(server_default=false())
    """Whether a pause of its workflow, or its end, keeps every claim from it."""
    metadata_: Mapped[base.Json | None] = mapped_column("metadata")
    """Small JSON values beside the arguments, such as the tenant."""
    group_key: Mapped[base.Key | None]
    """The group that limits and turns go by."""
    keep_until: Mapped[datetime | None]
    """Unused; see `keep_seconds`."""
    snoozes: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    """How often it was put off by `snooze`."""
    crash_count: Mapped[int] = mapped_column(SmallInteger, server_default=text("0"))
    """How often its process died, with a policy that has `max_crashes`."""
    store_result: Mapped[bool] = mapped_column(server_default=true())
    """Unused; `task_options` says what is stored."""
    keep_seconds: Mapped[int | None]
    """How long it stays after its end; NULL: as long as the retention says."""

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
        base.partial(
            "ix_horsies_tasks_unsuccessful",
            "status",
            "terminal_at",
            "id",
            where="status IN ('FAILED', 'CANCELLED', 'EXPIRED')",
        ),
        base.partial("ix_horsies_tasks_error_code", "error_code", "terminal_at", "id", where="error_code IS NOT NULL"),
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
    """Ascending in the order of writing."""
    task_id: Mapped[base.Id] = mapped_column(ForeignKey("horsies_tasks.id", ondelete="CASCADE"))
    """The task; its attempts are deleted with it."""
    attempt: Mapped[int]
    """From 1."""
    outcome: Mapped[str] = mapped_column(String(32))
    """COMPLETED, FAILED, or WORKER_FAILURE when its process died."""
    will_retry: Mapped[bool] = mapped_column(server_default=false())
    """Whether another attempt follows."""
    started_at: Mapped[datetime]
    """When it was handed to a child process."""
    finished_at: Mapped[datetime]
    """When it ended."""
    error_code: Mapped[str | None]
    """The code of its error; NULL for COMPLETED."""
    error_message: Mapped[str | None]
    """The message of its error."""
    failed_reason: Mapped[str | None]
    """Why it was ended from outside, for a person: a crash, a stop, an unknown name; NULL for an error of its own."""
    worker_id: Mapped[base.Name | None]
    """The worker that ran it."""
    worker_hostname: Mapped[base.Name | None]
    """The machine."""
    worker_pid: Mapped[int | None]
    """The process of the child."""
    worker_process_name: Mapped[base.Name | None]
    """The name of that child."""
    created_at: Mapped[datetime] = base.now()
    """When the row was written."""

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
    """Ascending in the order of writing; retention deletes from its low end."""
    task_id: Mapped[base.Id]
    """The task. No foreign key: a late heartbeat must not fail."""
    sender_id: Mapped[base.Name]
    """The worker."""
    role: Mapped[base.Word]
    """`claimer` for a task that it holds, `runner` for one that it runs."""
    sent_at: Mapped[datetime] = base.now()
    """When."""
    hostname: Mapped[base.Name | None]
    """The machine of the worker."""
    pid: Mapped[int | None]
    """Its process."""

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
    """The hash of the names; the row of a worker refers to it."""
    names: Mapped[list[str]]
    """The task names."""
    recorded_at: Mapped[datetime] = base.statement_time()
    """When a worker first had exactly these."""

    __table_args__ = (base.time_range("recorded_at"),)


class TaskName(base.Base):
    """When live workers knew a task name, and since when tasks wait for a worker that knows it."""

    __tablename__ = "horsies_task_names"

    task_name: Mapped[base.Name] = mapped_column(primary_key=True)
    """The name."""
    first_known_at: Mapped[datetime | None]
    """Since when workers know it; NULL: none ever did."""
    last_known_at: Mapped[datetime | None]
    """When a live worker last knew it."""
    missing_since: Mapped[datetime | None]
    """Since when tasks wait for it that no live worker of their queue knows; NULL: none do."""

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
