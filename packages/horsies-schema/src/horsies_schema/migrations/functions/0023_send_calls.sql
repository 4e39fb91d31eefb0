-- Writes tasks with options of their own, all or none. `kinds` is a list of objects with the columns that calls of one task
-- and one set of options share; `of_kind` has the place of each call's kind in it, from 1 (NULL: all are of the first).
-- Returns the calls that were not written because a live task of the same name holds their unique key: the place of the
-- call, from 1, and the id of that task. A call whose id exists already must be the same task: then it counts as written.
-- It needs the rights of its caller on the table, and gives no others. A trigger notifies, at the commit.
CREATE OR REPLACE FUNCTION @schema@.horsies_send_calls(kinds jsonb, ids text[], of_kind int[], args text[], kwargs text[], enqueue_shas text[], group_keys text[], sent_at timestamptz)
 RETURNS TABLE(at int, holder text)
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
        INSERT INTO @schema@.horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at,
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
          LEFT JOIN LATERAL (SELECT t.id, t.enqueue_sha AS sha FROM @schema@.horsies_tasks t
                              WHERE t.id = x.id LIMIT 1) AS t ON true
          LEFT JOIN LATERAL (SELECT h.id FROM @schema@.horsies_tasks h
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
$function$
