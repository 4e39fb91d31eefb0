-- Workflows from the client's side: start, look, and the verbs of control. One order of locks for everybody who moves a
-- workflow: workflow rows from the root downwards (depth, id), then nodes by their index, then tasks by their id.
-- Whoever changes a workflow's state holds its row first, in a statement of its own: a later statement then sees
-- everything that the one before us has committed.
-- Withdrawn: a waiting task of a workflow that must not go on keeps its state and its place, but is moved 500 years
-- ahead, out of every claim's range; resuming moves it back.

-- name: start_workflow :many
-- edge: new -> PENDING
-- params: run
-- The whole graph in one statement, so that it is there or not, whatever transaction it runs in. No row back means that
-- a run with this id exists. A function of the schema, so that a producer cannot write a node or a run as it likes.
SELECT id FROM horsies_start_workflow($1::text::jsonb) AS started (id);

-- name: find_workflow :many
-- params: id
SELECT id, enqueue_sha FROM horsies_workflows WHERE id = $1::varchar;

-- name: read_ended_workflow_batch :many
-- params: ids
-- All workflows that a process waits for, in one read.
SELECT id, name AS task_name, status, coalesce(result, error) AS result, definition_key
  FROM horsies_workflows WHERE id = ANY ($1::text[]);

-- name: read_workflow :one
-- params: id
SELECT id, name, status, on_error, definition_key, parent_workflow_id, depth, nodes_left, sent_at, created_at,
       started_at, completed_at, updated_at
  FROM horsies_workflows WHERE id = $1;

-- name: list_workflows :many
-- params: status, row_limit
-- Live ones first, then the newest ended; workflows inside others only with their parents.
-- No `*`: a viewer may not read every column.
SELECT id, name, status, on_error, definition_key, parent_workflow_id, depth, nodes_left, sent_at, created_at,
       started_at, completed_at, updated_at
  FROM ((SELECT id, name, status, on_error, definition_key, parent_workflow_id, depth, nodes_left, sent_at, created_at,
                started_at, completed_at, updated_at
           FROM horsies_workflows WHERE status IN ('PENDING', 'RUNNING', 'PAUSED') AND depth = 0
            AND ($1::text IS NULL OR status = $1) ORDER BY status, updated_at DESC LIMIT $2)
        UNION ALL
        (SELECT id, name, status, on_error, definition_key, parent_workflow_id, depth, nodes_left, sent_at, created_at,
                started_at, completed_at, updated_at
           FROM horsies_workflows WHERE completed_at IS NOT NULL AND depth = 0
            AND ($1::text IS NULL OR status = $1) ORDER BY completed_at DESC LIMIT $2)) AS w
 ORDER BY completed_at IS NOT NULL, coalesce(completed_at, created_at) DESC LIMIT $2;

-- name: read_nodes :many
-- params: id, row_limit
-- A task that runs is not worth a second write per node: between its enqueuing and its end a node's row says ENQUEUED,
-- and whether it runs is read from the task.
SELECT n.task_index, n.node_id, n.task_name, n.dependencies, n.join_type, n.is_subworkflow, n.sub_workflow_id,
       n.task_id, CASE WHEN n.status = 'ENQUEUED' AND t.status = 'RUNNING' THEN 'RUNNING' ELSE n.status END AS status,
       coalesce(n.started_at, t.started_at) AS started_at, n.completed_at
  FROM horsies_workflow_tasks n LEFT JOIN horsies_tasks t ON t.id = n.task_id AND n.status = 'ENQUEUED'
 WHERE n.workflow_id = $1 ORDER BY n.task_index LIMIT $2;

-- name: read_node_results :many
-- params: id, node_ids
-- NULL as node_ids: of all. A node that has not ended has neither.
SELECT node_id, status, coalesce(result, error) AS result
  FROM horsies_workflow_tasks WHERE workflow_id = $1 AND ($2::text[] IS NULL OR node_id = ANY ($2)) ORDER BY task_index;

