-- Schedules as operators read and change them. An operator does not know the app's code: the statements mark the row and
-- notify the schedulers, which act on it. A row exists once a scheduler has served the schedule. `updated_at` is the last
-- time that a scheduler listed the schedule (a running one does so every few seconds); operators leave it unchanged.

-- name: list_schedules :many
-- params: row_limit
-- `overdue_by` is how long a slot has been due, `scheduler_seen` how long ago any scheduler was running. The last run may
-- be a task's or a workflow's.
SELECT s.schedule_name, s.next_run_at, s.last_run_at, s.last_task_id, s.run_count, s.paused_at, s.run_requested_at,
       s.updated_at, t.status AS last_task_status, w.status AS last_workflow_status,
       CASE WHEN s.paused_at IS NULL AND s.next_run_at < statement_timestamp()
            THEN statement_timestamp() - s.next_run_at END AS overdue_by,
       statement_timestamp() - s.updated_at AS unlisted_for,
       min(statement_timestamp() - s.updated_at) OVER () AS scheduler_seen,
       s.next_run_at - statement_timestamp() AS due_in, statement_timestamp() - s.last_run_at AS last_age,
       coalesce(t.status, w.status) AS last_status, w.id IS NOT NULL AS is_workflow,
       t.enqueued_at - s.last_run_at AS drift
  FROM horsies_schedule_state s
  LEFT JOIN horsies_tasks t ON t.id = s.last_task_id
  LEFT JOIN horsies_workflows w ON w.id = s.last_task_id
 ORDER BY s.schedule_name LIMIT $1::int;

-- name: schedule_facts :one
-- params: listed_for, overdue_after, forgotten_after
-- One row for alarms. While a scheduler is running, a schedule that none lists counts as unlisted instead of overdue, and
-- after `forgotten_after` not at all.
WITH seen AS MATERIALIZED (
    SELECT min(statement_timestamp() - updated_at) AS ago FROM horsies_schedule_state
), judged AS (
    SELECT s.schedule_name, s.next_run_at, statement_timestamp() - s.updated_at AS unlisted_for,
           s.paused_at IS NULL AND s.next_run_at IS NOT NULL AS runs,
           seen.ago <= $1::interval AND statement_timestamp() - s.updated_at > $1::interval AS is_unlisted,
           s.paused_at IS NULL AND s.next_run_at < statement_timestamp() - $2::interval AS is_overdue
      FROM horsies_schedule_state s CROSS JOIN seen
)
SELECT count(*) AS known, (SELECT ago FROM seen) AS scheduler_seen,
       count(*) FILTER (WHERE runs AND NOT is_unlisted) AS runs,
       min(next_run_at) FILTER (WHERE runs AND NOT is_unlisted) - statement_timestamp() AS next_in,
       count(*) FILTER (WHERE is_overdue AND NOT is_unlisted) AS overdue,
       statement_timestamp() - min(next_run_at) FILTER (WHERE is_overdue AND NOT is_unlisted) AS longest,
       (array_agg(schedule_name ORDER BY next_run_at, schedule_name)
            FILTER (WHERE is_overdue AND NOT is_unlisted))[1:3] AS overdue_names,
       count(*) FILTER (WHERE runs AND is_unlisted AND unlisted_for <= $3::interval) AS unlisted,
       (array_agg(schedule_name ORDER BY schedule_name)
            FILTER (WHERE runs AND is_unlisted AND unlisted_for <= $3::interval))[1:3] AS unlisted_names,
       min(unlisted_for) FILTER (WHERE runs AND is_unlisted) AS unlisted_for
  FROM judged;

-- name: request_run :many
-- params: name
-- The time of the request names the run's task, so repeating a pending request does not ask for a second run.
UPDATE horsies_schedule_state SET run_requested_at = coalesce(run_requested_at, statement_timestamp())
 WHERE schedule_name = $1::varchar RETURNING schedule_name, pg_notify('schedule_state', schedule_name);

-- name: pause_schedule :many
-- params: name
UPDATE horsies_schedule_state SET paused_at = coalesce(paused_at, statement_timestamp())
 WHERE schedule_name = $1::varchar RETURNING schedule_name, pg_notify('schedule_state', schedule_name);

-- name: resume_schedule :many
-- params: name
UPDATE horsies_schedule_state SET paused_at = NULL
 WHERE schedule_name = $1::varchar RETURNING schedule_name, pg_notify('schedule_state', schedule_name);
