-- What `horsies doctor` asks. Read-only, each in a transaction of its own with five seconds at most. Nothing here may
-- need more rights than the viewer of `horsies-migrate grants` has; what such a role is not shown comes as NULL.

-- name: server_facts :one
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS version_num,
       current_setting('server_encoding') AS encoding, pg_is_in_recovery() AS in_recovery,
       current_setting('autovacuum')::boolean AS autovacuum, current_database() AS database, current_user AS role,
       current_setting('default_transaction_read_only')::boolean AS read_only,
       pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_others,
       clock_timestamp() AS now, pg_notification_queue_usage() AS notify_usage;

-- name: table_facts :many
-- params: names, tasks_table
-- Vacuum's bookkeeping and this role's rights. Takes no lock: it answers while somebody has locked a table.
SELECT c.relname AS name, s.n_live_tup AS live, s.n_dead_tup AS dead,
       statement_timestamp() - greatest(s.last_vacuum, s.last_autovacuum) AS vacuumed_ago,
       coalesce((SELECT option_value::boolean FROM pg_options_to_table(c.reloptions)
                  WHERE option_name = 'autovacuum_enabled'), true) AS autovacuum,
       has_table_privilege(c.oid, 'SELECT') OR has_any_column_privilege(c.oid, 'SELECT') AS may_look,
       has_table_privilege(c.oid, 'INSERT') OR has_any_column_privilege(c.oid, 'INSERT') AS may_insert,
       has_table_privilege(c.oid, 'UPDATE') AS may_update, has_table_privilege(c.oid, 'DELETE') AS may_delete
  FROM pg_class c LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
 WHERE c.relkind IN ('r', 'p') AND c.relname = ANY ($1::text[])
   AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass($2::text))
 ORDER BY c.relname;

-- name: old_grants :many
-- params: tasks_table
-- Roles that may overwrite the result of any task: older releases granted producers that. Operators and workers have
-- the right on the table, not on the column.
SELECT DISTINCT x.grantee::regrole::text AS role
  FROM pg_attribute a CROSS JOIN LATERAL aclexplode(a.attacl) AS x
 WHERE a.attrelid = to_regclass($1::text) AND a.attname = 'result' AND x.privilege_type = 'UPDATE' ORDER BY 1;

-- name: table_sizes :many
-- params: names, tasks_table
-- Waits for whoever has a table for himself alone.
SELECT c.relname AS name, pg_total_relation_size(c.oid) AS bytes FROM pg_class c
 WHERE c.relkind IN ('r', 'p') AND c.relname = ANY ($1::text[])
   AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass($2::text))
 ORDER BY 2 DESC LIMIT 3;

-- name: index_facts :many
-- params: tasks_table
SELECT c.relname AS name, i.indisvalid AND i.indisready AS valid
  FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_class t ON t.oid = i.indrelid
 WHERE t.relname LIKE 'horsies!_%' ESCAPE '!'
   AND t.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass($1::text));

-- name: trigger_facts :many
-- params: tasks_table
SELECT g.tgname AS name, g.tgenabled IN ('O', 'A') AS enabled
  FROM pg_trigger g JOIN pg_class t ON t.oid = g.tgrelid
 WHERE NOT g.tgisinternal AND t.relname LIKE 'horsies!_%' ESCAPE '!'
   AND t.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass($1::text));

