"""Who is known dead: one row per worker process, beaten with every snapshot, and the verdict on it.

Deploy: before the code that needs it.

The beat is a counter, not a time: other workers measure on their own clocks how long it has not moved, so a jump of
the database's clock declares no worker dead. The verdict stands in the same row, so that the row's lock keeps a beat
and a verdict apart: a worker that was declared dead learns it from its next beat, and a worker that has just beaten is
not declared dead.
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

# Every worker reads the open rows every two seconds; closed rows stay for a week. A beat changes no indexed column, so
# it stays a heap-only update.
OPEN = """
CREATE INDEX ix_horsies_worker_instances_open ON horsies_worker_instances (worker_id)
 WHERE stopped_at IS NULL AND recovered_at IS NULL
"""


def upgrade() -> None:
    op.execute(WORKER_INSTANCES)
    op.execute(OPEN)


def downgrade() -> None:
    op.execute("DROP TABLE horsies_worker_instances")
