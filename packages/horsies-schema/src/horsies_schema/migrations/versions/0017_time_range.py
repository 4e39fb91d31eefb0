"""Refuse times that no program can read, end recursions over runs that are their own parents, delete by a function.

Deploy: before the code that needs it. Afterwards run `horsies-migrate grants` again.

PostgreSQL stores the years 4713 BC to 294276 and two infinities; Python's datetime ends at the years 1 and 9999. One
such time in a row that a producer wrote failed the whole batch of every claim that met it. Every timestamptz column now
holds a time from 1970 to 9000. Rows that have another one are moved to the nearer end of that range.

An operator deletes through `horsies_purge_tasks`, which takes only tasks that have ended, and needs no DELETE right.
"""

from collections.abc import Iterable, Mapping

from alembic import op

revision = "0017"
down_revision = "0016"
branch_labels = None
depends_on = None

# Immutable, and printed alike in every time zone: 1970-01-01 and 9000-01-01, UTC.
FIRST = "to_timestamp(0)"
LAST = "to_timestamp(221845392000)"
TIMES = {
    "horsies_tasks": (
        "sent_at", "enqueued_at", "claimed_at", "claim_expires_at", "started_at", "completed_at", "failed_at",
        "terminal_at", "cancel_requested_at", "good_until", "next_retry_at", "finalizing_at", "created_at",
        "updated_at",
    ),
    "horsies_task_attempts": ("started_at", "finished_at", "created_at"),
    "horsies_heartbeats": ("sent_at",),
    "horsies_worker_states": ("snapshot_at", "worker_started_at"),
    "horsies_worker_instances": ("started_at", "beat_at", "stopped_at", "judged_dead_at", "recovered_at"),
    "horsies_task_sets": ("recorded_at",),
    "horsies_task_names": ("first_known_at", "last_known_at", "missing_since"),
    "horsies_schedule_state": ("last_run_at", "next_run_at", "paused_at", "run_requested_at", "updated_at"),
    "horsies_queue_state": ("paused_at", "updated_at"),
    "horsies_workflows": ("sent_at", "created_at", "started_at", "completed_at", "updated_at"),
    "horsies_workflow_tasks": ("created_at", "started_at", "completed_at", "updated_at", "good_until"),
}  # fmt: skip
LONGEST_TTL = "make_interval(years => 1000)"
LONGEST_PERIOD_MS = 3_600_000

# A task's rules are a function (revision 0011): its CHECK passes these columns too.
GIVEN = """task_name, queue_name, unique_key, priority, status, claimed, claimed_by_worker_id,
    claimed_at, claim_expires_at, claim_generation, started_at, good_until, worker_pid, finalizing_at, completed_at,
    failed_at, terminal_at, result, error_code, retry_count, max_retries, manual_retries"""
GIVEN_SINCE = ("sent_at", "enqueued_at", "cancel_requested_at", "next_retry_at", "created_at", "updated_at")
SIGNATURE = (
    "horsies_task_is_sound(varchar, varchar, varchar, integer, varchar, boolean, varchar, timestamptz, timestamptz,"
    " integer, timestamptz, timestamptz, integer, timestamptz, timestamptz, timestamptz, timestamptz, text, text,"
    " integer, integer, integer{more})"
)
SIGNATURE_BEFORE = SIGNATURE.format(more="")
SIGNATURE_NOW = SIGNATURE.format(more=", timestamptz" * len(GIVEN_SINCE))

# Of which a task's row has none but in these years: `least` and `greatest` pass over NULL.
_ALL_TIMES = ", ".join(TIMES["horsies_tasks"])
IN_RANGE = f"""least({_ALL_TIMES})
            >= timestamptz '1970-01-01 00:00:00+00'
        AND greatest({_ALL_TIMES})
            <= timestamptz '9000-01-01 00:00:00+00'"""
RULES = [
    (
        "AND manual_retries >= 0 AND claim_generation >= 0\n        AND task_name <> ''",
        f"AND manual_retries >= 0 AND claim_generation >= 0\n        AND {IN_RANGE}\n        AND task_name <> ''",
    ),
    (
        "WHEN started_at >= good_until THEN 'good_until'\n        ELSE",
        "WHEN started_at >= good_until THEN 'good_until'\n"
        f"        WHEN NOT ({IN_RANGE}) THEN 'time_range'\n        ELSE",
    ),
]
ARGUMENTS = (
    "manual_retries integer)",
    f"manual_retries integer, {', '.join(f'{name} timestamp with time zone' for name in GIVEN_SINCE)})",
)

