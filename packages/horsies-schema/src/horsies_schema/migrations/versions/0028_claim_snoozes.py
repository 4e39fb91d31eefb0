"""Return how often a task was put off from the claim of tasks with a group.

Deploy: before the code, in any order with workers.

A query around the function cannot read it: the function sees tasks that were committed after that query began. Code of
older releases passes over the column.
"""

from alembic import op

from horsies_schema.migrations.routines import create_function, grant_like, own_like_the_tables

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None
breaking = False

PARAMETERS = (
    "text[], text[], text[], boolean, text[], int[], text[], boolean[], text[], int, int, int, int, int, text[],"
    " text[], text[], text[], int[], int, int, text, text, text, float8"
)
CLAIM = f"horsies_claim_grouped({PARAMETERS})"
OLD = f"horsies_claim_grouped_old({PARAMETERS})"


def upgrade() -> None:
    _replace("0028_claim_grouped")


def downgrade() -> None:
    _replace("0021_claim_grouped")


def _replace(name: str) -> None:
    """The columns that a function returns change only with a new function."""
    op.execute(f"ALTER FUNCTION {CLAIM} RENAME TO horsies_claim_grouped_old")
    create_function(name)
    own_like_the_tables(CLAIM)
    grant_like(OLD, CLAIM)
    op.execute(f"DROP FUNCTION {OLD}")
