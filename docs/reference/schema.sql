-- The horsies schema at revision 0020, as `pg_dump --schema-only` (PostgreSQL 18) prints it.
-- Written by `just schema-dump` for people to read; horsies-migrate is what makes it.

CREATE FUNCTION public.horsies_cancel_tasks(ids text[]) RETURNS TABLE(id text, outcome text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    moment timestamptz;
BEGIN
    PERFORM 1 FROM public.horsies_tasks t
      WHERE t.id = ANY (ids) AND t.status IN ('PENDING', 'CLAIMED', 'RUNNING') ORDER BY t.id FOR UPDATE;
    moment := clock_timestamp();
    -- A worker that holds the claim finds zero rows when it wants to start the task: user code never runs. No worker
    -- ends this task, so the worker that steps the workflow of a node is told to look.
    RETURN QUERY WITH ended AS (
        UPDATE public.horsies_tasks t
           SET status = 'CANCELLED', withdrawn = false, claimed = false, claim_expires_at = NULL, error_code = 'TASK_CANCELLED',
               result = '{"err":{"error_code":"TASK_CANCELLED","message":"cancelled before it started","data":null}}',
               failed_reason = 'cancelled before it started', cancel_requested_at = moment,
               terminal_at = moment, updated_at = moment
         WHERE t.id = ANY (ids) AND t.status IN ('PENDING', 'CLAIMED')
        RETURNING t.id, t.is_workflow_task
    ), told AS MATERIALIZED (
        SELECT pg_notify('workflow_step', 't:' || ended.id) FROM ended WHERE ended.is_workflow_task
    )
    SELECT ended.id::text, 'CANCELLED' FROM ended WHERE (SELECT count(*) FROM told) >= 0;
    -- RUNNING stays RUNNING: only its worker can stop it. It is told at once, and finds the mark if it did not listen.
    RETURN QUERY WITH asked AS (
        UPDATE public.horsies_tasks t
           SET cancel_requested_at = coalesce(t.cancel_requested_at, moment),
               updated_at = moment
         WHERE t.id = ANY (ids) AND t.status = 'RUNNING'
        RETURNING t.id
    ), told AS MATERIALIZED (
        SELECT pg_notify('task_cancel', asked.id) FROM asked
    )
    SELECT asked.id::text, 'REQUESTED' FROM asked WHERE (SELECT count(*) FROM told) >= 0;
END
$$;

CREATE FUNCTION public.horsies_cancel_workflow(workflow_id text) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
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
            SELECT w.id FROM public.horsies_workflows w WHERE w.id = $1
            UNION
            SELECT c.id FROM inside JOIN public.horsies_workflows c ON c.parent_workflow_id = inside.id
        ), locked AS MATERIALIZED (
            SELECT w.id FROM public.horsies_workflows w
             WHERE w.id = ANY (ARRAY(SELECT inside.id FROM inside)) ORDER BY w.depth, w.id FOR NO KEY UPDATE
        )
        SELECT coalesce(array_agg(locked.id::text), '{}') INTO tree FROM locked;
        EXIT WHEN cardinality(tree) = seen;
        seen := cardinality(tree);
    END LOOP;
    SELECT w.status, w.parent_workflow_id INTO root FROM public.horsies_workflows w WHERE w.id = $1;
    IF NOT FOUND OR root.status NOT IN ('PENDING', 'RUNNING', 'PAUSED') THEN
        RETURN false;
    END IF;
    PERFORM public.horsies_stop_workflows(tree, 'CANCELLED', never_started, ended, ended);
    IF root.parent_workflow_id IS NOT NULL THEN
        PERFORM pg_notify('workflow_step', 'w:' || root.parent_workflow_id);
    END IF;
    RETURN true;
END
$_$;

CREATE FUNCTION public.horsies_fall_asleep(queues text[]) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    setting constant text := set_config('lock_timeout', '20ms', true);
BEGIN
    PERFORM pg_advisory_lock_shared(hashtextextended('horsies asleep ' || 'public' || ' ' || q.name, 0)) FROM unnest(queues) AS q (name);
EXCEPTION WHEN lock_not_available THEN
    NULL;
END
$$;

CREATE FUNCTION public.horsies_has_late_task(queues text[], names text[], slower integer) RETURNS boolean
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    latest constant timestamptz := clock_timestamp() - slower * interval '80 ms';
BEGIN
    RETURN EXISTS (
        WITH RECURSIVE found AS (
            SELECT q.name::text AS queue_name, f.priority FROM unnest(queues) AS q (name)
             CROSS JOIN LATERAL (SELECT t.priority FROM public.horsies_tasks t
                                  WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.queue_name = q.name
                                  ORDER BY t.priority LIMIT 1) AS f
             WHERE NOT EXISTS (SELECT FROM public.horsies_queue_state s
                                WHERE s.queue_name = q.name AND s.paused_at IS NOT NULL)
            UNION ALL
            SELECT p.queue_name, f.priority FROM found p
             CROSS JOIN LATERAL (SELECT t.priority FROM public.horsies_tasks t
                                  WHERE t.status = 'PENDING' AND NOT t.withdrawn
                                    AND t.queue_name = p.queue_name AND t.priority >= p.priority + 1
                                  ORDER BY t.priority LIMIT 1) AS f
        )
        SELECT FROM found p CROSS JOIN LATERAL (
            SELECT FROM public.horsies_tasks t
             WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.queue_name = p.queue_name AND t.priority = p.priority
               AND t.enqueued_at <= latest AND t.enqueued_at >= latest - interval '10 seconds'
               AND t.task_name = ANY (names) LIMIT 1) AS late);
END
$$;

CREATE FUNCTION public.horsies_leave_duty(group_key bigint, queues text[], has_lock boolean, only_if_awaited boolean, is_awake boolean) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF has_lock THEN
        PERFORM pg_advisory_unlock(group_key);
        IF only_if_awaited AND pg_try_advisory_lock(group_key) THEN
            RETURN false;
        END IF;
    END IF;
    PERFORM pg_advisory_unlock_shared(CASE WHEN is_awake THEN hashtextextended('horsies awake ' || 'public' || ' ' || q.name, 0)
                                           ELSE hashtextextended('horsies asleep ' || 'public' || ' ' || q.name, 0) END)
       FROM unnest(queues) AS q (name);
    RETURN true;
END
$$;

