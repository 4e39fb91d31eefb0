-- What operators list, count and purge. The conditions of the filter are fragments (fragments.sql). The broker plans
-- these statements for their very parameters, so that the planner drops the conditions that are NULL and finds the
-- partial index that fits. Live and ended tasks are two lists with a key each: the newest id first, the last end first.

-- name: list_live_tasks :many
-- params: {{task_filter}}, after_id, row_limit
(SELECT {{task_summary}}
   FROM horsies_tasks t
  WHERE {{waiting_tasks}} AND ($after_id::text IS NULL OR t.id < $after_id::text)
  ORDER BY t.id DESC LIMIT $row_limit::int)
UNION ALL
(SELECT {{task_summary}}
   FROM horsies_tasks t
  WHERE {{held_tasks}} AND ($after_id::text IS NULL OR t.id < $after_id::text)
  ORDER BY t.id DESC LIMIT $row_limit::int)
ORDER BY id DESC LIMIT $row_limit::int;

-- name: list_ended_tasks :many
-- params: {{task_filter}}, after_at, after_id, row_limit
SELECT {{task_summary}}
  FROM horsies_tasks t
 WHERE {{ended_tasks}}
   AND ($after_at::timestamptz IS NULL OR (t.terminal_at, t.id) < ($after_at::timestamptz, $after_id::text))
 {{newest_first}} LIMIT $row_limit::int;

-- name: list_unsuccessful_tasks :many
-- params: {{task_filter}}, after_at, after_id, row_limit
-- `list_ended_tasks` when no success is wanted: along the index of these states, so that it passes over no success.
SELECT t.*
  FROM unnest($statuses::text[]) AS s (status)
 CROSS JOIN LATERAL (
       SELECT {{task_summary}}
         FROM horsies_tasks t
        WHERE {{unsuccessful_tasks}}
          AND ($after_at::timestamptz IS NULL OR (t.terminal_at, t.id) < ($after_at::timestamptz, $after_id::text))
        {{newest_first}} LIMIT $row_limit::int) AS t
 {{newest_first}} LIMIT $row_limit::int;

-- name: list_coded_tasks :many
-- params: {{task_filter}}, after_at, after_id, row_limit
-- The same along the index over error codes.
SELECT t.*
  FROM unnest($error_codes::text[]) AS c (code)
 CROSS JOIN LATERAL (
       SELECT {{task_summary}}
         FROM horsies_tasks t
        WHERE {{coded_tasks}}
          AND ($after_at::timestamptz IS NULL OR (t.terminal_at, t.id) < ($after_at::timestamptz, $after_id::text))
        {{newest_first}} LIMIT $row_limit::int) AS t
 {{newest_first}} LIMIT $row_limit::int;

-- name: list_purgeable_tasks :many
-- params: {{task_filter}}, row_limit
-- The first tasks that purge_batch would delete.
SELECT {{task_summary}}
  FROM horsies_tasks t
 WHERE {{ended_tasks}} AND NOT {{kept_by_workflow}}
 ORDER BY t.terminal_at LIMIT $row_limit::int;

-- name: count_live_tasks :value
-- params: {{task_filter}}, bound
SELECT count(*) FROM (
    (SELECT 1 FROM horsies_tasks t WHERE {{waiting_tasks}} LIMIT $bound::int)
    UNION ALL
    (SELECT 1 FROM horsies_tasks t WHERE {{held_tasks}} LIMIT $bound::int)
    LIMIT $bound::int) AS found;

-- name: count_ended_tasks :value
-- params: {{task_filter}}, purgeable, bound
SELECT count(*) FROM (
    SELECT 1 FROM horsies_tasks t
     WHERE {{ended_tasks}} AND (NOT $purgeable::boolean OR NOT {{kept_by_workflow}})
     LIMIT $bound::int) AS found;

-- name: count_unsuccessful_tasks :value
-- params: {{task_filter}}, purgeable, bound
-- The order makes the planner walk along the index, also where its statistics favour another plan.
SELECT count(*) FROM (
    SELECT 1 FROM unnest($statuses::text[]) AS s (status)
     CROSS JOIN LATERAL (
           SELECT 1 FROM horsies_tasks t
            WHERE {{unsuccessful_tasks}} AND (NOT $purgeable::boolean OR NOT {{kept_by_workflow}})
            {{newest_first}} LIMIT $bound::int) AS t
     LIMIT $bound::int) AS found;

