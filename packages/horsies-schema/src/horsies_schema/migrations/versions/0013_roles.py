"""Let producers cancel tasks, start workflows and cancel them without UPDATE rights; pin what functions look up.

Deploy: before the code that needs it. Afterwards run `horsies-migrate grants` again.

A producer that may UPDATE a column of a task may forge any task's owner or result. Each of these functions does one
thing, as the owner of the tables, and writes no text of its caller's into a task that exists. Every function finds
operators and functions in pg_catalog alone: a caller's search_path cannot put others in their place. That costs 0.6 µs
for each row that is checked (1.6 µs on PostgreSQL 15), of 4 µs.

`breaking` of the version table is the newest revision that older code cannot work with; NULL: there is none.
"""

from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

PINNED = "search_path = pg_catalog, pg_temp"
PLAIN = ("horsies_task_is_sound", "horsies_notify_task_changes", "horsies_notify_workflow_changes")

# All live rows are locked first, in the order of ids as everywhere; the statements after that see what was waited for.
CANCEL_TASKS = """
CREATE FUNCTION @schema@.horsies_cancel_tasks(ids text[]) RETURNS TABLE (id text, outcome text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
#variable_conflict use_column
BEGIN
    PERFORM 1 FROM @schema@.horsies_tasks t
      WHERE t.id = ANY (ids) AND t.status IN ('PENDING', 'CLAIMED', 'RUNNING') ORDER BY t.id FOR UPDATE;
    -- A worker that holds the claim finds zero rows when it wants to start the task: user code never runs. No worker
    -- ends this task, so the worker that steps the workflow of a node is told to look.
    RETURN QUERY WITH ended AS (
        UPDATE @schema@.horsies_tasks t
           SET status = 'CANCELLED', claimed = false, claim_expires_at = NULL, error_code = 'TASK_CANCELLED',
               result = '{"err":{"error_code":"TASK_CANCELLED","message":"cancelled before it started","data":null}}',
               failed_reason = 'cancelled before it started', cancel_requested_at = statement_timestamp(),
               terminal_at = statement_timestamp(), updated_at = statement_timestamp()
         WHERE t.id = ANY (ids) AND t.status IN ('PENDING', 'CLAIMED')
        RETURNING t.id, t.is_workflow_task
    ), told AS MATERIALIZED (
        SELECT pg_notify('workflow_step', 't:' || ended.id) FROM ended WHERE ended.is_workflow_task
    )
    SELECT ended.id::text, 'CANCELLED' FROM ended WHERE (SELECT count(*) FROM told) >= 0;
    -- RUNNING stays RUNNING: only its worker can stop it. It is told at once, and finds the mark if it did not listen.
    RETURN QUERY WITH asked AS (
        UPDATE @schema@.horsies_tasks t
           SET cancel_requested_at = coalesce(t.cancel_requested_at, statement_timestamp()),
               updated_at = statement_timestamp()
         WHERE t.id = ANY (ids) AND t.status = 'RUNNING'
        RETURNING t.id
    ), told AS MATERIALIZED (
        SELECT pg_notify('task_cancel', asked.id) FROM asked
    )
    SELECT asked.id::text, 'REQUESTED' FROM asked WHERE (SELECT count(*) FROM told) >= 0;
END
$function$
"""

