"""Workflows: a run, and the nodes of its graph.

Deploy: before the code that needs it.

A node points at its task without a foreign key: a task row that an operator deletes must leave a
node that recovery can end, not take the graph with it.
"""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

WORKFLOWS = """
CREATE TABLE horsies_workflows (
    id                 varchar(36)  NOT NULL,
    name               varchar(255) NOT NULL,
    status             varchar(20)  NOT NULL DEFAULT 'PENDING',
    on_error           varchar(20)  NOT NULL DEFAULT 'fail',
    output_task_index  integer,
    success_policy     jsonb,
    result             text,
    error              text,
    definition_key     varchar(255),
    parent_workflow_id varchar(36),
    parent_task_index  integer,
    root_workflow_id   varchar(36),
    depth              integer      NOT NULL DEFAULT 0,
    enqueue_sha        varchar(64),
    sent_at            timestamptz  NOT NULL DEFAULT statement_timestamp(),
    created_at         timestamptz  NOT NULL DEFAULT now(),
    started_at         timestamptz,
    completed_at       timestamptz,
    updated_at         timestamptz  NOT NULL DEFAULT now(),
    CONSTRAINT pk_horsies_workflows PRIMARY KEY (id),
    CONSTRAINT fk_horsies_workflows_parent_workflow_id FOREIGN KEY (parent_workflow_id)
        REFERENCES horsies_workflows (id) ON DELETE CASCADE,
    CONSTRAINT ck_horsies_workflows_status CHECK (
        status IN ('PENDING', 'RUNNING', 'PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED')),
    CONSTRAINT ck_horsies_workflows_on_error CHECK (on_error IN ('fail', 'pause')),
    CONSTRAINT ck_horsies_workflows_completed_at CHECK (
        (completed_at IS NOT NULL) = (status IN ('COMPLETED', 'FAILED', 'CANCELLED'))),
    CONSTRAINT ck_horsies_workflows_parent CHECK (
        (parent_workflow_id IS NULL) = (parent_task_index IS NULL)
        AND (parent_workflow_id IS NULL) = (depth = 0) AND depth >= 0)
)
"""

WORKFLOW_TASKS = """
CREATE TABLE horsies_workflow_tasks (
    id                varchar(36)  NOT NULL,
    workflow_id       varchar(36)  NOT NULL,
    task_index        integer      NOT NULL,
    node_id           varchar(255) NOT NULL,
    task_name         varchar(255) NOT NULL,
    kwargs            text,
    queue_name        varchar(100) NOT NULL DEFAULT 'default',
    priority          integer      NOT NULL DEFAULT 100,
    dependencies      integer[]    NOT NULL DEFAULT '{}',
    args_from         jsonb,
    workflow_ctx_from varchar[],
    join_type         varchar(20)  NOT NULL DEFAULT 'all',
    min_success       integer,
    allow_failed_deps boolean      NOT NULL DEFAULT false,
    task_options      text,
    status            varchar(20)  NOT NULL DEFAULT 'PENDING',
    task_id           varchar(36),
    is_subworkflow    boolean      NOT NULL DEFAULT false,
    sub_workflow_id   varchar(36),
    sub_workflow_name varchar(255),
    result            text,
    error             text,
    created_at        timestamptz  NOT NULL DEFAULT now(),
    started_at        timestamptz,
    completed_at      timestamptz,
    updated_at        timestamptz  NOT NULL DEFAULT now(),
    CONSTRAINT pk_horsies_workflow_tasks PRIMARY KEY (id),
    CONSTRAINT uq_horsies_workflow_tasks_workflow_id_task_index UNIQUE (workflow_id, task_index),
    CONSTRAINT uq_horsies_workflow_tasks_workflow_id_node_id UNIQUE (workflow_id, node_id),
    CONSTRAINT fk_horsies_workflow_tasks_workflow_id FOREIGN KEY (workflow_id)
        REFERENCES horsies_workflows (id) ON DELETE CASCADE,
    CONSTRAINT ck_horsies_workflow_tasks_status CHECK (
        status IN ('PENDING', 'READY', 'ENQUEUED', 'RUNNING', 'COMPLETED', 'FAILED', 'SKIPPED')),
    CONSTRAINT ck_horsies_workflow_tasks_queue_name CHECK (queue_name ~ '^[A-Za-z0-9_.-]{1,52}$'),
    CONSTRAINT ck_horsies_workflow_tasks_priority CHECK (priority BETWEEN 1 AND 100),
    CONSTRAINT ck_horsies_workflow_tasks_join CHECK (
        join_type IN ('all', 'any', 'quorum') AND (join_type = 'quorum') = (min_success IS NOT NULL)
        AND min_success >= 1),
    CONSTRAINT ck_horsies_workflow_tasks_graph CHECK (task_index >= 0 AND task_index <> ALL (dependencies))
)
"""

INDEXES = (
    """CREATE INDEX ix_horsies_workflows_live ON horsies_workflows (status, updated_at)
       WHERE status IN ('PENDING', 'RUNNING', 'PAUSED')""",
    """CREATE INDEX ix_horsies_workflows_completed_at ON horsies_workflows (completed_at)
       WHERE completed_at IS NOT NULL""",
    """CREATE INDEX ix_horsies_workflows_parent_workflow_id ON horsies_workflows (parent_workflow_id)
       WHERE parent_workflow_id IS NOT NULL""",
    # no task has two nodes
    """CREATE UNIQUE INDEX uq_horsies_workflow_tasks_task_id ON horsies_workflow_tasks (task_id)
       WHERE task_id IS NOT NULL""",
    """CREATE INDEX ix_horsies_workflow_tasks_sub_workflow_id ON horsies_workflow_tasks (sub_workflow_id)
       WHERE sub_workflow_id IS NOT NULL""",
)


def upgrade() -> None:
    op.execute(WORKFLOWS)
    op.execute(WORKFLOW_TASKS)
    for index in INDEXES:
        op.execute(index)


def downgrade() -> None:
    op.execute("DROP TABLE horsies_workflow_tasks")
    op.execute("DROP TABLE horsies_workflows")
