-- Workflows from the client's side: start, read, pause, resume, cancel and retry. All statements lock in one order:
-- workflow rows from the root downwards (depth, id), then nodes by their index, then tasks by their id. A transaction
-- that changes a workflow's state locks its row first, in a statement of its own: later statements then see everything
-- that the previous holder has committed.
-- Withdrawn: a waiting task of a paused workflow keeps its state and its place, and no worker claims it until the
-- workflow is resumed.

-- name: start_workflow :many
-- edge: new -> PENDING
-- params: run
-- Writes the whole graph in one statement, so that it is complete in any transaction mode. No row back means that a run
-- with this id exists. A function of the schema: a producer needs no rights to write nodes and runs.
SELECT id FROM horsies_start_workflow($1::text::jsonb) AS started (id);

-- name: find_workflow :many
-- params: id
SELECT id, enqueue_sha FROM horsies_workflows WHERE id = $1::varchar;

-- name: find_unique_workflow :many
-- params: name, unique_key
SELECT id FROM horsies_workflows
 WHERE unique_key = json_build_array($1::text, $2::text)::text AND completed_at IS NULL;

-- name: read_ended_workflow_batch :many
-- params: ids
-- Reads all workflows that a process waits for.
SELECT id, name AS task_name, status, coalesce(result, error) AS result, definition_key
  FROM horsies_workflows WHERE id = ANY ($1::text[]);

-- name: watch_workflows :many
-- params: ids
-- The same as `watch_tasks` for runs. A run counts its open nodes itself; all nodes are counted in their index.
SELECT w.id, w.name, w.status, w.nodes_left, n.total
  FROM horsies_workflows w
 CROSS JOIN LATERAL (SELECT count(*)::int AS total FROM horsies_workflow_tasks n WHERE n.workflow_id = w.id) AS n
 WHERE w.id = ANY ($1::text[]);

-- name: read_workflow :one
-- params: id
SELECT {{workflow_info}}, coalesce(w.metadata, '{}') AS metadata FROM horsies_workflows w WHERE w.id = $1;

-- name: show_workflow :one
-- params: id
-- `read_workflow` for a viewer, who may not read metadata.
SELECT {{workflow_info}}, NULL::jsonb AS metadata FROM horsies_workflows w WHERE w.id = $1;

-- name: list_workflows :many
-- params: statuses, row_limit
-- Live workflows first, then the newest ended ones; workflows inside others are left out, and what a run was before it
-- continued: such a row has a root and no parent.
SELECT *, NULL::jsonb AS metadata FROM (
    (SELECT {{workflow_info}} FROM horsies_workflows w
      WHERE w.status IN ('PENDING', 'RUNNING', 'PAUSED') AND w.depth = 0 AND w.root_workflow_id IS NULL
        AND ($1::text[] IS NULL OR w.status = ANY ($1))
      ORDER BY w.status, w.updated_at DESC LIMIT $2)
    UNION ALL
    (SELECT {{workflow_info}} FROM horsies_workflows w
      WHERE w.completed_at IS NOT NULL AND w.depth = 0 AND w.root_workflow_id IS NULL
        AND ($1::text[] IS NULL OR w.status = ANY ($1))
      ORDER BY w.completed_at DESC LIMIT $2)) AS found
 ORDER BY completed_at IS NOT NULL, coalesce(completed_at, created_at) DESC LIMIT $2;

-- name: waiting_nodes :many
-- params: signal_name, row_limit
-- Nodes that wait for a signal, the longest wait first; of all signals with a name NULL.
SELECT n.workflow_id, coalesce(w.root_workflow_id, w.id) AS root_workflow_id, w.name AS workflow_name, n.node_id,
       n.signal_name, n.started_at, n.wake_at
  FROM (SELECT n.workflow_id, n.task_index, n.node_id, n.signal_name, n.started_at, n.wake_at FROM horsies_workflow_tasks n
         WHERE n.status = 'WAITING' AND n.signal_name IS NOT NULL AND n.signal_name = coalesce($1::varchar, n.signal_name)
         ORDER BY n.signal_name, n.started_at LIMIT $2) AS n
  JOIN horsies_workflows w ON w.id = n.workflow_id
 ORDER BY n.started_at, n.workflow_id, n.task_index;

-- name: find_node :many
-- params: id, node_id
SELECT n.task_index, n.node_id, n.status, n.sub_workflow_id FROM horsies_workflow_tasks n
 WHERE n.workflow_id = $1 AND n.node_id = $2::varchar;

