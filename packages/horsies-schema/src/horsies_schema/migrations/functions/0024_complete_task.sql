-- Ends a running attempt as COMPLETED inside the transaction of its caller: a task calls it on its own connection, so that
-- the end commits or rolls back together with the task's own writes.
-- `token` proves that the caller is the attempt itself: the worker's key is known to the worker and its children alone.
-- `transaction_id` is what txid_current() said in the statement before: without a transaction block it differs by now.
-- It waits for a row that another session has locked, and looks at it again afterwards; an attempt that has called it
-- before (`again`) does not wait, because the session with the lock may be its own.
-- Returns COMPLETED, or why nothing was written: NO_TRANSACTION; UNKNOWN (no such worker, or another token); OPEN (the
-- transaction of the first call is still open); ENDED (this attempt has been completed); LOST (it has another owner now,
-- or another end). `state` is the task's state.
CREATE OR REPLACE FUNCTION @schema@.horsies_complete_task(task_id text, worker_id text, generation int, token text, transaction_id bigint, result text, started float8, finished float8, pid int, process_name text, again boolean)
 RETURNS TABLE (outcome text, state text)
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
DECLARE
    found_row record;
BEGIN
    IF $5 IS DISTINCT FROM txid_current() THEN
        RETURN QUERY SELECT 'NO_TRANSACTION', NULL::text;
        RETURN;
    END IF;
    PERFORM FROM @schema@.horsies_worker_instances w
      WHERE w.worker_id = $2
        -- NULL for a worker of an older release, which has no key
        AND encode(sha256(convert_to($1 || ' ' || $3 || ' ' || w.completion_key, 'UTF8')), 'hex') = $4;
    IF NOT FOUND THEN
        RETURN QUERY SELECT 'UNKNOWN', NULL::text;
        RETURN;
    END IF;
    IF $11 THEN
        PERFORM FROM @schema@.horsies_tasks t WHERE t.id = $1 FOR UPDATE SKIP LOCKED;
        IF NOT FOUND AND EXISTS (SELECT FROM @schema@.horsies_tasks t WHERE t.id = $1) THEN
            RETURN QUERY SELECT 'OPEN', NULL::text;
            RETURN;
        END IF;
    END IF;
    -- As complete_task of the worker writes it, fenced on owner, generation and state.
    WITH moved AS (
        UPDATE @schema@.horsies_tasks t
           SET status = 'COMPLETED', completed_at = statement_timestamp(), terminal_at = statement_timestamp(),
               result = $6, worker_pid = $9, worker_process_name = $10,
               finalizing_at = NULL, finalizing_by_worker_id = NULL, updated_at = statement_timestamp()
         WHERE t.id = $1 AND t.claim_generation = $3 AND t.claimed_by_worker_id = $2 AND t.status || '' = 'RUNNING'
        RETURNING t.id, t.retry_count + 1 AS attempt, t.started_at AS row_started, t.worker_hostname,
                  least(greatest(to_timestamp($8), t.started_at),
                        greatest(statement_timestamp(), t.started_at)) AS ended
    )
    INSERT INTO @schema@.horsies_task_attempts (task_id, attempt, outcome, started_at, finished_at, worker_id,
                                                worker_hostname, worker_pid, worker_process_name)
    SELECT moved.id, moved.attempt, 'COMPLETED', least(greatest(to_timestamp($7), moved.row_started), moved.ended),
           moved.ended, $2, moved.worker_hostname, $9, $10
      FROM moved;
    IF FOUND THEN
        RETURN QUERY SELECT 'COMPLETED', 'COMPLETED';
        RETURN;
    END IF;
    SELECT t.status, t.claimed_by_worker_id = $2 AND t.claim_generation = $3 AND t.status = 'COMPLETED' AS is_own
      INTO found_row FROM @schema@.horsies_tasks t WHERE t.id = $1;
    RETURN QUERY SELECT CASE WHEN found_row.is_own THEN 'ENDED' ELSE 'LOST' END, found_row.status::text;
END
$function$
