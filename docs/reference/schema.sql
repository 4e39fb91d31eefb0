-- The horsies schema at revision 0032, as `pg_dump --schema-only` (PostgreSQL 18) prints it.
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
    SELECT w.status, w.parent_workflow_id, w.ends_as INTO root FROM public.horsies_workflows w WHERE w.id = $1;
    IF NOT FOUND OR root.status NOT IN ('PENDING', 'RUNNING', 'PAUSED') OR root.ends_as IS NOT NULL THEN
        RETURN false;
    END IF;
    PERFORM public.horsies_stop_workflows($1 || array_remove(tree, $1), 'CANCELLED', never_started, ended, ended, ended,
                                           'cancelled', true);
    IF root.parent_workflow_id IS NOT NULL THEN
        PERFORM pg_notify('workflow_step', 'w:' || root.parent_workflow_id);
    END IF;
    RETURN true;
END
$_$;

CREATE FUNCTION public.horsies_claim_grouped(queues text[], look_queues text[], look_keys text[], is_walk boolean, cursor_queues text[], cursor_priorities integer[], cursor_keys text[], cursor_wrapped boolean[], cursor_stops text[], max_groups integer, row_limit integer, room_async integer, room_sync integer, room_ahead integer, async_names text[], short_names text[], sync_names text[], cap_queues text[], caps integer[], cluster_cap integer, caps_lock integer, worker_id text, hostname text, expired_result text, expected_at double precision) RETURNS TABLE(id text, status text, claim_generation integer, task_name text, args text, kwargs text, queue_name text, priority integer, retry_count integer, max_retries integer, task_options text, is_workflow_task boolean, metadata jsonb, ready_at double precision, group_key text, start_within double precision, frees text, report jsonb, snoozes integer)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_column
DECLARE
    -- how many tasks of names that the caller does not know it passes at the head of a group
    unknown constant int := 100;
    -- of the whole claim
    took int := 0;
    walked int := 0;
    is_over boolean := true;
    is_throttled boolean := false;
    busy text[] := '{}';
    limited text[] := '{}';
    blocked text[] := '{}';
    cursors jsonb := '[]';
    waits jsonb := '[]';
    -- of one queue
    queue text;
    head int;
    rules jsonb;
    is_limited boolean;
    names text[];
    most int;
    rate jsonb;
    burst int;
    spacing float8;
    longest float8;
    fair boolean;
    is_capped boolean;
    locked int;
    at timestamptz;
    stepped timestamptz;
    quota int;
    started int;
    within float8;
    wait_s float8;
    freed text;
    shared record;
    looks text[];
    look_count int;
    with_unkeyed boolean;
    walks boolean;
    -- of one (queue, priority)
    level int;
    first text;
    wrapped boolean;
    stop text;
    allowed int;
    task record;
