-- What single workers do and did.

-- name: worker_trends :many
-- params: worker_ids, row_limit
-- The newest few snapshots of each, for the small curves of the list.
SELECT w.worker_id, s.snapshot_at, s.cpu_percent, s.tasks_running
  FROM unnest($1::text[]) AS w (worker_id)
 CROSS JOIN LATERAL (SELECT x.snapshot_at, x.cpu_percent, x.tasks_running FROM horsies_worker_states x
                      WHERE x.worker_id = w.worker_id ORDER BY x.snapshot_at DESC LIMIT $2::int) AS s
 ORDER BY w.worker_id, s.snapshot_at;

-- name: worker_history :many
-- params: worker_id, until, slot_s, slots
-- One snapshot of every slot of the window that ends with its last sign of life: how a dead one fared before is what one
-- wants to know of it. One descent of the index per slot, however many snapshots lie between.
SELECT s.snapshot_at, s.tasks_running, s.tasks_claimed, s.memory_usage_mb, s.children_memory_mb, s.cpu_percent
  FROM generate_series($4::int - 1, 0, -1) AS n
 CROSS JOIN LATERAL (
       SELECT x.snapshot_at, x.tasks_running, x.tasks_claimed, x.memory_usage_mb, x.children_memory_mb, x.cpu_percent
         FROM horsies_worker_states x
        WHERE x.worker_id = $1 AND x.snapshot_at > $2::timestamptz - make_interval(secs => $3::float8 * (n + 1))
          AND x.snapshot_at <= $2::timestamptz - make_interval(secs => $3::float8 * n)
        ORDER BY x.snapshot_at DESC LIMIT 1) AS s
 ORDER BY s.snapshot_at;

-- name: worker_tasks :many
-- params: worker_id, row_limit
SELECT t.id, t.task_name, t.queue_name, t.priority, t.status, coalesce(t.started_at, t.claimed_at) AS since,
       statement_timestamp() - coalesce(t.started_at, t.claimed_at) AS age, t.retry_count, t.max_retries,
       t.claimed_by_worker_id, left(t.error_code, 200) AS error_code, t.is_workflow_task, t.enqueued_at, t.terminal_at
  FROM horsies_tasks t
 WHERE t.status IN ('CLAIMED', 'RUNNING') AND t.claimed_by_worker_id = $1
 ORDER BY coalesce(t.started_at, t.claimed_at), t.id LIMIT $2::int;

-- name: worker_attempts :many
-- params: worker_id, look, row_limit
-- Attempts have no index by worker: a look at the newest ones of everybody.
SELECT a.task_id, t.task_name, a.outcome, left(a.error_code, 200) AS error_code, a.finished_at,
       statement_timestamp() - a.finished_at AS age, a.finished_at - a.started_at AS took
  FROM (SELECT x.* FROM (SELECT task_id, outcome, error_code, started_at, finished_at, worker_id
                           FROM horsies_task_attempts ORDER BY finished_at DESC LIMIT $2::int) AS x
         WHERE x.worker_id = $1 ORDER BY x.finished_at DESC LIMIT $3::int) AS a
  JOIN horsies_tasks t ON t.id = a.task_id
 ORDER BY a.finished_at DESC;