-- name: read_nodes :many
-- params: id, row_limit
SELECT {{node_info}}
  FROM horsies_workflow_tasks n LEFT JOIN horsies_tasks t ON t.id = n.task_id AND n.status = 'ENQUEUED'
  LEFT JOIN horsies_workflows c ON c.id = n.sub_workflow_id
 WHERE n.workflow_id = $1 ORDER BY n.task_index LIMIT $2;

-- name: read_graph :many
-- params: id
-- Every node of a run, without a limit: a retry follows the edges. `is_stopped`: the end of the run (its cancel, or the
-- failure that horsies_stop_workflows was called for) skipped the node, ended the workflow in it, or asked its task to
-- stop; a task that still runs has not stopped yet. `undid`: the run ended when its compensations had run, some time after
-- its tasks were asked to stop.
SELECT n.task_index, n.node_id, n.status, n.sub_workflow_id,
       CASE WHEN n.when_index IS NULL THEN n.dependencies ELSE n.dependencies || n.when_index END AS dependencies,
       n.skip_reason, n.compensates IS NOT NULL AS undoes, w.completed_at IS NOT NULL AND coalesce(
           CASE WHEN n.status = 'SKIPPED' THEN n.skip_reason IN ('cancelled', 'deadline')
                WHEN n.status <> 'FAILED' THEN n.status = 'ENQUEUED'
                ELSE n.error LIKE '{"err":{"error_code":"WORKFLOW_CANCELLED"%'
                  OR n.error LIKE '{"err":{"error_code":"WORKFLOW_DEADLINE"%'
                  OR n.kind <> 'task' AND n.error LIKE '{"err":{"error_code":"WORKFLOW_FAILED"%'
                  -- a run that undid what it did ended later than it was stopped
                  OR w.was_stopped AND (t.status = 'CANCELLED' OR c.status = 'CANCELLED')
                  OR t.status = 'CANCELLED' AND t.cancel_requested_at >= w.completed_at END, false) AS is_stopped
  FROM horsies_workflow_tasks n
  LEFT JOIN LATERAL (SELECT w.completed_at, w.status = 'CANCELLED'
                            OR w.error LIKE '{"err":{"error_code":"WORKFLOW_DEADLINE"%' AS was_stopped
                       FROM horsies_workflows w WHERE w.id = n.workflow_id LIMIT 1) AS w ON true
  LEFT JOIN LATERAL (SELECT c.status FROM horsies_workflows c
                      WHERE c.id = n.sub_workflow_id AND n.status = 'FAILED' LIMIT 1) AS c ON true
  LEFT JOIN LATERAL (SELECT t.status, t.cancel_requested_at FROM horsies_tasks t
                      WHERE t.id = n.task_id AND n.status = 'FAILED' LIMIT 1) AS t ON true
 WHERE n.workflow_id = $1 ORDER BY n.task_index;

-- name: paused_runs :many
-- params: id, row_limit
-- The paused runs in this run, itself included, that are not paused only for another run inside them: the path of each,
-- and its failed nodes with their codes. A viewer may read all of it.
WITH RECURSIVE tree AS (
    SELECT w.id, w.name, w.status, w.paused_inside, w.depth, '{}'::text[] AS path FROM horsies_workflows w WHERE w.id = $1
    UNION ALL
    SELECT c.id, c.name, c.status, c.paused_inside, c.depth, tree.path || coalesce(n.node_id, '?')::text
      FROM tree JOIN horsies_workflows c ON c.parent_workflow_id = tree.id
      LEFT JOIN horsies_workflow_tasks n ON n.workflow_id = tree.id AND n.task_index = c.parent_task_index
) CYCLE id SET is_repeated USING trail
SELECT p.id, p.name, p.depth, p.path, f.node_ids AS failed, f.codes
  FROM (SELECT * FROM tree WHERE status = 'PAUSED' AND NOT paused_inside AND NOT is_repeated ORDER BY depth, id LIMIT $2) AS p
 CROSS JOIN LATERAL (
       SELECT coalesce(array_agg(x.node_id ORDER BY x.task_index), '{}') AS node_ids,
              coalesce(array_agg(left(x.error_code, 200) ORDER BY x.task_index), '{}') AS codes
         FROM (SELECT n.task_index, n.node_id, t.error_code FROM horsies_workflow_tasks n
                 LEFT JOIN horsies_tasks t ON t.id = n.task_id
                WHERE n.workflow_id = p.id AND n.status = 'FAILED' ORDER BY n.task_index LIMIT 5) AS x) AS f
 ORDER BY p.path;

