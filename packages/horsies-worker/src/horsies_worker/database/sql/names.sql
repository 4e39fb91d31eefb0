-- Which task names live workers know, and the end of tasks whose name no live worker of their queue knows. A claim never
-- reads these tables: each process has its own list. Every worker sweeps, without a lock: each statement is safe beside
-- itself, skips locked rows, and writes names in one order. A worker without a set of names (an older release) may know
-- any name.

-- fragment: waits
-- Tasks without a group, and in the statements `..._grouped` those with one: each has an index of its own.
t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NULL

-- fragment: waits in grouped
t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NOT NULL

-- fragment: served_until
-- Until when a worker `i` served its queues.
greatest(i.started_at, least(i.stopped_at, i.judged_dead_at, i.beat_at + 3::bigint * i.period_ms * interval '1 ms',
                             statement_timestamp()))

-- name: live_names :many
-- The queues and names of the live workers, one row for all workers that have the same ones.
SELECT i.queues, s.names, count(*) AS workers, statement_timestamp() AS asked_at
  FROM horsies_worker_instances i LEFT JOIN horsies_task_sets s ON s.sha = i.names_sha
 WHERE {{is_live}}
 GROUP BY i.queues, s.sha;

-- name: refresh_known_names :many
-- params: names, max_age
-- Records that live workers know these names now, each in its queues; it may still be missing in another one. Rows that
-- are fresh enough are not written.
INSERT INTO horsies_task_names AS n (task_name, first_known_at, last_known_at)
SELECT x.name, statement_timestamp(), statement_timestamp()
  FROM (SELECT u.name FROM unnest($names::text[]) AS u (name)
          LEFT JOIN horsies_task_names k ON k.task_name = u.name
         WHERE k.task_name IS NULL OR k.last_known_at IS NULL
            OR k.last_known_at < statement_timestamp() - $max_age::interval
         ORDER BY u.name COLLATE "C") AS x
ON CONFLICT (task_name) DO UPDATE
   SET first_known_at = coalesce(n.first_known_at, statement_timestamp()), last_known_at = statement_timestamp()
RETURNING n.task_name;

-- name: waiting_queues :many
-- Every (queue, priority) with waiting tasks: one index descent each.
WITH RECURSIVE found AS (
    (SELECT t.queue_name, t.priority FROM horsies_tasks t WHERE {{waits}}
      ORDER BY t.queue_name, t.priority LIMIT 1)
    UNION ALL
    SELECT f.queue_name, f.priority FROM found p
     CROSS JOIN LATERAL (SELECT t.queue_name, t.priority FROM horsies_tasks t
                          WHERE {{waits}}
                            AND (t.queue_name, t.priority) >= (p.queue_name, p.priority + 1)
                          ORDER BY t.queue_name, t.priority LIMIT 1) AS f
)
SELECT queue_name, priority FROM found;

-- name: walk_waiting :many
-- params: queue_name, priority, after_at, after_id, row_limit
-- The names of the next row_limit ready tasks, and the position that the walk reached.
WITH seen AS MATERIALIZED (
    SELECT t.task_name, t.enqueued_at, t.id FROM horsies_tasks t
     WHERE {{waits}} AND t.queue_name = $queue_name::text AND t.priority = $priority::int
       AND (t.enqueued_at, t.id) > ($after_at::timestamptz, $after_id::text) AND t.enqueued_at <= statement_timestamp()
     ORDER BY t.enqueued_at, t.id LIMIT $row_limit
), reached AS MATERIALIZED (
    SELECT enqueued_at, id, count(*) OVER () AS walked FROM seen ORDER BY enqueued_at DESC, id DESC LIMIT 1
)
SELECT seen.task_name, count(*) AS found, reached.enqueued_at, reached.id, reached.walked
  FROM seen CROSS JOIN reached GROUP BY 1, 3, 4, 5;

-- name: record_missing_names :many
-- params: names
-- Tasks of these names wait, and no live worker of their queue knows them. Names that are recorded already are only read.
WITH known AS MATERIALIZED (
    SELECT k.task_name, k.first_known_at, k.last_known_at, k.missing_since
      FROM unnest($names::text[]) AS u (name)
     CROSS JOIN LATERAL (SELECT k.* FROM horsies_task_names k WHERE k.task_name = u.name LIMIT 1) AS k
     WHERE k.missing_since IS NOT NULL
), recorded AS (
    INSERT INTO horsies_task_names AS n (task_name, missing_since)
    SELECT x.name, statement_timestamp()
      FROM (SELECT u.name FROM unnest($names::text[]) AS u (name)
             WHERE NOT EXISTS (SELECT FROM known WHERE known.task_name = u.name) ORDER BY u.name COLLATE "C") AS x
    ON CONFLICT (task_name) DO UPDATE SET missing_since = coalesce(n.missing_since, statement_timestamp())
    RETURNING n.task_name, n.first_known_at, n.last_known_at, n.missing_since
)
SELECT *, false AS is_new FROM known UNION ALL SELECT *, true FROM recorded;