# The whole graph in one statement, so that a run is never stored in part. One JSON document, so
# that the function keeps its signature when a release adds a property. Nodes without dependencies are enqueued at
# once; a workflow among them is left to a worker, which is told. No row means that a run with this id exists.
START_WORKFLOW = """
CREATE FUNCTION @schema@.horsies_start_workflow(run jsonb) RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    RETURN QUERY WITH fresh AS (
        INSERT INTO @schema@.horsies_workflows (id, name, status, on_error, output_task_index, success_policy,
                                                definition_key, enqueue_sha, sent_at, started_at, nodes_left)
        VALUES (run ->> 'id', run ->> 'name', 'RUNNING', run ->> 'on_error', (run ->> 'output')::int,
                nullif(run -> 'success_policy', 'null'), run ->> 'definition_key', run ->> 'enqueue_sha',
                (run ->> 'sent_at')::timestamptz, statement_timestamp(), jsonb_array_length(run -> 'nodes'))
        ON CONFLICT DO NOTHING
        RETURNING id
    ), given AS MATERIALIZED (
        SELECT fresh.id AS workflow_id, x.*, cardinality(x.dependencies) = 0 AS is_first,
               cardinality(x.dependencies) = 0 AND x.sub_name IS NULL AS is_enqueued
          FROM fresh CROSS JOIN ROWS FROM (jsonb_to_recordset(run -> 'nodes') AS (
               id text, node_id text, task_name text, args text, kwargs text, queue_name text, priority int,
               dependencies int[], dependents int[], args_from jsonb, ctx_from varchar[], join_type text,
               min_success int, allow_failed boolean, task_options text, max_retries int, good_until timestamptz,
               ttl float8, sub_name text, task_id text, first_kwargs text)) WITH ORDINALITY
               AS x (id, node_id, task_name, args, kwargs, queue_name, priority, dependencies, dependents, args_from,
                     ctx_from, join_type, min_success, allow_failed, task_options, max_retries, good_until, ttl,
                     sub_name, task_id, first_kwargs, number)
    ), node AS (
        INSERT INTO @schema@.horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, args, kwargs,
               queue_name, priority, dependencies, dependents, args_from, workflow_ctx_from, join_type, min_success,
               allow_failed_deps, task_options, max_retries, good_until, ttl, is_subworkflow, sub_workflow_name,
               deps_left, status, task_id)
        SELECT g.id, g.workflow_id, (g.number - 1)::int, g.node_id, g.task_name, g.args, g.kwargs, g.queue_name,
               g.priority, g.dependencies, g.dependents, g.args_from, g.ctx_from, g.join_type, g.min_success,
               g.allow_failed, g.task_options, g.max_retries, g.good_until, make_interval(secs => g.ttl),
               g.sub_name IS NOT NULL, g.sub_name, cardinality(g.dependencies),
               CASE WHEN g.is_enqueued THEN 'ENQUEUED' WHEN g.is_first THEN 'READY' ELSE 'PENDING' END,
               CASE WHEN g.is_enqueued THEN g.task_id END
          FROM given g
    ), task AS (
        INSERT INTO @schema@.horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at,
                                            good_until, max_retries, task_options, is_workflow_task)
        SELECT g.task_id, g.task_name, g.queue_name, g.priority, g.args, coalesce(g.first_kwargs, g.kwargs),
               (run ->> 'sent_at')::timestamptz, statement_timestamp(),
               coalesce(g.good_until, statement_timestamp() + make_interval(secs => g.ttl)), g.max_retries,
               g.task_options, true
          FROM given g WHERE g.is_enqueued
    ), told AS MATERIALIZED (
        SELECT pg_notify('workflow_step', 'w:' || fresh.id) FROM fresh
         WHERE EXISTS (SELECT FROM given g WHERE g.is_first AND NOT g.is_enqueued)
    )
    SELECT fresh.id::text FROM fresh WHERE (SELECT count(*) FROM told) >= 0;
END
$function$
"""

