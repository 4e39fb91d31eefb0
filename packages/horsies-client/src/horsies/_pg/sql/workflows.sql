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
       coalesce(n.started_at, t.started_at) AS started_at, n.completed_at, c.status AS sub_workflow_status
  FROM horsies_workflow_tasks n LEFT JOIN horsies_tasks t ON t.id = n.task_id AND n.status = 'ENQUEUED'
  LEFT JOIN horsies_workflows c ON c.id = n.sub_workflow_id
 WHERE n.workflow_id = $1 ORDER BY n.task_index LIMIT $2;

-- name: read_graph :many
-- params: id
-- Every node of a run, without a limit: a retry follows the edges.
SELECT task_index, node_id, status, dependencies, is_subworkflow, sub_workflow_id
  FROM horsies_workflow_tasks WHERE workflow_id = $1 ORDER BY task_index;

-- name: paused_runs :many
-- params: id, row_limit
-- The paused runs in this one, itself included, that are not paused merely for another one inside them: where each
-- stands, and which of its nodes failed, with their codes. What a viewer may see.
WITH RECURSIVE tree AS (
    SELECT w.id, w.name, w.status, w.paused_inside, w.depth, '{}'::text[] AS path FROM horsies_workflows w WHERE w.id = $1
    UNION ALL
    SELECT c.id, c.name, c.status, c.paused_inside, c.depth, tree.path || coalesce(n.node_id, '?')::text
      FROM tree JOIN horsies_workflows c ON c.parent_workflow_id = tree.id
      LEFT JOIN horsies_workflow_tasks n ON n.workflow_id = tree.id AND n.task_index = c.parent_task_index
)
SELECT p.id, p.name, p.path, f.node_ids AS failed, f.codes
  FROM (SELECT * FROM tree WHERE status = 'PAUSED' AND NOT paused_inside ORDER BY depth, id LIMIT $2) AS p
 CROSS JOIN LATERAL (
       SELECT coalesce(array_agg(x.node_id ORDER BY x.task_index), '{}') AS node_ids,
              coalesce(array_agg(left(x.error_code, 200) ORDER BY x.task_index), '{}') AS codes
         FROM (SELECT n.task_index, n.node_id, t.error_code FROM horsies_workflow_tasks n
                 LEFT JOIN horsies_tasks t ON t.id = n.task_id
                WHERE n.workflow_id = p.id AND n.status = 'FAILED' ORDER BY n.task_index LIMIT 5) AS x) AS f
 ORDER BY p.path;

-- name: read_node_results :many
-- params: id, node_ids
-- NULL as node_ids: of all. A node that has not ended has neither.
SELECT node_id, status, coalesce(result, error) AS result
  FROM horsies_workflow_tasks WHERE workflow_id = $1 AND ($2::text[] IS NULL OR node_id = ANY ($2)) ORDER BY task_index;

-- name: read_workflow_error :many
-- params: id
SELECT error FROM horsies_workflows WHERE id = $1;

-- name: find_root :value
-- params: id
SELECT coalesce(r.id, w.id) FROM horsies_workflows w LEFT JOIN horsies_workflows r ON r.id = w.root_workflow_id
 WHERE w.id = $1;

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
SELECT w.id, w.status, w.depth, w.parent_workflow_id, w.parent_task_index, w.paused_inside FROM horsies_workflows w
 WHERE w.id = ANY (ARRAY(SELECT id FROM tree)) ORDER BY w.depth, w.id FOR NO KEY UPDATE;

