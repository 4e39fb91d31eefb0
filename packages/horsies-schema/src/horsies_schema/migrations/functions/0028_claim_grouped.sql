-- Claims tasks with a group, and all tasks of queues that share a limit.
--
-- It looks at the groups of `look_keys` first (a place came free, a token is there, or a task was announced; NULL stands
-- for tasks without a group). With `is_walk` it then walks the groups behind the cursor of each (queue, priority), one
-- index descent each, past the end and on from the beginning up to `cursor_stops`. It stops as soon as it has found as
-- many groups as it may take tasks, or has looked at `max_groups`. To be fair, it takes the first task of each of these
-- groups, then the second of each. A task that has no place holds back those behind it in its group. Queues come in the
-- order of their most urgent task, then in that of `queues`.
--
-- One group is read as `group_key BETWEEN key AND key ORDER BY group_key, ...`: with `=`, the planner may take an index
-- that lacks the key, and walk past all tasks of the other groups (40 ms each beside 50,000).
--
-- It waits for no lock: a queue that another claim works on is reported as busy, and the caller tries again. It locks
-- first and counts in a later statement, because a statement that waits for a lock has an older snapshot.
--
-- A rate is kept as one time per group (GCRA): `free_at`, when the bucket is full again. Each start moves it ahead by
-- `spacing`, and needs it to be less than `burst` spacings ahead. So limit + 1 tokens span per_seconds + slack; each start
-- follows its token by less than the slack, which the worker enforces (`start_within`); hence limit + 1 starts span more
-- than per_seconds. After the clock was set back, a `free_at` that lies too far ahead is mended: the next token is one
-- window away. After it was set forward, every bucket would be full: a worker that expected another time records the step in the row ('', ''), and
-- buckets count as empty at that time.
CREATE OR REPLACE FUNCTION @schema@.horsies_claim_grouped(
    queues text[], look_queues text[], look_keys text[], is_walk boolean,
    cursor_queues text[], cursor_priorities int[], cursor_keys text[], cursor_wrapped boolean[], cursor_stops text[],
    max_groups int, row_limit int, room_async int, room_sync int, room_ahead int,
    async_names text[], short_names text[], sync_names text[],
    cap_queues text[], caps int[], cluster_cap int, caps_lock int,
    worker_id text, hostname text, expired_result text, expected_at float8)
