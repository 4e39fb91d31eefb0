CREATE OR REPLACE FUNCTION @schema@.horsies_start_workflow(run jsonb)
 RETURNS SETOF text
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
    RETURN QUERY WITH fresh AS (
        INSERT INTO @schema@.horsies_workflows (id, name, status, on_error, output_task_index, success_policy,
                                                definition_key, enqueue_sha, sent_at, started_at, nodes_left, metadata, group_key)
        VALUES (run ->> 'id', run ->> 'name', 'RUNNING', run ->> 'on_error', (run ->> 'output')::int,
                nullif(run -> 'success_policy', 'null'), run ->> 'definition_key', run ->> 'enqueue_sha',
                (run ->> 'sent_at')::timestamptz, statement_timestamp(), jsonb_array_length(run -> 'nodes'),
                nullif(run -> 'metadata', 'null'), run ->> 'group_key')
        ON CONFLICT DO NOTHING
        RETURNING id
    ), given AS MATERIALIZED (
        SELECT fresh.id AS workflow_id, x.*, cardinality(x.dependencies) = 0 AS is_first,
               cardinality(x.dependencies) = 0 AND x.sub_name IS NULL AS is_enqueued
          FROM fresh CROSS JOIN ROWS FROM (jsonb_to_recordset(run -> 'nodes') AS (
               id text, node_id text, task_name text, args text, kwargs text, queue_name text, priority int,
               dependencies int[], dependents int[], args_from jsonb, ctx_from varchar[], join_type text,
               min_success int, allow_failed boolean, task_options text, max_retries int, good_until timestamptz,
               ttl float8, sub_name text, kind text, task_id text, first_kwargs text, metadata jsonb, group_key text)) WITH ORDINALITY
               AS x (id, node_id, task_name, args, kwargs, queue_name, priority, dependencies, dependents, args_from,
                     ctx_from, join_type, min_success, allow_failed, task_options, max_retries, good_until, ttl,
                     sub_name, kind, task_id, first_kwargs, metadata, group_key, number)
    ), node AS (
        INSERT INTO @schema@.horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, args, kwargs,
               queue_name, priority, dependencies, dependents, args_from, workflow_ctx_from, join_type, min_success,
               allow_failed_deps, task_options, max_retries, good_until, ttl, kind, sub_workflow_name,
               deps_left, status, task_id, metadata, group_key)
        SELECT g.id, g.workflow_id, (g.number - 1)::int, g.node_id, g.task_name, g.args, g.kwargs, g.queue_name,
               g.priority, g.dependencies, g.dependents, g.args_from, g.ctx_from, g.join_type, g.min_success,
               g.allow_failed, g.task_options, g.max_retries, g.good_until, make_interval(secs => g.ttl),
               coalesce(g.kind, CASE WHEN g.sub_name IS NULL THEN 'task' WHEN g.kwargs::json -> 'map' IS NULL THEN 'workflow' ELSE 'map' END), g.sub_name, cardinality(g.dependencies),
               CASE WHEN g.is_enqueued THEN 'ENQUEUED' WHEN g.is_first THEN 'READY' ELSE 'PENDING' END,
               CASE WHEN g.is_enqueued THEN g.task_id END,
               nullif(g.metadata, 'null'), g.group_key
          FROM given g
    ), task AS (
        INSERT INTO @schema@.horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at,
                                            good_until, max_retries, task_options, is_workflow_task, metadata, group_key)
        SELECT g.task_id, g.task_name, g.queue_name, g.priority, g.args, coalesce(g.first_kwargs, g.kwargs),
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
    )
    SELECT fresh.id::text FROM fresh WHERE (SELECT count(*) FROM told) >= 0;
END
$function$
