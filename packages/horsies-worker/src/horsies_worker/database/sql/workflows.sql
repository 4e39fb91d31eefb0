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
       n.deps_ok, n.deps_void, n.kind, n.sub_workflow_id

-- fragment: when_state
-- What the node's `when` or `unless` says: NULL without one, 'open' before the node that decides has ended, 'taken', 'not
-- taken', 'upstream' when there is no value to decide on, or 'no bool' (a signal by SQL may have any value).
(SELECT CASE WHEN c.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED') THEN 'open'
             WHEN c.skip_reason = 'not_taken' THEN 'not taken'
             WHEN c.status <> 'COMPLETED' OR c.result IS NULL THEN 'upstream'
             WHEN c.result::json ->> 'ok' = CASE WHEN n.when_value THEN 'true' ELSE 'false' END
                  AND json_typeof(c.result::json -> 'ok') = 'boolean' THEN 'taken'
             WHEN c.result::json ->> 'ok' IN ('true', 'false') AND json_typeof(c.result::json -> 'ok') = 'boolean'
                  THEN 'not taken'
             WHEN c.result::json -> 'ok' IS NULL THEN 'upstream'
             ELSE 'no bool' END
   FROM horsies_workflow_tasks c
  WHERE n.when_index IS NOT NULL AND c.workflow_id = $1 AND c.task_index BETWEEN n.when_index AND n.when_index
  ORDER BY c.task_index LIMIT 1)

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
    SELECT 0 AS level, w.id, w.name, w.parent_workflow_id, w.parent_task_index FROM horsies_workflows w WHERE w.id = $1
    UNION ALL
    SELECT a.level + 1, w.id, w.name, w.parent_workflow_id, w.parent_task_index FROM around a
     CROSS JOIN LATERAL (SELECT w.id, w.name, w.parent_workflow_id, w.parent_task_index FROM horsies_workflows w
                          WHERE w.id = a.parent_workflow_id LIMIT 1) AS w
     WHERE a.level < 100
)

-- fragment: sources
-- The node `d` whose value each parameter takes, in this run or one further out ("up"). "or": the further branches of
-- `either`, of which the one that completed is taken. "item": what a map runs this workflow for, which the node around the
-- run holds in its `args`. `gap` says why there is no bare value: 'skipped' (the node has not completed, or is a workflow
-- that completed although its output node did not), 'not taken' (a branch), or 'no value' (it completed without a stored
-- result). In the alphabet of "C" that is their order, so max(gap) lets 'skipped' win.
LEFT JOIN around ON around.level = coalesce((a.source ->> 'up')::int, 0)
 CROSS JOIN LATERAL (
       SELECT CASE WHEN a.source ? 'or' THEN (
                        SELECT c.task_index
                          FROM unnest((a.source ->> 'at')::int || ARRAY(SELECT x::int FROM jsonb_array_elements_text(a.source -> 'or') AS x))
                               WITH ORDINALITY AS o (at, nth)
                         CROSS JOIN LATERAL (SELECT c.task_index, c.status, c.skip_reason FROM horsies_workflow_tasks c
                                              WHERE c.workflow_id = around.id AND c.task_index BETWEEN o.at AND o.at
                                              ORDER BY c.task_index LIMIT 1) AS c
                         ORDER BY c.status <> 'COMPLETED', c.skip_reason IS NOT DISTINCT FROM 'not_taken', o.nth LIMIT 1)
                   ELSE (a.source ->> 'at')::int END AS at) AS chosen
  LEFT JOIN LATERAL (
       (SELECT d.node_id, d.status, d.result, d.error, d.skip_reason FROM horsies_workflow_tasks d
         WHERE d.workflow_id = around.id AND d.task_index BETWEEN chosen.at AND chosen.at ORDER BY d.task_index LIMIT 1)
       UNION ALL
       (SELECT 'item', 'COMPLETED', '{"ok":' || p.args || '}', NULL, NULL FROM horsies_workflow_tasks p
         WHERE a.source ? 'item' AND p.workflow_id = around.parent_workflow_id
           AND p.task_index BETWEEN around.parent_task_index AND around.parent_task_index
         ORDER BY p.task_index LIMIT 1)) AS d ON true
 CROSS JOIN LATERAL (SELECT CASE WHEN a.source ->> 'bare' IS DISTINCT FROM 'true' THEN NULL
                                 WHEN d.skip_reason = 'not_taken' THEN 'not taken'
                                 WHEN d.status IS DISTINCT FROM 'COMPLETED' THEN 'skipped'
                                 WHEN d.result IS NULL THEN 'no value'
                                 WHEN d.result LIKE '{"ok":%' THEN NULL
                                 WHEN d.result::json -> 'ok' IS NULL THEN 'skipped' END COLLATE "C" AS gap) AS g

-- fragment: inner_run
-- The run of the graph in `target`, inside the run of the step. along_error: the run around it is paused.
child AS (
    INSERT INTO horsies_workflows (id, name, status, on_error, output_task_index, success_policy, definition_key,
                                   parent_workflow_id, parent_task_index, root_workflow_id, depth, sent_at, started_at,
                                   nodes_left, metadata, group_key, priority, release, error, unsettled)
    SELECT $3::varchar, t.graph ->> 'name', CASE WHEN $4::text IS NULL THEN 'RUNNING' ELSE 'PAUSED' END,
           t.graph ->> 'on_error', (t.graph ->> 'output')::int,
           CASE WHEN t.graph ->> 'success_policy' IS NOT NULL THEN (t.graph -> 'success_policy')::jsonb END,
           t.graph ->> 'definition_key', p.id, $2::int, coalesce(p.root_workflow_id, p.id), p.depth + 1, p.sent_at,
           statement_timestamp(), json_array_length(t.graph -> 'nodes'), p.metadata, coalesce(t.group_key, p.group_key),
           p.priority, p.release, $4::text, true
      FROM target t CROSS JOIN horsies_workflows p
     WHERE p.id = $1
    RETURNING id, priority
)

