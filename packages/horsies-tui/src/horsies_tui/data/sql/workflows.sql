-- Runs of workflows. Runs inside others are left out: they are reached through their node.

-- fragment: found_run
-- The conditions of a filter on a run.
($name::text IS NULL OR strpos(lower(w.name), $name::text) > 0)
   AND ($id_start::text IS NULL OR left(w.id, length($id_start::text)) = $id_start::text)

-- fragment: run_times
-- How long a run has been in progress, or how long ago it ended; and how long it took.
statement_timestamp() - coalesce(w.completed_at, w.started_at, w.created_at) AS age,
       w.completed_at - coalesce(w.started_at, w.created_at) AS took, n.nodes, n.ended, n.failed

-- fragment: node_counts
LATERAL (
       SELECT count(*) AS nodes, count(*) FILTER (WHERE k.status IN ('COMPLETED', 'FAILED', 'SKIPPED')) AS ended,
              count(*) FILTER (WHERE k.status = 'FAILED') AS failed
         FROM (SELECT status FROM horsies_workflow_tasks WHERE workflow_id = w.id LIMIT 5000) AS k) AS n

-- name: workflows_live :many
-- params: statuses, name, id_start, row_limit
-- The order of the index over live runs: running, waiting, paused; the last changed first within each.
SELECT {{workflow_info}}, {{run_times}}, NULL::jsonb AS metadata
  FROM (SELECT {{workflow_info}} FROM horsies_workflows w
         WHERE w.status IN ('PENDING', 'RUNNING', 'PAUSED') AND w.status = ANY ($statuses::text[]) AND w.depth = 0
           AND w.root_workflow_id IS NULL
           AND {{found_run}}
         ORDER BY w.status DESC, w.updated_at DESC LIMIT $row_limit::int) AS w
 CROSS JOIN {{node_counts}}
 ORDER BY w.status DESC, w.updated_at DESC;

-- name: workflows_ended :many
-- params: statuses, after_at, after_id, since, look, name, id_start, row_limit
WITH walked AS MATERIALIZED (
    SELECT {{workflow_info}} FROM horsies_workflows w
     WHERE w.completed_at IS NOT NULL
       AND ($after_at::timestamptz IS NULL OR (w.completed_at, w.id) < ($after_at::timestamptz, $after_id::text))
       AND ($since::interval IS NULL OR w.completed_at >= statement_timestamp() - $since::interval)
     ORDER BY w.completed_at DESC, w.id DESC LIMIT $look::int
), matching AS (
    SELECT * FROM walked w
     WHERE w.status = ANY ($statuses::text[]) AND w.depth = 0 AND w.root_workflow_id IS NULL AND {{found_run}}
     ORDER BY w.completed_at DESC, w.id DESC LIMIT $row_limit::int
), tail AS (
    SELECT (SELECT count(*) FROM walked) AS walked, w.id AS tail_id, w.completed_at AS tail_at
      FROM walked w ORDER BY w.completed_at, w.id LIMIT 1
)
SELECT tail.*, {{workflow_info}}, {{run_times}}, NULL::jsonb AS metadata
  FROM tail LEFT JOIN matching w ON true CROSS JOIN {{node_counts}}
 ORDER BY w.completed_at DESC, w.id DESC;

-- name: workflow_counts :many
-- params: since, name, id_start, bound
-- The number of runs in each state; the rows named `read` say how many runs of each section were read.
WITH walked AS MATERIALIZED (
    (SELECT 'live' AS section, x.id, x.name, x.status, x.depth, x.root_workflow_id FROM horsies_workflows x
      WHERE x.status IN ('PENDING', 'RUNNING', 'PAUSED')
      ORDER BY x.status DESC, x.updated_at DESC LIMIT $bound::int)
    UNION ALL
    (SELECT 'ended', x.id, x.name, x.status, x.depth, x.root_workflow_id FROM horsies_workflows x
      WHERE x.completed_at IS NOT NULL
        AND ($since::interval IS NULL OR x.completed_at >= statement_timestamp() - $since::interval)
      ORDER BY x.completed_at DESC LIMIT $bound::int)
)
SELECT 'status' AS field, w.status AS value, count(*) AS runs FROM walked w
 WHERE w.depth = 0 AND w.root_workflow_id IS NULL AND {{found_run}}
 GROUP BY w.status
UNION ALL
SELECT 'read', w.section, count(*) FROM walked w GROUP BY w.section;

-- name: workflow_by_id :many
-- params: id
SELECT {{workflow_info}}, {{run_times}}, NULL::jsonb AS metadata
  FROM horsies_workflows w CROSS JOIN {{node_counts}} WHERE w.id = $1;

-- name: workflow_errors :many
-- params: id, chars, row_limit
-- The errors of a run and of its first failed nodes; a role that may not read messages has no right to them.
SELECT NULL::int AS task_index, left(w.error, $2::int) AS error FROM horsies_workflows w
 WHERE w.id = $1 AND w.error IS NOT NULL
UNION ALL
(SELECT n.task_index, left(n.error, $2::int) FROM horsies_workflow_tasks n
  WHERE n.workflow_id = $1 AND n.status = 'FAILED' AND n.error IS NOT NULL ORDER BY n.task_index LIMIT $3::int);

-- name: workflow_nodes :many
-- params: id, row_limit
-- A workflow inside a node may be paused while the node is RUNNING; the screen shows that in place of an error code.
SELECT {{node_info}},
       coalesce(left(t.error_code, 200), CASE WHEN n.status = 'RUNNING' AND c.status = 'PAUSED' THEN 'WORKFLOW_PAUSED' END)
           AS error_code, NULL::text AS error_message,
       coalesce(n.completed_at, t.terminal_at, statement_timestamp()) - coalesce(n.started_at, t.started_at) AS took
  FROM horsies_workflow_tasks n LEFT JOIN horsies_tasks t ON t.id = n.task_id
  LEFT JOIN horsies_workflows c ON c.id = n.sub_workflow_id
 WHERE n.workflow_id = $1 ORDER BY n.task_index LIMIT $2::int;