BEGIN
    IF to_timestamp(expected_at) < statement_timestamp() - interval '200 ms' THEN
        INSERT INTO public.horsies_rate_limits AS r (name, key, free_at) VALUES ('', '', clock_timestamp())
        ON CONFLICT (name, key) DO UPDATE SET free_at = excluded.free_at;
    END IF;
    FOR queue, head, rules, is_limited IN
        SELECT q.name, least(
                   (SELECT t.priority FROM public.horsies_tasks t
                     WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NOT NULL
                       AND t.queue_name = q.name ORDER BY t.priority LIMIT 1),
                   (SELECT t.priority FROM public.horsies_tasks t
                     WHERE s.is_limited AND t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NULL
                       AND t.queue_name = q.name ORDER BY t.priority LIMIT 1)) AS head,
               s.policy, coalesce(s.is_limited, false)
          FROM unnest(queues) WITH ORDINALITY AS q (name, nth)
          LEFT JOIN public.horsies_queue_state s ON s.queue_name = q.name
         WHERE s.paused_at IS NULL
         ORDER BY head, q.nth
    LOOP
        names := ARRAY(SELECT jsonb_array_elements_text(coalesce(rules -> 'limits', '[]')));
        IF is_limited THEN
            limited := limited || queue;
        END IF;
        CONTINUE WHEN head IS NULL;
        IF took >= row_limit OR walked >= max_groups THEN
            is_over := false;
            CONTINUE;
        END IF;
        most := (rules ->> 'max_concurrency')::int;
        rate := nullif(rules -> 'rate', 'null');
        fair := coalesce((rules ->> 'fair')::boolean, true);
        is_capped := cluster_cap IS NOT NULL OR queue = ANY (cap_queues);

        -- the locks
        IF names <> '{}' THEN
            PERFORM l.name FROM public.horsies_limits l WHERE l.name = ANY (names)
              ORDER BY l.name FOR UPDATE SKIP LOCKED;
            GET DIAGNOSTICS locked = ROW_COUNT;
            -- nor does a less urgent queue get what a busy one waits for
            IF names && blocked
                OR locked < (SELECT count(*) FROM public.horsies_limits l WHERE l.name = ANY (names))
            THEN
                busy := busy || queue;
                blocked := blocked || names;
                CONTINUE;
            END IF;
        END IF;
        -- 1667330163 is "caps", as in horsies._pg.locks; the other half comes from the caller's schema, as in other claims
        IF (is_capped AND NOT pg_try_advisory_xact_lock(1667330163, caps_lock))
            OR ((most IS NOT NULL OR rate IS NOT NULL OR names <> '{}')
                AND NOT pg_try_advisory_xact_lock(hashtextextended('horsies groups ' || 'public' || ' ' || queue, 0)))
        THEN
            busy := busy || queue;
            blocked := blocked || names;
            CONTINUE;
        END IF;

        -- what the whole queue may start
        at := clock_timestamp();
        quota := row_limit - took;
        started := 0;
        within := NULL;
        wait_s := NULL;
        freed := CASE WHEN is_capped THEN 'cap' WHEN most IS NOT NULL THEN 'group' END;
        IF is_capped THEN
            quota := least(quota,
                (SELECT min(c.cap) FROM unnest(cap_queues, caps) AS c (name, cap) WHERE c.name = queue)
                - (SELECT count(*) FROM public.horsies_tasks t
                    WHERE t.queue_name = queue AND t.status IN ('CLAIMED', 'RUNNING')),
                cluster_cap - (SELECT count(*) FROM public.horsies_tasks t WHERE t.status IN ('CLAIMED', 'RUNNING')));
        END IF;
        IF rate IS NOT NULL OR names <> '{}' THEN
            -- one that lies ahead was undone: the clock has been set back since
            stepped := (SELECT r.free_at FROM public.horsies_rate_limits r
                         WHERE r.name = '' AND r.key = '' AND r.free_at <= at);
        END IF;
        FOR shared IN
            SELECT (l.policy ->> 'max_concurrency')::int AS most, l.name, r.*
              FROM public.horsies_limits l
             CROSS JOIN LATERAL public.horsies_rate_room(l.policy -> 'rate', l.free_at, at, stepped) AS r
             WHERE l.name = ANY (names)
        LOOP
            IF shared.most IS NOT NULL THEN
                freed := 'limit';
                quota := least(quota, shared.most - (
                    SELECT count(*) FROM public.horsies_queue_state s
                      JOIN public.horsies_tasks t ON t.queue_name = s.queue_name
                     WHERE s.policy -> 'limits' ? shared.name AND t.status IN ('CLAIMED', 'RUNNING')));
            END IF;
            quota := least(quota, shared.tokens);
            within := least(within, shared.slack);
            wait_s := greatest(wait_s, shared.wait_s);
            IF shared.is_stale THEN
                UPDATE public.horsies_limits l SET free_at = at + make_interval(secs => shared.ahead)
                 WHERE l.name = shared.name;
            END IF;
        END LOOP;
        IF quota <= 0 THEN
            is_throttled := true;
            IF wait_s IS NOT NULL THEN
                waits := waits || jsonb_build_array(jsonb_build_array(queue, NULL, wait_s));
            END IF;
            CONTINUE;
        END IF;
        IF rate IS NOT NULL THEN
            SELECT r.burst, r.spacing, r.longest, least(within, r.slack) INTO burst, spacing, longest, within
              FROM public.horsies_rate_room(rate, NULL, at, stepped) AS r;
        END IF;

        looks := ARRAY(SELECT l.key FROM unnest(look_queues, look_keys) WITH ORDINALITY AS l (name, key, nth)
                        WHERE l.name = queue AND l.key IS NOT NULL GROUP BY l.key ORDER BY min(l.nth));
        with_unkeyed := is_limited AND (is_walk OR queue = ANY (look_queues));
        -- where the whole queue waits for a limit, the group that asks is not the one whose turn it is
        walks := is_walk OR ((is_limited OR is_capped) AND queue = ANY (look_queues));
        IF walks AND NOT is_walk THEN
            looks := '{}';
        END IF;
        look_count := cardinality(looks);
        FOR level IN
            WITH RECURSIVE found AS (
                SELECT 0 AS priority
                UNION ALL
                SELECT least(
                    (SELECT t.priority FROM public.horsies_tasks t
                      WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NOT NULL
                        AND t.queue_name = queue AND t.priority >= f.priority + 1 ORDER BY t.priority LIMIT 1),
                    (SELECT t.priority FROM public.horsies_tasks t
                      WHERE with_unkeyed AND t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NULL
                        AND t.queue_name = queue AND t.priority >= f.priority + 1 ORDER BY t.priority LIMIT 1))
                  FROM found f WHERE f.priority IS NOT NULL
            )
            SELECT f.priority FROM found f WHERE f.priority > 0
        LOOP
            allowed := least(quota - started, row_limit - took);
            IF allowed <= 0 OR walked >= max_groups THEN
                is_over := false;
                EXIT;
            END IF;
            SELECT c.key, c.wrapped, c.stop INTO first, wrapped, stop
              FROM unnest(cursor_queues, cursor_priorities, cursor_keys, cursor_wrapped, cursor_stops)
                   AS c (name, priority, key, wrapped, stop)
             WHERE c.name = queue AND c.priority = level;
            IF NOT FOUND THEN
                -- a worker that is new goes on where others are, or were: behind a group that runs
                first := coalesce((SELECT t.group_key || chr(1) FROM public.horsies_tasks t
                                    WHERE t.status IN ('CLAIMED', 'RUNNING') AND t.group_key IS NOT NULL
                                      AND t.queue_name = queue ORDER BY t.group_key DESC LIMIT 1), '');
                wrapped := false;
                stop := first;
            END IF;
            FOR task IN
                WITH RECURSIVE walk AS (
                    -- `from_key`: the walk goes on here; no text can be between a key and itself with chr(1) behind it
                    SELECT 0 AS nth, NULL::text COLLATE "C" AS key, first COLLATE "C" AS from_key, wrapped AS is_again,
                           0 AS room, false AS is_ready, NULL::float8 AS ahead, false AS is_stale,
                           NULL::float8 AS wait_s, 0 AS eligible
                    UNION ALL
                    SELECT w.nth + 1, n.key,
                           CASE WHEN w.nth < look_count THEN w.from_key ELSE coalesce(n.key || chr(1), '') END,
                           n.is_again, g.room, g.first_at <= at, g.ahead, g.is_stale,
                           CASE WHEN g.first_at <= at THEN g.wait_s ELSE date_part('epoch', g.first_at - at) END,
                           w.eligible + CASE WHEN g.room > 0 AND g.first_at <= at THEN 1 ELSE 0 END
                      FROM walk w
                     CROSS JOIN LATERAL (SELECT x.key, x.is_again FROM (
                        SELECT looks[w.nth + 1] COLLATE "C" AS key, w.is_again WHERE w.nth < look_count
                        UNION ALL
                        (SELECT t.group_key, w.is_again FROM public.horsies_tasks t
                          WHERE walks AND w.nth >= look_count
                            AND t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NOT NULL
                            AND t.queue_name = queue AND t.priority = level AND t.group_key >= w.from_key
                          ORDER BY t.group_key LIMIT 1)
                        UNION ALL
                        -- behind the last group it is the turn of the tasks without one
                        SELECT NULL, true WHERE with_unkeyed AND w.nth >= look_count AND NOT w.is_again
                        UNION ALL
                        (SELECT t.group_key, true FROM public.horsies_tasks t
                          WHERE walks AND NOT with_unkeyed AND w.nth >= look_count AND NOT w.is_again
                            AND t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NOT NULL
                            AND t.queue_name = queue AND t.priority = level
                          ORDER BY t.group_key LIMIT 1)) AS x LIMIT 1) AS n
                     CROSS JOIN LATERAL (
                        SELECT b.ahead, b.is_stale,
                               CASE WHEN b.ahead > (burst - 0.999999) * spacing
                                    THEN b.ahead - (burst - 1) * spacing END AS wait_s,
                               least(allowed, floor(burst - b.ahead / spacing + 0.000001)::int,
                                     CASE WHEN most IS NOT NULL AND n.key IS NOT NULL THEN most - (
                                         SELECT count(*) FROM (
                                             SELECT FROM public.horsies_tasks t
                                              WHERE t.status IN ('CLAIMED', 'RUNNING') AND t.group_key IS NOT NULL
                                                AND t.queue_name = queue AND t.group_key BETWEEN n.key AND n.key
                                              ORDER BY t.group_key LIMIT most) AS running)::int
                                     END) AS room,
                               CASE WHEN n.key IS NOT NULL THEN
                                   (SELECT r.enqueued_at FROM (
                                        SELECT t.enqueued_at, t.task_name FROM public.horsies_tasks t
                                         WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NOT NULL
                                           AND t.queue_name = queue AND t.priority = level
                                           AND t.group_key BETWEEN n.key AND n.key
                                         ORDER BY t.group_key, t.enqueued_at, t.id LIMIT unknown) AS r
                                     WHERE (r.task_name IN (SELECT unnest(async_names || sync_names))) IS TRUE
                                     LIMIT 1)
                               ELSE
                                   (SELECT t.enqueued_at FROM public.horsies_tasks t
                                     WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NULL
                                       AND t.queue_name = queue AND t.priority = level
                                       AND (t.task_name IN (SELECT unnest(async_names || sync_names))) IS TRUE
                                     ORDER BY t.enqueued_at, t.id LIMIT 1)
                               END AS first_at
                          FROM (SELECT CASE WHEN rate IS NOT NULL AND n.key IS NOT NULL
                                            THEN least(longest, greatest(
                                                0, date_part('epoch', stepped - at) + burst * spacing, f.ahead))
                                       END AS ahead, coalesce(f.ahead > longest + 0.001, false) AS is_stale
                                  FROM (SELECT (SELECT date_part('epoch', r.free_at - at)
                                                  FROM public.horsies_rate_limits r
                                                 WHERE rate IS NOT NULL AND r.name = queue AND r.key = n.key) AS ahead
                                       ) AS f) AS b) AS g
                     WHERE w.nth < look_count + max_groups - walked AND w.eligible < allowed
                       AND (w.nth >= look_count AND n.is_again AND n.key >= stop) IS NOT TRUE
                ), chosen AS MATERIALIZED (
                    -- a group of `looks` may come again in the walk
                    SELECT DISTINCT ON (w.key) w.nth, w.key, w.room, w.ahead FROM walk w
                     WHERE w.room > 0 AND w.is_ready ORDER BY w.key, w.nth
                ), share AS MATERIALIZED (
                    SELECT CASE WHEN fair THEN ceil(allowed::float8 / greatest(1, count(*)))::int
                                ELSE allowed END AS n
                      FROM chosen
                ), line AS MATERIALIZED (
                    -- and of each group one task more, to know whether and when there is another one
                    SELECT c.nth, c.key, c.ahead, r.tid, r.kind, r.rn, r.enqueued_at,
                           r.rn > least(c.room, (SELECT n FROM share)) OR r.enqueued_at > at AS is_left,
                           -- it could have been taken, but for the shares of other groups
                           r.rn > (SELECT n FROM share) AND r.rn <= c.room AND r.enqueued_at <= at AS is_more
                      FROM chosen c CROSS JOIN LATERAL (
                           SELECT r.tid, r.kind, r.enqueued_at, row_number() OVER () AS rn FROM (
                               SELECT t.ctid AS tid, t.task_name, t.enqueued_at, CASE WHEN t.good_until <= at THEN 'expired'
                                      WHEN t.is_workflow_task AND (
                                          SELECT w.status FROM public.horsies_workflow_tasks n
                                            JOIN public.horsies_workflows w ON w.id = n.workflow_id
                                           WHERE n.task_id = t.id) <> 'RUNNING' THEN 'stopped'
                                      WHEN t.task_name = ANY (async_names) THEN 'async'
                                      WHEN t.task_name = ANY (short_names) THEN 'short'
                                      ELSE 'other' END AS kind
                                 FROM public.horsies_tasks t
                                WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NOT NULL
                                  AND t.queue_name = queue AND t.priority = level
                                  AND t.group_key BETWEEN c.key AND c.key
                                ORDER BY t.group_key, t.enqueued_at, t.id LIMIT unknown + 1 + (SELECT n FROM share)) AS r
                            WHERE (r.task_name IN (SELECT unnest(async_names || sync_names))) IS TRUE
                            LIMIT 1 + least(c.room, (SELECT n FROM share))) AS r
                    UNION ALL
                    SELECT c.nth, c.key, c.ahead, r.tid, r.kind, r.rn, at, r.rn > (SELECT n FROM share),
                           r.rn > (SELECT n FROM share) AND r.rn <= c.room
                      FROM chosen c CROSS JOIN LATERAL (
                           SELECT r.tid, r.kind, row_number() OVER () AS rn FROM (
                               SELECT t.ctid AS tid, CASE WHEN t.good_until <= at THEN 'expired'
                                      WHEN t.is_workflow_task AND (
                                          SELECT w.status FROM public.horsies_workflow_tasks n
                                            JOIN public.horsies_workflows w ON w.id = n.workflow_id
                                           WHERE n.task_id = t.id) <> 'RUNNING' THEN 'stopped'
                                      WHEN t.task_name = ANY (async_names) THEN 'async'
                                      WHEN t.task_name = ANY (short_names) THEN 'short'
                                      ELSE 'other' END AS kind
                                 FROM public.horsies_tasks t
                                WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NULL
                                  AND t.queue_name = queue AND t.priority = level AND t.enqueued_at <= at
                                  AND (t.task_name IN (SELECT unnest(async_names || sync_names))) IS TRUE
                                ORDER BY t.enqueued_at, t.id LIMIT 1 + (SELECT n FROM share)) AS r) AS r
                     WHERE c.key IS NULL
                ), turns AS (
                    SELECT l.*, row_number() OVER (ORDER BY CASE WHEN fair THEN l.rn END, l.nth, l.rn) AS turn
                      FROM line l WHERE NOT l.is_left
                ), placed AS (
                    SELECT t.*, t.kind IN ('expired', 'stopped')
                           OR row_number() OVER (PARTITION BY t.kind ORDER BY t.turn)
                              <= CASE t.kind WHEN 'async' THEN room_async WHEN 'other' THEN room_sync
                                      ELSE greatest(0, room_sync - count(*) FILTER (WHERE t.kind = 'other') OVER ())
                                           -- a task with a rate must start at once
                                           + CASE WHEN within IS NULL THEN room_ahead ELSE 0 END END AS has_place
                      FROM turns t
                ), wanted AS MATERIALIZED (
                    SELECT x.* FROM (
                        SELECT p.*, bool_and(p.has_place) OVER (PARTITION BY p.nth ORDER BY p.rn) AS is_next
                          FROM placed p) AS x
                     WHERE x.is_next ORDER BY x.turn LIMIT allowed
                ), picked AS MATERIALIZED (
                    SELECT w.key, w.ahead, w.kind, w.turn, r.tid,
                           CASE w.kind WHEN 'expired' THEN 'EXPIRED' WHEN 'stopped' THEN 'PENDING' ELSE 'RUNNING'
                           END AS status
                      FROM wanted w CROSS JOIN LATERAL (
                           SELECT t.ctid AS tid FROM public.horsies_tasks t
                            WHERE t.ctid = w.tid AND t.status || '' = 'PENDING' AND NOT t.withdrawn
                              FOR UPDATE SKIP LOCKED) AS r
                ), spent AS (
                    INSERT INTO public.horsies_rate_limits (name, key, free_at)
                    SELECT queue, p.key, at + make_interval(secs => p.ahead + count(*) * spacing)
                      FROM picked p WHERE p.ahead IS NOT NULL AND p.status = 'RUNNING' GROUP BY p.key, p.ahead
                    UNION
                    -- an empty bucket would count as empty at any later time, too
                    SELECT queue, w.key, at + make_interval(secs => w.ahead) FROM walk w WHERE w.is_stale
                    ON CONFLICT (name, key) DO UPDATE SET free_at = excluded.free_at
                ), taken AS (
                    UPDATE public.horsies_tasks t
                       SET status = c.status, claimed = false, claim_generation = t.claim_generation + 1,
                           claimed_by_worker_id = CASE WHEN c.status = 'RUNNING' THEN worker_id END,
                           claimed_at = CASE WHEN c.status = 'RUNNING' THEN at END, claim_expires_at = NULL,
                           started_at = CASE WHEN c.status = 'RUNNING' THEN at END,
                           worker_hostname = CASE WHEN c.status = 'RUNNING' THEN hostname END,
                           worker_pid = NULL, worker_process_name = NULL,
                           result = CASE WHEN c.status = 'EXPIRED' THEN expired_result END,
                           error_code = CASE WHEN c.status = 'EXPIRED' THEN 'TASK_EXPIRED' END,
                           failed_at = CASE WHEN c.status = 'EXPIRED' THEN at END,
                           terminal_at = CASE WHEN c.status = 'EXPIRED' THEN at END, updated_at = at
                      FROM picked c
                     WHERE t.ctid = c.tid AND t.status || '' = 'PENDING'
                    RETURNING t.id, t.status, t.claim_generation, t.task_name, t.args, t.kwargs, t.retry_count,
                              t.max_retries, t.task_options, t.is_workflow_task, t.metadata, t.snoozes, t.enqueued_at,
                              t.group_key, c.kind, c.turn
                )
                SELECT t.turn, t.id, t.status, t.claim_generation, t.task_name, t.args, t.kwargs, t.retry_count,
                       t.max_retries, t.task_options, t.is_workflow_task, t.metadata, t.snoozes,
                       date_part('epoch', t.enqueued_at) AS ready_at, t.group_key, t.kind,
                       NULL::int AS nth, NULL::text AS from_key, NULL::boolean AS is_again, NULL::int AS eligible,
                       NULL::jsonb AS waits, NULL::boolean AS is_throttled, NULL::boolean AS has_more
                  FROM taken t
                UNION ALL
                SELECT NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL,
                       e.nth, e.from_key, e.is_again, e.eligible,
                       (SELECT jsonb_agg(jsonb_build_array(queue, x.key, x.wait_s)) FROM (
                            SELECT w.key, w.wait_s FROM walk w WHERE w.wait_s IS NOT NULL
                            UNION ALL
                            SELECT l.key, CASE WHEN bool_or(l.is_more) THEN 0
                                          WHEN bool_and(l.enqueued_at > at) THEN date_part('epoch', min(l.enqueued_at) - at)
                                          ELSE greatest(0, l.ahead + ((
                                              SELECT count(*) FROM picked p WHERE p.key = l.key) - burst + 1) * spacing)
                                          END
                              FROM line l WHERE l.is_left AND (l.ahead IS NOT NULL OR l.enqueued_at > at
                                                     OR (l.is_more AND NOT walks))
                             GROUP BY l.key, l.ahead, l.enqueued_at > at) AS x),
                       EXISTS (SELECT FROM walk w WHERE w.room <= 0 AND w.is_ready),
                       -- another claim took some of them, and its groups may have more; or these have more
                       (SELECT count(*) FROM picked) BETWEEN 1 AND (SELECT count(*) FROM wanted) - 1
                       OR EXISTS (SELECT FROM line l WHERE l.is_more)
                  FROM (SELECT w.* FROM walk w ORDER BY w.nth DESC LIMIT 1) AS e
                 ORDER BY turn
            LOOP
                IF task.turn IS NULL THEN
                    waits := waits || coalesce(task.waits, '[]');
                    is_throttled := is_throttled OR task.is_throttled;
                    IF walks THEN
                        is_over := is_over AND task.nth < look_count + max_groups - walked AND allowed > 0
                            AND NOT task.has_more;
                        walked := walked + greatest(0, task.nth - look_count);
                        cursors := cursors || jsonb_build_array(
                            jsonb_build_array(queue, level, task.from_key, task.is_again, stop));
                    END IF;
                    CONTINUE;
                END IF;
                took := took + 1;
                allowed := allowed - 1;
                IF task.status = 'RUNNING' THEN
                    started := started + 1;
                    IF task.kind = 'async' THEN
                        room_async := room_async - 1;
                    ELSIF room_sync > 0 THEN
                        room_sync := room_sync - 1;
                    ELSE
                        room_ahead := room_ahead - 1;
                    END IF;
                END IF;
                id := task.id; status := task.status; claim_generation := task.claim_generation;
                task_name := task.task_name; args := task.args; kwargs := task.kwargs; queue_name := queue;
                priority := level; retry_count := task.retry_count; max_retries := task.max_retries;
                task_options := task.task_options; is_workflow_task := task.is_workflow_task;
                metadata := task.metadata; snoozes := task.snoozes; ready_at := task.ready_at; group_key := task.group_key;
                start_within := within; frees := freed; report := NULL;
                RETURN NEXT;
            END LOOP;
        END LOOP;
        IF started > 0 AND names <> '{}' THEN
            UPDATE public.horsies_limits l SET free_at = at + make_interval(secs => r.ahead + started * r.spacing)
              FROM public.horsies_limits x
             CROSS JOIN LATERAL public.horsies_rate_room(x.policy -> 'rate', x.free_at, at, stepped) AS r
             WHERE x.name = ANY (names) AND l.name = x.name AND r.spacing IS NOT NULL;
            SELECT max(r.wait_s) INTO wait_s
              FROM public.horsies_limits x
             CROSS JOIN LATERAL public.horsies_rate_room(x.policy -> 'rate', x.free_at, at, stepped) AS r
             WHERE x.name = ANY (names);
            IF wait_s IS NOT NULL THEN
                waits := waits || jsonb_build_array(jsonb_build_array(queue, NULL, wait_s));
            END IF;
        END IF;
    END LOOP;
    id := NULL;
    status := NULL;
    report := jsonb_build_object(
        'now', date_part('epoch', clock_timestamp()), 'is_over', is_over, 'is_throttled', is_throttled,
        'busy', to_jsonb(busy), 'limited', to_jsonb(limited), 'cursors', cursors, 'waits', waits);
    RETURN NEXT;
END
$$;

CREATE FUNCTION public.horsies_complete_task(task_id text, worker_id text, generation integer, token text, transaction_id bigint, result text, started double precision, finished double precision, pid integer, process_name text, again boolean) RETURNS TABLE(outcome text, state text)
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
DECLARE
    found_row record;
