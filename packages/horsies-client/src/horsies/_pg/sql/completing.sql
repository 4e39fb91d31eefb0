-- The end of an attempt in the task's own transaction. User code gives the connection, of any supported driver.

-- name: transaction_id :value
-- Outside of a transaction block the next statement has another id, and horsies_complete_task refuses it.
SELECT txid_current();

-- name: complete_in_transaction :many
-- edge: RUNNING -> COMPLETED
-- params: task_id, worker_id, generation, token, transaction_id, result, started, finished, pid, process_name, again
SELECT outcome, state
  FROM horsies_complete_task($1::text, $2::text, $3::int, $4::text, $5::bigint, $6::text, $7::float8, $8::float8,
                             $9::int, $10::text, $11::boolean);
