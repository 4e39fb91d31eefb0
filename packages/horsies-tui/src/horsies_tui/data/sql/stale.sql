-- What nobody vouches for any more. The in-flight index bounds both looks to what workers hold.

-- name: silent_tasks :many
-- params: threshold, worker_ids, row_limit
-- Held without a sign of life for the smallest threshold in use, or by one of these workers (the dead ones). Which
-- threshold counts for which task is the caller's part: every worker has its own.
SELECT t.id, t.task_name, t.queue_name, t.status, t.claimed_by_worker_id, t.worker_hostname, t.worker_pid,
       t.retry_count, t.max_retries, t.is_workflow_task, t.finalizing_at IS NOT NULL AS is_finalizing,
       statement_timestamp() - coalesce(t.started_at, t.claimed_at) AS held_for,
       statement_timestamp() - life.last_sign AS silence
  FROM horsies_tasks t
 CROSS JOIN LATERAL (
       SELECT greatest(t.claimed_at, t.started_at, t.finalizing_at, (
              SELECT h.sent_at FROM horsies_heartbeats h
               WHERE h.task_id = t.id AND h.role = CASE t.status WHEN 'RUNNING' THEN 'runner' ELSE 'claimer' END
                 AND h.sent_at >= coalesce(t.started_at, t.claimed_at)
               ORDER BY h.sent_at DESC LIMIT 1)) AS last_sign) AS life
 WHERE t.status IN ('CLAIMED', 'RUNNING')
   AND (t.claimed_by_worker_id = ANY ($2::text[])
        OR (coalesce(t.started_at, t.claimed_at) < statement_timestamp() - $1::interval
            AND life.last_sign < statement_timestamp() - $1::interval))
 ORDER BY life.last_sign, t.id LIMIT $3::int;

-- name: lost_attempts :many
-- params: worker_ids, since, row_limit
-- What dead workers were running, as its recovery wrote it down, and what became of it.
SELECT a.worker_id, a.task_id, t.task_name, t.queue_name, t.status, a.will_retry,
       statement_timestamp() - a.finished_at AS age, left(a.failed_reason, 200) AS failed_reason
  FROM horsies_task_attempts a JOIN horsies_tasks t ON t.id = a.task_id
 WHERE a.error_code = 'WORKER_CRASHED' AND a.finished_at >= statement_timestamp() - $2::interval
   AND a.worker_id = ANY ($1::text[])
 ORDER BY a.finished_at DESC LIMIT $3::int;

-- name: lost_attempts_without_reasons :many
-- params: worker_ids, since, row_limit
-- The same for a role that may not see messages.
SELECT a.worker_id, a.task_id, t.task_name, t.queue_name, t.status, a.will_retry,
       statement_timestamp() - a.finished_at AS age, NULL::text AS failed_reason
  FROM horsies_task_attempts a JOIN horsies_tasks t ON t.id = a.task_id
 WHERE a.error_code = 'WORKER_CRASHED' AND a.finished_at >= statement_timestamp() - $2::interval
   AND a.worker_id = ANY ($1::text[])
 ORDER BY a.finished_at DESC LIMIT $3::int;