CREATE FUNCTION public.horsies_notify_sent(queue_name text, task_id text) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF pg_try_advisory_lock(hashtextextended('horsies asleep ' || 'public' || ' ' || queue_name, 0)) AND pg_advisory_unlock(hashtextextended('horsies asleep ' || 'public' || ' ' || queue_name, 0))
        AND NOT (pg_try_advisory_lock(hashtextextended('horsies awake ' || 'public' || ' ' || queue_name, 0)) AND pg_advisory_unlock(hashtextextended('horsies awake ' || 'public' || ' ' || queue_name, 0)))
    THEN
        RETURN false;
    END IF;
    RETURN pg_notify('task_new', task_id) IS NOT NULL AND pg_notify('task_queue_' || queue_name, task_id) IS NOT NULL;
END
$$;

CREATE FUNCTION public.horsies_notify_task_changes() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    first_id text;
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
    ELSIF OLD.status = NEW.status THEN
        RETURN NULL;
    ELSIF NEW.status = 'PENDING' THEN
        told := pg_notify('task_new', NEW.id) IS NULL OR pg_notify('task_queue_' || NEW.queue_name, NEW.id) IS NULL;
    ELSE
        IF TG_NARGS = 0 THEN
            told := pg_notify('task_done', NEW.id) IS NULL
                OR pg_notify('task_done_' || right(NEW.id, 2), NEW.id) IS NULL;
        ELSE
            told := pg_notify('tasks_ended', NEW.claimed_by_worker_id) IS NULL
                OR pg_notify('task_done_' || right(NEW.id, 2), NEW.id) IS NULL;
        END IF;
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION public.horsies_notify_workflow_changes() RETURNS trigger
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    told boolean;
BEGIN
    IF TG_NARGS = 0 THEN
        told := pg_notify('workflow_done', NEW.id) IS NULL
            OR pg_notify('workflow_done_' || right(NEW.id, 2), NEW.id) IS NULL;
    ELSE
        told := pg_notify('workflows_ended', '') IS NULL
            OR pg_notify('workflow_done_' || right(NEW.id, 2), NEW.id) IS NULL;
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION public.horsies_purge_tasks(ids text[]) RETURNS TABLE(id text, terminal_at timestamp with time zone)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY DELETE FROM public.horsies_tasks t
     WHERE t.id = ANY (ids) AND t.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
       AND NOT (t.is_workflow_task AND EXISTS (
               SELECT FROM public.horsies_workflow_tasks n
                 JOIN public.horsies_workflows w ON w.id = n.workflow_id
                 LEFT JOIN public.horsies_workflows r ON r.id = w.root_workflow_id
                WHERE n.task_id = t.id AND (w.completed_at IS NULL OR (r.id IS NOT NULL AND r.completed_at IS NULL))))
    RETURNING t.id::text, t.terminal_at;
END
$$;

CREATE PROCEDURE public.horsies_send_task(IN id text, IN args text, IN kwargs text, IN enqueue_sha character varying, IN task_name character varying, IN queue_name character varying, IN priority integer, IN sent_at timestamp with time zone, IN eta timestamp with time zone, IN delay interval, IN good_until timestamp with time zone, IN ttl interval, IN max_retries integer, IN task_options text, IN metadata jsonb DEFAULT NULL::jsonb)
    LANGUAGE plpgsql
    AS $$
DECLARE
    setting text;
    is_told boolean;
BEGIN
    setting := pg_catalog.set_config('horsies.notify', 'off', true);
    INSERT INTO public.horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, good_until, max_retries, task_options, enqueue_sha, metadata)
    VALUES (id, task_name, queue_name, priority, args, kwargs, sent_at,
            coalesce(eta, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.+) delay),
            coalesce(good_until, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.+) ttl),
            max_retries, task_options, enqueue_sha, metadata);
    COMMIT;
    is_told := public.horsies_notify_sent(queue_name, id);
END
$$;

CREATE PROCEDURE public.horsies_send_tasks(IN ids text[], IN args text[], IN kwargs text[], IN enqueue_shas text[], IN task_name character varying, IN queue_name character varying, IN priority integer, IN sent_at timestamp with time zone, IN eta timestamp with time zone, IN delay interval, IN good_until timestamp with time zone, IN ttl interval, IN max_retries integer, IN task_options text, IN metadata jsonb DEFAULT NULL::jsonb)
    LANGUAGE plpgsql
    AS $$
DECLARE
    setting text;
    is_told boolean;
BEGIN
    setting := pg_catalog.set_config('horsies.notify', 'off', true);
    INSERT INTO public.horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, good_until, max_retries, task_options, enqueue_sha, metadata)
    SELECT x.id, task_name, queue_name, priority, x.args, x.kwargs, sent_at,
           coalesce(eta, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.+) delay),
           coalesce(good_until, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.+) ttl),
           max_retries, task_options, x.enqueue_sha, metadata
      FROM ROWS FROM (pg_catalog.unnest(ids), pg_catalog.unnest(args), pg_catalog.unnest(kwargs),
                      pg_catalog.unnest(enqueue_shas)) AS x (id, args, kwargs, enqueue_sha);
    COMMIT;
    is_told := public.horsies_notify_sent(queue_name, ids[1]);
END
$$;

CREATE FUNCTION public.horsies_set_awake(queues text[], is_awake boolean) RETURNS void
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    IF is_awake THEN
        PERFORM pg_try_advisory_lock_shared(hashtextextended('horsies awake ' || 'public' || ' ' || q.name, 0)) FROM unnest(queues) AS q (name);
        PERFORM pg_advisory_unlock_shared(hashtextextended('horsies asleep ' || 'public' || ' ' || q.name, 0)) FROM unnest(queues) AS q (name);
    ELSE
        PERFORM public.horsies_fall_asleep(queues);
        PERFORM pg_advisory_unlock_shared(hashtextextended('horsies awake ' || 'public' || ' ' || q.name, 0)) FROM unnest(queues) AS q (name);
    END IF;
END
$$;

CREATE FUNCTION public.horsies_set_public_done(enabled boolean) RETURNS void
    LANGUAGE plpgsql STRICT
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
    definition text;
BEGIN
    FOR definition IN
        SELECT pg_get_triggerdef(g.oid) FROM pg_trigger g
          JOIN pg_class t ON t.oid = g.tgrelid JOIN pg_namespace s ON s.oid = t.relnamespace
         WHERE s.nspname = 'public' AND (t.relname, g.tgname) IN (
               ('horsies_tasks', 'horsies_task_notify_update_trigger'),
               ('horsies_workflows', 'horsies_workflow_notify_trigger'))
           AND enabled = (g.tgnargs > 0)
         ORDER BY t.relname
    LOOP
        EXECUTE regexp_replace(
            regexp_replace(definition, '^CREATE TRIGGER', 'CREATE OR REPLACE TRIGGER'),
            '[(][^()]*[)]$', CASE WHEN enabled THEN '()' ELSE '(''without_ids'')' END);
    END LOOP;
