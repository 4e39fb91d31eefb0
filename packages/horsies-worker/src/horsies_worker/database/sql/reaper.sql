-- The reaper's sweep over tasks without signs of life. No statement waits for a locked row. Each sorts by a column
-- without an index: by the primary key, a plan made on an empty table would walk every finished task to save the sort.

-- name: wait_until_writable :none
-- Returns when a heartbeat could be written: at once, or when a lock that stops heartbeats (REINDEX, VACUUM FULL,
-- ALTER TABLE) is gone. The wait shows a reaper, also an inactive one, that other workers could not send theirs either.
LOCK TABLE horsies_tasks, horsies_heartbeats IN ROW EXCLUSIVE MODE;

-- name: require_writable :none
-- The same without the wait: fails with 55P03 while a heartbeat could not be written.
LOCK TABLE horsies_tasks, horsies_heartbeats IN ROW EXCLUSIVE MODE NOWAIT;

-- name: try_reaper_lock :value
-- params: key
-- One active reaper per database and schema. Transaction-scoped, so that it works behind a pooler as well.
SELECT pg_try_advisory_xact_lock($1, hashtext(coalesce(current_schema(), '')));

-- name: expire_overdue :many
-- edge: PENDING -> EXPIRED; CLAIMED -> EXPIRED
-- params: result, row_limit
-- Tasks whose good_until has passed before they started, withdrawn ones among them.
WITH target AS MATERIALIZED (
    SELECT ctid AS tid FROM horsies_tasks
     WHERE status IN ('PENDING', 'CLAIMED') AND good_until <= statement_timestamp()
     ORDER BY good_until LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE horsies_tasks t
   SET status = 'EXPIRED', withdrawn = false, claimed = false, claim_expires_at = NULL, result = $1, error_code = 'TASK_EXPIRED',
       failed_at = statement_timestamp(), terminal_at = statement_timestamp(), updated_at = statement_timestamp()
  FROM target
 WHERE t.ctid = target.tid
RETURNING t.id;

-- name: requeue_silent_claims :many
-- edge: CLAIMED -> PENDING
-- params: threshold, row_limit
-- Claims without a heartbeat for longer than the threshold, also while their lease runs. Always safe, because user code
-- has not run: if the worker is alive, its start of the task finds no row.
WITH target AS MATERIALIZED (
    SELECT t.ctid AS tid FROM horsies_tasks t
     WHERE t.status = 'CLAIMED' AND {{last_sign}} < statement_timestamp() - $1::interval
     ORDER BY t.claimed_at LIMIT $2 FOR UPDATE OF t SKIP LOCKED
)
{{requeue_target}} WHERE t.ctid = target.tid RETURNING t.id;

-- name: stale_running :many
-- params: threshold, finalizing_threshold, row_limit
-- Running tasks without a sign of life for longer than the threshold. A task with a staged outcome has a threshold of its
-- own and ends with that outcome. The transaction that ends the tasks locks them here, and skips rows locked by others.
SELECT {{lost_attempt}} FROM horsies_tasks t
 WHERE t.status = 'RUNNING' AND t.started_at < statement_timestamp() - least($1::interval, $2::interval)
   AND {{last_sign}}
       < statement_timestamp() - CASE WHEN t.finalizing_at IS NULL THEN $1::interval ELSE $2::interval END
 ORDER BY t.started_at LIMIT $3 FOR UPDATE OF t SKIP LOCKED;
