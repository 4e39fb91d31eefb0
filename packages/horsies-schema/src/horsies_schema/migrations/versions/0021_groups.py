"""Add groups of tasks with limits: policies of queues, limits that queues share, and the claim of grouped tasks.

Deploy: stop workers, dashboards and producers of older releases first; then migrate, then start the new release.
Afterwards run `horsies-migrate grants` again.

Tasks with a `group_key` are claimed by `horsies_claim_grouped` alone (../functions/0021_claim_grouped.sql). The index
of the other claims leaves them out, so older code, whose statements do not, would read the whole table: this revision
is breaking. Concurrency is counted from the rows in flight; nothing is kept but one time per rate.
"""

from importlib.resources import files

from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None
breaking = True

WAITS = "status = 'PENDING' AND NOT withdrawn"
KEY = "(queue_name, priority, enqueued_at, id)"
INDEXES = {
    "ix_horsies_tasks_grouped": "(queue_name, priority, group_key, enqueued_at, id)"
    f" WHERE {WAITS} AND group_key IS NOT NULL",
    # for those who ask how many tasks wait and how long
    "ix_horsies_tasks_grouped_age": f"{KEY} WHERE {WAITS} AND group_key IS NOT NULL",
    "ix_horsies_tasks_grouped_in_flight": "(queue_name, group_key)"
    " WHERE status IN ('CLAIMED', 'RUNNING') AND group_key IS NOT NULL",
}

# -- policies ------------------------------------------------------------------------------------------------------

# A whole number from 1 to a million, as all limits of the configuration; not 1.0, whose text is no integer's.
IS_COUNT = """
CREATE OR REPLACE FUNCTION @schema@.horsies_is_count(value jsonb)
RETURNS boolean LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $function$
    SELECT CASE WHEN jsonb_typeof(value) = 'number'
                THEN (value #>> '{}')::numeric BETWEEN 1 AND 1000000 AND scale((value #>> '{}')::numeric) = 0
                ELSE false END
$function$
"""
# A policy is an object of max_concurrency, rate (limit, per_seconds, burst), fair and limits. In an override, null
# means "no limit", and what it does not name is as declared. The claim casts these values, so they are checked here.
POLICY_IS_SOUND = """
CREATE OR REPLACE FUNCTION @schema@.horsies_policy_is_sound(policy jsonb)
RETURNS boolean LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    rate constant jsonb := nullif(policy -> 'rate', 'null');
    most constant jsonb := nullif(policy -> 'max_concurrency', 'null');
BEGIN
    IF policy IS NULL THEN
        RETURN true;
    ELSIF jsonb_typeof(policy) <> 'object' OR policy - '{max_concurrency,rate,fair,limits}'::text[] <> '{}'
        OR (most IS NOT NULL AND NOT @schema@.horsies_is_count(most))
        OR coalesce(jsonb_typeof(policy -> 'fair'), 'boolean') <> 'boolean'
        OR coalesce(jsonb_typeof(policy -> 'limits'), 'array') <> 'array'
        OR jsonb_path_exists(policy -> 'limits', 'strict $[*] ? (@.type() != "string")')
    THEN
        RETURN false;
    ELSIF rate IS NULL THEN
        RETURN true;
    ELSIF jsonb_typeof(rate) <> 'object' OR rate - '{limit,per_seconds,burst}'::text[] <> '{}'
        OR NOT @schema@.horsies_is_count(rate -> 'limit') OR NOT @schema@.horsies_is_count(rate -> 'burst')
        OR jsonb_typeof(rate -> 'per_seconds') IS DISTINCT FROM 'number'
    THEN
        RETURN false;
    END IF;
    RETURN (rate ->> 'burst')::numeric <= (rate ->> 'limit')::numeric
        AND (rate ->> 'per_seconds')::numeric BETWEEN 0.1 AND 2678400;
END
$function$
"""
# The state of one rate at a time: how many tasks may start, or after how many seconds the next one may. `ahead`: the
# seconds until its bucket is full; an empty bucket of another burst may need longer than one of this. `longest`: the
# next token is never more than a window away. `is_stale`: `free_at` is later than that, so the clock was set back.
RATE_ROOM = """
CREATE OR REPLACE FUNCTION @schema@.horsies_rate_room(
    rate jsonb, free_at timestamptz, at timestamptz, stepped timestamptz,
    OUT burst int, OUT spacing float8, OUT slack float8, OUT longest float8, OUT ahead float8, OUT is_stale boolean,
    OUT tokens int, OUT wait_s float8)
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    IF rate ->> 'limit' IS NULL THEN
        RETURN;
    END IF;
    burst := (rate ->> 'burst')::int;
    slack := (rate ->> 'per_seconds')::float8 / 10;
    slack := greatest(least(0.25, slack), slack / 10);
    spacing := ((rate ->> 'per_seconds')::float8 + slack) / ((rate ->> 'limit')::int - burst + 1);
    longest := (rate ->> 'per_seconds')::float8 + slack + (burst - 1) * spacing;
    ahead := date_part('epoch', free_at - at);
    is_stale := coalesce(ahead > longest + 0.001, false);
    ahead := least(longest, greatest(0, date_part('epoch', stepped - at) + burst * spacing, ahead));
    tokens := greatest(0, floor(burst - ahead / spacing + 0.000001));
    IF tokens = 0 THEN
        wait_s := ahead - (burst - 1) * spacing;
    END IF;
END
$function$
"""
ROUTINES = {
    "horsies_is_count(jsonb)": IS_COUNT,
    "horsies_policy_is_sound(jsonb)": POLICY_IS_SOUND,
    "horsies_rate_room(jsonb, timestamptz, timestamptz, timestamptz)": RATE_ROOM,
}
CLAIM = (
    "horsies_claim_grouped(text[], text[], text[], boolean, text[], int[], text[], boolean[], text[], int, int, int,"
    " int, int, text[], text[], text[], text[], int[], int, int, text, text, text, float8)"
)