-- fragment: new_nodes
-- The nodes of the graph in `target`, for the run in `child`. `kwargs` of a node holds its arguments or, for a workflow or
-- map, its graph: an object, or its text in runs that an older client started. Both become the same text here. Such runs
-- have no `kind` either.
node AS (
    INSERT INTO horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, args, kwargs, queue_name,
           priority, dependencies, dependents, args_from, workflow_ctx_from, join_type, min_success, allow_failed_deps,
           task_options, max_retries, good_until, ttl, kind, sub_workflow_name, deps_left, status, metadata,
           group_key, signal_name, when_index, when_value, decides, compensate)
    SELECT gen_random_uuid()::text, child.id, (x.number - 1)::int, n.node_id, n.task_name, n.args, n.kwargs,
           n.queue_name, CASE WHEN n.own_priority IS TRUE THEN n.priority ELSE coalesce(child.priority, n.priority) END,
           n.dependencies, n.dependents, nullif(n.args_from, 'null'::jsonb), n.ctx_from,
           n.join_type, n.min_success, n.allow_failed, n.task_options, n.max_retries, n.good_until,
           make_interval(secs => n.ttl), coalesce(n.kind, CASE WHEN n.sub_name IS NULL THEN 'task'
                WHEN n.kwargs::json -> 'map' IS NULL THEN 'workflow' ELSE 'map' END), n.sub_name, cardinality(n.dependencies),
           CASE WHEN n.dependencies = '{}' AND n.when_index IS NULL THEN 'READY' ELSE 'PENDING' END,
           nullif(n.metadata, 'null'::jsonb), n.group_key, n.signal_name, n.when_index, n.when_value,
           coalesce(n.decides, '{}'), nullif(n.compensate, 'null'::jsonb)
      FROM child CROSS JOIN target t CROSS JOIN LATERAL json_array_elements(t.graph -> 'nodes') WITH ORDINALITY
           AS x (node, number)
     CROSS JOIN LATERAL json_to_record(x.node) AS n (node_id text, task_name text, args text, kwargs text,
           queue_name text, priority int, dependencies int[], dependents int[], args_from jsonb, ctx_from varchar[],
           join_type text, min_success int, allow_failed bool, task_options text, max_retries int,
           good_until timestamptz, ttl float8, sub_name text, kind text, metadata jsonb, group_key text,
           own_priority bool, signal_name text, when_index int, when_value bool, decides int[], compensate jsonb)
)

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
-- params: id, lock_wait
-- No lock is waited for longer than lock_wait in this transaction: another session's transaction that stays open would hold
-- up all other workflows of this worker. It is set here, because a statement of its own would cost each step a round trip.
-- `paused_along`: see lock_workflow_tree. `is_overdue`: its deadline has passed. `may_start`: it was to start later, and
-- that time has come.
SELECT id, name, status, on_error, nodes_left, parent_workflow_id, paused_inside, ends_as, ended_count, continues, depth, error,
       output_task_index,
       coalesce(deadline <= statement_timestamp(), false) AND ends_as IS NULL AS is_overdue,
       coalesce(start_at <= statement_timestamp(), false) AND depth = 0 AS may_start,
       status = 'PAUSED' AND (ends_as IS NOT NULL AND parent_workflow_id IS NOT NULL
           OR coalesce(error LIKE '{"err":{"error_code":"WORKFLOW_PAUSED","message":"the workflow '
                       'around it is paused%', false)) AS paused_along,
       success_policy::text AS success_policy
  FROM horsies_workflows
 WHERE id = $1 AND (SELECT set_config('lock_timeout', coalesce($2::text, current_setting('lock_timeout')), true)) IS NOT NULL
   FOR NO KEY UPDATE;

-- name: limit_lock_waits :one
-- params: lock_wait
-- For the rest of this transaction.
SELECT set_config('lock_timeout', coalesce($1::text, current_setting('lock_timeout')), true), pg_backend_pid() AS pid;

-- name: unlocked_workflows :many
-- params: ids
-- Those of these runs whose rows are not locked any more. A run that is gone counts as one: its step does nothing.
WITH free AS MATERIALIZED (
    SELECT w.id FROM unnest($1::text[]) AS x (id)
     CROSS JOIN LATERAL (SELECT w.id FROM horsies_workflows w WHERE w.id = x.id FOR NO KEY UPDATE SKIP LOCKED) AS w
)
SELECT id FROM free
UNION ALL
SELECT x.id FROM unnest($1::text[]) AS x (id)
 WHERE NOT EXISTS (SELECT FROM horsies_workflows w WHERE w.id = x.id);

-- name: workflow_holders :many
-- params: ids
-- The sessions whose open transactions have changed or locked one of these runs, a run inside one, or a task under way in
-- one. A row that several transactions have locked names none of them.
SELECT a.pid, a.usename::text AS role, a.application_name, statement_timestamp() - a.xact_start AS age,
       array_agg(DISTINCT x.id ORDER BY x.id) AS ids
  FROM unnest($1::text[]) AS x (id)
 CROSS JOIN LATERAL (
       (SELECT w.xmax FROM horsies_workflows w WHERE w.id = x.id LIMIT 1)
       UNION ALL
       (SELECT c.xmax FROM horsies_workflows c WHERE c.parent_workflow_id = x.id LIMIT 1000)
       UNION ALL
       (SELECT t.xmax FROM horsies_workflow_tasks n
         CROSS JOIN LATERAL (SELECT t.xmax FROM horsies_tasks t WHERE t.id = n.task_id LIMIT 1) AS t
         WHERE n.workflow_id = x.id AND n.status = 'ENQUEUED' LIMIT 1000)) AS touched
  JOIN pg_locks l ON l.locktype = 'transactionid' AND l.granted AND l.transactionid = touched.xmax
  JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE a.pid <> pg_backend_pid()
 GROUP BY a.pid, a.usename, a.application_name, a.xact_start
 ORDER BY a.pid;

-- name: settle_tasks :many
-- params: id, task_ids, lost_error, is_open, may_continue, stopped_error, ended_count
-- Ends the nodes whose tasks have ended; with task_ids NULL, checks all nodes under way. If a task's row is gone, its node
-- ends with lost_error: it would wait for ever. `is_retried`: the run was retried before this task had stopped
-- (retry_stopped_tasks). Unless the task completed or the run has ended again, its node does not end: it comes back as
-- ENQUEUED, for rerun_nodes. A task that returned Continue comes back as RUNNING, for launch_continued or continue_run; in a
-- run that is being stopped its node ends with stopped_error.
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
           t.former_node_id IS NOT NULL AND t.status <> 'COMPLETED' AND $4::bool AS runs_again,
           coalesce(t.status = 'COMPLETED' AND t.result LIKE '{"continue":%', false) AS continues,
           -- nodes that do not end here are counted last, so that no other end gets their places
           (row_number() OVER (ORDER BY coalesce(t.former_node_id IS NOT NULL AND t.status <> 'COMPLETED' AND $4::bool
                                                 OR t.status = 'COMPLETED' AND t.result LIKE '{"continue":%' AND $5::bool, false),
                                        t.terminal_at, c.task_index))::int AS nth
      FROM candidate c
      LEFT JOIN LATERAL (SELECT t.id, t.status, t.result, t.started_at, t.terminal_at, t.former_node_id
                           FROM horsies_tasks t WHERE t.id = c.task_id LIMIT 1) AS t ON true
     WHERE t.id IS NULL OR t.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
), settled AS (
    UPDATE horsies_workflow_tasks n
       SET result = CASE WHEN e.status = 'COMPLETED' AND NOT e.continues THEN e.result END,
           error = CASE WHEN e.status IS NULL THEN $3::text WHEN e.continues THEN $6::text
                        WHEN e.status <> 'COMPLETED' THEN e.result END,
           started_at = e.started_at, completed_at = coalesce(e.terminal_at, statement_timestamp()),
           updated_at = statement_timestamp(), ended_seq = $7::int + e.nth,
           status = CASE WHEN e.status = 'COMPLETED' AND NOT e.continues THEN 'COMPLETED' ELSE 'FAILED' END
      FROM ended e
     WHERE n.ctid = e.tid AND NOT e.runs_again AND NOT (e.continues AND $5::bool)
    RETURNING n.task_index, n.status, n.task_id, e.is_retried
)
SELECT task_index, status, task_id, is_retried FROM settled
UNION ALL
SELECT task_index, CASE WHEN runs_again THEN 'ENQUEUED' ELSE 'RUNNING' END, task_id, runs_again FROM ended
 WHERE runs_again OR (continues AND $5::bool);