-- name: pause_workflows :many
-- edge: CLAIMED -> PENDING
-- params: ids, error
-- What runs goes on and is recorded; what waits, or is held ahead by a worker, is withdrawn. A run that is paused only
-- for a workflow inside it is from now on paused for itself: it stays so when that workflow goes on.
WITH paused AS (
    UPDATE horsies_workflows SET error = coalesce($2, error), paused_inside = false, updated_at = statement_timestamp(),
           status = 'PAUSED'
     WHERE id = ANY ($1::text[]) AND (status = 'RUNNING' OR status = 'PAUSED' AND paused_inside)
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
    UPDATE horsies_workflows SET error = NULL, paused_inside = false, updated_at = statement_timestamp(),
           status = 'RUNNING'
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

-- name: stop_workflows :many
-- edge: PENDING -> CANCELLED; CLAIMED -> CANCELLED
-- params: ids, status, task_error, node_error, run_error
-- Runs that the caller has locked end CANCELLED or FAILED before their nodes have.
SELECT id FROM horsies_stop_workflows($1::text[], $2::text, $3::text, $4::text, $5::text) AS stopped (id);

-- name: retry_nodes :many
-- params: ids, indexes
-- FAILED and SKIPPED nodes wait again; indexes NULL: all of them, else those of the first of these runs. Their tasks
-- stay as history: the node's next run has a task of its own, and the old one is not run again. A node that is a
-- workflow keeps it: the worker that finds the node ready lets it go on.
WITH again AS MATERIALIZED (
    SELECT n.ctid AS tid, n.id, n.task_id FROM horsies_workflow_tasks n
     WHERE $2::int[] IS NULL AND n.workflow_id = ANY ($1::text[]) AND n.status IN ('FAILED', 'SKIPPED')
    UNION ALL
    SELECT n.tid, n.id, n.task_id FROM unnest($2::int[]) AS x (at)
     CROSS JOIN LATERAL (SELECT n.ctid AS tid, n.id, n.task_id FROM horsies_workflow_tasks n
                          WHERE n.workflow_id = ($1::text[])[1] AND n.task_index BETWEEN x.at AND x.at
                            AND n.status || '' IN ('FAILED', 'SKIPPED') ORDER BY n.task_index LIMIT 1) AS n
), detached AS (
    UPDATE horsies_tasks t SET is_workflow_task = false, former_node_id = again.id, updated_at = statement_timestamp()
      FROM again WHERE t.id = again.task_id
)
UPDATE horsies_workflow_tasks n
   SET task_id = NULL, result = NULL, error = NULL, started_at = NULL, completed_at = NULL,
       updated_at = statement_timestamp(), status = 'PENDING'
  FROM again WHERE n.ctid = again.tid
RETURNING n.workflow_id, n.task_index, n.sub_workflow_id;

-- name: take_back_nodes :many
-- edge: PENDING -> CANCELLED; CLAIMED -> CANCELLED
-- params: ids, task_error
-- After retry_nodes: a node that was enqueued because its sources had all ended, and of which one has not ended any
-- more, waits again, unless its task runs: that one ends with what it was given, as if it had ended before the retry.
WITH open AS MATERIALIZED (
    SELECT n.workflow_id, n.node_id, d.at FROM horsies_workflow_tasks n CROSS JOIN LATERAL unnest(n.dependents) AS d (at)
     WHERE n.workflow_id = ANY ($1::text[]) AND n.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')
), early AS MATERIALIZED (
    SELECT DISTINCT n.tid, n.id, n.task_id FROM open o
     CROSS JOIN LATERAL (SELECT n.ctid AS tid, n.id, n.task_id FROM horsies_workflow_tasks n
                          WHERE n.workflow_id = o.workflow_id AND n.task_index BETWEEN o.at AND o.at
                            AND n.status || '' = 'ENQUEUED'
                            AND (n.allow_failed_deps OR o.node_id = ANY (n.workflow_ctx_from))
                          ORDER BY n.task_index LIMIT 1) AS n
), waiting AS MATERIALIZED (
    SELECT t.id, early.id AS node, early.tid FROM early JOIN horsies_tasks t ON t.id = early.task_id
     WHERE t.status IN ('PENDING', 'CLAIMED') ORDER BY t.id FOR UPDATE OF t
), ended AS (
    UPDATE horsies_tasks t
       SET status = 'CANCELLED', claimed = false, claim_expires_at = NULL, result = $2, error_code = 'TASK_CANCELLED',
           cancel_requested_at = statement_timestamp(), terminal_at = statement_timestamp(),
           is_workflow_task = false, former_node_id = w.node, updated_at = statement_timestamp()
      FROM waiting w WHERE t.id = w.id AND t.status IN ('PENDING', 'CLAIMED')
    RETURNING w.tid
)
UPDATE horsies_workflow_tasks n SET task_id = NULL, updated_at = statement_timestamp(), status = 'PENDING'
  FROM ended WHERE n.ctid = ended.tid
RETURNING n.workflow_id, n.task_index;

-- name: takers_inside :many
-- params: child_ids, levels, indexes
-- Nodes that have not started and stand in workflows inside a run, and that take what one of these nodes of that run
-- returns; levels: how deep each of child_ids is below the run.
SELECT n.node_id FROM unnest($1::text[], $2::int[]) AS c (id, level)
  JOIN horsies_workflow_tasks n ON n.workflow_id = c.id AND n.status IN ('PENDING', 'READY')
 CROSS JOIN LATERAL jsonb_each(CASE WHEN jsonb_typeof(n.args_from) = 'object' THEN n.args_from END) AS a (name, source)
 WHERE a.source ->> 'up' = c.level::text AND a.source ->> 'at' = ANY (SELECT x::text FROM unnest($3::int[]) AS x)
 LIMIT 1;

-- name: recount_workflows :many
-- params: ids
-- After a retry: counters from scratch, what can run at once is made READY for the worker that is told, and what was
-- READY may have to wait again. One pass over nodes and edges, grouped, never joined: with the statistics of an empty
-- table a join of the nodes with themselves read each node's whole workflow. A workflow inside another runs if its node
-- does; else it is PENDING until the node is ready.
WITH node AS MATERIALIZED (
    SELECT n.ctid AS tid, n.workflow_id, n.task_index, n.status, n.dependents FROM horsies_workflow_tasks n
     WHERE n.workflow_id = ANY ($1::text[])
), state AS MATERIALIZED (
    SELECT x.workflow_id, max(x.tid) AS tid, max(x.status) AS status, sum(x.ended)::int AS ended, sum(x.ok)::int AS ok
      FROM (SELECT workflow_id, task_index AS at, tid, status, 0 AS ended, 0 AS ok FROM node
            UNION ALL
            SELECT node.workflow_id, d.at, NULL, NULL, 1, (node.status = 'COMPLETED')::int
              FROM node CROSS JOIN LATERAL unnest(node.dependents) AS d (at)
             WHERE node.status IN ('COMPLETED', 'FAILED', 'SKIPPED')) AS x
     GROUP BY x.workflow_id, x.at
), counted AS (
    UPDATE horsies_workflow_tasks n
       SET deps_left = cardinality(n.dependencies) - s.ended, deps_ok = s.ok, updated_at = statement_timestamp(),
           status = CASE WHEN n.allow_failed_deps AND s.ended < cardinality(n.dependencies) THEN 'PENDING'
                         WHEN n.allow_failed_deps THEN 'READY'
                         -- a source of its context has not ended: it waits, even if its join is met
                         WHEN s.ended < cardinality(n.dependencies) AND EXISTS (
                              SELECT FROM unnest(n.workflow_ctx_from) AS u (node_id)
                               CROSS JOIN LATERAL (SELECT c.status FROM horsies_workflow_tasks c
                                                    WHERE c.workflow_id = n.workflow_id AND c.node_id = u.node_id
                                                    LIMIT 1) AS c
                               WHERE c.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')) THEN 'PENDING'
                         WHEN s.ok >= CASE n.join_type WHEN 'any' THEN least(1, cardinality(n.dependencies))
                                                       WHEN 'quorum' THEN n.min_success
                                                       ELSE cardinality(n.dependencies) END THEN 'READY'
                         ELSE 'PENDING' END
      FROM state s WHERE n.ctid = s.tid AND s.status IN ('PENDING', 'READY')
), run AS MATERIALIZED (
    SELECT workflow_id, count(*) FILTER (WHERE status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED'))::int AS left_
      FROM state WHERE tid IS NOT NULL GROUP BY workflow_id
)
UPDATE horsies_workflows w
   SET nodes_left = run.left_, result = NULL, error = NULL, completed_at = NULL, updated_at = statement_timestamp(),
       status = CASE WHEN w.parent_workflow_id IS NULL OR EXISTS (
                          SELECT FROM horsies_workflow_tasks p WHERE p.workflow_id = w.parent_workflow_id
                             AND p.task_index = w.parent_task_index AND p.status = 'RUNNING') THEN 'RUNNING'
                     ELSE 'PENDING' END
  FROM run WHERE w.id = run.workflow_id
RETURNING w.id, w.status;

-- name: tell_step :value
-- params: ids
SELECT count(*) FROM (SELECT pg_notify('workflow_step', 'w:' || x.id) FROM unnest($1::text[]) AS x (id)) AS told;