POLICY_COLUMNS = (
    "declared jsonb",
    "declared_at timestamptz",
    "override jsonb",
    "override_at timestamptz",
    "policy jsonb GENERATED ALWAYS AS (coalesce(declared, '{}') || coalesce(override, '{}')) STORED",
)
# The plain claim leaves a queue to the grouped one if its tasks, with or without a group, share a limit.
IS_LIMITED = (
    "is_limited boolean GENERATED ALWAYS AS (coalesce(override -> 'limits', declared -> 'limits', '[]') <> '[]') STORED"
)


def _time_range(*columns: str) -> str:
    names = ", ".join(columns)
    return f"least({names}) >= to_timestamp(0) AND greatest({names}) <= to_timestamp(221845392000)"


# -- notifications -------------------------------------------------------------------------------------------------

# `task_grouped`: the queue, and behind a space the group if the statement wrote tasks of one group only.
NOTIFY = [
    (
        """    first_id text;
    first_queue text;
    last_queue text;
    told boolean;
BEGIN
    IF TG_OP = 'INSERT' THEN
        SELECT min(id), min(queue_name), max(queue_name) INTO first_id, first_queue, last_queue
          FROM inserted WHERE status = 'PENDING';
        IF first_queue = last_queue THEN
            told := pg_notify('task_new', first_id) IS NULL
                OR pg_notify('task_queue_' || first_queue, first_id) IS NULL;
        ELSE
            PERFORM pg_notify('task_new', fresh.id), pg_notify('task_queue_' || fresh.queue_name, fresh.id)
               FROM (SELECT queue_name, min(id) AS id FROM inserted WHERE status = 'PENDING'
                      GROUP BY queue_name) AS fresh;
        END IF;
""",
        """    first_id text;
    first_queue text;
    last_queue text;
    first_group text;
    told boolean;
BEGIN
    IF TG_OP = 'INSERT' THEN
        SELECT min(id), min(queue_name), max(queue_name), min(group_key)
          INTO first_id, first_queue, last_queue, first_group
          FROM inserted WHERE status = 'PENDING';
        IF first_queue = last_queue AND first_group IS NULL THEN
            told := pg_notify('task_new', first_id) IS NULL
                OR pg_notify('task_queue_' || first_queue, first_id) IS NULL;
        ELSE
            PERFORM CASE WHEN fresh.id IS NOT NULL THEN pg_notify('task_new', fresh.id) END,
                    CASE WHEN fresh.id IS NOT NULL THEN pg_notify('task_queue_' || fresh.queue_name, fresh.id) END,
                    CASE WHEN fresh.one IS NOT NULL THEN pg_notify('task_grouped', fresh.queue_name
                         || CASE WHEN fresh.one = fresh.other THEN ' ' || fresh.one ELSE '' END) END
               FROM (SELECT queue_name, min(id) FILTER (WHERE group_key IS NULL) AS id, min(group_key) AS one,
                            max(group_key) AS other
                       FROM inserted WHERE status = 'PENDING' GROUP BY queue_name) AS fresh;
        END IF;
""",
    ),
    (
        """    ELSIF NEW.status = 'PENDING' THEN
        told :=""",
        """    ELSIF NEW.status = 'PENDING' AND NEW.group_key IS NOT NULL THEN
        told := pg_notify('task_grouped', NEW.queue_name || ' ' || NEW.group_key) IS NULL;
    ELSIF NEW.status = 'PENDING' THEN
        told :=""",
    ),
]