-- name: rerun_nodes :many
-- params: id, indexes
-- Nodes whose tasks were stopped after the run had been retried: each waits again, and gets another task when what it
-- waits for has ended. They come back with their counts, as from count_down.
WITH target AS MATERIALIZED (
    SELECT n.tid, n.id, n.task_id, c.ended, c.ok, c.void FROM unnest($2::int[]) AS x (at)
     CROSS JOIN LATERAL (SELECT n.ctid AS tid, n.id, n.task_id, n.dependencies FROM horsies_workflow_tasks n
                          WHERE n.workflow_id = $1 AND n.task_index BETWEEN x.at AND x.at
                            AND n.status || '' = 'ENQUEUED' ORDER BY n.task_index LIMIT 1) AS n
     CROSS JOIN LATERAL (SELECT count(*)::int AS ended, count(*) FILTER (WHERE d.status = 'COMPLETED')::int AS ok,
                                count(*) FILTER (WHERE d.skip_reason = 'not_taken')::int AS void
                           FROM unnest(n.dependencies) AS y (at)
                          CROSS JOIN LATERAL (SELECT d.status, d.skip_reason FROM horsies_workflow_tasks d
                                               WHERE d.workflow_id = $1 AND d.task_index BETWEEN y.at AND y.at
                                               ORDER BY d.task_index LIMIT 1) AS d
                          WHERE d.status IN ('COMPLETED', 'FAILED', 'SKIPPED')) AS c
), detached AS (
    UPDATE horsies_tasks t SET is_workflow_task = false, updated_at = statement_timestamp()
      FROM target WHERE t.id = target.task_id
)
UPDATE horsies_workflow_tasks n
   SET task_id = NULL, deps_left = CASE WHEN n.allow_failed_deps AND n.dependencies = '{}' THEN (
           -- `then` of a batch: the nodes that name it
           SELECT count(*) FROM horsies_workflow_tasks o WHERE o.workflow_id = $1 AND n.task_index = ANY (o.dependents)
              AND o.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED')) ELSE cardinality(n.dependencies) - target.ended END,
       deps_ok = target.ok, deps_void = target.void, updated_at = statement_timestamp(), status = 'PENDING'
  FROM target WHERE n.ctid = target.tid
RETURNING {{counts}}, {{when_state}} AS when_state, n.deps_left > 0 AND {{is_context_open}} AS context_open;

-- name: keep_tasks :many
-- params: task_ids
-- Tasks that ended their nodes although the run had been retried before they ended: they are no former tasks.
UPDATE horsies_tasks t SET former_node_id = NULL, updated_at = statement_timestamp()
 WHERE t.id = ANY ($1::text[]) AND t.is_workflow_task
RETURNING t.id;

-- name: settle_children :many
-- params: id, error_head, child_ids, ended_count
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
    SELECT n.tid, c.id, c.status, c.result, c.error, c.completed_at,
           (row_number() OVER (ORDER BY c.completed_at, c.id))::int AS nth FROM candidate n
     CROSS JOIN LATERAL (SELECT c.id, c.status, c.result, c.error, c.completed_at FROM horsies_workflows c
                          WHERE c.id = n.sub_workflow_id AND c.status || '' IN ('COMPLETED', 'FAILED', 'CANCELLED')
                          LIMIT 1) AS c
), told AS (
    -- a whole check also forgets ends for which no node waits any more
    UPDATE horsies_workflows c SET unsettled = false
     WHERE c.id = ANY (ARRAY(SELECT e.id FROM ended e
                             UNION ALL
                             SELECT x.id FROM horsies_workflows x
                              WHERE $3::text[] IS NULL AND x.parent_workflow_id = $1 AND x.unsettled
                                AND x.completed_at IS NOT NULL))
)
UPDATE horsies_workflow_tasks n
   SET result = CASE WHEN e.status = 'COMPLETED' THEN e.result END,
       error = CASE WHEN e.status <> 'COMPLETED' THEN
                    $2::text || coalesce(e.error, 'null') || '}}' END,
       completed_at = e.completed_at, updated_at = statement_timestamp(), ended_seq = $4::int + e.nth,
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
-- params: id, indexes, statuses, errors, reasons
-- Nodes that end without having run: skipped for a reason, or failed because they cannot be enqueued.
WITH ended AS MATERIALIZED (
    SELECT n.tid, x.status, x.error, x.reason
      FROM unnest($2::int[], $3::text[], $4::text[], $5::text[]) AS x (at, status, error, reason)
     CROSS JOIN LATERAL (SELECT n.ctid AS tid FROM horsies_workflow_tasks n
                          WHERE n.workflow_id = $1 AND n.task_index BETWEEN x.at AND x.at
                            AND n.status || '' IN ('PENDING', 'READY') ORDER BY n.task_index LIMIT 1) AS n
)
UPDATE horsies_workflow_tasks n
   SET error = e.error, skip_reason = e.reason, completed_at = statement_timestamp(), updated_at = statement_timestamp(),
       status = e.status
  FROM ended e
 WHERE n.ctid = e.tid
RETURNING n.task_index, n.status, n.skip_reason;

-- name: count_down :many
-- params: id, indexes, completed, void
-- Counts down the waiting dependents of nodes that have ended, and returns them with their counts. Each node ends once,
-- under the workflow's lock, so the counts are exact. `void`: a branch that was not taken; its edges leave the joins. Nodes
-- that an ended one decides on come back too: such an edge is none of the join. `is_still`: nothing else is under way. `context_open`: a node in workflow_ctx_from has not ended. Those
-- nodes are dependencies too, so the end of each is counted here; only `any` and `quorum` joins can be met before. If the
-- context names every dependency, deps_left answers it without reading each node.
WITH gone AS MATERIALIZED (
    SELECT d.at, count(*) FILTER (WHERE d.counts)::int AS ended, count(*) FILTER (WHERE d.counts AND x.ok)::int AS ok,
           count(*) FILTER (WHERE d.counts AND x.void)::int AS void
      FROM unnest($2::int[], $3::bool[], $4::bool[]) AS x (at, ok, void)
     CROSS JOIN LATERAL (SELECT n.dependents, n.decides FROM horsies_workflow_tasks n
                          WHERE n.workflow_id = $1 AND n.task_index BETWEEN x.at AND x.at
                          ORDER BY n.task_index LIMIT 1) AS n
     CROSS JOIN LATERAL (SELECT d.at, true FROM unnest(n.dependents) AS d (at)
                         UNION ALL SELECT d.at, false FROM unnest(n.decides) AS d (at)) AS d (at, counts)
     GROUP BY d.at
), waiting AS MATERIALIZED (
    SELECT n.tid, g.ended, g.ok, g.void FROM gone g
     CROSS JOIN LATERAL (SELECT n.ctid AS tid FROM horsies_workflow_tasks n
                          WHERE n.workflow_id = $1 AND n.task_index BETWEEN g.at AND g.at
                            AND n.status || '' = 'PENDING' ORDER BY n.task_index LIMIT 1) AS n
), counted AS (
    UPDATE horsies_workflow_tasks n
       SET deps_left = n.deps_left - w.ended, deps_ok = n.deps_ok + w.ok, deps_void = n.deps_void + w.void
      FROM waiting w
     WHERE n.ctid = w.tid
    RETURNING {{counts}}, {{when_state}} AS when_state,
              n.join_type <> 'all' AND n.workflow_ctx_from IS NOT NULL AND n.deps_left > 0
              AND n.deps_ok >= coalesce(n.min_success, 1)
              AND (cardinality(n.workflow_ctx_from) = cardinality(n.dependencies)
                   OR {{is_context_open}}) AS context_open
), workflow AS (
    UPDATE horsies_workflows w SET nodes_left = greatest(0, w.nodes_left - cardinality($2::int[])),
           ended_count = w.ended_count + cardinality($2::int[]), updated_at = statement_timestamp() WHERE w.id = $1
    RETURNING w.nodes_left
)
SELECT workflow.nodes_left, workflow.nodes_left > 0 AND NOT (
           EXISTS (SELECT FROM horsies_workflow_tasks n WHERE n.workflow_id = $1 AND n.status IN ('READY', 'ENQUEUED', 'RUNNING'))
           OR EXISTS (SELECT FROM horsies_workflow_tasks n WHERE n.workflow_id = $1 AND n.status = 'WAITING')) AS is_still,
       counted.* FROM workflow LEFT JOIN counted ON true;

-- name: ready_nodes :many
-- params: id, row_limit
SELECT task_index, kind, sub_workflow_id FROM horsies_workflow_tasks
 WHERE workflow_id = $1 AND status = 'READY' ORDER BY task_index LIMIT $2;

