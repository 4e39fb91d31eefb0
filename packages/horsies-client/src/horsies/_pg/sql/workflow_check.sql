-- What `horsies workflows check` reads: live runs, and those of their nodes that still need a task. It writes nothing.

-- fragment: needs_task
-- The node has not ended, or has completed and may have to be undone.
(n.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')
    OR n.status = 'COMPLETED' AND n.compensate IS NOT NULL AND NOT EXISTS (
       SELECT FROM horsies_workflow_tasks u
        WHERE u.compensates = n.id AND u.status IN ('COMPLETED', 'FAILED', 'SKIPPED')))

-- name: runs_to_check :many
-- params: row_limit
-- The oldest live runs, without the runs inside them.
SELECT w.id, w.name, w.release, w.fingerprint, w.continues
  FROM horsies_workflows w WHERE w.status IN ('PENDING', 'RUNNING', 'PAUSED') AND w.depth = 0
 ORDER BY w.created_at, w.id LIMIT $1;

-- name: runs_inside :many
-- params: ids
-- The live runs inside these, from the top downwards, each with the node that it is in. Inside a run that has ended, all
-- have ended. UNION ends the recursion where rows name each other as parents.
WITH RECURSIVE tree AS (
    SELECT w.id, w.depth FROM horsies_workflows w WHERE w.id = ANY ($1::text[])
    UNION
    SELECT c.id, c.depth FROM tree JOIN horsies_workflows c ON c.parent_workflow_id = tree.id
     WHERE c.status IN ('PENDING', 'RUNNING', 'PAUSED')
)
SELECT w.id, w.parent_workflow_id, w.continues, p.node_id, p.kind
  FROM tree JOIN horsies_workflows w ON w.id = tree.id
  LEFT JOIN horsies_workflow_tasks p ON p.workflow_id = w.parent_workflow_id AND p.task_index = w.parent_task_index
 WHERE w.parent_workflow_id IS NOT NULL AND NOT w.id = ANY ($1::text[])
 ORDER BY w.depth, w.id;

-- name: names_to_check :many
-- params: ids
-- The tasks that these runs still need, by name.
SELECT n.workflow_id, n.kind IN ('task', 'map') AS is_task, n.task_name, n.compensate ->> 'task_name' AS compensate
  FROM horsies_workflow_tasks n WHERE n.workflow_id = ANY ($1::text[]) AND {{needs_task}}
 GROUP BY 1, 2, 3, 4;

-- name: nodes_to_check :many
-- params: ids, after_id, after_index, row_limit
-- A page of the nodes of these runs that still need a task. A workflow that has started has nodes of its own.
SELECT n.workflow_id, n.task_index, n.node_id, n.kind, n.task_name, n.args, n.args_from::text AS args_from,
       n.compensate::text AS compensate, n.status, n.sub_workflow_id, NULL AS result,
       CASE WHEN n.sub_workflow_id IS NULL THEN n.kwargs END AS kwargs
  FROM horsies_workflow_tasks n
 WHERE n.workflow_id = ANY ($1::text[]) AND (n.workflow_id, n.task_index) > ($2::text, $3::int) AND {{needs_task}}
 ORDER BY n.workflow_id, n.task_index LIMIT $4;

-- name: sources_to_check :many
-- params: ids, indexes
-- The nodes whose results others take: the result of one that has completed, and the graph of a workflow, whose output
-- says what it returns.
SELECT n.workflow_id, n.task_index, n.node_id, n.kind, n.task_name, NULL AS args, NULL AS args_from,
       NULL AS compensate, n.status, n.sub_workflow_id, CASE WHEN n.status = 'COMPLETED' THEN n.result END AS result,
       CASE WHEN n.kind <> 'task' AND n.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED') THEN n.kwargs END AS kwargs
  FROM unnest($1::text[], $2::int[]) AS x (id, at)
  JOIN horsies_workflow_tasks n ON n.workflow_id = x.id AND n.task_index = x.at;
