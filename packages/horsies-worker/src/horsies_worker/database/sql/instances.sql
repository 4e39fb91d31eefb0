-- Worker processes, and the recovery of a dead worker's tasks. A worker holds a session lock on its direct connection and
-- writes a heartbeat to its own row with every snapshot. A worker is dead when both are gone. One alone proves nothing: a
-- lost connection drops the lock, and a slow moment delays a heartbeat.

-- name: register_instance :none
-- params: worker_id, period_ms, queues, names_sha, names, completion_key, wanted_state, wanted_processes, wanted_by
-- Records the task names of this release as well: they count as known from now on, even if the process dies at once. A
-- name may stay missing in a queue that this worker does not serve. An existing set is written again, so that a
-- concurrent pruner keeps it. Names are sorted, so that two workers that start together lock them in the same order.
-- `wanted`: a process that continues under a new id is still drained, and has the number of children that it had.
WITH release AS (
    INSERT INTO horsies_task_sets (sha, names) VALUES ($4, $5::text[])
    ON CONFLICT (sha) DO UPDATE SET recorded_at = statement_timestamp()
), known AS (
    INSERT INTO horsies_task_names AS n (task_name, first_known_at, last_known_at)
    SELECT x.name, statement_timestamp(), statement_timestamp()
      FROM (SELECT name FROM unnest($5::text[]) AS u (name) ORDER BY name COLLATE "C") AS x
    ON CONFLICT (task_name) DO UPDATE
       SET first_known_at = coalesce(n.first_known_at, statement_timestamp()), last_known_at = statement_timestamp()
)
INSERT INTO horsies_worker_instances (worker_id, period_ms, queues, names_sha, completion_key, state, wanted_state,
    wanted_processes, wanted_by, wanted_at)
VALUES ($1, $2, $3::text[], $4, $6, 'RUNNING', $7::varchar, $8, $9::varchar,
        CASE WHEN $7::varchar IS NOT NULL OR $8::int IS NOT NULL THEN statement_timestamp() END)
ON CONFLICT (worker_id) DO NOTHING;

-- name: register_drain :none
-- params: worker_id, completion_key
-- A worker of the testing kit that lives for one call: its tasks may complete themselves, and no other worker watches it.
INSERT INTO horsies_worker_instances (worker_id, period_ms, completion_key, stopped_at)
VALUES ($1, 1000, $2, statement_timestamp());

-- name: forget_drain :none
-- params: worker_id
DELETE FROM horsies_worker_instances WHERE worker_id = $1;

-- name: read_wish :many
-- params: worker_id
-- For a worker that waits for a wish or carries one out; others read it with their heartbeat.
SELECT {{wish}} FROM horsies_worker_instances WHERE worker_id = $1;

-- name: close_instance :none
-- params: worker_id
-- The worker has left and owns no tasks: the others stop watching it.
UPDATE horsies_worker_instances SET stopped_at = statement_timestamp()
 WHERE worker_id = $1 AND stopped_at IS NULL AND judged_dead_at IS NULL;

-- name: try_own_lock :value
-- params: lock_key
SELECT pg_try_advisory_lock($1);

-- name: end_former_session :value
-- params: backend_pid, lock_key
-- A lost connection may live on at the server and keep this worker's lock. Only a session that holds this very key is
-- ended: process ids are reused, and a worker that checks this one may hold the key as well.
SELECT count(pg_terminate_backend(pid)) FROM pg_locks
 WHERE pid = $1 AND locktype = 'advisory' AND granted AND objsubid = 1
   AND (classid::bigint << 32) | objid::bigint = $2;

-- name: open_instances :many
-- Workers that may be alive, and dead workers with tasks that are not recovered yet. A changed start time of the server
-- means that all workers lost their locks at once.
SELECT worker_id, lock_key, period_ms, beats, judged_dead_at IS NOT NULL AS is_judged_dead,
       extract(epoch FROM statement_timestamp() - beat_at)::float8 AS beat_age_s,
       extract(epoch FROM pg_postmaster_start_time())::float8 AS server_start
  FROM horsies_worker_instances WHERE stopped_at IS NULL AND recovered_at IS NULL;

-- name: try_lock_of_suspect :value
-- params: lock_key
-- Held until the worker is declared dead: if it takes the key back afterwards, it finds itself declared dead. A session
-- lock would look like a living worker to the others.
SELECT pg_try_advisory_xact_lock($1);

-- name: declare_dead :value
-- params: worker_id, beats, declared_by
-- No row back: the worker sent a heartbeat meanwhile, left, or was declared dead by another worker.
UPDATE horsies_worker_instances SET judged_dead_at = statement_timestamp(), judged_by = $3
 WHERE worker_id = $1 AND beats = $2 AND judged_dead_at IS NULL AND stopped_at IS NULL
RETURNING worker_id;

-- name: requeue_dead_claims :many
-- edge: CLAIMED -> PENDING
-- params: worker_id, row_limit
-- Only tasks claimed before the worker was declared dead: if it is alive after all, later claims have their own heartbeats.
WITH target AS MATERIALIZED (
    SELECT t.ctid AS tid FROM horsies_tasks t
     WHERE t.status = 'CLAIMED' AND t.claimed_by_worker_id = $1
       AND t.claimed_at <= (SELECT judged_dead_at FROM horsies_worker_instances WHERE worker_id = $1)
     ORDER BY t.claimed_at LIMIT $2 FOR UPDATE OF t SKIP LOCKED
)
{{requeue_target}} WHERE t.ctid = target.tid RETURNING t.id;

-- name: dead_running :many
-- params: worker_id, row_limit
-- The transaction that ends these tasks locks them here.
SELECT {{lost_attempt}} FROM horsies_tasks t
 WHERE t.status = 'RUNNING' AND t.claimed_by_worker_id = $1
   AND t.claimed_at <= (SELECT judged_dead_at FROM horsies_worker_instances WHERE worker_id = $1)
 ORDER BY t.started_at LIMIT $2 FOR UPDATE OF t SKIP LOCKED;

-- name: mark_recovered :value
-- params: worker_id, with_claims
-- No row back: another transaction holds a task of this worker; the next check tries again.
UPDATE horsies_worker_instances w SET recovered_at = statement_timestamp()
 WHERE w.worker_id = $1 AND w.judged_dead_at IS NOT NULL AND w.recovered_at IS NULL
   AND NOT EXISTS (SELECT 1 FROM horsies_tasks t
                    WHERE t.status IN ('CLAIMED', 'RUNNING') AND t.claimed_by_worker_id = $1
                      AND t.claimed_at <= w.judged_dead_at AND (t.status = 'RUNNING' OR $2::boolean))
RETURNING w.worker_id;
