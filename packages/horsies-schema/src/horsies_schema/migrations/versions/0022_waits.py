"""Let workflows wait, branch, continue and compensate.

Deploy: stop workers, dashboards and producers of older releases first; then migrate, then start the new release.
Afterwards run `horsies-migrate grants` again.

Nodes get the kinds `signal` and `sleep` and the state WAITING, which older workers do not know: this revision is
breaking. A node that waits stands in no index that recovery reads, and `wake_at` of its run is the only clock that is
looked at, so a run that waits costs nothing. What recovery looks for is told by small partial indexes: nodes to be
enqueued or settled, runs without open nodes, ends that the run around has not heard of, signals that no step has seen.
"""

from importlib.resources import files

from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None
breaking = True

STATUSES = "'PENDING', 'READY', 'ENQUEUED', 'RUNNING', 'COMPLETED', 'FAILED', 'SKIPPED'"
KINDS = "'task', 'workflow', 'map'"
RUN_TIMES = "sent_at, created_at, started_at, completed_at, updated_at"
NODE_TIMES = "created_at, started_at, completed_at, updated_at, good_until"
RUN_COLUMNS = {
    "deadline": "timestamptz",
    "start_at": "timestamptz",
    "wake_at": "timestamptz",
    "priority": "int",
    "unique_key": "text",
    "release": "varchar(255)",
    "fingerprint": "varchar(64)",
    "ends_as": "varchar(20)",
    "continues": "int NOT NULL DEFAULT 0",
    "continued_from": "varchar(36)",
    "ended_count": "int NOT NULL DEFAULT 0",
    "unsettled": "boolean NOT NULL DEFAULT false",
}
NODE_COLUMNS = {
    "wake_at": "timestamptz",
    "signal_name": "varchar(255)",
    "when_index": "int",
    "when_value": "boolean",
    "decides": "int[] NOT NULL DEFAULT '{}'",
    "skip_reason": "varchar(20)",
    "deps_void": "int NOT NULL DEFAULT 0",
    "ended_seq": "int",
    "compensate": "jsonb",
    "compensates": "varchar(36)",
}
INDEXES = {
    "ix_horsies_workflow_tasks_open": "horsies_workflow_tasks (status, updated_at)"
    " WHERE status IN ('READY', 'ENQUEUED')",
    "ix_horsies_workflow_tasks_waiting": "horsies_workflow_tasks (workflow_id) WHERE status = 'WAITING'",
    # for those who ask what waits for them
    "ix_horsies_workflow_tasks_signal": "horsies_workflow_tasks (signal_name, started_at)"
    " WHERE status = 'WAITING' AND signal_name IS NOT NULL",
    "ix_horsies_workflow_tasks_compensate": "horsies_workflow_tasks (workflow_id) WHERE compensate IS NOT NULL",
    "ix_horsies_workflows_wake_at": "horsies_workflows (wake_at) WHERE wake_at IS NOT NULL",
    "ix_horsies_workflows_finishing": "horsies_workflows (updated_at) WHERE nodes_left = 0 AND completed_at IS NULL",
    "ix_horsies_workflows_unsettled": "horsies_workflows (completed_at) WHERE unsettled AND completed_at IS NOT NULL",
}
UNIQUE_INDEXES = {
    "uq_horsies_workflow_tasks_compensates": "horsies_workflow_tasks (compensates) WHERE compensates IS NOT NULL",
    # the key with the name that the run was started with: a run that continues may get another name
    "uq_horsies_workflows_unique_key": "horsies_workflows (unique_key)"
    " WHERE unique_key IS NOT NULL AND completed_at IS NULL",
}
STOP = "horsies_stop_workflows(text[], text, text, text, text, text, text, boolean)"
OLD_STOP = "horsies_stop_workflows(text[], text, text, text, text)"
SIGNAL = "horsies_signal(text, text, jsonb, text, text)"
FORGET = "horsies_forget_compensations(text[], text[])"