END
$_$;

CREATE FUNCTION public.horsies_start_workflow(run jsonb) RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RETURN QUERY WITH fresh AS (
        INSERT INTO public.horsies_workflows (id, name, status, on_error, output_task_index, success_policy,
                                                definition_key, enqueue_sha, sent_at, started_at, nodes_left, metadata)
        VALUES (run ->> 'id', run ->> 'name', 'RUNNING', run ->> 'on_error', (run ->> 'output')::int,
                nullif(run -> 'success_policy', 'null'), run ->> 'definition_key', run ->> 'enqueue_sha',
                (run ->> 'sent_at')::timestamptz, statement_timestamp(), jsonb_array_length(run -> 'nodes'),
                nullif(run -> 'metadata', 'null'))
        ON CONFLICT DO NOTHING
        RETURNING id
    ), given AS MATERIALIZED (
        SELECT fresh.id AS workflow_id, x.*, cardinality(x.dependencies) = 0 AS is_first,
               cardinality(x.dependencies) = 0 AND x.sub_name IS NULL AS is_enqueued
          FROM fresh CROSS JOIN ROWS FROM (jsonb_to_recordset(run -> 'nodes') AS (
               id text, node_id text, task_name text, args text, kwargs text, queue_name text, priority int,
               dependencies int[], dependents int[], args_from jsonb, ctx_from varchar[], join_type text,
               min_success int, allow_failed boolean, task_options text, max_retries int, good_until timestamptz,
               ttl float8, sub_name text, kind text, task_id text, first_kwargs text, metadata jsonb)) WITH ORDINALITY
               AS x (id, node_id, task_name, args, kwargs, queue_name, priority, dependencies, dependents, args_from,
                     ctx_from, join_type, min_success, allow_failed, task_options, max_retries, good_until, ttl,
                     sub_name, kind, task_id, first_kwargs, metadata, number)
    ), node AS (
        INSERT INTO public.horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, args, kwargs,
               queue_name, priority, dependencies, dependents, args_from, workflow_ctx_from, join_type, min_success,
               allow_failed_deps, task_options, max_retries, good_until, ttl, kind, sub_workflow_name,
               deps_left, status, task_id, metadata)
        SELECT g.id, g.workflow_id, (g.number - 1)::int, g.node_id, g.task_name, g.args, g.kwargs, g.queue_name,
               g.priority, g.dependencies, g.dependents, g.args_from, g.ctx_from, g.join_type, g.min_success,
               g.allow_failed, g.task_options, g.max_retries, g.good_until, make_interval(secs => g.ttl),
               coalesce(g.kind, CASE WHEN g.sub_name IS NULL THEN 'task' WHEN g.kwargs::json -> 'map' IS NULL THEN 'workflow' ELSE 'map' END), g.sub_name, cardinality(g.dependencies),
               CASE WHEN g.is_enqueued THEN 'ENQUEUED' WHEN g.is_first THEN 'READY' ELSE 'PENDING' END,
               CASE WHEN g.is_enqueued THEN g.task_id END,
               nullif(g.metadata, 'null')
          FROM given g
    ), task AS (
        INSERT INTO public.horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at,
                                            good_until, max_retries, task_options, is_workflow_task, metadata)
        SELECT g.task_id, g.task_name, g.queue_name, g.priority, g.args, coalesce(g.first_kwargs, g.kwargs),
               (run ->> 'sent_at')::timestamptz, statement_timestamp(),
               coalesce(g.good_until, statement_timestamp() + make_interval(secs => g.ttl)), g.max_retries,
               g.task_options, true,
               nullif(coalesce(nullif(g.metadata, 'null'), '{}')
                   || coalesce(nullif(run -> 'metadata', 'null'), '{}')
                   || CASE WHEN run -> 'metadata' ? 'horsies.trace' THEN jsonb_build_object(
                      'horsies.workflow', g.workflow_id, 'horsies.node', g.node_id) ELSE '{}' END, '{}')
          FROM given g WHERE g.is_enqueued
    ), told AS MATERIALIZED (
        SELECT pg_notify('workflow_step', 'w:' || fresh.id) FROM fresh
         WHERE EXISTS (SELECT FROM given g WHERE g.is_first AND NOT g.is_enqueued)
    )
    SELECT fresh.id::text FROM fresh WHERE (SELECT count(*) FROM told) >= 0;
END
$$;

CREATE FUNCTION public.horsies_stop_workflows(ids text[], new_status text, task_error text, node_error text, run_error text) RETURNS SETOF text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    moment constant timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY WITH run AS (
        UPDATE public.horsies_workflows w
           SET error = run_error, completed_at = moment, updated_at = moment,
               nodes_left = 0, status = new_status
         WHERE w.id = ANY (ids) AND w.status IN ('PENDING', 'RUNNING', 'PAUSED')
        RETURNING w.id
    ), live AS MATERIALIZED (
        SELECT n.ctid AS tid, n.task_id FROM run
          JOIN public.horsies_workflow_tasks n ON n.workflow_id = run.id
           AND n.status IN ('PENDING', 'READY', 'ENQUEUED', 'RUNNING')
    ), task AS MATERIALIZED (
        SELECT t.id, live.tid FROM live JOIN public.horsies_tasks t ON t.id = live.task_id
         WHERE t.status IN ('PENDING', 'CLAIMED', 'RUNNING') ORDER BY t.id FOR UPDATE OF t
    ), stopped AS (
        UPDATE public.horsies_tasks t
           SET withdrawn = false, claimed = false, claim_expires_at = CASE WHEN t.status = 'RUNNING' THEN t.claim_expires_at END,
               status = CASE WHEN t.status = 'RUNNING' THEN t.status ELSE 'CANCELLED' END,
               result = CASE WHEN t.status = 'RUNNING' THEN t.result ELSE task_error END,
               error_code = CASE WHEN t.status = 'RUNNING' THEN t.error_code ELSE 'TASK_CANCELLED' END,
               terminal_at = CASE WHEN t.status <> 'RUNNING' THEN moment END,
               cancel_requested_at = moment, updated_at = moment
          FROM task WHERE t.id = task.id
        RETURNING t.id, t.status, task.tid
    ), unstarted AS (
        -- by what became of the task, not by what the snapshot says of it: it may have been started meanwhile
        SELECT live.tid FROM live WHERE live.task_id IS NULL
        UNION ALL
        SELECT stopped.tid FROM stopped WHERE stopped.status = 'CANCELLED'
    ), node AS (
        UPDATE public.horsies_workflow_tasks n
           SET error = node_error, completed_at = moment, updated_at = moment,
               status = CASE WHEN n.kind <> 'task' AND n.status = 'RUNNING' THEN 'FAILED' ELSE 'SKIPPED' END
          FROM unstarted u WHERE n.ctid = u.tid
    ), told AS MATERIALIZED (
        SELECT pg_notify('task_cancel', stopped.id) FROM stopped WHERE stopped.status = 'RUNNING'
    ), stepped AS MATERIALIZED (
        SELECT run.id, pg_notify('workflow_step', 'w:' || run.id) FROM run
    )
    SELECT stepped.id::text FROM stepped WHERE (SELECT count(*) FROM told) >= 0;
