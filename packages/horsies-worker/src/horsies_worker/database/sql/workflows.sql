-- The progress of workflows. A step is one short transaction: it locks the workflow's row in a statement of its own, ends
-- nodes, counts down their dependents, enqueues ready nodes, and ends the workflow when no node is left. The order of
-- locks is that of the client's workflows.sql: workflow, nodes by index, tasks. Results are copied from row to row inside
-- the database, as text: the worker decodes none, and a task's row holds all its arguments for every attempt and release.
-- Plans are generic and may be made on empty tables: each row is found by its key (LATERAL with LIMIT) and written by its
-- ctid, which no other session changes while the workflow is locked. BETWEEN and ORDER BY instead of an equality: on an
-- empty table the planner takes the first index that begins with workflow_id, and a step of 1,000 ends read 1.6 million
-- pages of (workflow_id, node_id).

-- fragment: counts
n.task_index, n.join_type, n.min_success, n.allow_failed_deps, cardinality(n.dependencies) AS total, n.deps_left,
       n.deps_ok, n.kind, n.sub_workflow_id

-- fragment: is_map
-- Whether the run `w` holds the items of a map: the kind of the node around it says so.
coalesce((SELECT p.kind = 'map' FROM horsies_workflow_tasks p
                           WHERE p.workflow_id = w.parent_workflow_id
                             AND p.task_index BETWEEN w.parent_task_index AND w.parent_task_index
                           ORDER BY p.task_index LIMIT 1), false)

