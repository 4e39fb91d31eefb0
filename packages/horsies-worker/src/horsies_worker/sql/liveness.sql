-- Which worker processes live, and what becomes of the tasks of one that is known dead. A worker holds a session lock on
-- its direct connection and beats its own row with every snapshot; both gone is death. Neither alone is: a lock is lost
-- with any connection, and a beat with any slow moment.

-- name: register_instance :none
-- params: worker_id, period_ms, queues, names_sha, names
-- With the task names of its release: a name is known from this moment on, also if the process dies at once. The set's
-- row is written even when it is there, so that a pruner at work leaves it. Names in order: two that start together
-- lock them in the same one.
WITH release AS (
    INSERT INTO horsies_task_sets (sha, names) VALUES ($4, $5::text[])
    ON CONFLICT (sha) DO UPDATE SET recorded_at = statement_timestamp()
), known AS (
    INSERT INTO horsies_task_names AS n (task_name, first_known_at, last_known_at)
    SELECT x.name, statement_timestamp(), statement_timestamp()
      FROM (SELECT name FROM unnest($5::text[]) AS u (name) ORDER BY name COLLATE "C") AS x
    ON CONFLICT (task_name) DO UPDATE
       SET first_known_at = coalesce(n.first_known_at, statement_timestamp()), last_known_at = statement_timestamp(),
           missing_since = NULL
)
INSERT INTO horsies_worker_instances (worker_id, period_ms, queues, names_sha) VALUES ($1, $2, $3::text[], $4)
ON CONFLICT (worker_id) DO NOTHING;

-- name: close_instance :none
-- params: worker_id
-- It left and holds nothing: nobody needs to watch it.
UPDATE horsies_worker_instances SET stopped_at = statement_timestamp()
 WHERE worker_id = $1 AND stopped_at IS NULL AND judged_dead_at IS NULL;

-- name: try_own_lock :value
-- params: lock_key
SELECT pg_try_advisory_lock($1);

-- name: end_former_session :value
-- params: backend_pid, lock_key
-- A connection that we lost may live on at the server for a while and keep our lock. Only the session that holds this
-- very key is ended: process ids come again, and a judge may hold the key as well.
SELECT count(pg_terminate_backend(pid)) FROM pg_locks
 WHERE pid = $1 AND locktype = 'advisory' AND granted AND objsubid = 1
   AND (classid::bigint << 32) | objid::bigint = $2;

-- name: watch_instances :many
-- Those that may be alive, and those that were judged and whose tasks are not all recovered. The server's start tells a
-- judge that everybody's locks were lost at once.
SELECT worker_id, lock_key, period_ms, beats, judged_dead_at, pg_postmaster_start_time() AS server_start
  FROM horsies_worker_instances WHERE stopped_at IS NULL AND recovered_at IS NULL;

-- name: try_lock_of_silent :value
-- params: lock_key
-- For the length of the verdict: whoever takes the key back afterwards finds the verdict written. A session lock of
-- the judge would itself look like a living worker.
SELECT pg_try_advisory_xact_lock($1);

-- name: judge_instance :value
-- params: worker_id, beats, judged_by
-- No row back: it beat meanwhile, left, or was judged by another.
UPDATE horsies_worker_instances SET judged_dead_at = statement_timestamp(), judged_by = $3
 WHERE worker_id = $1 AND beats = $2 AND judged_dead_at IS NULL AND stopped_at IS NULL
RETURNING worker_id;

-- name: requeue_dead_claims :many
-- edge: CLAIMED -> PENDING
-- params: worker_id, row_limit
-- Only what it held when it was judged: if it lives after all and has claimed since, its own beats vouch for that.
WITH target AS MATERIALIZED (
    SELECT t.ctid AS tid FROM horsies_tasks t
     WHERE t.status = 'CLAIMED' AND t.claimed_by_worker_id = $1
       AND t.claimed_at <= (SELECT judged_dead_at FROM horsies_worker_instances WHERE worker_id = $1)
     ORDER BY t.claimed_at LIMIT $2 FOR UPDATE OF t SKIP LOCKED
)
UPDATE horsies_tasks t
   SET status = 'PENDING', claimed = false, claimed_at = NULL, claimed_by_worker_id = NULL, claim_expires_at = NULL,
       updated_at = statement_timestamp()
  FROM target
 WHERE t.ctid = target.tid
RETURNING t.id;

-- name: dead_running :many
-- params: worker_id, row_limit
-- Locked here, by the transaction that ends them.
SELECT t.id, t.task_name, t.claim_generation, t.claimed_by_worker_id, t.retry_count, t.max_retries, t.task_options,
       t.worker_pid, t.worker_process_name, t.started_at, t.result, t.finalizing_at, t.cancel_requested_at
  FROM horsies_tasks t
 WHERE t.status = 'RUNNING' AND t.claimed_by_worker_id = $1
   AND t.claimed_at <= (SELECT judged_dead_at FROM horsies_worker_instances WHERE worker_id = $1)
 ORDER BY t.started_at LIMIT $2 FOR UPDATE OF t SKIP LOCKED;

-- name: mark_recovered :value
-- params: worker_id, with_claims
-- No row back: somebody held a row just now, it is looked for again.
UPDATE horsies_worker_instances w SET recovered_at = statement_timestamp()
 WHERE w.worker_id = $1 AND w.judged_dead_at IS NOT NULL AND w.recovered_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM horsies_tasks t
                    WHERE t.status IN ('CLAIMED', 'RUNNING') AND t.claimed_by_worker_id = $1
                      AND t.claimed_at <= w.judged_dead_at AND (t.status = 'RUNNING' OR $2::boolean))
RETURNING w.worker_id;