BEGIN
    IF $5 IS DISTINCT FROM txid_current() THEN
        RETURN QUERY SELECT 'NO_TRANSACTION', NULL::text;
        RETURN;
    END IF;
    PERFORM FROM public.horsies_worker_instances w
      WHERE w.worker_id = $2
        -- NULL for a worker of an older release, which has no key
        AND encode(sha256(convert_to($1 || ' ' || $3 || ' ' || w.completion_key, 'UTF8')), 'hex') = $4;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'UNKNOWN', NULL::text;
        RETURN;
    END IF;
    IF $11 THEN
        PERFORM FROM public.horsies_tasks t WHERE t.id = $1 FOR UPDATE SKIP LOCKED;
        IF NOT FOUND AND EXISTS (SELECT FROM public.horsies_tasks t WHERE t.id = $1) THEN
            RETURN QUERY SELECT 'OPEN', NULL::text;
            RETURN;
        END IF;
    END IF;
    -- As complete_task of the worker writes it, fenced on owner, generation and state.
    WITH moved AS (
        UPDATE public.horsies_tasks t
           SET status = 'COMPLETED', completed_at = statement_timestamp(), terminal_at = statement_timestamp(),
               result = $6, worker_pid = $9, worker_process_name = $10,
               finalizing_at = NULL, finalizing_by_worker_id = NULL, updated_at = statement_timestamp()
         WHERE t.id = $1 AND t.claim_generation = $3 AND t.claimed_by_worker_id = $2 AND t.status || '' = 'RUNNING'
        RETURNING t.id, t.retry_count + 1 AS attempt, t.started_at AS row_started, t.worker_hostname,
                  least(greatest(to_timestamp($8), t.started_at),
                        greatest(statement_timestamp(), t.started_at)) AS ended
    )
    INSERT INTO public.horsies_task_attempts (task_id, attempt, outcome, started_at, finished_at, worker_id,
                                                worker_hostname, worker_pid, worker_process_name)
    SELECT moved.id, moved.attempt, 'COMPLETED', least(greatest(to_timestamp($7), moved.row_started), moved.ended),
           moved.ended, $2, moved.worker_hostname, $9, $10
      FROM moved;
    IF FOUND THEN
        RETURN QUERY SELECT 'COMPLETED', 'COMPLETED';
        RETURN;
    END IF;
    SELECT t.status, t.claimed_by_worker_id = $2 AND t.claim_generation = $3 AND t.status = 'COMPLETED' AS is_own
      INTO found_row FROM public.horsies_tasks t WHERE t.id = $1;
    RETURN QUERY SELECT CASE WHEN found_row.is_own THEN 'ENDED' ELSE 'LOST' END, found_row.status::text;
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

CREATE FUNCTION public.horsies_forget_compensations(ids text[], tree text[]) RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
BEGIN
    RETURN QUERY WITH RECURSIVE every AS MATERIALIZED (
        SELECT u.id, u.task_id, u.status, n.id AS node_id, n.task_id AS former, n.sub_workflow_id, n.workflow_id,
               n.workflow_id = ANY (tree) AS runs_again
          FROM public.horsies_workflow_tasks u JOIN public.horsies_workflow_tasks n ON n.id = u.compensates
          JOIN public.horsies_workflows w ON w.id = u.workflow_id AND w.status IN ('FAILED', 'CANCELLED')
         WHERE u.workflow_id = ANY (ids) AND u.compensates IS NOT NULL
    ), undo AS MATERIALIZED (
        SELECT * FROM every WHERE runs_again OR status <> 'COMPLETED'
    ), kept AS (
        UPDATE public.horsies_workflow_tasks u SET dependencies = '{}', dependents = '{}', updated_at = statement_timestamp()
          FROM every WHERE u.id = every.id AND NOT every.runs_again AND every.status = 'COMPLETED'
    ), detached AS (
        UPDATE public.horsies_tasks t SET is_workflow_task = false, former_node_id = x.node_id, updated_at = statement_timestamp()
          FROM (SELECT undo.task_id, undo.node_id FROM undo
                UNION ALL SELECT undo.former, undo.node_id FROM undo WHERE undo.status = 'COMPLETED') AS x
         WHERE t.id = x.task_id
    ), gone AS (
        DELETE FROM public.horsies_workflow_tasks u USING undo WHERE u.id = undo.id
    ), inside AS (
        SELECT c.id, c.depth AS top FROM undo JOIN public.horsies_workflows c ON c.id = undo.sub_workflow_id
         WHERE undo.status = 'COMPLETED'
        UNION
        SELECT c.id, inside.top FROM inside JOIN public.horsies_workflows c ON c.parent_workflow_id = inside.id
    ), apart AS (
        UPDATE public.horsies_workflows c
           SET depth = c.depth - inside.top,
               parent_workflow_id = CASE WHEN c.depth > inside.top THEN c.parent_workflow_id END,
               parent_task_index = CASE WHEN c.depth > inside.top THEN c.parent_task_index END
          FROM inside WHERE c.id = inside.id
    ), again AS (
        UPDATE public.horsies_workflow_tasks n
           SET task_id = NULL, sub_workflow_id = NULL, result = NULL, error = NULL, started_at = NULL,
               completed_at = NULL, ended_seq = NULL, updated_at = statement_timestamp(), status = 'PENDING'
          FROM undo WHERE n.id = undo.node_id AND undo.status = 'COMPLETED'
        RETURNING n.workflow_id
    )
    SELECT again.workflow_id::text FROM again UNION SELECT undo.workflow_id::text FROM undo WHERE undo.runs_again;
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
                                  WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NULL AND t.queue_name = q.name
                                  ORDER BY t.priority LIMIT 1) AS f
             WHERE NOT EXISTS (SELECT FROM public.horsies_queue_state s
                                WHERE s.queue_name = q.name AND s.paused_at IS NOT NULL)
            UNION ALL
            SELECT p.queue_name, f.priority FROM found p
             CROSS JOIN LATERAL (SELECT t.priority FROM public.horsies_tasks t
                                  WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NULL
                                    AND t.queue_name = p.queue_name AND t.priority >= p.priority + 1
                                  ORDER BY t.priority LIMIT 1) AS f
        )
        SELECT FROM found p CROSS JOIN LATERAL (
            SELECT FROM public.horsies_tasks t
             WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NULL
               AND t.queue_name = p.queue_name AND t.priority = p.priority
               AND t.enqueued_at <= latest AND t.enqueued_at >= latest - interval '10 seconds'
               AND t.task_name = ANY (names) LIMIT 1) AS late) OR EXISTS (
        WITH RECURSIVE found AS (
            SELECT q.name::text AS queue_name, f.priority FROM unnest(queues) AS q (name)
             CROSS JOIN LATERAL (SELECT t.priority FROM public.horsies_tasks t
                                  WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NOT NULL AND t.queue_name = q.name
                                  ORDER BY t.priority LIMIT 1) AS f
             WHERE NOT EXISTS (SELECT FROM public.horsies_queue_state s
                                WHERE s.queue_name = q.name AND s.paused_at IS NOT NULL)
            UNION ALL
            SELECT p.queue_name, f.priority FROM found p
             CROSS JOIN LATERAL (SELECT t.priority FROM public.horsies_tasks t
                                  WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NOT NULL
                                    AND t.queue_name = p.queue_name AND t.priority >= p.priority + 1
                                  ORDER BY t.priority LIMIT 1) AS f
        )
        SELECT FROM found p CROSS JOIN LATERAL (
            SELECT FROM public.horsies_tasks t
             WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NOT NULL
               AND t.queue_name = p.queue_name AND t.priority = p.priority
               AND t.enqueued_at <= latest AND t.enqueued_at >= latest - interval '10 seconds'
               AND t.task_name = ANY (names) LIMIT 1) AS late);
END
$$;

