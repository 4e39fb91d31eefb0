-- Counts of the tasks of a list by state, queue, name and worker. They are taken from bounded samples of the list's
-- sections, so a large table costs no more than a small one. The rows named `read` say which samples reached their bound;
-- those counts are lower bounds.

-- name: task_facets :many
-- params: statuses, queue, name, worker, error, id_start, since, queues, per_queue, look, look_unsuccessful, shown, group_key, metadata
-- Each field is counted without the filter's condition on that field: the queues are those of the wanted states, names
-- and workers, in all queues.
WITH RECURSIVE waiting AS (
    -- the queues with waiting tasks, with two index descents each, so that a long queue does not hide the next
    SELECT 1 AS n, least((SELECT t.queue_name FROM horsies_tasks t WHERE {{waits_alone}}
                           ORDER BY t.queue_name, t.priority, t.enqueued_at, t.id LIMIT 1),
                         (SELECT t.queue_name FROM horsies_tasks t WHERE {{waits_in_group}}
                           ORDER BY t.queue_name, t.priority, t.enqueued_at, t.id LIMIT 1)) AS queue_name
    UNION ALL
    SELECT w.n + 1, least((SELECT t.queue_name FROM horsies_tasks t WHERE {{waits_alone}} AND t.queue_name > w.queue_name
                            ORDER BY t.queue_name, t.priority, t.enqueued_at, t.id LIMIT 1),
                          (SELECT t.queue_name FROM horsies_tasks t WHERE {{waits_in_group}} AND t.queue_name > w.queue_name
                            ORDER BY t.queue_name, t.priority, t.enqueued_at, t.id LIMIT 1))
      FROM waiting w WHERE w.queue_name IS NOT NULL AND w.n < $8::int
), sampled AS MATERIALIZED (
    (SELECT 'held' AS section, t.id, t.status, t.queue_name, t.task_name, t.claimed_by_worker_id AS worker,
            t.worker_hostname AS host, NULL::text AS error_code, t.group_key{{metadata_column}}
       FROM horsies_tasks t WHERE t.status IN ('CLAIMED', 'RUNNING') LIMIT $10::int)
    UNION ALL
    SELECT 'waiting', s.id, 'PENDING', w.queue_name, s.task_name, NULL, NULL, NULL, s.group_key{{metadata_column}}
      FROM waiting w CROSS JOIN LATERAL (
           SELECT t.id, t.task_name, t.group_key{{metadata_column}}
             FROM (SELECT id, task_name, queue_name, priority, enqueued_at, group_key{{metadata_column}}
                     FROM horsies_tasks t WHERE {{waits_alone}}
                   UNION ALL
                   SELECT id, task_name, queue_name, priority, enqueued_at, group_key{{metadata_column}}
                     FROM horsies_tasks t WHERE {{waits_in_group}}) AS t
            WHERE t.queue_name = w.queue_name
            ORDER BY t.queue_name, t.priority, t.enqueued_at, t.id LIMIT $9::int) AS s
    UNION ALL
    (SELECT 'withdrawn', t.id, t.status, t.queue_name, t.task_name, NULL, NULL, NULL, t.group_key{{metadata_column}}
       FROM horsies_tasks t WHERE t.withdrawn LIMIT $10::int)
    UNION ALL
    -- The newest ends, of which the successes are counted. The other states are sampled apart, because a thousand
    -- successes would hide the newest failures.
    (SELECT CASE t.status WHEN 'COMPLETED' THEN 'COMPLETED' ELSE 'passed' END, t.id, t.status, t.queue_name, t.task_name,
            t.claimed_by_worker_id, t.worker_hostname, NULL, t.group_key{{metadata_column}}
       FROM horsies_tasks t
      WHERE t.terminal_at IS NOT NULL
        AND ($7::interval IS NULL OR t.terminal_at >= statement_timestamp() - $7::interval)
      ORDER BY t.terminal_at DESC LIMIT $10::int)
    UNION ALL
    SELECT s.status, t.*
      FROM unnest(ARRAY['FAILED', 'CANCELLED', 'EXPIRED']) AS s (status)
     CROSS JOIN LATERAL (
           SELECT t.id, t.status, t.queue_name, t.task_name, t.claimed_by_worker_id, t.worker_hostname,
                  left(t.error_code, 200), t.group_key{{metadata_column}}
             FROM horsies_tasks t
            WHERE {{of_state}}
              AND ($7::interval IS NULL OR (t.terminal_at, t.id) >= (statement_timestamp() - $7::interval, ''::text))
            {{newest_first}} LIMIT $11::int) AS t
), judged AS NOT MATERIALIZED (
    SELECT t.status, t.queue_name, t.task_name, t.worker, t.host, t.status = ANY ($1::text[]) AS by_status,
           $2::text IS NULL OR t.queue_name = $2::text AS by_queue,
           $3::text IS NULL OR strpos(lower(t.task_name), $3::text) > 0 AS by_name,
           $4::text IS NULL OR strpos(t.worker, $4::text) > 0 AS by_worker
      FROM sampled t
     WHERE t.section <> 'passed' AND ($5::text IS NULL OR strpos(lower(t.error_code), $5::text) > 0)
       AND ($group_key::text IS NULL OR t.group_key = $group_key::text)
       AND ($6::text IS NULL OR left(t.id, length($6::text)) = $6::text) AND {{metadata_matches}}
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
-- the number of rows that were read in each section; for the waiting tasks, in the longest queue
SELECT 'read', section, NULL, CASE section WHEN 'waiting' THEN max(n) ELSE sum(n) END
  FROM (SELECT CASE section WHEN 'passed' THEN 'COMPLETED' ELSE section END AS section, count(*) AS n FROM sampled
         GROUP BY 1, CASE section WHEN 'waiting' THEN queue_name END) AS x GROUP BY section;
