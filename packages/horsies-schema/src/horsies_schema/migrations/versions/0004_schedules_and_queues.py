"""What operators steer: the state of each schedule, and which queues are paused.

Deploy: before the code that needs it.

`run_requested_at` makes "run now" a request that a scheduler fulfils: the command line and the
dashboard do not know the application's code.
"""

from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

SCHEDULE_STATE = """
CREATE TABLE horsies_schedule_state (
    schedule_name    varchar(255) NOT NULL,
    last_run_at      timestamptz,
    next_run_at      timestamptz,
    last_task_id     varchar(36),
    run_count        integer      NOT NULL DEFAULT 0,
    config_hash      varchar(64),
    paused_at        timestamptz,
    run_requested_at timestamptz,
    updated_at       timestamptz  NOT NULL DEFAULT now(),
    CONSTRAINT pk_horsies_schedule_state PRIMARY KEY (schedule_name),
    CONSTRAINT ck_horsies_schedule_state_runs CHECK (
        run_count = 0 OR (run_count > 0 AND last_run_at IS NOT NULL AND last_task_id IS NOT NULL))
)
"""

QUEUE_STATE = """
CREATE TABLE horsies_queue_state (
    queue_name varchar(100) NOT NULL,
    paused_at  timestamptz,
    updated_at timestamptz  NOT NULL DEFAULT now(),
    CONSTRAINT pk_horsies_queue_state PRIMARY KEY (queue_name),
    CONSTRAINT ck_horsies_queue_state_queue_name CHECK (queue_name ~ '^[A-Za-z0-9_.-]{1,52}$')
)
"""


def upgrade() -> None:
    op.execute(SCHEDULE_STATE)
    op.execute(QUEUE_STATE)


def downgrade() -> None:
    op.execute("DROP TABLE horsies_queue_state")
    op.execute("DROP TABLE horsies_schedule_state")