-- fragment: is_context_open
-- A source of the node's context has not ended.
EXISTS (SELECT FROM unnest(n.workflow_ctx_from) AS u (node_id)
               CROSS JOIN LATERAL (SELECT c.status FROM horsies_workflow_tasks c
                                    WHERE c.workflow_id = $1 AND c.node_id = u.node_id LIMIT 1) AS c
               WHERE c.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED'))

-- fragment: around
-- The run and those around it. Runs stand at most 64 levels deep in each other; the limit of 100 ends the recursion over
-- rows that name each other as parents.
around AS (
    SELECT 0 AS level, w.id, w.name, w.parent_workflow_id FROM horsies_workflows w WHERE w.id = $1
    UNION ALL
    SELECT a.level + 1, w.id, w.name, w.parent_workflow_id FROM around a
     CROSS JOIN LATERAL (SELECT w.id, w.name, w.parent_workflow_id FROM horsies_workflows w
                          WHERE w.id = a.parent_workflow_id LIMIT 1) AS w
     WHERE a.level < 100
)

-- fragment: sources
-- The node `d` whose value each parameter takes, in this run or one further out ("up"). `gap` says why it has no bare
-- value: 'skipped' (it has not completed, or is a workflow that completed although its output node did not), or 'no value'
-- (it completed without a stored result). 'skipped' is last in the alphabet, so max(gap) lets it win.
LEFT JOIN around ON around.level = coalesce((a.source ->> 'up')::int, 0)
  LEFT JOIN LATERAL (SELECT d.node_id, d.status, d.result, d.error FROM horsies_workflow_tasks d
                      WHERE d.workflow_id = around.id AND d.task_index BETWEEN (a.source ->> 'at')::int
                        AND (a.source ->> 'at')::int ORDER BY d.task_index LIMIT 1) AS d ON true
 CROSS JOIN LATERAL (SELECT CASE WHEN a.source ->> 'bare' IS DISTINCT FROM 'true' THEN NULL
                                 WHEN d.status IS DISTINCT FROM 'COMPLETED' THEN 'skipped'
                                 WHEN d.result IS NULL THEN 'no value'
                                 WHEN d.result LIKE '{"ok":%' THEN NULL
                                 WHEN d.result::json -> 'ok' IS NULL THEN 'skipped' END AS gap) AS g

-- fragment: launched
moved AS (
    UPDATE horsies_workflow_tasks n
       SET sub_workflow_id = child.id, started_at = statement_timestamp(), updated_at = statement_timestamp(),
           status = 'RUNNING'
      FROM target t CROSS JOIN child WHERE n.id = t.id
)

-- name: workflows_of_tasks :many
-- params: task_ids
SELECT n.workflow_id, x.id AS task_id FROM unnest($1::text[]) AS x (id)
 CROSS JOIN LATERAL (SELECT n.workflow_id FROM horsies_workflow_tasks n WHERE n.task_id = x.id LIMIT 1) AS n;

-- name: lock_workflow :one
-- params: id
-- `paused_along`: see lock_workflow_tree.
SELECT id, name, status, on_error, nodes_left, parent_workflow_id, paused_inside,
       status = 'PAUSED' AND coalesce(error LIKE '{"err":{"error_code":"WORKFLOW_PAUSED","message":"the workflow '
           'around it is paused%', false) AS paused_along,
       success_policy::text AS success_policy
  FROM horsies_workflows WHERE id = $1 FOR NO KEY UPDATE;

-- name: settle_tasks :many
-- params: id, task_ids, lost_error, is_open
-- Ends the nodes whose tasks have ended; with task_ids NULL, checks all nodes under way. If a task's row is gone, its node
-- ends with lost_error: it would wait for ever. `is_retried`: the run was retried before this task had stopped
-- (retry_stopped_tasks). Unless the task completed or the run has ended again, its node does not end: it comes back as
-- ENQUEUED, for rerun_nodes.
WITH candidate AS (
    SELECT n.tid, n.task_id, n.task_index FROM unnest($2::text[]) AS x (id)
     CROSS JOIN LATERAL (SELECT n.ctid AS tid, n.task_id, n.task_index FROM horsies_workflow_tasks n
                          WHERE n.task_id = x.id AND n.workflow_id || '' = $1 AND n.status || '' = 'ENQUEUED'
                          LIMIT 1) AS n
    UNION ALL
    SELECT n.ctid, n.task_id, n.task_index FROM horsies_workflow_tasks n
     WHERE $2::text[] IS NULL AND n.workflow_id = $1 AND n.status = 'ENQUEUED'
), ended AS MATERIALIZED (
    SELECT c.tid, c.task_index, c.task_id, t.status, t.result, t.started_at, t.terminal_at,
           t.former_node_id IS NOT NULL AS is_retried,
           t.former_node_id IS NOT NULL AND t.status <> 'COMPLETED' AND $4::bool AS runs_again
      FROM candidate c
      LEFT JOIN LATERAL (SELECT t.id, t.status, t.result, t.started_at, t.terminal_at, t.former_node_id
                           FROM horsies_tasks t WHERE t.id = c.task_id LIMIT 1) AS t ON true
     WHERE t.id IS NULL OR t.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
), settled AS (
    UPDATE horsies_workflow_tasks n
       SET result = CASE WHEN e.status = 'COMPLETED' THEN e.result END,
           error = CASE WHEN e.status IS NULL THEN $3::text WHEN e.status <> 'COMPLETED' THEN e.result END,
           started_at = e.started_at, completed_at = coalesce(e.terminal_at, statement_timestamp()),
           updated_at = statement_timestamp(),
           status = CASE WHEN e.status = 'COMPLETED' THEN 'COMPLETED' ELSE 'FAILED' END
      FROM ended e
     WHERE n.ctid = e.tid AND NOT e.runs_again
    RETURNING n.task_index, n.status, n.task_id, e.is_retried
)
SELECT task_index, status, task_id, is_retried FROM settled
UNION ALL
SELECT task_index, 'ENQUEUED', task_id, true FROM ended WHERE runs_again;

-- name: rerun_nodes :many
-- params: id, indexes
-- Nodes whose tasks were stopped after the run had been retried: each waits again, and gets another task when what it
-- waits for has ended. They come back with their counts, as from count_down.
WITH target AS MATERIALIZED (
    SELECT n.tid, n.id, n.task_id, c.ended, c.ok FROM unnest($2::int[]) AS x (at)
     CROSS JOIN LATERAL (SELECT n.ctid AS tid, n.id, n.task_id, n.dependencies FROM horsies_workflow_tasks n
                          WHERE n.workflow_id = $1 AND n.task_index BETWEEN x.at AND x.at
                            AND n.status || '' = 'ENQUEUED' ORDER BY n.task_index LIMIT 1) AS n
     CROSS JOIN LATERAL (SELECT count(*)::int AS ended, count(*) FILTER (WHERE d.status = 'COMPLETED')::int AS ok
                           FROM unnest(n.dependencies) AS y (at)
                          CROSS JOIN LATERAL (SELECT d.status FROM horsies_workflow_tasks d
                                               WHERE d.workflow_id = $1 AND d.task_index BETWEEN y.at AND y.at
                                               ORDER BY d.task_index LIMIT 1) AS d
                          WHERE d.status IN ('COMPLETED', 'FAILED', 'SKIPPED')) AS c
), detached AS (
    UPDATE horsies_tasks t SET is_workflow_task = false, updated_at = statement_timestamp()
      FROM target WHERE t.id = target.task_id
)
UPDATE horsies_workflow_tasks n
   SET task_id = NULL, deps_left = cardinality(n.dependencies) - target.ended, deps_ok = target.ok,
       updated_at = statement_timestamp(), status = 'PENDING'
  FROM target WHERE n.ctid = target.tid
RETURNING {{counts}}, n.deps_left > 0 AND {{is_context_open}} AS context_open;

-- name: keep_tasks :many
-- params: task_ids
-- Tasks that ended their nodes although the run had been retried before they ended: they are no former tasks.
UPDATE horsies_tasks t SET former_node_id = NULL, updated_at = statement_timestamp()
 WHERE t.id = ANY ($1::text[]) AND t.is_workflow_task
RETURNING t.id;

-- name: settle_children :many
-- params: id, error_head, child_ids
-- Ends the nodes whose workflows have ended; with child_ids NULL, checks all nodes under way. The error of a failed
-- workflow becomes the data of error_head and is returned to the caller, which writes the node's message (`word_errors`).
WITH candidate AS (
    SELECT n.tid, n.sub_workflow_id FROM unnest($3::text[]) AS x (id)
     CROSS JOIN LATERAL (SELECT n.ctid AS tid, n.sub_workflow_id FROM horsies_workflow_tasks n
                          WHERE n.sub_workflow_id = x.id AND n.workflow_id || '' = $1 AND n.status || '' = 'RUNNING'
                          LIMIT 1) AS n
    UNION ALL
    SELECT n.ctid, n.sub_workflow_id FROM horsies_workflow_tasks n
     WHERE $3::text[] IS NULL AND n.workflow_id = $1 AND n.status = 'RUNNING'
), ended AS MATERIALIZED (
    SELECT n.tid, c.status, c.result, c.error, c.completed_at FROM candidate n
     CROSS JOIN LATERAL (SELECT c.status, c.result, c.error, c.completed_at FROM horsies_workflows c
                          WHERE c.id = n.sub_workflow_id AND c.status || '' IN ('COMPLETED', 'FAILED', 'CANCELLED')
                          LIMIT 1) AS c
)
UPDATE horsies_workflow_tasks n
   SET result = CASE WHEN e.status = 'COMPLETED' THEN e.result END,
       error = CASE WHEN e.status <> 'COMPLETED' THEN
                    $2::text || coalesce(e.error, 'null') || '}}' END,
       completed_at = e.completed_at, updated_at = statement_timestamp(),
       status = CASE WHEN e.status = 'COMPLETED' THEN 'COMPLETED' ELSE 'FAILED' END
  FROM ended e
 WHERE n.ctid = e.tid
RETURNING n.task_index, n.status, CASE WHEN e.status <> 'COMPLETED' THEN e.error END AS inner_error;

-- name: word_errors :many
-- params: id, indexes, errors
-- Writes the error messages of nodes that this step has ended.
WITH worded AS MATERIALIZED (
    SELECT n.tid, x.error FROM unnest($2::int[], $3::text[]) AS x (at, error)
     CROSS JOIN LATERAL (SELECT n.ctid AS tid FROM horsies_workflow_tasks n
                          WHERE n.workflow_id = $1 AND n.task_index BETWEEN x.at AND x.at
                            AND n.status || '' = 'FAILED' ORDER BY n.task_index LIMIT 1) AS n
)
UPDATE horsies_workflow_tasks n SET error = w.error FROM worded w WHERE n.ctid = w.tid
RETURNING n.task_index;

-- name: end_nodes :many
-- params: id, indexes, statuses, errors
-- Nodes that end without having run: skipped, or failed because they cannot be enqueued.
WITH ended AS MATERIALIZED (
    SELECT n.tid, x.status, x.error FROM unnest($2::int[], $3::text[], $4::text[]) AS x (at, status, error)
     CROSS JOIN LATERAL (SELECT n.ctid AS tid FROM horsies_workflow_tasks n
                          WHERE n.workflow_id = $1 AND n.task_index BETWEEN x.at AND x.at
                            AND n.status || '' IN ('PENDING', 'READY') ORDER BY n.task_index LIMIT 1) AS n
)
UPDATE horsies_workflow_tasks n
   SET error = e.error, completed_at = statement_timestamp(), updated_at = statement_timestamp(), status = e.status
  FROM ended e
 WHERE n.ctid = e.tid
RETURNING n.task_index, n.status;

-- name: count_down :many
-- params: id, indexes, completed
-- Counts down the waiting dependents of nodes that have ended, and returns them with their counts. Each node ends once,
-- under the workflow's lock, so the counts are exact. `context_open`: a node in workflow_ctx_from has not ended. Those
-- nodes are dependencies too, so the end of each is counted here; only `any` and `quorum` joins can be met before. If the
-- context names every dependency, deps_left answers it without reading each node.
WITH gone AS MATERIALIZED (
    SELECT d.at, count(*)::int AS ended, count(*) FILTER (WHERE x.ok)::int AS ok
      FROM unnest($2::int[], $3::bool[]) AS x (at, ok)
     CROSS JOIN LATERAL (SELECT n.dependents FROM horsies_workflow_tasks n
                          WHERE n.workflow_id = $1 AND n.task_index BETWEEN x.at AND x.at
                          ORDER BY n.task_index LIMIT 1) AS n
     CROSS JOIN LATERAL unnest(n.dependents) AS d (at)
     GROUP BY d.at
), waiting AS MATERIALIZED (
    SELECT n.tid, g.ended, g.ok FROM gone g
     CROSS JOIN LATERAL (SELECT n.ctid AS tid FROM horsies_workflow_tasks n
                          WHERE n.workflow_id = $1 AND n.task_index BETWEEN g.at AND g.at
                            AND n.status || '' = 'PENDING' ORDER BY n.task_index LIMIT 1) AS n
), counted AS (
    UPDATE horsies_workflow_tasks n
       SET deps_left = n.deps_left - w.ended, deps_ok = n.deps_ok + w.ok
      FROM waiting w
     WHERE n.ctid = w.tid
    RETURNING {{counts}},
              n.join_type <> 'all' AND n.workflow_ctx_from IS NOT NULL AND n.deps_left > 0
              AND n.deps_ok >= coalesce(n.min_success, 1)
              AND (cardinality(n.workflow_ctx_from) = cardinality(n.dependencies)
                   OR {{is_context_open}}) AS context_open
), workflow AS (
    UPDATE horsies_workflows w SET nodes_left = greatest(0, w.nodes_left - cardinality($2::int[])),
           updated_at = statement_timestamp() WHERE w.id = $1
    RETURNING w.nodes_left
)
SELECT workflow.nodes_left, counted.* FROM workflow LEFT JOIN counted ON true;

-- name: ready_nodes :many
-- params: id, row_limit
SELECT task_index, kind, sub_workflow_id FROM horsies_workflow_tasks
 WHERE workflow_id = $1 AND status = 'READY' ORDER BY task_index LIMIT $2;

-- name: live_nodes :many
-- params: id
SELECT task_index FROM horsies_workflow_tasks
 WHERE workflow_id = $1 AND status IN ('READY', 'ENQUEUED', 'RUNNING') LIMIT 1;

-- name: lacks_nodes :one
-- params: id
-- Whether a run has no nodes although it is not a map: a map over an empty list has none.
SELECT NOT {{is_map}} AND NOT EXISTS (SELECT FROM horsies_workflow_tasks n WHERE n.workflow_id = w.id) AS lacks_nodes
  FROM horsies_workflows w WHERE w.id = $1;

-- name: edges :many
-- params: id
SELECT task_index, node_id, status, dependencies, dependents FROM horsies_workflow_tasks
 WHERE workflow_id = $1 ORDER BY task_index;

-- name: waiting_nodes :many
-- params: id
-- Waiting nodes with their counts, for a run in which nothing is under way: then no source of a context is open.
SELECT {{counts}}, false AS context_open
  FROM horsies_workflow_tasks n WHERE n.workflow_id = $1 AND n.status IN ('PENDING', 'READY') ORDER BY n.task_index;

-- name: undecided_nodes :many
-- params: id
-- After a retry of a run that was stopped: nodes that wait although everything before them has ended. A node that failed
-- after the stop, and is not retried, has not updated the counters of its dependents.
SELECT {{counts}}, false AS context_open
  FROM horsies_workflow_tasks n WHERE n.workflow_id = $1 AND n.status = 'PENDING' AND n.deps_left = 0
 ORDER BY n.task_index;

-- name: mark_ready :many
-- params: id, indexes
-- For a paused workflow: the nodes are enqueued when it is resumed.
UPDATE horsies_workflow_tasks n SET updated_at = statement_timestamp(), status = 'READY'
 WHERE n.workflow_id = $1 AND n.task_index = ANY ($2::int[]) AND n.status = 'PENDING'
RETURNING n.task_index;

-- name: enqueue_nodes :many
-- edge: new -> PENDING
-- params: id, indexes, task_ids, not_ready, max_bytes, not_available
-- Turns nodes into tasks and composes their arguments: one member per injected parameter, either the upstream's stored
-- result or, for a parameter that takes the bare value, the part after its "ok". Outcomes: enqueued; too large; a gap,
-- with 'no value' of the source `missing`.
WITH RECURSIVE {{around}}, target AS MATERIALIZED (
    SELECT n.*, x.task_id AS new_id FROM unnest($2::int[], $3::text[]) AS x (at, task_id)
     CROSS JOIN LATERAL (SELECT n.ctid AS tid, n.id, n.task_index, n.node_id, n.task_name, n.args, n.kwargs, n.queue_name, n.priority,
                                n.args_from, n.workflow_ctx_from, n.task_options, n.max_retries, n.good_until, n.ttl,
                                n.metadata, n.group_key
                           FROM horsies_workflow_tasks n
                          WHERE n.workflow_id = $1 AND n.task_index BETWEEN x.at AND x.at
                            AND n.status || '' IN ('PENDING', 'READY') AND n.kind = 'task'
                          ORDER BY n.task_index LIMIT 1) AS n
), composed AS MATERIALIZED (
    SELECT target.*, member.gap, member.missing,
           CASE WHEN member.text IS NULL THEN target.kwargs
                WHEN coalesce(target.kwargs, '{}') = '{}' THEN '{' || member.text || '}'
                ELSE left(target.kwargs, -1) || ',' || member.text || '}' END AS full_kwargs
      FROM target
     CROSS JOIN LATERAL (
           SELECT max(g.gap) AS gap, min(d.node_id) FILTER (WHERE g.gap = 'no value') AS missing,
                  string_agg(to_json(a.parameter)::text || ':' || CASE
                      WHEN a.source ? 'meta' THEN json_build_object('workflow_id', $1::text,
                           'workflow_name', (SELECT around.name FROM around WHERE around.level = 0),
                           'node_id', target.node_id, 'task_index', target.task_index)::text
                      WHEN a.source ? 'ctx' THEN '{"workflow_id":' || to_json($1::text) || ',"node_id":'
                           || to_json(target.node_id) || ',"results":{' || (
                           SELECT coalesce(string_agg(to_json(c.node_id)::text || ':' || coalesce(c.result, c.error,
                                  CASE WHEN c.status IN ('COMPLETED', 'FAILED', 'SKIPPED') THEN $6::text ELSE $4::text END
                                  ), ','), '')
                             FROM unnest(target.workflow_ctx_from) AS u (node_id)
                            CROSS JOIN LATERAL (SELECT c.node_id, c.status, c.result, c.error
                                                  FROM horsies_workflow_tasks c
                                                 WHERE c.workflow_id = $1 AND c.node_id = u.node_id LIMIT 1) AS c) || '}}'
                      WHEN a.source ->> 'bare' = 'true' AND d.result LIKE '{"ok":%'
                           THEN substr(d.result, 7, length(d.result) - 7)
                      WHEN a.source ->> 'bare' = 'true' THEN (d.result::json -> 'ok')::text
                      ELSE coalesce(d.result, d.error, CASE WHEN d.status IN ('COMPLETED', 'FAILED', 'SKIPPED')
                                    THEN $6::text ELSE $4::text END) END, ',' ORDER BY a.parameter) AS text
             FROM jsonb_each(target.args_from) AS a (parameter, source)
             {{sources}}) AS member
), fit AS MATERIALIZED (
    SELECT * FROM composed WHERE gap IS NULL AND octet_length(coalesce(full_kwargs, '')) <= $5
), task AS (
    INSERT INTO horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, good_until,
                               max_retries, task_options, is_workflow_task, metadata, group_key)
    SELECT f.new_id, f.task_name, f.queue_name, f.priority, f.args, f.full_kwargs, statement_timestamp(),
           statement_timestamp(), coalesce(f.good_until, statement_timestamp() + f.ttl), f.max_retries, f.task_options,
           true, nullif(coalesce(f.metadata, '{}') || coalesce(run.metadata, '{}') || CASE
               WHEN run.metadata ? 'horsies.trace'
               THEN jsonb_build_object('horsies.workflow', $1::text, 'horsies.node', f.node_id) ELSE '{}' END, '{}'),
           coalesce(f.group_key, run.group_key)
      FROM fit f CROSS JOIN (SELECT w.metadata, w.group_key FROM horsies_workflows w WHERE w.id = $1) AS run
), moved AS (
    UPDATE horsies_workflow_tasks n SET task_id = f.new_id, updated_at = statement_timestamp(), status = 'ENQUEUED'
      FROM fit f WHERE n.ctid = f.tid
)
SELECT task_index, missing, CASE WHEN gap IS NOT NULL THEN gap
                                 WHEN octet_length(coalesce(full_kwargs, '')) > $5 THEN 'too large'
                                 ELSE 'enqueued' END AS outcome
  FROM composed;