-- name: live_nodes :many
-- params: id
SELECT task_index FROM horsies_workflow_tasks
 WHERE workflow_id = $1 AND status IN ('READY', 'ENQUEUED', 'RUNNING')
UNION ALL
SELECT task_index FROM horsies_workflow_tasks WHERE workflow_id = $1 AND status = 'WAITING'
 LIMIT 1;

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
SELECT {{counts}}, {{when_state}} AS when_state, false AS context_open
  FROM horsies_workflow_tasks n WHERE n.workflow_id = $1 AND n.status IN ('PENDING', 'READY') ORDER BY n.task_index;

-- name: undecided_nodes :many
-- params: id
-- Nodes that wait although what they wait for may have ended: after a retry, which leaves that to the next step, and the
-- first nodes of a run that was to start later.
SELECT {{counts}}, {{when_state}} AS when_state, n.deps_left > 0 AND {{is_context_open}} AS context_open
  FROM horsies_workflow_tasks n WHERE n.workflow_id = $1 AND n.status = 'PENDING'
   AND (n.deps_left = 0 OR n.when_index IS NOT NULL OR n.deps_left < cardinality(n.dependencies))
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
-- with 'no value' of the source `missing`. A context has the results of its sources, and under "", which no node is
-- called, how the nodes of the workflows among them ended.
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
           SELECT max(g.gap) AS gap, min(d.node_id::text) FILTER (WHERE g.gap = 'no value') AS missing,
                  string_agg(to_json(a.parameter)::text || ':' || CASE
                      WHEN a.source ? 'meta' THEN json_build_object('workflow_id', $1::text,
                           'workflow_name', (SELECT around.name FROM around WHERE around.level = 0),
                           'node_id', target.node_id, 'task_index', target.task_index)::text
                      WHEN a.source ? 'ctx' THEN '{"workflow_id":' || to_json($1::text) || ',"node_id":'
                           || to_json(target.node_id) || ',"results":{' || (
                           SELECT coalesce(string_agg(to_json(c.node_id)::text || ':' || coalesce(c.result, c.error,
                                  CASE WHEN c.status IN ('COMPLETED', 'FAILED', 'SKIPPED') THEN $6::text ELSE $4::text END
                                  ), ','), '')
                                  || coalesce(',"":{' || string_agg(to_json(c.node_id)::text || ':' || s.text, ',')
                                              FILTER (WHERE s.text IS NOT NULL) || '}', '')
                             FROM unnest(target.workflow_ctx_from) AS u (node_id)
                            CROSS JOIN LATERAL (SELECT c.node_id, c.status, c.result, c.error, c.sub_workflow_id
                                                  FROM horsies_workflow_tasks c
                                                 WHERE c.workflow_id = $1 AND c.node_id = u.node_id LIMIT 1) AS c
                             LEFT JOIN LATERAL (
                                  SELECT json_build_object('status', r.status, 'total', count(*),
                                         'completed', count(*) FILTER (WHERE x.status = 'COMPLETED'),
                                         'failed', count(*) FILTER (WHERE x.status = 'FAILED'),
                                         'skipped', count(*) FILTER (WHERE x.status = 'SKIPPED'))::text AS text
                                    FROM horsies_workflows r JOIN horsies_workflow_tasks x ON x.workflow_id = r.id
                                   WHERE c.sub_workflow_id IS NOT NULL AND r.id = c.sub_workflow_id
                                     AND x.compensates IS NULL
                                   GROUP BY r.id) AS s ON true) || '}}'
                      WHEN a.source ? 'batch' THEN (
                           SELECT json_build_object('batch_id', $1::text, 'total', count(*),
                                  'completed', count(*) FILTER (WHERE n.status = 'COMPLETED'),
                                  'failed', count(*) FILTER (WHERE n.status = 'FAILED' AND NOT {{is_cancelled}}),
                                  'cancelled', count(*) FILTER (WHERE {{is_cancelled}}))::text
                             FROM horsies_workflow_tasks n
                            WHERE n.workflow_id = $1 AND n.task_index > target.task_index)
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
SELECT t.task_index, max(g.gap) AS outcome, min(d.node_id::text) FILTER (WHERE g.gap = 'no value') AS missing
  FROM target t CROSS JOIN LATERAL jsonb_each(t.args_from) AS a (parameter, source)
  {{sources}}
 WHERE g.gap IS NOT NULL
 GROUP BY t.task_index;

-- name: launch_workflow :many
-- params: id, index, child_id, along_error
-- Turns the graph of a workflow node into rows; the node has kept it since the run began. The inner run has the group of
-- the node, else of the run.
WITH target AS MATERIALIZED (
    SELECT n.id, n.kwargs::json AS graph, n.group_key FROM horsies_workflow_tasks n
     WHERE n.workflow_id = $1 AND n.task_index = $2 AND n.status IN ('PENDING', 'READY') AND n.kind = 'workflow' FOR UPDATE
), {{inner_run}}, {{new_nodes}}, {{launched}}
SELECT 'launched' AS outcome FROM target;

-- name: launch_continued :many
-- params: id, index, child_id, along_error
-- The task of this node returned Continue: the graph in its result becomes a run in the node's place.
WITH target AS MATERIALIZED (
    SELECT n.id, t.result::json -> 'continue' AS graph, n.group_key
      FROM horsies_workflow_tasks n JOIN horsies_tasks t ON t.id = n.task_id
     WHERE n.workflow_id = $1 AND n.task_index = $2 AND n.status = 'ENQUEUED' FOR UPDATE OF n
), {{inner_run}}, {{new_nodes}}, {{launched}}
SELECT 'launched' AS outcome FROM target;

-- name: archive_run :many
-- params: id, index, archive_id
-- The output's task returned Continue and nothing else is open: the run goes on under its id with other nodes. What it was
-- until now becomes an ended run of its own, which belongs to this one (`root_workflow_id`, `continued_from`).
WITH archive AS (
    INSERT INTO horsies_workflows (id, name, status, on_error, output_task_index, success_policy, definition_key,
                                   root_workflow_id, sent_at, created_at, started_at, completed_at, metadata, group_key,
                                   priority, release, fingerprint, continues, continued_from, ended_count)
    SELECT $3::varchar, w.name, 'COMPLETED', w.on_error, w.output_task_index, w.success_policy, w.definition_key,
           coalesce(w.root_workflow_id, w.id), w.sent_at, w.created_at, w.started_at, statement_timestamp(), w.metadata,
           w.group_key, w.priority, w.release, w.fingerprint, w.continues, w.continued_from, w.ended_count
      FROM horsies_workflows w WHERE w.id = $1
)
UPDATE horsies_workflow_tasks n
   SET result = t.result, started_at = t.started_at, completed_at = t.terminal_at, updated_at = statement_timestamp(),
       ended_seq = w.ended_count + 1, status = 'COMPLETED'
  FROM horsies_workflows w, horsies_tasks t
 WHERE w.id = $1 AND n.workflow_id = $1 AND n.task_index = $2 AND n.status = 'ENQUEUED' AND t.id = n.task_id
RETURNING n.task_index;

-- name: move_to_archive :many
-- params: id, archive_id
-- The nodes of the run, and the ended runs inside it, which stand at the depth of the archive.
WITH RECURSIVE tree AS (
    SELECT c.id FROM horsies_workflows c WHERE c.parent_workflow_id = $1
    UNION
    SELECT c.id FROM tree JOIN horsies_workflows c ON c.parent_workflow_id = tree.id
), moved AS (
    UPDATE horsies_workflows c
       SET parent_workflow_id = CASE WHEN c.parent_workflow_id = $1 THEN $2::varchar ELSE c.parent_workflow_id END,
           depth = c.depth - w.depth
      FROM tree, horsies_workflows w WHERE c.id = tree.id AND w.id = $1
)
UPDATE horsies_workflow_tasks n SET workflow_id = $2::varchar WHERE n.workflow_id = $1
RETURNING n.task_index;

-- name: continue_run :many
-- params: id, archive_id
-- The run keeps its name, by which it was started and is looked for.
WITH target AS MATERIALIZED (
    SELECT t.result::json -> 'continue' AS graph FROM horsies_workflows a
      JOIN horsies_workflow_tasks n ON n.workflow_id = a.id AND n.task_index = a.output_task_index
      JOIN horsies_tasks t ON t.id = n.task_id
     WHERE a.id = $2
), child AS (
    UPDATE horsies_workflows w
       SET on_error = t.graph ->> 'on_error', output_task_index = (t.graph ->> 'output')::int,
           success_policy = CASE WHEN t.graph ->> 'success_policy' IS NOT NULL THEN (t.graph -> 'success_policy')::jsonb END,
           definition_key = t.graph ->> 'definition_key', nodes_left = json_array_length(t.graph -> 'nodes'),
           continues = w.continues + 1, continued_from = $2::varchar, ended_count = 0, updated_at = statement_timestamp()
      FROM target t WHERE w.id = $1
    RETURNING w.id, w.priority, w.nodes_left
), {{new_nodes}}
SELECT nodes_left FROM child;

-- name: reopen_child :many
-- params: id, index
-- Continues the workflow of a retried node, now that the node is ready. If that workflow has ended (it had, when the run
-- around it was cancelled), the next step settles it, which `unsettled` does not let be lost. No row back: the node has no
-- workflow. The clock is for a step that
-- is lost: the nodes inside are PENDING, and nothing else would find them.
WITH target AS MATERIALIZED (
    SELECT n.id, c.id AS child_id, c.status FROM horsies_workflow_tasks n JOIN horsies_workflows c ON c.id = n.sub_workflow_id
     WHERE n.workflow_id = $1 AND n.task_index = $2 AND n.status IN ('PENDING', 'READY')
       FOR UPDATE OF n
), child AS (
    UPDATE horsies_workflows c
       SET updated_at = statement_timestamp(), unsettled = true,
           wake_at = CASE WHEN c.status = 'PENDING' THEN statement_timestamp() END,
           status = CASE WHEN c.status = 'PENDING' THEN 'RUNNING' ELSE c.status END
      FROM target t WHERE c.id = t.child_id
), moved AS (
    UPDATE horsies_workflow_tasks n
       SET started_at = statement_timestamp(), updated_at = statement_timestamp(), status = 'RUNNING'
      FROM target t WHERE n.id = t.id
)
SELECT child_id, status FROM target;

-- name: launch_map :many
-- params: id, index, child_id, items
-- One node per item of the upstream's list, in a workflow of their own whose result is the list of their results. The
-- items are cut out of the stored text in the database; the worker does not read them, unless a payload codec has encoded
-- the list: then `items` has them, each encoded by itself. Workers of older releases tell such
-- a workflow by its definition_key. The items' tasks have the group of this inner run: that of the node, else of the run.
WITH target AS MATERIALIZED (
    SELECT n.id, n.sub_workflow_name, n.kwargs::json -> 'map' AS pattern, n.group_key, d.result FROM horsies_workflow_tasks n
      LEFT JOIN LATERAL (
           WITH RECURSIVE {{around}}
           SELECT d.result FROM (SELECT n.args_from -> '*' AS source) AS a {{sources}}) AS d ON true
     WHERE n.workflow_id = $1 AND n.task_index = $2 AND n.status IN ('PENDING', 'READY') AND n.kind = 'map'
       FOR UPDATE OF n
), fit AS MATERIALIZED (
    SELECT t.*, l.items, json_array_length(l.items) AS width FROM target t
     CROSS JOIN LATERAL (SELECT coalesce($4::json, t.result::json -> 'ok') AS items OFFSET 0) AS l
     WHERE json_typeof(l.items) = 'array'
), child AS (
    INSERT INTO horsies_workflows (id, name, status, definition_key, parent_workflow_id, parent_task_index,
                                   root_workflow_id, depth, sent_at, started_at, nodes_left, metadata, group_key,
                                   success_policy, priority, release, unsettled)
    SELECT $3::varchar, f.sub_workflow_name, 'RUNNING', 'map', p.id, $2::int, coalesce(p.root_workflow_id, p.id),
           p.depth + 1, p.sent_at, statement_timestamp(), f.width, p.metadata, coalesce(f.group_key, p.group_key),
           CASE WHEN f.pattern ->> 'partial' = 'true' THEN '{"partial": true}'::jsonb END, p.priority, p.release, true
      FROM fit f CROSS JOIN horsies_workflows p
     WHERE p.id = $1 AND f.width <= (f.pattern ->> 'max_width')::int
    RETURNING id, priority
), node AS (
    -- a workflow per item keeps the item in `args`
    INSERT INTO horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, args, kwargs, queue_name,
           priority, args_from, task_options, max_retries, good_until, ttl, status, metadata, compensate, kind,
           sub_workflow_name)
    SELECT gen_random_uuid()::text, child.id, (x.number - 1)::int, 'item-' || (x.number - 1),
           coalesce(n.graph ->> 'name', n.task_name), CASE WHEN n.graph IS NULL THEN n.args ELSE x.item::text END,
           CASE WHEN n.graph IS NULL THEN
                '{' || concat_ws(',', nullif(left(substr(n.kwargs, 2), -1), ''), to_json(n.parameter)::text || ':' || x.item::text)
                || '}' ELSE n.graph::text END,
           coalesce(n.queue_name, 'default'),
           CASE WHEN n.own_priority IS TRUE THEN n.priority ELSE coalesce(child.priority, n.priority, 100) END,
           nullif(n.args_from, 'null'::jsonb), n.task_options, coalesce(n.max_retries, 0), n.good_until,
           make_interval(secs => n.ttl), 'READY', nullif(n.metadata, 'null'::jsonb),
           nullif(n.compensate, 'null'::jsonb), CASE WHEN n.graph IS NULL THEN 'task' ELSE 'workflow' END,
           n.graph ->> 'name'
      FROM child CROSS JOIN fit f
     CROSS JOIN LATERAL json_to_record(f.pattern) AS n (task_name text, args text, kwargs text, queue_name text,
           priority int, args_from jsonb, task_options text, max_retries int, good_until timestamptz, ttl float8,
           parameter text, metadata jsonb, own_priority bool, compensate jsonb, graph json)
     CROSS JOIN LATERAL json_array_elements(f.items) WITH ORDINALITY AS x (item, number)
), {{launched}}
SELECT CASE WHEN t.pattern ->> 'max_width' IS NULL THEN 'no width' WHEN f.width IS NULL THEN 'not a list' WHEN f.width > (t.pattern ->> 'max_width')::int THEN 'too wide' ELSE 'launched' END AS outcome,
       f.width, (t.pattern ->> 'max_width')::int AS max_width
  FROM target t LEFT JOIN fit f ON f.id = t.id;