-- name: count_coded_tasks :value
-- params: {{task_filter}}, purgeable, bound
SELECT count(*) FROM (
    SELECT 1 FROM unnest($error_codes::text[]) AS c (code)
     CROSS JOIN LATERAL (
           SELECT 1 FROM horsies_tasks t
            WHERE {{coded_tasks}} AND (NOT $purgeable::boolean OR NOT {{kept_by_workflow}})
            {{newest_first}} LIMIT $bound::int) AS t
     LIMIT $bound::int) AS found;

-- name: purge_batch :many
-- params: {{task_filter}}, from_at, row_limit
-- Deletes the oldest first and skips locked rows. The filter is checked again on the locked row, so a task that was
-- retried meanwhile stays.
WITH target AS MATERIALIZED (
    SELECT t.id FROM horsies_tasks t
     WHERE {{ended_tasks}} AND t.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
       AND ($from_at::timestamptz IS NULL OR t.terminal_at >= $from_at::timestamptz) AND NOT {{kept_by_workflow}}
     ORDER BY t.terminal_at LIMIT $row_limit::int FOR UPDATE OF t SKIP LOCKED
)
SELECT t.id, t.terminal_at FROM horsies_purge_tasks(ARRAY(SELECT id FROM target)) AS t;

-- name: quarantined :many
-- Names of tasks that crashed as often as their policy allows, among 1,000 of them; `alone` of them belong to no workflow.
-- A node that was retried has another task since. No index can be used for the condition on the state, as in `coded_tasks`.
SELECT q.task_name, count(*) AS found, count(*) FILTER (WHERE NOT q.is_workflow_task) AS alone,
       statement_timestamp() - max(q.terminal_at) AS age
  FROM (SELECT t.task_name, t.is_workflow_task, t.terminal_at FROM horsies_tasks t
         WHERE t.error_code = 'CRASH_LIMIT' AND t.status || '' = 'FAILED' AND t.former_node_id IS NULL LIMIT 1000) AS q
 GROUP BY q.task_name ORDER BY 2 DESC, 1 LIMIT 20;

-- name: database_time :value
-- params:
SELECT statement_timestamp();

-- name: task_states :many
-- params: ids
-- The state and the workflow of each task, which explain why an action on it was refused. A replaced task belongs to its
-- node's workflow, but no longer depends on it.
SELECT t.id, t.status, t.error_code, t.is_workflow_task, w.id AS workflow_id,
       w.id IS NOT NULL AND t.former_node_id IS NULL
           AND (w.completed_at IS NULL OR (r.id IS NOT NULL AND r.completed_at IS NULL)) AS workflow_is_live,
       t.former_node_id IS NOT NULL AS is_replaced, n.node_id, n.task_id AS node_task_id, coalesce(r.id, w.id) AS root_id,
       coalesce(r.status, w.status) AS root_status
  FROM horsies_tasks t
  LEFT JOIN LATERAL (SELECT n.node_id, n.task_id, n.workflow_id FROM horsies_workflow_tasks n WHERE n.task_id = t.id
                      UNION ALL
                     SELECT n.node_id, n.task_id, n.workflow_id FROM horsies_workflow_tasks n WHERE n.id = t.former_node_id
                      LIMIT 1) AS n ON true
  LEFT JOIN horsies_workflows w ON w.id = n.workflow_id
  LEFT JOIN horsies_workflows r ON r.id = w.root_workflow_id
 WHERE t.id = ANY ($1::text[]);

-- name: taken_keys :many
-- params: ids
-- The ended tasks whose unique key a live task holds now. A viewer may not read keys.
SELECT t.id FROM horsies_tasks t
 WHERE t.id = ANY ($1::text[]) AND t.unique_key IS NOT NULL AND t.terminal_at IS NOT NULL
   AND EXISTS (SELECT FROM horsies_tasks o WHERE o.task_name = t.task_name AND o.unique_key = t.unique_key
                  AND o.status IN ('PENDING', 'CLAIMED', 'RUNNING'));

-- name: show_task :one
-- params: id
-- Every column that all roles may read, and the database's clock to compute ages from.
SELECT {{task_info}}, t.finalizing_at, t.claim_generation, t.claim_expires_at, statement_timestamp() AS seen_at,
       (SELECT n.workflow_id FROM horsies_workflow_tasks n WHERE n.task_id = t.id) AS workflow_id,
       f.workflow_id AS former_workflow_id, f.node_id AS former_node
  FROM horsies_tasks t LEFT JOIN horsies_workflow_tasks f ON f.id = t.former_node_id
 WHERE t.id = $1;