-- name: last_known_in_queue :many
-- params: queue_name, names
-- When workers of a queue last knew these names, as far back as the rows of workers are kept.
SELECT u.name AS task_name, max(x.last_known_at) AS last_known_at
  FROM (SELECT i.names_sha, max({{served_until}}) AS last_known_at FROM horsies_worker_instances i
         WHERE $queue_name::text = ANY (i.queues) GROUP BY 1) AS x
  JOIN horsies_task_sets s ON s.sha = x.names_sha
 CROSS JOIN LATERAL unnest(s.names) AS u (name)
 WHERE u.name = ANY ($names::text[])
 GROUP BY 1;

-- name: served_spans :many
-- params: queue_name
-- The times in which live workers served a queue, as far back as their rows are kept.
SELECT lower(span) AS began, upper(span) AS ended, statement_timestamp() AS asked_at
  FROM unnest((SELECT range_agg(tstzrange(i.started_at, {{served_until}})) FROM horsies_worker_instances i
                WHERE $queue_name::text = ANY (i.queues))) AS span
 ORDER BY 1;

-- name: fail_unknown_tasks :many
-- edge: PENDING -> FAILED
-- params: queue_name, priority, after_at, after_id, until_at, until_id, names, ready_before, results, messages, worker_id, hostname, pid
-- Fails the tasks of one stretch of a (queue, priority) whose name is still missing and whose own grace period is over,
-- with an attempt that says why. A worker that has started since `live_names` was read keeps its tasks. Locked rows are
-- left for the next walk.
WITH target AS MATERIALIZED (
    SELECT t.ctid AS tid, d.result, d.message
      FROM horsies_tasks t
      JOIN unnest($names::text[], $ready_before::timestamptz[], $results::text[], $messages::text[]) AS d (name, ready_before, result, message)
        ON d.name = t.task_name AND t.enqueued_at <= d.ready_before
     WHERE {{waits}} AND t.queue_name = $queue_name::text AND t.priority = $priority::int
       AND (t.enqueued_at, t.id) > ($after_at::timestamptz, $after_id::text) AND (t.enqueued_at, t.id) <= ($until_at::timestamptz, $until_id::text)
       AND EXISTS (SELECT FROM horsies_task_names n WHERE n.task_name = t.task_name AND n.missing_since IS NOT NULL)
       AND d.name NOT IN (SELECT unnest(s.names) FROM horsies_worker_instances i JOIN horsies_task_sets s ON s.sha = i.names_sha
                           WHERE {{is_live}} AND $queue_name::text = ANY (i.queues))
       FOR UPDATE OF t SKIP LOCKED
), moved AS (
    UPDATE horsies_tasks t
       SET status = 'FAILED', result = target.result, error_code = 'WORKER_RESOLUTION_ERROR',
           failed_reason = target.message, failed_at = statement_timestamp(), terminal_at = statement_timestamp(),
           updated_at = statement_timestamp()
      FROM target
     WHERE t.ctid = target.tid AND t.status || '' = 'PENDING'
    RETURNING t.id, t.task_name, t.retry_count + 1 AS attempt, target.message
), history AS (
    INSERT INTO horsies_task_attempts (task_id, attempt, outcome, started_at, finished_at, error_code, error_message,
                                       failed_reason, worker_id, worker_hostname, worker_pid)
    SELECT id, attempt, 'FAILED', statement_timestamp(), statement_timestamp(), 'WORKER_RESOLUTION_ERROR', message,
           message, $worker_id, $hostname, $pid
      FROM moved
)
SELECT id, task_name FROM moved;

-- name: clear_missing_names :many
-- params: still_missing, before
-- No task of other names waits any more. A name that no worker ever knew is deleted.
WITH gone AS (
    DELETE FROM horsies_task_names
     WHERE missing_since < $before AND first_known_at IS NULL AND task_name NOT IN (SELECT unnest($still_missing::text[]))
    RETURNING task_name
), back AS (
    UPDATE horsies_task_names SET missing_since = NULL
     WHERE missing_since < $before AND first_known_at IS NOT NULL AND task_name NOT IN (SELECT unnest($still_missing::text[]))
    RETURNING task_name
)
SELECT task_name FROM gone UNION ALL SELECT task_name FROM back;
