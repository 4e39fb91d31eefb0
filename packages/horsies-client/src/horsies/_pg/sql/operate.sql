-- What an operator lists, counts and purges. One filter for all of it, as parameters that may be NULL: run with custom
-- plans (the broker sees to that), so the planner folds what is not asked for and finds the partial index that fits.
-- Live and ended rows are two lists with a key each: the newest id first, and the newest end first. `since` is when a
-- task came into its state; a waiting one, when it is due.

-- name: list_live_tasks :many
-- params: ids, statuses, queue_names, task_names, worker_id, older_than, newer_than, in_workflow, after_id, row_limit
(SELECT t.id, t.task_name, t.queue_name, t.priority, t.status, t.enqueued_at AS since,
        statement_timestamp() - t.enqueued_at AS age, t.retry_count, t.max_retries, t.manual_retries,
        t.claimed_by_worker_id, t.worker_hostname, t.error_code, t.is_workflow_task, t.terminal_at
   FROM horsies_tasks t
  WHERE t.status = 'PENDING' AND 'PENDING' = ANY ($2::text[]) AND $5::text IS NULL
    AND ($1::text[] IS NULL OR t.id = ANY ($1::text[]))
    AND ($3::text[] IS NULL OR t.queue_name = ANY ($3::text[]))
    AND ($4::text[] IS NULL OR t.task_name = ANY ($4::text[]))
    AND ($6::interval IS NULL OR t.enqueued_at <= statement_timestamp() - $6::interval)
    AND ($7::interval IS NULL OR t.enqueued_at > statement_timestamp() - $7::interval)
    AND ($8::boolean IS NULL OR (t.is_workflow_task OR t.former_node_id IS NOT NULL) = $8::boolean)
    AND ($9::text IS NULL OR t.id < $9::text)
  ORDER BY t.id DESC LIMIT $10::int)
UNION ALL
(SELECT t.id, t.task_name, t.queue_name, t.priority, t.status, coalesce(t.started_at, t.claimed_at),
        statement_timestamp() - coalesce(t.started_at, t.claimed_at), t.retry_count, t.max_retries, t.manual_retries,
        t.claimed_by_worker_id, t.worker_hostname, t.error_code, t.is_workflow_task, t.terminal_at
   FROM horsies_tasks t
  WHERE t.status IN ('CLAIMED', 'RUNNING') AND t.status = ANY ($2::text[])
    AND ($1::text[] IS NULL OR t.id = ANY ($1::text[]))
    AND ($3::text[] IS NULL OR t.queue_name = ANY ($3::text[]))
    AND ($4::text[] IS NULL OR t.task_name = ANY ($4::text[]))
    AND ($5::text IS NULL OR t.claimed_by_worker_id = $5::text)
    AND ($6::interval IS NULL OR coalesce(t.started_at, t.claimed_at) <= statement_timestamp() - $6::interval)
    AND ($7::interval IS NULL OR coalesce(t.started_at, t.claimed_at) > statement_timestamp() - $7::interval)
    AND ($8::boolean IS NULL OR (t.is_workflow_task OR t.former_node_id IS NOT NULL) = $8::boolean)
    AND ($9::text IS NULL OR t.id < $9::text)
  ORDER BY t.id DESC LIMIT $10::int)
ORDER BY id DESC LIMIT $10::int;

