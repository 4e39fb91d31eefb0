-- Signs of life, and the sweep over what has none. Runs on sessions of its own, never behind a claim or a finalize.
-- Nothing here waits for a row that somebody holds. The sweep sorts by a column without an index: by the primary key
-- a plan made on an empty table would walk every finished task to save the sort.

-- name: beat_batch :many
-- params: worker_id, ids, generations, roles, hostname, pids, process_names
-- Fenced: only tasks that are still this worker's get a beat, and only their ids come back; the rest were lost. A
-- claim that is being started at this moment is not lost.
-- A running row also learns which child has it (claim and start are one write, made before that is known), unless
-- somebody holds it just now: nothing here may wait for a row, or the beats of all others would come late.
WITH mine AS MATERIALIZED (
    SELECT t.id, x.generation, x.role, x.pid, x.process_name, t.worker_pid
      FROM unnest($2::text[], $3::int[], $4::text[], $6::int[], $7::text[]) AS x (id, generation, role, pid, process_name)
     CROSS JOIN LATERAL (SELECT t.id, t.worker_pid FROM horsies_tasks t
                          WHERE t.id = x.id AND t.claim_generation = x.generation AND t.claimed_by_worker_id = $1
                            AND (t.status || '' = 'RUNNING' OR x.role = 'claimer' AND t.status || '' = 'CLAIMED')
                          LIMIT 1) AS t
), beat AS (
    INSERT INTO horsies_heartbeats (task_id, sender_id, role, sent_at, hostname, pid)
    SELECT id, $1, role, statement_timestamp(), $5, pid FROM mine
), free AS MATERIALIZED (
    SELECT t.tid, mine.pid, mine.process_name FROM mine
     CROSS JOIN LATERAL (SELECT t.ctid AS tid FROM horsies_tasks t
                          WHERE t.id = mine.id AND t.claim_generation = mine.generation AND t.claimed_by_worker_id = $1
                            AND t.status || '' = 'RUNNING' FOR UPDATE SKIP LOCKED) AS t
     WHERE mine.role = 'runner' AND mine.worker_pid IS DISTINCT FROM mine.pid
), placed AS (
    UPDATE horsies_tasks t SET worker_pid = free.pid, worker_process_name = free.process_name
      FROM free WHERE t.ctid = free.tid
)
SELECT id FROM mine;

-- name: renew_claims :many
-- params: worker_id, ids, generations, lease
WITH mine AS MATERIALIZED (
    SELECT t.tid FROM unnest($2::text[], $3::int[]) AS x (id, generation)
     CROSS JOIN LATERAL (SELECT t.ctid AS tid FROM horsies_tasks t
                          WHERE t.id = x.id AND t.claim_generation = x.generation AND t.claimed_by_worker_id = $1
                            AND t.status || '' = 'CLAIMED' FOR UPDATE SKIP LOCKED) AS t
)
UPDATE horsies_tasks t SET claim_expires_at = statement_timestamp() + $4::interval
  FROM mine WHERE t.ctid = mine.tid
RETURNING t.id;

-- name: cancel_requests :many
-- params: worker_id, ids
-- The net under the notification: which of the running ones does somebody want stopped?
SELECT id, claim_generation FROM horsies_tasks
 WHERE id = ANY ($2::text[]) AND status || '' = 'RUNNING' AND claimed_by_worker_id = $1
   AND cancel_requested_at IS NOT NULL;

