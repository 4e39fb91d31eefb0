"""Let a running task have no process id until the child that runs it is known.

Deploy: before the code that needs it.

A claim cannot know which child will get the task. It wrote the process id of the parent, which an operator who wants to
end a task would kill, and the whole worker with it.
"""

from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

RULE = "AND claim_expires_at IS NULL AND started_at IS NOT NULL AND worker_pid IS NOT NULL"
RULE_NOW = "AND claim_expires_at IS NULL AND started_at IS NOT NULL"


def upgrade() -> None:
    op.execute(_replaced(RULE, RULE_NOW))


def downgrade() -> None:
    op.execute("UPDATE horsies_tasks SET worker_pid = 0 WHERE status = 'RUNNING' AND worker_pid IS NULL")
    op.execute(_replaced(RULE_NOW + "\n", RULE + "\n"))


def _replaced(old: str, new: str) -> str:
    """The function with one rule changed; its settings, such as a pinned search_path, stay."""
    return f"""
DO $do$ BEGIN
    EXECUTE replace(pg_get_functiondef('horsies_task_is_sound'::regproc), $text${old}$text$, $text${new}$text$);
END $do$
"""