-- name: list_ended_tasks :many
-- params: ids, statuses, queue_names, task_names, worker_id, older_than, newer_than, in_workflow, error_codes, has_code, after_at, after_id, row_limit
-- `has_code` says that every wanted state has an error code (a CHECK holds it to that): it opens the way through the
-- index over error codes, where the failures of a table of successes are few.
SELECT t.id, t.task_name, t.queue_name, t.priority, t.status, t.terminal_at AS since,
       statement_timestamp() - t.terminal_at AS age, t.retry_count, t.max_retries, t.manual_retries,
       t.claimed_by_worker_id, t.worker_hostname, t.error_code, t.is_workflow_task, t.terminal_at
  FROM horsies_tasks t
 WHERE t.terminal_at IS NOT NULL AND t.status = ANY ($2::text[])
   AND ($1::text[] IS NULL OR t.id = ANY ($1::text[]))
   AND ($3::text[] IS NULL OR t.queue_name = ANY ($3::text[]))
   AND ($4::text[] IS NULL OR t.task_name = ANY ($4::text[]))
   AND ($5::text IS NULL OR t.claimed_by_worker_id = $5::text)
   AND ($6::interval IS NULL OR t.terminal_at <= statement_timestamp() - $6::interval)
   AND ($7::interval IS NULL OR t.terminal_at > statement_timestamp() - $7::interval)
   AND ($8::boolean IS NULL OR (t.is_workflow_task OR t.former_node_id IS NOT NULL) = $8::boolean)
   AND ($9::text[] IS NULL OR t.error_code = ANY ($9::text[]))
   AND (NOT $10::boolean OR t.error_code IS NOT NULL)
   AND ($11::timestamptz IS NULL OR (t.terminal_at, t.id) < ($11::timestamptz, $12::text))
 ORDER BY t.terminal_at DESC, t.id DESC LIMIT $13::int;

-- name: list_purgeable_tasks :many
-- params: ids, statuses, queue_names, task_names, worker_id, older_than, newer_than, in_workflow, error_codes, has_code, row_limit
-- The first ones that purge_batch would delete, by the same conditions in the same order.
SELECT t.id, t.task_name, t.queue_name, t.priority, t.status, t.terminal_at AS since,
       statement_timestamp() - t.terminal_at AS age, t.retry_count, t.max_retries, t.manual_retries,
       t.claimed_by_worker_id, t.worker_hostname, t.error_code, t.is_workflow_task, t.terminal_at
  FROM horsies_tasks t
 WHERE t.terminal_at IS NOT NULL AND t.status = ANY ($2::text[])
   AND ($1::text[] IS NULL OR t.id = ANY ($1::text[]))
   AND ($3::text[] IS NULL OR t.queue_name = ANY ($3::text[]))
   AND ($4::text[] IS NULL OR t.task_name = ANY ($4::text[]))
   AND ($5::text IS NULL OR t.claimed_by_worker_id = $5::text)
   AND ($6::interval IS NULL OR t.terminal_at <= statement_timestamp() - $6::interval)
   AND ($7::interval IS NULL OR t.terminal_at > statement_timestamp() - $7::interval)
   AND ($8::boolean IS NULL OR (t.is_workflow_task OR t.former_node_id IS NOT NULL) = $8::boolean)
   AND ($9::text[] IS NULL OR t.error_code = ANY ($9::text[]))
   AND (NOT $10::boolean OR t.error_code IS NOT NULL)
   AND NOT (t.is_workflow_task AND EXISTS (
           SELECT FROM horsies_workflow_tasks n
             JOIN horsies_workflows w ON w.id = n.workflow_id
             LEFT JOIN horsies_workflows r ON r.id = w.root_workflow_id
            WHERE n.task_id = t.id AND (w.completed_at IS NULL OR (r.id IS NOT NULL AND r.completed_at IS NULL))))
 ORDER BY t.terminal_at LIMIT $11::int;

