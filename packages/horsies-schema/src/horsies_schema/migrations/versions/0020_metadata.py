"""Add the columns that metadata, groups, snoozes, crash limits and retention of single tasks need, all at once.

Deploy: before the code that needs it, while workers run. Afterwards run `horsies-migrate grants` again.

Each change of the hot table's columns locks it for a moment and makes every prepared statement plan anew, hence one
revision for all of them. The columns are nullable or have a constant default: no row is rewritten. `metadata` of a run
is what its nodes inherit, and `metadata` of a node what its task's registration says.
"""

from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

# Clients take 16 KB. A node's task has its own and its run's.
IS_METADATA = "(metadata IS NULL OR jsonb_typeof(metadata) = 'object' AND pg_column_size(metadata) <= 65536)"

# The rules of a task are a function (revisions 0011 and 0017). As a CHECK of its own, which PostgreSQL parses for each
# statement, the new ones took 11 µs of every insert (53 instead of 42); as two more arguments nothing that shows.
GIVEN = """task_name, queue_name, unique_key, priority, status, claimed, claimed_by_worker_id,
    claimed_at, claim_expires_at, claim_generation, started_at, good_until, worker_pid, finalizing_at, completed_at,
    failed_at, terminal_at, result, error_code, retry_count, max_retries, manual_retries, sent_at, enqueued_at,
    cancel_requested_at, next_retry_at, created_at, updated_at"""
SOUND = (
    "horsies_task_is_sound(varchar, varchar, varchar, integer, varchar, boolean, varchar, timestamptz, timestamptz,"
    " integer, timestamptz, timestamptz, integer, timestamptz, timestamptz, timestamptz, timestamptz, text, text,"
    " integer, integer, integer, timestamptz, timestamptz, timestamptz, timestamptz, timestamptz, timestamptz{more})"
)
SOUND_BEFORE, SOUND_NOW = SOUND.format(more=""), SOUND.format(more=", timestamptz, jsonb")
RULES = [
    (
        "updated_at timestamp with time zone)",
        "updated_at timestamp with time zone, keep_until timestamp with time zone, metadata jsonb)",
    ),
    ("created_at, updated_at)", "created_at, updated_at, keep_until)"),
    (
        "AND manual_retries >= 0 AND claim_generation >= 0\n        AND least(",
        f"AND manual_retries >= 0 AND claim_generation >= 0\n        AND {IS_METADATA}\n        AND least(",
    ),
    (
        "THEN 'time_range'\n        ELSE",
        f"THEN 'time_range'\n        WHEN NOT {IS_METADATA} THEN 'metadata'\n        ELSE",
    ),
]

SENT = (
    "task_name varchar, queue_name varchar, priority int, sent_at timestamptz, eta timestamptz, delay interval,"
    " good_until timestamptz, ttl interval, max_retries int, task_options text"
)
WRITTEN = (
    "id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, good_until, max_retries, task_options,"
    " enqueue_sha"
)
ONE, MANY = "text, text, text, varchar", "text[], text[], text[], text[]"
SENT_TYPES = "varchar, varchar, int, timestamptz, timestamptz, interval, timestamptz, interval, int, text"


def _send_task(extra: str, column: str) -> str:
    """Commits the row, then notifies: the trigger would notify inside the transaction."""
    return f"""
CREATE OR REPLACE PROCEDURE @schema@.horsies_send_task(
    id text, args text, kwargs text, enqueue_sha varchar, {SENT}{extra})
LANGUAGE plpgsql AS $procedure$
DECLARE
    setting text;
    is_told boolean;
BEGIN
    setting := pg_catalog.set_config('horsies.notify', 'off', true);
    INSERT INTO @schema@.horsies_tasks ({WRITTEN}{column})
    VALUES (id, task_name, queue_name, priority, args, kwargs, sent_at,
            coalesce(eta, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.+) delay),
            coalesce(good_until, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.+) ttl),
            max_retries, task_options, enqueue_sha{column});
    COMMIT;
    is_told := @schema@.horsies_notify_sent(queue_name, id);
END
$procedure$
"""