# The runs are locked by the caller. They end CANCELLED or FAILED before their nodes have: what has not started never
# will; what runs is asked to stop, and its node ends with it. It runs with the rights of its caller, which are those of
# the owner when horsies_cancel_workflow calls it.
STOP_WORKFLOWS = """
CREATE FUNCTION @schema@.horsies_stop_workflows(ids text[], new_status text, task_error text, node_error text,
                                                run_error text) RETURNS SETOF text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
BEGIN
    RETURN QUERY WITH run AS (
        UPDATE @schema@.horsies_workflows w
           SET error = run_error, completed_at = statement_timestamp(), updated_at = statement_timestamp(),
               nodes_left = 0, status = new_status
         WHERE w.id = ANY (ids) AND w.status IN ('PENDING', 'RUNNING', 'PAUSED')
        RETURNING w.id
    ), live AS MATERIALIZED (
        SELECT n.ctid AS tid, n.task_id FROM run
          JOIN @schema@.horsies_workflow_tasks n ON n.workflow_id = run.id
           AND n.status IN ('PENDING', 'READY', 'ENQUEUED', 'RUNNING')
    ), task AS MATERIALIZED (
        SELECT t.id, live.tid FROM live JOIN @schema@.horsies_tasks t ON t.id = live.task_id
         WHERE t.status IN ('PENDING', 'CLAIMED', 'RUNNING') ORDER BY t.id FOR UPDATE OF t
    ), stopped AS (
        UPDATE @schema@.horsies_tasks t
           SET claimed = false, claim_expires_at = CASE WHEN t.status = 'RUNNING' THEN t.claim_expires_at END,
               status = CASE WHEN t.status = 'RUNNING' THEN t.status ELSE 'CANCELLED' END,
               result = CASE WHEN t.status = 'RUNNING' THEN t.result ELSE task_error END,
               error_code = CASE WHEN t.status = 'RUNNING' THEN t.error_code ELSE 'TASK_CANCELLED' END,
               terminal_at = CASE WHEN t.status <> 'RUNNING' THEN statement_timestamp() END,
               cancel_requested_at = statement_timestamp(), updated_at = statement_timestamp()
          FROM task WHERE t.id = task.id
        RETURNING t.id, t.status, task.tid
    ), unstarted AS (
        -- by what became of the task, not by what the snapshot says of it: it may have been started meanwhile
        SELECT live.tid FROM live WHERE live.task_id IS NULL
        UNION ALL
        SELECT stopped.tid FROM stopped WHERE stopped.status = 'CANCELLED'
    ), node AS (
        UPDATE @schema@.horsies_workflow_tasks n
           SET error = node_error, completed_at = statement_timestamp(), updated_at = statement_timestamp(),
               status = CASE WHEN n.is_subworkflow AND n.status = 'RUNNING' THEN 'FAILED' ELSE 'SKIPPED' END
          FROM unstarted u WHERE n.ctid = u.tid
    ), told AS MATERIALIZED (
        SELECT pg_notify('task_cancel', stopped.id) FROM stopped WHERE stopped.status = 'RUNNING'
    ), stepped AS MATERIALIZED (
        SELECT run.id, pg_notify('workflow_step', 'w:' || run.id) FROM run
    )
    SELECT stepped.id::text FROM stepped WHERE (SELECT count(*) FROM told) >= 0;
END
$function$
"""

# Runs are locked from the root downwards (depth, id), then nodes by their index, then tasks by their id, as everywhere.
# NO KEY: the end of a workflow inside looks at its parent's key, and must not wait for the lock that waits for it.
CANCEL_WORKFLOW = """
CREATE FUNCTION @schema@.horsies_cancel_workflow(workflow_id text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $function$
DECLARE
    ended constant text :=
        '{"err":{"error_code":"WORKFLOW_CANCELLED","message":"the workflow was cancelled","data":null}}';
    never_started constant text := '{"err":{"error_code":"TASK_CANCELLED","message":'
        '"its workflow was cancelled before it started","data":null}}';
    tree text[];
    seen int := -1;
    root record;
BEGIN
    LOOP  -- until it finds no more: the holder of a row that was waited for may have launched another run inside
        WITH RECURSIVE inside AS (
            SELECT w.id FROM @schema@.horsies_workflows w WHERE w.id = $1
            UNION ALL
            SELECT c.id FROM inside JOIN @schema@.horsies_workflows c ON c.parent_workflow_id = inside.id
        ), locked AS MATERIALIZED (
            SELECT w.id FROM @schema@.horsies_workflows w
             WHERE w.id = ANY (ARRAY(SELECT inside.id FROM inside)) ORDER BY w.depth, w.id FOR NO KEY UPDATE
        )
        SELECT coalesce(array_agg(locked.id::text), '{}') INTO tree FROM locked;
        EXIT WHEN cardinality(tree) = seen;
        seen := cardinality(tree);
    END LOOP;
    SELECT w.status, w.parent_workflow_id INTO root FROM @schema@.horsies_workflows w WHERE w.id = $1;
    IF NOT FOUND OR root.status NOT IN ('PENDING', 'RUNNING', 'PAUSED') THEN
        RETURN false;
    END IF;
    PERFORM @schema@.horsies_stop_workflows(tree, 'CANCELLED', never_started, ended, ended);
    IF root.parent_workflow_id IS NOT NULL THEN
        PERFORM pg_notify('workflow_step', 'w:' || root.parent_workflow_id);
    END IF;
    RETURN true;
END
$function$
"""

