-- The statements of `horsies doctor`. Each runs in a read-only transaction of its own, for five seconds at most. None
-- needs more rights than the viewer of `horsies-migrate grants` has; a value that such a role may not see is NULL.

-- fragment: readable
-- The times that every program can read, which are those that the schema accepts.
tstzrange(to_timestamp(0), to_timestamp(221845392000), '[]')

-- fragment: waiting_front
-- All waiting tasks, with and without a group: the planner merges the two indexes.
SELECT t.queue_name, t.priority, t.enqueued_at, t.task_name FROM horsies_tasks t WHERE {{waits_alone}}
    UNION ALL
    SELECT t.queue_name, t.priority, t.enqueued_at, t.task_name FROM horsies_tasks t WHERE {{waits_in_group}}

-- name: server_facts :one
SELECT current_setting('server_version') AS version, current_setting('server_version_num')::int AS version_num,
       current_setting('server_encoding') AS encoding, pg_is_in_recovery() AS in_recovery,
       current_setting('autovacuum')::boolean AS autovacuum, current_database() AS database, current_user AS role,
       current_setting('default_transaction_read_only')::boolean AS read_only,
       pg_has_role(current_user, 'pg_read_all_stats', 'USAGE') AS sees_others,
       clock_timestamp() AS now, pg_notification_queue_usage() AS notify_usage;

-- name: table_facts :many
-- params: names, tasks_table
-- Vacuum's counters and this role's rights. The statement takes no lock, so it answers while a table is locked.
SELECT c.relname AS name, s.n_live_tup AS live, s.n_dead_tup AS dead,
       statement_timestamp() - greatest(s.last_vacuum, s.last_autovacuum) AS vacuumed_ago,
       coalesce((SELECT option_value::boolean FROM pg_options_to_table(c.reloptions)
                  WHERE option_name = 'autovacuum_enabled'), true) AS autovacuum,
       has_table_privilege(c.oid, 'SELECT') OR has_any_column_privilege(c.oid, 'SELECT') AS may_look,
       has_table_privilege(c.oid, 'INSERT') OR has_any_column_privilege(c.oid, 'INSERT') AS may_insert,
       has_table_privilege(c.oid, 'UPDATE') OR has_any_column_privilege(c.oid, 'UPDATE') AS may_update,
       has_table_privilege(c.oid, 'UPDATE') AND has_table_privilege(c.oid, 'DELETE') AS may_rewrite
  FROM pg_class c LEFT JOIN pg_stat_all_tables s ON s.relid = c.oid
 WHERE c.relkind IN ('r', 'p') AND c.relname = ANY ($1::text[])
   AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass($2::text))
 ORDER BY c.relname;

-- name: old_grants :many
-- params: tasks_table
-- Roles with more rights than this release grants: producers of older ones may overwrite the result of any task (an
-- operator has the right on `manual_retries` too), operators may rewrite and delete any task (a worker may insert too).
SELECT DISTINCT x.grantee::regrole::text AS role, 'may overwrite the result of any task' AS may
  FROM pg_attribute a CROSS JOIN LATERAL aclexplode(a.attacl) AS x
 WHERE a.attrelid = to_regclass($1::text) AND a.attname = 'result' AND x.privilege_type = 'UPDATE' AND x.grantee <> 0
   AND NOT has_column_privilege(x.grantee, a.attrelid, 'manual_retries', 'UPDATE')
UNION
SELECT x.grantee::regrole::text, 'may rewrite any task'
  FROM pg_class c CROSS JOIN LATERAL aclexplode(c.relacl) AS x
 WHERE c.oid = to_regclass($1::text) AND x.privilege_type = 'UPDATE' AND x.grantee NOT IN (0, c.relowner)
   AND NOT has_table_privilege(x.grantee, c.oid, 'INSERT')
 ORDER BY 2, 1;

-- name: table_sizes :many
-- params: names, tasks_table
-- This statement waits for an exclusive lock on any of the tables.
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

-- name: foreign_facts :many
-- params: tasks_table
-- What was added to the tables from outside: triggers, rules, and row-level security that applies to this role.
WITH ours AS (
    SELECT oid, relname FROM pg_class
     WHERE relkind IN ('r', 'p') AND relname LIKE 'horsies!_%' ESCAPE '!'
       AND relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass($1::text))
)
SELECT 'trigger' AS kind, t.relname AS on_table, g.tgname AS name FROM ours t JOIN pg_trigger g ON g.tgrelid = t.oid
 WHERE NOT g.tgisinternal AND g.tgenabled <> 'D' AND g.tgname NOT LIKE 'horsies!_%' ESCAPE '!'