def _send_tasks(extra: str, column: str) -> str:
    return f"""
CREATE OR REPLACE PROCEDURE @schema@.horsies_send_tasks(
    ids text[], args text[], kwargs text[], enqueue_shas text[], {SENT}{extra})
LANGUAGE plpgsql AS $procedure$
DECLARE
    setting text;
    is_told boolean;
BEGIN
    setting := pg_catalog.set_config('horsies.notify', 'off', true);
    INSERT INTO @schema@.horsies_tasks ({WRITTEN}{column})
    SELECT x.id, task_name, queue_name, priority, x.args, x.kwargs, sent_at,
           coalesce(eta, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.+) delay),
           coalesce(good_until, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.+) ttl),
           max_retries, task_options, x.enqueue_sha{column}
      FROM ROWS FROM (pg_catalog.unnest(ids), pg_catalog.unnest(args), pg_catalog.unnest(kwargs),
                      pg_catalog.unnest(enqueue_shas)) AS x (id, args, kwargs, enqueue_sha);
    COMMIT;
    is_told := @schema@.horsies_notify_sent(queue_name, ids[1]);
END
$procedure$
"""


# Clients of the revision before call these without metadata: the parameter has a default.
METADATA = ", metadata jsonb DEFAULT NULL"
START = [
    ("enqueue_sha, sent_at, started_at, nodes_left)", "enqueue_sha, sent_at, started_at, nodes_left, metadata)"),
    (
        "statement_timestamp(), jsonb_array_length(run -> 'nodes'))",
        "statement_timestamp(), jsonb_array_length(run -> 'nodes'),\n"
        "                nullif(run -> 'metadata', 'null'))",
    ),
    ("task_id text, first_kwargs text)) WITH", "task_id text, first_kwargs text, metadata jsonb)) WITH"),
    ("task_id, first_kwargs, number)", "task_id, first_kwargs, metadata, number)"),
    ("deps_left, status, task_id)", "deps_left, status, task_id, metadata)"),
    (
        "CASE WHEN g.is_enqueued THEN g.task_id END\n          FROM given g",
        "CASE WHEN g.is_enqueued THEN g.task_id END,\n"
        "               nullif(g.metadata, 'null')\n          FROM given g",
    ),
    ("max_retries, task_options, is_workflow_task)", "max_retries, task_options, is_workflow_task, metadata)"),
    (
        "g.task_options, true\n          FROM given g",
        "g.task_options, true,\n"
        "               nullif(coalesce(nullif(g.metadata, 'null'), '{}')\n"
        "                   || coalesce(nullif(run -> 'metadata', 'null'), '{}')\n"
        "                   || CASE WHEN run -> 'metadata' ? 'horsies.trace' THEN jsonb_build_object(\n"
        "                      'horsies.workflow', g.workflow_id, 'horsies.node', g.node_id) ELSE '{}' END, '{}')\n"
        "          FROM given g",
    ),
]


def upgrade() -> None:
    op.execute(
        """ALTER TABLE horsies_tasks ADD COLUMN IF NOT EXISTS metadata jsonb,
               ADD COLUMN IF NOT EXISTS group_key varchar(255),
               ADD COLUMN IF NOT EXISTS keep_until timestamptz,
               ADD COLUMN IF NOT EXISTS snoozes smallint NOT NULL DEFAULT 0,
               ADD COLUMN IF NOT EXISTS crash_count smallint NOT NULL DEFAULT 0,
               ADD COLUMN IF NOT EXISTS store_result boolean NOT NULL DEFAULT true"""
    )
    for table in ("horsies_workflows", "horsies_workflow_tasks"):
        op.execute(f"ALTER TABLE {table} ADD COLUMN IF NOT EXISTS metadata jsonb")
    op.execute("ALTER TABLE horsies_workflows DROP CONSTRAINT IF EXISTS ck_horsies_workflows_metadata")
    op.execute(
        f"ALTER TABLE horsies_workflows ADD CONSTRAINT ck_horsies_workflows_metadata CHECK ({IS_METADATA}) NOT VALID"
    )
    _replace_rules(RULES, SOUND_BEFORE, SOUND_NOW, f"{GIVEN}, keep_until, metadata")
    _replace_senders(SENT_TYPES, METADATA, ", metadata")
    op.execute(_replaced("horsies_start_workflow", START))
    # without NOT VALID the table would be locked for as long as all of its rows are read
    with op.get_context().autocommit_block():
        op.execute("ALTER TABLE horsies_tasks VALIDATE CONSTRAINT ck_horsies_tasks_sound")
        op.execute("ALTER TABLE horsies_workflows VALIDATE CONSTRAINT ck_horsies_workflows_metadata")


