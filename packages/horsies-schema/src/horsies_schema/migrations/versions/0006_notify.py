"""The notifications: what makes horsies immediate. A hint to look, never data.

Deploy: before the code that needs it.

Inserts are told once per statement and queue, not once per row: NOTIFY takes a cluster-wide lock at
commit, and a worker needs one reason to look, not ten thousand. Ends are told per task, because a
waiter waits for an id. The WHEN clause keeps claims, heartbeats and progress from calling anything.
"""

from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

TASK_FUNCTION = """
CREATE FUNCTION horsies_notify_task_changes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        PERFORM pg_notify('task_new', fresh.id), pg_notify('task_queue_' || fresh.queue_name, fresh.id)
           FROM (SELECT queue_name, min(id) AS id FROM inserted WHERE status = 'PENDING' GROUP BY queue_name) AS fresh;
    ELSIF NEW.status = 'PENDING' THEN
        PERFORM pg_notify('task_new', NEW.id), pg_notify('task_queue_' || NEW.queue_name, NEW.id);
    ELSE
        PERFORM pg_notify('task_done', NEW.id);
    END IF;
    RETURN NULL;
END
$$
"""

TASK_TRIGGERS = (
    """CREATE TRIGGER horsies_task_notify_trigger AFTER INSERT ON horsies_tasks
       REFERENCING NEW TABLE AS inserted
       FOR EACH STATEMENT EXECUTE FUNCTION horsies_notify_task_changes()""",
    """CREATE TRIGGER horsies_task_notify_update_trigger AFTER UPDATE ON horsies_tasks
       FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status
           AND NEW.status IN ('PENDING', 'COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED'))
       EXECUTE FUNCTION horsies_notify_task_changes()""",
)

WORKFLOW_FUNCTION = """
CREATE FUNCTION horsies_notify_workflow_changes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('workflow_done', NEW.id);
    RETURN NULL;
END
$$
"""

WORKFLOW_TRIGGER = """
CREATE TRIGGER horsies_workflow_notify_trigger AFTER UPDATE ON horsies_workflows
    FOR EACH ROW WHEN (OLD.status IS DISTINCT FROM NEW.status
        AND NEW.status IN ('COMPLETED', 'FAILED', 'CANCELLED'))
    EXECUTE FUNCTION horsies_notify_workflow_changes()
"""


def upgrade() -> None:
    op.execute(TASK_FUNCTION)
    for trigger in TASK_TRIGGERS:
        op.execute(trigger)
    op.execute(WORKFLOW_FUNCTION)
    op.execute(WORKFLOW_TRIGGER)


def downgrade() -> None:
    op.execute("DROP TRIGGER horsies_workflow_notify_trigger ON horsies_workflows")
    op.execute("DROP FUNCTION horsies_notify_workflow_changes()")
    op.execute("DROP TRIGGER horsies_task_notify_update_trigger ON horsies_tasks")
    op.execute("DROP TRIGGER horsies_task_notify_trigger ON horsies_tasks")
    op.execute("DROP FUNCTION horsies_notify_task_changes()")