-- name: missing_values :many
-- params: id, indexes
-- Workflow and map nodes that need a bare value which does not exist, as `enqueue_nodes` finds them for tasks.
WITH RECURSIVE {{around}}, target AS MATERIALIZED (
    SELECT n.task_index, n.args_from FROM unnest($2::int[]) AS x (at)
     CROSS JOIN LATERAL (SELECT n.task_index, n.args_from FROM horsies_workflow_tasks n
                          WHERE n.workflow_id = $1 AND n.task_index BETWEEN x.at AND x.at
                          ORDER BY n.task_index LIMIT 1) AS n
)
SELECT t.task_index, max(g.gap) AS outcome, min(d.node_id) FILTER (WHERE g.gap = 'no value') AS missing
  FROM target t CROSS JOIN LATERAL jsonb_each(t.args_from) AS a (parameter, source)
  {{sources}}
 WHERE g.gap IS NOT NULL
 GROUP BY t.task_index;

-- name: launch_workflow :many
-- params: id, index, child_id
-- Turns the graph of a workflow node into rows; the node has kept it since the run began. `kwargs` of an inner node holds
-- its arguments or, for a workflow or map, its graph: an object, or its text in runs that an older client started. Both
-- become the same text here. Such runs have no `kind` either. The inner run has the group of the node, else of the run.
WITH target AS MATERIALIZED (
    SELECT n.id, n.kwargs::json AS graph, n.group_key FROM horsies_workflow_tasks n
     WHERE n.workflow_id = $1 AND n.task_index = $2 AND n.status IN ('PENDING', 'READY') AND n.kind = 'workflow' FOR UPDATE
), child AS (
    INSERT INTO horsies_workflows (id, name, status, on_error, output_task_index, success_policy, definition_key,
                                   parent_workflow_id, parent_task_index, root_workflow_id, depth, sent_at, started_at,
                                   nodes_left, metadata, group_key)
    SELECT $3::varchar, t.graph ->> 'name', 'RUNNING', t.graph ->> 'on_error', (t.graph ->> 'output')::int,
           CASE WHEN t.graph ->> 'success_policy' IS NOT NULL THEN (t.graph -> 'success_policy')::jsonb END,
           t.graph ->> 'definition_key', p.id, $2::int, coalesce(p.root_workflow_id, p.id), p.depth + 1, p.sent_at,
           statement_timestamp(), json_array_length(t.graph -> 'nodes'), p.metadata, coalesce(t.group_key, p.group_key)
      FROM target t CROSS JOIN horsies_workflows p
     WHERE p.id = $1
    RETURNING id
), node AS (
    INSERT INTO horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, args, kwargs, queue_name,
           priority, dependencies, dependents, args_from, workflow_ctx_from, join_type, min_success, allow_failed_deps,
           task_options, max_retries, good_until, ttl, kind, sub_workflow_name, deps_left, status, metadata,
           group_key)
    SELECT gen_random_uuid()::text, child.id, (x.number - 1)::int, n.node_id, n.task_name, n.args, n.kwargs,
           n.queue_name, n.priority, n.dependencies, n.dependents, nullif(n.args_from, 'null'::jsonb), n.ctx_from,
           n.join_type, n.min_success, n.allow_failed, n.task_options, n.max_retries, n.good_until,
           make_interval(secs => n.ttl), coalesce(n.kind, CASE WHEN n.sub_name IS NULL THEN 'task'
                WHEN n.kwargs::json -> 'map' IS NULL THEN 'workflow' ELSE 'map' END), n.sub_name, cardinality(n.dependencies),
           CASE WHEN n.dependencies = '{}' THEN 'READY' ELSE 'PENDING' END, nullif(n.metadata, 'null'::jsonb), n.group_key
      FROM child CROSS JOIN target t CROSS JOIN LATERAL json_array_elements(t.graph -> 'nodes') WITH ORDINALITY
           AS x (node, number)
     CROSS JOIN LATERAL json_to_record(x.node) AS n (node_id text, task_name text, args text, kwargs text,
           queue_name text, priority int, dependencies int[], dependents int[], args_from jsonb, ctx_from varchar[],
           join_type text, min_success int, allow_failed bool, task_options text, max_retries int,
           good_until timestamptz, ttl float8, sub_name text, kind text, metadata jsonb, group_key text)
), {{launched}}
SELECT 'launched' AS outcome FROM target;