-- name: read_workflow_error :many
-- params: id
SELECT error FROM horsies_workflows WHERE id = $1;

-- name: lock_workflow_tree :many
-- params: id
-- The workflow and everything inside it, from the top downwards. To be repeated until it finds no more: while one waits
-- for a row, its holder may launch another inside. NO KEY: the end of a workflow inside looks at its parent's key (a row
-- that is updated twice in a transaction has its foreign key checked), and must not wait for whoever waits for it.
WITH RECURSIVE tree AS (
    SELECT id FROM horsies_workflows WHERE id = $1
    UNION ALL
    SELECT c.id FROM tree JOIN horsies_workflows c ON c.parent_workflow_id = tree.id
)
SELECT w.id, w.status, w.depth, w.parent_workflow_id, w.parent_task_index FROM horsies_workflows w
 WHERE w.id = ANY (ARRAY(SELECT id FROM tree)) ORDER BY w.depth, w.id FOR NO KEY UPDATE;

-- name: pause_workflows :many
-- edge: CLAIMED -> PENDING
-- params: ids, error
-- What runs goes on and is recorded; what waits, or is held ahead by a worker, is withdrawn.
WITH paused AS (
    UPDATE horsies_workflows SET error = coalesce($2, error), updated_at = statement_timestamp(), status = 'PAUSED'
     WHERE id = ANY ($1::text[]) AND status = 'RUNNING'
    RETURNING id
), waiting AS MATERIALIZED (
    SELECT t.id FROM paused JOIN horsies_workflow_tasks n ON n.workflow_id = paused.id AND n.status = 'ENQUEUED'
      JOIN horsies_tasks t ON t.id = n.task_id
     WHERE t.status IN ('PENDING', 'CLAIMED') ORDER BY t.id FOR UPDATE OF t
), withdrawn AS (
    UPDATE horsies_tasks t
       SET enqueued_at = t.enqueued_at + interval '500 years', status = 'PENDING', claimed = false, claimed_at = NULL,
           claimed_by_worker_id = NULL, claim_expires_at = NULL, updated_at = statement_timestamp()
      FROM waiting WHERE t.id = waiting.id AND t.status IN ('PENDING', 'CLAIMED')
       AND t.enqueued_at < statement_timestamp() + interval '400 years'
)
SELECT id FROM paused;

-- name: resume_workflows :many
-- params: ids
-- Withdrawn tasks go back to their place; a worker is told to enqueue what became ready meanwhile.
WITH resumed AS (
    UPDATE horsies_workflows SET error = NULL, updated_at = statement_timestamp(), status = 'RUNNING'
     WHERE id = ANY ($1::text[]) AND status = 'PAUSED'
    RETURNING id
), waiting AS MATERIALIZED (
    SELECT t.id FROM resumed JOIN horsies_workflow_tasks n ON n.workflow_id = resumed.id AND n.status = 'ENQUEUED'
      JOIN horsies_tasks t ON t.id = n.task_id
     WHERE t.status = 'PENDING' AND t.enqueued_at > statement_timestamp() + interval '400 years'
     ORDER BY t.id FOR UPDATE OF t
), restored AS (
    UPDATE horsies_tasks t
       SET enqueued_at = t.enqueued_at - interval '500 years', updated_at = statement_timestamp()
      FROM waiting WHERE t.id = waiting.id AND t.status = 'PENDING'
    RETURNING t.id, t.queue_name
), told AS MATERIALIZED (
    SELECT pg_notify('task_new', min(id)), pg_notify('task_queue_' || queue_name, min(id)) FROM restored
     GROUP BY queue_name
)
SELECT resumed.id, pg_notify('workflow_step', 'w:' || resumed.id) AS stepped, (SELECT count(*) FROM told) AS queues
  FROM resumed;

-- name: cancel_workflow :value
-- edge: PENDING -> CANCELLED; CLAIMED -> CANCELLED
-- params: id
-- What has not started never will; what runs is asked to stop, and its node ends with it. False: it had ended, or is
-- not there. A function of the schema, which locks like the statements here.
SELECT horsies_cancel_workflow($1::text) AS is_cancelled;

