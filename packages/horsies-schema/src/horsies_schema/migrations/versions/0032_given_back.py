"""Keep the state of a schedule in code when the one made at run time that hid it is deleted.

Deploy: before or after the code, in any order with schedulers.

The state, with the time since when an operator has paused it, was deleted together with the row: a paused schedule of
the code ran again as soon as an override of its timing was removed. `horsies_schedule_changed` now keeps it for a name
that a scheduler lists in its code. Schedulers of older releases plan such a state anew, within a minute.
"""

from horsies_schema.migrations.routines import create_function

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None
breaking = False


def upgrade() -> None:
    create_function("0032_schedule_changed")


def downgrade() -> None:
    create_function("0025_schedule_changed")