-- name: xmin_holders :many
-- Who keeps vacuum from removing dead rows of this database: sessions with a snapshot, prepared transactions,
-- replication slots (a logical one's catalog_xmin holds back the catalogs only). The oldest first; the age of others'
-- sessions is NULL to a role that may not see it, their distance in transactions is told to everybody. A session that
-- is being opened (PostgreSQL 18 shows it, without a role) is nobody to be named.
SELECT * FROM (
    SELECT 'session' AS kind, a.pid, a.pid::text AS name, a.usename::text AS role, a.application_name, a.state,
           statement_timestamp() - a.xact_start AS age,
           greatest(age(a.backend_xmin), age(a.backend_xid)) AS transactions
      FROM pg_stat_activity a
     WHERE a.pid <> pg_backend_pid() AND (a.datname = current_database() OR a.datname IS NULL)
       AND (a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL)
       AND a.backend_type IS DISTINCT FROM 'autovacuum worker' AND a.state IS DISTINCT FROM 'starting'
    UNION ALL
    SELECT 'prepared', NULL, p.gid, p.owner::text, NULL, NULL, statement_timestamp() - p.prepared, age(p.transaction)
      FROM pg_prepared_xacts p WHERE p.database = current_database()
    UNION ALL
    SELECT 'slot', r.active_pid, r.slot_name::text, NULL, r.plugin::text,
           CASE WHEN r.active THEN 'active' ELSE 'inactive' END, NULL, age(r.xmin)
      FROM pg_replication_slots r WHERE r.xmin IS NOT NULL) AS holder
 ORDER BY age DESC NULLS LAST, transactions DESC NULLS LAST LIMIT 20;

-- name: hidden_sessions :value
-- Sessions in this database whose doings this role is not shown.
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type IS NULL AND pid <> pg_backend_pid();

-- name: connection_facts :one
-- Counted for everybody: a session of others shows at least that it is there.
SELECT (SELECT count(*) FROM pg_stat_activity WHERE datname IS NOT NULL) AS used,
       current_setting('max_connections')::int
           - current_setting('superuser_reserved_connections')::int
           - coalesce(current_setting('reserved_connections', true)::int, 0) AS for_all,
       (SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()) AS used_here,
       d.datconnlimit AS limit_here,
       (SELECT count(*) FROM pg_stat_activity WHERE usename = current_user) AS used_by_role,
       r.rolconnlimit AS limit_of_role
  FROM pg_database d, pg_roles r WHERE d.datname = current_database() AND r.rolname = current_user;

-- name: own_transactions :many
-- params: application_name
-- Ours end within seconds: no transaction stays open while a task runs.
SELECT pid, application_name, state, statement_timestamp() - xact_start AS age FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
   AND (application_name LIKE 'horsies%' OR starts_with(application_name, $1::text))
 ORDER BY xact_start LIMIT 20;

-- name: oldest_ended :value
-- The oldest that retention may take: a workflow that has not ended keeps its tasks.
SELECT statement_timestamp() - t.terminal_at AS age FROM horsies_tasks t
 WHERE t.terminal_at IS NOT NULL
   AND NOT (t.is_workflow_task AND EXISTS (
           SELECT FROM horsies_workflow_tasks n
             JOIN horsies_workflows w ON w.id = n.workflow_id
             LEFT JOIN horsies_workflows r ON r.id = w.root_workflow_id
            WHERE n.task_id = t.id AND (w.completed_at IS NULL OR (r.id IS NOT NULL AND r.completed_at IS NULL))))
 ORDER BY t.terminal_at LIMIT 1;

-- name: overdue :one
-- Tasks past their good_until that no sweep has met: the reaper's silence.
SELECT count(*) AS found, max(statement_timestamp() - good_until) AS longest FROM (
    SELECT good_until FROM horsies_tasks
     WHERE status IN ('PENDING', 'CLAIMED') AND good_until <= statement_timestamp()
     ORDER BY good_until LIMIT 1000) AS late;

-- name: missing_names :many
-- Names that tasks wait for and that no live worker knows, as the workers have recorded them. `found` is a sample of
-- the front. Names that were known before come first: their tasks wait for long, and silently.
SELECT n.task_name, n.last_known_at IS NOT NULL AS was_known, statement_timestamp() - n.last_known_at AS unknown_for,
       statement_timestamp() - n.missing_since AS missing_for,
       (SELECT count(*) FROM (SELECT t.task_name FROM horsies_tasks t WHERE t.status = 'PENDING'
                               ORDER BY t.queue_name, t.priority, t.enqueued_at LIMIT 5000) AS front
         WHERE front.task_name = n.task_name) AS found
  FROM horsies_task_names n WHERE n.missing_since IS NOT NULL
 ORDER BY was_known DESC, n.missing_since LIMIT 20;

-- name: unresolved :many
-- Names that ended because no worker knew them, in the last day.
SELECT task_name, count(*) AS found FROM horsies_tasks
 WHERE error_code = 'WORKER_RESOLUTION_ERROR' AND terminal_at > statement_timestamp() - interval '1 day'
 GROUP BY task_name ORDER BY 2 DESC LIMIT 20;

-- name: waiting_names :many
-- The names of what waits at the front, to compare with those of an app.
SELECT task_name, count(*) AS found FROM (
    SELECT t.task_name FROM horsies_tasks t
     WHERE t.status = 'PENDING' ORDER BY t.queue_name, t.priority, t.enqueued_at LIMIT 5000) AS front
 GROUP BY task_name ORDER BY 2 DESC LIMIT 1000;
