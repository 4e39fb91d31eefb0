"""Mark withdrawn tasks with a column, and give every workflow node a kind.

Deploy: stop workers, dashboards and producers of older releases first; then migrate, then start the new release.
Afterwards run `horsies-migrate grants` again.

A pause withdraws the waiting tasks of a workflow from every claim. Until now it moved their `enqueued_at` 500 years
ahead; `withdrawn` says it, and the claim's index leaves such rows out. Older code would claim them: this revision is
breaking. `kind` replaces `is_subworkflow` and the first characters of `kwargs`, which told a map from a workflow.
"""

from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None
breaking = True

KEY = "(queue_name, priority, enqueued_at, id)"
# In runs that an older client started, the nodes of workflows inside have no kind.
KIND = (
    "coalesce(g.kind, CASE WHEN g.sub_name IS NULL THEN 'task' WHEN g.kwargs::json -> 'map' IS NULL THEN 'workflow' "
    "ELSE 'map' END)"
)
REPLACED = {
    "horsies_cancel_tasks": [
        ("SET status = 'CANCELLED', claimed = false,", "SET status = 'CANCELLED', withdrawn = false, claimed = false,")
    ],
    "horsies_stop_workflows": [
        ("SET claimed = false, claim_expires_at", "SET withdrawn = false, claimed = false, claim_expires_at"),
        ("WHEN n.is_subworkflow AND", "WHEN n.kind <> 'task' AND"),
    ],
    "horsies_start_workflow": [
        ("sub_name text, task_id text,", "sub_name text, kind text, task_id text,"),
        ("sub_name, task_id, first_kwargs, number)", "sub_name, kind, task_id, first_kwargs, number)"),
        ("ttl, is_subworkflow, sub_workflow_name,", "ttl, kind, sub_workflow_name,"),
        ("g.sub_name IS NOT NULL, g.sub_name,", f"{KIND}, g.sub_name,"),
    ],
}


def upgrade() -> None:
    """The tables are locked for the two ALTERs alone. A run that was interrupted after them is repeated."""
    op.execute("ALTER TABLE horsies_tasks ADD COLUMN IF NOT EXISTS withdrawn boolean NOT NULL DEFAULT false")
    op.execute("ALTER TABLE horsies_workflow_tasks ADD COLUMN IF NOT EXISTS kind varchar(20) NOT NULL DEFAULT 'task'")
    with op.get_context().autocommit_block():
        op.execute(
            """UPDATE horsies_tasks SET withdrawn = status = 'PENDING', enqueued_at = enqueued_at - interval '500 years'
                WHERE enqueued_at > statement_timestamp() + interval '400 years'"""
        )
        op.execute(
            """UPDATE horsies_workflow_tasks
                  SET kind = CASE WHEN left(kwargs, 7) = '{"map":' THEN 'map' ELSE 'workflow' END
                WHERE is_subworkflow"""
        )
        op.execute(f"CREATE INDEX IF NOT EXISTS ix_horsies_tasks_withdrawn ON horsies_tasks {KEY} WHERE withdrawn")
        _make_claim_index("status = 'PENDING' AND NOT withdrawn")
    _use_claim_index()
    op.execute(
        """ALTER TABLE horsies_workflow_tasks DROP COLUMN is_subworkflow,
               ADD CONSTRAINT ck_horsies_workflow_tasks_kind CHECK (kind IN ('task', 'workflow', 'map'))"""
    )
    for name, changes in REPLACED.items():
        op.execute(_replaced(name, changes))


def downgrade() -> None:
    op.execute(
        "ALTER TABLE horsies_workflow_tasks ADD COLUMN IF NOT EXISTS is_subworkflow boolean NOT NULL DEFAULT false"
    )
    with op.get_context().autocommit_block():
        op.execute("UPDATE horsies_workflow_tasks SET is_subworkflow = true WHERE kind <> 'task'")
        op.execute(
            """UPDATE horsies_tasks SET withdrawn = false, enqueued_at = enqueued_at + interval '500 years'
                WHERE withdrawn"""
        )
        _make_claim_index("status = 'PENDING'")
    _use_claim_index()
    for name, changes in REPLACED.items():
        op.execute(_replaced(name, [(new, old) for old, new in changes]))
    op.execute("ALTER TABLE horsies_workflow_tasks DROP COLUMN kind")
    op.execute("ALTER TABLE horsies_tasks DROP COLUMN withdrawn")


def _make_claim_index(condition: str) -> None:
    """Beside the old one; writers wait while it is built. Not CONCURRENTLY: that would wait for the transactions of
    other migrators, which wait for this one."""
    op.execute(f"CREATE INDEX IF NOT EXISTS ix_horsies_tasks_claim_new ON horsies_tasks {KEY} WHERE {condition}")


def _use_claim_index() -> None:
    op.execute("DROP INDEX ix_horsies_tasks_claim")
    op.execute("ALTER INDEX ix_horsies_tasks_claim_new RENAME TO ix_horsies_tasks_claim")


def _replaced(name: str, changes: list[tuple[str, str]]) -> str:
    """The function with parts of its text changed; its settings, owner and rights stay."""
    text = f"pg_get_functiondef('{name}'::regproc)"
    for old, new in changes:
        text = f"replace({text}, $text${old}$text$, $text${new}$text$)"
    return f"DO $do$ BEGIN EXECUTE {text}; END $do$"
