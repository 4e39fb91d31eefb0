"""Workflow columns of the second round.

Deploy: before or after the code; both work with either.
"""

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
