"""Index ended tasks that did not succeed, by state and by error code, from the newest.

Deploy: before the code that reads by these indexes, while workers run. Older code works with it.

Lists of failed tasks walked along the ends of all tasks: with a failure among a hundred thousand successes they read a
hundred thousand rows for each line. `ix_horsies_tasks_unsuccessful` has no successes, so these write nothing to it.
Its first column is the state, because a million expired tasks would hide the failed ones in the same way. The index
over error codes keeps its name, which the doctor of older releases asks for, and gets the order of lists.

Every column is one that an index had before: no update becomes more expensive by it, but the ends that it lists.
"""

from alembic import op

from horsies_schema.migrations.routines import build_index

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None
breaking = False

UNSUCCESSFUL = "horsies_tasks (status, terminal_at, id) WHERE status IN ('FAILED', 'CANCELLED', 'EXPIRED')"
BY_CODE = "horsies_tasks (error_code, terminal_at, id) WHERE error_code IS NOT NULL"
BY_CODE_BEFORE = "horsies_tasks (error_code) WHERE error_code IS NOT NULL"


def upgrade() -> None:
    build_index("ix_horsies_tasks_unsuccessful", UNSUCCESSFUL)
    _replace(BY_CODE)


def downgrade() -> None:
    _replace(BY_CODE_BEFORE)
    op.execute("DROP INDEX ix_horsies_tasks_unsuccessful")


def _replace(definition: str) -> None:
    """The old index serves until the new one is complete."""
    build_index("ix_horsies_tasks_error_code_new", definition)
    op.execute("DROP INDEX ix_horsies_tasks_error_code")
    op.execute("ALTER INDEX ix_horsies_tasks_error_code_new RENAME TO ix_horsies_tasks_error_code")
