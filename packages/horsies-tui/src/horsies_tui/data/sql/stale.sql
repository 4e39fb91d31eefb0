-- Tasks that dead workers were running. Their stale tasks are read by the client's statement.

-- fragment: lost_attempt
a.worker_id, a.task_id, t.task_name, t.status, statement_timestamp() - a.finished_at AS age

-- fragment: lost_attempts
FROM horsies_task_attempts a JOIN horsies_tasks t ON t.id = a.task_id
 WHERE a.error_code = 'WORKER_CRASHED' AND a.finished_at >= statement_timestamp() - $since::interval
   AND a.worker_id = ANY ($worker_ids::text[])
 ORDER BY a.finished_at DESC LIMIT $row_limit::int

-- name: lost_attempts :many
-- params: worker_ids, since, row_limit
-- The attempts that the recovery of these workers ended, and the state of their tasks now.
SELECT {{lost_attempt}}, left(a.failed_reason, 200) AS failed_reason {{lost_attempts}};

-- name: lost_attempts_without_reasons :many
-- params: worker_ids, since, row_limit
-- The same for a role that may not read messages.
SELECT {{lost_attempt}}, NULL::text AS failed_reason {{lost_attempts}};
