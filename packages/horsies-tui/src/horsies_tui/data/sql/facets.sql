-- How the tasks of a list divide: by state, queue, name and worker. Judged on bounded samples of the sections of the
-- list, so a large table costs what a small one costs; what was cut is told, and its numbers are then "at least".

-- name: task_facets :many
-- params: statuses, queue, name, worker, error, id_start, since, queues, per_queue, look, look_coded, shown
-- Every number is of what the list would hold if its own condition were not asked: the queues below are those of the
-- states, names and workers that are asked for, whichever queue is.
WITH RECURSIVE waiting AS (
    -- the queues with waiting tasks, one descent of the claim index each: a long queue must not hide the next one
    (SELECT 1 AS n, t.queue_name FROM horsies_tasks t WHERE t.status = 'PENDING'
      ORDER BY t.queue_name, t.priority, t.enqueued_at, t.id LIMIT 1)
    UNION ALL
    SELECT w.n + 1, (SELECT t.queue_name FROM horsies_tasks t
                      WHERE t.status = 'PENDING' AND t.queue_name > w.queue_name
                      ORDER BY t.queue_name, t.priority, t.enqueued_at, t.id LIMIT 1)
      FROM waiting w WHERE w.queue_name IS NOT NULL AND w.n < $8::int
), sampled AS MATERIALIZED (
    (SELECT 'held' AS section, t.id, t.status, t.queue_name, t.task_name, t.claimed_by_worker_id AS worker,
            t.worker_hostname AS host, NULL::text AS error_code
       FROM horsies_tasks t WHERE t.status IN ('CLAIMED', 'RUNNING') LIMIT $10::int)
    UNION ALL
    SELECT 'waiting', s.id, 'PENDING', w.queue_name, s.task_name, NULL, NULL, NULL
      FROM waiting w CROSS JOIN LATERAL (
           SELECT t.id, t.task_name FROM horsies_tasks t WHERE t.status = 'PENDING' AND t.queue_name = w.queue_name
            ORDER BY t.queue_name, t.priority, t.enqueued_at, t.id LIMIT $9::int) AS s
    UNION ALL
    -- apart from those with an error code: among a thousand successes the newest failures would not be seen
    (SELECT 'ended', t.id, t.status, t.queue_name, t.task_name, t.claimed_by_worker_id, t.worker_hostname, NULL
       FROM horsies_tasks t
      WHERE t.terminal_at IS NOT NULL AND t.error_code IS NULL
        AND ($7::interval IS NULL OR t.terminal_at >= statement_timestamp() - $7::interval)
      ORDER BY t.terminal_at DESC LIMIT $10::int)
    UNION ALL
    (SELECT 'coded', t.id, t.status, t.queue_name, t.task_name, t.claimed_by_worker_id, t.worker_hostname,
            left(t.error_code, 200)
       FROM horsies_tasks t
      WHERE t.terminal_at IS NOT NULL AND t.error_code IS NOT NULL
        AND ($7::interval IS NULL OR t.terminal_at >= statement_timestamp() - $7::interval)
      ORDER BY t.terminal_at DESC LIMIT $11::int)
), judged AS NOT MATERIALIZED (
    SELECT s.status, s.queue_name, s.task_name, s.worker, s.host, s.status = ANY ($1::text[]) AS by_status,
           $2::text IS NULL OR s.queue_name = $2::text AS by_queue,
           $3::text IS NULL OR strpos(lower(s.task_name), $3::text) > 0 AS by_name,
           $4::text IS NULL OR strpos(s.worker, $4::text) > 0 AS by_worker
      FROM sampled s
     WHERE ($5::text IS NULL OR strpos(lower(s.error_code), $5::text) > 0)
       AND ($6::text IS NULL OR left(s.id, length($6::text)) = $6::text)
)
SELECT 'status' AS field, status AS value, NULL::text AS host, count(*) AS tasks
  FROM judged WHERE by_queue AND by_name AND by_worker GROUP BY status
UNION ALL
(SELECT 'queue', queue_name, NULL, count(*) FROM judged WHERE by_status AND by_name AND by_worker
  GROUP BY queue_name ORDER BY count(*) DESC, queue_name LIMIT $12::int)
UNION ALL
(SELECT 'name', task_name, NULL, count(*) FROM judged WHERE by_status AND by_queue AND by_worker
  GROUP BY task_name ORDER BY count(*) DESC, task_name LIMIT $12::int)
UNION ALL
(SELECT 'worker', worker, max(host), count(*) FROM judged
  WHERE by_status AND by_queue AND by_name AND worker IS NOT NULL
  GROUP BY worker ORDER BY count(*) DESC, worker LIMIT $12::int)
UNION ALL
-- how much of each section was read: of what waits, of its fullest queue
SELECT 'read', section, NULL, CASE section WHEN 'waiting' THEN max(n) ELSE sum(n) END
  FROM (SELECT section, count(*) AS n FROM sampled
         GROUP BY section, CASE section WHEN 'waiting' THEN queue_name END) AS x GROUP BY section;
