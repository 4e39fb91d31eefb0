-- Runs of workflows. Without the runs inside others: those are reached through their node.

-- name: workflows_live :many
-- params: statuses, name, id_start, row_limit
-- The order is that of the index over live runs: running, waiting, paused; each the last changed first.
SELECT w.id, w.name, w.status, w.on_error, w.parent_workflow_id, w.created_at, w.started_at, w.completed_at,
       statement_timestamp() - coalesce(w.started_at, w.created_at) AS age, NULL::interval AS took,
       n.nodes, n.ended, n.failed
  FROM (SELECT x.id, x.name, x.status, x.on_error, x.parent_workflow_id, x.created_at, x.started_at, x.completed_at,
               x.updated_at
          FROM horsies_workflows x
         WHERE x.status IN ('PENDING', 'RUNNING', 'PAUSED') AND x.status = ANY ($1::text[]) AND x.depth = 0
           AND ($2::text IS NULL OR strpos(lower(x.name), $2::text) > 0)
           AND ($3::text IS NULL OR left(x.id, length($3::text)) = $3::text)
         ORDER BY x.status DESC, x.updated_at DESC LIMIT $4::int) AS w
 CROSS JOIN LATERAL (
       SELECT count(*) AS nodes, count(*) FILTER (WHERE k.status IN ('COMPLETED', 'FAILED', 'SKIPPED')) AS ended,
              count(*) FILTER (WHERE k.status = 'FAILED') AS failed
         FROM (SELECT status FROM horsies_workflow_tasks WHERE workflow_id = w.id LIMIT 5000) AS k) AS n
 ORDER BY w.status DESC, w.updated_at DESC;

-- name: workflows_ended :many
-- params: statuses, after_at, after_id, since, look, name, id_start, row_limit
WITH walked AS MATERIALIZED (
    SELECT x.id, x.name, x.status, x.on_error, x.parent_workflow_id, x.created_at, x.started_at, x.completed_at,
           x.depth
      FROM horsies_workflows x
     WHERE x.completed_at IS NOT NULL
       AND ($2::timestamptz IS NULL OR (x.completed_at, x.id) < ($2::timestamptz, $3::text))
       AND ($4::interval IS NULL OR x.completed_at >= statement_timestamp() - $4::interval)
     ORDER BY x.completed_at DESC, x.id DESC LIMIT $5::int
), matching AS (
    SELECT * FROM walked x
     WHERE x.status = ANY ($1::text[]) AND x.depth = 0
       AND ($6::text IS NULL OR strpos(lower(x.name), $6::text) > 0)
       AND ($7::text IS NULL OR left(x.id, length($7::text)) = $7::text)
     ORDER BY x.completed_at DESC, x.id DESC LIMIT $8::int
), tail AS (
    SELECT (SELECT count(*) FROM walked) AS walked, w.id AS tail_id, w.completed_at AS tail_at
      FROM walked w ORDER BY w.completed_at, w.id LIMIT 1
)
SELECT tail.*, m.id, m.name, m.status, m.on_error, m.parent_workflow_id, m.created_at, m.started_at, m.completed_at,
       statement_timestamp() - m.completed_at AS age, m.completed_at - coalesce(m.started_at, m.created_at) AS took,
       n.nodes, n.ended, n.failed
  FROM tail LEFT JOIN matching m ON true
 CROSS JOIN LATERAL (
       SELECT count(*) AS nodes, count(*) FILTER (WHERE k.status IN ('COMPLETED', 'FAILED', 'SKIPPED')) AS ended,
              count(*) FILTER (WHERE k.status = 'FAILED') AS failed
         FROM (SELECT status FROM horsies_workflow_tasks WHERE workflow_id = m.id LIMIT 5000) AS k) AS n
 ORDER BY m.completed_at DESC, m.id DESC;

-- name: workflow_counts :many
-- params: since, name, id_start, bound
-- How many in each state; `read` says how far a section was counted.
WITH walked AS MATERIALIZED (
    (SELECT 'live' AS section, x.id, x.name, x.status, x.depth FROM horsies_workflows x
      WHERE x.status IN ('PENDING', 'RUNNING', 'PAUSED')
      ORDER BY x.status DESC, x.updated_at DESC LIMIT $4::int)
    UNION ALL
    (SELECT 'ended', x.id, x.name, x.status, x.depth FROM horsies_workflows x
      WHERE x.completed_at IS NOT NULL
        AND ($1::interval IS NULL OR x.completed_at >= statement_timestamp() - $1::interval)
      ORDER BY x.completed_at DESC LIMIT $4::int)
)
SELECT 'status' AS field, w.status AS value, count(*) AS runs FROM walked w
 WHERE w.depth = 0 AND ($2::text IS NULL OR strpos(lower(w.name), $2::text) > 0)
   AND ($3::text IS NULL OR left(w.id, length($3::text)) = $3::text)
 GROUP BY w.status
UNION ALL
SELECT 'read', w.section, count(*) FROM walked w GROUP BY w.section;

-- name: workflow_by_id :many
-- params: id
SELECT w.id, w.name, w.status, w.on_error, w.parent_workflow_id, w.created_at, w.started_at, w.completed_at,
       statement_timestamp() - coalesce(w.completed_at, w.started_at, w.created_at) AS age,
       w.completed_at - coalesce(w.started_at, w.created_at) AS took, n.nodes, n.ended, n.failed
  FROM horsies_workflows w
 CROSS JOIN LATERAL (
       SELECT count(*) AS nodes, count(*) FILTER (WHERE k.status IN ('COMPLETED', 'FAILED', 'SKIPPED')) AS ended,
              count(*) FILTER (WHERE k.status = 'FAILED') AS failed
         FROM (SELECT status FROM horsies_workflow_tasks WHERE workflow_id = w.id LIMIT 5000) AS k) AS n
 WHERE w.id = $1;

-- name: workflow_errors :many
-- params: id, chars, row_limit
-- What a run and its first failed nodes say of their ends; not for a role that may not see messages.
SELECT NULL::int AS task_index, left(w.error, $2::int) AS error FROM horsies_workflows w
 WHERE w.id = $1 AND w.error IS NOT NULL
UNION ALL
(SELECT n.task_index, left(n.error, $2::int) FROM horsies_workflow_tasks n
  WHERE n.workflow_id = $1 AND n.status = 'FAILED' AND n.error IS NOT NULL ORDER BY n.task_index LIMIT $3::int);

-- name: workflow_nodes :many
-- params: id, row_limit
-- A node's row says ENQUEUED from its enqueuing to its end; whether it runs is read from its task. A workflow in a node
-- may be paused while its node is RUNNING: that is shown where a task's error code would be.
SELECT n.task_index, n.node_id, n.task_name, n.queue_name, n.dependencies, n.join_type, n.is_subworkflow,
       n.sub_workflow_id, n.task_id,
       CASE WHEN n.status = 'ENQUEUED' AND t.status = 'RUNNING' THEN 'RUNNING' ELSE n.status END AS status,
       coalesce(left(t.error_code, 200), CASE WHEN n.status = 'RUNNING' AND c.status = 'PAUSED' THEN 'WORKFLOW_PAUSED' END)
           AS error_code, NULL::text AS error_message,
       coalesce(n.completed_at, t.terminal_at, statement_timestamp()) - coalesce(n.started_at, t.started_at) AS took
  FROM horsies_workflow_tasks n LEFT JOIN horsies_tasks t ON t.id = n.task_id
  LEFT JOIN horsies_workflows c ON c.id = n.sub_workflow_id
 WHERE n.workflow_id = $1 ORDER BY n.task_index LIMIT $2::int;