UNION ALL
SELECT 'rule', t.relname, r.rulename FROM ours t JOIN pg_rewrite r ON r.ev_class = t.oid WHERE r.ev_enabled <> 'D'
UNION ALL
SELECT 'security', t.relname, t.relname FROM ours t WHERE row_security_active(t.oid)
 ORDER BY 1, 2, 3;

-- name: xmin_holders :many
-- Sessions with a snapshot, prepared transactions and replication slots that keep vacuum from removing dead rows of this
-- database, the oldest first. A logical slot's catalog_xmin holds back the catalogs only, and is not listed. The age of
-- another role's session is NULL to a role that may not see it; the distance in transactions is visible to all roles.
-- Sessions that are still starting (PostgreSQL 18 shows them, without a role) are ignored.
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
-- Sessions in this database whose activity this role may not see.
SELECT count(*) FROM pg_stat_activity
 WHERE datname = current_database() AND backend_type IS NULL AND pid <> pg_backend_pid();

-- name: connection_facts :one
-- Every role sees that another role's session exists, so these counts are complete.
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
-- Horsies' own transactions end within seconds: none stays open while a task runs.
SELECT pid, application_name, state, statement_timestamp() - xact_start AS age FROM pg_stat_activity
 WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
   AND (application_name LIKE 'horsies%' OR starts_with(application_name, $1::text))
 ORDER BY xact_start LIMIT 20;

-- name: lock_holders :many
-- params: keys, tasks_table
-- Sessions that hold one of our advisory locks. `is_foreign`: its role may not write tasks, so it is no worker. The age is
-- that of its transaction, or of its last statement; NULL to a role that may not see it.
SELECT l.classid::bigint AS key, l.pid, a.usename::text AS role, a.application_name, a.state,
       statement_timestamp() - coalesce(a.xact_start, a.state_change) AS age,
       coalesce(NOT has_table_privilege(a.usesysid, to_regclass($2::text), 'UPDATE'), false) AS is_foreign
  FROM pg_locks l JOIN pg_stat_activity a ON a.pid = l.pid
 WHERE l.locktype = 'advisory' AND l.granted AND l.objsubid = 2 AND l.pid <> pg_backend_pid()
   AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
   AND l.classid::bigint = ANY ($1::bigint[])
   AND l.objid::bigint = hashtext(coalesce(current_schema(), '')) & 4294967295
 ORDER BY l.pid, l.classid;

-- name: open_writers :many
-- params: tables, tasks_table
-- Sessions whose open transactions have written or locked rows of these tables, and since when. The age is NULL to a role that
-- may not see it.
SELECT a.pid, a.usename::text AS role, a.application_name, statement_timestamp() - a.xact_start AS age,
       array_agg(DISTINCT c.relname::text ORDER BY c.relname::text) AS tables
  FROM pg_locks l
  JOIN pg_class c ON c.oid = l.relation AND c.relname = ANY ($1::text[])
   AND c.relnamespace = (SELECT o.relnamespace FROM pg_class o WHERE o.oid = to_regclass($2::text))
  JOIN pg_stat_activity a ON a.pid = l.pid AND a.backend_xid IS NOT NULL
 WHERE l.locktype = 'relation' AND l.granted AND l.mode IN ('RowShareLock', 'RowExclusiveLock')
   AND l.pid <> pg_backend_pid()
   AND l.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
 GROUP BY a.pid, a.usename, a.application_name, a.xact_start
 ORDER BY a.xact_start, a.pid LIMIT 20;