-- name: retry_nodes :many
-- params: ids, node_ids
-- FAILED and SKIPPED nodes wait again; node_ids NULL: all of them. Their old tasks stay as history, detached: the next
-- run has a task of its own. Whoever waited for such a node, and was skipped for it, is to be named by the caller.
WITH again AS MATERIALIZED (
    SELECT n.id, n.task_id FROM horsies_workflow_tasks n
     WHERE n.workflow_id = ANY ($1::text[]) AND n.status IN ('FAILED', 'SKIPPED')
       AND ($2::text[] IS NULL OR n.node_id = ANY ($2))
     ORDER BY n.workflow_id, n.task_index FOR UPDATE OF n
), detached AS (
    UPDATE horsies_tasks t SET is_workflow_task = false, updated_at = statement_timestamp()
      FROM again WHERE t.id = again.task_id
), reset AS (
    UPDATE horsies_workflow_tasks n
       SET task_id = NULL, result = NULL, error = NULL, started_at = NULL, completed_at = NULL,
           updated_at = statement_timestamp(),
           status = CASE WHEN n.is_subworkflow AND n.sub_workflow_id IS NOT NULL THEN 'RUNNING' ELSE 'PENDING' END
      FROM again WHERE n.id = again.id
    RETURNING n.workflow_id, n.task_index, n.node_id, n.sub_workflow_id
)
SELECT workflow_id, task_index, node_id, sub_workflow_id FROM reset;

-- name: recount_workflows :many
-- params: ids
-- After a retry: counters from scratch, and what can run at once is made READY for the worker that is told.
WITH state AS MATERIALIZED (
    SELECT n.id, n.workflow_id, n.status, d.left_, d.ok, cardinality(n.dependencies) AS total
      FROM horsies_workflow_tasks n
     CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE d.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED'))::int AS left_,
                                count(*) FILTER (WHERE d.status = 'COMPLETED')::int AS ok
                           FROM horsies_workflow_tasks d
                          WHERE d.workflow_id = n.workflow_id AND d.task_index = ANY (n.dependencies)) AS d
     WHERE n.workflow_id = ANY ($1::text[])
), counted AS (
    UPDATE horsies_workflow_tasks n
       SET deps_left = s.left_, deps_ok = s.ok, updated_at = statement_timestamp(),
           status = CASE WHEN s.status <> 'PENDING' THEN n.status
                         WHEN n.allow_failed_deps AND s.left_ = 0 THEN 'READY'
                         -- a source of its context has not ended: it waits, even if its join is met
                         WHEN s.left_ > 0 AND EXISTS (
                              SELECT FROM unnest(n.workflow_ctx_from) AS u (node_id)
                               CROSS JOIN LATERAL (SELECT c.status FROM horsies_workflow_tasks c
                                                    WHERE c.workflow_id = n.workflow_id AND c.node_id = u.node_id
                                                    LIMIT 1) AS c
                               WHERE c.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')) THEN n.status
                         WHEN s.ok >= CASE n.join_type WHEN 'any' THEN least(1, s.total)
                                                       WHEN 'quorum' THEN n.min_success ELSE s.total END THEN 'READY'
                         ELSE n.status END
      FROM state s WHERE n.id = s.id AND s.status IN ('PENDING', 'READY')
), ended AS (
    SELECT workflow_id, count(*) FILTER (WHERE status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED'))::int AS left_
      FROM state GROUP BY workflow_id
)
UPDATE horsies_workflows w
   SET nodes_left = ended.left_, result = NULL, error = NULL, completed_at = NULL, updated_at = statement_timestamp(),
       status = 'RUNNING'
  FROM ended WHERE w.id = ended.workflow_id
RETURNING w.id;

-- name: tell_step :value
-- params: ids
SELECT count(*) FROM (SELECT pg_notify('workflow_step', 'w:' || x.id) FROM unnest($1::text[]) AS x (id)) AS told;