-- name: show_payload :one
-- params: id, max_chars
-- The columns that a viewer may not read. The server cuts them: arguments can be megabytes.
SELECT left(args, $2::int) AS args, length(args) AS args_chars, left(kwargs, $2::int) AS kwargs,
       length(kwargs) AS kwargs_chars, left(result, $2::int) AS result, length(result) AS result_chars,
       left(progress::text, $2::int) AS progress, length(progress::text) AS progress_chars,
       left(task_options, $2::int) AS task_options, length(task_options) AS task_options_chars,
       failed_reason, coalesce(metadata, '{}') AS metadata,
       coalesce(unique_key, (SELECT min(k.key) FROM horsies_unique_keys k WHERE k.task_id = $1)) AS unique_key,
       (SELECT max(k.until) FROM horsies_unique_keys k WHERE k.task_id = $1 AND k.until > statement_timestamp())
           AS unique_until
  FROM horsies_tasks WHERE id = $1;

-- name: show_attempts :many
-- params: id
-- `read_attempts` for a viewer, who may not read messages: they can quote arguments.
SELECT {{attempt_info}}, NULL::text AS error_message, NULL::text AS failed_reason
  FROM horsies_task_attempts WHERE task_id = $1 ORDER BY attempt;

-- name: show_heartbeats :many
-- params: id, row_limit
SELECT role, sender_id, hostname, pid, sent_at, statement_timestamp() - sent_at AS age
  FROM horsies_heartbeats WHERE task_id = $1 ORDER BY sent_at DESC LIMIT $2;

-- name: waiting_pairs :many
-- params: bound
-- Each queue and priority with waiting tasks: one descent of the claim index, then a count up to the bound on either
-- side of now. Counting the ready tasks does not read the delayed ones. Tasks of groups have rows of their own, and so
-- have withdrawn tasks, which count as delayed.
WITH RECURSIVE alone AS (
    (SELECT t.queue_name, t.priority FROM horsies_tasks t WHERE {{waits_alone}}
      ORDER BY t.queue_name, t.priority LIMIT 1)
    UNION ALL
    SELECT n.queue_name, n.priority FROM alone p
     CROSS JOIN LATERAL (SELECT t.queue_name, t.priority FROM horsies_tasks t
                          WHERE {{waits_alone}} AND (t.queue_name, t.priority) > (p.queue_name, p.priority)
                          ORDER BY t.queue_name, t.priority LIMIT 1) AS n
), grouped AS (
    (SELECT t.queue_name, t.priority FROM horsies_tasks t WHERE {{waits_in_group}}
      ORDER BY t.queue_name, t.priority LIMIT 1)
    UNION ALL
    SELECT n.queue_name, n.priority FROM grouped p
     CROSS JOIN LATERAL (SELECT t.queue_name, t.priority FROM horsies_tasks t
                          WHERE {{waits_in_group}} AND (t.queue_name, t.priority) > (p.queue_name, p.priority)
                          ORDER BY t.queue_name, t.priority LIMIT 1) AS n
)
SELECT p.queue_name, p.priority, false AS is_grouped,
       (SELECT count(*) FROM (SELECT FROM horsies_tasks t WHERE {{waits_alone}}
               AND t.queue_name = p.queue_name AND t.priority = p.priority
               AND t.enqueued_at <= statement_timestamp() LIMIT $1::int) AS x) AS ready,
       (SELECT count(*) FROM (SELECT FROM horsies_tasks t WHERE {{waits_alone}}
               AND t.queue_name = p.queue_name AND t.priority = p.priority
               AND t.enqueued_at > statement_timestamp() LIMIT $1::int) AS x) AS delayed,
       (SELECT statement_timestamp() - t.enqueued_at FROM horsies_tasks t WHERE {{waits_alone}}
           AND t.queue_name = p.queue_name AND t.priority = p.priority AND t.enqueued_at <= statement_timestamp()
         ORDER BY t.enqueued_at LIMIT 1) AS oldest_ready
  FROM alone p
UNION ALL
SELECT p.queue_name, p.priority, true AS is_grouped,
       (SELECT count(*) FROM (SELECT FROM horsies_tasks t WHERE {{waits_in_group}}
               AND t.queue_name = p.queue_name AND t.priority = p.priority
               AND t.enqueued_at <= statement_timestamp() LIMIT $1::int) AS x) AS ready,
       (SELECT count(*) FROM (SELECT FROM horsies_tasks t WHERE {{waits_in_group}}
               AND t.queue_name = p.queue_name AND t.priority = p.priority
               AND t.enqueued_at > statement_timestamp() LIMIT $1::int) AS x) AS delayed,
       (SELECT statement_timestamp() - t.enqueued_at FROM horsies_tasks t WHERE {{waits_in_group}}
           AND t.queue_name = p.queue_name AND t.priority = p.priority AND t.enqueued_at <= statement_timestamp()
         ORDER BY t.enqueued_at LIMIT 1) AS oldest_ready
  FROM grouped p
