-- Sends a task whose key outlives it (`unique_for`), or lets a task that waits take over what a later send brings
-- (on_conflict="replace", `debounce`). A row of horsies_unique_keys says which task holds a key. Senders of one key lock
-- it, each before it looks at the task, so the order in which they arrive here decides.
-- `mode`: keep, replace or debounce. `is_alone`: not in a transaction of the caller. `delay` is NULL if the send has none: a replaced task then keeps its start.
-- Returns the task that holds the key, its fingerprint, and what was done: sent (a new task), replaced (a task that
-- waits), kept (nothing: the key is taken), repeated (nothing: this send was made before), lost (nothing: a transaction
-- that cannot be seen from here holds the key or the id).
-- It runs with the rights of the owner of the tables: a producer may not UPDATE. It changes no task but one that waits,
-- has the same name and holds the same key.
CREATE OR REPLACE FUNCTION @schema@.horsies_send_unique(
    new_id text, new_args text, new_kwargs text, new_sha varchar, new_name varchar, new_queue varchar,
    new_priority int, new_sent_at timestamptz, eta timestamptz, delay interval, new_good_until timestamptz,
    ttl interval, new_max_retries int, new_options text, new_metadata jsonb, new_group varchar,
    new_key varchar, mode text, keep_for interval, debounce interval, max_wait interval,
    new_keep_seconds int, is_alone boolean,
    OUT holder_id text, OUT holder_sha text, OUT outcome text)
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
    -- Of the last 64 sends that a task took over: one that is repeated after a lost answer must not undo a later one.
    send_hash constant bigint := hashtextextended(concat(new_id, ' ', new_sha), 0);
    held @schema@.horsies_unique_keys;
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
        SELECT k.task_id INTO holder_id FROM @schema@.horsies_unique_keys k
         WHERE k.task_name = new_name AND k.key = new_key AND k.until > clock_timestamp() AND k.task_id <> new_id;
        IF FOUND AND NOT EXISTS (SELECT FROM @schema@.horsies_tasks t WHERE t.id = new_id) THEN
            outcome := 'kept';
            RETURN;
        END IF;
    END IF;
    LOOP
        SELECT k.* INTO held FROM @schema@.horsies_unique_keys k
         WHERE k.task_name = new_name AND k.key = new_key FOR UPDATE;
        EXIT WHEN FOUND;
        at := clock_timestamp();
        INSERT INTO @schema@.horsies_unique_keys AS k (task_name, key, task_id, first_at, until)
        VALUES (new_name, new_key, new_id, at, at + coalesce(keep_for, interval '0')) ON CONFLICT DO NOTHING
        RETURNING k.* INTO held;
        is_new := FOUND;
        EXIT WHEN is_new;
    END LOOP;
    at := clock_timestamp();  -- the time after the wait for the lock: the last to arrive has the latest

    FOR round IN 1..5 LOOP
        SELECT t.id, t.enqueue_sha INTO holder_id, holder_sha FROM @schema@.horsies_tasks t WHERE t.id = new_id;
        IF FOUND THEN
            outcome := 'repeated';
        ELSIF NOT is_new AND (send_hash = ANY (held.recent) OR held.task_id = new_id AND held.until > at) THEN
            holder_id := held.task_id;
            outcome := 'repeated';
        END IF;
        IF outcome IS NOT NULL THEN
            IF is_new THEN
                DELETE FROM @schema@.horsies_unique_keys k WHERE k.task_name = new_name AND k.key = new_key;
            END IF;
            RETURN;
        END IF;

        -- The holder is that of the row, unless that was deleted and another task was sent under its id since. If it has
        -- ended, or cannot be replaced any more, it is the one that has the key in the index: a task that was sent with
        -- unique_key alone, or an older one that waits for its retry.
        SELECT t.id, t.enqueue_sha, t.status INTO holder FROM @schema@.horsies_tasks t
         WHERE t.id = held.task_id AND t.task_name = new_name AND t.created_at <= held.first_at
           AND t.status IN ('PENDING', 'CLAIMED', 'RUNNING');
        IF NOT FOUND OR mode <> 'keep' AND holder.status <> 'PENDING' THEN
            SELECT t.id, t.enqueue_sha, t.status INTO holder FROM @schema@.horsies_tasks t
             WHERE t.task_name = new_name AND t.unique_key = new_key AND t.status IN ('PENDING', 'CLAIMED', 'RUNNING');
        END IF;

        IF mode = 'keep' THEN
            IF holder.id IS NOT NULL OR NOT is_new AND held.until > at THEN
                holder_id := coalesce(holder.id, held.task_id);
                holder_sha := holder.enqueue_sha;
                outcome := 'kept';
                IF is_new THEN
                    DELETE FROM @schema@.horsies_unique_keys k WHERE k.task_name = new_name AND k.key = new_key;
                END IF;
                RETURN;
            END IF;
        ELSIF holder.status = 'PENDING' THEN
            -- A claim may be faster. It is waited for, and the task is then no longer PENDING. A task that runs is never
            -- locked: a transaction of the caller would keep its end from being written.
            SELECT t.id, t.enqueue_sha, t.queue_name, t.priority, t.group_key, t.enqueued_at,
                   t.retry_count + t.snoozes > 0 AS has_run
              INTO holder FROM @schema@.horsies_tasks t
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
                UPDATE @schema@.horsies_tasks t
                   SET args = new_args, kwargs = new_kwargs, queue_name = new_queue, priority = new_priority,
                       enqueued_at = start, next_retry_at = CASE WHEN t.next_retry_at IS NOT NULL THEN start END,
                       good_until = coalesce(new_good_until, at + ttl),
                       -- what the earlier call used up is not counted against this one
                       max_retries = least(t.retry_count + new_max_retries, 10000), snoozes = 0, crash_count = 0,
                       task_options = new_options, metadata = new_metadata, group_key = new_group,
                       keep_seconds = new_keep_seconds, updated_at = at
                 WHERE t.id = holder.id AND t.status = 'PENDING';
                UPDATE @schema@.horsies_unique_keys k
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
        INSERT INTO @schema@.horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at,
               good_until, max_retries, task_options, enqueue_sha, metadata, group_key, unique_key,
               keep_seconds)
        VALUES (new_id, new_name, new_queue, new_priority, new_args, new_kwargs, new_sent_at,
                coalesce(eta, at + coalesce(debounce, delay, interval '0')), coalesce(new_good_until, at + ttl),
                new_max_retries, new_options, new_sha, new_metadata, new_group,
                CASE WHEN mode = 'keep' OR NOT EXISTS (
                         SELECT FROM @schema@.horsies_tasks t WHERE t.task_name = new_name AND t.unique_key = new_key
                            AND t.status IN ('CLAIMED', 'RUNNING')) THEN new_key END,
                new_keep_seconds)
        ON CONFLICT DO NOTHING;
        IF FOUND THEN
            IF NOT is_new THEN
                UPDATE @schema@.horsies_unique_keys k
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
        DELETE FROM @schema@.horsies_unique_keys k WHERE k.task_name = new_name AND k.key = new_key;
    END IF;
END
$function$
