"""Add unique keys in time: keys that outlive their task, replaced and debounced tasks.

Deploy: before the code, in any order with workers. Afterwards run `horsies-migrate grants` again.

`horsies_unique_keys` has a row per key of such sends; the unique index of `horsies_tasks` still holds the keys of tasks
that were sent with `unique_key` alone. Producers reach the table through `horsies_send_unique` only
(../functions/0027_send_unique.sql). Older code neither reads nor writes any of it; the workers of this release prune
the rows of keys that are free again.
"""

from alembic import op

from horsies_schema.migrations.routines import create_function, grant_like, own_like_the_tables

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None
breaking = False

SEND = (
    "horsies_send_unique(text, text, text, varchar, varchar, varchar, int, timestamptz, timestamptz, interval,"
    " timestamptz, interval, int, text, jsonb, varchar, varchar, text, interval, interval, interval, int, boolean)"
)


def upgrade() -> None:
    # Most updates change `replaced` and `recent` alone: with room on the page they touch no index.
    op.execute(
        """CREATE TABLE horsies_unique_keys (
               task_name varchar(255) NOT NULL,
               key varchar(255) COLLATE "C" NOT NULL,
               task_id varchar(36) NOT NULL,
               first_at timestamptz NOT NULL,
               until timestamptz NOT NULL,
               replaced int NOT NULL DEFAULT 0,
               recent bigint[] NOT NULL DEFAULT '{}',
               CONSTRAINT pk_horsies_unique_keys PRIMARY KEY (task_name, key),
               CONSTRAINT ck_horsies_unique_keys_sound
                   CHECK (task_name <> '' AND key <> '' AND replaced >= 0 AND cardinality(recent) <= 64),
               CONSTRAINT ck_horsies_unique_keys_time_range
                   CHECK (least(first_at, until) >= to_timestamp(0)
                          AND greatest(first_at, until) <= to_timestamp(221845392000))
           ) WITH (fillfactor = 70)"""
    )
    op.execute("CREATE INDEX ix_horsies_unique_keys_until ON horsies_unique_keys (until)")
    op.execute("CREATE INDEX ix_horsies_unique_keys_task_id ON horsies_unique_keys (task_id)")
    own_like_the_tables("horsies_unique_keys", kind="TABLE")
    create_function("0027_send_unique")
    own_like_the_tables(SEND)
    grant_like("horsies_start_workflow(jsonb)", SEND)


def downgrade() -> None:
    """Keys are forgotten; tasks stay."""
    op.execute(f"DROP FUNCTION {SEND}")
    op.execute("DROP TABLE horsies_unique_keys")
