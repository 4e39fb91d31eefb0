"""Let producers send, cancel and start workflows without UPDATE rights.

Deploy: before or after the code; both work with either.
"""

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    pass


def downgrade() -> None:
    pass