-- name: unreadable_times :many
-- params: tasks_table
-- Tables whose rule for times is missing or was never validated, and up to three rows of each that break it. A table
-- with a valid rule is not read. Names of tables are written without their first part here, which would be qualified.
WITH rule AS MATERIALIZED (
    SELECT substr(c.relname, 9) AS name FROM pg_class c JOIN pg_constraint k ON k.conrelid = c.oid AND k.contype = 'c'
     WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass($1::text)) AND k.convalidated
       AND CASE substr(c.relname, 9) WHEN 'tasks' THEN k.conname = 'ck_horsies_tasks_sound'
                                                    AND pg_get_constraintdef(k.oid) LIKE '%cancel_requested_at%'
                          WHEN 'task_attempts' THEN k.conname = 'ck_horsies_task_attempts_sound'
                                                    AND pg_get_constraintdef(k.oid) LIKE '%to_timestamp%'
                          ELSE k.conname = 'ck_' || c.relname || '_time_range' END
), odd AS (
    (SELECT 'tasks' AS name, t.id::text AS id FROM horsies_tasks t
      WHERE NOT EXISTS (SELECT FROM rule WHERE name = 'tasks')
        AND NOT {{readable}} @> ALL (ARRAY[
                t.sent_at, t.enqueued_at, t.claimed_at, t.claim_expires_at, t.started_at, t.completed_at, t.failed_at,
                t.terminal_at, t.cancel_requested_at, t.good_until, t.next_retry_at, t.finalizing_at, t.created_at,
                t.updated_at]) LIMIT 3)
    UNION ALL
    (SELECT 'task_attempts', a.task_id::text FROM horsies_task_attempts a
      WHERE NOT EXISTS (SELECT FROM rule WHERE name = 'task_attempts')
        AND NOT {{readable}} @> ALL (ARRAY[a.started_at, a.finished_at, a.created_at]) LIMIT 3)
    UNION ALL
    (SELECT 'heartbeats', h.task_id::text FROM horsies_heartbeats h
      WHERE NOT EXISTS (SELECT FROM rule WHERE name = 'heartbeats')
        AND NOT {{readable}} @> h.sent_at LIMIT 3)
    UNION ALL
    (SELECT 'worker_states', s.worker_id::text FROM horsies_worker_states s
      WHERE NOT EXISTS (SELECT FROM rule WHERE name = 'worker_states')
        AND NOT {{readable}} @> ALL (ARRAY[s.snapshot_at, s.worker_started_at]) LIMIT 3)
    UNION ALL
    (SELECT 'worker_instances', i.worker_id::text FROM horsies_worker_instances i
      WHERE NOT EXISTS (SELECT FROM rule WHERE name = 'worker_instances')
        AND NOT {{readable}} @> ALL (ARRAY[i.started_at, i.beat_at, i.stopped_at, i.judged_dead_at, i.recovered_at])
      LIMIT 3)
    UNION ALL
    (SELECT 'schedule_state', s.schedule_name::text FROM horsies_schedule_state s
      WHERE NOT EXISTS (SELECT FROM rule WHERE name = 'schedule_state')
        AND NOT {{readable}} @> ALL (ARRAY[s.last_run_at, s.next_run_at, s.paused_at, s.run_requested_at, s.updated_at])
      LIMIT 3)
    UNION ALL
    (SELECT 'queue_state', q.queue_name::text FROM horsies_queue_state q
      WHERE NOT EXISTS (SELECT FROM rule WHERE name = 'queue_state')
        AND NOT {{readable}} @> ALL (ARRAY[q.paused_at, q.updated_at, q.declared_at, q.override_at]) LIMIT 3)
    UNION ALL
    (SELECT 'limits', l.name::text FROM horsies_limits l
      WHERE NOT EXISTS (SELECT FROM rule WHERE name = 'limits')
        AND NOT {{readable}} @> ALL (ARRAY[l.declared_at, l.override_at, l.free_at, l.updated_at]) LIMIT 3)
    UNION ALL
    (SELECT 'rate_limits', concat(r.name, ' ', r.key) FROM horsies_rate_limits r
      WHERE NOT EXISTS (SELECT FROM rule WHERE name = 'rate_limits')
        AND NOT {{readable}} @> r.free_at LIMIT 3)
    UNION ALL
    (SELECT 'unique_keys', concat(k.task_name, ' ', k.task_id) FROM horsies_unique_keys k
      WHERE NOT EXISTS (SELECT FROM rule WHERE name = 'unique_keys')
        AND NOT {{readable}} @> ALL (ARRAY[k.first_at, k.until]) LIMIT 3)
    UNION ALL
    (SELECT 'task_names', n.task_name::text FROM horsies_task_names n
      WHERE NOT EXISTS (SELECT FROM rule WHERE name = 'task_names')
        AND NOT {{readable}} @> ALL (ARRAY[n.first_known_at, n.last_known_at, n.missing_since]) LIMIT 3)
    UNION ALL
    (SELECT 'task_sets', x.sha::text FROM horsies_task_sets x
      WHERE NOT EXISTS (SELECT FROM rule WHERE name = 'task_sets')
        AND NOT {{readable}} @> x.recorded_at LIMIT 3)
    UNION ALL
    (SELECT 'workflows', w.id::text FROM horsies_workflows w
      WHERE NOT EXISTS (SELECT FROM rule WHERE name = 'workflows')
        AND NOT {{readable}} @> ALL (ARRAY[w.sent_at, w.created_at, w.started_at, w.completed_at, w.updated_at])
      LIMIT 3)
    UNION ALL
    (SELECT 'workflow_tasks', n.id::text FROM horsies_workflow_tasks n
      WHERE NOT EXISTS (SELECT FROM rule WHERE name = 'workflow_tasks')
        AND NOT {{readable}} @> ALL (ARRAY[n.created_at, n.started_at, n.completed_at, n.updated_at, n.good_until])
      LIMIT 3)
)
SELECT c.relname AS name, ARRAY(SELECT odd.id FROM odd WHERE odd.name = substr(c.relname, 9) ORDER BY 1) AS ids
  FROM pg_class c WHERE c.relkind IN ('r', 'p') AND c.relname LIKE 'horsies!_%' ESCAPE '!'
   AND substr(c.relname, 9) <> 'alembic_version' AND substr(c.relname, 9) NOT IN (SELECT rule.name FROM rule)
   AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass($1::text))
 ORDER BY 1;