def downgrade() -> None:
    op.execute(_replaced("horsies_start_workflow", [(new, old) for old, new in START]))
    _replace_senders(f"{SENT_TYPES}, jsonb", "", "")
    _replace_rules([(new, old) for old, new in RULES], SOUND_NOW, SOUND_BEFORE, GIVEN)
    op.execute("ALTER TABLE horsies_workflow_tasks DROP COLUMN metadata")
    op.execute("ALTER TABLE horsies_workflows DROP COLUMN metadata")
    op.execute(
        """ALTER TABLE horsies_tasks DROP COLUMN metadata, DROP COLUMN group_key, DROP COLUMN keep_until,
               DROP COLUMN snoozes, DROP COLUMN crash_count, DROP COLUMN store_result"""
    )
    with op.get_context().autocommit_block():
        op.execute("ALTER TABLE horsies_tasks VALIDATE CONSTRAINT ck_horsies_tasks_sound")


def _replace_rules(changes: list[tuple[str, str]], old: str, new: str, given: str) -> None:
    """The CHECK calls the changed function; its rows are read later, by VALIDATE."""
    op.execute(_replaced("horsies_task_is_sound", changes))
    op.execute(_owned_and_granted_like(old, new))
    op.execute(
        f"""ALTER TABLE horsies_tasks DROP CONSTRAINT IF EXISTS ck_horsies_tasks_sound,
                ADD CONSTRAINT ck_horsies_tasks_sound CHECK (horsies_task_is_sound({given})) NOT VALID"""
    )
    op.execute(f"DROP FUNCTION IF EXISTS {old}")


def _replace_senders(old_types: str, extra: str, column: str) -> None:
    new_types = f"{SENT_TYPES}, jsonb" if extra else SENT_TYPES
    senders = (("horsies_send_task", ONE, _send_task), ("horsies_send_tasks", MANY, _send_tasks))
    for name, first, text in senders:
        old, new = f"{name}({first}, {old_types})", f"{name}({first}, {new_types})"
        op.execute(_in_this_schema(text(extra, column)))
        op.execute(_owned_and_granted_like(old, new))
        op.execute(f"DROP PROCEDURE IF EXISTS {old}")


def _replaced(name: str, changes: list[tuple[str, str]]) -> str:
    """The function with parts of its text changed; its settings, owner and rights stay."""
    text = f"pg_get_functiondef('{name}'::regproc)"
    for old, new in changes:
        text = f"replace({text}, $text${old}$text$, $text${new}$text$)"
    return f"DO $do$ BEGIN EXECUTE {text}; END $do$"


def _in_this_schema(text: str) -> str:
    """A caller's search_path decides nothing: the text names the schema, which is known where it runs, also offline."""
    return f"""
DO $do$ BEGIN
    EXECUTE replace($text${text}$text$, '@schema@', quote_ident(current_schema()));
END $do$
"""


def _owned_and_granted_like(old: str, new: str) -> str:
    """A superuser may migrate the tables of another role; and where EXECUTE was taken from PUBLIC, it stays with those
    who had it."""
    return f"""
DO $do$ DECLARE acl aclitem[]; role oid; owner text; BEGIN
    SELECT pg_get_userbyid(relowner) INTO owner FROM pg_class WHERE oid = 'horsies_tasks'::regclass;
    IF owner <> current_user THEN EXECUTE 'ALTER ROUTINE {new} OWNER TO ' || quote_ident(owner); END IF;
    SELECT proacl INTO acl FROM pg_proc WHERE oid = to_regprocedure('{old}');
    IF acl IS NULL THEN RETURN; END IF;
    REVOKE ALL ON ROUTINE {new} FROM PUBLIC;
    FOR role IN SELECT x.grantee FROM aclexplode(acl) AS x WHERE x.privilege_type = 'EXECUTE' LOOP
        EXECUTE 'GRANT EXECUTE ON ROUTINE {new} TO '
            || CASE WHEN role = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(role)) END;
    END LOOP;
END $do$
"""