# Whether a healthy worker on duty would have claimed a task that waits: revision 0019 has the reasons. Tasks with and
# without a group are in two indexes.
_LATE = """EXISTS (
        WITH RECURSIVE found AS (
            SELECT q.name::text AS queue_name, f.priority FROM unnest(queues) AS q (name)
             CROSS JOIN LATERAL (SELECT t.priority FROM @schema@.horsies_tasks t
                                  WHERE t.status = 'PENDING' AND NOT t.withdrawn{grouped} AND t.queue_name = q.name
                                  ORDER BY t.priority LIMIT 1) AS f
             WHERE NOT EXISTS (SELECT FROM @schema@.horsies_queue_state s
                                WHERE s.queue_name = q.name AND s.paused_at IS NOT NULL)
            UNION ALL
            SELECT p.queue_name, f.priority FROM found p
             CROSS JOIN LATERAL (SELECT t.priority FROM @schema@.horsies_tasks t
                                  WHERE t.status = 'PENDING' AND NOT t.withdrawn{grouped}
                                    AND t.queue_name = p.queue_name AND t.priority >= p.priority + 1
                                  ORDER BY t.priority LIMIT 1) AS f
        )
        SELECT FROM found p CROSS JOIN LATERAL (
            SELECT FROM @schema@.horsies_tasks t
             WHERE t.status = 'PENDING' AND NOT t.withdrawn{grouped}
               AND t.queue_name = p.queue_name AND t.priority = p.priority
               AND t.enqueued_at <= latest AND t.enqueued_at >= latest - interval '10 seconds'
               AND t.task_name = ANY (names) LIMIT 1) AS late)"""


def _has_late_task(*conditions: str) -> str:
    return f"""
CREATE OR REPLACE FUNCTION @schema@.horsies_has_late_task(
    queues text[], names text[], slower int)
RETURNS boolean LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    latest constant timestamptz := clock_timestamp() - slower * interval '80 ms';
BEGIN
    RETURN {" OR ".join(_LATE.format(grouped=condition) for condition in conditions)};
END
$function$
"""


# -- senders -------------------------------------------------------------------------------------------------------

SENT = (
    "task_name varchar, queue_name varchar, priority int, sent_at timestamptz, eta timestamptz, delay interval,"
    " good_until timestamptz, ttl interval, max_retries int, task_options text, metadata jsonb DEFAULT NULL"
)
WRITTEN = (
    "id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, good_until, max_retries, task_options,"
    " enqueue_sha, metadata"
)
SENT_TYPES = "varchar, varchar, int, timestamptz, timestamptz, interval, timestamptz, interval, int, text, jsonb"
SENDERS = {
    "horsies_send_task": ("text, text, text, varchar", "varchar"),
    "horsies_send_tasks": ("text[], text[], text[], text[]", "text[]"),
}
_TOLD_ONE = """
    IF group_key IS NOT NULL THEN
        setting := pg_catalog.pg_notify('task_grouped', pg_catalog.concat(queue_name, ' ', group_key));
    ELSE
        is_told := @schema@.horsies_notify_sent(queue_name, id);
    END IF;"""
_TOLD_MANY = """
    IF group_keys IS NOT NULL THEN
        is_told := @schema@.horsies_notify_groups_sent(queue_name, group_keys, ids);
    ELSE
        is_told := @schema@.horsies_notify_sent(queue_name, ids[1]);
    END IF;"""
NOTIFY_GROUPS = """
CREATE OR REPLACE FUNCTION @schema@.horsies_notify_groups_sent(queue_name text, group_keys text[], ids text[])
RETURNS boolean LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    first text;
    last text;
    without int;
BEGIN
    SELECT min(k.key), max(k.key), min(k.at) FILTER (WHERE k.key IS NULL) INTO first, last, without
      FROM unnest(group_keys) WITH ORDINALITY AS k (key, at);
    RETURN (first IS NULL OR pg_notify('task_grouped', concat(queue_name, CASE WHEN first = last THEN ' ' || first END))
               IS NOT NULL)
       AND (without IS NULL OR @schema@.horsies_notify_sent(queue_name, ids[without]));
END
$function$
"""
NOTIFY_GROUPS_NAME = "horsies_notify_groups_sent(text, text[], text[])"