def upgrade() -> None:
    """The tables are locked for the ALTERs alone: the new columns have constant defaults."""
    for table, columns in (("horsies_workflows", RUN_COLUMNS), ("horsies_workflow_tasks", NODE_COLUMNS)):
        added = ", ".join(f"ADD COLUMN {name} {kind}" for name, kind in columns.items())
        op.execute(f"ALTER TABLE {table} {added}")
    _check("horsies_workflows", "time_range", _times(f"{RUN_TIMES}, deadline, start_at, wake_at"))
    _check("horsies_workflows", "priority", "priority BETWEEN 1 AND 100")
    _check("horsies_workflows", "ends_as", "ends_as IN ('FAILED', 'CANCELLED')")
    _check("horsies_workflow_tasks", "time_range", _node_times(f"{NODE_TIMES}, wake_at"))
    _check("horsies_workflow_tasks", "status", f"status IN ({STATUSES}, 'WAITING')")
    _check("horsies_workflow_tasks", "kind", f"kind IN ({KINDS}, 'signal', 'sleep')")
    _check(
        "horsies_workflow_tasks",
        "waits",
        "(kind = 'signal') = (signal_name IS NOT NULL) AND (when_index IS NULL) = (when_value IS NULL)"
        " AND (wake_at IS NULL OR status = 'WAITING')",
    )
    _check(
        "horsies_workflow_tasks",
        "skip_reason",
        "skip_reason IS NULL"
        " OR status = 'SKIPPED' AND skip_reason IN ('upstream', 'not_taken', 'cancelled', 'deadline')",
    )
    op.execute(
        f"""CREATE TABLE horsies_workflow_signals (
                id varchar(255) NOT NULL,
                workflow_id varchar(36) NOT NULL,
                name varchar(255) NOT NULL,
                value text NOT NULL,
                created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
                consumed_by varchar(36),
                consumed_at timestamptz,
                noticed boolean NOT NULL DEFAULT false,
                CONSTRAINT pk_horsies_workflow_signals PRIMARY KEY (id),
                CONSTRAINT fk_horsies_workflow_signals_workflow_id FOREIGN KEY (workflow_id)
                    REFERENCES horsies_workflows (id) ON DELETE CASCADE,
                CONSTRAINT ck_horsies_workflow_signals_consumed
                    CHECK ((consumed_by IS NULL) = (consumed_at IS NULL)),
                CONSTRAINT ck_horsies_workflow_signals_value CHECK (octet_length(value) <= 16777216),
                CONSTRAINT ck_horsies_workflow_signals_time_range CHECK ({_times("created_at, consumed_at")})
            )"""
    )
    op.execute(
        "CREATE INDEX ix_horsies_workflow_signals_name ON horsies_workflow_signals (workflow_id, name, created_at)"
    )
    op.execute(
        "CREATE INDEX ix_horsies_workflow_signals_new ON horsies_workflow_signals (created_at) WHERE NOT noticed"
    )
    # a node is given one signal
    op.execute(
        "CREATE UNIQUE INDEX uq_horsies_workflow_signals_consumed_by ON horsies_workflow_signals (consumed_by)"
        " WHERE consumed_by IS NOT NULL"
    )
    op.execute(_owned_like_the_tables("horsies_workflow_signals", kind="TABLE"))
    op.execute(
        "UPDATE horsies_workflows SET unsettled = true WHERE parent_workflow_id IS NOT NULL AND completed_at IS NULL"
    )
    for unique, indexes in (("", INDEXES), ("UNIQUE ", UNIQUE_INDEXES)):
        for name, definition in indexes.items():
            op.execute(f"CREATE {unique}INDEX {name} ON {definition}")
    for name in (
        "0022_start_workflow",
        "0022_stop_workflows",
        "0022_cancel_workflow",
        "0022_signal",
        "0022_forget_compensations",
    ):
        op.execute(_function(name))
    op.execute(_granted_like(OLD_STOP, STOP))
    op.execute(f"DROP FUNCTION {OLD_STOP}")
    for new, old in ((SIGNAL, "horsies_start_workflow(jsonb)"), (FORGET, "horsies_purge_tasks(text[])")):
        op.execute(_owned_like_the_tables(new))
        op.execute(f"REVOKE ALL ON FUNCTION {new} FROM PUBLIC")
        op.execute(_granted_like(old, new))
    # revised since it was released: databases at 0021 get it too
    op.execute(_function("0021_claim_grouped"))


