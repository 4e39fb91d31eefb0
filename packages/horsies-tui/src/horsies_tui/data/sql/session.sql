-- Who we are here and what we may do; schedules; sizes.

-- name: session :one
-- params: tasks, attempts, queue_state, workflows, schedule_state, cancel
-- A role without a right never sees the action that needs it. A standby takes no action at all.
SELECT current_database() AS database, current_user AS role, current_setting('server_version') AS version,
       pg_is_in_recovery() AS is_standby,
       has_column_privilege($1::text, 'kwargs', 'SELECT') AS sees_arguments,
       has_function_privilege($6::text, 'EXECUTE') AS may_cancel,
       has_column_privilege($1::text, 'retry_count', 'UPDATE')
           AND has_column_privilege($1::text, 'status', 'UPDATE') AS may_retry,
       has_column_privilege($1::text, 'claim_expires_at', 'UPDATE')
           AND has_column_privilege($1::text, 'status', 'UPDATE') AS may_requeue,
       has_column_privilege($1::text, 'finalizing_at', 'UPDATE')
           AND has_table_privilege($2::text, 'INSERT') AS may_fail,
       has_table_privilege($3::text, 'INSERT') AND has_column_privilege($3::text, 'paused_at', 'UPDATE') AS may_pause_queue,
       has_column_privilege($4::text, 'status', 'UPDATE')
           AND has_column_privilege($1::text, 'enqueued_at', 'UPDATE') AS may_pause_workflow,
       has_column_privilege($5::text, 'run_requested_at', 'UPDATE') AS may_run_schedule;

-- name: schedules :many
-- `late`: how long a due run is overdue; the last run may be a task's or a workflow's.
SELECT s.schedule_name, s.next_run_at, s.last_run_at, s.last_task_id, s.run_count, s.paused_at, s.run_requested_at,
       s.next_run_at - statement_timestamp() AS due_in, statement_timestamp() - s.last_run_at AS last_age,
       CASE WHEN s.paused_at IS NULL AND s.next_run_at < statement_timestamp()
            THEN statement_timestamp() - s.next_run_at END AS late,
       coalesce(t.status, w.status) AS last_status, coalesce(t.task_name, w.name) AS last_name,
       w.id IS NOT NULL AS is_workflow, t.enqueued_at - s.last_run_at AS drift,
       statement_timestamp() - s.updated_at AS unlisted_for,
       min(statement_timestamp() - s.updated_at) OVER () AS scheduler_seen
  FROM horsies_schedule_state s
  LEFT JOIN horsies_tasks t ON t.id = s.last_task_id
  LEFT JOIN horsies_workflows w ON w.id = s.last_task_id
 ORDER BY s.schedule_name LIMIT 1000;

-- name: table_facts_shown :many
-- params: tasks_table
SELECT c.relname AS name, pg_table_size(c.oid) AS table_bytes, pg_indexes_size(c.oid) AS index_bytes,
       greatest(c.reltuples, 0)::float8 AS rows, s.n_dead_tup AS dead,
       statement_timestamp() - greatest(s.last_vacuum, s.last_autovacuum) AS vacuumed,
       statement_timestamp() - greatest(s.last_analyze, s.last_autoanalyze) AS analyzed
  FROM pg_class c LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
 WHERE c.relkind IN ('r', 'p') AND c.relname LIKE 'horsies!_%' ESCAPE '!'
   AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass($1::text))
 ORDER BY pg_total_relation_size(c.oid) DESC, c.relname;