-- name: reopen_child :many
-- params: id, index
-- Continues the workflow of a retried node, now that the node is ready. If that workflow has ended (it had, when the run
-- around it was cancelled), the next step settles it. No row back: the node has no workflow.
WITH target AS MATERIALIZED (
    SELECT n.id, c.id AS child_id, c.status FROM horsies_workflow_tasks n JOIN horsies_workflows c ON c.id = n.sub_workflow_id
     WHERE n.workflow_id = $1 AND n.task_index = $2 AND n.status IN ('PENDING', 'READY') AND n.kind <> 'task'
       FOR UPDATE OF n
), child AS (
    UPDATE horsies_workflows c SET updated_at = statement_timestamp(), status = 'RUNNING'
      FROM target t WHERE c.id = t.child_id AND c.status = 'PENDING'
), moved AS (
    UPDATE horsies_workflow_tasks n
       SET started_at = statement_timestamp(), updated_at = statement_timestamp(), status = 'RUNNING'
      FROM target t WHERE n.id = t.id
)
SELECT child_id, status FROM target;

-- name: launch_map :many
-- params: id, index, child_id
-- One node per item of the upstream's list, in a workflow of their own whose result is the list of their results. The
-- items are cut out of the stored text in the database; the worker does not read them. Workers of older releases tell such
-- a workflow by its definition_key. The items' tasks have the group of this inner run: that of the node, else of the run.
WITH target AS MATERIALIZED (
    SELECT n.id, n.sub_workflow_name, n.kwargs::json -> 'map' AS pattern, n.group_key, d.result FROM horsies_workflow_tasks n
      LEFT JOIN LATERAL (
           WITH RECURSIVE {{around}}
           SELECT d.result FROM around JOIN horsies_workflow_tasks d ON d.workflow_id = around.id
            WHERE around.level = coalesce((n.args_from -> '*' ->> 'up')::int, 0)
              AND d.task_index BETWEEN (n.args_from -> '*' ->> 'at')::int AND (n.args_from -> '*' ->> 'at')::int
            ORDER BY d.task_index LIMIT 1) AS d ON true
     WHERE n.workflow_id = $1 AND n.task_index = $2 AND n.status IN ('PENDING', 'READY') AND n.kind = 'map'
       FOR UPDATE OF n
), fit AS MATERIALIZED (
    SELECT t.*, t.result::json -> 'ok' AS items, json_array_length(t.result::json -> 'ok') AS width FROM target t
     WHERE json_typeof(t.result::json -> 'ok') = 'array'
), child AS (
    INSERT INTO horsies_workflows (id, name, status, definition_key, parent_workflow_id, parent_task_index,
                                   root_workflow_id, depth, sent_at, started_at, nodes_left, metadata, group_key)
    SELECT $3::varchar, f.sub_workflow_name, 'RUNNING', 'map', p.id, $2::int, coalesce(p.root_workflow_id, p.id),
           p.depth + 1, p.sent_at, statement_timestamp(), f.width, p.metadata, coalesce(f.group_key, p.group_key)
      FROM fit f CROSS JOIN horsies_workflows p
     WHERE p.id = $1 AND f.width <= (f.pattern ->> 'max_width')::int
    RETURNING id
), node AS (
    INSERT INTO horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, args, kwargs, queue_name,
           priority, args_from, task_options, max_retries, good_until, ttl, status, metadata)
    SELECT gen_random_uuid()::text, child.id, (x.number - 1)::int, 'item-' || (x.number - 1), n.task_name, n.args,
           '{' || concat_ws(',', nullif(left(substr(n.kwargs, 2), -1), ''), to_json(n.parameter)::text || ':' || x.item::text)
           || '}',
           n.queue_name, n.priority, nullif(n.args_from, 'null'::jsonb), n.task_options, n.max_retries, n.good_until,
           make_interval(secs => n.ttl), 'READY', nullif(n.metadata, 'null'::jsonb)
      FROM child CROSS JOIN fit f
     CROSS JOIN LATERAL json_to_record(f.pattern) AS n (task_name text, args text, kwargs text, queue_name text,
           priority int, args_from jsonb, task_options text, max_retries int, good_until timestamptz, ttl float8,
           parameter text, metadata jsonb)
     CROSS JOIN LATERAL json_array_elements(f.items) WITH ORDINALITY AS x (item, number)
), {{launched}}
SELECT CASE WHEN t.pattern ->> 'max_width' IS NULL THEN 'no width' WHEN f.width IS NULL THEN 'not a list' WHEN f.width > (t.pattern ->> 'max_width')::int THEN 'too wide' ELSE 'launched' END AS outcome,
       f.width, (t.pattern ->> 'max_width')::int AS max_width
  FROM target t LEFT JOIN fit f ON f.id = t.id;