def _send_task(*, grouped: bool) -> str:
    """Commits the row, then notifies: the trigger would notify inside the transaction."""
    extra, column = (", group_key varchar DEFAULT NULL", ", group_key") if grouped else ("", "")
    told = _TOLD_ONE if grouped else "\n    is_told := @schema@.horsies_notify_sent(queue_name, id);"
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
            max_retries, task_options, enqueue_sha, metadata{column});
    COMMIT;{told}
END
$procedure$
"""


def _send_tasks(*, grouped: bool) -> str:
    extra, column, key = (
        (", group_keys text[] DEFAULT NULL", ", group_key", ", x.group_key") if grouped else ("", "", "")
    )
    keys = ", pg_catalog.unnest(group_keys)" if grouped else ""
    told = _TOLD_MANY if grouped else "\n    is_told := @schema@.horsies_notify_sent(queue_name, ids[1]);"
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
           max_retries, task_options, x.enqueue_sha, metadata{key}
      FROM ROWS FROM (pg_catalog.unnest(ids), pg_catalog.unnest(args), pg_catalog.unnest(kwargs),
                      pg_catalog.unnest(enqueue_shas){keys}) AS x (id, args, kwargs, enqueue_sha{column});
    COMMIT;{told}
END
$procedure$
"""


# A node's task has the node's group, else its run's.
START = [
    ("started_at, nodes_left, metadata)", "started_at, nodes_left, metadata, group_key)"),
    (
        "                nullif(run -> 'metadata', 'null'))\n        ON CONFLICT",
        "                nullif(run -> 'metadata', 'null'), run ->> 'group_key')\n        ON CONFLICT",
    ),
    ("first_kwargs text, metadata jsonb)) WITH", "first_kwargs text, metadata jsonb, group_key text)) WITH"),
    ("task_id, first_kwargs, metadata, number)", "task_id, first_kwargs, metadata, group_key, number)"),
    ("deps_left, status, task_id, metadata)", "deps_left, status, task_id, metadata, group_key)"),
    (
        "nullif(g.metadata, 'null')\n          FROM given g",
        "nullif(g.metadata, 'null'), g.group_key\n          FROM given g",
    ),
    ("task_options, is_workflow_task, metadata)", "task_options, is_workflow_task, metadata, group_key)"),
    (
        "'horsies.node', g.node_id) ELSE '{}' END, '{}')\n          FROM given g",
        "'horsies.node', g.node_id) ELSE '{}' END, '{}'),\n"
        "               coalesce(g.group_key, run ->> 'group_key')\n          FROM given g",
    ),
]


def upgrade() -> None:
    op.execute('ALTER TABLE horsies_tasks ALTER COLUMN group_key TYPE varchar(255) COLLATE "C"')
    for table in ("horsies_workflows", "horsies_workflow_tasks"):
        op.execute(f'ALTER TABLE {table} ADD COLUMN IF NOT EXISTS group_key varchar(255) COLLATE "C"')
    for name, text in ROUTINES.items():
        op.execute(_in_this_schema(text))
        op.execute(_owned_like_the_tables(name))
    columns = ", ".join(f"ADD COLUMN IF NOT EXISTS {column}" for column in (*POLICY_COLUMNS, IS_LIMITED))
    op.execute(
        f"""ALTER TABLE horsies_queue_state {columns},
                DROP CONSTRAINT IF EXISTS ck_horsies_queue_state_policy,
                DROP CONSTRAINT IF EXISTS ck_horsies_queue_state_time_range"""
    )
    op.execute(
        f"""ALTER TABLE horsies_queue_state
                ADD CONSTRAINT ck_horsies_queue_state_policy
                    CHECK (horsies_policy_is_sound(declared) AND horsies_policy_is_sound(override)),
                ADD CONSTRAINT ck_horsies_queue_state_time_range
                    CHECK ({_time_range("paused_at", "updated_at", "declared_at", "override_at")})"""
    )
    op.execute(
        f"""CREATE TABLE IF NOT EXISTS horsies_limits (
                name varchar(100) NOT NULL CONSTRAINT pk_horsies_limits PRIMARY KEY,
                {", ".join(POLICY_COLUMNS)},
                free_at timestamptz,
                updated_at timestamptz NOT NULL DEFAULT now(),
                CONSTRAINT ck_horsies_limits_policy CHECK (horsies_policy_is_sound(declared)
                    AND horsies_policy_is_sound(override)),
                CONSTRAINT ck_horsies_limits_time_range
                    CHECK ({_time_range("declared_at", "override_at", "free_at", "updated_at")})
            ) WITH (fillfactor = 50)"""
    )
    op.execute(
        f"""CREATE TABLE IF NOT EXISTS horsies_rate_limits (
                name varchar(100) NOT NULL,
                key varchar(255) COLLATE "C" NOT NULL,
                free_at timestamptz NOT NULL,
                CONSTRAINT pk_horsies_rate_limits PRIMARY KEY (name, key),
                CONSTRAINT ck_horsies_rate_limits_time_range CHECK ({_time_range("free_at")})
            ) WITH (fillfactor = 50)"""
    )
    for table in ("horsies_limits", "horsies_rate_limits"):
        op.execute(_owned_like_the_tables(table, kind="TABLE"))
    with op.get_context().autocommit_block():
        for name, definition in INDEXES.items():
            op.execute(f"CREATE INDEX IF NOT EXISTS {name} ON horsies_tasks {definition}")
        _make_claim_index(f"{WAITS} AND group_key IS NULL")
    _use_claim_index()
    claim = (files("horsies_schema.migrations") / "functions" / "0021_claim_grouped.sql").read_text(encoding="utf-8")
    for name, text in ((CLAIM, claim), (NOTIFY_GROUPS_NAME, NOTIFY_GROUPS)):
        op.execute(_in_this_schema(text))
        op.execute(_owned_like_the_tables(name))
    op.execute(_in_this_schema(_has_late_task(" AND t.group_key IS NULL", " AND t.group_key IS NOT NULL")))
    op.execute(_replaced("horsies_notify_task_changes", NOTIFY))
    op.execute(_replaced("horsies_start_workflow", START))
    _replace_senders(grouped=True)


