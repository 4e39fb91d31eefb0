-- Lists of tasks. Three sections, each walked along its own index and never further than a number of rows:
-- what workers hold (as many as they have slots), what waits (in the order of the claim), what ended (newest first).
-- A condition that no index serves is judged on the rows that were walked; the page then says how far it looked.

-- name: tasks_by_id :many
-- params: ids
SELECT t.id, t.task_name, t.queue_name, t.priority, t.status,
       coalesce(t.terminal_at, t.started_at, t.claimed_at, t.enqueued_at) AS since,
       statement_timestamp() - coalesce(t.terminal_at, t.started_at, t.claimed_at, t.enqueued_at) AS age,
       t.retry_count, t.max_retries, t.claimed_by_worker_id, left(t.error_code, 200) AS error_code,
       t.is_workflow_task, t.enqueued_at, t.terminal_at
  FROM horsies_tasks t WHERE t.id = ANY ($1::text[]);

-- name: tasks_in_flight :many
-- params: statuses, queue, name, id_start, worker, after_at, after_id, row_limit
SELECT t.id, t.task_name, t.queue_name, t.priority, t.status, coalesce(t.started_at, t.claimed_at) AS since,
       statement_timestamp() - coalesce(t.started_at, t.claimed_at) AS age, t.retry_count, t.max_retries,
       t.claimed_by_worker_id, left(t.error_code, 200) AS error_code, t.is_workflow_task, t.enqueued_at, t.terminal_at
  FROM horsies_tasks t
 WHERE t.status IN ('CLAIMED', 'RUNNING') AND t.status = ANY ($1::text[])
   AND ($2::text IS NULL OR t.queue_name = $2::text)
   AND ($3::text IS NULL OR strpos(lower(t.task_name), $3::text) > 0)
   AND ($4::text IS NULL OR left(t.id, length($4::text)) = $4::text)
   AND ($5::text IS NULL OR strpos(t.claimed_by_worker_id, $5::text) > 0)
   AND ($6::timestamptz IS NULL OR (coalesce(t.started_at, t.claimed_at), t.id) > ($6::timestamptz, $7::text))
 ORDER BY coalesce(t.started_at, t.claimed_at), t.id LIMIT $8::int;

-- name: tasks_waiting :many
-- params: queue, after_queue, after_priority, after_at, after_id, look, name, id_start, row_limit
-- `tail` is where the look ended: the caller can go on from there, also when nothing matched.
WITH walked AS MATERIALIZED (
    SELECT t.id, t.task_name, t.queue_name, t.priority, t.status, t.enqueued_at AS since,
           statement_timestamp() - t.enqueued_at AS age, t.retry_count, t.max_retries, t.claimed_by_worker_id,
           NULL::text AS error_code, t.is_workflow_task, t.enqueued_at, t.terminal_at
      FROM horsies_tasks t
     WHERE t.status = 'PENDING' AND ($1::text IS NULL OR t.queue_name = $1::text)
       AND ($2::text IS NULL OR (t.queue_name, t.priority, t.enqueued_at, t.id)
                              > ($2::text, $3::int, $4::timestamptz, $5::text))
     ORDER BY t.queue_name, t.priority, t.enqueued_at, t.id LIMIT $6::int
), matching AS (
    SELECT * FROM walked w
     WHERE ($7::text IS NULL OR strpos(lower(w.task_name), $7::text) > 0)
       AND ($8::text IS NULL OR left(w.id, length($8::text)) = $8::text)
     ORDER BY w.queue_name, w.priority, w.enqueued_at, w.id LIMIT $9::int
), tail AS (
    SELECT (SELECT count(*) FROM walked) AS walked, w.id AS tail_id, w.enqueued_at AS tail_at,
           w.queue_name AS tail_queue, w.priority AS tail_priority
      FROM walked w ORDER BY w.queue_name DESC, w.priority DESC, w.enqueued_at DESC, w.id DESC LIMIT 1
)
SELECT tail.*, m.* FROM tail LEFT JOIN matching m ON true ORDER BY m.queue_name, m.priority, m.enqueued_at, m.id;

-- name: tasks_ended :many
-- params: statuses, has_code, after_at, after_id, since, look, queue, name, error, id_start, worker, row_limit
-- `has_code`: every wanted state has an error code (a CHECK holds it to that), which opens the way through the index
-- over error codes, where the failures of a table of successes are few.
WITH walked AS MATERIALIZED (
    SELECT t.id, t.task_name, t.queue_name, t.priority, t.status, t.terminal_at AS since,
           statement_timestamp() - t.terminal_at AS age, t.retry_count, t.max_retries, t.claimed_by_worker_id,
           left(t.error_code, 200) AS error_code, t.is_workflow_task, t.enqueued_at, t.terminal_at
      FROM horsies_tasks t
     WHERE t.terminal_at IS NOT NULL AND (NOT $2::boolean OR t.error_code IS NOT NULL)
       AND ($3::timestamptz IS NULL OR (t.terminal_at, t.id) < ($3::timestamptz, $4::text))
       AND ($5::interval IS NULL OR t.terminal_at >= statement_timestamp() - $5::interval)
     ORDER BY t.terminal_at DESC, t.id DESC LIMIT $6::int
), matching AS (
    SELECT * FROM walked w
     WHERE w.status = ANY ($1::text[])
       AND ($7::text IS NULL OR w.queue_name = $7::text)
       AND ($8::text IS NULL OR strpos(lower(w.task_name), $8::text) > 0)
       AND ($9::text IS NULL OR strpos(lower(w.error_code), $9::text) > 0)
       AND ($10::text IS NULL OR left(w.id, length($10::text)) = $10::text)
       AND ($11::text IS NULL OR strpos(w.claimed_by_worker_id, $11::text) > 0)
     ORDER BY w.terminal_at DESC, w.id DESC LIMIT $12::int
), tail AS (
    SELECT (SELECT count(*) FROM walked) AS walked, w.id AS tail_id, w.terminal_at AS tail_at
      FROM walked w ORDER BY w.terminal_at, w.id LIMIT 1
)
SELECT tail.*, m.* FROM tail LEFT JOIN matching m ON true ORDER BY m.terminal_at DESC, m.id DESC;