-- name: finish_facts :many
-- params: id, policy, row_limit
-- For the last step: the status of every node that the success policy names, the first failed nodes, and their number.
SELECT n.task_index, n.node_id, n.status, NULL AS error, NULL::bigint AS failed_count FROM unnest($2::int[]) AS x (at)
 CROSS JOIN LATERAL (SELECT n.task_index, n.node_id, n.status FROM horsies_workflow_tasks n
                      WHERE n.workflow_id = $1 AND n.task_index BETWEEN x.at AND x.at ORDER BY n.task_index LIMIT 1) AS n
 WHERE n.status <> 'FAILED'
UNION ALL
SELECT * FROM (SELECT n.task_index, n.node_id, n.status, left(n.error, 2000), count(*) OVER () FROM horsies_workflow_tasks n
                WHERE n.workflow_id = $1 AND n.status = 'FAILED' ORDER BY n.task_index LIMIT $3) AS failed
 ORDER BY task_index;

-- name: paused_inside :one
-- params: id
-- Whether another node of this run is under way, and the first workflow inside it that is paused.
SELECT EXISTS (SELECT FROM horsies_workflow_tasks n WHERE n.workflow_id = $1 AND n.status IN ('READY', 'ENQUEUED'))
       OR EXISTS (SELECT FROM horsies_workflow_tasks n
                   CROSS JOIN LATERAL (SELECT c.status FROM horsies_workflows c WHERE c.id = n.sub_workflow_id LIMIT 1) AS c
                   WHERE n.workflow_id = $1 AND n.status = 'RUNNING' AND c.status <> 'PAUSED') AS can_move,
       p.node_id, p.child_id, p.error
  FROM (SELECT 1) AS one
  LEFT JOIN LATERAL (
       SELECT n.node_id, c.id AS child_id, left(c.error, 4000) AS error FROM horsies_workflow_tasks n
        CROSS JOIN LATERAL (SELECT c.id, c.error FROM horsies_workflows c
                             WHERE c.id = n.sub_workflow_id AND c.status || '' = 'PAUSED' LIMIT 1) AS c
        WHERE n.workflow_id = $1 AND n.status = 'RUNNING' ORDER BY n.task_index LIMIT 1) AS p ON true;