# The time at which a function holds its locks. statement_timestamp() is the time of its call: a cancel that waited for
# a step of the workflow ended tasks before the time of their creation.
AFTER_LOCKS = ("statement_timestamp()", "moment")
CHANGED = {
    # UNION instead of UNION ALL: a run that is found again ends the recursion.
    "horsies_cancel_workflow": [
        ("UNION ALL\n            SELECT c.id FROM inside", "UNION\n            SELECT c.id FROM inside")
    ],
    "horsies_cancel_tasks": [
        AFTER_LOCKS,
        ("use_column\nBEGIN\n", "use_column\nDECLARE\n    moment timestamptz;\nBEGIN\n"),
        ("FOR UPDATE;\n    --", "FOR UPDATE;\n    moment := clock_timestamp();\n    --"),
    ],
    "horsies_stop_workflows": [
        AFTER_LOCKS,
        ("$\nBEGIN\n", "$\nDECLARE\n    moment constant timestamptz := clock_timestamp();\nBEGIN\n"),
    ],
}

PURGE = "horsies_purge_tasks(text[])"
# The caller has locked the rows. The function checks again that each row may be deleted, so a role cannot bypass it.
PURGE_TASKS = """
CREATE OR REPLACE FUNCTION @schema@.horsies_purge_tasks(ids text[]) RETURNS TABLE (id text, terminal_at timestamptz)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
BEGIN
    RETURN QUERY DELETE FROM @schema@.horsies_tasks t
     WHERE t.id = ANY (ids) AND t.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
       AND NOT (t.is_workflow_task AND EXISTS (
               SELECT FROM @schema@.horsies_workflow_tasks n
                 JOIN @schema@.horsies_workflows w ON w.id = n.workflow_id
                 LEFT JOIN @schema@.horsies_workflows r ON r.id = w.root_workflow_id
                WHERE n.task_id = t.id AND (w.completed_at IS NULL OR (r.id IS NOT NULL AND r.completed_at IS NULL))))
    RETURNING t.id::text, t.terminal_at;
END
$function$
"""

ATTEMPT_BEFORE = """attempt >= 1 AND finished_at >= started_at
    AND CASE WHEN error_code IS NULL THEN outcome = 'COMPLETED' AND NOT will_retry
             ELSE outcome = 'FAILED' OR outcome = 'WORKER_FAILURE' END"""


def upgrade() -> None:
    """The first transaction locks the tables for a moment; the second repairs and reads all rows without blocking
    writers. Interrupted in between, it is repeated."""
    op.execute(_replaced("horsies_task_is_sound", [ARGUMENTS, *RULES]))
    op.execute(_owned_like_the_tables(SIGNATURE_NOW))
    op.execute(_granted_like(SIGNATURE_BEFORE, SIGNATURE_NOW))
    checks = _checks()
    _add(checks)
    op.execute(f"DROP FUNCTION IF EXISTS {SIGNATURE_BEFORE}")
    for name, changes in CHANGED.items():
        op.execute(_replaced(name, changes))
    op.execute(_in_this_schema(PURGE_TASKS))
    op.execute(f"REVOKE ALL ON FUNCTION {PURGE} FROM PUBLIC")
    op.execute(_owned_like_the_tables(PURGE))
    op.execute(_granted_to_those_who_may_delete(PURGE))
    with op.get_context().autocommit_block():
        for table, columns in TIMES.items():
            op.execute(_moved_into_range(table, columns))
        for table, found in checks.items():
            for name in found:
                op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT ck_{table}_{name}")


def downgrade() -> None:
    op.execute(f"DROP FUNCTION {PURGE}")
    for name, changes in CHANGED.items():
        op.execute(_replaced(name, [(new, old) for old, new in reversed(changes)]))
    op.execute(_replaced("horsies_task_is_sound", [(new, old) for old, new in (ARGUMENTS, *RULES)]))
    op.execute(_owned_like_the_tables(SIGNATURE_BEFORE))
    op.execute(_granted_like(SIGNATURE_NOW, SIGNATURE_BEFORE))
    before = {
        "horsies_tasks": {"sound": f"horsies_task_is_sound({GIVEN})"},
        "horsies_task_attempts": {"sound": ATTEMPT_BEFORE},
        "horsies_worker_instances": {"period": "period_ms > 0"},
    }
    for table in TIMES:
        if table not in ("horsies_tasks", "horsies_task_attempts"):
            op.execute(f"ALTER TABLE {table} DROP CONSTRAINT ck_{table}_time_range")
    _add(before)
    op.execute(f"DROP FUNCTION {SIGNATURE_NOW}")
    with op.get_context().autocommit_block():
        for table, found in before.items():
            for name in found:
                op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT ck_{table}_{name}")


def _checks() -> dict[str, dict[str, str]]:
    """For each table the CHECKs that it gets, by the last part of their names."""
    found = {table: {"time_range": in_range(columns)} for table, columns in TIMES.items()}
    found["horsies_tasks"] = {"sound": f"horsies_task_is_sound({GIVEN}, {', '.join(GIVEN_SINCE)})"}
    found["horsies_task_attempts"] = {
        "sound": f"{ATTEMPT_BEFORE} AND {in_range(TIMES['horsies_task_attempts'])}",
    }
    found["horsies_workflow_tasks"]["time_range"] += f" AND ttl BETWEEN make_interval() AND {LONGEST_TTL}"
    found["horsies_worker_instances"]["period"] = f"period_ms BETWEEN 1 AND {LONGEST_PERIOD_MS}"
    return found


