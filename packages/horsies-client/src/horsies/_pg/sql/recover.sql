-- Finding and recovering the tasks of dead or disconnected workers by hand (broker, command line, dashboard). The
-- in-flight index bounds every scan here to the claimed and running tasks.

-- name: stale_tasks :many
-- params: threshold, worker_ids, row_limit
-- Tasks that are silent for longer than the threshold, or that one of these workers holds (the caller names those that
-- are gone). The caller also decides which threshold applies to which task (horsies.operate.stale): each worker has its
-- own.
SELECT t.id, t.task_name, t.queue_name, t.status, t.claimed_by_worker_id, t.worker_hostname, t.worker_pid,
       t.claimed_at, t.started_at, t.retry_count, t.max_retries, life.last_sign,
       statement_timestamp() - life.last_sign AS silence, t.finalizing_at IS NOT NULL AS is_finalizing,
       t.is_workflow_task, statement_timestamp() - coalesce(t.started_at, t.claimed_at) AS held_for
  FROM horsies_tasks t
 CROSS JOIN LATERAL (SELECT {{last_sign}} AS last_sign) AS life
 WHERE t.status IN ('CLAIMED', 'RUNNING')
   AND (t.claimed_by_worker_id = ANY ($2::text[])
        OR (coalesce(t.started_at, t.claimed_at) < statement_timestamp() - $1::interval
            AND life.last_sign < statement_timestamp() - $1::interval))
 ORDER BY life.last_sign, t.id LIMIT $3::int;

-- name: requeue_stale_claimed :many
-- edge: CLAIMED -> PENDING
-- params: threshold, ids
WITH target AS MATERIALIZED (
    SELECT t.id FROM horsies_tasks t
     WHERE t.status = 'CLAIMED' AND ($2::text[] IS NULL OR t.id = ANY ($2::text[]))
       AND {{last_sign}} < statement_timestamp() - $1::interval
     ORDER BY t.id FOR UPDATE OF t
)
{{requeue_target}} WHERE t.id = target.id AND t.status = 'CLAIMED' RETURNING t.id;

-- name: fail_stale_running :many
-- edge: RUNNING -> FAILED
-- params: threshold, result, reason, ids
-- Writes the task row and the attempt row in one statement. The claim generation stays: a late write of the lost worker
-- fails on the status, and a later claim raises the generation. A staged outcome (finalizing) counts as a sign of life.
-- For a task of a workflow a notification asks a worker to advance that workflow, because no worker finishes this task.
WITH target AS MATERIALIZED (
    SELECT t.id FROM horsies_tasks t
     WHERE t.status = 'RUNNING' AND ($4::text[] IS NULL OR t.id = ANY ($4::text[]))
       AND {{last_sign}} < statement_timestamp() - $1::interval
     ORDER BY t.id FOR UPDATE OF t
), failed AS (
    UPDATE horsies_tasks t
       SET status = 'FAILED', failed_at = statement_timestamp(), terminal_at = statement_timestamp(), result = $2,
           error_code = 'WORKER_CRASHED', failed_reason = $3, finalizing_at = NULL, finalizing_by_worker_id = NULL,
           updated_at = statement_timestamp()
      FROM target
     WHERE t.id = target.id AND t.status = 'RUNNING'
    RETURNING t.id, t.retry_count, t.started_at, t.claimed_by_worker_id, t.worker_hostname, t.worker_pid,
              t.worker_process_name, t.is_workflow_task
), history AS (
    INSERT INTO horsies_task_attempts (task_id, attempt, outcome, will_retry, started_at, finished_at, error_code,
                                       error_message, failed_reason, worker_id, worker_hostname, worker_pid,
                                       worker_process_name)
    SELECT id, retry_count + 1, 'WORKER_FAILURE', false, started_at, greatest(started_at, statement_timestamp()),
           'WORKER_CRASHED', $3, $3, claimed_by_worker_id, worker_hostname, worker_pid, worker_process_name
      FROM failed
    ON CONFLICT (task_id, attempt) DO NOTHING
)
SELECT id, CASE WHEN is_workflow_task THEN pg_notify('workflow_step', 't:' || id) END AS told FROM failed;

-- name: expired_tasks :many
-- params: row_limit
-- Overdue tasks that no sweep has ended yet, then the tasks that ended EXPIRED, the newest first.
(SELECT id, task_name, queue_name, status, good_until, enqueued_at, terminal_at FROM horsies_tasks
  WHERE status IN ('PENDING', 'CLAIMED') AND good_until <= statement_timestamp()
  ORDER BY good_until LIMIT $1)
UNION ALL
(SELECT id, task_name, queue_name, status, good_until, enqueued_at, terminal_at FROM horsies_tasks
  WHERE status = 'EXPIRED' ORDER BY terminal_at DESC LIMIT $1)
LIMIT $1;