END
$$;

CREATE FUNCTION public.horsies_task_is_sound(task_name character varying, queue_name character varying, unique_key character varying, priority integer, status character varying, claimed boolean, claimed_by_worker_id character varying, claimed_at timestamp with time zone, claim_expires_at timestamp with time zone, claim_generation integer, started_at timestamp with time zone, good_until timestamp with time zone, worker_pid integer, finalizing_at timestamp with time zone, completed_at timestamp with time zone, failed_at timestamp with time zone, terminal_at timestamp with time zone, result text, error_code text, retry_count integer, max_retries integer, manual_retries integer, sent_at timestamp with time zone, enqueued_at timestamp with time zone, cancel_requested_at timestamp with time zone, next_retry_at timestamp with time zone, created_at timestamp with time zone, updated_at timestamp with time zone, keep_until timestamp with time zone, metadata jsonb) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
    sound boolean;
    rule text;
BEGIN
    -- A branch for each status: an expression is made ready once per transaction, and only those that are reached. New
    -- rows come first, for they come one by one.
    IF status = 'PENDING' THEN
        sound := NOT claimed AND claimed_by_worker_id IS NULL AND claimed_at IS NULL AND claim_expires_at IS NULL
            AND started_at IS NULL AND finalizing_at IS NULL
            AND completed_at IS NULL AND failed_at IS NULL AND terminal_at IS NULL
            AND result IS NULL AND error_code IS NULL AND queue_name ~ '^[A-Za-z0-9_.-]{1,52}$';
    ELSIF status = 'RUNNING' THEN
        sound := NOT claimed AND claimed_by_worker_id IS NOT NULL AND claimed_at IS NOT NULL
            AND claim_expires_at IS NULL AND started_at IS NOT NULL
            AND completed_at IS NULL AND failed_at IS NULL AND terminal_at IS NULL
            AND (result IS NULL AND error_code IS NULL OR finalizing_at IS NOT NULL);
    ELSIF status = 'COMPLETED' THEN
        sound := NOT claimed AND completed_at IS NOT NULL AND terminal_at IS NOT NULL AND result IS NOT NULL
            AND failed_at IS NULL AND error_code IS NULL;
    ELSIF status = 'CLAIMED' THEN
        sound := claimed AND claimed_by_worker_id IS NOT NULL AND claimed_at IS NOT NULL
            AND claim_expires_at IS NOT NULL AND started_at IS NULL
            AND completed_at IS NULL AND failed_at IS NULL AND terminal_at IS NULL
            AND result IS NULL AND error_code IS NULL;
    ELSIF status IN ('FAILED', 'EXPIRED') THEN
        sound := NOT claimed AND failed_at IS NOT NULL AND terminal_at IS NOT NULL AND result IS NOT NULL
            AND error_code IS NOT NULL AND completed_at IS NULL;
    ELSIF status = 'CANCELLED' THEN
        sound := NOT claimed AND terminal_at IS NOT NULL AND result IS NOT NULL AND completed_at IS NULL;
    END IF;
    IF sound AND priority BETWEEN 1 AND 100
        AND retry_count BETWEEN 0 AND max_retries AND max_retries <= 10000
        AND manual_retries >= 0 AND claim_generation >= 0
        AND (metadata IS NULL OR jsonb_typeof(metadata) = 'object' AND pg_column_size(metadata) <= 65536)
        AND least(sent_at, enqueued_at, claimed_at, claim_expires_at, started_at, completed_at, failed_at, terminal_at, cancel_requested_at, good_until, next_retry_at, finalizing_at, created_at, updated_at, keep_until)
            >= timestamptz '1970-01-01 00:00:00+00'
        AND greatest(sent_at, enqueued_at, claimed_at, claim_expires_at, started_at, completed_at, failed_at, terminal_at, cancel_requested_at, good_until, next_retry_at, finalizing_at, created_at, updated_at, keep_until)
            <= timestamptz '9000-01-01 00:00:00+00'
        AND task_name <> '' AND (unique_key IS NULL OR unique_key <> '')
        AND (good_until IS NULL OR started_at IS NULL OR started_at < good_until)
    THEN
        RETURN sound;
    END IF;
    rule := CASE
        WHEN task_name = '' OR unique_key = '' THEN 'names'
        WHEN status = 'PENDING' AND queue_name !~ '^[A-Za-z0-9_.-]{1,52}$' THEN 'queue_name'
        WHEN priority NOT BETWEEN 1 AND 100 THEN 'priority'
        WHEN retry_count NOT BETWEEN 0 AND max_retries OR max_retries > 10000 OR manual_retries < 0
            OR claim_generation < 0 THEN 'retries'
        WHEN started_at >= good_until THEN 'good_until'
        WHEN NOT (least(sent_at, enqueued_at, claimed_at, claim_expires_at, started_at, completed_at, failed_at, terminal_at, cancel_requested_at, good_until, next_retry_at, finalizing_at, created_at, updated_at, keep_until)
            >= timestamptz '1970-01-01 00:00:00+00'
        AND greatest(sent_at, enqueued_at, claimed_at, claim_expires_at, started_at, completed_at, failed_at, terminal_at, cancel_requested_at, good_until, next_retry_at, finalizing_at, created_at, updated_at, keep_until)
            <= timestamptz '9000-01-01 00:00:00+00') THEN 'time_range'
        WHEN NOT (metadata IS NULL OR jsonb_typeof(metadata) = 'object' AND pg_column_size(metadata) <= 65536) THEN 'metadata'
        ELSE 'state' END;
    RAISE check_violation USING
        MESSAGE = 'a row of horsies_tasks (task ' || quote_literal(task_name) || ', status ' || quote_literal(status)
            || ') breaks the rule ' || quote_literal(rule),
        HINT = 'The rules are in the function horsies_task_is_sound.',
        TABLE = 'horsies_tasks', CONSTRAINT = 'ck_horsies_tasks_' || rule;
END
$_$;

