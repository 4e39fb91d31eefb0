-- Retention: deletes old rows, a few hundred at a time, oldest first. Locked rows are left for the next run. Each
-- statement begins where the last one ended: otherwise it would walk again over the index entries of all rows deleted
-- before it, for as long as a long transaction keeps them from being vacuumed.

-- name: try_prune_lock :value
-- params: key
SELECT pg_try_advisory_xact_lock($1, hashtext(coalesce(current_schema(), '')));

-- name: prune_heartbeats :one
-- params: max_age, after_id, row_limit
-- The primary key is in the order of time; the first row that is too young ends the run.
WITH oldest AS MATERIALIZED (
    SELECT ctid AS tid, id, sent_at FROM horsies_heartbeats WHERE id > $2::bigint ORDER BY id LIMIT $3
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM horsies_heartbeats
     WHERE ctid = ANY (ARRAY(SELECT tid FROM oldest WHERE sent_at < statement_timestamp() - $1::interval))
    RETURNING id
)
SELECT count(*) AS deleted, coalesce(max(id), $2) AS reached FROM gone;

-- name: prune_worker_states :one
-- params: max_age, after_id, row_limit
WITH oldest AS MATERIALIZED (
    SELECT ctid AS tid, id, snapshot_at FROM horsies_worker_states WHERE id > $2::bigint ORDER BY id LIMIT $3
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM horsies_worker_states
     WHERE ctid = ANY (ARRAY(SELECT tid FROM oldest WHERE snapshot_at < statement_timestamp() - $1::interval))
    RETURNING id
)
SELECT count(*) AS deleted, coalesce(max(id), $2) AS reached FROM gone;

-- name: prune_worker_instances :one
-- params: max_age, row_limit
-- Workers that left, were declared dead, or sent no heartbeat for that long. The table has one row per start.
WITH oldest AS MATERIALIZED (
    SELECT ctid AS tid FROM horsies_worker_instances WHERE beat_at < statement_timestamp() - $1::interval LIMIT $2
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM horsies_worker_instances WHERE ctid = ANY (ARRAY(SELECT tid FROM oldest)) RETURNING worker_id
)
SELECT count(*) AS deleted FROM gone;

-- name: prune_task_sets :one
-- params: max_age, row_limit
-- Sets of names that no worker refers to. A worker that is registering has updated the row of its set.
WITH unused AS MATERIALIZED (
    SELECT s.ctid AS tid FROM horsies_task_sets s
     WHERE s.recorded_at < statement_timestamp() - $1::interval
       AND NOT EXISTS (SELECT FROM horsies_worker_instances i WHERE i.names_sha = s.sha)
     LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM horsies_task_sets WHERE ctid = ANY (ARRAY(SELECT tid FROM unused)) RETURNING sha
)
SELECT count(*) AS deleted FROM gone;

-- name: prune_task_names :one
-- params: max_age, row_limit
-- Names that no worker has known for that long and no task waits for.
WITH oldest AS MATERIALIZED (
    SELECT ctid AS tid FROM horsies_task_names
     WHERE last_known_at < statement_timestamp() - $1::interval AND missing_since IS NULL LIMIT $2
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM horsies_task_names WHERE ctid = ANY (ARRAY(SELECT tid FROM oldest)) RETURNING task_name
)
SELECT count(*) AS deleted FROM gone;

-- name: prune_unique_keys :one
-- params: max_age, row_limit
-- Keys that are free again. The row also knows the last sends of its key, so it stays for a while. A sender that locks it
-- is left alone, and one that has just repointed it has moved `until`, which the lock looks at again.
WITH free AS MATERIALIZED (
    SELECT k.ctid AS tid FROM horsies_unique_keys k
     WHERE k.until < statement_timestamp() - $1::interval
       AND NOT EXISTS (SELECT FROM horsies_tasks t
                        WHERE t.id = k.task_id AND t.status IN ('PENDING', 'CLAIMED', 'RUNNING'))
     ORDER BY k.until LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM horsies_unique_keys WHERE ctid = ANY (ARRAY(SELECT tid FROM free)) RETURNING key
)
SELECT count(*) AS deleted FROM gone;

-- name: prune_rate_limits :one
-- params: max_age, row_limit
-- Rates that have been full for so long: a group without a row has its full burst, too.
WITH oldest AS MATERIALIZED (
    SELECT ctid AS tid FROM horsies_rate_limits WHERE free_at < statement_timestamp() - $1::interval LIMIT $2
       FOR UPDATE SKIP LOCKED
), gone AS (
    DELETE FROM horsies_rate_limits WHERE ctid = ANY (ARRAY(SELECT tid FROM oldest)) RETURNING key
)
SELECT count(*) AS deleted FROM gone;

