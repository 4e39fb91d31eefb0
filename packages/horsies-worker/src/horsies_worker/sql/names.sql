-- Which task names live workers know, and what becomes of tasks whose name none of them knows. The claim never reads
-- these tables: it has its own process's list. Every worker sweeps, without a lock: each statement is safe beside itself,
-- skips rows that are locked, and writes names in one order. A worker is live for three periods after its last beat; one without a
-- set of names (an older release) may know any name.

-- name: live_names :one
WITH live AS MATERIALIZED (
    SELECT names_sha FROM horsies_worker_instances
     WHERE stopped_at IS NULL AND recovered_at IS NULL AND judged_dead_at IS NULL
       AND beat_at + 3 * period_ms * interval '1 ms' > statement_timestamp()
)
SELECT count(*) AS workers, count(*) FILTER (WHERE s.sha IS NULL) AS without_names, statement_timestamp() AS asked_at,
       ARRAY(SELECT DISTINCT u.name FROM horsies_task_sets x CROSS JOIN LATERAL unnest(x.names) AS u (name)
              WHERE x.sha IN (SELECT names_sha FROM live) ORDER BY 1) AS names
  FROM live LEFT JOIN horsies_task_sets s ON s.sha = live.names_sha;

-- name: refresh_known_names :many
-- params: names, max_age
-- Names of live workers: known until now. Rows that are fresh enough are not written.
INSERT INTO horsies_task_names AS n (task_name, first_known_at, last_known_at)
SELECT x.name, statement_timestamp(), statement_timestamp()
  FROM (SELECT u.name FROM unnest($1::text[]) AS u (name)
          LEFT JOIN horsies_task_names k ON k.task_name = u.name
         WHERE k.task_name IS NULL OR k.last_known_at IS NULL OR k.missing_since IS NOT NULL
            OR k.last_known_at < statement_timestamp() - $2::interval
         ORDER BY u.name COLLATE "C") AS x
ON CONFLICT (task_name) DO UPDATE
   SET first_known_at = coalesce(n.first_known_at, statement_timestamp()), last_known_at = statement_timestamp(),
       missing_since = NULL
RETURNING n.task_name;

-- name: waiting_queues :many
-- Every (queue, priority) with waiting tasks: one index descent each.
WITH RECURSIVE found AS (
    (SELECT t.queue_name, t.priority FROM horsies_tasks t WHERE t.status = 'PENDING'
      ORDER BY t.queue_name, t.priority LIMIT 1)
    UNION ALL
    SELECT f.queue_name, f.priority FROM found p
     CROSS JOIN LATERAL (SELECT t.queue_name, t.priority FROM horsies_tasks t WHERE t.status = 'PENDING'
                            AND (t.queue_name, t.priority) >= (p.queue_name, p.priority + 1)
                          ORDER BY t.queue_name, t.priority LIMIT 1) AS f
)
SELECT queue_name, priority FROM found;

-- name: walk_waiting :many
-- params: queue_name, priority, after_at, after_id, row_limit
-- The names of the next so many ready tasks, and where the walk got to.
WITH seen AS MATERIALIZED (
    SELECT t.task_name, t.enqueued_at, t.id FROM horsies_tasks t
     WHERE t.status = 'PENDING' AND t.queue_name = $1::text AND t.priority = $2::int
       AND (t.enqueued_at, t.id) > ($3::timestamptz, $4::text) AND t.enqueued_at <= statement_timestamp()
     ORDER BY t.enqueued_at, t.id LIMIT $5
), reached AS MATERIALIZED (
    SELECT enqueued_at, id, count(*) OVER () AS walked FROM seen ORDER BY enqueued_at DESC, id DESC LIMIT 1
)
SELECT seen.task_name, count(*) AS found, reached.enqueued_at, reached.id, reached.walked
  FROM seen CROSS JOIN reached GROUP BY 1, 3, 4, 5;

-- name: record_missing_names :many
-- params: names
-- Tasks of these names wait, and no live worker knows them. What is recorded already is read, not written.
WITH known AS MATERIALIZED (
    SELECT k.task_name, k.first_known_at, k.last_known_at, k.missing_since
      FROM unnest($1::text[]) AS u (name)
     CROSS JOIN LATERAL (SELECT k.* FROM horsies_task_names k WHERE k.task_name = u.name LIMIT 1) AS k
     WHERE k.missing_since IS NOT NULL
), recorded AS (
    INSERT INTO horsies_task_names AS n (task_name, missing_since)
    SELECT x.name, statement_timestamp()
      FROM (SELECT u.name FROM unnest($1::text[]) AS u (name)
             WHERE NOT EXISTS (SELECT FROM known WHERE known.task_name = u.name) ORDER BY u.name COLLATE "C") AS x
    ON CONFLICT (task_name) DO UPDATE SET missing_since = coalesce(n.missing_since, statement_timestamp())
    RETURNING n.task_name, n.first_known_at, n.last_known_at, n.missing_since
)
SELECT *, false AS is_new FROM known UNION ALL SELECT *, true FROM recorded;

-- name: served_spans :many
-- params: queue_name
-- When live workers served a queue, as far back as their rows are kept.
SELECT lower(span) AS began, upper(span) AS ended, statement_timestamp() AS asked_at
  FROM unnest((SELECT range_agg(tstzrange(i.started_at, greatest(i.started_at, least(
                          i.stopped_at, i.judged_dead_at, i.beat_at + 3 * i.period_ms * interval '1 ms',
                          statement_timestamp()))))
                 FROM horsies_worker_instances i
                WHERE $1::text = ANY (i.queues))) AS span
 ORDER BY 1;

-- name: fail_unknown_tasks :many
-- edge: PENDING -> FAILED
-- params: queue_name, priority, after_at, after_id, until_at, until_id, names, ready_before, results, messages, worker_id, hostname, pid
-- Tasks of one stretch of a (queue, priority) whose name is still missing and whose own grace is over. An attempt
-- that could not be made, with the reason in it. Rows that are locked are left for the next walk.
WITH target AS MATERIALIZED (
    SELECT t.ctid AS tid, d.result, d.message
      FROM horsies_tasks t
      JOIN unnest($7::text[], $8::timestamptz[], $9::text[], $10::text[]) AS d (name, ready_before, result, message)
        ON d.name = t.task_name AND t.enqueued_at <= d.ready_before
     WHERE t.status = 'PENDING' AND t.queue_name = $1::text AND t.priority = $2::int
       AND (t.enqueued_at, t.id) > ($3::timestamptz, $4::text) AND (t.enqueued_at, t.id) <= ($5::timestamptz, $6::text)
       AND EXISTS (SELECT FROM horsies_task_names n WHERE n.task_name = t.task_name AND n.missing_since IS NOT NULL)
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
           message, $11, $12, $13
      FROM moved
)
SELECT id, task_name FROM moved;

-- name: clear_missing_names :many
-- params: still_missing, before
-- No task of the other names waits any more. A name that no worker ever knew is forgotten.
WITH gone AS (
    DELETE FROM horsies_task_names
     WHERE missing_since < $2 AND first_known_at IS NULL AND task_name NOT IN (SELECT unnest($1::text[]))
    RETURNING task_name
), back AS (
    UPDATE horsies_task_names SET missing_since = NULL
     WHERE missing_since < $2 AND first_known_at IS NOT NULL AND task_name NOT IN (SELECT unnest($1::text[]))
    RETURNING task_name
)
SELECT task_name FROM gone UNION ALL SELECT task_name FROM back;