-- name: note_paused_inside :many
-- params: id, is_paused_inside, status, error
-- Records that a workflow inside this run is paused, or no longer. The run is PAUSED while no other node is under way; it
-- has no waiting tasks then, so none is withdrawn.
UPDATE horsies_workflows w
   SET paused_inside = $2, error = CASE WHEN $3::varchar = 'PAUSED' THEN $4::text END,
       updated_at = statement_timestamp(), status = $3::varchar
 WHERE w.id = $1 AND (w.status = 'RUNNING' OR w.status = 'PAUSED' AND w.paused_inside)
   AND (w.status, w.paused_inside) IS DISTINCT FROM ($3::varchar, $2::bool)
RETURNING w.id;

-- name: first_failure :many
-- params: id
-- The first failed node with its whole error, for the message of the run's error.
SELECT n.node_id, n.error, {{is_map}} AS is_item, n.task_index
  FROM horsies_workflows w
 CROSS JOIN LATERAL (SELECT n.node_id, n.error, n.task_index FROM horsies_workflow_tasks n
                      WHERE n.workflow_id = w.id AND n.status || '' = 'FAILED' ORDER BY n.task_index LIMIT 1) AS n
 WHERE w.id = $1;

-- name: finish_workflow :one
-- params: id, status, error, max_bytes, too_large
-- The result is that of the output node. The result of a map is the list of its nodes' values; if one is missing, the map
-- has no result instead of a shorter list.
WITH output AS MATERIALIZED (
    SELECT CASE WHEN {{is_map}} THEN (
                     SELECT CASE WHEN bool_and(v.text IS NOT NULL) IS NOT FALSE
                                 THEN '{"ok":[' || coalesce(string_agg(v.text, ',' ORDER BY v.task_index), '') || ']}' END
                       FROM (SELECT n.task_index, CASE WHEN n.result LIKE '{"ok":%'
                                                       THEN substr(n.result, 7, length(n.result) - 7)
                                                       ELSE (n.result::json -> 'ok')::text END AS text
                               FROM horsies_workflow_tasks n WHERE n.workflow_id = w.id) AS v)
                WHEN w.output_task_index IS NULL THEN '{"ok":null}'
                ELSE (SELECT coalesce(n.result, n.error) FROM horsies_workflow_tasks n
                       WHERE n.workflow_id = w.id AND n.task_index = w.output_task_index) END AS text
      FROM horsies_workflows w WHERE w.id = $1 AND $2::text = 'COMPLETED'
)
UPDATE horsies_workflows w
   SET result = CASE WHEN octet_length(o.text) <= $4 THEN o.text END,
       error = CASE WHEN octet_length(o.text) > $4 THEN $5::text ELSE $3::text END,
       completed_at = statement_timestamp(), updated_at = statement_timestamp(),
       status = CASE WHEN octet_length(o.text) > $4 THEN 'FAILED' ELSE $2::varchar END
  FROM (SELECT (SELECT text FROM output) AS text) AS o
 WHERE w.id = $1 AND w.status = 'RUNNING'