-- name: prune_tasks :one
-- params: max_age, since, row_limit
-- Only ended tasks have a terminal_at; the status is checked as well. The task of a workflow node stays as long as its
-- workflow and the root workflow. Attempts are deleted with their task. Tasks with a lifetime of their own are left to
-- prune_kept_tasks.
WITH oldest AS MATERIALIZED (
    SELECT t.ctid AS tid, t.terminal_at FROM horsies_tasks t
     WHERE t.terminal_at >= $2::timestamptz AND t.terminal_at < statement_timestamp() - $1::interval
       AND t.status || '' IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
       AND (t.keep_seconds IS NULL OR t.is_workflow_task)
       AND (NOT t.is_workflow_task OR NOT EXISTS (
            SELECT 1 FROM horsies_workflow_tasks n
              JOIN horsies_workflows w ON w.id = n.workflow_id
              LEFT JOIN horsies_workflows r ON r.id = w.root_workflow_id
             WHERE n.task_id = t.id
               AND (w.completed_at IS NULL OR w.completed_at >= statement_timestamp() - $1::interval
                    OR r.id IS NOT NULL AND (r.completed_at IS NULL
                                             OR r.completed_at >= statement_timestamp() - $1::interval))))
     ORDER BY t.terminal_at LIMIT $3 FOR UPDATE OF t SKIP LOCKED
), gone AS (
    DELETE FROM horsies_tasks WHERE ctid = ANY (ARRAY(SELECT tid FROM oldest)) RETURNING id
)
SELECT (SELECT count(*) FROM gone) AS deleted, coalesce((SELECT max(terminal_at) FROM oldest), $2) AS reached;

-- name: prune_kept_tasks :one
-- params: row_limit
-- Tasks with a lifetime of their own (`keep_for`). Lifetimes are few: the index begins with them, and each is found by one
-- descent; of each only the tasks that are due are read. The run of a workflow's task decides over that task.
WITH RECURSIVE lifetime AS (
    (SELECT t.keep_seconds FROM horsies_tasks t
      WHERE t.keep_seconds IS NOT NULL AND t.terminal_at IS NOT NULL ORDER BY t.keep_seconds, t.terminal_at LIMIT 1)
    UNION ALL
    SELECT n.keep_seconds FROM lifetime l
     CROSS JOIN LATERAL (SELECT t.keep_seconds FROM horsies_tasks t
                          WHERE t.keep_seconds > l.keep_seconds AND t.terminal_at IS NOT NULL
                          ORDER BY t.keep_seconds, t.terminal_at LIMIT 1) AS n
), oldest AS MATERIALIZED (
    SELECT due.tid FROM lifetime l
     CROSS JOIN LATERAL (SELECT t.ctid AS tid FROM horsies_tasks t
                          WHERE t.keep_seconds = l.keep_seconds
                            AND t.terminal_at <= statement_timestamp() - make_interval(secs => l.keep_seconds)
                            AND t.status || '' IN ('COMPLETED', 'FAILED', 'CANCELLED', 'EXPIRED')
                            AND NOT t.is_workflow_task
                          ORDER BY t.keep_seconds, t.terminal_at LIMIT $1 FOR UPDATE SKIP LOCKED) AS due
     LIMIT $1
), gone AS (
    DELETE FROM horsies_tasks WHERE ctid = ANY (ARRAY(SELECT tid FROM oldest)) RETURNING id
)
SELECT count(*) AS deleted FROM gone;

-- name: prune_workflow_nodes :one
-- params: max_age, row_limit
-- Nodes are deleted after their tasks and before their workflow: a workflow may have ten thousand nodes, too many for one
-- statement.
WITH oldest AS MATERIALIZED (
    SELECT n.ctid AS tid FROM horsies_workflows w
      LEFT JOIN horsies_workflows r ON r.id = w.root_workflow_id
      JOIN horsies_workflow_tasks n ON n.workflow_id = w.id
     WHERE w.completed_at < statement_timestamp() - $1::interval
       AND (r.id IS NULL OR r.completed_at < statement_timestamp() - $1::interval)
       AND NOT EXISTS (SELECT 1 FROM horsies_tasks t WHERE t.id = n.task_id)
     ORDER BY w.completed_at LIMIT $2 FOR UPDATE OF n SKIP LOCKED
), gone AS (
    DELETE FROM horsies_workflow_tasks WHERE ctid = ANY (ARRAY(SELECT tid FROM oldest)) RETURNING id
)
SELECT count(*) AS deleted FROM gone;

-- name: prune_workflows :one
-- params: max_age, row_limit
-- Workflows without nodes and without workflows inside: the innermost are deleted first.
WITH oldest AS MATERIALIZED (
    SELECT w.ctid AS tid FROM horsies_workflows w
      LEFT JOIN horsies_workflows r ON r.id = w.root_workflow_id
     WHERE w.completed_at < statement_timestamp() - $1::interval
       AND (r.id IS NULL OR r.completed_at < statement_timestamp() - $1::interval)
       AND NOT EXISTS (SELECT 1 FROM horsies_workflow_tasks n WHERE n.workflow_id = w.id)
       AND NOT EXISTS (SELECT 1 FROM horsies_workflows part WHERE part.parent_workflow_id = w.id)
     ORDER BY w.completed_at LIMIT $2 FOR UPDATE OF w SKIP LOCKED
), gone AS (
    DELETE FROM horsies_workflows WHERE ctid = ANY (ARRAY(SELECT tid FROM oldest)) RETURNING id
)
SELECT count(*) AS deleted FROM gone;
