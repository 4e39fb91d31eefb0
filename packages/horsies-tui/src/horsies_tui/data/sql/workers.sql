-- The past of single workers.

-- name: worker_trends :many
-- params: worker_ids, row_limit
-- The newest snapshots of each worker, for the small curves of the list.
SELECT w.worker_id, s.cpu_percent
  FROM unnest($1::text[]) AS w (worker_id)
 CROSS JOIN LATERAL (SELECT x.snapshot_at, x.cpu_percent FROM horsies_worker_states x
                      WHERE x.worker_id = w.worker_id ORDER BY x.snapshot_at DESC LIMIT $2::int) AS s
 ORDER BY w.worker_id, s.snapshot_at;

-- name: worker_history :many
-- params: worker_id, until, slot_s, slots
-- One snapshot for each slot of the window that ends with the worker's newest snapshot, so that a dead worker's last hours
-- are shown. One index descent per slot, however many snapshots lie between.
SELECT s.snapshot_at, s.tasks_running, s.memory_mb, s.cpu_percent
  FROM generate_series($4::int - 1, 0, -1) AS n
 CROSS JOIN LATERAL (
       SELECT x.snapshot_at, x.tasks_running, x.cpu_percent,
              coalesce(x.memory_usage_mb, 0) + coalesce(x.children_memory_mb, 0) AS memory_mb
         FROM horsies_worker_states x
        WHERE x.worker_id = $1 AND x.snapshot_at > $2::timestamptz - make_interval(secs => $3::float8 * (n + 1))
          AND x.snapshot_at <= $2::timestamptz - make_interval(secs => $3::float8 * n)
        ORDER BY x.snapshot_at DESC LIMIT 1) AS s
 ORDER BY s.snapshot_at;

-- name: worker_attempts :many
-- params: worker_id, look, row_limit
-- Attempts have no index by worker, so this reads the newest attempts of all workers.
SELECT a.task_id, t.task_name, a.outcome, left(a.error_code, 200) AS error_code, a.finished_at,
       statement_timestamp() - a.finished_at AS age, a.finished_at - a.started_at AS took
  FROM (SELECT x.* FROM (SELECT task_id, outcome, error_code, started_at, finished_at, worker_id
                           FROM horsies_task_attempts ORDER BY finished_at DESC LIMIT $2::int) AS x
         WHERE x.worker_id = $1 ORDER BY x.finished_at DESC LIMIT $3::int) AS a
  JOIN horsies_tasks t ON t.id = a.task_id
 ORDER BY a.finished_at DESC;