-- name: count_live_tasks :value
-- params: ids, statuses, queue_names, task_names, worker_id, older_than, newer_than, in_workflow, bound
SELECT count(*) FROM (
    (SELECT 1 FROM horsies_tasks t
      WHERE t.status = 'PENDING' AND 'PENDING' = ANY ($2::text[]) AND $5::text IS NULL
        AND ($1::text[] IS NULL OR t.id = ANY ($1::text[]))
        AND ($3::text[] IS NULL OR t.queue_name = ANY ($3::text[]))
        AND ($4::text[] IS NULL OR t.task_name = ANY ($4::text[]))
        AND ($6::interval IS NULL OR t.enqueued_at <= statement_timestamp() - $6::interval)
        AND ($7::interval IS NULL OR t.enqueued_at > statement_timestamp() - $7::interval)
        AND ($8::boolean IS NULL OR (t.is_workflow_task OR t.former_node_id IS NOT NULL) = $8::boolean)
      LIMIT $9::int)
    UNION ALL
    (SELECT 1 FROM horsies_tasks t
      WHERE t.status IN ('CLAIMED', 'RUNNING') AND t.status = ANY ($2::text[])
        AND ($1::text[] IS NULL OR t.id = ANY ($1::text[]))
        AND ($3::text[] IS NULL OR t.queue_name = ANY ($3::text[]))
        AND ($4::text[] IS NULL OR t.task_name = ANY ($4::text[]))
        AND ($5::text IS NULL OR t.claimed_by_worker_id = $5::text)
        AND ($6::interval IS NULL OR coalesce(t.started_at, t.claimed_at) <= statement_timestamp() - $6::interval)
        AND ($7::interval IS NULL OR coalesce(t.started_at, t.claimed_at) > statement_timestamp() - $7::interval)
        AND ($8::boolean IS NULL OR (t.is_workflow_task OR t.former_node_id IS NOT NULL) = $8::boolean)
      LIMIT $9::int)
    LIMIT $9::int) AS found;

-- name: database_time :value
-- params:
SELECT statement_timestamp();

-- name: count_ended_tasks :value
-- params: ids, statuses, queue_names, task_names, worker_id, older_than, newer_than, in_workflow, error_codes, has_code, purgeable, bound
SELECT count(*) FROM (
    SELECT 1 FROM horsies_tasks t
     WHERE t.terminal_at IS NOT NULL AND t.status = ANY ($2::text[])
       AND ($1::text[] IS NULL OR t.id = ANY ($1::text[]))
       AND ($3::text[] IS NULL OR t.queue_name = ANY ($3::text[]))
       AND ($4::text[] IS NULL OR t.task_name = ANY ($4::text[]))
       AND ($5::text IS NULL OR t.claimed_by_worker_id = $5::text)
       AND ($6::interval IS NULL OR t.terminal_at <= statement_timestamp() - $6::interval)
       AND ($7::interval IS NULL OR t.terminal_at > statement_timestamp() - $7::interval)
       AND ($8::boolean IS NULL OR (t.is_workflow_task OR t.former_node_id IS NOT NULL) = $8::boolean)
       AND ($9::text[] IS NULL OR t.error_code = ANY ($9::text[]))
       AND (NOT $10::boolean OR t.error_code IS NOT NULL)
       AND (NOT $11::boolean OR NOT (t.is_workflow_task AND EXISTS (
               SELECT FROM horsies_workflow_tasks n
                 JOIN horsies_workflows w ON w.id = n.workflow_id
                 LEFT JOIN horsies_workflows r ON r.id = w.root_workflow_id
                WHERE n.task_id = t.id AND (w.completed_at IS NULL OR (r.id IS NOT NULL AND r.completed_at IS NULL)))))
     LIMIT $12::int) AS found;

-- name: purge_batch :many
-- params: ids, statuses, queue_names, task_names, worker_id, older_than, newer_than, in_workflow, error_codes, has_code, from_at, row_limit
-- The oldest first; a row that somebody holds is left for another day. The filter is judged again on the row that was
-- locked: what was retried since is live, and stays. A workflow that has not ended, at any level, keeps its tasks.
WITH target AS MATERIALIZED (
    SELECT t.id FROM horsies_tasks t
     WHERE t.terminal_at IS NOT NULL AND t.status = ANY ($2::text[])
       AND t.status IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
       AND ($1::text[] IS NULL OR t.id = ANY ($1::text[]))
       AND ($3::text[] IS NULL OR t.queue_name = ANY ($3::text[]))
       AND ($4::text[] IS NULL OR t.task_name = ANY ($4::text[]))
       AND ($5::text IS NULL OR t.claimed_by_worker_id = $5::text)
       AND ($6::interval IS NULL OR t.terminal_at <= statement_timestamp() - $6::interval)
       AND ($7::interval IS NULL OR t.terminal_at > statement_timestamp() - $7::interval)
       AND ($8::boolean IS NULL OR (t.is_workflow_task OR t.former_node_id IS NOT NULL) = $8::boolean)
       AND ($9::text[] IS NULL OR t.error_code = ANY ($9::text[]))
       AND (NOT $10::boolean OR t.error_code IS NOT NULL)
       AND ($11::timestamptz IS NULL OR t.terminal_at >= $11::timestamptz)
       AND NOT (t.is_workflow_task AND EXISTS (
               SELECT FROM horsies_workflow_tasks n
                 JOIN horsies_workflows w ON w.id = n.workflow_id
                 LEFT JOIN horsies_workflows r ON r.id = w.root_workflow_id
                WHERE n.task_id = t.id AND (w.completed_at IS NULL OR (r.id IS NOT NULL AND r.completed_at IS NULL))))
     ORDER BY t.terminal_at LIMIT $12::int FOR UPDATE OF t SKIP LOCKED
)
DELETE FROM horsies_tasks t USING target WHERE t.id = target.id
RETURNING t.id, t.terminal_at;