-- name: restore_facts :one
-- params: instances_table
-- The last sign of a worker or scheduler, and what is known of how the rows came to be here. Producers and operators are
-- left out: they may write before the first worker starts. `is_copied`: the server has counted inserts into the table of
-- workers and no update, although their heartbeats, which are updates, are in the rows: they came by COPY, from pg_restore or
-- logical replication.
WITH sign AS MATERIALIZED (
    SELECT greatest((SELECT max(greatest(i.beat_at, i.stopped_at)) FROM horsies_worker_instances i),
                    (SELECT max(s.seen_at) FROM horsies_schedulers s)) AS newest
)
SELECT sign.newest, statement_timestamp() - sign.newest AS silence,
       statement_timestamp() - pg_postmaster_start_time() AS up_for,
       CASE WHEN NOT pg_is_in_recovery()
            THEN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int END AS timeline,
       EXISTS (SELECT FROM pg_stat_all_tables s
                WHERE s.relid = to_regclass($1::text) AND s.n_tup_ins > 0 AND s.n_tup_upd = 0)
           AND EXISTS (SELECT FROM horsies_worker_instances i WHERE i.beats > 0) AS is_copied,
       (SELECT count(*) FROM (SELECT FROM ({{waiting_front}}) AS t LIMIT 100000) AS front) AS waiting,
       (SELECT count(*) FROM horsies_schedule_state s
         WHERE s.paused_at IS NULL AND s.next_run_at > sign.newest AND s.next_run_at <= statement_timestamp()) AS slots,
       (SELECT count(*) FROM (SELECT FROM horsies_unique_keys k WHERE k.until > sign.newest LIMIT 100000) AS k) AS keys,
       (SELECT count(*) FROM (SELECT FROM horsies_workflows w WHERE w.status IN ('PENDING', 'RUNNING', 'PAUSED')
                               LIMIT 100000) AS w) AS runs,
       (SELECT count(*) FROM (SELECT FROM horsies_workflow_tasks n WHERE n.status = 'WAITING' AND n.signal_name IS NOT NULL
                               LIMIT 100000) AS n) AS waits
  FROM sign;

-- name: as_copied :one
-- Whether the rows of workers and schedulers are as COPY left them. COPY writes all rows of a table in one transaction, from
-- the first place of the table on: a worker that registers here adds a row of another transaction, and one that beats leaves
-- the place of its row. That is seen at once, where the counts of `restore_facts` are up to a minute late. Schedulers are
-- copied before workers. Reads system columns, for which a role needs SELECT on the whole table.
SELECT count(DISTINCT i.xmin::text) = 1 AND bool_or(i.ctid = '(0,1)')
       AND NOT EXISTS (SELECT FROM horsies_schedulers s WHERE age(s.xmin) < min(age(i.xmin))) AS is_so
  FROM horsies_worker_instances i;

-- name: timeline_history :one
-- How the current timeline of the server began: its last line gives the reason, such as 'before 2026-01-31 12:00:00+00' after
-- point in time recovery, or 'no recovery target specified' after the promotion of a standby. Superusers may read it.
SELECT pg_read_file(h.path, 0, 100000, true) AS history,
       statement_timestamp() - (pg_stat_file(h.path, true)).modification AS age
  FROM (SELECT 'pg_wal/' || left(pg_walfile_name(pg_current_wal_lsn()), 8) || '.history' AS path) AS h;

-- name: oldest_ended :value
-- The age of the oldest task that retention may delete.
SELECT statement_timestamp() - t.terminal_at AS age FROM horsies_tasks t
 WHERE t.terminal_at IS NOT NULL AND t.keep_seconds IS NULL AND NOT {{kept_by_workflow}}
 ORDER BY t.terminal_at LIMIT 1;

