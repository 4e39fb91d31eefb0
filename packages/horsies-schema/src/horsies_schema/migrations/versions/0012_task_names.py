"""Record which task names each release knows, and which names no worker knows.

Deploy: before the code that needs it.

A worker's beat must not rewrite a thousand names: the set of names of a release is one row, and the row of each worker
process refers to it. No foreign key: a process without a set (an older release, or a set that was deleted by hand) is
one that may know any name, and is treated as such.
"""

from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

TASK_SETS = """
CREATE TABLE horsies_task_sets (
    sha         varchar(64) NOT NULL,
    names       text[]      NOT NULL,
    recorded_at timestamptz NOT NULL DEFAULT statement_timestamp(),
    CONSTRAINT pk_horsies_task_sets PRIMARY KEY (sha)
)
"""

TASK_NAMES = """
CREATE TABLE horsies_task_names (
    task_name      varchar(255) NOT NULL,
    first_known_at timestamptz,
    last_known_at  timestamptz,
    missing_since  timestamptz,
    CONSTRAINT pk_horsies_task_names PRIMARY KEY (task_name),
    CONSTRAINT ck_horsies_task_names_times CHECK (
        (first_known_at IS NULL) = (last_known_at IS NULL) AND coalesce(first_known_at, missing_since) IS NOT NULL)
) WITH (fillfactor = 50)
"""


MISSING = """
CREATE INDEX ix_horsies_task_names_missing ON horsies_task_names (missing_since) WHERE missing_since IS NOT NULL
"""


def upgrade() -> None:
    op.execute(TASK_SETS)
    op.execute(TASK_NAMES)
    op.execute(MISSING)
    op.execute("ALTER TABLE horsies_worker_instances ADD names_sha varchar(64), ADD queues text[]")


def downgrade() -> None:
    op.execute("ALTER TABLE horsies_worker_instances DROP names_sha, DROP queues")
    op.execute("DROP TABLE horsies_task_names")
    op.execute("DROP TABLE horsies_task_sets")
