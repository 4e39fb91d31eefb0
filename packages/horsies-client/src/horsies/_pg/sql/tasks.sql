-- The producer's statements. Row locks are taken in the order of ids, here and everywhere.

-- name: insert_fresh_task :value
-- edge: new -> PENDING
-- params: id, task_name, queue_name, priority, args, kwargs, sent_at, eta, delay, good_until, ttl, max_retries, task_options, enqueue_sha
-- For an id that was never sent before, as nearly every one: looking for conflicts first costs the server 4 to 7 % more.
-- Times come from the database's clock; statement_timestamp(), not now(): a send late in a long transaction
-- must not jump the queue by the age of that transaction.
INSERT INTO horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, good_until,
                           max_retries, task_options, enqueue_sha)
VALUES ($1::varchar, $2::varchar, $3::varchar, $4::int, $5::text, $6::text, $7::timestamptz,
        coalesce($8::timestamptz, statement_timestamp() + $9::interval),
        coalesce($10::timestamptz, statement_timestamp() + $11::interval), $12::int, $13::text, $14::varchar)
RETURNING id;

-- name: insert_task :value
-- edge: new -> PENDING
-- params: id, task_name, queue_name, priority, args, kwargs, sent_at, eta, delay, good_until, ttl, max_retries, task_options, enqueue_sha
-- The id when the row was written; nothing when the id is taken already (find_conflict says by what).
INSERT INTO horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, good_until,
                           max_retries, task_options, enqueue_sha)
VALUES ($1::varchar, $2::varchar, $3::varchar, $4::int, $5::text, $6::text, $7::timestamptz,
        coalesce($8::timestamptz, statement_timestamp() + $9::interval),
        coalesce($10::timestamptz, statement_timestamp() + $11::interval), $12::int, $13::text, $14::varchar)
ON CONFLICT DO NOTHING
RETURNING id;

-- name: insert_unique_task :one
-- edge: new -> PENDING
-- params: id, task_name, queue_name, priority, args, kwargs, sent_at, eta, delay, good_until, ttl, max_retries, task_options, enqueue_sha, unique_key
-- The fresh row, or the one that holds the id or the key, in one round trip. Nothing at all means that the
-- holder was committed after this statement's snapshot: the caller lost a race and asks again.
WITH fresh AS (
    INSERT INTO horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, good_until,
                               max_retries, task_options, enqueue_sha, unique_key)
    VALUES ($1::varchar, $2::varchar, $3::varchar, $4::int, $5::text, $6::text, $7::timestamptz,
            coalesce($8::timestamptz, statement_timestamp() + $9::interval),
            coalesce($10::timestamptz, statement_timestamp() + $11::interval), $12::int, $13::text, $14::varchar,
            $15::varchar)
    ON CONFLICT DO NOTHING
    RETURNING id, enqueue_sha
), held AS (
    -- the id first: a send that is repeated with its own id is not a duplicate of itself
    SELECT id, enqueue_sha, 1 AS rank FROM horsies_tasks WHERE id = $1::varchar
    UNION ALL
    SELECT id, enqueue_sha, 2 FROM horsies_tasks
     WHERE task_name = $2::varchar AND unique_key = $15::varchar AND status IN ('PENDING', 'CLAIMED', 'RUNNING')
)
SELECT id, enqueue_sha, true AS is_fresh, 0 AS rank FROM fresh
UNION ALL
SELECT id, enqueue_sha, false, rank FROM held WHERE NOT EXISTS (SELECT FROM fresh)
 ORDER BY rank LIMIT 1;

-- name: insert_fresh_task_batch :value
-- edge: new -> PENDING
-- params: ids, args, kwargs, enqueue_shas, task_name, queue_name, priority, sent_at, eta, delay, good_until, ttl, max_retries, task_options
-- For ids that were never sent before: looking for conflicts first takes a quarter more time (157 against 126 ms
-- for 10,000 rows), and there can be none.
WITH fresh AS (
    INSERT INTO horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, good_until,
                               max_retries, task_options, enqueue_sha)
    SELECT x.id, $5::varchar, $6::varchar, $7::int, x.args, x.kwargs, $8::timestamptz,
           coalesce($9::timestamptz, statement_timestamp() + $10::interval),
           coalesce($11::timestamptz, statement_timestamp() + $12::interval), $13::int, $14::text, x.enqueue_sha
      FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS x (id, args, kwargs, enqueue_sha)
    RETURNING 1
)
SELECT count(*)::int FROM fresh;

-- name: insert_task_batch :value
-- edge: new -> PENDING
-- params: ids, args, kwargs, enqueue_shas, task_name, queue_name, priority, sent_at, eta, delay, good_until, ttl, max_retries, task_options
-- How many rows were written; fewer than given means that some ids are taken (find_conflict_batch says which).
WITH fresh AS (
    INSERT INTO horsies_tasks (id, task_name, queue_name, priority, args, kwargs, sent_at, enqueued_at, good_until,
                               max_retries, task_options, enqueue_sha)
    SELECT x.id, $5::varchar, $6::varchar, $7::int, x.args, x.kwargs, $8::timestamptz,
           coalesce($9::timestamptz, statement_timestamp() + $10::interval),
           coalesce($11::timestamptz, statement_timestamp() + $12::interval), $13::int, $14::text, x.enqueue_sha
      FROM unnest($1::text[], $2::text[], $3::text[], $4::text[]) AS x (id, args, kwargs, enqueue_sha)
    ON CONFLICT DO NOTHING
    RETURNING 1
)
SELECT count(*)::int FROM fresh;

-- name: find_conflict_batch :many
-- params: ids
SELECT id, enqueue_sha FROM horsies_tasks WHERE id = ANY ($1::text[]);

-- name: read_ended :one
-- params: id
-- For an array PostgreSQL makes a new plan at each execution: for one id 308 instead of 233 µs.
SELECT id, task_name, status, result FROM horsies_tasks WHERE id = $1::varchar;

-- name: read_ended_batch :many
-- params: ids
-- All ids that a process waits for, in one read. A live row has no result.
SELECT id, task_name, status, result FROM horsies_tasks WHERE id = ANY ($1::text[]);

-- name: read_task :one
-- params: id
SELECT id, task_name, queue_name, priority, status, sent_at, enqueued_at, claimed_at, started_at, completed_at,
       failed_at, terminal_at, cancel_requested_at, good_until, next_retry_at, retry_count, max_retries,
       manual_retries, claimed_by_worker_id, worker_hostname, worker_pid, worker_process_name, error_code,
       failed_reason, unique_key, progress, is_workflow_task, created_at, updated_at
  FROM horsies_tasks WHERE id = $1;

-- name: read_attempts :many
-- params: id
SELECT attempt, outcome, will_retry, started_at, finished_at, error_code, error_message, failed_reason, worker_id,
       worker_hostname, worker_pid, worker_process_name
  FROM horsies_task_attempts WHERE task_id = $1 ORDER BY attempt;