RETURNING w.id, w.status;

-- name: unadvanced_workflows :many
-- params: grace, row_limit
-- Workflows that stopped half-way for longer than the grace: ends that were not applied, ready nodes that were not
-- enqueued, tasks that are gone, ends and pauses of workflows inside, a last node without a last step, a run with nothing
-- under way. Reads only live rows. The longest untouched come first; updated_at is set here, so that runs that cannot be
-- continued do not hide the others. A locked workflow is being advanced, and is skipped.
WITH halted AS MATERIALIZED (
SELECT w.ctid AS tid FROM horsies_workflows w
 WHERE w.status IN ('RUNNING', 'PAUSED', 'PENDING') AND w.updated_at < statement_timestamp() - $1::interval
   AND (w.status = 'RUNNING' AND w.nodes_left = 0
        OR EXISTS (SELECT FROM horsies_workflow_tasks n WHERE n.workflow_id = w.id AND n.status = 'READY'
                      AND w.status = 'RUNNING')
        OR w.status = 'RUNNING' AND NOT EXISTS (SELECT FROM horsies_workflow_tasks n WHERE n.workflow_id = w.id
                                                   AND n.status IN ('READY', 'ENQUEUED', 'RUNNING'))
        OR EXISTS (SELECT FROM horsies_workflow_tasks n
                     LEFT JOIN LATERAL (SELECT t.id, t.status, t.terminal_at FROM horsies_tasks t
                                         WHERE t.id = n.task_id LIMIT 1) AS t ON true
                    WHERE n.workflow_id = w.id AND n.status = 'ENQUEUED'
                      AND (t.id IS NULL OR t.terminal_at < statement_timestamp() - $1::interval))
        OR EXISTS (SELECT FROM horsies_workflow_tasks n
                    CROSS JOIN LATERAL (SELECT c.completed_at, c.status FROM horsies_workflows c
                                         WHERE c.id = n.sub_workflow_id LIMIT 1) AS c
                    WHERE n.workflow_id = w.id AND n.status = 'RUNNING'
                      AND (c.completed_at < statement_timestamp() - $1::interval
                           OR c.status = 'PAUSED' AND w.status = 'RUNNING' AND NOT w.paused_inside))
        OR w.status = 'PAUSED' AND w.paused_inside
           AND NOT EXISTS (SELECT FROM horsies_workflow_tasks n
                            CROSS JOIN LATERAL (SELECT c.status FROM horsies_workflows c
                                                 WHERE c.id = n.sub_workflow_id LIMIT 1) AS c
                            WHERE n.workflow_id = w.id AND n.status = 'RUNNING' AND c.status = 'PAUSED'))
 ORDER BY w.updated_at LIMIT $2 FOR NO KEY UPDATE OF w SKIP LOCKED
)
UPDATE horsies_workflows w SET updated_at = statement_timestamp() FROM halted WHERE w.ctid = halted.tid
RETURNING w.id;

-- name: unsettled_stopped_workflows :many
-- params: grace, row_limit
-- Workflows that were stopped while one of their tasks ran, and whose node has not been ended with it.
SELECT DISTINCT n.workflow_id AS id FROM horsies_workflow_tasks n
 CROSS JOIN LATERAL (SELECT w.completed_at FROM horsies_workflows w WHERE w.id = n.workflow_id LIMIT 1) AS w
  LEFT JOIN LATERAL (SELECT t.id, t.terminal_at FROM horsies_tasks t WHERE t.id = n.task_id LIMIT 1) AS t ON true
 WHERE n.status IN ('READY', 'ENQUEUED', 'RUNNING') AND w.completed_at < statement_timestamp() - $1::interval
   AND n.status = 'ENQUEUED' AND (t.id IS NULL OR t.terminal_at < statement_timestamp() - $1::interval)
 LIMIT $2;
