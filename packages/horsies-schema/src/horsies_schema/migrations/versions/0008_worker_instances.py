"""Who is known dead: one row per worker process, beaten with every snapshot, and the verdict on it.

Deploy: before the code that needs it.

The beat is a counter, not a time: whoever judges watches it stand still on a clock of its own, so a database clock
that jumps condemns nobody. The verdict stands in the same row, so that a beat and a verdict exclude each other by
the row's lock: a worker that was judged learns it from its next beat, and one that beat just now is not judged.
"""

from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None

WORKER_INSTANCES = """
CREATE TABLE horsies_worker_instances (
    worker_id      varchar(255) NOT NULL,
    lock_key       bigint,
    backend_pid    integer,
    period_ms      integer      NOT NULL,
    beats          bigint       NOT NULL DEFAULT 0,
    started_at     timestamptz  NOT NULL DEFAULT statement_timestamp(),
    beat_at        timestamptz  NOT NULL DEFAULT statement_timestamp(),
    stopped_at     timestamptz,
    judged_dead_at timestamptz,
    judged_by      varchar(255),
    recovered_at   timestamptz,
    CONSTRAINT pk_horsies_worker_instances PRIMARY KEY (worker_id),
    CONSTRAINT ck_horsies_worker_instances_period CHECK (period_ms > 0),
    CONSTRAINT ck_horsies_worker_instances_verdict CHECK (
        (judged_dead_at IS NULL) = (judged_by IS NULL) AND (recovered_at IS NULL OR judged_dead_at IS NOT NULL))
) WITH (fillfactor = 50)
"""

# Everybody reads the open ones every two seconds; the closed ones stay for a week. A beat touches no column of it,
# so it stays a heap-only update.
OPEN = """
CREATE INDEX ix_horsies_worker_instances_open ON horsies_worker_instances (worker_id)
 WHERE stopped_at IS NULL AND recovered_at IS NULL
"""


def upgrade() -> None:
    op.execute(WORKER_INSTANCES)
    op.execute(OPEN)


def downgrade() -> None:
    op.execute("DROP TABLE horsies_worker_instances")
