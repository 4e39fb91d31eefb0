-- The list of tasks in three sections. Each statement follows its own index and reads a bounded number of rows: the tasks
-- that workers hold (the workers' capacity bounds them), the waiting tasks in claim order, the ended tasks from the
-- newest. A condition that no index serves is checked on the rows that were read, and the page says how many those were.
-- The conditions are the client's (horsies/_pg/sql/fragments.sql).

-- fragment: waiting_columns
t.id, t.task_name, t.queue_name, t.priority, t.status, t.enqueued_at, t.claimed_at, t.started_at, t.terminal_at,
                   t.retry_count, t.max_retries, t.manual_retries, t.claimed_by_worker_id, t.worker_hostname, t.error_code,
                   t.is_workflow_task, t.withdrawn, t.former_node_id, t.group_key

-- fragment: ended_page
-- The rows of `walked` that match, and the last row that was read.
matching AS (
    SELECT * FROM walked t WHERE {{ended_tasks}} {{newest_first}} LIMIT $row_limit::int
), tail AS (
    SELECT (SELECT count(*) FROM walked) AS walked, w.id AS tail_id, w.terminal_at AS tail_at
      FROM walked w ORDER BY w.terminal_at, w.id LIMIT 1
)
SELECT tail.*, m.* FROM tail LEFT JOIN matching m ON true ORDER BY m.terminal_at DESC, m.id DESC

-- name: tasks_held :many
-- params: {{task_filter}}, after_at, after_id, row_limit
SELECT {{task_summary}}
  FROM horsies_tasks t
 WHERE {{held_tasks}}
   AND ($after_at::timestamptz IS NULL
        OR (coalesce(t.started_at, t.claimed_at), t.id) > ($after_at::timestamptz, $after_id::text))
 ORDER BY coalesce(t.started_at, t.claimed_at), t.id LIMIT $row_limit::int;

-- name: tasks_waiting :many
-- params: {{task_filter}}, after_queue, after_priority, after_at, after_id, look, row_limit
-- `tail` is the last row that was read: the next page continues there, even when nothing matched. Tasks of groups and
-- withdrawn tasks have indexes of their own; the planner merges the three.
WITH walked AS MATERIALIZED (
    SELECT {{task_summary}}, t.enqueued_at, t.former_node_id, t.group_key{{metadata_column}}
      FROM (SELECT {{waiting_columns}}{{metadata_column}} FROM horsies_tasks t WHERE {{waits_alone}}
            UNION ALL
            SELECT {{waiting_columns}}{{metadata_column}} FROM horsies_tasks t WHERE {{waits_in_group}}
            UNION ALL
            SELECT {{waiting_columns}}{{metadata_column}} FROM horsies_tasks t WHERE t.withdrawn) AS t
     WHERE ($queue_names::text[] IS NULL OR t.queue_name = ANY ($queue_names::text[]))
       AND ($after_queue::text IS NULL OR (t.queue_name, t.priority, t.enqueued_at, t.id)
            > ($after_queue::text, $after_priority::int, $after_at::timestamptz, $after_id::text))
     ORDER BY t.queue_name, t.priority, t.enqueued_at, t.id LIMIT $look::int
), matching AS (
    SELECT * FROM walked t
     WHERE {{waiting_tasks}}
     ORDER BY t.queue_name, t.priority, t.enqueued_at, t.id LIMIT $row_limit::int
), tail AS (
    SELECT (SELECT count(*) FROM walked) AS walked, w.id AS tail_id, w.enqueued_at AS tail_at,
           w.queue_name AS tail_queue, w.priority AS tail_priority
      FROM walked w ORDER BY w.queue_name DESC, w.priority DESC, w.enqueued_at DESC, w.id DESC LIMIT 1
)
SELECT tail.*, m.* FROM tail LEFT JOIN matching m ON true ORDER BY m.queue_name, m.priority, m.enqueued_at, m.id;

-- name: tasks_ended :many
-- params: {{task_filter}}, after_at, after_id, look, row_limit
WITH walked AS MATERIALIZED (
    SELECT {{task_summary}}, t.former_node_id, t.group_key{{metadata_column}}
      FROM horsies_tasks t
     WHERE t.terminal_at IS NOT NULL
       AND ($after_at::timestamptz IS NULL OR (t.terminal_at, t.id) < ($after_at::timestamptz, $after_id::text))
       AND ($newer_than::interval IS NULL OR t.terminal_at > statement_timestamp() - $newer_than::interval)
     {{newest_first}} LIMIT $look::int
), {{ended_page}};

-- name: tasks_unsuccessful :many
-- params: {{task_filter}}, after_at, after_id, look, row_limit
-- `tasks_ended` when no success is wanted: along the index of these states, so that it passes over no success.
WITH walked AS MATERIALIZED (
    SELECT t.*
      FROM unnest($statuses::text[]) AS s (status)
     CROSS JOIN LATERAL (
           SELECT {{task_summary}}, t.former_node_id, t.group_key{{metadata_column}}
             FROM horsies_tasks t
            WHERE {{of_state}} AND {{in_span}}
              AND ($after_at::timestamptz IS NULL OR (t.terminal_at, t.id) < ($after_at::timestamptz, $after_id::text))
            {{newest_first}} LIMIT $look::int) AS t
     {{newest_first}} LIMIT $look::int
), {{ended_page}};
