CREATE OR REPLACE FUNCTION @schema@.horsies_start_workflow(run jsonb)
 RETURNS SETOF text
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
    -- Times that are told in seconds count from the database's clock.
    start_at constant timestamptz := coalesce((run ->> 'start_at')::timestamptz,
        statement_timestamp() + make_interval(secs => (run ->> 'start_in')::float8));
    is_later constant boolean := coalesce(start_at > statement_timestamp(), false);
    deadline constant timestamptz := coalesce((run ->> 'deadline')::timestamptz,
        CASE WHEN is_later THEN start_at ELSE statement_timestamp() END
        + make_interval(secs => (run ->> 'deadline_in')::float8));
    -- Rows that no client writes, in which every node waits for another: the step that comes then ends the run.
    is_stuck constant boolean := NOT jsonb_path_exists(run -> 'nodes', '$[*] ? (@.dependencies.size() == 0 && !exists(@.deps_left))');
    wake_at constant timestamptz := least(deadline, CASE WHEN is_later THEN start_at END,
                                          CASE WHEN is_stuck THEN statement_timestamp() END);
BEGIN
    RETURN QUERY WITH fresh AS (
        INSERT INTO @schema@.horsies_workflows (id, name, status, on_error, output_task_index, success_policy,
                                                definition_key, enqueue_sha, sent_at, started_at, nodes_left, metadata, group_key,
                                                deadline, start_at, wake_at, priority, unique_key, release, fingerprint)
        VALUES (run ->> 'id', run ->> 'name', CASE WHEN is_later THEN 'PENDING' ELSE 'RUNNING' END, run ->> 'on_error',
                (run ->> 'output')::int, nullif(run -> 'success_policy', 'null'), run ->> 'definition_key',
                run ->> 'enqueue_sha', (run ->> 'sent_at')::timestamptz,
                CASE WHEN NOT is_later THEN statement_timestamp() END, jsonb_array_length(run -> 'nodes'),
                nullif(run -> 'metadata', 'null'), run ->> 'group_key', deadline, start_at, wake_at,
                (run ->> 'priority')::int,
                CASE WHEN run ->> 'unique_key' IS NOT NULL THEN json_build_array(run ->> 'name', run ->> 'unique_key')::text END,
                run ->> 'release', run ->> 'fingerprint')
        ON CONFLICT DO NOTHING
        RETURNING id
    ), given AS MATERIALIZED (
        -- nodes of a run that starts later stay PENDING: what is READY is looked after. deps_left: of `then` of a batch,
        -- which waits for as many nodes as name it, and names none of them
        SELECT fresh.id AS workflow_id, x.*,
               NOT is_later AND coalesce(x.deps_left, cardinality(x.dependencies)) = 0 AND x.when_index IS NULL AS is_first,
               NOT is_later AND coalesce(x.deps_left, cardinality(x.dependencies)) = 0 AND x.when_index IS NULL
                   AND coalesce(x.kind, 'task') = 'task' AND x.sub_name IS NULL AS is_enqueued,
               CASE WHEN x.own_priority IS TRUE THEN x.priority ELSE coalesce((run ->> 'priority')::int, x.priority) END
                   AS chosen_priority
          FROM fresh CROSS JOIN ROWS FROM (jsonb_to_recordset(run -> 'nodes') AS (
               id text, node_id text, task_name text, args text, kwargs text, queue_name text, priority int,
               dependencies int[], dependents int[], args_from jsonb, ctx_from varchar[], join_type text,
               min_success int, allow_failed boolean, task_options text, max_retries int, good_until timestamptz,
               ttl float8, sub_name text, kind text, task_id text, first_kwargs text, metadata jsonb, group_key text,
               own_priority boolean, signal_name text, when_index int, when_value boolean, decides int[],
               compensate jsonb, deps_left int)) WITH ORDINALITY
               AS x (id, node_id, task_name, args, kwargs, queue_name, priority, dependencies, dependents, args_from,
                     ctx_from, join_type, min_success, allow_failed, task_options, max_retries, good_until, ttl,
                     sub_name, kind, task_id, first_kwargs, metadata, group_key, own_priority, signal_name, when_index,
                     when_value, decides, compensate, deps_left, number)
    ), node AS (
        INSERT INTO @schema@.horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, args, kwargs,
               queue_name, priority, dependencies, dependents, args_from, workflow_ctx_from, join_type, min_success,
               allow_failed_deps, task_options, max_retries, good_until, ttl, kind, sub_workflow_name,
               deps_left, status, task_id, metadata, group_key, signal_name, when_index, when_value, decides, compensate)
        SELECT g.id, g.workflow_id, (g.number - 1)::int, g.node_id, g.task_name, g.args, g.kwargs, g.queue_name,
               g.chosen_priority, g.dependencies, g.dependents, g.args_from, g.ctx_from, g.join_type, g.min_success,
               g.allow_failed, g.task_options, g.max_retries, g.good_until, make_interval(secs => g.ttl),
               coalesce(g.kind, CASE WHEN g.sub_name IS NULL THEN 'task' WHEN g.kwargs::json -> 'map' IS NULL THEN 'workflow' ELSE 'map' END), g.sub_name,
               coalesce(g.deps_left, cardinality(g.dependencies)),
               CASE WHEN g.is_enqueued THEN 'ENQUEUED' WHEN g.is_first THEN 'READY' ELSE 'PENDING' END,
               CASE WHEN g.is_enqueued THEN g.task_id END,
               nullif(g.metadata, 'null'), g.group_key, g.signal_name, g.when_index, g.when_value,
               coalesce(g.decides, '{}'), nullif(g.compensate, 'null')
          FROM given g
    ), task AS (
        INSERT INTO @schema@.horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at,
                                            good_until, max_retries, task_options, is_workflow_task, metadata, group_key)
        SELECT g.task_id, g.task_name, g.queue_name, g.chosen_priority, g.args, coalesce(g.first_kwargs, g.kwargs),
               (run ->> 'sent_at')::timestamptz, statement_timestamp(),
               coalesce(g.good_until, statement_timestamp() + make_interval(secs => g.ttl)), g.max_retries,
               g.task_options, true,
               nullif(coalesce(nullif(g.metadata, 'null'), '{}')
                   || coalesce(nullif(run -> 'metadata', 'null'), '{}')
                   || CASE WHEN run -> 'metadata' ? 'horsies.trace' THEN jsonb_build_object(
                      'horsies.workflow', g.workflow_id, 'horsies.node', g.node_id) ELSE '{}' END, '{}'),
               coalesce(g.group_key, run ->> 'group_key')
          FROM given g WHERE g.is_enqueued
    ), told AS MATERIALIZED (
        SELECT pg_notify('workflow_step', 'w:' || fresh.id) FROM fresh
         WHERE EXISTS (SELECT FROM given g WHERE g.is_first AND NOT g.is_enqueued)
        UNION ALL
        SELECT pg_notify('workflow_step', 'c:' || date_part('epoch', wake_at - statement_timestamp())) FROM fresh
         WHERE wake_at IS NOT NULL
    )
    SELECT fresh.id::text FROM fresh WHERE (SELECT count(*) FROM told) >= 0;
END
$function$