RETURNS TABLE (
    id text, status text, claim_generation int, task_name text, args text, kwargs text, queue_name text, priority int,
    retry_count int, max_retries int, task_options text, is_workflow_task boolean, metadata jsonb, ready_at float8,
    group_key text, start_within float8, frees text, report jsonb, snoozes int)
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $function$
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
        INSERT INTO @schema@.horsies_rate_limits AS r (name, key, free_at) VALUES ('', '', clock_timestamp())
        ON CONFLICT (name, key) DO UPDATE SET free_at = excluded.free_at;
    END IF;
    FOR queue, head, rules, is_limited IN
        SELECT q.name, least(
                   (SELECT t.priority FROM @schema@.horsies_tasks t
                     WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NOT NULL
                       AND t.queue_name = q.name ORDER BY t.priority LIMIT 1),
                   (SELECT t.priority FROM @schema@.horsies_tasks t
                     WHERE s.is_limited AND t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NULL
                       AND t.queue_name = q.name ORDER BY t.priority LIMIT 1)) AS head,
               s.policy, coalesce(s.is_limited, false)
          FROM unnest(queues) WITH ORDINALITY AS q (name, nth)
          LEFT JOIN @schema@.horsies_queue_state s ON s.queue_name = q.name
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
            PERFORM l.name FROM @schema@.horsies_limits l WHERE l.name = ANY (names)
              ORDER BY l.name FOR UPDATE SKIP LOCKED;
            GET DIAGNOSTICS locked = ROW_COUNT;
            -- nor does a less urgent queue get what a busy one waits for
            IF names && blocked
                OR locked < (SELECT count(*) FROM @schema@.horsies_limits l WHERE l.name = ANY (names))
            THEN
                busy := busy || queue;
                blocked := blocked || names;
                CONTINUE;
            END IF;
        END IF;
        -- 1667330163 is "caps", as in horsies._pg.locks; the other half comes from the caller's schema, as in other claims
        IF (is_capped AND NOT pg_try_advisory_xact_lock(1667330163, caps_lock))
            OR ((most IS NOT NULL OR rate IS NOT NULL OR names <> '{}')
                AND NOT pg_try_advisory_xact_lock(hashtextextended('horsies groups ' || @name@ || ' ' || queue, 0)))
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
                - (SELECT count(*) FROM @schema@.horsies_tasks t
                    WHERE t.queue_name = queue AND t.status IN ('CLAIMED', 'RUNNING')),
                cluster_cap - (SELECT count(*) FROM @schema@.horsies_tasks t WHERE t.status IN ('CLAIMED', 'RUNNING')));
        END IF;
        IF rate IS NOT NULL OR names <> '{}' THEN
            -- one that lies ahead was undone: the clock has been set back since
            stepped := (SELECT r.free_at FROM @schema@.horsies_rate_limits r
                         WHERE r.name = '' AND r.key = '' AND r.free_at <= at);
        END IF;
        FOR shared IN
            SELECT (l.policy ->> 'max_concurrency')::int AS most, l.name, r.*
              FROM @schema@.horsies_limits l
             CROSS JOIN LATERAL @schema@.horsies_rate_room(l.policy -> 'rate', l.free_at, at, stepped) AS r
             WHERE l.name = ANY (names)
        LOOP
            IF shared.most IS NOT NULL THEN
                freed := 'limit';
                quota := least(quota, shared.most - (
                    SELECT count(*) FROM @schema@.horsies_queue_state s
                      JOIN @schema@.horsies_tasks t ON t.queue_name = s.queue_name
                     WHERE s.policy -> 'limits' ? shared.name AND t.status IN ('CLAIMED', 'RUNNING')));
            END IF;
            quota := least(quota, shared.tokens);
            within := least(within, shared.slack);
            wait_s := greatest(wait_s, shared.wait_s);
            IF shared.is_stale THEN
                UPDATE @schema@.horsies_limits l SET free_at = at + make_interval(secs => shared.ahead)
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
              FROM @schema@.horsies_rate_room(rate, NULL, at, stepped) AS r;
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
                    (SELECT t.priority FROM @schema@.horsies_tasks t
                      WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NOT NULL
                        AND t.queue_name = queue AND t.priority >= f.priority + 1 ORDER BY t.priority LIMIT 1),
                    (SELECT t.priority FROM @schema@.horsies_tasks t
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
                first := coalesce((SELECT t.group_key || chr(1) FROM @schema@.horsies_tasks t
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
                        (SELECT t.group_key, w.is_again FROM @schema@.horsies_tasks t
                          WHERE walks AND w.nth >= look_count
                            AND t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NOT NULL
                            AND t.queue_name = queue AND t.priority = level AND t.group_key >= w.from_key
                          ORDER BY t.group_key LIMIT 1)
                        UNION ALL
                        -- behind the last group it is the turn of the tasks without one
                        SELECT NULL, true WHERE with_unkeyed AND w.nth >= look_count AND NOT w.is_again
                        UNION ALL
                        (SELECT t.group_key, true FROM @schema@.horsies_tasks t
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
                                             SELECT FROM @schema@.horsies_tasks t
                                              WHERE t.status IN ('CLAIMED', 'RUNNING') AND t.group_key IS NOT NULL
                                                AND t.queue_name = queue AND t.group_key BETWEEN n.key AND n.key
                                              ORDER BY t.group_key LIMIT most) AS running)::int
                                     END) AS room,
                               CASE WHEN n.key IS NOT NULL THEN
                                   (SELECT r.enqueued_at FROM (
                                        SELECT t.enqueued_at, t.task_name FROM @schema@.horsies_tasks t
                                         WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NOT NULL
                                           AND t.queue_name = queue AND t.priority = level
                                           AND t.group_key BETWEEN n.key AND n.key
                                         ORDER BY t.group_key, t.enqueued_at, t.id LIMIT unknown) AS r
                                     WHERE (r.task_name IN (SELECT unnest(async_names || sync_names))) IS TRUE
                                     LIMIT 1)
                               ELSE
                                   (SELECT t.enqueued_at FROM @schema@.horsies_tasks t
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
                                                  FROM @schema@.horsies_rate_limits r
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
                                          SELECT w.status FROM @schema@.horsies_workflow_tasks n
                                            JOIN @schema@.horsies_workflows w ON w.id = n.workflow_id
                                           WHERE n.task_id = t.id) <> 'RUNNING' THEN 'stopped'
                                      WHEN t.task_name = ANY (async_names) THEN 'async'
                                      WHEN t.task_name = ANY (short_names) THEN 'short'
                                      ELSE 'other' END AS kind
                                 FROM @schema@.horsies_tasks t
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
                                          SELECT w.status FROM @schema@.horsies_workflow_tasks n
                                            JOIN @schema@.horsies_workflows w ON w.id = n.workflow_id
                                           WHERE n.task_id = t.id) <> 'RUNNING' THEN 'stopped'
                                      WHEN t.task_name = ANY (async_names) THEN 'async'
                                      WHEN t.task_name = ANY (short_names) THEN 'short'
                                      ELSE 'other' END AS kind
                                 FROM @schema@.horsies_tasks t
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
                           SELECT t.ctid AS tid FROM @schema@.horsies_tasks t
                            WHERE t.ctid = w.tid AND t.status || '' = 'PENDING' AND NOT t.withdrawn
                              FOR UPDATE SKIP LOCKED) AS r
                ), spent AS (
                    INSERT INTO @schema@.horsies_rate_limits (name, key, free_at)
                    SELECT queue, p.key, at + make_interval(secs => p.ahead + count(*) * spacing)
                      FROM picked p WHERE p.ahead IS NOT NULL AND p.status = 'RUNNING' GROUP BY p.key, p.ahead
                    UNION
                    -- an empty bucket would count as empty at any later time, too
                    SELECT queue, w.key, at + make_interval(secs => w.ahead) FROM walk w WHERE w.is_stale
                    ON CONFLICT (name, key) DO UPDATE SET free_at = excluded.free_at
                ), taken AS (
                    UPDATE @schema@.horsies_tasks t
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
            UPDATE @schema@.horsies_limits l SET free_at = at + make_interval(secs => r.ahead + started * r.spacing)
              FROM @schema@.horsies_limits x
             CROSS JOIN LATERAL @schema@.horsies_rate_room(x.policy -> 'rate', x.free_at, at, stepped) AS r
             WHERE x.name = ANY (names) AND l.name = x.name AND r.spacing IS NOT NULL;
            SELECT max(r.wait_s) INTO wait_s
              FROM @schema@.horsies_limits x
             CROSS JOIN LATERAL @schema@.horsies_rate_room(x.policy -> 'rate', x.free_at, at, stepped) AS r
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
$function$
