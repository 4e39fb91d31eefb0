-- The end of an attempt. One statement writes task row and attempt row, fenced on owner, generation and state. It skips
-- rows that another session has locked: one forgotten transaction on one row must not delay the results of all others
-- (it delayed them by 15 s each time). A statement that never waits needs no order of locks. It finds each row by its key
-- once and writes it by its ctid; a row that changed between the statement's snapshot and its lock has another ctid, and
-- counts as skipped. Plans are generic and may be made on an empty table: the planner cannot reorder a LATERAL with LIMIT
-- or FOR UPDATE (a plain join read 54,728 pages for one id), and a guard written with || '' matches no partial index
-- (with one, the planner would read all tasks in flight).

-- name: complete_batch :many
-- edge: RUNNING -> COMPLETED
-- params: worker_id, ids, generations, results, started_us, finished_us, pids, process_names
-- Nearly every attempt ends like this: user code returned ok. finalize_batch would write the same rows, but takes 29
-- instead of 10 µs per row in the worker (15 arrays to encode instead of 7) and 5 µs more in the server. Arrays of numbers
-- come as text, which asyncpg encodes in a third of the time.
WITH mine AS MATERIALIZED (
    SELECT x.id, x.result, x.pid, x.process_name, to_timestamp(x.started_us / 1e6::float8) AS started, t.*,
           least(greatest(to_timestamp(x.finished_us / 1e6::float8), t.row_started),
                 greatest(statement_timestamp(), t.row_started)) AS ended
      FROM unnest($2::text[], $3::text::int[], $4::text[], $5::text::bigint[], $6::text::bigint[],
                  $7::text::int[], $8::text[])
           AS x (id, generation, result, started_us, finished_us, pid, process_name)
     CROSS JOIN LATERAL (SELECT t.ctid AS tid, t.retry_count + 1 AS attempt, t.started_at AS row_started,
                                t.worker_hostname
                           FROM horsies_tasks t
                          WHERE t.id = x.id AND t.claim_generation = x.generation AND t.claimed_by_worker_id = $1
                            AND t.status || '' = 'RUNNING' FOR UPDATE SKIP LOCKED) AS t
), moved AS (
    UPDATE horsies_tasks t
       SET status = 'COMPLETED', completed_at = statement_timestamp(), terminal_at = statement_timestamp(),
           result = m.result, worker_pid = m.pid, worker_process_name = m.process_name,
           finalizing_at = NULL, finalizing_by_worker_id = NULL, updated_at = statement_timestamp()
      FROM mine m
     WHERE t.ctid = m.tid
    RETURNING m.id, m.attempt, m.started, m.row_started, m.ended, m.worker_hostname, m.pid, m.process_name
), history AS (
    INSERT INTO horsies_task_attempts (task_id, attempt, outcome, started_at, finished_at, worker_id, worker_hostname,
                                       worker_pid, worker_process_name)
    SELECT id, attempt, 'COMPLETED', least(greatest(started, row_started), ended), ended, $1, worker_hostname, pid,
           process_name
      FROM moved
)
SELECT id FROM moved;

-- name: complete_task :many
-- edge: RUNNING -> COMPLETED
-- params: worker_id, id, generation, result, started, finished, pid, process_name
-- complete_batch for a single task, without unnest and join: 421 instead of 483 µs. An idle worker writes one at a time.
WITH moved AS (
    UPDATE horsies_tasks t
       SET status = 'COMPLETED', completed_at = statement_timestamp(), terminal_at = statement_timestamp(),
           result = $4::text, worker_pid = $7::int, worker_process_name = $8::varchar,
           finalizing_at = NULL, finalizing_by_worker_id = NULL, updated_at = statement_timestamp()
     WHERE t.ctid = (SELECT r.ctid FROM horsies_tasks r
                      WHERE r.id = $2::varchar AND r.claim_generation = $3::int AND r.claimed_by_worker_id = $1::varchar
                        AND r.status || '' = 'RUNNING' FOR UPDATE SKIP LOCKED)
    RETURNING t.id, t.retry_count + 1 AS attempt, t.started_at AS row_started, t.worker_hostname,
              least(greatest(to_timestamp($6::float8), t.started_at),
                    greatest(statement_timestamp(), t.started_at)) AS ended
), history AS (
    INSERT INTO horsies_task_attempts (task_id, attempt, outcome, started_at, finished_at, worker_id, worker_hostname,
                                       worker_pid, worker_process_name)
    SELECT id, attempt, 'COMPLETED', least(greatest(to_timestamp($5::float8), row_started), ended), ended, $1::varchar,
           worker_hostname, $7::int, $8::varchar
      FROM moved
)
SELECT id FROM moved;

