-- Finding and healing what a dead or deaf worker left behind, by hand (broker, command line, dashboard). The in-flight
-- index bounds every scan here to what is claimed or running.

-- fragment: last_sign
-- The last sign of life of a task in hand: the newest of its state's own start, a staged outcome, and the heartbeats of
-- the current attempt. Its age is the task's silence, for the reaper, `horsies stale`, the doctor and the dashboard.
greatest(t.claimed_at, t.started_at, t.finalizing_at, (
    SELECT h.sent_at FROM horsies_heartbeats h
     WHERE h.task_id = t.id AND h.role = CASE t.status WHEN 'RUNNING' THEN 'runner' ELSE 'claimer' END
       AND h.sent_at >= coalesce(t.started_at, t.claimed_at)
     ORDER BY h.sent_at DESC LIMIT 1))

-- name: stale_tasks :many
-- params: threshold, worker_ids, row_limit
-- Silent for the threshold, or in the hands of one of these workers (those that are gone). Which threshold counts for
-- which task is the caller's part (horsies.stale): every worker has its own.
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
UPDATE horsies_tasks t
   SET status = 'PENDING', claimed = false, claimed_at = NULL, claimed_by_worker_id = NULL, claim_expires_at = NULL,
       updated_at = statement_timestamp()
  FROM target
 WHERE t.id = target.id AND t.status = 'CLAIMED'
RETURNING t.id;

-- name: fail_stale_running :many
-- edge: RUNNING -> FAILED
-- params: threshold, result, reason, ids
-- Task row and attempt row in one statement. The generation is not touched: a late write of the lost worker
-- fails on the status, a later claim bumps it. A staged outcome (finalizing) counts as a sign of life. Of a workflow's
-- task the workflow has to hear, and no worker ends this one: a worker is told to look.
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
-- Overdue ones that no sweep has met yet, then those that ended EXPIRED, newest first.
(SELECT id, task_name, queue_name, status, good_until, enqueued_at, terminal_at FROM horsies_tasks
  WHERE status IN ('PENDING', 'CLAIMED') AND good_until <= statement_timestamp()
  ORDER BY good_until LIMIT $1)
UNION ALL
(SELECT id, task_name, queue_name, status, good_until, enqueued_at, terminal_at FROM horsies_tasks
  WHERE error_code = 'TASK_EXPIRED' AND status = 'EXPIRED'
  ORDER BY terminal_at DESC LIMIT $1)
LIMIT $1;

-- name: worker_stats :many
-- params: window
-- The last snapshot of every worker that was seen within the window. One index descent per worker, whatever the
-- length of the time series.
WITH RECURSIVE worker AS (
    (SELECT worker_id FROM horsies_worker_states ORDER BY worker_id LIMIT 1)
    UNION ALL
    SELECT (SELECT s.worker_id FROM horsies_worker_states s WHERE s.worker_id > w.worker_id ORDER BY s.worker_id LIMIT 1)
      FROM worker w WHERE w.worker_id IS NOT NULL
)
SELECT s.* FROM worker w
 CROSS JOIN LATERAL (SELECT * FROM horsies_worker_states x WHERE x.worker_id = w.worker_id
                      ORDER BY x.snapshot_at DESC LIMIT 1) AS s
 WHERE w.worker_id IS NOT NULL AND s.snapshot_at >= statement_timestamp() - $1::interval
 ORDER BY s.worker_started_at, s.worker_id;
