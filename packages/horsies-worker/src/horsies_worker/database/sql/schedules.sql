-- The scheduler's statements. The scheduler that locks the row of a schedule fires its slots: the tasks and the row are
-- written in one transaction, and the task's id is a function of schedule and slot, so that a crash leaves either both
-- or nothing. No scheduler waits for a row that another one holds; the insert of a task may wait for a session that is no
-- scheduler and has inserted its id, for a short time (scheduler/blocked.py).
--
-- Schedules in code are found by their names and the hash of their timing. Schedules that were made at run time
-- (`is_data`) are found by indexes of their next slot and their requests, and only if this scheduler knows their task.

-- fragment: with_definition
-- OFFSET 0 keeps the planner from joining the other way round: it would read every definition to find the due ones.
CROSS JOIN LATERAL (
    SELECT d.* FROM horsies_schedules d
     WHERE d.name = s.schedule_name AND (d.task_name = ANY ($tasks::text[]) OR d.workflow = ANY ($workflows::text[]))
       AND NOT EXISTS (SELECT FROM unnest($aside::text[], $aside_versions::int[]) AS a (name, version)
                        WHERE a.name = d.name AND a.version = d.version)
    OFFSET 0) AS d

-- fragment: stored
d.name, d.task_name, d.workflow, d.pattern, d.kwargs, d.queue_name, d.group_key, d.timezone, d.skipped_times,
       d.overlap, d.catch_up_missed, d.max_catch_up_runs, d.jitter_s, d.enabled, d.version

-- fragment: due_row
s.paused_at IS NOT NULL AS is_paused, s.run_requested_at, s.last_task_id, s.last_run_at, s.entries,
       r.skipped AS last_skipped, r.slot AS last_skipped_slot, statement_timestamp() AS now

-- name: read_schedules :many
-- params: names
SELECT schedule_name AS name, next_run_at, last_run_at, config_hash, updated_at, is_data
  FROM horsies_schedule_state WHERE schedule_name = ANY ($1::text[]);

-- name: insert_schedule_batch :many
-- params: names, config_hashes, next_run_ats
-- In the order of names. A row that was inserted meanwhile stays as it is.
INSERT INTO horsies_schedule_state (schedule_name, config_hash, next_run_at)
SELECT x.name, x.config_hash, x.next_run_at
  FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS x (name, config_hash, next_run_at) ORDER BY x.name
ON CONFLICT (schedule_name) DO NOTHING
RETURNING schedule_name;

-- name: replan_schedule_batch :many
-- params: names, config_hashes, next_run_ats, old_hashes, old_next_run_ats
-- Guarded by the values that were read: two schedulers that start together do not undo each other, and a slot that was
-- fired since stays fired. A row that another session has locked is planned later: it must not hold up the others.
WITH target AS MATERIALIZED (
    SELECT s.schedule_name, x.config_hash, x.next_run_at
      FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::text[], $5::timestamptz[])
           AS x (name, config_hash, next_run_at, old_hash, old_next_run_at)
      JOIN horsies_schedule_state s ON s.schedule_name = x.name
     WHERE s.config_hash IS NOT DISTINCT FROM x.old_hash AND s.next_run_at IS NOT DISTINCT FROM x.old_next_run_at
       AND NOT s.is_data
     ORDER BY s.schedule_name FOR UPDATE OF s SKIP LOCKED
)
UPDATE horsies_schedule_state s
   SET config_hash = target.config_hash, next_run_at = target.next_run_at, updated_at = statement_timestamp()
  FROM target WHERE s.schedule_name = target.schedule_name
RETURNING s.schedule_name;

-- name: confirm_schedule_batch :none
-- params: names, config_hashes, older_than
-- Records that a live scheduler lists these schedules. Without it, a removed schedule, or one without a scheduler, looks
-- like a schedule whose next slot is in the future. A row without a slot that has another release's timing is left
-- alone: its age shows when it is orphaned. A time in the future is of a clock that was put back, and says nothing.
WITH mine AS MATERIALIZED (
    SELECT s.schedule_name FROM unnest($1::text[], $2::text[]) AS x (name, config_hash)
      JOIN horsies_schedule_state s ON s.schedule_name = x.name
     WHERE s.updated_at NOT BETWEEN statement_timestamp() - $3::interval AND statement_timestamp() AND NOT s.is_data
       AND (s.config_hash = x.config_hash OR s.next_run_at IS NOT NULL)
     ORDER BY s.schedule_name FOR UPDATE OF s SKIP LOCKED
)
UPDATE horsies_schedule_state s SET updated_at = statement_timestamp()
  FROM mine WHERE s.schedule_name = mine.schedule_name;

