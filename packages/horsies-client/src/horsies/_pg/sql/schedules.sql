-- Schedules as operators read and change them. An operator does not know the app's code: the statements write and mark
-- rows and notify the schedulers, which act on them. A schedule of the code has a row once a scheduler has served it;
-- `updated_at` of that row is the last time that a scheduler listed it (a running one does so every few seconds), and
-- operators leave it unchanged. For schedules that were made at run time (`is_data`), schedulers say in
-- `horsies_schedulers` which tasks they know.

-- fragment: live_schedulers
live AS MATERIALIZED (
    SELECT id, hostname, pid, tasks, workflows, schedules FROM horsies_schedulers
     WHERE seen_at > statement_timestamp() - $listed_for::interval
), known_task AS MATERIALIZED (
    SELECT DISTINCT x.name FROM live CROSS JOIN unnest(live.tasks) AS x (name)
), known_workflow AS MATERIALIZED (
    SELECT DISTINCT x.name FROM live CROSS JOIN unnest(live.workflows) AS x (name)
), seen AS MATERIALIZED (
    SELECT least((SELECT min(statement_timestamp() - s.updated_at) FROM horsies_schedule_state s WHERE NOT s.is_data),
                 (SELECT min(statement_timestamp() - i.seen_at) FROM horsies_schedulers i)) AS ago
)

-- fragment: shown_schedule
d.name, d.task_name, d.workflow, d.pattern, d.queue_name, d.group_key, d.timezone, d.skipped_times, d.overlap,
       d.catch_up_missed, d.max_catch_up_runs, d.jitter_s, d.enabled, d.version, d.created_by, d.created_at, d.updated_at

-- name: list_schedules :many
-- params: row_limit, listed_for, after, names, is_data
-- `overdue_by` is how long a slot has been due, `scheduler_seen` how long ago any scheduler was running, `is_known`
-- whether a running one knows the task. The last run may be a task's or a workflow's.
WITH {{live_schedulers}}
SELECT s.schedule_name, s.next_run_at, s.last_run_at, s.last_task_id, s.run_count, s.paused_at, s.run_requested_at,
       s.updated_at, t.status AS last_task_status, w.status AS last_workflow_status,
       CASE WHEN s.paused_at IS NULL AND s.next_run_at < statement_timestamp()
            THEN statement_timestamp() - s.next_run_at END AS overdue_by,
       CASE WHEN s.is_data THEN interval '0' ELSE statement_timestamp() - s.updated_at END AS unlisted_for,
       seen.ago AS scheduler_seen, s.is_data, s.problem_at, d.enabled AS is_enabled,
       CASE WHEN s.is_data THEN kt.name IS NOT NULL OR kw.name IS NOT NULL END AS is_known,
       s.next_run_at - statement_timestamp() AS due_in, statement_timestamp() - s.last_run_at AS last_age,
       coalesce(t.status, w.status) AS last_status, w.id IS NOT NULL AS is_workflow,
       t.enqueued_at - s.last_run_at AS drift
  FROM horsies_schedule_state s CROSS JOIN seen
  LEFT JOIN horsies_schedules d ON s.is_data AND d.name = s.schedule_name
  LEFT JOIN known_task kt ON kt.name = d.task_name
  LEFT JOIN known_workflow kw ON kw.name = d.workflow
  LEFT JOIN horsies_tasks t ON t.id = s.last_task_id
  LEFT JOIN horsies_workflows w ON w.id = s.last_task_id
 WHERE ($3::varchar IS NULL OR s.schedule_name > $3::varchar)
   AND ($4::varchar[] IS NULL OR s.schedule_name = ANY ($4::varchar[]))
   AND ($5::boolean IS NULL OR s.is_data = $5::boolean)
 ORDER BY s.schedule_name LIMIT $1::int;