-- name: overdue :one
-- Tasks past their good_until that no reaper has ended yet.
SELECT count(*) AS found, max(statement_timestamp() - good_until) AS longest FROM (
    SELECT good_until FROM horsies_tasks
     WHERE status IN ('PENDING', 'CLAIMED') AND good_until <= statement_timestamp()
     ORDER BY good_until LIMIT 1000) AS late;

-- name: late_clocks :one
-- Workflows whose clock has come (a sleep, a timeout, a deadline, a later start) and that no worker has moved on.
SELECT count(*) AS found, max(statement_timestamp() - wake_at) AS longest FROM (
    SELECT wake_at FROM horsies_workflows WHERE wake_at <= statement_timestamp() ORDER BY wake_at LIMIT 1000) AS late;

-- name: missing_names :many
-- Names that waiting tasks have and no live worker of their queue knows, as the workers recorded them, with the queues
-- and counts among the first 100,000 waiting tasks, and `known_in`, the queues whose live workers know the name. A name
-- without a queue waits behind those. Names that were known before come first, because their tasks wait longest without
-- an error.
WITH front AS MATERIALIZED (
    SELECT t.queue_name, t.task_name FROM ({{waiting_front}}) AS t
     ORDER BY t.queue_name, t.priority, t.enqueued_at LIMIT 100000
)
SELECT n.task_name, f.queue_name, coalesce(f.found, 0) AS found, k.known_in, n.last_known_at IS NOT NULL AS was_known,
       statement_timestamp() - n.last_known_at AS unknown_for, statement_timestamp() - n.missing_since AS missing_for
  FROM horsies_task_names n
  LEFT JOIN (SELECT queue_name, task_name, count(*) AS found FROM front GROUP BY 1, 2) AS f ON f.task_name = n.task_name
 CROSS JOIN LATERAL (SELECT ARRAY(SELECT DISTINCT unnest(i.queues) FROM horsies_worker_instances i
                                    JOIN horsies_task_sets s ON s.sha = i.names_sha
                                   WHERE {{is_live}} AND n.task_name = ANY (s.names) ORDER BY 1) AS known_in) AS k
 WHERE n.missing_since IS NOT NULL
   AND CASE WHEN f.queue_name IS NULL THEN (SELECT count(*) FROM front) = 100000  -- NULL <> ALL ('{}') is true
            ELSE f.queue_name <> ALL (k.known_in) END
 ORDER BY was_known DESC, n.missing_since, f.queue_name LIMIT 20;

-- name: unresolved :many
-- Names of tasks that failed within the last day because no worker knew the name; `alone` of them belong to no workflow.
-- A node that was retried has another task since.
SELECT task_name, count(*) AS found, count(*) FILTER (WHERE NOT is_workflow_task) AS alone FROM horsies_tasks
 WHERE error_code = 'WORKER_RESOLUTION_ERROR' AND terminal_at > statement_timestamp() - interval '1 day'
   AND former_node_id IS NULL
 GROUP BY task_name ORDER BY 2 DESC LIMIT 20;

-- name: unresolved_runs :many
-- The outermost runs of the tasks of workflows among those, at most four for each name, the newest first. `node_id` is
-- NULL when the node is in a workflow inside the run.
SELECT task_name, root_id, root_status, node_id FROM (
    SELECT task_name, root_id, root_status, node_id,
           row_number() OVER (PARTITION BY task_name ORDER BY root_id DESC) AS position
      FROM (SELECT DISTINCT ON (t.task_name, coalesce(r.id, w.id)) t.task_name, coalesce(r.id, w.id) AS root_id,
                   coalesce(r.status, w.status) AS root_status, CASE WHEN r.id IS NULL THEN n.node_id END AS node_id
              FROM horsies_tasks t
              JOIN horsies_workflow_tasks n ON n.task_id = t.id
              JOIN horsies_workflows w ON w.id = n.workflow_id
              LEFT JOIN horsies_workflows r ON r.id = w.root_workflow_id
             WHERE t.error_code = 'WORKER_RESOLUTION_ERROR' AND t.terminal_at > statement_timestamp() - interval '1 day'
               AND t.is_workflow_task AND coalesce(r.status, w.status) <> 'COMPLETED'
             ORDER BY 1, 2, n.task_index) AS run) AS numbered
 WHERE position <= 4 ORDER BY task_name, position;

-- name: waiting_names :many
-- The names of the first waiting tasks, to be compared with those of an app.
SELECT task_name, count(*) AS found FROM (
    SELECT t.task_name FROM ({{waiting_front}}) AS t
     ORDER BY t.queue_name, t.priority, t.enqueued_at LIMIT 100000) AS front
 GROUP BY task_name ORDER BY 2 DESC LIMIT 1000;
