-- Sends whose key outlives its task, replaced and debounced sends; and the keys, for operators.

-- name: send_unique :one
-- edge: new -> PENDING
-- params: id, args, kwargs, enqueue_sha, task_name, queue_name, priority, sent_at, eta, delay, good_until, ttl, max_retries, task_options, metadata, group_key, unique_key, mode, unique_for, debounce, max_wait, keep_seconds, is_alone
-- Inserts the task, or changes the one that waits and holds the key, in one round trip. Revision 0027 has the function.
SELECT holder_id, holder_sha, outcome FROM horsies_send_unique(
    $1::text, $2::text, $3::text, $4::varchar, $5::varchar, $6::varchar, $7::int, $8::timestamptz, $9::timestamptz,
    $10::interval, $11::timestamptz, $12::interval, $13::int, $14::text, $15::text::jsonb, $16::varchar, $17::varchar,
    $18::text, $19::interval, $20::interval, $21::interval, $22::int, $23::boolean);

-- name: list_unique_keys :many
-- params: task_name, key, row_limit
-- The keys that are taken: by a time, by a task that has not ended, or by both. The last to end first, then those that
-- only a task holds.
SELECT * FROM (
    SELECT k.task_name, k.key, k.task_id, k.first_at AS since, k.replaced, t.status,
           CASE WHEN k.until > statement_timestamp() THEN k.until END AS until
      FROM horsies_unique_keys k LEFT JOIN horsies_tasks t ON t.id = k.task_id
     WHERE ($task_name::text IS NULL OR k.task_name = $task_name::text) AND ($key::text IS NULL OR k.key = $key::text)
       AND (k.until > statement_timestamp() OR t.status IN ('PENDING', 'CLAIMED', 'RUNNING'))
    UNION ALL
    SELECT t.task_name, t.unique_key, t.id, t.created_at, 0, t.status, NULL
      FROM horsies_tasks t
     WHERE t.unique_key IS NOT NULL AND t.status IN ('PENDING', 'CLAIMED', 'RUNNING')
       AND ($task_name::text IS NULL OR t.task_name = $task_name::text)
       AND ($key::text IS NULL OR t.unique_key = $key::text)
       AND NOT EXISTS (SELECT FROM horsies_unique_keys k WHERE k.task_name = t.task_name AND k.key = t.unique_key
                          AND k.task_id = t.id)
) AS taken
 ORDER BY until DESC NULLS LAST, since DESC, task_name, key LIMIT $row_limit::int;

-- name: release_unique_key :many
-- params: task_name, key
-- Ends the time of `unique_for`. A task that has not ended holds its key all the same.
UPDATE horsies_unique_keys SET until = statement_timestamp()
 WHERE task_name = $task_name::text AND key = $key::text AND until > statement_timestamp()
RETURNING task_id;

-- name: live_key_holders :many
-- params: task_name, key
SELECT t.id FROM horsies_tasks t
 WHERE t.status IN ('PENDING', 'CLAIMED', 'RUNNING') AND t.id IN (
       SELECT k.task_id FROM horsies_unique_keys k WHERE k.task_name = $task_name::text AND k.key = $key::text)
UNION
SELECT t.id FROM horsies_tasks t
 WHERE t.task_name = $task_name::text AND t.unique_key = $key::text AND t.status IN ('PENDING', 'CLAIMED', 'RUNNING')
 ORDER BY 1;