CREATE PROCEDURE public.horsies_wait_for_duty(IN group_key bigint, IN place integer, IN channels text[], IN queues text[], IN names text[], IN slower integer, IN patience interval, INOUT is_backup boolean, INOUT answer text)
    LANGUAGE plpgsql
    AS $$
DECLARE
    give_up constant timestamptz := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) patience;
    place_key constant bigint := group_key OPERATOR(pg_catalog.+) place;
    next_look timestamptz := pg_catalog.clock_timestamp();
    began timestamptz;
    setting text;
    channel text;
BEGIN
    answer := '';
    UNLISTEN *;
    COMMIT;
    LOOP
        setting := pg_catalog.set_config('lock_timeout', CASE WHEN is_backup THEN '150ms' ELSE '900ms' END, true);
        BEGIN
            IF is_backup THEN
                PERFORM pg_catalog.pg_advisory_lock(group_key);
                answer := 'duty';
            ELSIF pg_catalog.pg_try_advisory_lock(group_key) THEN
                answer := 'duty';
            ELSE
                PERFORM pg_catalog.pg_advisory_lock(place_key);
                is_backup := true;
            END IF;
        EXCEPTION WHEN lock_not_available THEN
            NULL;
        END;
        IF answer OPERATOR(pg_catalog.=) 'duty' THEN
            IF is_backup THEN
                is_backup := NOT pg_catalog.pg_advisory_unlock(place_key);
            END IF;
        ELSE
            began := pg_catalog.clock_timestamp();
            IF began OPERATOR(pg_catalog.>=) next_look THEN
                IF public.horsies_has_late_task(queues, names, slower) THEN
                    answer := 'late';
                END IF;
                -- a look that must pass many dead entries gets a twentieth of the time
                next_look := pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) (20 OPERATOR(pg_catalog.*)
                    (pg_catalog.clock_timestamp() OPERATOR(pg_catalog.-) began));
            END IF;
        END IF;
        IF answer OPERATOR(pg_catalog.<>) '' THEN
            FOREACH channel IN ARRAY channels LOOP
                EXECUTE pg_catalog.concat('LISTEN ', pg_catalog.quote_ident(channel));
            END LOOP;
            PERFORM public.horsies_fall_asleep(queues);
        END IF;
        COMMIT;
        EXIT WHEN answer OPERATOR(pg_catalog.<>) '' OR pg_catalog.clock_timestamp() OPERATOR(pg_catalog.>=) give_up;
    END LOOP;
END
$$;

CREATE TABLE public.horsies_alembic_version (
    version_num character varying(32) NOT NULL,
    breaking character varying(32)
);

CREATE TABLE public.horsies_heartbeats (
    id bigint NOT NULL,
    task_id character varying(36) NOT NULL,
    sender_id character varying(255) NOT NULL,
    role character varying(20) NOT NULL,
    sent_at timestamp with time zone DEFAULT now() NOT NULL,
    hostname character varying(255),
    pid integer,
    CONSTRAINT ck_horsies_heartbeats_role CHECK (((role)::text = ANY ((ARRAY['claimer'::character varying, 'runner'::character varying])::text[]))),
    CONSTRAINT ck_horsies_heartbeats_time_range CHECK (((LEAST(sent_at) >= to_timestamp((0)::double precision)) AND (GREATEST(sent_at) <= to_timestamp(('221845392000'::bigint)::double precision))))
)
WITH (autovacuum_vacuum_scale_factor='0.05');

ALTER TABLE public.horsies_heartbeats ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.horsies_heartbeats_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.horsies_queue_state (
    queue_name character varying(100) NOT NULL,
    paused_at timestamp with time zone,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT ck_horsies_queue_state_queue_name CHECK (((queue_name)::text ~ '^[A-Za-z0-9_.-]{1,52}$'::text)),
    CONSTRAINT ck_horsies_queue_state_time_range CHECK (((LEAST(paused_at, updated_at) >= to_timestamp((0)::double precision)) AND (GREATEST(paused_at, updated_at) <= to_timestamp(('221845392000'::bigint)::double precision))))
);

CREATE TABLE public.horsies_schedule_state (
    schedule_name character varying(255) NOT NULL,
    last_run_at timestamp with time zone,
    next_run_at timestamp with time zone,
    last_task_id character varying(36),
    run_count integer DEFAULT 0 NOT NULL,
    config_hash character varying(64),
    paused_at timestamp with time zone,
    run_requested_at timestamp with time zone,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT ck_horsies_schedule_state_runs CHECK (((run_count = 0) OR ((run_count > 0) AND (last_run_at IS NOT NULL) AND (last_task_id IS NOT NULL)))),
    CONSTRAINT ck_horsies_schedule_state_time_range CHECK (((LEAST(last_run_at, next_run_at, paused_at, run_requested_at, updated_at) >= to_timestamp((0)::double precision)) AND (GREATEST(last_run_at, next_run_at, paused_at, run_requested_at, updated_at) <= to_timestamp(('221845392000'::bigint)::double precision))))
);

CREATE TABLE public.horsies_task_attempts (
    id bigint NOT NULL,
    task_id character varying(36) NOT NULL,
    attempt integer NOT NULL,
    outcome character varying(32) NOT NULL,
    will_retry boolean DEFAULT false NOT NULL,
    started_at timestamp with time zone NOT NULL,
    finished_at timestamp with time zone NOT NULL,
    error_code text,
    error_message text,
    failed_reason text,
    worker_id character varying(255),
    worker_hostname character varying(255),
    worker_pid integer,
    worker_process_name character varying(255),
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT ck_horsies_task_attempts_sound CHECK (((attempt >= 1) AND (finished_at >= started_at) AND
CASE
    WHEN (error_code IS NULL) THEN (((outcome)::text = 'COMPLETED'::text) AND (NOT will_retry))
    ELSE (((outcome)::text = 'FAILED'::text) OR ((outcome)::text = 'WORKER_FAILURE'::text))
END AND (LEAST(started_at, finished_at, created_at) >= to_timestamp((0)::double precision)) AND (GREATEST(started_at, finished_at, created_at) <= to_timestamp(('221845392000'::bigint)::double precision))))
);

ALTER TABLE public.horsies_task_attempts ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.horsies_task_attempts_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.horsies_task_names (
    task_name character varying(255) NOT NULL,
    first_known_at timestamp with time zone,
    last_known_at timestamp with time zone,
    missing_since timestamp with time zone,
    CONSTRAINT ck_horsies_task_names_time_range CHECK (((LEAST(first_known_at, last_known_at, missing_since) >= to_timestamp((0)::double precision)) AND (GREATEST(first_known_at, last_known_at, missing_since) <= to_timestamp(('221845392000'::bigint)::double precision)))),
    CONSTRAINT ck_horsies_task_names_times CHECK ((((first_known_at IS NULL) = (last_known_at IS NULL)) AND (COALESCE(first_known_at, missing_since) IS NOT NULL)))
)
WITH (fillfactor='50');

