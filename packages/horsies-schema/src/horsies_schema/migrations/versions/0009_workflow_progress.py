"""What the progress of a workflow needs so that a step costs what its dependents cost, not what the graph costs.

Deploy: before the code that needs it.

`dependencies` leads from a node to what it waits for; an end has to go the other way, hence `dependents`. Whether a
join is decided is a comparison of two counters, not a count over its dependencies: with 5,000 parents that end one
by one a count reads 12.5 million rows. The index holds what is under way and nothing else.
"""

from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        """ALTER TABLE horsies_workflow_tasks
               ADD COLUMN args        text,
               ADD COLUMN max_retries integer   NOT NULL DEFAULT 0,
               ADD COLUMN good_until  timestamptz,
               ADD COLUMN ttl         interval,
               ADD COLUMN dependents  integer[] NOT NULL DEFAULT '{}',
               ADD COLUMN deps_left   integer   NOT NULL DEFAULT 0,
               ADD COLUMN deps_ok     integer   NOT NULL DEFAULT 0"""
    )
    op.execute("ALTER TABLE horsies_workflows ADD COLUMN nodes_left integer NOT NULL DEFAULT 0")
    op.execute(
        """CREATE INDEX ix_horsies_workflow_tasks_live ON horsies_workflow_tasks (workflow_id, status)
           WHERE status IN ('READY', 'ENQUEUED', 'RUNNING')"""
    )


def downgrade() -> None:
    op.execute("DROP INDEX ix_horsies_workflow_tasks_live")
    op.execute("ALTER TABLE horsies_workflows DROP COLUMN nodes_left")
    op.execute(
        """ALTER TABLE horsies_workflow_tasks
               DROP COLUMN args, DROP COLUMN max_retries, DROP COLUMN good_until, DROP COLUMN ttl,
               DROP COLUMN dependents, DROP COLUMN deps_left, DROP COLUMN deps_ok"""
    )
