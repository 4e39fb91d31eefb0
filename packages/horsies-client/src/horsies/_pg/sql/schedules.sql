-- What operators see of schedules and do to them. They do not know the app's code: they leave a mark on the row, tell
-- the schedulers, and those act. A row exists once a scheduler has served the schedule. `updated_at` is when a scheduler
-- that lists it was last there (a running one says so every few seconds): operators' marks leave it alone.

-- name: list_schedules :many
-- `overdue_by`: how long a slot has been due; `scheduler_seen`: how long ago any scheduler was there.
SELECT s.schedule_name, s.next_run_at, s.last_run_at, s.last_task_id, s.run_count, s.paused_at, s.run_requested_at,
       s.updated_at, (SELECT t.status FROM horsies_tasks t WHERE t.id = s.last_task_id) AS last_task_status,
       CASE WHEN s.paused_at IS NULL AND s.next_run_at < statement_timestamp()
            THEN statement_timestamp() - s.next_run_at END AS overdue_by,
       statement_timestamp() - s.updated_at AS unlisted_for,
       min(statement_timestamp() - s.updated_at) OVER () AS scheduler_seen
  FROM horsies_schedule_state s ORDER BY s.schedule_name;

-- name: schedule_facts :one
-- params: listed_for, overdue_after, forgotten_after
-- For alarms, in one row. A schedule that no live scheduler lists, while there is one, is counted as unlisted and not as
-- overdue, and after a while not at all.
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
-- The moment of the request names the run's task: a request that is repeated before it was fulfilled stays one.
WITH asked AS (
    UPDATE horsies_schedule_state
       SET run_requested_at = coalesce(run_requested_at, statement_timestamp())
     WHERE schedule_name = $1::varchar
    RETURNING schedule_name
)
SELECT schedule_name, pg_notify('schedule_state', schedule_name) FROM asked;

-- name: pause_schedule :many
-- params: name
WITH changed AS (
    UPDATE horsies_schedule_state
       SET paused_at = coalesce(paused_at, statement_timestamp())
     WHERE schedule_name = $1::varchar
    RETURNING schedule_name
)
SELECT schedule_name, pg_notify('schedule_state', schedule_name) FROM changed;

-- name: resume_schedule :many
-- params: name
WITH changed AS (
    UPDATE horsies_schedule_state SET paused_at = NULL
     WHERE schedule_name = $1::varchar
    RETURNING schedule_name
)
SELECT schedule_name, pg_notify('schedule_state', schedule_name) FROM changed;