-- name: encoded_list :many
-- params: id, index
-- The list of a map, if a payload codec has encoded it.
SELECT substr(d.result, 7, length(d.result) - 7) AS value FROM horsies_workflow_tasks n
 CROSS JOIN LATERAL (
       WITH RECURSIVE {{around}}
       SELECT d.result FROM (SELECT n.args_from -> '*' AS source) AS a {{sources}}) AS d
 WHERE n.workflow_id = $1 AND n.task_index = $2 AND n.kind = 'map' AND d.result LIKE '{"ok":{%'
   AND d.result::json -> 'ok' ->> 'horsies.encoded' IS NOT NULL;

-- name: encoded_conditions :many
-- params: id, indexes
-- Values that a payload codec has encoded, of nodes that decide whether others run. Those of signals were jsonb, which
-- orders their members in its own way.
SELECT n.task_index, n.node_id, n.result FROM unnest($2::int[]) AS x (at)
 CROSS JOIN LATERAL (SELECT n.task_index, n.node_id, n.result, n.decides FROM horsies_workflow_tasks n
                      WHERE n.workflow_id = $1 AND n.task_index BETWEEN x.at AND x.at ORDER BY n.task_index LIMIT 1) AS n
 WHERE n.decides <> '{}' AND n.result LIKE '{"ok":{%"horsies.encoded"%';

