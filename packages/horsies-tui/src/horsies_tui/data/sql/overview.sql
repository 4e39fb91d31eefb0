-- What the first screen shows. Counts stop at a bound and become the planner's estimates beyond it; rates are measured
-- on a bounded sample of every slot of the window, so a busy hour costs what a quiet one costs.

-- name: ended_counts :many
-- params: bound
SELECT status, count(*) AS tasks FROM (
    SELECT t.status FROM horsies_tasks t WHERE t.terminal_at IS NOT NULL
     ORDER BY t.terminal_at DESC LIMIT $1::int) AS newest
 GROUP BY status;

-- name: status_estimates :one
-- params: tasks_table
-- As of the last ANALYZE. A role that may not read the column sees no frequencies.
SELECT c.reltuples::float8 AS rows, s.most_common_vals::text::text[] AS statuses, s.most_common_freqs AS shares
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_stats s ON s.schemaname = n.nspname AND s.tablename = c.relname AND s.attname = 'status'
 WHERE c.oid = to_regclass($1::text);

-- name: ended_series :many
-- params: slot_s, slots, sample
-- Slots begin at round times, so that a bar does not change its height while the window moves on.
WITH slot AS (
    SELECT n, to_timestamp(floor(extract(epoch FROM statement_timestamp()) / $1::float8) * $1::float8
                           - $1::float8 * ($2::int - 1 - n)) AS starts
      FROM generate_series(0, $2::int - 1) AS n
)
SELECT slot.n, found.seen, found.failed, found.p50, found.p95,
       extract(epoch FROM least(statement_timestamp() - slot.starts, make_interval(secs => $1::float8)))::float8 AS lasted,
       extract(epoch FROM found.last_at - slot.starts)::float8 AS covered
  FROM slot CROSS JOIN LATERAL (
       SELECT count(*) AS seen, count(*) FILTER (WHERE sample.status IN ('FAILED', 'EXPIRED')) AS failed,
              max(sample.terminal_at) AS last_at,
              percentile_cont(0.5) WITHIN GROUP (ORDER BY sample.waited) AS p50,
              percentile_cont(0.95) WITHIN GROUP (ORDER BY sample.waited) AS p95
         FROM (SELECT t.status, t.terminal_at,
                      greatest(0, extract(epoch FROM t.started_at - t.enqueued_at))::float8 AS waited
                 FROM horsies_tasks t
                WHERE t.terminal_at >= slot.starts AND t.terminal_at < slot.starts + make_interval(secs => $1::float8)
                ORDER BY t.terminal_at LIMIT $3::int) AS sample) AS found
 ORDER BY slot.n;

-- name: sent_series :many
-- params: slot_s, slots, sample
-- No index leads from a time to the tasks that were sent then, but ids do: they begin with the sender's clock (UUIDv7).
WITH slot AS (
    SELECT n, (floor(extract(epoch FROM statement_timestamp()) / $1::float8) * $1::float8
               - $1::float8 * ($2::int - 1 - n)) AS starts
      FROM generate_series(0, $2::int - 1) AS n
), bound AS (
    SELECT n, starts, lpad(to_hex((starts * 1000)::bigint), 12, '0') AS low,
           lpad(to_hex(((starts + $1::float8) * 1000)::bigint), 12, '0') AS high FROM slot
)
SELECT bound.n, found.seen, found.last_id, bound.starts::float8 AS starts,
       least(extract(epoch FROM statement_timestamp()) - bound.starts, $1::float8)::float8 AS lasted
  FROM bound CROSS JOIN LATERAL (
       SELECT count(*) AS seen, max(sample.id) AS last_id
         FROM (SELECT t.id FROM horsies_tasks t
                WHERE t.id >= left(bound.low, 8) || '-' || right(bound.low, 4)
                  AND t.id < left(bound.high, 8) || '-' || right(bound.high, 4)
                ORDER BY t.id LIMIT $3::int) AS sample) AS found
 ORDER BY bound.n;

-- name: failing :many
-- params: window, look, row_limit
-- Among the newest failures of the window. What was cancelled did not fail.
SELECT f.task_name, f.error_code, count(*) AS tasks, statement_timestamp() - max(f.terminal_at) AS age
  FROM (SELECT t.task_name, left(t.error_code, 200) AS error_code, t.status, t.terminal_at FROM horsies_tasks t
         WHERE t.terminal_at IS NOT NULL AND t.error_code IS NOT NULL
           AND t.terminal_at >= statement_timestamp() - $1::interval
         ORDER BY t.terminal_at DESC LIMIT $2::int) AS f
 WHERE f.status IN ('FAILED', 'EXPIRED')
 GROUP BY 1, 2 ORDER BY 3 DESC, 4, 1, 2 LIMIT $3::int;
