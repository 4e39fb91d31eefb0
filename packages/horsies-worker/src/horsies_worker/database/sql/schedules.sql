-- The scheduler's statements. The scheduler that locks the row of a schedule fires its slots: the tasks and the row are
-- written in one transaction, and the task's id is a function of schedule and slot, so that a crash leaves either both
-- or nothing. No scheduler waits for a row that another one holds.

-- name: read_schedules :many
-- params: names
SELECT schedule_name AS name, next_run_at, last_run_at, config_hash, updated_at
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
-- fired since stays fired.
WITH target AS MATERIALIZED (
    SELECT s.schedule_name, x.config_hash, x.next_run_at
      FROM unnest($1::text[], $2::text[], $3::timestamptz[], $4::text[], $5::timestamptz[])
           AS x (name, config_hash, next_run_at, old_hash, old_next_run_at)
      JOIN horsies_schedule_state s ON s.schedule_name = x.name
     WHERE s.config_hash IS NOT DISTINCT FROM x.old_hash AND s.next_run_at IS NOT DISTINCT FROM x.old_next_run_at
     ORDER BY s.schedule_name FOR UPDATE OF s
)
UPDATE horsies_schedule_state s
   SET config_hash = target.config_hash, next_run_at = target.next_run_at, updated_at = statement_timestamp()
  FROM target WHERE s.schedule_name = target.schedule_name
RETURNING s.schedule_name;

-- name: confirm_schedule_batch :none
-- params: names, config_hashes, older_than
-- Records that a live scheduler lists these schedules. Without it, a removed schedule, or one without a scheduler, looks
-- like a schedule whose next slot is in the future. A row without a slot that has another release's timing is left
-- alone: its age shows when it is orphaned.
WITH mine AS MATERIALIZED (
    SELECT s.schedule_name FROM unnest($1::text[], $2::text[]) AS x (name, config_hash)
      JOIN horsies_schedule_state s ON s.schedule_name = x.name
     WHERE s.updated_at < statement_timestamp() - $3::interval
       AND (s.config_hash = x.config_hash OR s.next_run_at IS NOT NULL)
     ORDER BY s.schedule_name FOR UPDATE OF s SKIP LOCKED
)
UPDATE horsies_schedule_state s SET updated_at = statement_timestamp()
  FROM mine WHERE s.schedule_name = mine.schedule_name;

-- name: schedule_outlook :one
-- params: names, config_hashes, orphaned_after
-- How many schedules are due, and when the next slot is. Rows of schedules that this app does not have are ignored.
SELECT count(*)::int AS known,
       min(s.next_run_at) FILTER (WHERE s.config_hash = x.config_hash
                                    AND s.next_run_at > statement_timestamp()) AS next_due,
       count(*) FILTER (WHERE s.config_hash = x.config_hash AND s.next_run_at <= statement_timestamp()
                           OR s.run_requested_at IS NOT NULL)::int AS due,
       count(*) FILTER (WHERE s.config_hash IS DISTINCT FROM x.config_hash
                          AND coalesce(s.next_run_at, s.updated_at) < statement_timestamp() - $3::interval)::int AS orphaned,
       statement_timestamp() AS now
  FROM unnest($1::text[], $2::text[]) AS x (name, config_hash)
  JOIN horsies_schedule_state s ON s.schedule_name = x.name;

-- name: lock_due_schedules :many
-- params: names, config_hashes, limit
-- The longest overdue first. Rows that another scheduler has locked are skipped: it fires them, or releases them.
SELECT s.schedule_name, s.next_run_at, s.config_hash = x.config_hash AS is_ours, s.paused_at IS NOT NULL AS is_paused,
       s.run_requested_at, s.last_task_id, statement_timestamp() AS now
  FROM unnest($1::text[], $2::text[]) AS x (name, config_hash)
  JOIN horsies_schedule_state s ON s.schedule_name = x.name
 WHERE s.config_hash = x.config_hash AND s.next_run_at <= statement_timestamp() OR s.run_requested_at IS NOT NULL
 ORDER BY s.next_run_at, s.schedule_name
 LIMIT $3::int
   FOR UPDATE OF s SKIP LOCKED;

-- name: live_task_batch :many
-- params: ids
-- A statement of its own, after the lock: the snapshot of the locking statement may be older than a run that another
-- scheduler has just made, and would miss its task. A schedule's last run is a task or a workflow.
SELECT id FROM horsies_tasks WHERE id = ANY ($1::text[]) AND status IN ('PENDING', 'CLAIMED', 'RUNNING')
UNION ALL
SELECT id FROM horsies_workflows WHERE id = ANY ($1::text[]) AND status IN ('PENDING', 'RUNNING', 'PAUSED');

-- name: insert_scheduled_batch :many
-- edge: new -> PENDING
-- params: ids, task_names, queue_names, priorities, args, kwargs, slots, not_before, good_until, ttls, max_retries, task_options, enqueue_shas, metadata, group_keys
-- sent_at is the slot of the task. A slot that already has a task keeps it.
INSERT INTO horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, good_until,
                           max_retries, task_options, enqueue_sha, metadata, group_key)
SELECT x.id, x.task_name, x.queue_name, x.priority, x.args, x.kwargs, x.slot,
       greatest(x.not_before, statement_timestamp()),
       coalesce(x.good_until, greatest(x.not_before, statement_timestamp()) + x.ttl), x.max_retries, x.task_options,
       x.enqueue_sha, x.metadata::jsonb, x.group_key
  FROM unnest($1::text[], $2::text[], $3::text[], $4::int[], $5::text[], $6::text[], $7::timestamptz[],
              $8::timestamptz[], $9::timestamptz[], $10::interval[], $11::int[], $12::text[], $13::text[], $14::text[],
              $15::text[])
       AS x (id, task_name, queue_name, priority, args, kwargs, slot, not_before, good_until, ttl, max_retries,
             task_options, enqueue_sha, metadata, group_key)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: move_schedule_batch :many
-- params: names, old_next_run_ats, next_run_ats, runs, ran_ats, task_ids, are_fulfilled
-- The rows are locked by lock_due_schedules; the guard makes a programming error visible.
UPDATE horsies_schedule_state s
   SET next_run_at = x.next_run_at, run_count = s.run_count + x.runs,
       last_run_at = CASE WHEN x.runs > 0 THEN x.ran_at ELSE s.last_run_at END,
       last_task_id = CASE WHEN x.runs > 0 THEN x.task_id ELSE s.last_task_id END,
       run_requested_at = CASE WHEN x.is_fulfilled THEN NULL ELSE s.run_requested_at END,
       updated_at = statement_timestamp()
  FROM unnest($1::text[], $2::timestamptz[], $3::timestamptz[], $4::int[], $5::timestamptz[], $6::text[],
              $7::boolean[]) AS x (name, old_next_run_at, next_run_at, runs, ran_at, task_id, is_fulfilled)
 WHERE s.schedule_name = x.name AND s.next_run_at IS NOT DISTINCT FROM x.old_next_run_at
RETURNING s.schedule_name;
