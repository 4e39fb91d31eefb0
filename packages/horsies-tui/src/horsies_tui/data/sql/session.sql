-- The role behind the connection and its rights; table sizes.

-- name: session :one
-- params: tasks, attempts, queue_state, workflows, schedule_state, cancel, signal, purge, schedules, worker_instances
-- The dashboard hides an action from a role without its right. A standby allows no action.
SELECT current_database() AS database, current_user AS role, pg_is_in_recovery() AS is_standby,
       has_column_privilege($1::text, 'kwargs', 'SELECT') AS sees_arguments,
       has_function_privilege($6::text, 'EXECUTE') AS may_cancel,
       has_column_privilege($1::text, 'retry_count', 'UPDATE')
           AND has_column_privilege($1::text, 'status', 'UPDATE') AS may_retry,
       has_function_privilege($8::text, 'EXECUTE') AS may_purge,
       has_column_privilege($1::text, 'claim_expires_at', 'UPDATE')
           AND has_column_privilege($1::text, 'status', 'UPDATE') AS may_requeue,
       has_column_privilege($1::text, 'finalizing_at', 'UPDATE')
           AND has_column_privilege($2::text, 'outcome', 'INSERT') AS may_fail,
       has_column_privilege($3::text, 'queue_name', 'INSERT') AND has_column_privilege($3::text, 'paused_at', 'UPDATE') AS may_pause_queue,
       has_column_privilege($3::text, 'override', 'INSERT') AND has_column_privilege($3::text, 'override', 'UPDATE') AS may_set_policy,
       has_column_privilege($4::text, 'status', 'UPDATE')
           AND has_column_privilege($1::text, 'withdrawn', 'UPDATE') AS may_pause_workflow,
       has_function_privilege($7::text, 'EXECUTE') AS may_signal,
       has_column_privilege($5::text, 'run_requested_at', 'UPDATE') AS may_run_schedule,
       has_table_privilege($9::text, 'DELETE') AS may_remove_schedule,
       has_column_privilege($10::text, 'wanted_state', 'UPDATE') AS may_control_worker;

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