-- name: store_conditions :many
-- params: id, indexes, results
-- The same values decoded, for when_state. The workflow is locked, and the nodes have ended.
WITH decided AS MATERIALIZED (
    SELECT n.tid, x.result FROM unnest($2::int[], $3::text[]) AS x (at, result)
     CROSS JOIN LATERAL (SELECT n.ctid AS tid FROM horsies_workflow_tasks n
                          WHERE n.workflow_id = $1 AND n.task_index BETWEEN x.at AND x.at
                            AND n.status || '' = 'COMPLETED' ORDER BY n.task_index LIMIT 1) AS n
)
UPDATE horsies_workflow_tasks n SET result = d.result FROM decided d WHERE n.ctid = d.tid
RETURNING n.task_index;

-- name: finish_facts :many
-- params: id, policy, row_limit
-- For the last step: the status of every node that the success policy names, the first failed nodes, and their number.
SELECT n.task_index, n.node_id, n.status, NULL AS error, NULL::bigint AS failed_count FROM unnest($2::int[]) AS x (at)
 CROSS JOIN LATERAL (SELECT n.task_index, n.node_id, n.status FROM horsies_workflow_tasks n
                      WHERE n.workflow_id = $1 AND n.task_index BETWEEN x.at AND x.at ORDER BY n.task_index LIMIT 1) AS n
 WHERE n.status <> 'FAILED'
UNION ALL
SELECT * FROM (SELECT n.task_index, n.node_id, n.status, left(n.error, 2000), count(*) OVER () FROM horsies_workflow_tasks n
                WHERE n.workflow_id = $1 AND n.status = 'FAILED' AND n.compensates IS NULL
                ORDER BY n.task_index LIMIT $3) AS failed
 ORDER BY task_index;

-- name: paused_inside :one
-- params: id
-- Whether another node of this run is under way, and the first workflow inside it that is paused.
SELECT EXISTS (SELECT FROM horsies_workflow_tasks n WHERE n.workflow_id = $1 AND n.status IN ('READY', 'ENQUEUED'))
       OR EXISTS (SELECT FROM horsies_workflow_tasks n WHERE n.workflow_id = $1 AND n.status = 'WAITING')
       OR EXISTS (SELECT FROM horsies_workflow_tasks n
                   CROSS JOIN LATERAL (SELECT c.status FROM horsies_workflows c WHERE c.id = n.sub_workflow_id LIMIT 1) AS c
                   WHERE n.workflow_id = $1 AND n.status = 'RUNNING' AND c.status <> 'PAUSED') AS can_move,
       p.node_id, p.child_id, p.error
  FROM (SELECT 1) AS one
  LEFT JOIN LATERAL (
       SELECT n.node_id, c.id AS child_id, left(c.error, 20000) AS error FROM horsies_workflow_tasks n
        CROSS JOIN LATERAL (SELECT c.id, c.error FROM horsies_workflows c
                             WHERE c.id = n.sub_workflow_id AND c.status || '' = 'PAUSED' LIMIT 1) AS c
        WHERE n.workflow_id = $1 AND n.status = 'RUNNING' ORDER BY n.task_index LIMIT 1) AS p ON true;

-- name: note_paused_inside :many
-- params: id, is_paused_inside, status, error
-- Records that a workflow inside this run is paused, or no longer. The run is PAUSED while no other node is under way; it
-- has no waiting tasks then, so none is withdrawn.
UPDATE horsies_workflows w
   SET paused_inside = $2, error = CASE WHEN w.ends_as IS NOT NULL THEN w.error WHEN $3::varchar = 'PAUSED' THEN $4::text END,
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
                      WHERE n.workflow_id = w.id AND n.status || '' = 'FAILED' AND n.compensates IS NULL
                      ORDER BY n.task_index LIMIT 1) AS n
 WHERE w.id = $1;

-- name: finish_workflow :one
-- params: id, status, error, max_bytes, too_large, not_taken, not_available
-- The result is that of the output node; a branch that was not taken has none. The result of a map is the list of its
-- nodes' values; if one is missing, the map has no result instead of a shorter list. That of a partial map is the list of
-- their results, ok and err.
WITH output AS MATERIALIZED (
    SELECT CASE WHEN w.success_policy ->> 'partial' = 'true' THEN (
                     SELECT '{"ok":[' || coalesce(string_agg(coalesce(n.result, n.error, $7::text), ',' ORDER BY n.task_index), '') || ']}'
                       FROM horsies_workflow_tasks n WHERE n.workflow_id = w.id AND n.compensates IS NULL)
                WHEN {{is_map}} THEN (
                     SELECT CASE WHEN bool_and(v.text IS NOT NULL) IS NOT FALSE
                                 THEN '{"ok":[' || coalesce(string_agg(v.text, ',' ORDER BY v.task_index), '') || ']}' END
                       FROM (SELECT n.task_index, CASE WHEN n.result LIKE '{"ok":%'
                                                       THEN substr(n.result, 7, length(n.result) - 7)
                                                       ELSE (n.result::json -> 'ok')::text END AS text
                               FROM horsies_workflow_tasks n WHERE n.workflow_id = w.id) AS v)
                WHEN w.output_task_index IS NULL THEN '{"ok":null}'
                ELSE (SELECT coalesce(n.result, CASE WHEN n.skip_reason = 'not_taken' THEN $6::text END, n.error)
                        FROM horsies_workflow_tasks n
                       WHERE n.workflow_id = w.id AND n.task_index = w.output_task_index) END AS text
      FROM horsies_workflows w WHERE w.id = $1 AND $2::text = 'COMPLETED'
)
UPDATE horsies_workflows w
   SET result = CASE WHEN octet_length(o.text) <= $4 THEN o.text END,
       error = CASE WHEN octet_length(o.text) > $4 THEN $5::text ELSE $3::text END,
       completed_at = statement_timestamp(), updated_at = statement_timestamp(), wake_at = NULL, ends_as = NULL,
       status = CASE WHEN octet_length(o.text) > $4 THEN 'FAILED' ELSE $2::varchar END
  FROM (SELECT (SELECT text FROM output) AS text) AS o
 WHERE w.id = $1 AND w.status = 'RUNNING'
RETURNING w.id, w.status;

