"""Send from SQL, send several tasks with options of their own in one statement, and keep ended tasks for a time of
their own.

Deploy: before the code that needs it, while workers run. Afterwards run `horsies-migrate grants` again.

`horsies_send_calls` writes tasks of several kinds, all or none; `horsies_send` is its front for triggers, psql and
other languages. Both run with the rights of their caller. `keep_seconds` says how long an ended task stays: an integer,
so that no value can make the pruner's arithmetic fail. Its index begins with the lifetime: the pruner reads the few
that there are, and of each only what is due; no end of a task has to compute anything. A COMPLETED task may now be
without a result (`store_result=False`), for which older clients have the error RESULT_NOT_AVAILABLE already.
`keep_until` and `store_result`, which revision 0020 made for this, stay unused: the worker knows from `task_options`
what to store, and a moment would have to be written by every statement that ends a task.
"""

from alembic import op

from horsies_schema.migrations.routines import create_function, grant_like, own_like_the_tables

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None
breaking = False

SEND = "horsies_send(text, jsonb, jsonb)"
CALLS = "horsies_send_calls(jsonb, text[], int[], text[], text[], text[], text[], timestamptz)"
MOMENT = "horsies_moment_problem(jsonb)"
WITH_RESULT = "completed_at IS NOT NULL AND terminal_at IS NOT NULL AND result IS NOT NULL\n            AND failed_at"
ANY_RESULT = "completed_at IS NOT NULL AND terminal_at IS NOT NULL\n            AND failed_at"
KEPT = "horsies_tasks (keep_seconds, terminal_at) WHERE keep_seconds IS NOT NULL AND terminal_at IS NOT NULL"


def upgrade() -> None:
    op.execute("ALTER TABLE horsies_tasks ADD COLUMN IF NOT EXISTS keep_seconds int")
    op.execute(_replaced("horsies_task_is_sound", WITH_RESULT, ANY_RESULT))
    for name in ("0023_moment_problem", "0023_send_calls", "0023_send"):
        create_function(name)
    for name in (MOMENT, CALLS, SEND):
        own_like_the_tables(name)
    grant_like("horsies_start_workflow(jsonb)", SEND)
    # Writers wait while it is built: one pass over the table, of which no row is in the index yet.
    op.execute(f"CREATE INDEX ix_horsies_tasks_kept ON {KEPT}")


def downgrade() -> None:
    """Results that were not stored cannot be told in older words: such tasks are to be deleted first."""
    op.execute(
        """DO $do$ BEGIN
               IF EXISTS (SELECT FROM horsies_tasks WHERE status = 'COMPLETED' AND result IS NULL)
               THEN RAISE 'there are completed tasks whose results were not stored, which older releases cannot read: '
                          'DELETE FROM horsies_tasks WHERE status = ''COMPLETED'' AND result IS NULL, then downgrade';
               END IF;
           END $do$"""
    )
    for name in (SEND, CALLS, MOMENT):
        op.execute(f"DROP FUNCTION {name}")
    op.execute(_replaced("horsies_task_is_sound", ANY_RESULT, WITH_RESULT))
    op.execute("DROP INDEX ix_horsies_tasks_kept")
    op.execute("ALTER TABLE horsies_tasks DROP COLUMN keep_seconds")


def _replaced(name: str, old: str, new: str) -> str:
    """The function with a part of its text changed; its settings, owner and rights stay."""
    text = f"replace(pg_get_functiondef('{name}'::regproc), $text${old}$text$, $text${new}$text$)"
    return f"DO $do$ BEGIN EXECUTE {text}; END $do$"