-- name: task_states :many
-- params: ids
-- Why something was not done with a task: its state and its workflow. A task that its node has replaced (`is_replaced`)
-- belongs to that node's workflow, but does not depend on it any more.
SELECT t.id, t.status, t.is_workflow_task, w.id AS workflow_id,
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
-- The ended ones whose unique key a live task holds now. A viewer may not see keys.
SELECT t.id FROM horsies_tasks t
 WHERE t.id = ANY ($1::text[]) AND t.unique_key IS NOT NULL AND t.terminal_at IS NOT NULL
   AND EXISTS (SELECT FROM horsies_tasks o WHERE o.task_name = t.task_name AND o.unique_key = t.unique_key
                  AND o.status IN ('PENDING', 'CLAIMED', 'RUNNING'));

-- name: show_task :one
-- params: id
-- What every role may see of a task; the ages are the database's.
SELECT t.id, t.task_name, t.queue_name, t.priority, t.status, t.sent_at, t.enqueued_at, t.claimed_at, t.started_at,
       t.completed_at, t.failed_at, t.terminal_at, t.cancel_requested_at, t.finalizing_at, t.good_until,
       t.next_retry_at, t.retry_count, t.max_retries, t.manual_retries, t.claim_generation, t.claim_expires_at,
       t.claimed_by_worker_id, t.worker_hostname, t.worker_pid, t.worker_process_name, t.error_code,
       t.is_workflow_task, t.created_at, t.updated_at, statement_timestamp() AS seen_at,
       (SELECT n.workflow_id FROM horsies_workflow_tasks n WHERE n.task_id = t.id) AS workflow_id,
       f.workflow_id AS former_workflow_id, f.node_id AS former_node
  FROM horsies_tasks t LEFT JOIN horsies_workflow_tasks f ON f.id = t.former_node_id
 WHERE t.id = $1;

-- name: show_payload :one
-- params: id, max_chars
-- What a viewer may not see. Cut here: five megabytes of arguments are not sent to be cut there.
SELECT left(args, $2::int) AS args, length(args) AS args_chars, left(kwargs, $2::int) AS kwargs,
       length(kwargs) AS kwargs_chars, left(result, $2::int) AS result, length(result) AS result_chars,
       left(progress::text, $2::int) AS progress, length(progress::text) AS progress_chars,
       left(task_options, $2::int) AS task_options, length(task_options) AS task_options_chars,
       failed_reason, unique_key
  FROM horsies_tasks WHERE id = $1;

-- name: show_attempts :many
-- params: id
-- `read_attempts` for every role: messages may quote arguments.
SELECT attempt, outcome, will_retry, started_at, finished_at, error_code, NULL::text AS error_message,
       NULL::text AS failed_reason, worker_id, worker_hostname, worker_pid, worker_process_name
  FROM horsies_task_attempts WHERE task_id = $1 ORDER BY attempt;

-- name: show_heartbeats :many
-- params: id, row_limit
SELECT role, sender_id, hostname, pid, sent_at, statement_timestamp() - sent_at AS age
  FROM horsies_heartbeats WHERE task_id = $1 ORDER BY sent_at DESC LIMIT $2;

