"""Keep schedules that are made at run time, what the last runs of every schedule were, and which schedulers run.

Deploy: before the code that needs it. Afterwards run `horsies-migrate grants` again.

`horsies_schedules` holds one row for each schedule that was made through the API, the command line, the dashboard or
SQL; a trigger keeps its state in `horsies_schedule_state`, where a row without a hash is planned by the next scheduler
that knows its task. The state of schedules in code stays as it is. Schedulers find due ones by an index on the next
slot, so that ten thousand that are not due cost nothing.

`horsies_schedule_runs` is a ring of 20 entries for each schedule: its key bounds it, and nothing has to prune it.

`horsies_schedulers` has one row for each scheduler with the tasks that it knows. A beat of it says for all schedules
made at run time that they are served; a beat for each of ten thousand rows would write a thousand rows each second.

Schedulers of older releases ignore the new tables: they serve the schedules in their code, as before. Do not give a
schedule the name of one in code before they are stopped.
"""

from alembic import op

from horsies_schema.migrations.routines import create_function, own_like_the_tables

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None
breaking = False

STATE_TIMES = "last_run_at, next_run_at, paused_at, run_requested_at, updated_at"
TABLES = ("horsies_schedules", "horsies_schedule_runs", "horsies_schedulers")
CHANGED = "horsies_schedule_changed()"


