"""Let a unique key go when another task was sent under the id of its holder.

Deploy: before or after the code, in any order with workers.

The row of a key outlives its task. When retention had deleted the task, and a client sent one without a key under the
same id, a replacing send of that key wrote its call into this task. `horsies_send_unique` now also compares the times.
"""

from horsies_schema.migrations.routines import create_function

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None
breaking = False


def upgrade() -> None:
    create_function("0031_send_unique")


def downgrade() -> None:
    create_function("0027_send_unique")