def in_range(columns: Iterable[str]) -> str:
    """NULL passes, as always in a CHECK: `least` and `greatest` pass over it, and are NULL if all are."""
    names = ", ".join(columns)
    return f"least({names}) >= {FIRST} AND greatest({names}) <= {LAST}"


def _add(checks: Mapping[str, Mapping[str, str]]) -> None:
    for table, found in checks.items():
        changes = [
            f"DROP CONSTRAINT IF EXISTS ck_{table}_{name}, "
            f"ADD CONSTRAINT ck_{table}_{name} CHECK ({condition}) NOT VALID"
            for name, condition in found.items()
        ]
        op.execute(f"ALTER TABLE {table} {', '.join(changes)}")


def _moved_into_range(table: str, columns: Iterable[str]) -> str:
    """A task starts before its good_until: the two stay a second apart at either end of the range."""
    bounds = {
        ("horsies_tasks", "started_at"): (FIRST, f"{LAST} - interval '1 s'"),
        ("horsies_tasks", "good_until"): (f"{FIRST} + interval '1 s'", LAST),
    }
    changes: list[str] = []
    for name in columns:
        first, last = bounds.get((table, name), (FIRST, LAST))
        changes.append(
            f"{name} = CASE WHEN {name} < {first} THEN {first} WHEN {name} > {last} THEN {last} ELSE {name} END"
        )
    broken = f"NOT ({in_range(columns)})"
    # In the same statement: a row must be right in every respect when it is written.
    if table == "horsies_workflow_tasks":
        changes.append(
            f"ttl = CASE WHEN ttl < make_interval() THEN make_interval() WHEN ttl > {LONGEST_TTL} THEN {LONGEST_TTL}"
            " ELSE ttl END"
        )
        broken += f" OR ttl NOT BETWEEN make_interval() AND {LONGEST_TTL}"
    elif table == "horsies_worker_instances":
        changes.append(f"period_ms = least(period_ms, {LONGEST_PERIOD_MS})")
        broken += f" OR period_ms > {LONGEST_PERIOD_MS}"
    return f"UPDATE {table} SET {', '.join(changes)} WHERE {broken}"


def _replaced(name: str, changes: list[tuple[str, str]]) -> str:
    """The function with parts of its text changed; its settings stay, and its owner and rights if its arguments do."""
    text = f"pg_get_functiondef('{name}'::regproc)"
    for old, new in changes:
        text = f"replace({text}, $text${old}$text$, $text${new}$text$)"
    return f"DO $do$ BEGIN EXECUTE {text}; END $do$"


def _in_this_schema(text: str) -> str:
    """A pinned search_path finds no tables: the text names their schema, which is known where it runs, also offline."""
    return f"""
DO $do$ BEGIN
    EXECUTE replace($text${text}$text$, '@schema@', quote_ident(current_schema()));
END $do$
"""


def _owned_like_the_tables(name: str) -> str:
    """A superuser who migrates the tables of another role must not leave functions that run as a superuser."""
    return f"""
DO $do$ DECLARE owner text; BEGIN
    SELECT pg_get_userbyid(relowner) INTO owner FROM pg_class WHERE oid = 'horsies_tasks'::regclass;
    IF owner <> current_user THEN EXECUTE format('ALTER FUNCTION {name} OWNER TO %I', owner); END IF;
END $do$
"""


def _granted_like(old: str, new: str) -> str:
    """Where EXECUTE was taken from PUBLIC, those who had it have it of the new function too."""
    return f"""
DO $do$ DECLARE acl aclitem[]; role oid; BEGIN
    SELECT proacl INTO acl FROM pg_proc WHERE oid = to_regprocedure('{old}');
    IF acl IS NULL THEN RETURN; END IF;
    REVOKE ALL ON FUNCTION {new} FROM PUBLIC;
    FOR role IN SELECT x.grantee FROM aclexplode(acl) AS x WHERE x.privilege_type = 'EXECUTE' LOOP
        EXECUTE 'GRANT EXECUTE ON FUNCTION {new} TO '
            || CASE WHEN role = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(role)) END;
    END LOOP;
END $do$
"""


def _granted_to_those_who_may_delete(name: str) -> str:
    """Roles that purge today go on without a new grant."""
    return f"""
DO $do$ DECLARE role oid; BEGIN
    FOR role IN
        SELECT x.grantee FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS x
         WHERE c.oid = 'horsies_tasks'::regclass AND x.privilege_type = 'DELETE' AND x.grantee <> c.relowner
    LOOP
        EXECUTE 'GRANT EXECUTE ON FUNCTION {name} TO '
            || CASE WHEN role = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(role)) END;
    END LOOP;
END $do$
"""