CREATE TABLE public.horsies_task_sets (
    sha character varying(64) NOT NULL,
    names text[] NOT NULL,
    recorded_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    CONSTRAINT ck_horsies_task_sets_time_range CHECK (((LEAST(recorded_at) >= to_timestamp((0)::double precision)) AND (GREATEST(recorded_at) <= to_timestamp(('221845392000'::bigint)::double precision))))
);

CREATE TABLE public.horsies_tasks (
    id character varying(36) NOT NULL,
    task_name character varying(255) NOT NULL,
    queue_name character varying(100) DEFAULT 'default'::character varying NOT NULL,
    priority integer DEFAULT 100 NOT NULL,
    args text,
    kwargs text,
    status character varying(20) DEFAULT 'PENDING'::character varying NOT NULL,
    sent_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    enqueued_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    is_workflow_task boolean DEFAULT false NOT NULL,
    claimed boolean DEFAULT false NOT NULL,
    claimed_at timestamp with time zone,
    claimed_by_worker_id character varying(255),
    claim_expires_at timestamp with time zone,
    claim_generation integer DEFAULT 0 NOT NULL,
    started_at timestamp with time zone,
    completed_at timestamp with time zone,
    failed_at timestamp with time zone,
    terminal_at timestamp with time zone,
    cancel_requested_at timestamp with time zone,
    result text,
    failed_reason text,
    error_code text,
    good_until timestamp with time zone,
    retry_count integer DEFAULT 0 NOT NULL,
    max_retries integer DEFAULT 0 NOT NULL,
    manual_retries integer DEFAULT 0 NOT NULL,
    next_retry_at timestamp with time zone,
    task_options text,
    unique_key character varying(255),
    progress jsonb,
    worker_pid integer,
    worker_hostname character varying(255),
    worker_process_name character varying(255),
    finalizing_at timestamp with time zone,
    finalizing_by_worker_id text,
    enqueue_sha character varying(64),
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    former_node_id character varying(36),
    withdrawn boolean DEFAULT false NOT NULL,
    metadata jsonb,
    group_key character varying(255),
    keep_until timestamp with time zone,
    snoozes smallint DEFAULT 0 NOT NULL,
    crash_count smallint DEFAULT 0 NOT NULL,
    store_result boolean DEFAULT true NOT NULL,
    CONSTRAINT ck_horsies_tasks_sound CHECK (public.horsies_task_is_sound(task_name, queue_name, unique_key, priority, status, claimed, claimed_by_worker_id, claimed_at, claim_expires_at, claim_generation, started_at, good_until, worker_pid, finalizing_at, completed_at, failed_at, terminal_at, result, error_code, retry_count, max_retries, manual_retries, sent_at, enqueued_at, cancel_requested_at, next_retry_at, created_at, updated_at, keep_until, metadata))
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='1000', autovacuum_analyze_scale_factor='0.02');

CREATE TABLE public.horsies_worker_instances (
    worker_id character varying(255) NOT NULL,
    lock_key bigint,
    backend_pid integer,
    period_ms integer NOT NULL,
    beats bigint DEFAULT 0 NOT NULL,
    started_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    beat_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    stopped_at timestamp with time zone,
    judged_dead_at timestamp with time zone,
    judged_by character varying(255),
    recovered_at timestamp with time zone,
    names_sha character varying(64),
    queues text[],
    CONSTRAINT ck_horsies_worker_instances_period CHECK (((period_ms >= 1) AND (period_ms <= 3600000))),
    CONSTRAINT ck_horsies_worker_instances_time_range CHECK (((LEAST(started_at, beat_at, stopped_at, judged_dead_at, recovered_at) >= to_timestamp((0)::double precision)) AND (GREATEST(started_at, beat_at, stopped_at, judged_dead_at, recovered_at) <= to_timestamp(('221845392000'::bigint)::double precision)))),
    CONSTRAINT ck_horsies_worker_instances_verdict CHECK ((((judged_dead_at IS NULL) = (judged_by IS NULL)) AND ((recovered_at IS NULL) OR (judged_dead_at IS NOT NULL))))
)
WITH (fillfactor='50');

CREATE TABLE public.horsies_worker_states (
    id bigint NOT NULL,
    worker_id character varying(255) NOT NULL,
    snapshot_at timestamp with time zone DEFAULT now() NOT NULL,
    hostname character varying(255) NOT NULL,
    pid integer NOT NULL,
    processes integer NOT NULL,
    queues character varying[] DEFAULT '{}'::character varying[] NOT NULL,
    tasks_running integer DEFAULT 0 NOT NULL,
    tasks_claimed integer DEFAULT 0 NOT NULL,
    memory_usage_mb double precision,
    children_memory_mb double precision,
    cpu_percent double precision,
    memory_percent double precision,
    max_claim_batch integer,
    max_claim_per_worker integer,
    cluster_wide_cap integer,
    queue_priorities jsonb,
    queue_max_concurrency jsonb,
    recovery_config jsonb,
    worker_started_at timestamp with time zone NOT NULL,
    CONSTRAINT ck_horsies_worker_states_counts CHECK (((processes >= 0) AND (tasks_running >= 0) AND (tasks_claimed >= 0))),
    CONSTRAINT ck_horsies_worker_states_time_range CHECK (((LEAST(snapshot_at, worker_started_at) >= to_timestamp((0)::double precision)) AND (GREATEST(snapshot_at, worker_started_at) <= to_timestamp(('221845392000'::bigint)::double precision))))
);

ALTER TABLE public.horsies_worker_states ALTER COLUMN id ADD GENERATED BY DEFAULT AS IDENTITY (
    SEQUENCE NAME public.horsies_worker_states_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);