CREATE FUNCTION public.horsies_is_count(value jsonb) RETURNS boolean
    LANGUAGE sql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
    SELECT CASE WHEN jsonb_typeof(value) = 'number'
                THEN (value #>> '{}')::numeric BETWEEN 1 AND 1000000 AND scale((value #>> '{}')::numeric) = 0
                ELSE false END
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

CREATE FUNCTION public.horsies_moment_problem(value jsonb) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
BEGIN
    IF jsonb_typeof(value) = 'string'
        AND value #>> '{}' ~ '^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)? ?(Z|[+-]\d\d(:?\d\d)?)$'
        AND (value #>> '{}')::timestamptz BETWEEN timestamptz '1971-01-01 00:00:00Z' AND timestamptz '9000-01-01 00:00:00Z'
    THEN
        RETURN NULL;
    END IF;
    RETURN 'a moment with a time zone, from 1971 to 8999, such as "2030-01-31T12:00:00Z"';
EXCEPTION WHEN data_exception THEN  -- such as the 31st of February
    RETURN 'a moment that exists, such as "2030-01-31T12:00:00Z"';
END
$_$;

CREATE FUNCTION public.horsies_notify_groups_sent(queue_name text, group_keys text[], ids text[]) RETURNS boolean
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    first text;
    last text;
    without int;
BEGIN
    SELECT min(k.key), max(k.key), min(k.at) FILTER (WHERE k.key IS NULL) INTO first, last, without
      FROM unnest(group_keys) WITH ORDINALITY AS k (key, at);
    RETURN (first IS NULL OR pg_notify('task_grouped', concat(queue_name, CASE WHEN first = last THEN ' ' || first END))
               IS NOT NULL)
       AND (without IS NULL OR public.horsies_notify_sent(queue_name, ids[without]));
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
    ELSIF OLD.status = NEW.status THEN
        RETURN NULL;
    ELSIF NEW.status = 'PENDING' AND NEW.group_key IS NOT NULL THEN
        told := pg_notify('task_grouped', NEW.queue_name || ' ' || NEW.group_key) IS NULL;
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

CREATE FUNCTION public.horsies_policy_is_sound(policy jsonb) RETURNS boolean
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
DECLARE
    rate constant jsonb := nullif(policy -> 'rate', 'null');
    most constant jsonb := nullif(policy -> 'max_concurrency', 'null');
    weight constant jsonb := nullif(policy -> 'weight', 'null');
    ageing constant jsonb := nullif(policy -> 'ageing_seconds', 'null');
BEGIN
    IF policy IS NULL THEN
        RETURN true;
    ELSIF jsonb_typeof(policy) <> 'object' OR policy - '{max_concurrency,rate,fair,limits,weight,ageing_seconds}'::text[] <> '{}'
        OR (most IS NOT NULL AND NOT public.horsies_is_count(most))
        OR (CASE WHEN weight IS NULL THEN false WHEN jsonb_typeof(weight) <> 'number' THEN true
                ELSE (weight #>> '{}')::numeric NOT BETWEEN 1 AND 1000
                  OR scale((weight #>> '{}')::numeric) <> 0 END)
        OR (CASE WHEN ageing IS NULL THEN false WHEN jsonb_typeof(ageing) <> 'number' THEN true
                ELSE (ageing #>> '{}')::numeric NOT BETWEEN 0.1 AND 2678400 END)
        OR coalesce(jsonb_typeof(policy -> 'fair'), 'boolean') <> 'boolean'
        OR coalesce(jsonb_typeof(policy -> 'limits'), 'array') <> 'array'
        OR jsonb_path_exists(policy -> 'limits', 'strict $[*] ? (@.type() != "string")')
    THEN
        RETURN false;
    ELSIF rate IS NULL THEN
        RETURN true;
    ELSIF jsonb_typeof(rate) <> 'object' OR rate - '{limit,per_seconds,burst}'::text[] <> '{}'
        OR NOT public.horsies_is_count(rate -> 'limit') OR NOT public.horsies_is_count(rate -> 'burst')
        OR jsonb_typeof(rate -> 'per_seconds') IS DISTINCT FROM 'number'
    THEN
        RETURN false;
    END IF;
    RETURN (rate ->> 'burst')::numeric <= (rate ->> 'limit')::numeric
        AND (rate ->> 'per_seconds')::numeric BETWEEN 0.1 AND 2678400;
END
$_$;

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

CREATE FUNCTION public.horsies_rate_room(rate jsonb, free_at timestamp with time zone, at timestamp with time zone, stepped timestamp with time zone, OUT burst integer, OUT spacing double precision, OUT slack double precision, OUT longest double precision, OUT ahead double precision, OUT is_stale boolean, OUT tokens integer, OUT wait_s double precision) RETURNS record
    LANGUAGE plpgsql IMMUTABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
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
$$;

CREATE FUNCTION public.horsies_schedule_changed() RETURNS trigger
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    times constant text[] := '{created_at,updated_at,timed_at}';
    is_timing boolean;
BEGIN
    IF TG_LEVEL = 'STATEMENT' THEN
        PERFORM pg_notify('schedule_state', '');
        RETURN NULL;
    ELSIF TG_OP = 'DELETE' THEN
        IF EXISTS (SELECT FROM public.horsies_schedulers s WHERE OLD.name = ANY (s.schedules)) THEN
            UPDATE public.horsies_schedule_state
               SET is_data = false, config_hash = NULL, next_run_at = NULL, problem = NULL, problem_at = NULL
             WHERE schedule_name = OLD.name AND is_data;
            RETURN NULL;
        END IF;
        DELETE FROM public.horsies_schedule_state WHERE schedule_name = OLD.name AND is_data;
        DELETE FROM public.horsies_schedule_runs WHERE schedule_name = OLD.name;
        RETURN NULL;
    END IF;
    is_timing := TG_OP = 'INSERT'
        OR (NEW.pattern, NEW.timezone, NEW.skipped_times, NEW.enabled)
           IS DISTINCT FROM (OLD.pattern, OLD.timezone, OLD.skipped_times, OLD.enabled);
    IF TG_WHEN = 'BEFORE' THEN
        IF TG_OP = 'UPDATE' AND NEW.name <> OLD.name THEN
            RAISE USING ERRCODE = 'check_violation', HINT = 'delete it and insert another one',
                MESSAGE = 'schedule ' || quote_literal(OLD.name) || ' cannot get another name: its runs are known by it';
        END IF;
        IF TG_OP = 'INSERT' THEN
            NEW.version := 1;
        ELSE
            NEW.version := OLD.version;
            IF to_jsonb(NEW) - times IS DISTINCT FROM to_jsonb(OLD) - times THEN
                NEW.version := OLD.version + 1;
                NEW.updated_at := statement_timestamp();
            END IF;
        END IF;
        IF is_timing THEN
            NEW.timed_at := statement_timestamp();
        END IF;
        RETURN NEW;
    END IF;
    IF is_timing THEN
        INSERT INTO public.horsies_schedule_state (schedule_name, is_data) VALUES (NEW.name, true)
        ON CONFLICT (schedule_name) DO UPDATE
           SET is_data = true, config_hash = NULL, next_run_at = NULL, problem = NULL, problem_at = NULL;
    ELSE
        UPDATE public.horsies_schedule_state SET problem = NULL, problem_at = NULL
         WHERE schedule_name = NEW.name AND problem_at IS NOT NULL;
    END IF;
    RETURN NULL;
END
$$;

CREATE FUNCTION public.horsies_send(task_name text, kwargs jsonb DEFAULT '{}'::jsonb, options jsonb DEFAULT '{}'::jsonb) RETURNS text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
DECLARE
    longest constant int := 315360000;  -- ten years, in seconds
    given jsonb := coalesce($2, '{}');
    asked jsonb := coalesce($3, '{}');
    name text;
    value jsonb;
    kind text;
    wanted text;
    new_id text;
    held text;
    micros bigint;
BEGIN
    IF coalesce($1, '') = '' OR length($1) > 255 THEN
        RAISE USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'horsies_send: a task has a name of 1 to 255 characters, '
            'not ' || coalesce(quote_literal(left($1, 60)), 'NULL'), HINT = 'Give the name in @app.task(...).';
    ELSIF jsonb_typeof(given) <> 'object' THEN
        RAISE USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'horsies_send: the arguments of task '
            || quote_literal($1) || ' are a JSON ' || jsonb_typeof(given) || ', not an object',
            HINT = 'Give the arguments by name: jsonb_build_object(''order_id'', 7).';
    ELSIF octet_length(given::text) > 268435456 THEN
        RAISE USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'horsies_send: the arguments of task '
            || quote_literal($1) || ' are larger than 256 MB', HINT = 'Store large data elsewhere and send its address.';
    ELSIF jsonb_typeof(asked) <> 'object' THEN
        RAISE USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'horsies_send: the options are a JSON '
            || jsonb_typeof(asked) || ', not an object', HINT = 'Give them as {"queue_name": "mail", "priority": 10}.';
    END IF;
    -- An option that is null is one that was not given: other languages send it so.
    SELECT coalesce(jsonb_object_agg(o.key, o.value), '{}') INTO asked
      FROM jsonb_each(asked) AS o (key, value) WHERE o.value <> 'null';
    FOR name, value IN SELECT o.key, o.value FROM jsonb_each(asked) AS o (key, value) LOOP
        kind := jsonb_typeof(value);
        wanted := CASE name
            WHEN 'queue_name' THEN CASE WHEN kind <> 'string' OR value #>> '{}' !~ '^[A-Za-z0-9_.-]{1,52}$'
                THEN '1 to 52 of A-Z a-z 0-9 _ . -' END
            WHEN 'priority' THEN CASE WHEN kind <> 'number' OR (value #>> '{}')::numeric NOT BETWEEN 1 AND 100
                    OR mod((value #>> '{}')::numeric, 1) <> 0
                THEN 'a whole number from 1 (first) to 100 (last)' END
            WHEN 'delay_seconds' THEN CASE WHEN kind <> 'number' OR (value #>> '{}')::numeric NOT BETWEEN 0 AND longest
                THEN 'a number of seconds from 0 to ten years' END
            WHEN 'ttl_seconds' THEN CASE WHEN kind <> 'number' OR (value #>> '{}')::numeric NOT BETWEEN 0.000001 AND longest
                THEN 'a positive number of seconds up to ten years' END
            WHEN 'keep_seconds' THEN CASE WHEN kind <> 'number' OR (value #>> '{}')::numeric NOT BETWEEN 0 AND longest
                    OR mod((value #>> '{}')::numeric, 1) <> 0
                THEN 'a whole number of seconds from 0 to ten years' END
            WHEN 'eta' THEN public.horsies_moment_problem(value)
            WHEN 'good_until' THEN public.horsies_moment_problem(value)
            WHEN 'unique_key' THEN CASE WHEN kind <> 'string' OR length(value #>> '{}') NOT BETWEEN 1 AND 255
                THEN 'a text of 1 to 255 characters' END
            WHEN 'group' THEN CASE WHEN kind <> 'string' OR length(value #>> '{}') NOT BETWEEN 1 AND 255
                THEN 'a text of 1 to 255 characters' END
            WHEN 'task_id' THEN CASE WHEN kind <> 'string'
                    OR value #>> '{}' !~ '^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$'
                THEN 'a UUID in its canonical form, in lower case' END
            WHEN 'store_result' THEN CASE WHEN kind <> 'boolean' THEN 'true or false' END
            WHEN 'metadata' THEN CASE
                WHEN kind <> 'object' THEN 'an object'
                WHEN octet_length(value::text) > 16384 THEN 'at most 16,384 bytes of JSON: store large data elsewhere'
                WHEN EXISTS (SELECT FROM jsonb_object_keys(value) AS k (key) WHERE k.key = '' OR starts_with(k.key, 'horsies.'))
                THEN 'an object whose keys are not empty and do not begin with "horsies.", which is reserved' END
            ELSE 'unknown' END;
        IF wanted = 'unknown' THEN
            RAISE USING ERRCODE = 'invalid_parameter_value',
                MESSAGE = 'horsies_send: there is no option ' || quote_literal(left(name, 60)), HINT = CASE
                WHEN name IN ('unique_for', 'unique_by_args', 'debounce', 'max_wait', 'replace')
                THEN 'Sends from SQL know unique_key alone: use the Python client for the others.'
                WHEN name IN ('max_retries', 'retry_policy', 'timeout_ms')
                THEN 'The registration of the task in the worker decides it: leave it out.'
                WHEN name IN ('delay', 'countdown') THEN 'Write delay_seconds.'
                WHEN name = 'ttl' THEN 'Write ttl_seconds.'
                WHEN name = 'keep_for' THEN 'Write keep_seconds.'
                WHEN name = 'queue' THEN 'Write queue_name.'
                ELSE 'Options are queue_name, priority, delay_seconds, eta, good_until, ttl_seconds, unique_key, task_id, '
                    'metadata, group, store_result and keep_seconds.' END;
        ELSIF wanted IS NOT NULL THEN
            RAISE USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'horsies_send: the option ' || name || ' is '
                || left(value::text, 80) || '; it takes ' || wanted, HINT = 'Give ' || wanted || '.';
        END IF;
    END LOOP;
    IF asked ? 'delay_seconds' AND asked ? 'eta' OR asked ? 'ttl_seconds' AND asked ? 'good_until' THEN
        RAISE USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'horsies_send: ' || CASE
            WHEN asked ? 'eta' AND asked ? 'delay_seconds' THEN 'delay_seconds and eta both say when the task may start'
            ELSE 'ttl_seconds and good_until both say until when it may start' END, HINT = 'Give one of them.';
    ELSIF coalesce((asked ->> 'good_until')::timestamptz,
                   statement_timestamp() + make_interval(secs => (asked ->> 'ttl_seconds')::float8))
          <= coalesce((asked ->> 'eta')::timestamptz,
                      statement_timestamp() + make_interval(secs => coalesce((asked ->> 'delay_seconds')::float8, 0))) THEN
        RAISE USING ERRCODE = 'invalid_parameter_value', MESSAGE = 'horsies_send: the task would expire before it may start',
            HINT = 'Give it a later good_until or ttl_seconds, or an earlier start.';
    END IF;
    -- A UUID of version 7, as the client makes them: ids of one session ascend, and break ties in the order of the queue.
    micros := (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;
    new_id := coalesce(asked ->> 'task_id', regexp_replace(lpad(to_hex(micros / 1000), 12, '0'), '^(.{8})', '\1-')
        || '-7' || lpad(to_hex(mod(micros, 1000) * 4096 / 1000), 3, '0') || '-' || right(gen_random_uuid()::text, 17));
    SELECT c.holder INTO held
      FROM public.horsies_send_calls(
           jsonb_build_array(jsonb_build_object(
               'task_name', $1, 'queue_name', coalesce(asked ->> 'queue_name', 'default'),
               'priority', coalesce((asked -> 'priority')::int, 100), 'eta', asked -> 'eta', 'delay', asked -> 'delay_seconds',
               'good_until', asked -> 'good_until', 'ttl', asked -> 'ttl_seconds', 'metadata', nullif(asked -> 'metadata', '{}'),
               'unique_key', asked -> 'unique_key', 'keep_seconds', asked -> 'keep_seconds',
               'task_options', '{"registered":true,"store_result":' || (asked ->> 'store_result') || '}')),
           ARRAY[new_id], NULL, NULL, ARRAY[nullif(given, '{}')::text],
           -- like the client's fingerprint, it leaves the metadata out; the id is compared by itself
           ARRAY[left(encode(sha256(convert_to(jsonb_build_array('sql', $1, given, asked - 'metadata' - 'task_id')::text,
                                               'UTF8')), 'hex'), 32)],
           ARRAY[asked ->> 'group'], NULL) AS c;
    RETURN coalesce(held, new_id);
END
$_$;

CREATE FUNCTION public.horsies_send_calls(kinds jsonb, ids text[], of_kind integer[], args text[], kwargs text[], enqueue_shas text[], group_keys text[], sent_at timestamp with time zone) RETURNS TABLE(at integer, holder text)
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
DECLARE
    written int;
    open_ids text[] := $2;
    places int[] := '{}';
    holders text[] := '{}';
    found record;
BEGIN
    -- After a lost race the next round sees the winner's row, or that it has ended. A transaction whose snapshot is older
    -- than that row loses every time.
    FOR round IN 1..5 LOOP
        -- In the order of keys and names: two sends that take the same keys wait for each other, and do not deadlock. Of
        -- calls with one key the first of the list is written; the others by id, as ids may be taken, too.
        INSERT INTO public.horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at,
               good_until, max_retries, task_options, enqueue_sha, metadata, group_key, unique_key, keep_seconds)
        SELECT x.id, k.task_name, k.queue_name, k.priority, x.args, x.kwargs, coalesce($8, statement_timestamp()),
               coalesce(k.eta, statement_timestamp() + make_interval(secs => coalesce(k.delay, 0))),
               coalesce(k.good_until, statement_timestamp() + make_interval(secs => k.ttl)),
               coalesce(k.max_retries, 0), k.task_options, x.sha, nullif(k.metadata, 'null'), x.group_key, k.unique_key,
               k.keep_seconds
          FROM ROWS FROM (unnest($2), unnest($3), unnest($4), unnest($5), unnest($6), unnest($7)) WITH ORDINALITY
               AS x (id, kind, args, kwargs, sha, group_key, nth)
          JOIN ROWS FROM (jsonb_to_recordset($1) AS (task_name text, queue_name text, priority int, eta timestamptz,
                    delay float8, good_until timestamptz, ttl float8, max_retries int, task_options text, metadata jsonb,
                    unique_key text, keep_seconds int)) WITH ORDINALITY AS k (task_name, queue_name, priority, eta,
                    delay, good_until, ttl, max_retries, task_options, metadata, unique_key, keep_seconds, nth)
            ON k.nth = coalesce(x.kind, 1)
         WHERE round = 1 OR x.id = ANY (open_ids)
         ORDER BY k.unique_key COLLATE "C", CASE WHEN k.unique_key IS NULL THEN x.id ELSE k.task_name END COLLATE "C", x.nth
        ON CONFLICT DO NOTHING;
        GET DIAGNOSTICS written = ROW_COUNT;
        IF written = cardinality(open_ids) THEN
            RETURN QUERY SELECT h.at, h.holder FROM unnest(places, holders) AS h (at, holder);
            RETURN;
        END IF;
        SELECT min(x.id) FILTER (WHERE t.sha IS DISTINCT FROM x.sha AND t.id IS NOT NULL) AS taken,
               coalesce(array_agg(x.id) FILTER (WHERE t.id IS NULL AND h.id IS NULL), '{}') AS ids,
               coalesce(array_agg(x.nth::int) FILTER (WHERE h.id IS NOT NULL), '{}') AS places,
               coalesce(array_agg(h.id::text) FILTER (WHERE h.id IS NOT NULL), '{}') AS holders
          INTO found
          FROM ROWS FROM (unnest($2), unnest($3), unnest($6)) WITH ORDINALITY AS x (id, kind, sha, nth)
          LEFT JOIN LATERAL (SELECT t.id, t.enqueue_sha AS sha FROM public.horsies_tasks t
                              WHERE t.id = x.id LIMIT 1) AS t ON true
          LEFT JOIN LATERAL (SELECT h.id FROM public.horsies_tasks h
                              WHERE t.id IS NULL AND h.task_name = $1 -> (coalesce(x.kind, 1) - 1) ->> 'task_name'
                                AND h.unique_key = $1 -> (coalesce(x.kind, 1) - 1) ->> 'unique_key'
                                AND h.status IN ('PENDING', 'CLAIMED', 'RUNNING') LIMIT 1) AS h ON true
         WHERE round = 1 OR x.id = ANY (open_ids);
        IF found.taken IS NOT NULL THEN
            RAISE USING ERRCODE = 'ZH001', MESSAGE = 'task id ' || found.taken || ' is taken by a task with other '
                'arguments or options; nothing was sent',
                HINT = 'Send it with another task_id, or repeat the very same call.';
        END IF;
        open_ids := found.ids;
        places := places || found.places;
        holders := holders || found.holders;
        IF open_ids = '{}' THEN
            RETURN QUERY SELECT h.at, h.holder FROM unnest(places, holders) AS h (at, holder);
            RETURN;
        END IF;
    END LOOP;
    RAISE USING ERRCODE = 'serialization_failure', MESSAGE = 'another transaction that cannot be seen from here holds the '
        'id or the unique key of task ' || open_ids[1] || '; nothing was sent', HINT = 'Repeat the transaction.';
END
$_$;

CREATE PROCEDURE public.horsies_send_task(IN id text, IN args text, IN kwargs text, IN enqueue_sha character varying, IN task_name character varying, IN queue_name character varying, IN priority integer, IN sent_at timestamp with time zone, IN eta timestamp with time zone, IN delay interval, IN good_until timestamp with time zone, IN ttl interval, IN max_retries integer, IN task_options text, IN metadata jsonb DEFAULT NULL::jsonb, IN group_key character varying DEFAULT NULL::character varying)
    LANGUAGE plpgsql
    AS $$
DECLARE
    setting text;
    is_told boolean;
BEGIN
    setting := pg_catalog.set_config('horsies.notify', 'off', true);
    INSERT INTO public.horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, good_until, max_retries, task_options, enqueue_sha, metadata, group_key)
    VALUES (id, task_name, queue_name, priority, args, kwargs, sent_at,
            coalesce(eta, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.+) delay),
            coalesce(good_until, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.+) ttl),
            max_retries, task_options, enqueue_sha, metadata, group_key);
    COMMIT;
    IF group_key IS NOT NULL THEN
        setting := pg_catalog.pg_notify('task_grouped', pg_catalog.concat(queue_name, ' ', group_key));
    ELSE
        is_told := public.horsies_notify_sent(queue_name, id);
    END IF;
END
$$;

CREATE PROCEDURE public.horsies_send_tasks(IN ids text[], IN args text[], IN kwargs text[], IN enqueue_shas text[], IN task_name character varying, IN queue_name character varying, IN priority integer, IN sent_at timestamp with time zone, IN eta timestamp with time zone, IN delay interval, IN good_until timestamp with time zone, IN ttl interval, IN max_retries integer, IN task_options text, IN metadata jsonb DEFAULT NULL::jsonb, IN group_keys text[] DEFAULT NULL::text[])
    LANGUAGE plpgsql
    AS $$
DECLARE
    setting text;
    is_told boolean;
BEGIN
    setting := pg_catalog.set_config('horsies.notify', 'off', true);
    INSERT INTO public.horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, good_until, max_retries, task_options, enqueue_sha, metadata, group_key)
    SELECT x.id, task_name, queue_name, priority, x.args, x.kwargs, sent_at,
           coalesce(eta, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.+) delay),
           coalesce(good_until, pg_catalog.statement_timestamp() OPERATOR(pg_catalog.+) ttl),
           max_retries, task_options, x.enqueue_sha, metadata, x.group_key
      FROM ROWS FROM (pg_catalog.unnest(ids), pg_catalog.unnest(args), pg_catalog.unnest(kwargs),
                      pg_catalog.unnest(enqueue_shas), pg_catalog.unnest(group_keys)) AS x (id, args, kwargs, enqueue_sha, group_key);
    COMMIT;
    IF group_keys IS NOT NULL THEN
        is_told := public.horsies_notify_groups_sent(queue_name, group_keys, ids);
    ELSE
        is_told := public.horsies_notify_sent(queue_name, ids[1]);
    END IF;
END
$$;

CREATE FUNCTION public.horsies_send_unique(new_id text, new_args text, new_kwargs text, new_sha character varying, new_name character varying, new_queue character varying, new_priority integer, new_sent_at timestamp with time zone, eta timestamp with time zone, delay interval, new_good_until timestamp with time zone, ttl interval, new_max_retries integer, new_options text, new_metadata jsonb, new_group character varying, new_key character varying, mode text, keep_for interval, debounce interval, max_wait interval, new_keep_seconds integer, is_alone boolean, OUT holder_id text, OUT holder_sha text, OUT outcome text) RETURNS record
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    -- Of the last 64 sends that a task took over: one that is repeated after a lost answer must not undo a later one.
    send_hash constant bigint := hashtextextended(concat(new_id, ' ', new_sha), 0);
    held public.horsies_unique_keys;
    holder record;
    is_new boolean := false;
    is_moved boolean;
    at timestamptz;
    start timestamptz;
BEGIN
    IF new_key IS NULL OR new_key = '' OR mode IS NULL OR mode NOT IN ('keep', 'replace', 'debounce')
        OR (mode = 'keep') <> (keep_for IS NOT NULL) OR (mode = 'debounce') <> (debounce IS NOT NULL)
    THEN
        RAISE 'horsies_send_unique: a key, and keep with keep_for, replace, or debounce with a time'
            USING ERRCODE = 'invalid_parameter_value';
    END IF;
    IF mode = 'keep' THEN
        -- Without a lock: a duplicate then writes nothing, and does not wait for a transaction that does.
        SELECT k.task_id INTO holder_id FROM public.horsies_unique_keys k
         WHERE k.task_name = new_name AND k.key = new_key AND k.until > clock_timestamp() AND k.task_id <> new_id;
        IF FOUND AND NOT EXISTS (SELECT FROM public.horsies_tasks t WHERE t.id = new_id) THEN
            outcome := 'kept';
            RETURN;
        END IF;
    END IF;
    LOOP
        SELECT k.* INTO held FROM public.horsies_unique_keys k
         WHERE k.task_name = new_name AND k.key = new_key FOR UPDATE;
        EXIT WHEN FOUND;
        at := clock_timestamp();
        INSERT INTO public.horsies_unique_keys AS k (task_name, key, task_id, first_at, until)
        VALUES (new_name, new_key, new_id, at, at + coalesce(keep_for, interval '0')) ON CONFLICT DO NOTHING
        RETURNING k.* INTO held;
        is_new := FOUND;
        EXIT WHEN is_new;
    END LOOP;
    at := clock_timestamp();  -- the time after the wait for the lock: the last to arrive has the latest

    FOR round IN 1..5 LOOP
        SELECT t.id, t.enqueue_sha INTO holder_id, holder_sha FROM public.horsies_tasks t WHERE t.id = new_id;
        IF FOUND THEN
            outcome := 'repeated';
        ELSIF NOT is_new AND (send_hash = ANY (held.recent) OR held.task_id = new_id AND held.until > at) THEN
            holder_id := held.task_id;
            outcome := 'repeated';
        END IF;
        IF outcome IS NOT NULL THEN
            IF is_new THEN
                DELETE FROM public.horsies_unique_keys k WHERE k.task_name = new_name AND k.key = new_key;
            END IF;
            RETURN;
        END IF;

        -- The holder is that of the row, unless that was deleted and another task was sent under its id since. If it has
        -- ended, or cannot be replaced any more, it is the one that has the key in the index: a task that was sent with
        -- unique_key alone, or an older one that waits for its retry.
        SELECT t.id, t.enqueue_sha, t.status INTO holder FROM public.horsies_tasks t
         WHERE t.id = held.task_id AND t.task_name = new_name AND t.created_at <= held.first_at
           AND t.status IN ('PENDING', 'CLAIMED', 'RUNNING');
        IF NOT FOUND OR mode <> 'keep' AND holder.status <> 'PENDING' THEN
            SELECT t.id, t.enqueue_sha, t.status INTO holder FROM public.horsies_tasks t
             WHERE t.task_name = new_name AND t.unique_key = new_key AND t.status IN ('PENDING', 'CLAIMED', 'RUNNING');
        END IF;

        IF mode = 'keep' THEN
            IF holder.id IS NOT NULL OR NOT is_new AND held.until > at THEN
                holder_id := coalesce(holder.id, held.task_id);
                holder_sha := holder.enqueue_sha;
                outcome := 'kept';
                IF is_new THEN
                    DELETE FROM public.horsies_unique_keys k WHERE k.task_name = new_name AND k.key = new_key;
                END IF;
                RETURN;
            END IF;
        ELSIF holder.status = 'PENDING' THEN
            -- A claim may be faster. It is waited for, and the task is then no longer PENDING. A task that runs is never
            -- locked: a transaction of the caller would keep its end from being written.
            SELECT t.id, t.enqueue_sha, t.queue_name, t.priority, t.group_key, t.enqueued_at,
                   t.retry_count + t.snoozes > 0 AS has_run
              INTO holder FROM public.horsies_tasks t
             WHERE t.id = holder.id AND t.status = 'PENDING' AND NOT t.is_workflow_task FOR NO KEY UPDATE;
            IF FOUND THEN
                IF holder.id <> held.task_id OR holder.has_run AND held.first_at + max_wait <= at THEN
                    held.first_at := at;  -- the task of another kind of send, or one that has run since: a new window
                END IF;
                is_moved := (holder.queue_name, holder.priority, holder.group_key)
                    IS DISTINCT FROM (new_queue, new_priority, new_group);
                start := CASE WHEN mode = 'debounce' THEN least(at + debounce, held.first_at + max_wait)
                              ELSE coalesce(eta, at + delay, holder.enqueued_at) END;
                -- Claims look at new rows first: one that comes to its place from elsewhere, or from the future, must not
                -- be older than now.
                start := greatest(start, CASE WHEN is_moved THEN at ELSE least(at, holder.enqueued_at) END);
                UPDATE public.horsies_tasks t
                   SET args = new_args, kwargs = new_kwargs, queue_name = new_queue, priority = new_priority,
                       enqueued_at = start, next_retry_at = CASE WHEN t.next_retry_at IS NOT NULL THEN start END,
                       good_until = coalesce(new_good_until, at + ttl),
                       -- what the earlier call used up is not counted against this one
                       max_retries = least(t.retry_count + new_max_retries, 10000), snoozes = 0, crash_count = 0,
                       task_options = new_options, metadata = new_metadata, group_key = new_group,
                       keep_seconds = new_keep_seconds, updated_at = at
                 WHERE t.id = holder.id AND t.status = 'PENDING';
                UPDATE public.horsies_unique_keys k
                   SET task_id = holder.id, first_at = held.first_at, replaced = k.replaced + 1,
                       recent = (ARRAY[send_hash] || k.recent)[1:64]
                 WHERE k.task_name = new_name AND k.key = new_key;
                -- A worker that sleeps until a time before the new one finds nothing then, and asks for the next time.
                -- It hears of a task that comes earlier, and of one that it may have passed over while this lock is held.
                IF is_moved OR start < holder.enqueued_at OR is_alone IS NOT TRUE
                    OR holder.enqueued_at < at + interval '0.25 s'
                THEN
                    IF new_group IS NULL THEN
                        PERFORM pg_notify('task_new', holder.id), pg_notify('task_queue_' || new_queue, holder.id);
                    ELSE
                        PERFORM pg_notify('task_grouped', concat(new_queue, ' ', new_group));
                    END IF;
                END IF;
                holder_id := holder.id;
                holder_sha := holder.enqueue_sha;
                outcome := 'replaced';
                RETURN;
            END IF;
        END IF;

        -- The index of unique_key allows one live task: beside a task in flight, only the row of the key knows the new
        -- one. A task that waits and was not seen above is a conflict, and the next round replaces it.
        INSERT INTO public.horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at,
               good_until, max_retries, task_options, enqueue_sha, metadata, group_key, unique_key,
               keep_seconds)
        VALUES (new_id, new_name, new_queue, new_priority, new_args, new_kwargs, new_sent_at,
                coalesce(eta, at + coalesce(debounce, delay, interval '0')), coalesce(new_good_until, at + ttl),
                new_max_retries, new_options, new_sha, new_metadata, new_group,
                CASE WHEN mode = 'keep' OR NOT EXISTS (
                         SELECT FROM public.horsies_tasks t WHERE t.task_name = new_name AND t.unique_key = new_key
                            AND t.status IN ('CLAIMED', 'RUNNING')) THEN new_key END,
                new_keep_seconds)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            IF NOT is_new THEN
                UPDATE public.horsies_unique_keys k
                   SET task_id = new_id, first_at = at, until = at + coalesce(keep_for, interval '0'), replaced = 0
                 WHERE k.task_name = new_name AND k.key = new_key;
            END IF;
            holder_id := new_id;
            holder_sha := new_sha;
            outcome := 'sent';
            RETURN;
        END IF;
    END LOOP;
    outcome := 'lost';
    IF is_new THEN
        DELETE FROM public.horsies_unique_keys k WHERE k.task_name = new_name AND k.key = new_key;
    END IF;
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

CREATE FUNCTION public.horsies_signal(workflow_id text, name text, value jsonb DEFAULT 'null'::jsonb, signal_id text DEFAULT NULL::text, path text DEFAULT NULL::text) RETURNS text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
#variable_conflict use_column
DECLARE
    run_id text := $1;
    rest text := trim('/' FROM coalesce($5, ''));
    part text;
    target record;
BEGIN
    IF $2 IS NULL OR $2 = '' OR length($2) > 255 THEN
        RAISE USING ERRCODE = 'invalid_parameter_value', MESSAGE =
            'a signal needs a name of 1 to 255 characters, not ' || coalesce(quote_literal(left($2, 60)), 'NULL');
    ELSIF $4 = '' OR length($4) > 255 THEN
        RAISE 'the id of a signal has 1 to 255 characters' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- The id of a node may have slashes in it: the longest one that fits is taken.
    WHILE rest <> '' LOOP
        part := rest;
        LOOP
            SELECT n.sub_workflow_id, n.kind INTO target FROM public.horsies_workflow_tasks n
             WHERE n.workflow_id = run_id AND n.node_id = regexp_replace(part, '^item\[(\d+)\]$', 'item-\1');
            EXIT WHEN FOUND OR position('/' in part) = 0;
            part := regexp_replace(part, '/[^/]*$', '');
        END LOOP;
        IF NOT FOUND THEN
            EXIT WHEN NOT EXISTS (SELECT FROM public.horsies_workflows w WHERE w.id = run_id);
            RETURN 'NODE_NOT_FOUND';
        ELSIF target.sub_workflow_id IS NULL THEN
            RETURN CASE WHEN target.kind IN ('workflow', 'map') THEN 'NOT_STARTED' ELSE 'NODE_NOT_FOUND' END;
        END IF;
        run_id := target.sub_workflow_id;
        rest := ltrim(substr(rest, length(part) + 1), '/');
    END LOOP;
    SELECT w.status, w.ends_as INTO target FROM public.horsies_workflows w WHERE w.id = run_id;
    IF NOT FOUND THEN
        RETURN 'WORKFLOW_NOT_FOUND';
    ELSIF EXISTS (SELECT FROM public.horsies_workflow_signals s WHERE s.id = $4) THEN
        RETURN 'REPEATED';
    ELSIF target.status IN ('COMPLETED', 'FAILED', 'CANCELLED') OR target.ends_as IS NOT NULL THEN
        RETURN 'WORKFLOW_ENDED';
    END IF;
    INSERT INTO public.horsies_workflow_signals (id, workflow_id, name, value)
    VALUES (coalesce($4, gen_random_uuid()::text), run_id, $2, coalesce($3, 'null')::text)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN 'REPEATED';
    END IF;
    PERFORM pg_notify('workflow_step', 's:' || run_id);
    RETURN 'DELIVERED';
END
$_$;

CREATE FUNCTION public.horsies_start_workflow(run jsonb) RETURNS SETOF text
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $_$
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
        INSERT INTO public.horsies_workflows (id, name, status, on_error, output_task_index, success_policy,
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
        INSERT INTO public.horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, args, kwargs,
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
        INSERT INTO public.horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at,
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
$_$;

CREATE FUNCTION public.horsies_stop_workflows(ids text[], new_status text, task_error text, node_error text, run_error text, inside_error text, reason text, undoes boolean) RETURNS SETOF text
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
DECLARE
    moment constant timestamptz := clock_timestamp();
    -- Runs that have something to undo, and the runs around them, go on until their running tasks have ended and their
    -- compensations have run; `ends_as` keeps the end. A run that was continued may have something in its past.
    undoing constant text[] := CASE WHEN undoes THEN ARRAY(
        WITH RECURSIVE around AS (
            SELECT w.id, w.parent_workflow_id FROM public.horsies_workflows w
             WHERE w.id = ANY (ids) AND (w.continues > 0 OR EXISTS (
                   SELECT FROM public.horsies_workflow_tasks n WHERE n.workflow_id = w.id
                      AND n.compensate IS NOT NULL AND n.status IN ('COMPLETED', 'ENQUEUED', 'RUNNING')))
            UNION
            SELECT p.id, p.parent_workflow_id FROM around
              JOIN public.horsies_workflows p ON p.id = around.parent_workflow_id
             WHERE p.id = ANY (ids))
        SELECT around.id FROM around) ELSE '{}' END;
    stopped_ids text[];
BEGIN
    WITH run AS (
        UPDATE public.horsies_workflows w
           SET error = CASE WHEN w.id = ids[1] THEN run_error ELSE inside_error END, updated_at = moment, nodes_left = 0, wake_at = NULL, paused_inside = false,
               completed_at = CASE WHEN NOT w.id = ANY (undoing) THEN moment END,
               ends_as = CASE WHEN w.id = ANY (undoing) THEN CASE WHEN w.id = ids[1] THEN new_status ELSE 'CANCELLED' END END,
               unsettled = w.unsettled AND (w.id = ANY (undoing) OR NOT w.parent_workflow_id = ANY (ids)),
               status = CASE WHEN w.id = ANY (undoing) THEN 'RUNNING' WHEN w.id = ids[1] THEN new_status ELSE 'CANCELLED' END
         WHERE w.id = ANY (ids) AND w.status IN ('PENDING', 'RUNNING', 'PAUSED') AND w.ends_as IS NULL
        RETURNING w.id
    ), live AS MATERIALIZED (
        SELECT n.ctid AS tid, n.task_id, n.sub_workflow_id FROM run
          JOIN public.horsies_workflow_tasks n ON n.workflow_id = run.id
           AND n.status IN ('PENDING', 'READY', 'WAITING', 'ENQUEUED', 'RUNNING')
         -- the workflow inside is still to end, and ends its node
         WHERE NOT (n.status = 'RUNNING' AND EXISTS (
               SELECT FROM public.horsies_workflows c WHERE c.id = n.sub_workflow_id
                  AND (c.id = ANY (undoing) OR c.ends_as IS NOT NULL)))
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
        SELECT live.tid FROM live WHERE live.task_id IS NULL OR live.sub_workflow_id IS NOT NULL
        UNION ALL
        SELECT stopped.tid FROM stopped WHERE stopped.status = 'CANCELLED'
    ), node AS (
        UPDATE public.horsies_workflow_tasks n
           SET error = node_error, completed_at = moment, updated_at = moment, wake_at = NULL,
               skip_reason = CASE WHEN n.status <> 'RUNNING' THEN reason END,
               status = CASE WHEN n.status = 'RUNNING' THEN 'FAILED' ELSE 'SKIPPED' END
          FROM unstarted u WHERE n.ctid = u.tid
    ), told AS MATERIALIZED (
        SELECT pg_notify('task_cancel', stopped.id) FROM stopped WHERE stopped.status = 'RUNNING'
    ), stepped AS MATERIALIZED (
        SELECT run.id, pg_notify('workflow_step', 'w:' || run.id) FROM run
    )
    SELECT coalesce(array_agg(stepped.id::text), '{}') INTO stopped_ids
      FROM stepped WHERE (SELECT count(*) FROM told) >= 0;
    UPDATE public.horsies_workflows w
       SET nodes_left = (SELECT count(*) FROM public.horsies_workflow_tasks n WHERE n.workflow_id = w.id
                            AND n.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED'))
     WHERE w.id = ANY (stopped_ids) AND w.id = ANY (undoing);
    RETURN QUERY SELECT x.id FROM unnest(stopped_ids) AS x (id);
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
        sound := NOT claimed AND completed_at IS NOT NULL AND terminal_at IS NOT NULL
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

CREATE TABLE public.horsies_limits (
    name character varying(100) NOT NULL,
    declared jsonb,
    declared_at timestamp with time zone,
    override jsonb,
    override_at timestamp with time zone,
    policy jsonb GENERATED ALWAYS AS ((COALESCE(declared, '{}'::jsonb) || COALESCE(override, '{}'::jsonb))) STORED,
    free_at timestamp with time zone,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    CONSTRAINT ck_horsies_limits_policy CHECK ((public.horsies_policy_is_sound(declared) AND public.horsies_policy_is_sound(override))),
    CONSTRAINT ck_horsies_limits_time_range CHECK (((LEAST(declared_at, override_at, free_at, updated_at) >= to_timestamp((0)::double precision)) AND (GREATEST(declared_at, override_at, free_at, updated_at) <= to_timestamp(('221845392000'::bigint)::double precision))))
)
WITH (fillfactor='50');

CREATE TABLE public.horsies_queue_state (
    queue_name character varying(100) NOT NULL,
    paused_at timestamp with time zone,
    updated_at timestamp with time zone DEFAULT now() NOT NULL,
    declared jsonb,
    declared_at timestamp with time zone,
    override jsonb,
    override_at timestamp with time zone,
    policy jsonb GENERATED ALWAYS AS ((COALESCE(declared, '{}'::jsonb) || COALESCE(override, '{}'::jsonb))) STORED,
    is_limited boolean GENERATED ALWAYS AS ((COALESCE((override -> 'limits'::text), (declared -> 'limits'::text), '[]'::jsonb) <> '[]'::jsonb)) STORED,
    CONSTRAINT ck_horsies_queue_state_policy CHECK ((public.horsies_policy_is_sound(declared) AND public.horsies_policy_is_sound(override))),
    CONSTRAINT ck_horsies_queue_state_queue_name CHECK (((queue_name)::text ~ '^[A-Za-z0-9_.-]{1,52}$'::text)),
    CONSTRAINT ck_horsies_queue_state_time_range CHECK (((LEAST(paused_at, updated_at, declared_at, override_at) >= to_timestamp((0)::double precision)) AND (GREATEST(paused_at, updated_at, declared_at, override_at) <= to_timestamp(('221845392000'::bigint)::double precision))))
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
    group_key character varying(255) COLLATE pg_catalog."C",
    keep_until timestamp with time zone,
    snoozes smallint DEFAULT 0 NOT NULL,
    crash_count smallint DEFAULT 0 NOT NULL,
    store_result boolean DEFAULT true NOT NULL,
    keep_seconds integer,
    CONSTRAINT ck_horsies_tasks_sound CHECK (public.horsies_task_is_sound(task_name, queue_name, unique_key, priority, status, claimed, claimed_by_worker_id, claimed_at, claim_expires_at, claim_generation, started_at, good_until, worker_pid, finalizing_at, completed_at, failed_at, terminal_at, result, error_code, retry_count, max_retries, manual_retries, sent_at, enqueued_at, cancel_requested_at, next_retry_at, created_at, updated_at, keep_until, metadata))
)
WITH (fillfactor='80', autovacuum_vacuum_scale_factor='0.01', autovacuum_vacuum_threshold='1000', autovacuum_analyze_scale_factor='0.02');

CREATE VIEW public.horsies_queue_load AS
 WITH RECURSIVE alone AS (
        ( SELECT t.queue_name,
            t.priority
           FROM public.horsies_tasks t
          WHERE (((t.status)::text = 'PENDING'::text) AND (NOT t.withdrawn) AND (t.group_key IS NULL))
          ORDER BY t.queue_name, t.priority
         LIMIT 1)
        UNION ALL
         SELECT n.queue_name,
            n.priority
           FROM (alone p
             CROSS JOIN LATERAL ( SELECT t.queue_name,
                    t.priority
                   FROM public.horsies_tasks t
                  WHERE (((t.status)::text = 'PENDING'::text) AND (NOT t.withdrawn) AND (t.group_key IS NULL) AND (ROW((t.queue_name)::text, t.priority) > ROW((p.queue_name)::text, p.priority)))
                  ORDER BY t.queue_name, t.priority
                 LIMIT 1) n)
        ), grouped AS (
        ( SELECT t.queue_name,
            t.priority
           FROM public.horsies_tasks t
          WHERE (((t.status)::text = 'PENDING'::text) AND (NOT t.withdrawn) AND (t.group_key IS NOT NULL))
          ORDER BY t.queue_name, t.priority
         LIMIT 1)
        UNION ALL
         SELECT n.queue_name,
            n.priority
           FROM (grouped p
             CROSS JOIN LATERAL ( SELECT t.queue_name,
                    t.priority
                   FROM public.horsies_tasks t
                  WHERE (((t.status)::text = 'PENDING'::text) AND (NOT t.withdrawn) AND (t.group_key IS NOT NULL) AND (ROW((t.queue_name)::text, t.priority) > ROW((p.queue_name)::text, p.priority)))
                  ORDER BY t.queue_name, t.priority
                 LIMIT 1) n)
        ), held AS (
        ( SELECT t.queue_name
           FROM public.horsies_tasks t
          WHERE ((t.status)::text = ANY ((ARRAY['CLAIMED'::character varying, 'RUNNING'::character varying])::text[]))
          ORDER BY t.queue_name
         LIMIT 1)
        UNION ALL
         SELECT n.queue_name
           FROM (held h
             CROSS JOIN LATERAL ( SELECT t.queue_name
                   FROM public.horsies_tasks t
                  WHERE (((t.status)::text = ANY ((ARRAY['CLAIMED'::character varying, 'RUNNING'::character varying])::text[])) AND ((t.queue_name)::text > (h.queue_name)::text))
                  ORDER BY t.queue_name
                 LIMIT 1) n)
        ), name AS (
         SELECT alone.queue_name
           FROM alone
        UNION
         SELECT grouped.queue_name
           FROM grouped
        UNION
         SELECT held.queue_name
           FROM held
        UNION
         SELECT horsies_queue_state.queue_name
           FROM public.horsies_queue_state
        ), bound AS MATERIALIZED (
         SELECT GREATEST((100)::bigint, (200000 / GREATEST((20)::bigint, (( SELECT count(*) AS count
                   FROM alone) + ( SELECT count(*) AS count
                   FROM grouped))))) AS tasks
        )
 SELECT name.queue_name,
    waiting.ready,
    work.claimed,
    work.running,
    ((
        CASE
            WHEN (pause.paused_at IS NULL) THEN waiting.ready
            ELSE (0)::bigint
        END + work.claimed) + work.running) AS load,
    (COALESCE(EXTRACT(epoch FROM (statement_timestamp() - waiting.since)), (0)::numeric))::double precision AS oldest_ready_seconds,
    (pause.paused_at IS NOT NULL) AS paused,
    waiting.capped
   FROM (((name
     LEFT JOIN public.horsies_queue_state pause ON (((pause.queue_name)::text = (name.queue_name)::text)))
     CROSS JOIN LATERAL ( SELECT (COALESCE(sum(x.ready), (0)::numeric))::bigint AS ready,
            min(x.since) AS since,
            COALESCE(bool_or((x.ready >= ( SELECT bound.tasks
                   FROM bound))), false) AS capped
           FROM ( SELECT count(*) AS ready,
                    min(r.enqueued_at) AS since
                   FROM (alone p
                     CROSS JOIN LATERAL ( SELECT first.enqueued_at
                           FROM ( SELECT t.enqueued_at
                                   FROM public.horsies_tasks t
                                  WHERE (((t.status)::text = 'PENDING'::text) AND (NOT t.withdrawn) AND (t.group_key IS NULL) AND ((t.queue_name)::text = (p.queue_name)::text) AND (t.priority = p.priority) AND (t.enqueued_at <= statement_timestamp()))
                                  ORDER BY t.queue_name, t.priority, t.enqueued_at, t.id
                                 LIMIT 10000) first
                         LIMIT ( SELECT bound.tasks
                                   FROM bound)) r)
                  WHERE ((p.queue_name)::text = (name.queue_name)::text)
                  GROUP BY p.priority
                UNION ALL
                 SELECT count(*) AS ready,
                    min(r.enqueued_at) AS since
                   FROM (grouped p
                     CROSS JOIN LATERAL ( SELECT first.enqueued_at
                           FROM ( SELECT t.enqueued_at
                                   FROM public.horsies_tasks t
                                  WHERE (((t.status)::text = 'PENDING'::text) AND (NOT t.withdrawn) AND (t.group_key IS NOT NULL) AND ((t.queue_name)::text = (p.queue_name)::text) AND (t.priority = p.priority) AND (t.enqueued_at <= statement_timestamp()))
                                  ORDER BY t.queue_name, t.priority, t.enqueued_at, t.id
                                 LIMIT 10000) first
                         LIMIT ( SELECT bound.tasks
                                   FROM bound)) r)
                  WHERE ((p.queue_name)::text = (name.queue_name)::text)
                  GROUP BY p.priority) x) waiting)
     CROSS JOIN LATERAL ( SELECT count(*) FILTER (WHERE ((t.status)::text = 'CLAIMED'::text)) AS claimed,
            count(*) FILTER (WHERE ((t.status)::text = 'RUNNING'::text)) AS running
           FROM public.horsies_tasks t
          WHERE (((t.status)::text = ANY ((ARRAY['CLAIMED'::character varying, 'RUNNING'::character varying])::text[])) AND ((t.queue_name)::text = (name.queue_name)::text))) work);

COMMENT ON VIEW public.horsies_queue_load IS 'Ready, claimed and running tasks of each queue, for autoscalers; see operations/deploying.md';

CREATE TABLE public.horsies_rate_limits (
    name character varying(100) NOT NULL,
    key character varying(255) NOT NULL COLLATE pg_catalog."C",
    free_at timestamp with time zone NOT NULL,
    CONSTRAINT ck_horsies_rate_limits_time_range CHECK (((LEAST(free_at) >= to_timestamp((0)::double precision)) AND (GREATEST(free_at) <= to_timestamp(('221845392000'::bigint)::double precision))))
)
WITH (fillfactor='50');

CREATE TABLE public.horsies_schedule_runs (
    schedule_name character varying(255) NOT NULL,
    place smallint NOT NULL,
    entry integer NOT NULL,
    slot timestamp with time zone NOT NULL,
    last_slot timestamp with time zone NOT NULL,
    fired_at timestamp with time zone NOT NULL,
    task_id character varying(36),
    skipped character varying(20),
    is_request boolean DEFAULT false NOT NULL,
    CONSTRAINT ck_horsies_schedule_runs_outcome CHECK ((((task_id IS NULL) <> (skipped IS NULL)) AND ((skipped IS NULL) OR ((skipped)::text = ANY ((ARRAY['missed'::character varying, 'overlap'::character varying, 'paused'::character varying, 'refused'::character varying])::text[]))))),
    CONSTRAINT ck_horsies_schedule_runs_place CHECK (((place >= 0) AND (place <= 19))),
    CONSTRAINT ck_horsies_schedule_runs_time_range CHECK (((LEAST(slot, last_slot, fired_at) >= to_timestamp((0)::double precision)) AND (GREATEST(slot, last_slot, fired_at) <= to_timestamp(('221845392000'::bigint)::double precision))))
)
WITH (fillfactor='70');

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
    is_data boolean DEFAULT false NOT NULL,
    entries integer DEFAULT 0 NOT NULL,
    problem text,
    problem_at timestamp with time zone,
    CONSTRAINT ck_horsies_schedule_state_runs CHECK (((run_count = 0) OR ((run_count > 0) AND (last_run_at IS NOT NULL) AND (last_task_id IS NOT NULL)))),
    CONSTRAINT ck_horsies_schedule_state_time_range CHECK (((LEAST(last_run_at, next_run_at, paused_at, run_requested_at, updated_at, problem_at) >= to_timestamp((0)::double precision)) AND (GREATEST(last_run_at, next_run_at, paused_at, run_requested_at, updated_at, problem_at) <= to_timestamp(('221845392000'::bigint)::double precision))))
);

CREATE TABLE public.horsies_schedulers (
    id character varying(36) NOT NULL,
    hostname character varying(255) NOT NULL,
    pid integer NOT NULL,
    tasks text[] NOT NULL,
    workflows text[] NOT NULL,
    schedules text[] NOT NULL,
    started_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    seen_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    CONSTRAINT ck_horsies_schedulers_time_range CHECK (((LEAST(started_at, seen_at) >= to_timestamp((0)::double precision)) AND (GREATEST(started_at, seen_at) <= to_timestamp(('221845392000'::bigint)::double precision))))
)
WITH (fillfactor='50');

CREATE TABLE public.horsies_schedules (
    name character varying(255) NOT NULL,
    task_name character varying(255),
    workflow character varying(255),
    pattern jsonb NOT NULL,
    kwargs jsonb DEFAULT '{}'::jsonb NOT NULL,
    queue_name character varying(100),
    group_key character varying(255) COLLATE pg_catalog."C",
    timezone character varying(255) DEFAULT 'UTC'::character varying NOT NULL,
    skipped_times character varying(20) DEFAULT 'fire'::character varying NOT NULL,
    overlap character varying(20) DEFAULT 'allow'::character varying NOT NULL,
    catch_up_missed boolean DEFAULT false NOT NULL,
    max_catch_up_runs integer DEFAULT 100 NOT NULL,
    jitter_s double precision DEFAULT 0 NOT NULL,
    enabled boolean DEFAULT true NOT NULL,
    version integer DEFAULT 1 NOT NULL,
    created_by character varying(255),
    created_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    updated_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    timed_at timestamp with time zone DEFAULT statement_timestamp() NOT NULL,
    CONSTRAINT ck_horsies_schedules_json CHECK (((jsonb_typeof(pattern) = 'object'::text) AND (jsonb_typeof(kwargs) = 'object'::text))),
    CONSTRAINT ck_horsies_schedules_name CHECK (((name)::text <> ''::text)),
    CONSTRAINT ck_horsies_schedules_numbers CHECK ((((max_catch_up_runs >= 1) AND (max_catch_up_runs <= 1000)) AND ((jitter_s >= (0)::double precision) AND (jitter_s <= (86400)::double precision)))),
    CONSTRAINT ck_horsies_schedules_target CHECK (((task_name IS NULL) <> (workflow IS NULL))),
    CONSTRAINT ck_horsies_schedules_time_range CHECK (((LEAST(created_at, updated_at, timed_at) >= to_timestamp((0)::double precision)) AND (GREATEST(created_at, updated_at, timed_at) <= to_timestamp(('221845392000'::bigint)::double precision)))),
    CONSTRAINT ck_horsies_schedules_words CHECK ((((skipped_times)::text = ANY ((ARRAY['fire'::character varying, 'skip'::character varying])::text[])) AND ((overlap)::text = ANY ((ARRAY['allow'::character varying, 'skip'::character varying])::text[]))))
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

CREATE TABLE public.horsies_unique_keys (
    task_name character varying(255) NOT NULL,
    key character varying(255) NOT NULL COLLATE pg_catalog."C",
    task_id character varying(36) NOT NULL,
    first_at timestamp with time zone NOT NULL,
    until timestamp with time zone NOT NULL,
    replaced integer DEFAULT 0 NOT NULL,
    recent bigint[] DEFAULT '{}'::bigint[] NOT NULL,
    CONSTRAINT ck_horsies_unique_keys_sound CHECK ((((task_name)::text <> ''::text) AND ((key)::text <> ''::text) AND (replaced >= 0) AND (cardinality(recent) <= 64))),
    CONSTRAINT ck_horsies_unique_keys_time_range CHECK (((LEAST(first_at, until) >= to_timestamp((0)::double precision)) AND (GREATEST(first_at, until) <= to_timestamp(('221845392000'::bigint)::double precision))))
)
WITH (fillfactor='70');

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
    completion_key character varying(64),
    state character varying(16),
    wanted_state character varying(16),
    wanted_processes integer,
    wanted_at timestamp with time zone,
    wanted_by character varying(255),
    reached_at timestamp with time zone,
    CONSTRAINT ck_horsies_worker_instances_period CHECK (((period_ms >= 1) AND (period_ms <= 3600000))),
    CONSTRAINT ck_horsies_worker_instances_state CHECK (((state)::text = ANY ((ARRAY['RUNNING'::character varying, 'DRAINING'::character varying, 'DRAINED'::character varying])::text[]))),
    CONSTRAINT ck_horsies_worker_instances_time_range CHECK (((LEAST(started_at, beat_at, stopped_at, judged_dead_at, recovered_at, wanted_at, reached_at) >= to_timestamp((0)::double precision)) AND (GREATEST(started_at, beat_at, stopped_at, judged_dead_at, recovered_at, wanted_at, reached_at) <= to_timestamp(('221845392000'::bigint)::double precision)))),
    CONSTRAINT ck_horsies_worker_instances_verdict CHECK ((((judged_dead_at IS NULL) = (judged_by IS NULL)) AND ((recovered_at IS NULL) OR (judged_dead_at IS NOT NULL)))),
    CONSTRAINT ck_horsies_worker_instances_wanted CHECK ((((wanted_state)::text = ANY ((ARRAY['RUNNING'::character varying, 'DRAINED'::character varying])::text[])) AND ((wanted_processes >= 1) AND (wanted_processes <= 1000)) AND ((wanted_at IS NOT NULL) OR ((wanted_state IS NULL) AND (wanted_processes IS NULL)))))
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

CREATE TABLE public.horsies_workflow_signals (
    id character varying(255) NOT NULL,
    workflow_id character varying(36) NOT NULL,
    name character varying(255) NOT NULL,
    value text NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    consumed_by character varying(36),
    consumed_at timestamp with time zone,
    noticed boolean DEFAULT false NOT NULL,
    CONSTRAINT ck_horsies_workflow_signals_consumed CHECK (((consumed_by IS NULL) = (consumed_at IS NULL))),
    CONSTRAINT ck_horsies_workflow_signals_time_range CHECK (((LEAST(created_at, consumed_at) >= to_timestamp((0)::double precision)) AND (GREATEST(created_at, consumed_at) <= to_timestamp(('221845392000'::bigint)::double precision)))),
    CONSTRAINT ck_horsies_workflow_signals_value CHECK ((octet_length(value) <= 16777216))
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
    group_key character varying(255) COLLATE pg_catalog."C",
    wake_at timestamp with time zone,
    signal_name character varying(255),
    when_index integer,
    when_value boolean,
    decides integer[] DEFAULT '{}'::integer[] NOT NULL,
    skip_reason character varying(20),
    deps_void integer DEFAULT 0 NOT NULL,
    ended_seq integer,
    compensate jsonb,
    compensates character varying(36),
    CONSTRAINT ck_horsies_workflow_tasks_graph CHECK (((task_index >= 0) AND (task_index <> ALL (dependencies)))),
    CONSTRAINT ck_horsies_workflow_tasks_join CHECK ((((join_type)::text = ANY ((ARRAY['all'::character varying, 'any'::character varying, 'quorum'::character varying])::text[])) AND (((join_type)::text = 'quorum'::text) = (min_success IS NOT NULL)) AND (min_success >= 1))),
    CONSTRAINT ck_horsies_workflow_tasks_kind CHECK (((kind)::text = ANY ((ARRAY['task'::character varying, 'workflow'::character varying, 'map'::character varying, 'signal'::character varying, 'sleep'::character varying])::text[]))),
    CONSTRAINT ck_horsies_workflow_tasks_priority CHECK (((priority >= 1) AND (priority <= 100))),
    CONSTRAINT ck_horsies_workflow_tasks_queue_name CHECK (((queue_name)::text ~ '^[A-Za-z0-9_.-]{1,52}$'::text)),
    CONSTRAINT ck_horsies_workflow_tasks_skip_reason CHECK (((skip_reason IS NULL) OR (((status)::text = 'SKIPPED'::text) AND ((skip_reason)::text = ANY ((ARRAY['upstream'::character varying, 'not_taken'::character varying, 'cancelled'::character varying, 'deadline'::character varying])::text[]))))),
    CONSTRAINT ck_horsies_workflow_tasks_status CHECK (((status)::text = ANY ((ARRAY['PENDING'::character varying, 'READY'::character varying, 'ENQUEUED'::character varying, 'RUNNING'::character varying, 'COMPLETED'::character varying, 'FAILED'::character varying, 'SKIPPED'::character varying, 'WAITING'::character varying])::text[]))),
    CONSTRAINT ck_horsies_workflow_tasks_time_range CHECK (((LEAST(created_at, started_at, completed_at, updated_at, good_until, wake_at) >= to_timestamp((0)::double precision)) AND (GREATEST(created_at, started_at, completed_at, updated_at, good_until, wake_at) <= to_timestamp(('221845392000'::bigint)::double precision)) AND ((ttl >= make_interval()) AND (ttl <= make_interval(years => 1000))))),
    CONSTRAINT ck_horsies_workflow_tasks_waits CHECK (((((kind)::text = 'signal'::text) = (signal_name IS NOT NULL)) AND ((when_index IS NULL) = (when_value IS NULL)) AND ((wake_at IS NULL) OR ((status)::text = 'WAITING'::text))))
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
    group_key character varying(255) COLLATE pg_catalog."C",
    deadline timestamp with time zone,
    start_at timestamp with time zone,
    wake_at timestamp with time zone,
    priority integer,
    unique_key text,
    release character varying(255),
    fingerprint character varying(64),
    ends_as character varying(20),
    continues integer DEFAULT 0 NOT NULL,
    continued_from character varying(36),
    ended_count integer DEFAULT 0 NOT NULL,
    unsettled boolean DEFAULT false NOT NULL,
    CONSTRAINT ck_horsies_workflows_completed_at CHECK (((completed_at IS NOT NULL) = ((status)::text = ANY ((ARRAY['COMPLETED'::character varying, 'FAILED'::character varying, 'CANCELLED'::character varying])::text[])))),
    CONSTRAINT ck_horsies_workflows_ends_as CHECK (((ends_as)::text = ANY ((ARRAY['FAILED'::character varying, 'CANCELLED'::character varying])::text[]))),
    CONSTRAINT ck_horsies_workflows_metadata CHECK (((metadata IS NULL) OR ((jsonb_typeof(metadata) = 'object'::text) AND (pg_column_size(metadata) <= 65536)))),
    CONSTRAINT ck_horsies_workflows_on_error CHECK (((on_error)::text = ANY ((ARRAY['fail'::character varying, 'pause'::character varying])::text[]))),
    CONSTRAINT ck_horsies_workflows_parent CHECK ((((parent_workflow_id IS NULL) = (parent_task_index IS NULL)) AND ((parent_workflow_id IS NULL) = (depth = 0)) AND (depth >= 0))),
    CONSTRAINT ck_horsies_workflows_priority CHECK (((priority >= 1) AND (priority <= 100))),
    CONSTRAINT ck_horsies_workflows_status CHECK (((status)::text = ANY ((ARRAY['PENDING'::character varying, 'RUNNING'::character varying, 'PAUSED'::character varying, 'COMPLETED'::character varying, 'FAILED'::character varying, 'CANCELLED'::character varying])::text[]))),
    CONSTRAINT ck_horsies_workflows_time_range CHECK (((LEAST(sent_at, created_at, started_at, completed_at, updated_at, deadline, start_at, wake_at) >= to_timestamp((0)::double precision)) AND (GREATEST(sent_at, created_at, started_at, completed_at, updated_at, deadline, start_at, wake_at) <= to_timestamp(('221845392000'::bigint)::double precision))))
);

ALTER TABLE ONLY public.horsies_alembic_version
    ADD CONSTRAINT horsies_alembic_version_pkc PRIMARY KEY (version_num);

ALTER TABLE ONLY public.horsies_heartbeats
    ADD CONSTRAINT pk_horsies_heartbeats PRIMARY KEY (id);

ALTER TABLE ONLY public.horsies_limits
    ADD CONSTRAINT pk_horsies_limits PRIMARY KEY (name);

ALTER TABLE ONLY public.horsies_queue_state
    ADD CONSTRAINT pk_horsies_queue_state PRIMARY KEY (queue_name);

ALTER TABLE ONLY public.horsies_rate_limits
    ADD CONSTRAINT pk_horsies_rate_limits PRIMARY KEY (name, key);

ALTER TABLE ONLY public.horsies_schedule_runs
    ADD CONSTRAINT pk_horsies_schedule_runs PRIMARY KEY (schedule_name, place);

ALTER TABLE ONLY public.horsies_schedule_state
    ADD CONSTRAINT pk_horsies_schedule_state PRIMARY KEY (schedule_name);

ALTER TABLE ONLY public.horsies_schedulers
    ADD CONSTRAINT pk_horsies_schedulers PRIMARY KEY (id);

ALTER TABLE ONLY public.horsies_schedules
    ADD CONSTRAINT pk_horsies_schedules PRIMARY KEY (name);

ALTER TABLE ONLY public.horsies_task_attempts
    ADD CONSTRAINT pk_horsies_task_attempts PRIMARY KEY (id);

ALTER TABLE ONLY public.horsies_task_names
    ADD CONSTRAINT pk_horsies_task_names PRIMARY KEY (task_name);

ALTER TABLE ONLY public.horsies_task_sets
    ADD CONSTRAINT pk_horsies_task_sets PRIMARY KEY (sha);

ALTER TABLE ONLY public.horsies_tasks
    ADD CONSTRAINT pk_horsies_tasks PRIMARY KEY (id);

ALTER TABLE ONLY public.horsies_unique_keys
    ADD CONSTRAINT pk_horsies_unique_keys PRIMARY KEY (task_name, key);

ALTER TABLE ONLY public.horsies_worker_instances
    ADD CONSTRAINT pk_horsies_worker_instances PRIMARY KEY (worker_id);

ALTER TABLE ONLY public.horsies_worker_states
    ADD CONSTRAINT pk_horsies_worker_states PRIMARY KEY (id);

ALTER TABLE ONLY public.horsies_workflow_signals
    ADD CONSTRAINT pk_horsies_workflow_signals PRIMARY KEY (id);

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

CREATE INDEX ix_horsies_schedule_state_due ON public.horsies_schedule_state USING btree (next_run_at, schedule_name) WHERE is_data;

CREATE INDEX ix_horsies_schedule_state_requested ON public.horsies_schedule_state USING btree (run_requested_at) WHERE (is_data AND (run_requested_at IS NOT NULL));

CREATE INDEX ix_horsies_schedule_state_unplanned ON public.horsies_schedule_state USING btree (schedule_name) WHERE (is_data AND (config_hash IS NULL));

CREATE INDEX ix_horsies_task_attempts_error_code ON public.horsies_task_attempts USING btree (error_code) WHERE (error_code IS NOT NULL);

CREATE INDEX ix_horsies_task_attempts_finished_at ON public.horsies_task_attempts USING btree (finished_at DESC);

CREATE INDEX ix_horsies_task_names_missing ON public.horsies_task_names USING btree (missing_since) WHERE (missing_since IS NOT NULL);

CREATE INDEX ix_horsies_tasks_claim ON public.horsies_tasks USING btree (queue_name, priority, enqueued_at, id) WHERE (((status)::text = 'PENDING'::text) AND (NOT withdrawn) AND (group_key IS NULL));

CREATE INDEX ix_horsies_tasks_error_code ON public.horsies_tasks USING btree (error_code, terminal_at, id) WHERE (error_code IS NOT NULL);

CREATE INDEX ix_horsies_tasks_good_until ON public.horsies_tasks USING btree (good_until) WHERE ((good_until IS NOT NULL) AND ((status)::text = ANY ((ARRAY['PENDING'::character varying, 'CLAIMED'::character varying])::text[])));

CREATE INDEX ix_horsies_tasks_grouped ON public.horsies_tasks USING btree (queue_name, priority, group_key, enqueued_at, id) WHERE (((status)::text = 'PENDING'::text) AND (NOT withdrawn) AND (group_key IS NOT NULL));

CREATE INDEX ix_horsies_tasks_grouped_age ON public.horsies_tasks USING btree (queue_name, priority, enqueued_at, id) WHERE (((status)::text = 'PENDING'::text) AND (NOT withdrawn) AND (group_key IS NOT NULL));

CREATE INDEX ix_horsies_tasks_grouped_in_flight ON public.horsies_tasks USING btree (queue_name, group_key) WHERE (((status)::text = ANY ((ARRAY['CLAIMED'::character varying, 'RUNNING'::character varying])::text[])) AND (group_key IS NOT NULL));

CREATE INDEX ix_horsies_tasks_in_flight ON public.horsies_tasks USING btree (queue_name) WHERE ((status)::text = ANY ((ARRAY['CLAIMED'::character varying, 'RUNNING'::character varying])::text[]));

CREATE INDEX ix_horsies_tasks_kept ON public.horsies_tasks USING btree (keep_seconds, terminal_at) WHERE ((keep_seconds IS NOT NULL) AND (terminal_at IS NOT NULL));

CREATE INDEX ix_horsies_tasks_next_retry_at ON public.horsies_tasks USING btree (next_retry_at) WHERE ((next_retry_at IS NOT NULL) AND ((status)::text = 'PENDING'::text));

CREATE INDEX ix_horsies_tasks_terminal_at ON public.horsies_tasks USING btree (terminal_at) WHERE (terminal_at IS NOT NULL);

CREATE INDEX ix_horsies_tasks_unsuccessful ON public.horsies_tasks USING btree (status, terminal_at, id) WHERE ((status)::text = ANY ((ARRAY['FAILED'::character varying, 'CANCELLED'::character varying, 'EXPIRED'::character varying])::text[]));

CREATE INDEX ix_horsies_tasks_withdrawn ON public.horsies_tasks USING btree (queue_name, priority, enqueued_at, id) WHERE withdrawn;

CREATE INDEX ix_horsies_unique_keys_task_id ON public.horsies_unique_keys USING btree (task_id);

CREATE INDEX ix_horsies_unique_keys_until ON public.horsies_unique_keys USING btree (until);

CREATE INDEX ix_horsies_worker_instances_open ON public.horsies_worker_instances USING btree (worker_id) WHERE ((stopped_at IS NULL) AND (recovered_at IS NULL));

CREATE INDEX ix_horsies_worker_states_worker ON public.horsies_worker_states USING btree (worker_id, snapshot_at DESC);

CREATE INDEX ix_horsies_workflow_signals_name ON public.horsies_workflow_signals USING btree (workflow_id, name, created_at);

CREATE INDEX ix_horsies_workflow_signals_new ON public.horsies_workflow_signals USING btree (created_at) WHERE (NOT noticed);

CREATE INDEX ix_horsies_workflow_tasks_compensate ON public.horsies_workflow_tasks USING btree (workflow_id) WHERE (compensate IS NOT NULL);

CREATE INDEX ix_horsies_workflow_tasks_live ON public.horsies_workflow_tasks USING btree (workflow_id, status) WHERE ((status)::text = ANY ((ARRAY['READY'::character varying, 'ENQUEUED'::character varying, 'RUNNING'::character varying])::text[]));

CREATE INDEX ix_horsies_workflow_tasks_open ON public.horsies_workflow_tasks USING btree (status, updated_at) WHERE ((status)::text = ANY ((ARRAY['READY'::character varying, 'ENQUEUED'::character varying])::text[]));

CREATE INDEX ix_horsies_workflow_tasks_signal ON public.horsies_workflow_tasks USING btree (signal_name, started_at) WHERE (((status)::text = 'WAITING'::text) AND (signal_name IS NOT NULL));

CREATE INDEX ix_horsies_workflow_tasks_sub_workflow_id ON public.horsies_workflow_tasks USING btree (sub_workflow_id) WHERE (sub_workflow_id IS NOT NULL);

CREATE INDEX ix_horsies_workflow_tasks_waiting ON public.horsies_workflow_tasks USING btree (workflow_id) WHERE ((status)::text = 'WAITING'::text);

CREATE INDEX ix_horsies_workflows_completed_at ON public.horsies_workflows USING btree (completed_at) WHERE (completed_at IS NOT NULL);

CREATE INDEX ix_horsies_workflows_finishing ON public.horsies_workflows USING btree (updated_at) WHERE ((nodes_left = 0) AND (completed_at IS NULL));

CREATE INDEX ix_horsies_workflows_live ON public.horsies_workflows USING btree (status, updated_at) WHERE ((status)::text = ANY ((ARRAY['PENDING'::character varying, 'RUNNING'::character varying, 'PAUSED'::character varying])::text[]));

CREATE INDEX ix_horsies_workflows_parent_workflow_id ON public.horsies_workflows USING btree (parent_workflow_id) WHERE (parent_workflow_id IS NOT NULL);

CREATE INDEX ix_horsies_workflows_unsettled ON public.horsies_workflows USING btree (completed_at) WHERE (unsettled AND (completed_at IS NOT NULL));

CREATE INDEX ix_horsies_workflows_wake_at ON public.horsies_workflows USING btree (wake_at) WHERE (wake_at IS NOT NULL);

CREATE UNIQUE INDEX uq_horsies_tasks_unique_key ON public.horsies_tasks USING btree (task_name, unique_key) WHERE ((unique_key IS NOT NULL) AND ((status)::text = ANY ((ARRAY['PENDING'::character varying, 'CLAIMED'::character varying, 'RUNNING'::character varying])::text[])));

CREATE UNIQUE INDEX uq_horsies_workflow_signals_consumed_by ON public.horsies_workflow_signals USING btree (consumed_by) WHERE (consumed_by IS NOT NULL);

CREATE UNIQUE INDEX uq_horsies_workflow_tasks_compensates ON public.horsies_workflow_tasks USING btree (compensates) WHERE (compensates IS NOT NULL);

CREATE UNIQUE INDEX uq_horsies_workflow_tasks_task_id ON public.horsies_workflow_tasks USING btree (task_id) WHERE (task_id IS NOT NULL);

CREATE UNIQUE INDEX uq_horsies_workflows_unique_key ON public.horsies_workflows USING btree (unique_key) WHERE ((unique_key IS NOT NULL) AND (completed_at IS NULL));

CREATE TRIGGER horsies_schedule_notify_trigger AFTER INSERT OR DELETE OR UPDATE ON public.horsies_schedules FOR EACH STATEMENT EXECUTE FUNCTION public.horsies_schedule_changed();

CREATE TRIGGER horsies_schedule_state_trigger AFTER INSERT OR DELETE OR UPDATE ON public.horsies_schedules FOR EACH ROW EXECUTE FUNCTION public.horsies_schedule_changed();

CREATE TRIGGER horsies_schedule_version_trigger BEFORE INSERT OR UPDATE ON public.horsies_schedules FOR EACH ROW EXECUTE FUNCTION public.horsies_schedule_changed();

CREATE TRIGGER horsies_task_notify_trigger AFTER INSERT ON public.horsies_tasks REFERENCING NEW TABLE AS inserted FOR EACH STATEMENT WHEN ((current_setting('horsies.notify'::text, true) IS DISTINCT FROM 'off'::text)) EXECUTE FUNCTION public.horsies_notify_task_changes();

CREATE TRIGGER horsies_task_notify_update_trigger AFTER UPDATE ON public.horsies_tasks FOR EACH ROW WHEN (((new.terminal_at IS NOT NULL) OR (new.claimed_at IS NULL))) EXECUTE FUNCTION public.horsies_notify_task_changes();

CREATE TRIGGER horsies_workflow_notify_trigger AFTER UPDATE ON public.horsies_workflows FOR EACH ROW WHEN ((((old.status)::text IS DISTINCT FROM (new.status)::text) AND ((new.status)::text = ANY ((ARRAY['COMPLETED'::character varying, 'FAILED'::character varying, 'CANCELLED'::character varying])::text[])))) EXECUTE FUNCTION public.horsies_notify_workflow_changes();

ALTER TABLE ONLY public.horsies_task_attempts
    ADD CONSTRAINT fk_horsies_task_attempts_task_id FOREIGN KEY (task_id) REFERENCES public.horsies_tasks(id) ON DELETE CASCADE;

ALTER TABLE ONLY public.horsies_workflow_signals
    ADD CONSTRAINT fk_horsies_workflow_signals_workflow_id FOREIGN KEY (workflow_id) REFERENCES public.horsies_workflows(id) ON DELETE CASCADE;

ALTER TABLE ONLY public.horsies_workflow_tasks
    ADD CONSTRAINT fk_horsies_workflow_tasks_workflow_id FOREIGN KEY (workflow_id) REFERENCES public.horsies_workflows(id) ON DELETE CASCADE;

ALTER TABLE ONLY public.horsies_workflows
    ADD CONSTRAINT fk_horsies_workflows_parent_workflow_id FOREIGN KEY (parent_workflow_id) REFERENCES public.horsies_workflows(id) ON DELETE CASCADE;