def upgrade() -> None:
    op.execute(
        """ALTER TABLE horsies_schedule_state
               ADD COLUMN is_data boolean NOT NULL DEFAULT false,
               ADD COLUMN entries integer NOT NULL DEFAULT 0,
               ADD COLUMN problem text,
               ADD COLUMN problem_at timestamptz"""
    )
    _check("horsies_schedule_state", "time_range", _times(f"{STATE_TIMES}, problem_at"))
    op.execute(
        "CREATE INDEX ix_horsies_schedule_state_due ON horsies_schedule_state (next_run_at, schedule_name)"
        " WHERE is_data"
    )
    op.execute(
        "CREATE INDEX ix_horsies_schedule_state_unplanned ON horsies_schedule_state (schedule_name)"
        " WHERE is_data AND config_hash IS NULL"
    )
    op.execute(
        "CREATE INDEX ix_horsies_schedule_state_requested ON horsies_schedule_state (run_requested_at)"
        " WHERE is_data AND run_requested_at IS NOT NULL"
    )
    op.execute(
        f"""CREATE TABLE horsies_schedules (
                name varchar(255) NOT NULL,
                task_name varchar(255),
                workflow varchar(255),
                pattern jsonb NOT NULL,
                kwargs jsonb NOT NULL DEFAULT '{{}}',
                queue_name varchar(100),
                group_key varchar(255) COLLATE "C",
                timezone varchar(255) NOT NULL DEFAULT 'UTC',
                skipped_times varchar(20) NOT NULL DEFAULT 'fire',
                overlap varchar(20) NOT NULL DEFAULT 'allow',
                catch_up_missed boolean NOT NULL DEFAULT false,
                max_catch_up_runs integer NOT NULL DEFAULT 100,
                jitter_s double precision NOT NULL DEFAULT 0,
                enabled boolean NOT NULL DEFAULT true,
                version integer NOT NULL DEFAULT 1,
                created_by varchar(255),
                created_at timestamptz NOT NULL DEFAULT statement_timestamp(),
                updated_at timestamptz NOT NULL DEFAULT statement_timestamp(),
                timed_at timestamptz NOT NULL DEFAULT statement_timestamp(),
                CONSTRAINT pk_horsies_schedules PRIMARY KEY (name),
                CONSTRAINT ck_horsies_schedules_name CHECK (name <> ''),
                CONSTRAINT ck_horsies_schedules_target CHECK ((task_name IS NULL) <> (workflow IS NULL)),
                CONSTRAINT ck_horsies_schedules_json
                    CHECK (jsonb_typeof(pattern) = 'object' AND jsonb_typeof(kwargs) = 'object'),
                CONSTRAINT ck_horsies_schedules_words
                    CHECK (skipped_times IN ('fire', 'skip') AND overlap IN ('allow', 'skip')),
                CONSTRAINT ck_horsies_schedules_numbers
                    CHECK (max_catch_up_runs BETWEEN 1 AND 1000 AND jitter_s BETWEEN 0 AND 86400),
                CONSTRAINT ck_horsies_schedules_time_range CHECK ({_times("created_at, updated_at, timed_at")})
            )"""
    )
    op.execute(
        f"""CREATE TABLE horsies_schedule_runs (
                schedule_name varchar(255) NOT NULL,
                place smallint NOT NULL,
                entry integer NOT NULL,
                slot timestamptz NOT NULL,
                last_slot timestamptz NOT NULL,
                fired_at timestamptz NOT NULL,
                task_id varchar(36),
                skipped varchar(20),
                is_request boolean NOT NULL DEFAULT false,
                CONSTRAINT pk_horsies_schedule_runs PRIMARY KEY (schedule_name, place),
                CONSTRAINT ck_horsies_schedule_runs_place CHECK (place BETWEEN 0 AND 19),
                CONSTRAINT ck_horsies_schedule_runs_outcome CHECK (
                    (task_id IS NULL) <> (skipped IS NULL)
                    AND (skipped IS NULL OR skipped IN ('missed', 'overlap', 'paused', 'refused'))),
                CONSTRAINT ck_horsies_schedule_runs_time_range CHECK ({_times("slot, last_slot, fired_at")})
            ) WITH (fillfactor = 70)"""
    )
    op.execute(
        f"""CREATE TABLE horsies_schedulers (
                id varchar(36) NOT NULL,
                hostname varchar(255) NOT NULL,
                pid integer NOT NULL,
                tasks text[] NOT NULL,
                workflows text[] NOT NULL,
                schedules text[] NOT NULL,
                started_at timestamptz NOT NULL DEFAULT statement_timestamp(),
                seen_at timestamptz NOT NULL DEFAULT statement_timestamp(),
                CONSTRAINT pk_horsies_schedulers PRIMARY KEY (id),
                CONSTRAINT ck_horsies_schedulers_time_range CHECK ({_times("started_at, seen_at")})
            ) WITH (fillfactor = 50)"""
    )
    for table in TABLES:
        own_like_the_tables(table, kind="TABLE")
    create_function("0025_schedule_changed")
    own_like_the_tables(CHANGED)
    op.execute(f"REVOKE ALL ON FUNCTION {CHANGED} FROM PUBLIC")
    for name, when in (
        ("horsies_schedule_version_trigger", "BEFORE INSERT OR UPDATE ON horsies_schedules FOR EACH ROW"),
        ("horsies_schedule_state_trigger", "AFTER INSERT OR UPDATE OR DELETE ON horsies_schedules FOR EACH ROW"),
        ("horsies_schedule_notify_trigger", "AFTER INSERT OR UPDATE OR DELETE ON horsies_schedules FOR EACH STATEMENT"),
    ):
        op.execute(f"CREATE TRIGGER {name} {when} EXECUTE FUNCTION {CHANGED}")


def downgrade() -> None:
    """Schedules that were made at run time are deleted with their state: older code cannot serve them."""
    op.execute("DELETE FROM horsies_schedule_state WHERE is_data")
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
    op.execute(f"DROP FUNCTION {CHANGED}")
    for name in ("due", "unplanned", "requested"):
        op.execute(f"DROP INDEX ix_horsies_schedule_state_{name}")
    _check("horsies_schedule_state", "time_range", _times(STATE_TIMES))
    op.execute(
        "ALTER TABLE horsies_schedule_state DROP COLUMN is_data, DROP COLUMN entries, DROP COLUMN problem,"
        " DROP COLUMN problem_at"
    )


def _check(table: str, name: str, condition: str) -> None:
    op.execute(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS ck_{table}_{name}")
    op.execute(f"ALTER TABLE {table} ADD CONSTRAINT ck_{table}_{name} CHECK ({condition})")


def _times(columns: str) -> str:
    """See revision 0017."""
    return f"least({columns}) >= to_timestamp(0) AND greatest({columns}) <= to_timestamp(221845392000)"