-- name: finalize_batch :many
-- edge: RUNNING -> COMPLETED; RUNNING -> FAILED; RUNNING -> CANCELLED; RUNNING -> PENDING
-- params: ids, generations, owners, statuses, results, error_codes, error_messages, failed_reasons, outcomes, retry_delays, budgets, started, finished, pids, process_names, cancelled_result, crash_limits, limit_results
-- The worker decides `statuses`, but only the row knows whether a retry is still possible: a retry after good_until
-- fails instead, a retry of a task with a cancel request becomes CANCELLED (with cancelled_result; the attempt keeps
-- its own error), and a retry beyond the budget fails.
-- `outcomes` is NULL for an attempt that never started, such as one cancelled in time, and for a snooze, which goes back
-- to PENDING: neither leaves an attempt row. A snoozed task whose good_until passes before it runs again is expired by
-- the reaper or by a claim.
-- `crash_limits` is set for a crash under `max_crashes` (0: one that does not count). Its retry raises the budget, so that
-- the retries of errors stay what they were; the crash that reaches the limit ends the task with limit_results.
-- `started` and `finished` say when user code ran, in seconds of this clock; they are moved between the row's start and
-- now. An id that is not returned has lost its claim, was written by an earlier statement (find_written_batch), or is
-- locked by another session (read_owned_batch).
WITH mine AS MATERIALIZED (
    SELECT x.id, x.generation, x.owner, x.status, x.result, x.error_code, x.error_message, x.failed_reason, x.outcome,
           x.started, x.finished, x.pid, x.process_name, x.crash_limit, x.limit_result, x.retry_delay, t.tid, t.crash_count, k.*,
           t.retry_count + 1 AS attempt, greatest(t.max_retries, x.budget) AS max_retries,
           CASE WHEN x.status <> 'PENDING' THEN x.status
                WHEN t.cancel_requested_at IS NOT NULL THEN 'CANCELLED'
                WHEN x.outcome IS NULL THEN 'PENDING'
                WHEN k.is_last_crash THEN 'FAILED'
                WHEN t.good_until <= statement_timestamp() + x.retry_delay THEN 'FAILED'
                WHEN t.retry_count >= least(10000, greatest(t.max_retries, x.budget) + k.raised) THEN 'FAILED'
                ELSE 'PENDING' END AS target,
           least(greatest(to_timestamp(x.finished), t.started_at), greatest(statement_timestamp(), t.started_at)) AS ended,
           t.started_at AS row_started, t.worker_hostname
      FROM unnest($1::text[], $2::int[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::text[],
                  $9::text[], $10::interval[], $11::int[], $12::float8[], $13::float8[], $14::int[],
                  $15::text[], $17::int[], $18::text[])
           AS x (id, generation, owner, status, result, error_code, error_message, failed_reason, outcome, retry_delay,
                 budget, started, finished, pid, process_name, crash_limit, limit_result)
     CROSS JOIN LATERAL (SELECT t.ctid AS tid, t.retry_count, t.max_retries, t.cancel_requested_at, t.good_until,
                                t.started_at, t.worker_hostname, t.crash_count
                           FROM horsies_tasks t
                          WHERE t.id = x.id AND t.claim_generation = x.generation AND t.claimed_by_worker_id = x.owner
                            AND t.status || '' = 'RUNNING' FOR UPDATE SKIP LOCKED) AS t
     CROSS JOIN LATERAL (SELECT x.crash_limit > 0 AND t.crash_count + 1 >= x.crash_limit
                                    AND t.cancel_requested_at IS NULL AS is_last_crash,
                                (x.crash_limit IS NOT NULL)::int AS raised) AS k
), moved AS (
    UPDATE horsies_tasks t
       SET status = m.target,
           retry_count = t.retry_count + (m.target = 'PENDING' AND m.outcome IS NOT NULL)::int,
           max_retries = CASE WHEN m.target = 'PENDING' THEN least(10000, m.max_retries + m.raised) ELSE m.max_retries END,
           snoozes = CASE WHEN m.target = 'PENDING' AND m.outcome IS NULL THEN least(t.snoozes, 32766) + 1 ELSE t.snoozes END,
           crash_count = CASE WHEN m.crash_limit > 0 THEN least(t.crash_count, 32766) + 1 ELSE t.crash_count END,
           next_retry_at = CASE WHEN m.target <> 'PENDING' THEN t.next_retry_at
                                WHEN m.outcome IS NOT NULL THEN statement_timestamp() + m.retry_delay END,
           enqueued_at = CASE WHEN m.target = 'PENDING' THEN statement_timestamp() + m.retry_delay ELSE t.enqueued_at END,
           claimed_at = CASE WHEN m.target <> 'PENDING' THEN t.claimed_at END,
           claimed_by_worker_id = CASE WHEN m.target <> 'PENDING' THEN t.claimed_by_worker_id END,
           started_at = CASE WHEN m.target <> 'PENDING' AND m.outcome IS NOT NULL THEN t.started_at END,
           completed_at = CASE WHEN m.target = 'COMPLETED' THEN statement_timestamp() END,
           failed_at = CASE WHEN m.target = 'FAILED' THEN statement_timestamp() END,
           terminal_at = CASE WHEN m.target <> 'PENDING' THEN statement_timestamp() END,
           result = CASE WHEN m.target = 'PENDING' THEN NULL
                         WHEN m.target = 'CANCELLED' AND m.status = 'PENDING' THEN $16::text
                         WHEN m.is_last_crash THEN m.limit_result ELSE m.result END,
           error_code = CASE WHEN m.target = 'PENDING' THEN NULL
                             WHEN m.target = 'CANCELLED' AND m.status = 'PENDING' THEN 'TASK_CANCELLED'
                             WHEN m.is_last_crash THEN 'CRASH_LIMIT' ELSE m.error_code END,
           failed_reason = CASE WHEN m.target <> 'PENDING' THEN m.failed_reason END,
           worker_pid = CASE WHEN m.target <> 'PENDING' THEN m.pid END,
           worker_process_name = CASE WHEN m.target <> 'PENDING' THEN m.process_name END,
           worker_hostname = CASE WHEN m.target <> 'PENDING' THEN t.worker_hostname END,
           finalizing_at = NULL, finalizing_by_worker_id = NULL,
           updated_at = statement_timestamp()
      FROM mine m
     WHERE t.ctid = m.tid
    RETURNING m.*, t.is_workflow_task
), history AS (
    INSERT INTO horsies_task_attempts (task_id, attempt, outcome, will_retry, started_at, finished_at, error_code,
                                       error_message, failed_reason, worker_id, worker_hostname, worker_pid,
                                       worker_process_name)
    SELECT id, attempt, outcome, target = 'PENDING', least(greatest(to_timestamp(started), row_started), ended), ended, error_code,
           error_message, failed_reason, owner, worker_hostname, pid, process_name
      FROM moved
     WHERE outcome IS NOT NULL
)
SELECT id, target AS status, is_workflow_task, is_last_crash FROM moved;

-- name: find_written_batch :many
-- params: ids, attempts, worker_id, outcomes
-- Returns the attempts that were written already: by this worker, whose answer was lost, or by a task of this worker that
-- completed itself. The outcome tells them from those that a reaper wrote with the same worker_id, which are
-- WORKER_FAILURE.
SELECT x.id FROM unnest($1::text[], $2::int[], $4::text[]) AS x (id, attempt, outcome)
 CROSS JOIN LATERAL (SELECT FROM horsies_task_attempts a
                      WHERE a.task_id = x.id AND a.attempt = x.attempt AND a.worker_id = $3 AND a.outcome = x.outcome
                      LIMIT 1) AS a;

-- name: read_owned_batch :many
-- params: worker_id, ids, generations
-- Returns the tasks that this worker still owns, and their states. For rows that a statement skipped.
SELECT x.id, t.status FROM unnest($2::text[], $3::int[]) AS x (id, generation)
 CROSS JOIN LATERAL (SELECT t.status FROM horsies_tasks t
                      WHERE t.id = x.id AND t.claim_generation = x.generation AND t.claimed_by_worker_id = $1
                        AND t.status || '' IN ('CLAIMED', 'RUNNING') LIMIT 1) AS t;

-- name: end_holder :value
-- params: task_id, seconds
-- Ends the session whose open transaction has changed or locked this task, if that transaction began so long ago. A role may end
-- the sessions of its own role; for others it needs pg_signal_backend.
-- MATERIALIZED: as a mere condition, pg_terminate_backend would be called for sessions that the joins leave out.
WITH holder AS MATERIALIZED (
    SELECT a.pid
    {{with_holder}}
     WHERE t.id = $1::text AND a.xact_start < statement_timestamp() - make_interval(secs => $2::float8)
)
SELECT pid FROM holder WHERE pg_terminate_backend(pid);

-- name: read_timeline :one
-- Every promotion of a standby begins a timeline with a higher number, the first eight digits of a WAL file's name.
SELECT s.system_identifier,
       ('x' || left(pg_catalog.pg_walfile_name(pg_catalog.pg_current_wal_lsn()), 8))::bit(32)::bigint AS timeline
  FROM pg_catalog.pg_control_system() AS s;

-- name: list_owned :many
-- params: worker_id
-- Returns every task that this worker owns. Reads the index of tasks in flight.
SELECT id, claim_generation FROM horsies_tasks
 WHERE status IN ('CLAIMED', 'RUNNING') AND claimed_by_worker_id = $1;

-- name: stage_batch :many
-- params: worker_id, ids, generations, results, started_us, finished_us, pids, process_names
-- Stores a result that could not be written at once, so that the reaper can finish the task if this worker dies now.
-- The row also gets the real times and the real process: the attempt that the reaper writes must not seem to overlap
-- with the child's next job. (A row that was claimed in time and whose user code began after good_until keeps its start: a
-- row that started too late is refused, and its result would not be staged.) SKIP LOCKED: a locked row must not delay the heartbeats, which follow on the same
-- connection; the next call tries it again.
WITH mine AS MATERIALIZED (
    SELECT t.tid, x.result, x.pid, x.process_name,
           greatest(t.started_at, to_timestamp(x.started_us / 1e6::float8)) AS started,
           greatest(t.started_at, least(to_timestamp(x.finished_us / 1e6::float8), statement_timestamp())) AS finished
      FROM unnest($2::text[], $3::text::int[], $4::text[], $5::text::bigint[], $6::text::bigint[],
                  $7::text::int[], $8::text[])
           AS x (id, generation, result, started_us, finished_us, pid, process_name)
     CROSS JOIN LATERAL (SELECT t.ctid AS tid, t.started_at FROM horsies_tasks t
                          WHERE t.id = x.id AND t.claim_generation = x.generation AND t.claimed_by_worker_id = $1
                            AND t.status || '' = 'RUNNING' FOR UPDATE SKIP LOCKED) AS t
)
UPDATE horsies_tasks t
   SET finalizing_at = coalesce(t.finalizing_at, mine.finished), finalizing_by_worker_id = $1, result = mine.result,
       started_at = CASE WHEN t.good_until <= least(mine.started, mine.finished) THEN t.started_at
                         ELSE least(mine.started, mine.finished) END, worker_pid = mine.pid,
       worker_process_name = mine.process_name, updated_at = statement_timestamp()
  FROM mine
 WHERE t.ctid = mine.tid
RETURNING t.id;

-- name: write_progress_batch :many
-- params: worker_id, ids, generations, values
WITH mine AS MATERIALIZED (
    SELECT t.tid, x.value FROM unnest($2::text[], $3::int[], $4::text[]) AS x (id, generation, value)
     CROSS JOIN LATERAL (SELECT t.ctid AS tid FROM horsies_tasks t
                          WHERE t.id = x.id AND t.claim_generation = x.generation AND t.claimed_by_worker_id = $1
                            AND t.status || '' = 'RUNNING' FOR UPDATE SKIP LOCKED) AS t
)
UPDATE horsies_tasks t SET progress = mine.value::jsonb, updated_at = statement_timestamp()
  FROM mine WHERE t.ctid = mine.tid
RETURNING t.id;