UNION ALL
SELECT w.queue_name, w.priority, w.is_grouped, 0, count(*), NULL
  FROM (SELECT t.queue_name, t.priority, t.group_key IS NOT NULL AS is_grouped
          FROM horsies_tasks t WHERE t.withdrawn LIMIT $1::int) AS w GROUP BY 1, 2, 3
 ORDER BY 1, 2, 3;

-- name: in_flight_counts :many
-- The workers' capacity bounds the number of rows.
SELECT queue_name, claimed_by_worker_id, count(*) FILTER (WHERE status = 'CLAIMED') AS claimed,
       count(*) FILTER (WHERE status = 'RUNNING') AS running
  FROM horsies_tasks WHERE status IN ('CLAIMED', 'RUNNING') GROUP BY 1, 2;

-- name: queue_states :many
SELECT queue_name, paused_at, statement_timestamp() - paused_at AS paused_for FROM horsies_queue_state;

-- name: worker_snapshots :many
-- params: window
-- The newest snapshot of each worker, and its age on the database's clock; one index descent per worker.
WITH RECURSIVE worker AS (
    (SELECT worker_id FROM horsies_worker_states ORDER BY worker_id LIMIT 1)
    UNION ALL
    SELECT (SELECT s.worker_id FROM horsies_worker_states s WHERE s.worker_id > w.worker_id
             ORDER BY s.worker_id LIMIT 1)
      FROM worker w WHERE w.worker_id IS NOT NULL
)
SELECT s.worker_id, s.snapshot_at, statement_timestamp() - s.snapshot_at AS age, s.hostname, s.pid, s.processes,
       s.queues, s.tasks_running, s.tasks_claimed, s.memory_usage_mb, s.children_memory_mb, s.cpu_percent,
       s.memory_percent, s.max_claim_batch, s.max_claim_per_worker, s.cluster_wide_cap,
       coalesce(s.queue_max_concurrency, '{}') AS queue_max_concurrency,
       coalesce(s.recovery_config, '{}') AS recovery_config, s.worker_started_at,
       s.snapshot_at - s.worker_started_at AS up_for, i.period_ms, i.stopped_at, i.judged_dead_at, i.judged_by,
       i.state, i.reached_at, {{wish}}
  FROM worker w
 CROSS JOIN LATERAL (SELECT * FROM horsies_worker_states x WHERE x.worker_id = w.worker_id
                      ORDER BY x.snapshot_at DESC LIMIT 1) AS s
  LEFT JOIN horsies_worker_instances i ON i.worker_id = s.worker_id
 WHERE w.worker_id IS NOT NULL AND ($1::interval IS NULL OR s.snapshot_at >= statement_timestamp() - $1::interval)
 ORDER BY s.worker_started_at, s.worker_id;

-- name: plan_by_index :one
-- For the rest of the transaction, counts up to a bound walk along an index. After ANALYZE and before VACUUM the planner
-- prefers a bitmap, which is made of the whole queue before the first row is counted: the bound would bound nothing.
SELECT set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true);

-- name: live_workflow_counts :many
-- params: bound
-- The outermost runs that have not ended, by state. Each state is read up to the bound along the index over live runs;
-- `looked` is the number of runs that were read, those inside others included.
SELECT s.status, found.runs, found.looked
  FROM unnest(ARRAY['PENDING', 'RUNNING', 'PAUSED']) AS s (status)
 CROSS JOIN LATERAL (
       SELECT count(*) FILTER (WHERE x.depth = 0) AS runs, count(*) AS looked
         FROM (SELECT w.depth FROM horsies_workflows w
                WHERE w.status IN ('PENDING', 'RUNNING', 'PAUSED') AND w.status = s.status
                LIMIT $bound::int) AS x) AS found;

-- name: recent_ends :many
-- params: span, bound
-- The newest ends within the span, by state, up to the bound along the index over ends; `oldest` is the age of the oldest
-- end that was counted.
SELECT newest.status, count(*) AS tasks, max(statement_timestamp() - newest.terminal_at) AS oldest
  FROM (SELECT t.status, t.terminal_at FROM horsies_tasks t
         WHERE t.terminal_at > statement_timestamp() - $span::interval AND t.terminal_at <= statement_timestamp()
         ORDER BY t.terminal_at DESC LIMIT $bound::int) AS newest
 GROUP BY newest.status;