CREATE TABLE public.horsies_workflow_tasks (
    id character varying(36) NOT NULL,
    workflow_id character varying(36) NOT NULL,
    task_index integer NOT NULL,
    node_id character varying(255) NOT NULL,
    task_name character varying(255) NOT NULL,
    kwargs text,
    queue_name character varying(100) DEFAULT 'default'::character varying NOT NULL,
    priority integer DEFAULT 100 NOT NULL,
    dependencies integer[] DEFAULT '{}'::integer[] NOT NULL,
    args_from jsonb,
    workflow_ctx_from character varying[],
    join_type character varying(20) DEFAULT 'all'::character varying NOT NULL,
    min_success integer,
    allow_failed_deps boolean DEFAULT false NOT NULL,
    task_options text,
    status character varying(20) DEFAULT 'PENDING'::character varying NOT NULL,
    task_id character varying(36),
    sub_workflow_id character varying(36),
    sub_workflow_name character varying(255),
    result text,
    error text,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    started_at timestamp with time zone,
    completed_at timestamp with time zone,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    args text,
    max_retries integer DEFAULT 0 NOT NULL,
    good_until timestamp with time zone,
    ttl interval,
    dependents integer[] DEFAULT '{}'::integer[] NOT NULL,
    deps_left integer DEFAULT 0 NOT NULL,
    deps_ok integer DEFAULT 0 NOT NULL,
    kind character varying(20) DEFAULT 'task'::character varying NOT NULL,
    metadata jsonb,
    CONSTRAINT ck_horsies_workflow_tasks_graph CHECK (((task_index >= 0) AND (task_index <> ALL (dependencies)))),
    CONSTRAINT ck_horsies_workflow_tasks_join CHECK ((((join_type)::text = ANY ((ARRAY['all'::character varying, 'any'::character varying, 'quorum'::character varying])::text[])) AND (((join_type)::text = 'quorum'::text) = (min_success IS NOT NULL)) AND (min_success >= 1))),
    CONSTRAINT ck_horsies_workflow_tasks_kind CHECK (((kind)::text = ANY ((ARRAY['task'::character varying, 'workflow'::character varying, 'map'::character varying])::text[]))),
    CONSTRAINT ck_horsies_workflow_tasks_priority CHECK (((priority >= 1) AND (priority <= 100))),
    CONSTRAINT ck_horsies_workflow_tasks_queue_name CHECK (((queue_name)::text ~ '^[A-Za-z0-9_.-]{1,52}$'::text)),
    CONSTRAINT ck_horsies_workflow_tasks_status CHECK (((status)::text = ANY ((ARRAY['PENDING'::character varying, 'READY'::character varying, 'ENQUEUED'::character varying, 'RUNNING'::character varying, 'COMPLETED'::character varying, 'FAILED'::character varying, 'SKIPPED'::character varying])::text[]))),
    CONSTRAINT ck_horsies_workflow_tasks_time_range CHECK (((LEAST(created_at, started_at, completed_at, updated_at, good_until) >= to_timestamp((0)::double precision)) AND (GREATEST(created_at, started_at, completed_at, updated_at, good_until) <= to_timestamp(('221845392000'::bigint)::double precision)) AND ((ttl >= make_interval()) AND (ttl <= make_interval(years => 1000)))))
);

CREATE TABLE public.horsies_workflows (
    id character varying(36) NOT NULL,
    name character varying(255) NOT NULL,
    status character varying(20) DEFAULT 'PENDING'::character varying NOT NULL,
    on_error character varying(20) DEFAULT 'fail'::character varying NOT NULL,
    output_task_index integer,
    success_policy jsonb,
    result text,
    error text,
    definition_key character varying(255),
    parent_workflow_id character varying(36),
    parent_task_index integer,
    root_workflow_id character varying(36),
    depth integer DEFAULT 0 NOT NULL,
    enqueue_sha character varying(64),
    sent_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    created_at timestamp with time zone DEFAULT now() NOT NULL,
    started_at timestamp with time zone,
    completed_at timestamp with time zone,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    nodes_left integer DEFAULT 0 NOT NULL,
    paused_inside boolean DEFAULT false NOT NULL,
    metadata jsonb,
    CONSTRAINT ck_horsies_workflows_completed_at CHECK (((completed_at IS NOT NULL) = ((status)::text = ANY ((ARRAY['COMPLETED'::character varying, 'FAILED'::character varying, 'CANCELLED'::character varying])::text[])))),
    CONSTRAINT ck_horsies_workflows_metadata CHECK (((metadata IS NULL) OR ((jsonb_typeof(metadata) = 'object'::text) AND (pg_column_size(metadata) <= 65536)))),
    CONSTRAINT ck_horsies_workflows_on_error CHECK (((on_error)::text = ANY ((ARRAY['fail'::character varying, 'pause'::character varying])::text[]))),
    CONSTRAINT ck_horsies_workflows_parent CHECK ((((parent_workflow_id IS NULL) = (parent_task_index IS NULL)) AND ((parent_workflow_id IS NULL) = (depth = 0)) AND (depth >= 0))),
    CONSTRAINT ck_horsies_workflows_status CHECK (((status)::text = ANY ((ARRAY['PENDING'::character varying, 'RUNNING'::character varying, 'PAUSED'::character varying, 'COMPLETED'::character varying, 'FAILED'::character varying, 'CANCELLED'::character varying])::text[]))),
    CONSTRAINT ck_horsies_workflows_time_range CHECK (((LEAST(sent_at, created_at, started_at, completed_at, updated_at) >= to_timestamp((0)::double precision)) AND (GREATEST(sent_at, created_at, started_at, completed_at, updated_at) <= to_timestamp(('221845392000'::bigint)::double precision))))
);

ALTER TABLE ONLY public.horsies_alembic_version
    ADD CONSTRAINT horsies_alembic_version_pkc PRIMARY KEY (version_num);

ALTER TABLE ONLY public.horsies_heartbeats
    ADD CONSTRAINT pk_horsies_heartbeats PRIMARY KEY (id);

ALTER TABLE ONLY public.horsies_queue_state
    ADD CONSTRAINT pk_horsies_queue_state PRIMARY KEY (queue_name);

ALTER TABLE ONLY public.horsies_schedule_state
    ADD CONSTRAINT pk_horsies_schedule_state PRIMARY KEY (schedule_name);

ALTER TABLE ONLY public.horsies_task_attempts
    ADD CONSTRAINT pk_horsies_task_attempts PRIMARY KEY (id);

ALTER TABLE ONLY public.horsies_task_names
    ADD CONSTRAINT pk_horsies_task_names PRIMARY KEY (task_name);

ALTER TABLE ONLY public.horsies_task_sets
    ADD CONSTRAINT pk_horsies_task_sets PRIMARY KEY (sha);

ALTER TABLE ONLY public.horsies_tasks
    ADD CONSTRAINT pk_horsies_tasks PRIMARY KEY (id);

ALTER TABLE ONLY public.horsies_worker_instances
    ADD CONSTRAINT pk_horsies_worker_instances PRIMARY KEY (worker_id);

ALTER TABLE ONLY public.horsies_worker_states
    ADD CONSTRAINT pk_horsies_worker_states PRIMARY KEY (id);