-- name: paused_along :many
-- params: ids
-- Whether each of these paused runs is paused because the run around it is; see lock_workflow_tree. A viewer may not
-- read it.
SELECT id, coalesce(error LIKE '{"err":{"error_code":"WORKFLOW_PAUSED","message":"the workflow around it is paused%', false)
           AS is_along
  FROM horsies_workflows WHERE id = ANY ($1::text[]);

-- name: read_node_results :many
-- params: id, node_ids
-- With node_ids NULL, of all nodes. A node that has not ended has no result.
SELECT node_id, status, coalesce(result, error) AS result
  FROM horsies_workflow_tasks WHERE workflow_id = $1 AND ($2::text[] IS NULL OR node_id = ANY ($2)) ORDER BY task_index;

-- name: read_inner_counts :many
-- params: id
-- How the nodes of the workflows in this run's nodes ended. Nodes that undo others are not counted.
SELECT n.node_id, r.status, count(*)::int AS total, count(*) FILTER (WHERE x.status = 'COMPLETED')::int AS completed,
       count(*) FILTER (WHERE x.status = 'FAILED')::int AS failed,
       count(*) FILTER (WHERE x.status = 'SKIPPED')::int AS skipped
  FROM horsies_workflow_tasks n
  JOIN horsies_workflows r ON r.id = n.sub_workflow_id
  JOIN horsies_workflow_tasks x ON x.workflow_id = r.id AND x.compensates IS NULL
 WHERE n.workflow_id = $1 GROUP BY n.node_id, r.id;

-- name: read_workflow_error :many
-- params: id
SELECT error FROM horsies_workflows WHERE id = $1;

-- name: find_root :value
-- params: id
SELECT coalesce(r.id, w.id) FROM horsies_workflows w LEFT JOIN horsies_workflows r ON r.id = w.root_workflow_id
 WHERE w.id = $1;

-- name: lock_workflow_tree :many
-- params: id
-- Locks the workflow and everything inside it, from the top downwards. Repeat it until it finds no more rows: while it
-- waits for a row, the holder may launch another workflow inside. NO KEY: the end of a workflow inside checks its foreign
-- key to the parent (for a row that is updated twice in a transaction) and would deadlock with a stronger lock. UNION ends
-- the recursion where rows name each other as parents.
-- `paused_along`: paused because the run around it is; its error says so (PAUSED_ALONG in retrying.py). A run inside that
-- undoes what it did keeps its error, and goes on with the run around it, whichever of the two was paused.
WITH RECURSIVE tree AS (
    SELECT id FROM horsies_workflows WHERE id = $1
    UNION
    SELECT c.id FROM tree JOIN horsies_workflows c ON c.parent_workflow_id = tree.id
)
SELECT w.id, w.name, w.status, w.depth, w.parent_workflow_id, w.parent_task_index, w.paused_inside, w.ends_as,
       w.status = 'PAUSED' AND (w.ends_as IS NOT NULL AND w.parent_workflow_id IS NOT NULL
           OR coalesce(w.error LIKE '{"err":{"error_code":"WORKFLOW_PAUSED","message":"the workflow '
                       'around it is paused%', false)) AS paused_along
  FROM horsies_workflows w
 WHERE w.id = ANY (ARRAY(SELECT id FROM tree)) ORDER BY w.depth, w.id FOR NO KEY UPDATE;

-- name: pause_workflows :many
-- edge: CLAIMED -> PENDING
-- params: ids, error
-- Running tasks continue and are recorded; waiting and buffered tasks are withdrawn. A run that was paused only for a
-- workflow inside it, or along with the run around it, stays paused when that one is resumed. The caller chooses the ids
-- under the locks of their tree (`Tree.to_pause`). A run that undoes what it did keeps the error that it will end with.
WITH paused AS (
    UPDATE horsies_workflows SET error = CASE WHEN ends_as IS NULL THEN $2 ELSE error END, paused_inside = false,
           updated_at = statement_timestamp(), status = 'PAUSED'
     WHERE id = ANY ($1::text[]) AND status IN ('RUNNING', 'PAUSED', 'PENDING')
    RETURNING id
), waiting AS MATERIALIZED (
    SELECT t.id FROM paused JOIN horsies_workflow_tasks n ON n.workflow_id = paused.id AND n.status = 'ENQUEUED'
      JOIN horsies_tasks t ON t.id = n.task_id
     WHERE t.status IN ('PENDING', 'CLAIMED') ORDER BY t.id FOR UPDATE OF t
), withdrawn AS (
    UPDATE horsies_tasks t
       SET withdrawn = true, status = 'PENDING', claimed = false, claimed_at = NULL, claimed_by_worker_id = NULL,
           claim_expires_at = NULL, updated_at = statement_timestamp()
      FROM waiting WHERE t.id = waiting.id AND t.status IN ('PENDING', 'CLAIMED') AND NOT t.withdrawn
)
SELECT id FROM paused;

