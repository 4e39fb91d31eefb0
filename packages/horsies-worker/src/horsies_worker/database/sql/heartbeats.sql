-- Heartbeats, leases, cancel requests and snapshots of this worker. They run on a session of their own, never behind a
-- claim or a finalize, and wait for no row that another transaction holds.

-- fragment: shares
-- The policies of those queues that have a weight or an ageing time; NULL if none of them has one.
(SELECT jsonb_object_agg(s.queue_name, s.policy) FROM horsies_queue_state s
  WHERE s.queue_name = ANY ($queues::text[]) AND s.policy ?| '{weight,ageing_seconds}')

-- name: beat_batch :many
-- params: worker_id, ids, generations, roles, hostname, pids, process_names
-- Fenced: only tasks that this worker still owns get a heartbeat, and only their ids come back; the rest were lost. A
-- claim that is being started at this moment is not lost.
-- The heartbeat also writes the child's process id into a running row (claim and start are one write, made before the
-- child is known). It skips a locked row: waiting for one row would delay the heartbeats of all others.
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
-- Extends the leases of claimed tasks that wait for a free slot.
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
-- Which of these running tasks have a cancel request? Polled as well, because a notification can be missed.
SELECT id, claim_generation FROM horsies_tasks
 WHERE id = ANY ($2::text[]) AND status || '' = 'RUNNING' AND claimed_by_worker_id = $1
   AND cancel_requested_at IS NOT NULL;

-- name: read_shares :value
-- params: queues
SELECT {{shares}};

-- name: insert_snapshot :one
-- params: worker_id, hostname, pid, processes, queues, tasks_running, tasks_claimed, memory_usage_mb, children_memory_mb, cpu_percent, memory_percent, max_claim_batch, max_claim_per_worker, cluster_wide_cap, queue_priorities, queue_max_concurrency, recovery_config, worker_started_at, lock_key, backend_pid, state, reached_at
-- The snapshot and the heartbeat of the worker itself. No row back: another worker has declared this one dead, or
-- a failover has lost its registration, and it must continue under a new id. Otherwise what an operator wants of this
-- worker, and how its queues share its places.
WITH beat AS (
    UPDATE horsies_worker_instances
       SET beats = beats + 1, beat_at = statement_timestamp(), lock_key = $19, backend_pid = $20, state = $21,
           reached_at = $22
     WHERE worker_id = $1 AND judged_dead_at IS NULL
    RETURNING worker_id, {{wish}}
), snapshot AS (
    INSERT INTO horsies_worker_states (worker_id, hostname, pid, processes, queues, tasks_running, tasks_claimed,
        memory_usage_mb, children_memory_mb, cpu_percent, memory_percent, max_claim_batch, max_claim_per_worker,
        cluster_wide_cap, queue_priorities, queue_max_concurrency, recovery_config, worker_started_at)
    SELECT $1, $2, $3, $4, $5::text[], $6, $7, $8, $9, $10, $11, $12, $13, $14, $15::jsonb, $16::jsonb, $17::jsonb, $18
      FROM beat
)
SELECT beat.*, {{shares}} AS shares FROM beat;