ALTER TABLE ONLY public.horsies_workflow_tasks
    ADD CONSTRAINT pk_horsies_workflow_tasks PRIMARY KEY (id);

ALTER TABLE ONLY public.horsies_workflows
    ADD CONSTRAINT pk_horsies_workflows PRIMARY KEY (id);

ALTER TABLE ONLY public.horsies_task_attempts
    ADD CONSTRAINT uq_horsies_task_attempts_task_id_attempt UNIQUE (task_id, attempt);

ALTER TABLE ONLY public.horsies_workflow_tasks
    ADD CONSTRAINT uq_horsies_workflow_tasks_workflow_id_node_id UNIQUE (workflow_id, node_id);

ALTER TABLE ONLY public.horsies_workflow_tasks
    ADD CONSTRAINT uq_horsies_workflow_tasks_workflow_id_task_index UNIQUE (workflow_id, task_index);

CREATE INDEX ix_horsies_heartbeats_task ON public.horsies_heartbeats USING btree (task_id, role, sent_at DESC);

CREATE INDEX ix_horsies_task_attempts_error_code ON public.horsies_task_attempts USING btree (error_code) WHERE (error_code IS NOT NULL);

CREATE INDEX ix_horsies_task_attempts_finished_at ON public.horsies_task_attempts USING btree (finished_at DESC);

CREATE INDEX ix_horsies_task_names_missing ON public.horsies_task_names USING btree (missing_since) WHERE (missing_since IS NOT NULL);

CREATE INDEX ix_horsies_tasks_claim ON public.horsies_tasks USING btree (queue_name, priority, enqueued_at, id) WHERE (((status)::text = 'PENDING'::text) AND (NOT withdrawn));

CREATE INDEX ix_horsies_tasks_error_code ON public.horsies_tasks USING btree (error_code) WHERE (error_code IS NOT NULL);

CREATE INDEX ix_horsies_tasks_good_until ON public.horsies_tasks USING btree (good_until) WHERE ((good_until IS NOT NULL) AND ((status)::text = ANY ((ARRAY['PENDING'::character varying, 'CLAIMED'::character varying])::text[])));

CREATE INDEX ix_horsies_tasks_in_flight ON public.horsies_tasks USING btree (queue_name) WHERE ((status)::text = ANY ((ARRAY['CLAIMED'::character varying, 'RUNNING'::character varying])::text[]));

CREATE INDEX ix_horsies_tasks_next_retry_at ON public.horsies_tasks USING btree (next_retry_at) WHERE ((next_retry_at IS NOT NULL) AND ((status)::text = 'PENDING'::text));

CREATE INDEX ix_horsies_tasks_terminal_at ON public.horsies_tasks USING btree (terminal_at) WHERE (terminal_at IS NOT NULL);

CREATE INDEX ix_horsies_tasks_withdrawn ON public.horsies_tasks USING btree (queue_name, priority, enqueued_at, id) WHERE withdrawn;

CREATE INDEX ix_horsies_worker_instances_open ON public.horsies_worker_instances USING btree (worker_id) WHERE ((stopped_at IS NULL) AND (recovered_at IS NULL));

CREATE INDEX ix_horsies_worker_states_worker ON public.horsies_worker_states USING btree (worker_id, snapshot_at DESC);

CREATE INDEX ix_horsies_workflow_tasks_live ON public.horsies_workflow_tasks USING btree (workflow_id, status) WHERE ((status)::text = ANY ((ARRAY['READY'::character varying, 'ENQUEUED'::character varying, 'RUNNING'::character varying])::text[]));

CREATE INDEX ix_horsies_workflow_tasks_sub_workflow_id ON public.horsies_workflow_tasks USING btree (sub_workflow_id) WHERE (sub_workflow_id IS NOT NULL);

CREATE INDEX ix_horsies_workflows_completed_at ON public.horsies_workflows USING btree (completed_at) WHERE (completed_at IS NOT NULL);

CREATE INDEX ix_horsies_workflows_live ON public.horsies_workflows USING btree (status, updated_at) WHERE ((status)::text = ANY ((ARRAY['PENDING'::character varying, 'RUNNING'::character varying, 'PAUSED'::character varying])::text[]));

CREATE INDEX ix_horsies_workflows_parent_workflow_id ON public.horsies_workflows USING btree (parent_workflow_id) WHERE (parent_workflow_id IS NOT NULL);

CREATE UNIQUE INDEX uq_horsies_tasks_unique_key ON public.horsies_tasks USING btree (task_name, unique_key) WHERE ((unique_key IS NOT NULL) AND ((status)::text = ANY ((ARRAY['PENDING'::character varying, 'CLAIMED'::character varying, 'RUNNING'::character varying])::text[])));

CREATE UNIQUE INDEX uq_horsies_workflow_tasks_task_id ON public.horsies_workflow_tasks USING btree (task_id) WHERE (task_id IS NOT NULL);

CREATE TRIGGER horsies_task_notify_trigger AFTER INSERT ON public.horsies_tasks REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT WHEN ((current_setting('horsies.notify'::text, true) IS DISTINCT FROM 'off'::text)) EXECUTE FUNCTION public.horsies_notify_task_changes();

CREATE TRIGGER horsies_task_notify_update_trigger AFTER UPDATE ON public.horsies_tasks FOR EACH ROW WHEN (((new.terminal_at IS NOT NULL) OR (new.claimed_at IS NULL))) EXECUTE FUNCTION public.horsies_notify_task_changes();

CREATE TRIGGER horsies_workflow_notify_trigger AFTER UPDATE ON public.horsies_workflows FOR EACH ROW WHEN ((((old.status)::text IS DISTINCT FROM (new.status)::text) AND ((new.status)::text = ANY ((ARRAY['COMPLETED'::character varying, 'FAILED'::character varying, 'CANCELLED'::character varying])::text[])))) EXECUTE FUNCTION public.horsies_notify_workflow_changes();

ALTER TABLE ONLY public.horsies_task_attempts
    ADD CONSTRAINT fk_horsies_task_attempts_task_id FOREIGN KEY (task_id) REFERENCES public.horsies_tasks(id) ON DELETE CASCADE;

ALTER TABLE ONLY public.horsies_workflow_tasks
    ADD CONSTRAINT fk_horsies_workflow_tasks_workflow_id FOREIGN KEY (workflow_id) REFERENCES public.horsies_workflows(id) ON DELETE CASCADE;

ALTER TABLE ONLY public.horsies_workflows
    ADD CONSTRAINT fk_horsies_workflows_parent_workflow_id FOREIGN KEY (parent_workflow_id) REFERENCES public.horsies_workflows(id) ON DELETE CASCADE;
