-- What became of the work of workers that died. What is stale itself is asked by the client's statement.

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
