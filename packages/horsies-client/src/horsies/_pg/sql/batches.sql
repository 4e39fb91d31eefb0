-- What handles of batches and `horsies workflows show` read. A batch is a run with the definition_key 'batch'. Its members
-- are nodes without dependencies; `then`, if it has one, is node 0, which the members name as their dependent.

-- name: batch_progress :many
-- params: id
-- The state of the members, counted in one pass. A node's row stays ENQUEUED while its task runs, so running members are
-- found from the other side: few tasks run at a time.
WITH running AS MATERIALIZED (
    SELECT t.id FROM horsies_tasks t WHERE t.status = 'RUNNING' AND t.is_workflow_task
)
SELECT w.id, w.status, m.total, m.completed, m.failed, m.cancelled, m.completed + m.failed + m.cancelled AS ended, r.running,
       m.total - m.completed - m.failed - m.cancelled - r.running AS waiting
  FROM horsies_workflows w
 CROSS JOIN LATERAL (
       SELECT count(*)::int AS total, count(*) FILTER (WHERE n.status = 'COMPLETED')::int AS completed,
              count(*) FILTER (WHERE n.status = 'FAILED' AND NOT {{is_cancelled}})::int AS failed,
              count(*) FILTER (WHERE {{is_cancelled}})::int AS cancelled
         FROM horsies_workflow_tasks n
        WHERE n.workflow_id = w.id AND n.task_index > coalesce(w.output_task_index, -1)) AS m
 CROSS JOIN LATERAL (
       SELECT count(*)::int AS running FROM running
        CROSS JOIN LATERAL (SELECT n.workflow_id, n.task_index, n.status FROM horsies_workflow_tasks n
                             WHERE n.task_id = running.id LIMIT 1) AS n
        WHERE n.workflow_id = w.id AND n.task_index > coalesce(w.output_task_index, -1) AND n.status = 'ENQUEUED') AS r
 WHERE w.id = $1 AND w.definition_key = 'batch';

-- name: batch_results :many
-- params: id, after, row_limit
-- A page of the members' results, in their order. `after`: the index of the last node that was read, -1 for the first page.
SELECT n.task_index, n.task_name, n.status, coalesce(n.result, n.error) AS result
  FROM horsies_workflows w
 CROSS JOIN LATERAL (SELECT n.task_index, n.task_name, n.status, n.result, n.error FROM horsies_workflow_tasks n
                      WHERE n.workflow_id = w.id AND n.task_index > greatest($2::int, w.output_task_index)
                      ORDER BY n.task_index LIMIT $3) AS n
 WHERE w.id = $1 AND w.definition_key = 'batch' ORDER BY n.task_index;

-- name: batch_then :many
-- params: id
-- The node of `then` with its result.
SELECT n.task_name, n.status, coalesce(n.result, n.error) AS result
  FROM horsies_workflows w JOIN horsies_workflow_tasks n ON n.workflow_id = w.id AND n.task_index = w.output_task_index
 WHERE w.id = $1 AND w.definition_key = 'batch';

-- name: batch_then_state :many
-- params: id
SELECT n.task_name, n.task_id, CASE WHEN n.status = 'ENQUEUED' AND t.status = 'RUNNING' THEN 'RUNNING' ELSE n.status END AS status
  FROM horsies_workflows w JOIN horsies_workflow_tasks n ON n.workflow_id = w.id AND n.task_index = w.output_task_index
  LEFT JOIN horsies_tasks t ON t.id = n.task_id
 WHERE w.id = $1 AND w.definition_key = 'batch';

-- name: batch_failures :many
-- params: id, row_limit
-- The first failed nodes, of which `then` is the first. A viewer may read it.
SELECT n.node_id FROM horsies_workflow_tasks n WHERE n.workflow_id = $1 AND n.status = 'FAILED'
 ORDER BY n.task_index LIMIT $2;