-- name: beat_scheduler :none
-- params: id, hostname, pid, tasks, workflows, schedules, forgotten_after
-- Records that this scheduler is running, and what it knows. Those that ended long ago are forgotten, and those of a
-- time far in the future, when the clock was wrong.
WITH gone AS (
    DELETE FROM horsies_schedulers
     WHERE seen_at NOT BETWEEN statement_timestamp() - $7::interval AND statement_timestamp() + $7::interval
       AND id <> $1::text
)
INSERT INTO horsies_schedulers AS i (id, hostname, pid, tasks, workflows, schedules)
VALUES ($1::text, $2::text, $3::int, $4::text[], $5::text[], $6::text[])
ON CONFLICT (id) DO UPDATE SET seen_at = statement_timestamp();

-- name: schedule_outlook :one
-- params: names, config_hashes, orphaned_after, tasks, workflows, aside, aside_versions, blocked
-- How many schedules in code are due, when their next slot is, and which of their names a schedule that was made at run
-- time has taken. Of the latter: whether any is due, was asked to run or is not planned yet, and when the next slot is.
-- Rows of schedules that this app does not have are ignored, and those of `blocked` are not due.
SELECT mine.*,
       EXISTS (SELECT FROM horsies_schedule_state s {{with_definition}}
                WHERE s.is_data AND s.next_run_at <= statement_timestamp()) AS stored_due,
       EXISTS (SELECT FROM horsies_schedule_state s {{with_definition}}
                WHERE s.is_data AND s.run_requested_at IS NOT NULL) AS stored_requested,
       EXISTS (SELECT FROM horsies_schedule_state s {{with_definition}}
                WHERE s.is_data AND s.config_hash IS NULL) AS stored_unplanned,
       (SELECT s.next_run_at FROM horsies_schedule_state s {{with_definition}}
         WHERE s.is_data AND s.next_run_at > statement_timestamp()
         ORDER BY s.next_run_at LIMIT 1) AS stored_next_due,
       statement_timestamp() AS now
  FROM (SELECT count(*)::int AS known,
               min(s.next_run_at) FILTER (WHERE s.config_hash = x.config_hash AND NOT s.is_data
                                            AND s.next_run_at > statement_timestamp()) AS next_due,
               count(*) FILTER (WHERE NOT s.is_data AND x.name <> ALL ($blocked::text[])
                                  AND (s.config_hash = x.config_hash AND s.next_run_at <= statement_timestamp()
                                       OR s.run_requested_at IS NOT NULL))::int AS due,
               count(*) FILTER (WHERE NOT s.is_data
                                  AND (s.config_hash IS NULL
                                       OR s.config_hash <> x.config_hash
                                          AND coalesce(s.next_run_at, s.updated_at)
                                              < statement_timestamp() - $3::interval))::int AS orphaned,
               array_agg(s.schedule_name::text ORDER BY s.schedule_name) FILTER (WHERE s.is_data) AS clashing
          FROM unnest($1::text[], $2::text[]) AS x (name, config_hash)
          JOIN horsies_schedule_state s ON s.schedule_name = x.name) AS mine;

-- name: lock_due_schedules :many
-- params: names, config_hashes, limit
-- The longest overdue first. Rows that another scheduler has locked are skipped: it fires them, or releases them.
SELECT s.schedule_name, s.next_run_at, s.config_hash = x.config_hash AS is_ours, {{due_row}}
  FROM unnest($1::text[], $2::text[]) AS x (name, config_hash)
  JOIN horsies_schedule_state s ON s.schedule_name = x.name
  LEFT JOIN horsies_schedule_runs r
         ON r.schedule_name = s.schedule_name AND r.place = s.entries % 20 AND r.entry = s.entries
 WHERE NOT s.is_data
   AND (s.config_hash = x.config_hash AND s.next_run_at <= statement_timestamp() OR s.run_requested_at IS NOT NULL)
 ORDER BY s.next_run_at, s.schedule_name
 LIMIT $3::int
   FOR UPDATE OF s SKIP LOCKED;

