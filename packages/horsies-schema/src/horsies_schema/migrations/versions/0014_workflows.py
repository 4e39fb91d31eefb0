"""What a retry of a workflow leaves behind, and what a pause inside of one means for the runs around it.

Deploy: before the code that needs it.

`former_node_id` is the row of the node that a task worked for until the node was given another task: such a task is
history, and is not run again by itself. `paused_inside` says of a run that a workflow inside it is paused; if its own
status is PAUSED as well, that is the only reason, and it goes on with that workflow.
"""

from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("ALTER TABLE horsies_tasks ADD COLUMN former_node_id varchar(36)")
    op.execute("ALTER TABLE horsies_workflows ADD COLUMN paused_inside boolean NOT NULL DEFAULT false")


def downgrade() -> None:
    op.execute("ALTER TABLE horsies_workflows DROP COLUMN paused_inside")
    op.execute("ALTER TABLE horsies_tasks DROP COLUMN former_node_id")