FUNCTIONS = {
    "horsies_cancel_tasks(text[])": CANCEL_TASKS,
    "horsies_start_workflow(jsonb)": START_WORKFLOW,
    "horsies_stop_workflows(text[], text, text, text, text)": STOP_WORKFLOWS,
    "horsies_cancel_workflow(text)": CANCEL_WORKFLOW,
}
# The right on a column with which a role did the same until now.
BEFORE = {
    "horsies_cancel_tasks(text[])": ("UPDATE", "horsies_tasks", "status"),
    "horsies_start_workflow(jsonb)": ("INSERT", "horsies_workflow_tasks", "id"),
    "horsies_stop_workflows(text[], text, text, text, text)": ("UPDATE", "horsies_workflows", "status"),
    "horsies_cancel_workflow(text)": ("UPDATE", "horsies_workflows", "status"),
}


def upgrade() -> None:
    for name in PLAIN:
        op.execute(f"ALTER FUNCTION {name} SET {PINNED}")
    for name, text in FUNCTIONS.items():
        op.execute(_in_this_schema(text))
        op.execute(f"REVOKE ALL ON FUNCTION {name} FROM PUBLIC")
        op.execute(_owned_like_the_tables(name))
        op.execute(_granted_where_it_was_possible(name, *BEFORE[name]))
    op.execute("ALTER TABLE horsies_alembic_version ADD COLUMN breaking varchar(32)")


def downgrade() -> None:
    op.execute("ALTER TABLE horsies_alembic_version DROP COLUMN breaking")
    for name in FUNCTIONS:
        op.execute(f"DROP FUNCTION {name}")
    for name in PLAIN:
        op.execute(f"ALTER FUNCTION {name} RESET search_path")


def _in_this_schema(text: str) -> str:
    """A pinned search_path finds no tables: the text names their schema, which is known where it runs, also offline."""
    literal = text.replace(":null", r"\:null")  # a colon before a word is a parameter to SQLAlchemy
    return f"""
DO $do$ BEGIN
    EXECUTE replace($text${literal}$text$, '@schema@', quote_ident(current_schema()));
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


def _granted_where_it_was_possible(name: str, right: str, table: str, column: str) -> str:
    """Roles that were granted rights on the tables, by an older release or by hand, go on without a new grant."""
    return f"""
DO $do$ DECLARE role oid; BEGIN
    FOR role IN
        SELECT DISTINCT x.grantee FROM pg_class c
         CROSS JOIN LATERAL (SELECT c.relacl UNION ALL SELECT a.attacl FROM pg_attribute a
                              WHERE a.attrelid = c.oid AND a.attname = '{column}') AS granted (acl)
         CROSS JOIN LATERAL aclexplode(granted.acl) AS x
         WHERE c.oid = '{table}'::regclass AND x.privilege_type = '{right}' AND x.grantee <> c.relowner
    LOOP
        EXECUTE 'GRANT EXECUTE ON FUNCTION {name} TO '
            || CASE WHEN role = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(role)) END;
    END LOOP;
END $do$
"""
