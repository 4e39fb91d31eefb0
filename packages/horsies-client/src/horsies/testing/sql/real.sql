-- Statements of `testing.real`: they let time pass for horsies, and say what time has to pass to.

-- name: columns_of_times :many
-- params: schema
-- The columns of horsies' tables that hold times, by the catalogue: a new one is found as well.
SELECT format('%I.%I', n.nspname, c.relname) AS in_table,
       array_agg(quote_ident(a.attname)::text ORDER BY a.attnum) AS columns
  FROM pg_class c
  JOIN pg_namespace n ON n.oid = c.relnamespace
  JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
 WHERE n.nspname = coalesce($1::text, current_schema()) AND c.relname LIKE 'horsies\_%' AND c.relkind IN ('r', 'p')
   AND NOT c.relispartition AND a.atttypid = 'timestamptz'::regtype
 GROUP BY n.nspname, c.relname ORDER BY c.relname;

-- name: time_of_server :value
SELECT statement_timestamp() AS now;

-- name: next_due :value
-- params: queues, names, looked_at
-- The seconds until the first task that is delayed, or until the first sleep or start of a run; NULL: nothing comes by
-- itself. A time that came after the last look counts too, because that look may have missed it. Timeouts of signals and
-- deadlines are left out: a test must get its chance to send the signal.
SELECT date_part('epoch', min(due.at) - statement_timestamp()) AS seconds FROM (
    SELECT min(t.enqueued_at) AS at FROM horsies_tasks t
     WHERE t.status = 'PENDING' AND NOT t.withdrawn AND t.enqueued_at > $3::timestamptz
       AND t.queue_name = ANY ($1::text[]) AND t.task_name = ANY ($2::text[])
    UNION ALL
    SELECT min(n.wake_at) FROM horsies_workflow_tasks n
     WHERE n.status = 'WAITING' AND n.kind = 'sleep' AND n.wake_at > $3::timestamptz
       AND (SELECT w.status FROM horsies_workflows w WHERE w.id = n.workflow_id) = 'RUNNING'
    UNION ALL
    SELECT min(w.start_at) FROM horsies_workflows w
     WHERE w.status = 'PENDING' AND w.depth = 0 AND w.start_at > $3::timestamptz) AS due;

-- name: schedules_asked_to_run :value
-- Whether an operator has asked for a run of a schedule, which does not wait for its slot.
SELECT EXISTS (SELECT FROM horsies_schedule_state s WHERE s.run_requested_at IS NOT NULL) AS is_asked;

-- name: has_stored_schedules :value
SELECT EXISTS (SELECT FROM horsies_schedules) AS has_some;

-- name: make_due :none
-- params: id
-- The task whose attempt was killed need not wait for its next one.
UPDATE horsies_tasks t
   SET enqueued_at = statement_timestamp(), next_retry_at = statement_timestamp(), updated_at = statement_timestamp()
 WHERE t.id = $1 AND t.status = 'PENDING' AND t.enqueued_at > statement_timestamp();

-- name: states_of_tasks :many
-- params: ids
SELECT t.id, t.status, t.result FROM horsies_tasks t WHERE t.id = ANY ($1::text[]);