-- name: schedule_facts :one
-- params: listed_for, overdue_after, forgotten_after
-- One row for alarms. While a scheduler is running, a schedule of the code that none lists counts as unlisted instead of
-- overdue, and after `forgotten_after` not at all; one that was made at run time, and whose task none knows, counts as
-- unknown. A schedule that cannot run is a problem, whether it is due or not, unless it is paused. One is `ahead` if its last
-- run lies in the future: the database's clock was put back, and its next slot is planned behind that run.
WITH {{live_schedulers}}, judged AS (
    SELECT s.schedule_name, s.next_run_at, s.updated_at,
           CASE WHEN s.is_data THEN interval '0' ELSE statement_timestamp() - s.updated_at END AS unlisted_for,
           s.paused_at IS NULL AND (s.next_run_at IS NOT NULL OR d.enabled) AS runs,
           NOT s.is_data AND seen.ago <= $1::interval
               AND statement_timestamp() - s.updated_at > $1::interval AS is_unlisted,
           s.paused_at IS NULL AND s.next_run_at < statement_timestamp() - $2::interval AS is_overdue,
           s.is_data AND seen.ago <= $1::interval AND kt.name IS NULL AND kw.name IS NULL AS is_unknown,
           s.next_run_at > statement_timestamp() AND s.last_run_at > statement_timestamp() + $2::interval
               AND isfinite(s.last_run_at) AS is_ahead,
           s.last_run_at, s.problem_at IS NOT NULL AND s.paused_at IS NULL AS is_broken,
           coalesce(d.task_name, d.workflow) AS target
      FROM horsies_schedule_state s CROSS JOIN seen
      LEFT JOIN horsies_schedules d ON s.is_data AND d.name = s.schedule_name
      LEFT JOIN known_task kt ON kt.name = d.task_name
      LEFT JOIN known_workflow kw ON kw.name = d.workflow
), counted AS (
    SELECT j.*, j.runs AND NOT j.is_unlisted AND NOT j.is_unknown AND NOT j.is_broken AS is_sound,
           j.runs AND j.is_unlisted AND j.unlisted_for <= $3::interval AS is_missing
      FROM judged j
), clash AS MATERIALIZED (
    SELECT x.name, min(live.hostname || ' (process ' || live.pid || ')') AS scheduler
      FROM live CROSS JOIN unnest(live.schedules) AS x (name)
     WHERE EXISTS (SELECT FROM horsies_schedules d WHERE d.name = x.name) GROUP BY x.name
)
SELECT count(*) AS known, (SELECT ago FROM seen) AS scheduler_seen,
       count(*) FILTER (WHERE runs AND NOT is_unlisted) AS runs,
       min(next_run_at) FILTER (WHERE runs AND NOT is_unlisted) - statement_timestamp() AS next_in,
       count(*) FILTER (WHERE is_overdue AND is_sound) AS overdue,
       statement_timestamp() - min(next_run_at) FILTER (WHERE is_overdue AND is_sound) AS longest,
       (array_agg(schedule_name ORDER BY next_run_at, schedule_name)
            FILTER (WHERE is_overdue AND is_sound))[1:3] AS overdue_names,
       count(*) FILTER (WHERE is_missing) AS unlisted,
       (array_agg(schedule_name ORDER BY schedule_name) FILTER (WHERE is_missing))[1:3] AS unlisted_names,
       min(unlisted_for) FILTER (WHERE runs AND is_unlisted) AS unlisted_for,
       count(*) FILTER (WHERE runs AND is_unknown) AS unknown,
       (array_agg(schedule_name || ' (' || target || ')' ORDER BY schedule_name)
            FILTER (WHERE runs AND is_unknown))[1:3] AS unknown_names,
       count(*) FILTER (WHERE is_broken AND NOT is_unknown) AS broken,
       (array_agg(schedule_name ORDER BY schedule_name) FILTER (WHERE is_broken AND NOT is_unknown))[1:3]
           AS broken_names,
       count(*) FILTER (WHERE is_ahead AND is_sound) AS ahead,
       max(last_run_at) FILTER (WHERE is_ahead AND is_sound) - statement_timestamp() AS ahead_by,
       (array_agg(schedule_name || ' (' || to_char(last_run_at AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC)'
                  ORDER BY last_run_at DESC, schedule_name) FILTER (WHERE is_ahead AND is_sound))[1:3] AS ahead_names,
       (SELECT count(*) FROM clash) AS clashing,
       (SELECT (array_agg(c.name || ' of ' || c.scheduler ORDER BY c.name))[1:3] FROM clash c) AS clashing_names
  FROM counted;

