-- Actions of operators and producers on existing tasks and queues. Every statement locks its rows in the order of ids,
-- guards the state it expects, and returns the ids it changed; the other tasks were in another state.

-- name: cancel_tasks :many
-- edge: PENDING -> CANCELLED; CLAIMED -> CANCELLED
-- params: ids
-- CANCELLED: the task had not started and never will. REQUESTED: it runs, and its worker was told to stop it. This is a
-- function of the schema, so that a producer can cancel without the right to UPDATE.
SELECT id, outcome FROM horsies_cancel_tasks($1::text[]);

-- name: task_holders :many
-- params: ids
SELECT t.id, a.pid, a.usename::text AS role, a.application_name, statement_timestamp() - a.xact_start AS age
{{with_holder}} WHERE t.id = ANY ($1::text[]);

-- name: retry_batch :many
-- edge: FAILED -> PENDING; CANCELLED -> PENDING; EXPIRED -> PENDING
-- params: ids, ended_before
-- The task runs again under the same id and keeps its attempts; its crashes and snoozes are counted anew. A workflow's node is retried through its workflow, and
-- the former task of a retried node never runs again. `ended_before` leaves out a task that another operator retried,
-- and that failed again, after the caller looked. So does the ctid, while this statement waits for the lock of another
-- task: its snapshot has not the attempts that were made since, and a number that is taken already would keep the task
-- from ever being ended.
WITH target AS MATERIALIZED (
    SELECT id, ctid AS tid FROM horsies_tasks
     WHERE id = ANY ($1::text[]) AND status IN ('FAILED', 'CANCELLED', 'EXPIRED') AND NOT is_workflow_task
       AND former_node_id IS NULL AND ($2::timestamptz IS NULL OR terminal_at < $2::timestamptz)
     ORDER BY id FOR UPDATE
), history AS MATERIALIZED (
    SELECT target.*, (SELECT count(*)::int FROM horsies_task_attempts a WHERE a.task_id = target.id) AS attempts FROM target
)
UPDATE horsies_tasks t
   SET status = 'PENDING', retry_count = h.attempts, max_retries = greatest(t.max_retries, h.attempts),
       manual_retries = t.manual_retries + 1, enqueued_at = statement_timestamp(), next_retry_at = NULL,
       good_until = NULL, result = NULL, error_code = NULL, failed_reason = NULL, failed_at = NULL,
       terminal_at = NULL, cancel_requested_at = NULL, progress = NULL, claimed_at = NULL,
       claimed_by_worker_id = NULL, claim_expires_at = NULL, started_at = NULL, finalizing_at = NULL,
       finalizing_by_worker_id = NULL, worker_pid = NULL, worker_hostname = NULL, worker_process_name = NULL,
       crash_count = 0, snoozes = 0, updated_at = statement_timestamp()
  FROM history h
 WHERE t.id = h.id AND t.ctid = h.tid AND t.status IN ('FAILED', 'CANCELLED', 'EXPIRED')
RETURNING t.id;

-- name: requeue_claimed_batch :many
-- edge: CLAIMED -> PENDING
-- params: ids
-- Always safe: user code has not run, and the claim generation fences the worker's start.
WITH target AS MATERIALIZED (
    SELECT id FROM horsies_tasks WHERE id = ANY ($1::text[]) AND status = 'CLAIMED' ORDER BY id FOR UPDATE
)
{{requeue_target}} WHERE t.id = target.id AND t.status = 'CLAIMED' RETURNING t.id;

-- name: pause_queue :value
-- params: queue_name
INSERT INTO horsies_queue_state (queue_name, paused_at) VALUES ($1::varchar, statement_timestamp())
ON CONFLICT (queue_name) DO UPDATE
   SET paused_at = coalesce(horsies_queue_state.paused_at, excluded.paused_at), updated_at = statement_timestamp()
RETURNING pg_notify('queue_state', queue_name);

-- name: resume_queue :one
-- params: queue_name
-- A queue without a row is not paused, and no row is made for it.
WITH changed AS (
    UPDATE horsies_queue_state SET paused_at = NULL, updated_at = statement_timestamp()
     WHERE queue_name = $1::varchar AND paused_at IS NOT NULL
    RETURNING queue_name
)
SELECT pg_notify('queue_state', $1::varchar), EXISTS (SELECT FROM changed) AS was_paused;

-- name: paused_queues :many
SELECT queue_name, paused_at FROM horsies_queue_state WHERE paused_at IS NOT NULL ORDER BY queue_name;

-- name: want_of_workers :many
-- params: worker_ids, state, processes, requested_by
-- Writes a wish for workers that are there and know wishes (`state`); what is NULL stays as it was wanted before. The time
-- of a wish is later than that of the one before, by which a worker and those who wait recognise it. Rows are locked in
-- the order of ids.
WITH target AS MATERIALIZED (
    SELECT worker_id FROM horsies_worker_instances
     WHERE worker_id = ANY ($1::text[]) AND stopped_at IS NULL AND judged_dead_at IS NULL AND state IS NOT NULL
     ORDER BY worker_id FOR UPDATE
)
UPDATE horsies_worker_instances i
   SET wanted_state = coalesce($2::varchar, i.wanted_state), wanted_processes = coalesce($3::int, i.wanted_processes),
       wanted_at = greatest(statement_timestamp(), i.wanted_at + interval '1 microsecond'), wanted_by = $4::varchar
  FROM target
 WHERE i.worker_id = target.worker_id AND i.stopped_at IS NULL AND i.judged_dead_at IS NULL
RETURNING i.worker_id, i.wanted_at, pg_notify('worker_control', i.worker_id::text);

-- name: worker_progress :many
-- params: worker_ids
-- How far workers have carried out the last wish.
SELECT i.worker_id, i.state, i.reached_at, {{wish}}, ({{is_live}}) AS is_live,
       (SELECT count(*) FROM horsies_tasks t
         WHERE t.status IN ('CLAIMED', 'RUNNING') AND t.claimed_by_worker_id = i.worker_id) AS tasks
  FROM horsies_worker_instances i WHERE i.worker_id = ANY ($1::text[]) ORDER BY i.worker_id;
