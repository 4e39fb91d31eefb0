"""Record which task names each release knows, and which names no worker knows.

Deploy: before or after the code; both work with either.
"""

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