-- name: unadvanced_workflows :many
-- params: grace, row_limit
-- Workflows that stopped half-way for longer than the grace: ready nodes that were not enqueued, ends of tasks that were not
-- applied, tasks that are gone, a last node without a last step, ends and pauses of workflows inside, signals that no step
-- has seen. It starts from those, never from live runs, so that runs that wait cost nothing here. The longest untouched come
-- first; updated_at is set here, so that runs that cannot be continued do not hide the others. A locked workflow is being
-- advanced, and is skipped.
WITH found AS MATERIALIZED (
    -- the order is that of the index: a plan that is made on empty tables would take another one
    (SELECT n.workflow_id AS id FROM horsies_workflow_tasks n
      WHERE n.status = 'READY' AND n.updated_at < statement_timestamp() - $1::interval
        AND (SELECT w.status FROM horsies_workflows w WHERE w.id = n.workflow_id) = 'RUNNING'
      ORDER BY n.updated_at LIMIT 100000)
    UNION ALL
    (SELECT n.workflow_id FROM horsies_workflow_tasks n
       LEFT JOIN LATERAL (SELECT t.id, t.terminal_at FROM horsies_tasks t WHERE t.id = n.task_id LIMIT 1) AS t ON true
      WHERE n.status = 'ENQUEUED' AND n.updated_at < statement_timestamp() - $1::interval
        AND (t.id IS NULL OR t.terminal_at < statement_timestamp() - $1::interval)
      ORDER BY n.updated_at LIMIT 100000)
    UNION ALL
    SELECT w.id FROM horsies_workflows w
     -- not an equality: a plan that is made on an empty table could go through the index of all live runs
     WHERE w.nodes_left = 0 AND w.completed_at IS NULL AND w.status || '' = 'RUNNING'
       AND w.updated_at < statement_timestamp() - $1::interval
    UNION ALL
    SELECT c.parent_workflow_id FROM horsies_workflows c
     WHERE c.unsettled AND c.completed_at < statement_timestamp() - $1::interval
    UNION ALL
    SELECT g.workflow_id FROM horsies_workflow_signals g
     WHERE NOT g.noticed AND g.created_at < statement_timestamp() - $1::interval
    UNION ALL
    -- a paused workflow inside that the run around has not heard of, and a run that has not heard that it goes on
    SELECT CASE WHEN w.paused_inside THEN w.id ELSE w.parent_workflow_id END FROM horsies_workflows w
     WHERE w.status = 'PAUSED' AND w.updated_at < statement_timestamp() - $1::interval
       AND CASE WHEN w.paused_inside
                THEN (SELECT count(*) FROM horsies_workflow_tasks n
                       CROSS JOIN LATERAL (SELECT c.status FROM horsies_workflows c WHERE c.id = n.sub_workflow_id LIMIT 1) AS c
                       WHERE n.workflow_id = w.id AND n.status = 'RUNNING' AND c.status = 'PAUSED') = 0
                ELSE (SELECT p.status = 'RUNNING' AND NOT p.paused_inside FROM horsies_workflows p
                       WHERE p.id = w.parent_workflow_id) END
), halted AS MATERIALIZED (
    SELECT w.ctid AS tid FROM horsies_workflows w
     WHERE w.id = ANY (ARRAY(SELECT DISTINCT found.id FROM found)) AND w.status || '' IN ('RUNNING', 'PAUSED', 'PENDING')
       AND w.updated_at < statement_timestamp() - $1::interval
     ORDER BY w.updated_at LIMIT $2 FOR NO KEY UPDATE OF w SKIP LOCKED
)
UPDATE horsies_workflows w SET updated_at = statement_timestamp() FROM halted WHERE w.ctid = halted.tid
RETURNING w.id;

-- name: unsettled_stopped_workflows :many
-- params: grace, row_limit
-- Workflows that were stopped while one of their tasks ran, and whose node has not been ended with it.
SELECT DISTINCT stopped.id FROM (
    SELECT n.workflow_id AS id FROM horsies_workflow_tasks n
     CROSS JOIN LATERAL (SELECT w.completed_at FROM horsies_workflows w WHERE w.id = n.workflow_id LIMIT 1) AS w
      LEFT JOIN LATERAL (SELECT t.id, t.terminal_at FROM horsies_tasks t WHERE t.id = n.task_id LIMIT 1) AS t ON true
     WHERE n.status = 'ENQUEUED' AND w.completed_at < statement_timestamp() - $1::interval
       AND (t.id IS NULL OR t.terminal_at < statement_timestamp() - $1::interval)
     ORDER BY n.updated_at LIMIT $2) AS stopped;

-- name: ended_workflows :many
-- params: ids
SELECT id FROM horsies_workflows WHERE id = ANY ($1::text[]) AND completed_at IS NOT NULL;

-- name: notice_signals :many
-- params: id
UPDATE horsies_workflow_signals s SET noticed = true WHERE s.workflow_id = $1 AND NOT s.noticed
RETURNING s.id;

-- name: consume_signals :many
-- params: id, ended_count
-- Gives signals to nodes that wait for their names: the oldest signal to the first node, one to each.
WITH waiting AS MATERIALIZED (
    SELECT n.ctid AS tid, n.id, n.task_index, n.signal_name,
           row_number() OVER (PARTITION BY n.signal_name ORDER BY n.task_index) AS nth
      FROM horsies_workflow_tasks n WHERE n.workflow_id = $1 AND n.status = 'WAITING' AND n.kind = 'signal'
), matched AS MATERIALIZED (
    SELECT w.tid, w.id AS node_id, w.task_index, s.id AS signal_id, s.value,
           (row_number() OVER (ORDER BY s.created_at, w.task_index))::int AS place
      FROM (SELECT signal_name, count(*) AS width FROM waiting GROUP BY signal_name) AS wanted
     CROSS JOIN LATERAL (
           SELECT s.id, s.value, s.created_at, row_number() OVER (ORDER BY s.created_at, s.id) AS nth FROM (
               SELECT s.id, s.value, s.created_at FROM horsies_workflow_signals s
                WHERE s.workflow_id = $1 AND s.name = wanted.signal_name AND s.consumed_at IS NULL
                ORDER BY s.created_at, s.id LIMIT wanted.width) AS s) AS s
      JOIN waiting w ON w.signal_name = wanted.signal_name AND w.nth = s.nth
), consumed AS (
    UPDATE horsies_workflow_signals s
       SET consumed_by = m.node_id, consumed_at = statement_timestamp(), noticed = true
      FROM matched m WHERE s.id = m.signal_id
)
UPDATE horsies_workflow_tasks n
   SET result = '{"ok":' || m.value || '}', completed_at = statement_timestamp(), updated_at = statement_timestamp(),
       wake_at = NULL, ended_seq = $2::int + m.place, status = 'COMPLETED'
  FROM matched m WHERE n.ctid = m.tid
RETURNING n.task_index, n.status;

-- name: start_waits :many
-- params: id, indexes
-- Nodes that wait for a signal, until `ttl` has passed, or for a time: `ttl` from now, or `good_until`.
UPDATE horsies_workflow_tasks n
   SET started_at = statement_timestamp(), updated_at = statement_timestamp(),
       wake_at = coalesce(n.good_until, statement_timestamp() + n.ttl), status = 'WAITING'
 WHERE n.workflow_id = $1 AND n.task_index = ANY ($2::int[]) AND n.status IN ('PENDING', 'READY')
   AND n.kind IN ('signal', 'sleep')
RETURNING n.task_index, n.kind;

-- name: end_due_nodes :many
-- params: id, is_paused, timeout_error, ended_count
-- Ends sleeps whose time has come and waits for signals that took too long; the latter not while the run is paused.
WITH due AS MATERIALIZED (
    SELECT n.ctid AS tid, (row_number() OVER (ORDER BY n.wake_at, n.task_index))::int AS nth FROM horsies_workflow_tasks n
     WHERE n.workflow_id = $1 AND n.status = 'WAITING' AND n.wake_at <= statement_timestamp()
       AND (n.kind = 'sleep' OR NOT $2::bool)
)
UPDATE horsies_workflow_tasks n
   SET result = CASE WHEN n.kind = 'sleep' THEN '{"ok":null}' END, error = CASE WHEN n.kind <> 'sleep' THEN $3::text END,
       completed_at = statement_timestamp(), updated_at = statement_timestamp(), wake_at = NULL,
       ended_seq = $4::int + due.nth, status = CASE WHEN n.kind = 'sleep' THEN 'COMPLETED' ELSE 'FAILED' END
  FROM due WHERE n.ctid = due.tid