-- name: lock_due_stored :many
-- params: tasks, workflows, aside, aside_versions, limit
-- The same for schedules that were made at run time, in the order of an index. An edit of the timing and a delete wait
-- for the lock of the state, and this statement sees the row that they leave.
SELECT s.schedule_name, s.next_run_at, s.config_hash, {{due_row}}, {{stored}}
  FROM horsies_schedule_state s {{with_definition}}
  LEFT JOIN horsies_schedule_runs r
         ON r.schedule_name = s.schedule_name AND r.place = s.entries % 20 AND r.entry = s.entries
 WHERE s.is_data AND s.next_run_at <= statement_timestamp()
 ORDER BY s.next_run_at, s.schedule_name
 LIMIT $5::int
   FOR UPDATE OF s SKIP LOCKED;

-- name: lock_requested_stored :many
-- params: tasks, workflows, aside, aside_versions, limit
-- The same for those that an operator has asked to run.
SELECT s.schedule_name, s.next_run_at, s.config_hash, {{due_row}}, {{stored}}
  FROM horsies_schedule_state s {{with_definition}}
  LEFT JOIN horsies_schedule_runs r
         ON r.schedule_name = s.schedule_name AND r.place = s.entries % 20 AND r.entry = s.entries
 WHERE s.is_data AND s.run_requested_at IS NOT NULL
 ORDER BY s.run_requested_at
 LIMIT $5::int
   FOR UPDATE OF s SKIP LOCKED;

-- name: lock_unplanned_stored :many
-- params: tasks, workflows, aside, aside_versions, limit
-- Schedules that were made at run time and are new, or have another timing than before.
SELECT s.last_run_at, d.timed_at, {{stored}}
  FROM horsies_schedule_state s {{with_definition}}
 WHERE s.is_data AND s.config_hash IS NULL
 ORDER BY s.schedule_name
 LIMIT $5::int
   FOR UPDATE OF s SKIP LOCKED;

-- name: lock_stored_page :many
-- params: tasks, workflows, aside, aside_versions, after, limit
-- Planned ones by name, to compare their next slots with the present rules of their time zones.
SELECT s.next_run_at, s.config_hash, {{stored}}
  FROM horsies_schedule_state s {{with_definition}}
 WHERE s.is_data AND s.next_run_at > statement_timestamp() AND d.timezone <> 'UTC' AND s.schedule_name > $5::text
 ORDER BY s.schedule_name
 LIMIT $6::int
   FOR UPDATE OF s SKIP LOCKED;

-- name: plan_stored_batch :none
-- params: names, config_hashes, next_run_ats
-- The rows are locked.
UPDATE horsies_schedule_state s
   SET config_hash = x.config_hash, next_run_at = x.next_run_at, problem = NULL, problem_at = NULL,
       updated_at = statement_timestamp()
  FROM unnest($1::text[], $2::text[], $3::timestamptz[]) AS x (name, config_hash, next_run_at)
 WHERE s.schedule_name = x.name AND s.is_data;

-- name: unplan_stored_batch :none
-- params: names
-- Plans them anew: their timing is not that of their definition. The rows are locked.
UPDATE horsies_schedule_state s SET config_hash = NULL, next_run_at = NULL
 WHERE s.schedule_name = ANY ($1::text[]) AND s.is_data;

-- name: note_schedule_problems :none
-- params: names, problems
-- The rows are locked.
UPDATE horsies_schedule_state s
   SET problem = x.problem, problem_at = coalesce(s.problem_at, statement_timestamp())
  FROM unnest($1::text[], $2::text[]) AS x (name, problem)
 WHERE s.schedule_name = x.name AND s.problem IS DISTINCT FROM x.problem;