-- name: schedule_history :many
-- params: name, row_limit
SELECT r.slot, r.last_slot, r.fired_at, r.task_id, r.skipped, r.is_request, coalesce(t.status, w.status) AS status,
       t.error_code
  FROM horsies_schedule_runs r
  LEFT JOIN horsies_tasks t ON t.id = r.task_id
  LEFT JOIN horsies_workflows w ON w.id = r.task_id
 WHERE r.schedule_name = $1::varchar ORDER BY r.entry DESC LIMIT $2::int;

-- name: read_schedule :many
-- params: name
SELECT {{shown_schedule}}, d.kwargs FROM horsies_schedules d WHERE d.name = $1::varchar;

-- name: show_schedule :many
-- params: name
-- Without the arguments, for a role that may not read them.
SELECT {{shown_schedule}} FROM horsies_schedules d WHERE d.name = $1::varchar;

-- name: schedule_arguments :many
-- params: names
SELECT d.name, d.kwargs FROM horsies_schedules d WHERE d.name = ANY ($1::varchar[]);

-- name: schedule_problem :many
-- params: name
SELECT problem FROM horsies_schedule_state WHERE schedule_name = $1::varchar AND problem_at IS NOT NULL;

-- name: put_schedules :many
-- params: schedules, version
-- Makes and replaces, in the order of names. A row that is the same already stays as it is, with its version. With a
-- version only that one is replaced, and nothing is made; 0 makes, and replaces nothing. Triggers of the table plan the
-- schedule anew if its timing has changed, and notify the schedulers.
INSERT INTO horsies_schedules AS d (
       name, task_name, workflow, pattern, kwargs, queue_name, group_key, timezone, skipped_times, overlap,
       catch_up_missed, max_catch_up_runs, jitter_s, enabled, created_by)
SELECT x.name, x.task_name, x.workflow, x.pattern, x.kwargs, x.queue_name, x.group_key, x.timezone, x.skipped_times,
       x.overlap, x.catch_up_missed, x.max_catch_up_runs, x.jitter_s, x.enabled, current_user
  FROM jsonb_to_recordset($1::jsonb) AS x (
       name text, task_name text, workflow text, pattern jsonb, kwargs jsonb, queue_name text, group_key text,
       timezone text, skipped_times text, overlap text, catch_up_missed boolean, max_catch_up_runs int,
       jitter_s float8, enabled boolean)
 WHERE coalesce($2::int, 0) = 0 OR EXISTS (SELECT FROM horsies_schedules e WHERE e.name = x.name)
 ORDER BY x.name
ON CONFLICT (name) DO UPDATE
   SET task_name = excluded.task_name, workflow = excluded.workflow, pattern = excluded.pattern,
       kwargs = excluded.kwargs, queue_name = excluded.queue_name, group_key = excluded.group_key,
       timezone = excluded.timezone, skipped_times = excluded.skipped_times, overlap = excluded.overlap,
       catch_up_missed = excluded.catch_up_missed, max_catch_up_runs = excluded.max_catch_up_runs,
       jitter_s = excluded.jitter_s, enabled = excluded.enabled
 WHERE ($2::int IS NULL OR d.version = $2::int)
   AND (d.task_name, d.workflow, d.pattern, d.kwargs, d.queue_name, d.group_key, d.timezone, d.skipped_times, d.overlap,
        d.catch_up_missed, d.max_catch_up_runs, d.jitter_s, d.enabled)
       IS DISTINCT FROM
       (excluded.task_name, excluded.workflow, excluded.pattern, excluded.kwargs, excluded.queue_name,
        excluded.group_key, excluded.timezone, excluded.skipped_times, excluded.overlap, excluded.catch_up_missed,
        excluded.max_catch_up_runs, excluded.jitter_s, excluded.enabled)
RETURNING d.name, d.version;

-- name: delete_schedule :many
-- params: name
-- A trigger deletes its state and its history, after a scheduler that is just firing it.
DELETE FROM horsies_schedules WHERE name = $1::varchar RETURNING name;

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
