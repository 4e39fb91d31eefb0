-- Sends one task, from a trigger, from psql or from another language, and returns its id. `kwargs` are the arguments by
-- name; the worker checks them by the task's annotations, and its registration decides retries and time-outs. Keys of
-- `options`: queue_name, priority, delay_seconds or eta, good_until or ttl_seconds, unique_key, task_id, metadata, group,
-- store_result, keep_seconds. With a unique_key that a live task of the name holds, the id is that task's. The same call with
-- the same task_id is success, another one fails with ZH001. Bad input fails with 22023 (invalid_parameter_value).
-- The task exists if and only if the caller's transaction commits, and a worker hears of it then.
CREATE OR REPLACE FUNCTION @schema@.horsies_send(task_name text, kwargs jsonb DEFAULT '{}', options jsonb DEFAULT '{}')
 RETURNS text
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
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
            WHEN 'eta' THEN @schema@.horsies_moment_problem(value)
            WHEN 'good_until' THEN @schema@.horsies_moment_problem(value)
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
      FROM @schema@.horsies_send_calls(
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
$function$