-- name: live_task_batch :many
-- params: ids
-- A statement of its own, after the lock: the snapshot of the locking statement may be older than a run that another
-- scheduler has just made, and would miss its task. A schedule's last run is a task or a workflow.
SELECT id FROM horsies_tasks WHERE id = ANY ($1::text[]) AND status IN ('PENDING', 'CLAIMED', 'RUNNING')
UNION ALL
SELECT id FROM horsies_workflows WHERE id = ANY ($1::text[]) AND status IN ('PENDING', 'RUNNING', 'PAUSED');

-- name: insert_scheduled_batch :many
-- edge: new -> PENDING
-- params: ids, task_names, queue_names, priorities, args, kwargs, slots, not_before, good_until, ttls, max_retries, task_options, enqueue_shas, metadata, group_keys, keep_seconds
-- sent_at is the slot of the task. A slot that already has a task keeps it.
INSERT INTO horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, good_until,
                           max_retries, task_options, enqueue_sha, metadata, group_key, keep_seconds)
SELECT x.id, x.task_name, x.queue_name, x.priority, x.args, x.kwargs, x.slot,
       greatest(x.not_before, statement_timestamp()),
       coalesce(x.good_until, greatest(x.not_before, statement_timestamp()) + x.ttl), x.max_retries, x.task_options,
       x.enqueue_sha, x.metadata::jsonb, x.group_key, x.keep_seconds
  FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::text[], $6::text[], $7::timestamptz[],
              $8::timestamptz[], $9::timestamptz[], $10::interval[], $11::int[], $12::text[], $13::text[], $14::text[],
              $15::text[], $16::int[])
       AS x (id, task_name, queue_name, priority, args, kwargs, slot, not_before, good_until, ttl, max_retries,
             task_options, enqueue_sha, metadata, group_key, keep_seconds)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: blocking_sessions :many
-- params: pid
-- The sessions for which a session waits at this moment.
SELECT a.pid, a.usename::text AS role, a.application_name, statement_timestamp() - a.xact_start AS age
  FROM unnest(pg_blocking_pids($1::int)) AS b (pid) JOIN pg_stat_activity a ON a.pid = b.pid
 ORDER BY a.pid;

-- name: move_schedule_batch :many
-- params: names, old_next_run_ats, next_run_ats, runs, ran_ats, task_ids, are_fulfilled, entries, run_names, run_entries, slots, last_slots, run_ids, skipped, are_requests, fired_at
-- The rows are locked; the guard makes a programming error visible. The history has a place for each of 20 entries, and
-- the newest takes that of the oldest.
WITH noted AS (
    INSERT INTO horsies_schedule_runs AS r (schedule_name, place, entry, slot, last_slot, fired_at, task_id, skipped,
                                            is_request)
    SELECT y.name, y.entry % 20, y.entry, y.slot, y.last_slot, $16::timestamptz, y.task_id, y.skipped, y.is_request
      FROM unnest($9::text[], $10::int[], $11::timestamptz[], $12::timestamptz[], $13::text[], $14::text[],
                  $15::boolean[]) AS y (name, entry, slot, last_slot, task_id, skipped, is_request)
    ON CONFLICT (schedule_name, place) DO UPDATE
       SET entry = excluded.entry, slot = excluded.slot, last_slot = excluded.last_slot, fired_at = excluded.fired_at,
           task_id = excluded.task_id, skipped = excluded.skipped, is_request = excluded.is_request
)
UPDATE horsies_schedule_state s
   SET next_run_at = x.next_run_at, run_count = s.run_count + x.runs,
       last_run_at = CASE WHEN x.runs > 0 THEN x.ran_at ELSE s.last_run_at END,
       last_task_id = CASE WHEN x.runs > 0 THEN x.task_id ELSE s.last_task_id END,
       run_requested_at = CASE WHEN x.is_fulfilled THEN NULL ELSE s.run_requested_at END,
       entries = x.entries, problem = NULL, problem_at = NULL, updated_at = statement_timestamp()
  FROM unnest($1::text[], $2::timestamptz[], $3::timestamptz[], $4::int[], $5::timestamptz[], $6::text[],
              $7::boolean[], $8::int[])
       AS x (name, old_next_run_at, next_run_at, runs, ran_at, task_id, is_fulfilled, entries)
 WHERE s.schedule_name = x.name AND s.next_run_at IS NOT DISTINCT FROM x.old_next_run_at
RETURNING s.schedule_name;
