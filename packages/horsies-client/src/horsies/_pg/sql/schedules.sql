-- What operators do to schedules. They do not know the app's code: they leave a mark on the row, tell the schedulers,
-- and those act. A row exists once a scheduler has served the schedule.

-- name: list_schedules :many
SELECT s.schedule_name, s.next_run_at, s.last_run_at, s.last_task_id, s.run_count, s.paused_at, s.run_requested_at,
       s.updated_at, (SELECT t.status FROM horsies_tasks t WHERE t.id = s.last_task_id) AS last_task_status
  FROM horsies_schedule_state s ORDER BY s.schedule_name;

-- name: request_run :many
-- params: name
-- The moment of the request names the run's task: a request that is repeated before it was fulfilled stays one.
WITH asked AS (
    UPDATE horsies_schedule_state
       SET run_requested_at = coalesce(run_requested_at, statement_timestamp()), updated_at = statement_timestamp()
     WHERE schedule_name = $1::varchar
    RETURNING schedule_name
)
SELECT schedule_name, pg_notify('schedule_state', schedule_name) FROM asked;

-- name: pause_schedule :many
-- params: name
WITH changed AS (
    UPDATE horsies_schedule_state
       SET paused_at = coalesce(paused_at, statement_timestamp()), updated_at = statement_timestamp()
     WHERE schedule_name = $1::varchar
    RETURNING schedule_name
)
SELECT schedule_name, pg_notify('schedule_state', schedule_name) FROM changed;

-- name: resume_schedule :many
-- params: name
WITH changed AS (
    UPDATE horsies_schedule_state SET paused_at = NULL, updated_at = statement_timestamp()
     WHERE schedule_name = $1::varchar
    RETURNING schedule_name
)
SELECT schedule_name, pg_notify('schedule_state', schedule_name) FROM changed;
