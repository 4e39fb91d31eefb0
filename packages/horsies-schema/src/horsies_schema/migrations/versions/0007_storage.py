"""Storage settings of the hot tables, chosen by measurement (docs/decisions/0003, bench/table_settings.py).

Deploy: before or after the code; nothing depends on it but speed.

fillfactor: progress and finalizing marks on a running task found room on their own page (HOT) in 59 % of
updates at 100, 81 % at 90, 98 % at 80 and 99 % at 70; total size did not grow, because the versions that a
claim and an end leave behind fill the gap.
autovacuum: with the default 20 % a table of ten million finished rows collects two million dead entries at
the front of the claim index before autovacuum runs; an empty claim read 847 buffers after 60,000 tasks
unswept and 80 swept.
"""

from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute(
        "ALTER TABLE horsies_tasks SET (fillfactor = 80, autovacuum_vacuum_scale_factor = 0.01, "
        "autovacuum_vacuum_threshold = 1000, autovacuum_analyze_scale_factor = 0.02)"
    )
    # rows only come, and go in bulk when retention passes
    op.execute("ALTER TABLE horsies_heartbeats SET (autovacuum_vacuum_scale_factor = 0.05)")


def downgrade() -> None:
    op.execute("ALTER TABLE horsies_heartbeats RESET (autovacuum_vacuum_scale_factor)")
    op.execute(
        "ALTER TABLE horsies_tasks RESET (fillfactor, autovacuum_vacuum_scale_factor, "
        "autovacuum_vacuum_threshold, autovacuum_analyze_scale_factor)"
    )