-- name: resume_workflows :many
-- params: ids
-- Withdrawn tasks can be claimed again; a worker is notified to enqueue nodes that became ready meanwhile. A run that was
-- to start later, and has not, is PENDING again until then.
WITH resumed AS (
    UPDATE horsies_workflows SET error = CASE WHEN ends_as IS NOT NULL THEN error END, paused_inside = false,
           updated_at = statement_timestamp(), wake_at = CASE WHEN started_at IS NULL THEN start_at ELSE statement_timestamp() END,
           status = CASE WHEN started_at IS NULL AND start_at IS NOT NULL THEN 'PENDING' ELSE 'RUNNING' END
     WHERE id = ANY ($1::text[]) AND status = 'PAUSED'
    RETURNING id
), waiting AS MATERIALIZED (
    SELECT t.id FROM resumed JOIN horsies_workflow_tasks n ON n.workflow_id = resumed.id AND n.status = 'ENQUEUED'
      JOIN horsies_tasks t ON t.id = n.task_id
     WHERE t.status = 'PENDING' AND t.withdrawn
     ORDER BY t.id FOR UPDATE OF t
), restored AS (
    UPDATE horsies_tasks t
       SET withdrawn = false, updated_at = statement_timestamp()
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
-- Waiting tasks are cancelled; running ones are asked to stop, and their nodes end with them. False: the workflow had
-- ended or does not exist. A function of the schema, with the lock order of the statements here.
SELECT horsies_cancel_workflow($1::text) AS is_cancelled;

-- name: signal_workflow :value
-- params: id, name, value, signal_id, path
-- A function of the schema, for programs in other languages too.
SELECT horsies_signal($1::text, $2::text, $3::text::jsonb, $4::text, $5::text) AS outcome;

-- name: stop_workflows :many
-- edge: PENDING -> CANCELLED; CLAIMED -> CANCELLED
-- params: ids, status, task_error, node_error, run_error, inside_error, reason, undoes
-- Ends a run that the caller has locked as CANCELLED or FAILED, before its nodes have ended, and the runs inside it, which
-- are the further ids. undoes: those with compensations end when these have run.
SELECT id FROM horsies_stop_workflows($1::text[], $2::text, $3::text, $4::text, $5::text, $6::text, $7::text, $8::bool)
    AS stopped (id);

-- name: retry_nodes :many
-- params: ids, indexes
-- Sets FAILED and SKIPPED nodes to PENDING: with indexes NULL all of them, otherwise those of the first run. Their tasks
-- stay as history and are not run again; the next run of a node gets a new task. A workflow node keeps its workflow,
-- which continues when the node is ready.
WITH again AS MATERIALIZED (
    SELECT n.ctid AS tid, n.id, n.task_id FROM horsies_workflow_tasks n
     WHERE $2::int[] IS NULL AND n.workflow_id = ANY ($1::text[]) AND n.status IN ('FAILED', 'SKIPPED')
       AND n.skip_reason IS DISTINCT FROM 'not_taken'
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
   SET task_id = NULL, result = NULL, error = NULL, started_at = NULL, completed_at = NULL, skip_reason = NULL,
       ended_seq = NULL, updated_at = statement_timestamp(), status = 'PENDING'
  FROM again WHERE n.ctid = again.tid
RETURNING n.workflow_id, n.task_index, n.sub_workflow_id;

-- name: retry_stopped_tasks :many
-- params: ids
-- After a retry of runs that were stopped: their tasks that were asked to stop and have not ended yet are marked as former
-- tasks of their nodes. The step that hears of the end of such a task runs the node again, unless the task completed.
WITH target AS MATERIALIZED (
    SELECT t.id, n.id AS node, n.workflow_id FROM horsies_workflow_tasks n JOIN horsies_tasks t ON t.id = n.task_id
     WHERE n.workflow_id = ANY ($1::text[]) AND n.status = 'ENQUEUED' ORDER BY t.id FOR UPDATE OF t
)
UPDATE horsies_tasks t SET former_node_id = target.node, updated_at = statement_timestamp()
  FROM target WHERE t.id = target.id
RETURNING target.workflow_id;

-- name: take_back_nodes :many
-- edge: PENDING -> CANCELLED; CLAIMED -> CANCELLED
-- params: ids, task_error
-- After retry_nodes: a node that was enqueued because all its sources had ended waits again if one of them is retried. If
-- its task already runs, it keeps the values that it was given.
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
       SET status = 'CANCELLED', withdrawn = false, claimed = false, claim_expires_at = NULL, result = $2,
           error_code = 'TASK_CANCELLED', cancel_requested_at = statement_timestamp(),
           terminal_at = statement_timestamp(), is_workflow_task = false, former_node_id = w.node,
           updated_at = statement_timestamp()
      FROM waiting w WHERE t.id = w.id AND t.status IN ('PENDING', 'CLAIMED')
    RETURNING w.tid
)
UPDATE horsies_workflow_tasks n SET task_id = NULL, updated_at = statement_timestamp(), status = 'PENDING'
  FROM ended WHERE n.ctid = ended.tid
RETURNING n.workflow_id, n.task_index;

-- name: takers_inside :many
-- params: child_ids, levels, indexes
-- Nodes in workflows inside a run that have not started and take the result of one of these nodes of the run. levels: how
-- deep each of child_ids is below the run.
SELECT n.node_id FROM unnest($1::text[], $2::int[]) AS c (id, level)
  JOIN horsies_workflow_tasks n ON n.workflow_id = c.id AND n.status IN ('PENDING', 'READY')
 CROSS JOIN LATERAL jsonb_each(CASE WHEN jsonb_typeof(n.args_from) = 'object' THEN n.args_from END) AS a (name, source)
 WHERE a.source ->> 'up' = c.level::text AND a.source ->> 'at' = ANY (SELECT x::text FROM unnest($3::int[]) AS x)
 LIMIT 1;

-- name: recount_workflows :many
-- params: ids
-- After a retry: computes all counters anew. Nodes that wait are PENDING, and the next step decides which of them run; it
-- comes by notification, or else by the clock of the run. One grouped pass over nodes and edges without a join: with the
-- statistics of an empty table, a join of the nodes with themselves read each node's whole workflow. A workflow inside
-- another runs if its node does; otherwise it is PENDING until the node is ready. `edges`: the nodes that name a node as
-- their dependent; `then` of a batch names none of them itself.
WITH node AS MATERIALIZED (
    SELECT n.ctid AS tid, n.workflow_id, n.task_index, n.status, n.skip_reason, n.dependents FROM horsies_workflow_tasks n
     WHERE n.workflow_id = ANY ($1::text[])
), state AS MATERIALIZED (
    SELECT x.workflow_id, max(x.tid) AS tid, max(x.status) AS status, sum(x.ended)::int AS ended, sum(x.ok)::int AS ok,
           sum(x.void)::int AS void, sum(x.edge)::int AS edges
      FROM (SELECT workflow_id, task_index AS at, tid, status, 0 AS ended, 0 AS ok, 0 AS void, 0 AS edge FROM node
            UNION ALL
            SELECT node.workflow_id, d.at, NULL, NULL, (node.status IN ('COMPLETED', 'FAILED', 'SKIPPED'))::int,
                   (node.status = 'COMPLETED')::int, (node.skip_reason IS NOT DISTINCT FROM 'not_taken')::int, 1
              FROM node CROSS JOIN LATERAL unnest(node.dependents) AS d (at)) AS x
     GROUP BY x.workflow_id, x.at
), counted AS (
    UPDATE horsies_workflow_tasks n
       SET deps_left = CASE WHEN n.dependencies = '{}' THEN s.edges ELSE cardinality(n.dependencies) END - s.ended, deps_ok = s.ok, deps_void = s.void,
           updated_at = statement_timestamp(), status = 'PENDING'
      FROM state s WHERE n.ctid = s.tid AND s.status IN ('PENDING', 'READY')
), run AS MATERIALIZED (
    -- from the ids as well: a map over an empty list has no nodes
    SELECT x.workflow_id, sum(x.left_)::int AS left_
      FROM (SELECT workflow_id, (status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED'))::int AS left_
              FROM state WHERE tid IS NOT NULL
            UNION ALL
            SELECT id, 0 FROM unnest($1::text[]) AS x (id)) AS x
     GROUP BY x.workflow_id
)
UPDATE horsies_workflows w
   SET nodes_left = run.left_, result = NULL, error = NULL, completed_at = NULL, updated_at = statement_timestamp(),
       ends_as = NULL, unsettled = w.parent_workflow_id IS NOT NULL, wake_at = statement_timestamp(),
       started_at = coalesce(w.started_at, statement_timestamp()),
       status = CASE WHEN w.parent_workflow_id IS NULL OR EXISTS (
                          SELECT FROM horsies_workflow_tasks p WHERE p.workflow_id = w.parent_workflow_id
                             AND p.task_index = w.parent_task_index AND p.status = 'RUNNING') THEN 'RUNNING'
                     ELSE 'PENDING' END
  FROM run WHERE w.id = run.workflow_id
RETURNING w.id, w.status;

-- name: set_deadline :many
-- params: id, moment, seconds
-- The deadline of a run that is retried: a moment, or seconds from now; without both it has none.
UPDATE horsies_workflows w SET deadline = coalesce($2::timestamptz, statement_timestamp() + make_interval(secs => $3::float8))
 WHERE w.id = $1
RETURNING w.id;

-- name: retry_compensations :many
-- params: id
-- A compensation of this run failed: it and those that were skipped behind it run again, and the run ends as it had.
WITH again AS MATERIALIZED (
    SELECT n.ctid AS tid, n.id, n.task_id, n.status FROM horsies_workflow_tasks n
     WHERE n.workflow_id = $1 AND n.compensates IS NOT NULL AND n.status IN ('FAILED', 'SKIPPED')
), detached AS (
    UPDATE horsies_tasks t SET is_workflow_task = false, former_node_id = again.id, updated_at = statement_timestamp()
      FROM again WHERE t.id = again.task_id
), moved AS (
    UPDATE horsies_workflow_tasks n
       SET task_id = NULL, result = NULL, error = NULL, started_at = NULL, completed_at = NULL, skip_reason = NULL,
           deps_left = CASE WHEN again.status = 'FAILED' THEN 0 ELSE cardinality(n.dependencies) END,
           deps_ok = CASE WHEN again.status = 'FAILED' THEN cardinality(n.dependencies) ELSE 0 END, deps_void = 0,
           updated_at = statement_timestamp(), status = 'PENDING'
      FROM again WHERE n.ctid = again.tid
)
UPDATE horsies_workflows w
   SET ends_as = w.status, nodes_left = (SELECT count(*) FROM again), completed_at = NULL,
       updated_at = statement_timestamp(), wake_at = statement_timestamp(),
       unsettled = w.parent_workflow_id IS NOT NULL, status = 'RUNNING'
 WHERE w.id = $1 AND w.status IN ('FAILED', 'CANCELLED') AND EXISTS (SELECT FROM again WHERE again.status = 'FAILED')
RETURNING w.id;

-- name: forget_compensations :many
-- params: ids, tree
-- A function of the schema: an operator needs no right to delete nodes.
SELECT workflow_id FROM horsies_forget_compensations($1::text[], $2::text[]) AS changed (workflow_id);

-- name: reopen_around :many
-- params: ids, tops
-- The nodes around these runs, up to the runs `tops`, run again.
WITH RECURSIVE up AS (
    SELECT w.id, w.parent_workflow_id, w.parent_task_index FROM horsies_workflows w
     WHERE w.id = ANY ($1::text[]) AND NOT w.id = ANY ($2::text[])
    UNION
    SELECT p.id, p.parent_workflow_id, p.parent_task_index FROM up JOIN horsies_workflows p ON p.id = up.parent_workflow_id
     WHERE NOT p.id = ANY ($2::text[])
)
UPDATE horsies_workflow_tasks n
   SET result = NULL, error = NULL, completed_at = NULL, ended_seq = NULL, updated_at = statement_timestamp(),
       status = 'PENDING'
  FROM up WHERE n.workflow_id = up.parent_workflow_id AND n.task_index = up.parent_task_index AND n.status = 'COMPLETED'
RETURNING up.id, n.workflow_id;

-- name: tell_step :value
-- params: ids
SELECT count(*) FROM (SELECT pg_notify('workflow_step', 'w:' || x.id) FROM unnest($1::text[]) AS x (id)) AS told;