def downgrade() -> None:
    _replace_senders(grouped=False)
    op.execute(_replaced("horsies_start_workflow", [(new, old) for old, new in START]))
    op.execute(_replaced("horsies_notify_task_changes", [(new, old) for old, new in NOTIFY]))
    op.execute(_in_this_schema(_has_late_task("")))
    for name in (NOTIFY_GROUPS_NAME, CLAIM):
        op.execute(f"DROP FUNCTION {name}")
    with op.get_context().autocommit_block():
        _make_claim_index(WAITS)
    _use_claim_index()
    for name in INDEXES:
        op.execute(f"DROP INDEX {name}")
    op.execute("DROP TABLE horsies_rate_limits")
    op.execute("DROP TABLE horsies_limits")
    op.execute(
        """ALTER TABLE horsies_queue_state DROP CONSTRAINT ck_horsies_queue_state_policy,
               DROP CONSTRAINT ck_horsies_queue_state_time_range,
               DROP COLUMN policy, DROP COLUMN is_limited, DROP COLUMN declared, DROP COLUMN declared_at,
               DROP COLUMN override, DROP COLUMN override_at"""
    )
    op.execute(
        f"""ALTER TABLE horsies_queue_state ADD CONSTRAINT ck_horsies_queue_state_time_range
                CHECK ({_time_range("paused_at", "updated_at")})"""
    )
    for name in reversed(ROUTINES):
        op.execute(f"DROP FUNCTION {name}")
    for table in ("horsies_workflows", "horsies_workflow_tasks"):
        op.execute(f"ALTER TABLE {table} DROP COLUMN group_key")
    op.execute('ALTER TABLE horsies_tasks ALTER COLUMN group_key TYPE varchar(255) COLLATE "default"')


def _make_claim_index(condition: str) -> None:
    """Beside the old one; writers wait while it is built: see revision 0016."""
    op.execute(f"CREATE INDEX IF NOT EXISTS ix_horsies_tasks_claim_new ON horsies_tasks {KEY} WHERE {condition}")


def _use_claim_index() -> None:
    op.execute("DROP INDEX ix_horsies_tasks_claim")
    op.execute("ALTER INDEX ix_horsies_tasks_claim_new RENAME TO ix_horsies_tasks_claim")


def _replace_senders(*, grouped: bool) -> None:
    texts = {"horsies_send_task": _send_task(grouped=grouped), "horsies_send_tasks": _send_tasks(grouped=grouped)}
    for name, (first, last) in SENDERS.items():
        signatures = [f"{name}({first}, {SENT_TYPES})", f"{name}({first}, {SENT_TYPES}, {last})"]
        old, new = signatures if grouped else reversed(signatures)
        op.execute(_in_this_schema(texts[name]))
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


def _owned_and_granted_like(old: str, new: str) -> str:
    """Where EXECUTE was taken from PUBLIC, it stays with those who had it."""
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