-- name: waiting_pairs :many
-- params: bound
-- Every queue and priority with waiting tasks: one descent of the claim index each, then a count up to the bound on
-- either side of now. Delayed tasks, however many, are not read to count the ready ones.
WITH RECURSIVE pair AS (
    (SELECT t.queue_name, t.priority FROM horsies_tasks t WHERE t.status = 'PENDING'
      ORDER BY t.queue_name, t.priority LIMIT 1)
    UNION ALL
    SELECT n.queue_name, n.priority FROM pair p
     CROSS JOIN LATERAL (SELECT t.queue_name, t.priority FROM horsies_tasks t
                          WHERE t.status = 'PENDING' AND (t.queue_name, t.priority) > (p.queue_name, p.priority)
                          ORDER BY t.queue_name, t.priority LIMIT 1) AS n
)
SELECT p.queue_name, p.priority,
       (SELECT count(*) FROM (SELECT FROM horsies_tasks t WHERE t.status = 'PENDING' AND t.queue_name = p.queue_name
               AND t.priority = p.priority AND t.enqueued_at <= statement_timestamp() LIMIT $1::int) AS x) AS ready,
       (SELECT count(*) FROM (SELECT FROM horsies_tasks t WHERE t.status = 'PENDING' AND t.queue_name = p.queue_name
               AND t.priority = p.priority AND t.enqueued_at > statement_timestamp() LIMIT $1::int) AS x) AS delayed,
       (SELECT statement_timestamp() - t.enqueued_at FROM horsies_tasks t WHERE t.status = 'PENDING'
           AND t.queue_name = p.queue_name AND t.priority = p.priority AND t.enqueued_at <= statement_timestamp()
         ORDER BY t.enqueued_at LIMIT 1) AS oldest_ready
  FROM pair p ORDER BY p.queue_name, p.priority;

-- name: in_flight_counts :many
-- Bounded by what the workers can hold.
SELECT queue_name, claimed_by_worker_id, count(*) FILTER (WHERE status = 'CLAIMED') AS claimed,
       count(*) FILTER (WHERE status = 'RUNNING') AS running
  FROM horsies_tasks WHERE status IN ('CLAIMED', 'RUNNING') GROUP BY 1, 2;

-- name: queue_states :many
SELECT queue_name, paused_at, statement_timestamp() - paused_at AS paused_for FROM horsies_queue_state;

-- name: worker_snapshots :many
-- params: window
-- The newest snapshot of every worker, its age on the database's clock; one index descent per worker.
WITH RECURSIVE worker AS (
    (SELECT worker_id FROM horsies_worker_states ORDER BY worker_id LIMIT 1)
    UNION ALL
    SELECT (SELECT s.worker_id FROM horsies_worker_states s WHERE s.worker_id > w.worker_id
             ORDER BY s.worker_id LIMIT 1)
      FROM worker w WHERE w.worker_id IS NOT NULL
)
SELECT s.worker_id, s.snapshot_at, statement_timestamp() - s.snapshot_at AS age, s.hostname, s.pid, s.processes,
       s.queues, s.tasks_running, s.tasks_claimed, s.memory_usage_mb, s.children_memory_mb, s.cpu_percent,
       s.memory_percent, s.max_claim_batch, s.max_claim_per_worker, s.cluster_wide_cap, s.queue_max_concurrency,
       s.recovery_config, s.worker_started_at, s.snapshot_at - s.worker_started_at AS up_for, i.period_ms,
       i.stopped_at, i.judged_dead_at, i.judged_by
  FROM worker w
 CROSS JOIN LATERAL (SELECT * FROM horsies_worker_states x WHERE x.worker_id = w.worker_id
                      ORDER BY x.snapshot_at DESC LIMIT 1) AS s
  LEFT JOIN horsies_worker_instances i ON i.worker_id = s.worker_id
 WHERE w.worker_id IS NOT NULL AND ($1::interval IS NULL OR s.snapshot_at >= statement_timestamp() - $1::interval)
 ORDER BY s.worker_started_at, s.worker_id;
