-- The overview. Counts of states stop at a bound and become the planner's estimates beyond it. Rates are counted, never
-- extrapolated: each slot of the window is counted once, in steps of a bounded number of rows, and the dashboard keeps
-- the count.

-- name: ended_counts :many
-- params: bound
SELECT status, count(*) AS tasks FROM (
    SELECT t.status FROM horsies_tasks t WHERE t.terminal_at IS NOT NULL
     ORDER BY t.terminal_at DESC LIMIT $1::int) AS newest
 GROUP BY status;

-- name: status_estimates :one
-- params: tasks_table
-- The estimates of the last ANALYZE. A role that may not read the column sees no frequencies.
SELECT c.reltuples::float8 AS rows, s.most_common_vals::text::text[] AS statuses, s.most_common_freqs AS shares
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
  LEFT JOIN pg_stats s ON s.schemaname = n.nspname AND s.tablename = c.relname AND s.attname = 'status'
 WHERE c.oid = to_regclass($1::text);

-- name: ended_now :one
-- params: span_s, look
-- The newest ends within the span, up to a bound; `oldest_s` is then the span that they cover. An index-only scan.
SELECT count(*) AS tasks, date_part('epoch', statement_timestamp() - min(newest.terminal_at)) AS oldest_s,
       statement_timestamp() AS now
  FROM (SELECT t.terminal_at FROM horsies_tasks t
         WHERE t.terminal_at > statement_timestamp() - make_interval(secs => $1::float8)
           AND t.terminal_at <= statement_timestamp()
         ORDER BY t.terminal_at DESC FETCH FIRST ($2::int) ROWS WITH TIES) AS newest;

-- name: failed_now :one
-- params: span_s, look
-- The same from the rows: how many failed, and how long they had waited for their start.
SELECT count(*) AS tasks, count(*) FILTER (WHERE newest.status IN ('FAILED', 'EXPIRED')) AS failed,
       percentile_cont(0.5) WITHIN GROUP (ORDER BY newest.waited) AS p50,
       percentile_cont(0.95) WITHIN GROUP (ORDER BY newest.waited) AS p95,
       date_part('epoch', statement_timestamp() - min(newest.terminal_at)) AS oldest_s
  FROM (SELECT t.status, t.terminal_at, greatest(0, date_part('epoch', t.started_at - t.enqueued_at)) AS waited
          FROM horsies_tasks t
         WHERE t.terminal_at > statement_timestamp() - make_interval(secs => $1::float8)
           AND t.terminal_at <= statement_timestamp()
         ORDER BY t.terminal_at DESC FETCH FIRST ($2::int) ROWS WITH TIES) AS newest;

-- name: sent_now :one
-- params: from_id, until_id, look
-- There is no index by sending time, but ids are UUIDv7: they begin with the time on the sender's clock.
SELECT count(*) AS tasks, min(newest.id) AS oldest_id
  FROM (SELECT t.id FROM horsies_tasks t WHERE t.id > $1::text AND t.id < $2::text
         ORDER BY t.id DESC LIMIT $3::int) AS newest;

-- name: ended_ranges :many
-- params: froms, untils, look
-- The number of ends after `from` and before `until`. A range with more than `look` ends is counted from its beginning up
-- to `reached`; rows with the same time stay together. An index-only scan.
SELECT r.n::int AS n, found.tasks, found.reached
  FROM unnest($1::timestamptz[], $2::timestamptz[]) WITH ORDINALITY AS r (low, high, n)
 CROSS JOIN LATERAL (
       SELECT count(*) AS tasks, max(x.terminal_at) AS reached
         FROM (SELECT t.terminal_at FROM horsies_tasks t WHERE t.terminal_at > r.low AND t.terminal_at < r.high
                ORDER BY t.terminal_at FETCH FIRST ($3::int) ROWS WITH TIES) AS x) AS found;

-- name: failed_ranges :many
-- params: froms, untils, look
-- The same from the rows: how many failed, by waiting time in buckets of an eighth of a power of two of a second; NULL
-- when the task never started.
SELECT r.n::int AS n, found.waited, found.tasks, found.failed, found.reached
  FROM unnest($1::timestamptz[], $2::timestamptz[]) WITH ORDINALITY AS r (low, high, n)
 CROSS JOIN LATERAL (
       SELECT x.waited, count(*) AS tasks, count(*) FILTER (WHERE x.failed) AS failed, max(x.terminal_at) AS reached
         FROM (SELECT t.terminal_at, t.status IN ('FAILED', 'EXPIRED') AS failed,
                      floor(8 / ln(2::float8)
                            * ln(greatest(date_part('epoch', t.started_at - t.enqueued_at), 0.0005)))::int AS waited
                 FROM horsies_tasks t WHERE t.terminal_at > r.low AND t.terminal_at < r.high
                ORDER BY t.terminal_at FETCH FIRST ($3::int) ROWS WITH TIES) AS x
        GROUP BY x.waited) AS found;

-- name: sent_ranges :many
-- params: froms, untils, look
-- The number of tasks that were sent, by id.
SELECT r.n::int AS n, found.tasks, found.reached
  FROM unnest($1::text[], $2::text[]) WITH ORDINALITY AS r (low, high, n)
 CROSS JOIN LATERAL (
       SELECT count(*) AS tasks, max(x.id) AS reached
         FROM (SELECT t.id FROM horsies_tasks t WHERE t.id > r.low AND t.id < r.high
                ORDER BY t.id LIMIT $3::int) AS x) AS found;

-- name: failing :many
-- params: window, look, row_limit
-- The newest failures of the window by task and error code; `is_least` when there may be more. A cancelled task did not
-- fail.
WITH newest AS MATERIALIZED (
    SELECT t.*
      FROM unnest(ARRAY['FAILED', 'EXPIRED']) AS s (status)
     CROSS JOIN LATERAL (
           SELECT t.id, t.task_name, left(t.error_code, 200) AS error_code, t.terminal_at FROM horsies_tasks t
            WHERE {{of_state}} AND (t.terminal_at, t.id) >= (statement_timestamp() - $1::interval, ''::text)
            {{newest_first}} LIMIT $2::int) AS t
     {{newest_first}} LIMIT $2::int
)
SELECT f.task_name, f.error_code, count(*) AS tasks, statement_timestamp() - max(f.terminal_at) AS age,
       (SELECT count(*) FROM newest) >= $2::int AS is_least
  FROM newest f
 GROUP BY 1, 2 ORDER BY 3 DESC, 4, 1, 2 LIMIT $3::int;
