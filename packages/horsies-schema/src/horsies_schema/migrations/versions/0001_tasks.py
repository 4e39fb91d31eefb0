"""The task table: one row per task, from send to its end.

Deploy: before the code that needs it.

The CHECKs repeat the state machine, so that no bug and no psql session can store an illegal row.
Every index is partial: a claim must cost the same with none and with ten million finished rows.
No index touches a column that heartbeats, leases or progress write; those updates stay HOT.
"""

from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

TABLE = """
CREATE TABLE horsies_tasks (
    id                      varchar(36)  NOT NULL,
    task_name               varchar(255) NOT NULL,
    queue_name              varchar(100) NOT NULL DEFAULT 'default',
    priority                integer      NOT NULL DEFAULT 100,
    args                    text,
    kwargs                  text,
    status                  varchar(20)  NOT NULL DEFAULT 'PENDING',
    sent_at                 timestamptz  NOT NULL DEFAULT statement_timestamp(),
    enqueued_at             timestamptz  NOT NULL DEFAULT statement_timestamp(),
    is_workflow_task        boolean      NOT NULL DEFAULT false,
    claimed                 boolean      NOT NULL DEFAULT false,
    claimed_at              timestamptz,
    claimed_by_worker_id    varchar(255),
    claim_expires_at        timestamptz,
    claim_generation        integer      NOT NULL DEFAULT 0,
    started_at              timestamptz,
    completed_at            timestamptz,
    failed_at               timestamptz,
    terminal_at             timestamptz,
    cancel_requested_at     timestamptz,
    result                  text,
    failed_reason           text,
    error_code              text,
    good_until              timestamptz,
    retry_count             integer      NOT NULL DEFAULT 0,
    max_retries             integer      NOT NULL DEFAULT 0,
    manual_retries          integer      NOT NULL DEFAULT 0,
    next_retry_at           timestamptz,
    task_options            text,
    unique_key              varchar(255),
    progress                jsonb,
    worker_pid              integer,
    worker_hostname         varchar(255),
    worker_process_name     varchar(255),
    finalizing_at           timestamptz,
    finalizing_by_worker_id text,
    enqueue_sha             varchar(64),
    created_at              timestamptz  NOT NULL DEFAULT now(),
    updated_at              timestamptz  NOT NULL DEFAULT now(),
    CONSTRAINT pk_horsies_tasks PRIMARY KEY (id),
    CONSTRAINT ck_horsies_tasks_status CHECK (
        status IN ('PENDING', 'CLAIMED', 'RUNNING', 'COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')),
    CONSTRAINT ck_horsies_tasks_names CHECK (task_name <> '' AND unique_key <> ''),
    -- task_queue_<name> must fit the 63 bytes of a channel name, or the INSERT itself would fail in pg_notify
    CONSTRAINT ck_horsies_tasks_queue_name CHECK (queue_name ~ '^[A-Za-z0-9_.-]{1,52}$'),
    CONSTRAINT ck_horsies_tasks_priority CHECK (priority BETWEEN 1 AND 100),
    CONSTRAINT ck_horsies_tasks_retries CHECK (
        retry_count BETWEEN 0 AND max_retries AND max_retries <= 10000 AND manual_retries >= 0
        AND claim_generation >= 0),
    CONSTRAINT ck_horsies_tasks_ownership CHECK (
        claimed = (status = 'CLAIMED')
        AND CASE status
            WHEN 'PENDING' THEN claimed_by_worker_id IS NULL AND claimed_at IS NULL AND claim_expires_at IS NULL
                AND started_at IS NULL AND finalizing_at IS NULL
            WHEN 'CLAIMED' THEN claimed_by_worker_id IS NOT NULL AND claimed_at IS NOT NULL
                AND claim_expires_at IS NOT NULL AND started_at IS NULL
            WHEN 'RUNNING' THEN claimed_by_worker_id IS NOT NULL AND claimed_at IS NOT NULL
                AND claim_expires_at IS NULL AND started_at IS NOT NULL AND worker_pid IS NOT NULL
            ELSE true END),
    -- an outcome exists exactly when the task has ended, or is staged by a worker that could not write it at once
    CONSTRAINT ck_horsies_tasks_outcome CHECK (
        CASE status
            WHEN 'COMPLETED' THEN completed_at IS NOT NULL AND failed_at IS NULL AND terminal_at IS NOT NULL
                AND result IS NOT NULL AND error_code IS NULL
            WHEN 'FAILED' THEN failed_at IS NOT NULL AND completed_at IS NULL AND terminal_at IS NOT NULL
                AND result IS NOT NULL AND error_code IS NOT NULL
            WHEN 'EXPIRED' THEN failed_at IS NOT NULL AND completed_at IS NULL AND terminal_at IS NOT NULL
                AND result IS NOT NULL AND error_code IS NOT NULL
            WHEN 'CANCELLED' THEN completed_at IS NULL AND terminal_at IS NOT NULL AND result IS NOT NULL
            ELSE completed_at IS NULL AND failed_at IS NULL AND terminal_at IS NULL
                AND ((result IS NULL AND error_code IS NULL) OR (status = 'RUNNING' AND finalizing_at IS NOT NULL))
            END),
    -- both sides are written by one statement; other clock orders are no CHECK, since a database clock that
    -- steps back must not make an end unwritable
    CONSTRAINT ck_horsies_tasks_good_until CHECK (started_at < good_until)
)
"""

INDEXES = (
    # the claim walks this in order, one descent per (queue, priority)
    """CREATE INDEX ix_horsies_tasks_claim ON horsies_tasks (queue_name, priority, enqueued_at, id)
       WHERE status = 'PENDING'""",
    # caps count it, the reaper and the heartbeat read it; as long as what is in flight, no longer
    """CREATE INDEX ix_horsies_tasks_in_flight ON horsies_tasks (queue_name)
       WHERE status IN ('CLAIMED', 'RUNNING')""",
    """CREATE INDEX ix_horsies_tasks_good_until ON horsies_tasks (good_until)
       WHERE good_until IS NOT NULL AND status IN ('PENDING', 'CLAIMED')""",
    """CREATE INDEX ix_horsies_tasks_next_retry_at ON horsies_tasks (next_retry_at)
       WHERE next_retry_at IS NOT NULL AND status = 'PENDING'""",
    # the only index over finished rows that every task pays for: retention, and lists of what ended last
    """CREATE INDEX ix_horsies_tasks_terminal_at ON horsies_tasks (terminal_at) WHERE terminal_at IS NOT NULL""",
    """CREATE INDEX ix_horsies_tasks_error_code ON horsies_tasks (error_code) WHERE error_code IS NOT NULL""",
    """CREATE UNIQUE INDEX uq_horsies_tasks_unique_key ON horsies_tasks (task_name, unique_key)
       WHERE unique_key IS NOT NULL AND status IN ('PENDING', 'CLAIMED', 'RUNNING')""",
)


def upgrade() -> None:
    op.execute(TABLE)
    for index in INDEXES:
        op.execute(index)


def downgrade() -> None:
    op.execute("DROP TABLE horsies_tasks")