-- name: insert_snapshot :value
-- params: worker_id, hostname, pid, processes, queues, tasks_running, tasks_claimed, memory_usage_mb, children_memory_mb, cpu_percent, memory_percent, max_claim_batch, max_claim_per_worker, cluster_wide_cap, queue_priorities, queue_max_concurrency, recovery_config, worker_started_at, lock_key, backend_pid
-- The snapshot and the beat of the worker itself. No row back: it was judged dead, and must go on under another id.
WITH beat AS (
    UPDATE horsies_worker_instances
       SET beats = beats + 1, beat_at = statement_timestamp(), lock_key = $19, backend_pid = $20
     WHERE worker_id = $1 AND judged_dead_at IS NULL
    RETURNING worker_id
)
INSERT INTO horsies_worker_states (worker_id, hostname, pid, processes, queues, tasks_running, tasks_claimed,
    memory_usage_mb, children_memory_mb, cpu_percent, memory_percent, max_claim_batch, max_claim_per_worker,
    cluster_wide_cap, queue_priorities, queue_max_concurrency, recovery_config, worker_started_at)
SELECT $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15::jsonb, $16::jsonb, $17::jsonb, $18 FROM beat
RETURNING worker_id;

-- name: wait_until_writable :none
-- Returns when a beat could be written: at once, or when a lock that stops them (REINDEX, VACUUM FULL, ALTER TABLE) is
-- gone. How long it took tells a reaper, also one that is not active, whether the silence of others means anything.
LOCK TABLE horsies_tasks, horsies_heartbeats IN ROW EXCLUSIVE MODE;

-- name: try_reaper_lock :value
-- params: key
-- One active reaper per database and schema. Transaction-scoped, so that it works behind a pooler as well.
SELECT pg_try_advisory_xact_lock($1, hashtext(coalesce(current_schema(), '')));

-- name: expire_overdue :many
-- edge: PENDING -> EXPIRED; CLAIMED -> EXPIRED
-- params: result, row_limit
WITH target AS MATERIALIZED (
    SELECT ctid AS tid FROM horsies_tasks
     WHERE status IN ('PENDING', 'CLAIMED') AND good_until <= statement_timestamp()
     ORDER BY good_until LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE horsies_tasks t
   SET status = 'EXPIRED', claimed = false, claim_expires_at = NULL, result = $1, error_code = 'TASK_EXPIRED',
       failed_at = statement_timestamp(), terminal_at = statement_timestamp(), updated_at = statement_timestamp()
  FROM target
 WHERE t.ctid = target.tid
RETURNING t.id;

-- name: requeue_silent_claims :many
-- edge: CLAIMED -> PENDING
-- params: threshold, row_limit
-- A claim without a beat of its worker for so long, also while its lease runs. User code never ran: always safe. The
-- worker may live on: the start of a task whose claim is lost finds no row.
WITH target AS MATERIALIZED (
    SELECT t.ctid AS tid FROM horsies_tasks t
     WHERE t.status = 'CLAIMED' AND {{last_sign}} < statement_timestamp() - $1::interval
     ORDER BY t.claimed_at LIMIT $2 FOR UPDATE OF t SKIP LOCKED
)
UPDATE horsies_tasks t
   SET status = 'PENDING', claimed = false, claimed_at = NULL, claimed_by_worker_id = NULL, claim_expires_at = NULL,
       updated_at = statement_timestamp()
  FROM target
 WHERE t.ctid = target.tid
RETURNING t.id;

-- name: stale_running :many
-- params: threshold, finalizing_threshold, row_limit
-- RUNNING without a sign of life for its threshold; one with a staged outcome has a threshold of its own, and is then
-- finished with it. Locked here, by the transaction that ends them; rows that another transaction holds are left out.
SELECT t.id, t.task_name, t.claim_generation, t.claimed_by_worker_id, t.retry_count, t.max_retries, t.task_options,
       t.worker_pid, t.worker_process_name, t.started_at, t.result, t.finalizing_at, t.cancel_requested_at
  FROM horsies_tasks t
 WHERE t.status = 'RUNNING' AND t.started_at < statement_timestamp() - least($1::interval, $2::interval)
   AND {{last_sign}}
       < statement_timestamp() - CASE WHEN t.finalizing_at IS NULL THEN $1::interval ELSE $2::interval END
 ORDER BY t.started_at LIMIT $3 FOR UPDATE OF t SKIP LOCKED;
