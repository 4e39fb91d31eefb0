-- The end of an attempt. Task row and attempt row are one statement, fenced on owner, generation and state. Rows are
-- locked in the order of ids, like everywhere.

-- name: finalize_batch :many
-- edge: RUNNING -> COMPLETED; RUNNING -> FAILED; RUNNING -> CANCELLED; RUNNING -> PENDING
-- params: ids, generations, owners, statuses, results, error_codes, error_messages, failed_reasons, outcomes, retry_delays, budgets, started, finished, pids, process_names
-- `statuses` is what the worker decided; three things only the row knows: a retry that would land past good_until
-- fails instead, one of a task that somebody wants cancelled ends CANCELLED, and one beyond the budget fails.
-- `outcomes` is NULL for an attempt that never started and leaves no attempt row (a cancel that came in time).
-- `started` and `finished` are the real span of user code, placed on this clock and kept inside what it allows.
-- An id that does not come back is not the caller's any more, or was written by an earlier try (find_written_batch).
WITH input AS MATERIALIZED (
    SELECT * FROM unnest($1::text[], $2::int[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
                         $9::text[], $10::interval[], $11::int[], $12::timestamptz[], $13::timestamptz[], $14::int[],
                         $15::text[])
        AS x (id, generation, owner, status, result, error_code, error_message, failed_reason, outcome, retry_delay,
              budget, started, finished, pid, process_name)
), mine AS MATERIALIZED (
    SELECT x.*, t.retry_count + 1 AS attempt, greatest(t.max_retries, x.budget) AS max_retries,
           CASE WHEN x.status <> 'PENDING' THEN x.status
                WHEN t.cancel_requested_at IS NOT NULL THEN 'CANCELLED'
                WHEN t.good_until <= statement_timestamp() + x.retry_delay THEN 'FAILED'
                WHEN t.retry_count >= greatest(t.max_retries, x.budget) THEN 'FAILED'
                ELSE 'PENDING' END AS target,
           least(greatest(x.finished, t.started_at), greatest(statement_timestamp(), t.started_at)) AS ended,
           t.started_at AS row_started, t.worker_hostname
      FROM input x JOIN horsies_tasks t ON t.id = x.id AND t.claim_generation = x.generation
     WHERE t.status = 'RUNNING' AND t.claimed_by_worker_id = x.owner
     ORDER BY t.id FOR UPDATE OF t
), moved AS (
    UPDATE horsies_tasks t
       SET status = m.target,
           retry_count = t.retry_count + (m.target = 'PENDING')::int,
           max_retries = m.max_retries,
           next_retry_at = CASE WHEN m.target = 'PENDING' THEN statement_timestamp() + m.retry_delay ELSE t.next_retry_at END,
           enqueued_at = CASE WHEN m.target = 'PENDING' THEN statement_timestamp() + m.retry_delay ELSE t.enqueued_at END,
           claimed_at = CASE WHEN m.target <> 'PENDING' THEN t.claimed_at END,
           claimed_by_worker_id = CASE WHEN m.target <> 'PENDING' THEN t.claimed_by_worker_id END,
           started_at = CASE WHEN m.target <> 'PENDING' AND m.outcome IS NOT NULL THEN t.started_at END,
           completed_at = CASE WHEN m.target = 'COMPLETED' THEN statement_timestamp() END,
           failed_at = CASE WHEN m.target = 'FAILED' THEN statement_timestamp() END,
           terminal_at = CASE WHEN m.target <> 'PENDING' THEN statement_timestamp() END,
           result = CASE WHEN m.target <> 'PENDING' THEN m.result END,
           error_code = CASE WHEN m.target NOT IN ('PENDING', 'COMPLETED') THEN m.error_code END,
           failed_reason = CASE WHEN m.target <> 'PENDING' THEN m.failed_reason END,
           worker_pid = CASE WHEN m.target <> 'PENDING' THEN m.pid END,
           worker_process_name = CASE WHEN m.target <> 'PENDING' THEN m.process_name END,
           worker_hostname = CASE WHEN m.target <> 'PENDING' THEN t.worker_hostname END,
           finalizing_at = NULL, finalizing_by_worker_id = NULL,
           updated_at = statement_timestamp()
      FROM mine m
     WHERE t.id = m.id AND t.status = 'RUNNING'
    RETURNING t.id, t.status, t.is_workflow_task
), history AS (
    INSERT INTO horsies_task_attempts (task_id, attempt, outcome, will_retry, started_at, finished_at, error_code,
                                       error_message, failed_reason, worker_id, worker_hostname, worker_pid,
                                       worker_process_name)
    SELECT m.id, m.attempt, m.outcome, m.target = 'PENDING', least(greatest(m.started, m.row_started), m.ended), m.ended,
           m.error_code, m.error_message, m.failed_reason, m.owner, m.worker_hostname, m.pid, m.process_name
      FROM mine m JOIN moved ON moved.id = m.id
     WHERE m.outcome IS NOT NULL
)
SELECT id, status, is_workflow_task FROM moved;

-- name: find_written_batch :many
-- params: ids, attempts, worker_id
-- After an answer that was lost: which of these attempts did this worker write already?
SELECT a.task_id AS id FROM unnest($1::text[], $2::int[]) AS x (id, attempt)
  JOIN horsies_task_attempts a ON a.task_id = x.id AND a.attempt = x.attempt AND a.worker_id = $3;

-- name: stage_batch :many
-- params: worker_id, ids, generations, results, started, finished, pids, process_names
-- A result in hand that could not be written at once: marked, with the outcome, so that the reaper can finish it
-- should this worker die now. The row learns the real span and the real process for the same reason: the attempt that
-- the reaper writes must not seem to overlap with what that child ran next. SKIP LOCKED: whoever holds a row must not
-- keep the heartbeats waiting, which come after this on the same connection; it is tried again.
WITH mine AS MATERIALIZED (
    SELECT t.id, x.result, x.pid, x.process_name, greatest(t.started_at, x.started) AS started,
           greatest(t.started_at, least(x.finished, statement_timestamp())) AS finished
      FROM unnest($2::text[], $3::int[], $4::text[], $5::timestamptz[], $6::timestamptz[], $7::int[], $8::text[])
           AS x (id, generation, result, started, finished, pid, process_name)
      JOIN horsies_tasks t ON t.id = x.id AND t.claim_generation = x.generation
     WHERE t.status = 'RUNNING' AND t.claimed_by_worker_id = $1
     ORDER BY t.id FOR UPDATE OF t SKIP LOCKED
)
UPDATE horsies_tasks t
   SET finalizing_at = coalesce(t.finalizing_at, mine.finished), finalizing_by_worker_id = $1, result = mine.result,
       started_at = least(mine.started, mine.finished), worker_pid = mine.pid,
       worker_process_name = mine.process_name, updated_at = statement_timestamp()
  FROM mine
 WHERE t.id = mine.id AND t.status = 'RUNNING'
RETURNING t.id;

-- name: write_progress_batch :none
-- params: worker_id, ids, generations, values
UPDATE horsies_tasks t SET progress = x.value::jsonb, updated_at = statement_timestamp()
  FROM unnest($2::text[], $3::int[], $4::text[]) AS x (id, generation, value)
 WHERE t.id = x.id AND t.status = 'RUNNING' AND t.claimed_by_worker_id = $1 AND t.claim_generation = x.generation;