RETURNING n.task_index, n.status;

-- name: set_wake_at :many
-- params: id
-- The earliest clock of the run: its start, its deadline, a sleep, or the timeout of a signal, which does not count while
-- the run is paused. Returns the seconds until then.
UPDATE horsies_workflows w
   SET wake_at = least(CASE WHEN w.ends_as IS NULL THEN w.deadline END, CASE WHEN w.status = 'PENDING' THEN w.start_at END, (
       SELECT min(n.wake_at) FROM horsies_workflow_tasks n
        WHERE n.workflow_id = $1 AND n.status = 'WAITING' AND w.status <> 'PENDING'
          AND (n.kind = 'sleep' OR w.status <> 'PAUSED')))
 WHERE w.id = $1 AND w.status IN ('PENDING', 'RUNNING', 'PAUSED')
RETURNING date_part('epoch', w.wake_at - statement_timestamp()) AS wait_s;

-- name: begin_run :many
-- params: id
-- A run that was to start later.
UPDATE horsies_workflows w SET started_at = statement_timestamp(), updated_at = statement_timestamp(), status = 'RUNNING'
 WHERE w.id = $1 AND w.status = 'PENDING' AND w.start_at <= statement_timestamp()
RETURNING w.id;

-- name: due_workflows :many
-- params: row_limit, lease
-- Runs with a clock that has come, and the seconds until the next one. Their clocks are moved by the lease, so that one
-- worker steps them, and another one later if it dies; the step sets the right time. A locked run is being stepped, and its
-- step sets the time; or another session has locked it, so there is a further look half a second later.
WITH due AS MATERIALIZED (
    SELECT w.ctid AS tid FROM horsies_workflows w WHERE w.wake_at <= statement_timestamp()
     ORDER BY w.wake_at LIMIT $1 FOR NO KEY UPDATE SKIP LOCKED
), moved AS (
    UPDATE horsies_workflows w SET wake_at = statement_timestamp() + $2::interval FROM due WHERE w.ctid = due.tid
    RETURNING w.id
)
SELECT id, NULL::float8 AS wait_s FROM moved
UNION ALL
SELECT NULL, (SELECT date_part('epoch', w.wake_at - statement_timestamp()) FROM horsies_workflows w
               WHERE w.wake_at > statement_timestamp() ORDER BY w.wake_at LIMIT 1)
UNION ALL
SELECT NULL, 0.5 WHERE (SELECT count(*) FROM due) < (SELECT count(*) FROM (
       SELECT FROM horsies_workflows w WHERE w.wake_at <= statement_timestamp() ORDER BY w.wake_at LIMIT $1) AS found);

-- name: plan_compensations :many
-- params: id, ends_as, error
-- Adds the nodes that undo what the run did, one after the other, the last end first: its own nodes, those of workflows
-- inside that completed and have no compensation of their own, and those of what it was before it continued. Each takes the
-- value of its node and the arguments of the node's task by name. The run goes on until they have ended; ends_as and error
-- keep its end. No row back: there is nothing to undo.
WITH RECURSIVE place (run_id, key, generation) AS (
    SELECT $1::varchar, '{}'::int[], 0
    UNION ALL
    SELECT more.* FROM place p CROSS JOIN LATERAL (
        SELECT n.sub_workflow_id, p.key || ARRAY[p.generation, -coalesce(n.ended_seq, 0)], 0 FROM horsies_workflow_tasks n
         WHERE n.workflow_id = p.run_id AND n.status = 'COMPLETED' AND n.sub_workflow_id IS NOT NULL AND n.compensate IS NULL
        UNION ALL
        SELECT w.continued_from, p.key, p.generation + 1 FROM horsies_workflows w
         WHERE w.id = p.run_id AND w.continued_from IS NOT NULL) AS more
), undone AS MATERIALIZED (
    SELECT n.id, n.node_id, n.result, n.compensate, n.task_id,
           (row_number() OVER (ORDER BY p.key || ARRAY[p.generation, -coalesce(n.ended_seq, 0)], n.task_index))::int AS nth
      FROM place p JOIN horsies_workflow_tasks n ON n.workflow_id = p.run_id
     WHERE n.status = 'COMPLETED' AND n.compensate IS NOT NULL AND coalesce(n.result, '') NOT LIKE '{"continue":%'
       AND NOT EXISTS (SELECT FROM horsies_workflow_tasks u WHERE u.compensates = n.id)
), base AS (
    SELECT coalesce(max(n.task_index), -1) + 1 AS first, (SELECT count(*) FROM undone)::int AS width,
           coalesce(max(substring(n.node_id FROM '^undo-(\d{1,8})-')::int), 0) AS named
      FROM horsies_workflow_tasks n WHERE n.workflow_id = $1
), node AS (
    INSERT INTO horsies_workflow_tasks (id, workflow_id, task_index, node_id, task_name, kwargs, queue_name, priority,
           dependencies, dependents, task_options, max_retries, ttl, deps_left, status, metadata, compensates)
    SELECT gen_random_uuid()::text, $1::varchar, base.first + u.nth - 1,
           'undo-' || base.named + u.nth || '-' || left(u.node_id, 200),
           u.compensate ->> 'task_name',
           '{' || concat_ws(',', to_json(u.compensate ->> 'value')::text || ':' || CASE
               WHEN u.result LIKE '{"ok":%' THEN substr(u.result, 7, length(u.result) - 7)
               ELSE coalesce((u.result::json -> 'ok')::text, 'null') END, given.text) || '}',
           coalesce(u.compensate ->> 'queue_name', 'default'),
           coalesce(run.priority, (u.compensate ->> 'priority')::int, 100),
           CASE WHEN u.nth = 1 THEN '{}' ELSE ARRAY[base.first + u.nth - 2] END,
           CASE WHEN u.nth = base.width THEN '{}' ELSE ARRAY[base.first + u.nth] END,
           u.compensate ->> 'task_options', coalesce((u.compensate ->> 'max_retries')::int, 0),
           make_interval(secs => (u.compensate ->> 'ttl')::float8), (u.nth > 1)::int,
           CASE WHEN u.nth = 1 THEN 'READY' ELSE 'PENDING' END, nullif(u.compensate -> 'metadata', 'null'), u.id
      FROM undone u CROSS JOIN base
     CROSS JOIN (SELECT w.priority FROM horsies_workflows w WHERE w.id = $1) AS run
      LEFT JOIN LATERAL (
           SELECT string_agg(to_json(a.name)::text || ':' || a.value, ',' ORDER BY a.name) AS text
             FROM horsies_tasks t
            CROSS JOIN LATERAL (SELECT x.name, coalesce((t.kwargs::json -> x.name)::text,
                                                        (u.compensate -> 'defaults' -> x.name)::text) AS value
                                  FROM jsonb_array_elements_text(u.compensate -> 'arguments') AS x (name)) AS a
            WHERE t.id = u.task_id AND a.value IS NOT NULL) AS given ON true
    RETURNING task_index
)
UPDATE horsies_workflows w
   SET ends_as = $2::varchar, error = $3::text, nodes_left = base.width, updated_at = statement_timestamp()
  FROM base WHERE w.id = $1 AND base.width > 0 AND (SELECT count(*) FROM node) > 0
RETURNING w.nodes_left, base.first;

-- name: compensations :one
-- params: id
-- The first node of the run that undoes another and failed.
SELECT n.node_id AS failed, n.error FROM (SELECT 1) AS one
  LEFT JOIN LATERAL (SELECT n.node_id, n.error FROM horsies_workflow_tasks n WHERE n.workflow_id = $1
                        AND n.compensates IS NOT NULL AND n.status = 'FAILED' ORDER BY n.task_index LIMIT 1) AS n ON true;
