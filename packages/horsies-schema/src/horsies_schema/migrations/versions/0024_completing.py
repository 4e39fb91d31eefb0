"""Let a task end its attempt in its own transaction.

Deploy: before the code that needs it. Afterwards run `horsies-migrate grants` again.

`horsies_complete_task` writes the end of a running attempt on the task's own connection, which logs in as the
application and has no right to UPDATE a task. It runs as the owner of the tables, so it must know its caller: a
producer can read who runs a task and its generation. Each worker therefore writes a random key of its own into its row
of `horsies_worker_instances`, which the roles of producers, viewers and operators cannot read. From the key, a child
makes a token for each attempt that completes itself; the token is of no use for another attempt.

Workers of older releases have no key, and their tasks cannot call it.
"""

from alembic import op

from horsies_schema.migrations.routines import create_function, grant_like, own_like_the_tables

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None
breaking = False

COMPLETE = (
    "horsies_complete_task(text, text, int, text, bigint, text, double precision, double precision, int, text, boolean)"
)


def upgrade() -> None:
    op.execute("ALTER TABLE horsies_worker_instances ADD COLUMN completion_key varchar(64)")
    create_function("0024_complete_task")
    own_like_the_tables(COMPLETE)
    # tasks connect as a producer does, or as their worker
    grant_like("horsies_start_workflow(jsonb)", COMPLETE)


def downgrade() -> None:
    op.execute(f"DROP FUNCTION {COMPLETE}")
    op.execute("ALTER TABLE horsies_worker_instances DROP COLUMN completion_key")