def downgrade() -> None:
    """Runs that wait, or that undo what they did, cannot be told in older words: end them first."""
    op.execute(
        """DO $do$ BEGIN
               IF EXISTS (SELECT FROM horsies_workflow_tasks WHERE kind IN ('signal', 'sleep') OR status = 'WAITING')
                  OR EXISTS (SELECT FROM horsies_workflows
                              WHERE ends_as IS NOT NULL OR status = 'PENDING' AND depth = 0)
               THEN RAISE 'there are workflows that wait for signals or times, or undo what they did: let them end and '
                          'delete their rows before this downgrade';
               END IF;
           END $do$"""
    )
    for name in (SIGNAL, FORGET):
        op.execute(f"DROP FUNCTION {name}")
    for name in ("0021_start_workflow", "0021_stop_workflows", "0021_cancel_workflow"):
        op.execute(_function(name))
    op.execute(_granted_like(STOP, OLD_STOP))
    op.execute(f"DROP FUNCTION {STOP}")
    for name in (*INDEXES, *UNIQUE_INDEXES):
        op.execute(f"DROP INDEX {name}")
    op.execute("DROP TABLE horsies_workflow_signals")
    for table, name in (
        ("horsies_workflows", "priority"), ("horsies_workflows", "ends_as"), ("horsies_workflow_tasks", "waits"),
        ("horsies_workflow_tasks", "skip_reason"),
    ):  # fmt: skip
        op.execute(f"ALTER TABLE {table} DROP CONSTRAINT ck_{table}_{name}")
    _check("horsies_workflows", "time_range", _times(RUN_TIMES))
    _check("horsies_workflow_tasks", "time_range", _node_times(NODE_TIMES))
    _check("horsies_workflow_tasks", "status", f"status IN ({STATUSES})")
    _check("horsies_workflow_tasks", "kind", f"kind IN ({KINDS})")
    for table, columns in (("horsies_workflows", RUN_COLUMNS), ("horsies_workflow_tasks", NODE_COLUMNS)):
        op.execute(f"ALTER TABLE {table} {', '.join(f'DROP COLUMN {name}' for name in columns)}")


def _check(table: str, name: str, condition: str) -> None:
    op.execute(f"ALTER TABLE {table} DROP CONSTRAINT IF EXISTS ck_{table}_{name}")
    op.execute(f"ALTER TABLE {table} ADD CONSTRAINT ck_{table}_{name} CHECK ({condition})")


def _times(columns: str) -> str:
    """See revision 0017."""
    return f"least({columns}) >= to_timestamp(0) AND greatest({columns}) <= to_timestamp(221845392000)"


def _node_times(columns: str) -> str:
    return f"{_times(columns)} AND ttl BETWEEN make_interval() AND make_interval(years => 1000)"


def _function(name: str) -> str:
    """A caller's search_path decides nothing: the text names the schema, which is known where it runs, also offline."""
    text = (files("horsies_schema.migrations") / "functions" / f"{name}.sql").read_text(encoding="utf-8")
    text = text.replace(":null", r"\:null")  # a colon before a word is a parameter to SQLAlchemy
    return f"""
DO $do$ BEGIN
    EXECUTE replace(replace($text${text}$text$, '@schema@', quote_ident(current_schema())),
                    '@name@', quote_literal(current_schema()));
END $do$
"""


def _owned_like_the_tables(name: str, *, kind: str = "ROUTINE") -> str:
    """A superuser who migrates the tables of another role must not leave what others cannot replace."""
    return f"""
DO $do$ DECLARE owner text; BEGIN
    SELECT pg_get_userbyid(relowner) INTO owner FROM pg_class WHERE oid = 'horsies_tasks'::regclass;
    IF owner <> current_user THEN EXECUTE 'ALTER {kind} {name} OWNER TO ' || quote_ident(owner); END IF;
END $do$
"""


def _granted_like(old: str, new: str) -> str:
    """Give EXECUTE on the new function to the roles that have it on the old one, and take it from all others."""
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
