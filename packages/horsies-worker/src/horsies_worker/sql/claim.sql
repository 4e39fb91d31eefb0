-- From PENDING into a worker's hands. Measured advice behind every odd line: the pick walks distinct
-- (queue, priority) pairs, so future and finished rows cost nothing; the write goes by ctid, because a generic
-- plan would otherwise hash-join the whole table; the outer guard is written so that it implies no index predicate.
-- Times are statement_timestamp(): stable, hence index conditions, and newer than a lock that was waited for.

-- name: lock_caps :none
-- params: key
-- Alone in its statement: a count in the same one would have a snapshot older than the lock, and exceed the cap.
SELECT pg_advisory_xact_lock($1, hashtext(coalesce(current_schema(), '')));

-- name: is_capped :value
-- params: cap_queues, caps, cluster_cap
-- Is a cap exhausted? Asked under the lock of the caps, after a claim that brought nothing.
SELECT EXISTS (SELECT FROM unnest($1::text[], $2::int[]) AS c (name, cap)
                WHERE c.cap <= (SELECT count(*) FROM horsies_tasks t WHERE t.queue_name = c.name
                                   AND t.status IN ('CLAIMED', 'RUNNING')))
       OR $3::int <= (SELECT count(*) FROM horsies_tasks t WHERE t.status IN ('CLAIMED', 'RUNNING'));

-- name: claim_batch :many
-- edge: PENDING -> CLAIMED; PENDING -> RUNNING; PENDING -> EXPIRED
-- params: discover, row_limit, hint_queues, hint_priorities, hint_since, cap_queues, caps, cluster_cap, worker_id, hostname, pid, process_name, lease, async_names, short_names, other_names, room_async, room_sync, room_ahead, prefetch, expired_result, look, floor
-- Looks at the first `look` ready tasks in the order priority, enqueued_at, id, over all queues, and claims at most
-- row_limit of them. Only names of the lists exist for it: the rows of other names are filtered out by the scan itself,
-- so they are neither locked nor written, keep their place in line, and hide nothing behind them. The walk past them
-- is what costs: 8,809 buffers for 100,000 of them, 116 from a `since` and 124 from a `floor` behind them (100 rows). The
-- list is hashed (IS TRUE keeps the planner from making a join of it): with 1,000 names, = ANY took 50 times as long.
-- Every task is of one kind, by its name: `async` ones have room_async places; `other` ones have
-- room_sync; `short` ones have what those leave of room_sync, and room_ahead behind them. What has a place becomes
-- RUNNING in the same write; up to `prefetch` of the rest, in order, become CLAIMED; the others are passed over,
-- unlocked. What is overdue ends EXPIRED and is consumed once. A task of a workflow that is paused or has ended is withdrawn (client's workflows.sql): it came
-- back from a worker after the pause, and would otherwise be looked at by every claim. Fewer rows than asked for does not mean an empty queue: rows that others lock are skipped.
-- `since` of a returned row is the oldest that was seen in its (queue, priority): the next claim's hint.
WITH RECURSIVE found AS (
    -- one index descent per distinct (queue, priority); `> p.priority` would begin one leaf page too early
    SELECT q.name::text AS queue_name, f.priority FROM unnest($1::text[]) AS q (name)
     CROSS JOIN LATERAL (SELECT t.priority FROM horsies_tasks t WHERE t.status = 'PENDING' AND t.queue_name = q.name
                          ORDER BY t.priority LIMIT 1) AS f
    UNION ALL
    SELECT p.queue_name, f.priority FROM found p
     CROSS JOIN LATERAL (SELECT t.priority FROM horsies_tasks t WHERE t.status = 'PENDING'
                            AND t.queue_name = p.queue_name AND t.priority >= p.priority + 1
                          ORDER BY t.priority LIMIT 1) AS f
), room AS MATERIALIZED (
    -- what is left of each queue's cap; a queue without a cap has no row here
    SELECT c.name AS queue_name, c.cap - (SELECT count(*) FROM horsies_tasks t WHERE t.queue_name = c.name
                                             AND t.status IN ('CLAIMED', 'RUNNING')) AS n
      FROM unnest($6::text[], $7::int[]) AS c (name, cap)
), budget AS MATERIALIZED (
    SELECT CASE WHEN $8::int IS NULL THEN $2::bigint
                ELSE greatest(0, least($2::bigint, $8::int - (SELECT count(*) FROM horsies_tasks t
                                                               WHERE t.status IN ('CLAIMED', 'RUNNING')))) END AS n
), pair AS (
    -- no floor: a full scan
    SELECT queue_name, priority, coalesce($23::timestamptz, '-infinity') AS since FROM found
    UNION ALL
    -- pairs of an earlier claim: nothing before `since` was left there, so dead entries need not be walked
    SELECT * FROM unnest($3::text[], $4::int[], $5::timestamptz[])
), line AS MATERIALIZED (
    -- no locks: who stands in front, in global order, and what each needs
    SELECT x.*, row_number() OVER () AS at FROM (
        SELECT p.queue_name, p.priority, r.enqueued_at, r.kind
          FROM (SELECT pair.* FROM pair LEFT JOIN room ON room.queue_name = pair.queue_name
                 WHERE room.n IS NULL OR room.n > 0 ORDER BY pair.priority) AS p
         CROSS JOIN LATERAL (SELECT t.enqueued_at, t.id,
                                    CASE WHEN t.good_until <= statement_timestamp() THEN 'expired'
                                         WHEN t.is_workflow_task AND (SELECT w.status FROM horsies_workflow_tasks n, horsies_workflows w
                                              WHERE n.task_id = t.id AND w.id = n.workflow_id) <> 'RUNNING' THEN 'stopped'
                                         WHEN t.task_name = ANY ($14::text[]) THEN 'async'
                                         WHEN t.task_name = ANY ($15::text[]) THEN 'short'
                                         ELSE 'other' END AS kind
                               FROM horsies_tasks t
                              WHERE t.status = 'PENDING' AND t.queue_name = p.queue_name AND t.priority = p.priority
                                AND t.enqueued_at >= p.since AND t.enqueued_at <= statement_timestamp()
                                AND (t.task_name IN (SELECT unnest($14::text[] || $16::text[]))) IS TRUE
                              ORDER BY t.enqueued_at, t.id LIMIT $22::int) AS r
         ORDER BY p.priority, r.enqueued_at, r.id LIMIT $22::int) AS x
), placed AS (
    -- is there a place for it
    SELECT line.*, kind IN ('expired', 'stopped')
                   OR row_number() OVER (PARTITION BY kind ORDER BY at)
                      <= CASE kind WHEN 'async' THEN $17::int WHEN 'other' THEN $18::int
                              ELSE greatest(0, $18::int - count(*) FILTER (WHERE kind = 'other') OVER ()) + $19::int
                         END AS runs
      FROM line
), held AS (
    -- or in the buffer
    SELECT *, runs OR count(*) FILTER (WHERE NOT runs) OVER (ORDER BY at) <= $20::int AS taken FROM placed
), quota AS MATERIALIZED (
    -- so many of each kind from each pair; where kinds stand mixed, from no further than was looked
    SELECT queue_name, priority, kind, count(*) FILTER (WHERE taken) AS n, count(*) FILTER (WHERE taken AND runs) AS runs,
           min(min(enqueued_at)) OVER same_pair AS since,
           CASE WHEN count(*) OVER same_pair = 1 THEN 'infinity' ELSE max(max(enqueued_at)) OVER same_pair END AS until
      FROM (SELECT queue_name, priority, kind, enqueued_at, runs,
                   taken AND count(*) FILTER (WHERE taken) OVER (ORDER BY at) <= (SELECT n FROM budget) AS taken
              FROM held) AS x
     GROUP BY queue_name, priority, kind
    WINDOW same_pair AS (PARTITION BY queue_name, priority)
), allowed AS (
    -- within a queue's cap the higher priorities come first
    SELECT q.*, greatest(0, least(q.n, room.n - coalesce(sum(q.n) OVER (
                    PARTITION BY q.queue_name ORDER BY q.priority, q.kind
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0))) AS row_limit
      FROM quota q LEFT JOIN room ON room.queue_name = q.queue_name
     WHERE q.n > 0
), picked AS MATERIALIZED (
    -- locks: that many, skipping what others hold
    SELECT r.tid, k.since, CASE WHEN k.kind = 'expired' THEN 'EXPIRED'
                                WHEN k.kind = 'stopped' THEN 'PENDING'
                                WHEN r.nth <= k.runs THEN 'RUNNING'
                                ELSE 'CLAIMED' END AS status
      FROM allowed k CROSS JOIN LATERAL (SELECT tid, row_number() OVER () AS nth FROM (
        SELECT t.ctid AS tid FROM horsies_tasks t
         WHERE t.status = 'PENDING' AND t.queue_name = k.queue_name AND t.priority = k.priority
           AND t.enqueued_at >= k.since AND t.enqueued_at <= least(k.until, statement_timestamp())
           AND (t.task_name IN (SELECT unnest($14::text[] || $16::text[]))) IS TRUE
           AND CASE WHEN t.good_until <= statement_timestamp() THEN 'expired'
                    WHEN t.is_workflow_task AND (SELECT w.status FROM horsies_workflow_tasks n, horsies_workflows w
                         WHERE n.task_id = t.id AND w.id = n.workflow_id) <> 'RUNNING' THEN 'stopped'
                    WHEN t.task_name = ANY ($14::text[]) THEN 'async'
                    WHEN t.task_name = ANY ($15::text[]) THEN 'short'
                    ELSE 'other' END = k.kind
         ORDER BY t.enqueued_at, t.id LIMIT k.row_limit FOR UPDATE SKIP LOCKED) AS locked) AS r
)
UPDATE horsies_tasks t
   SET status = c.status,
       claimed = c.status = 'CLAIMED',
       claim_generation = t.claim_generation + 1,
       claimed_by_worker_id = CASE WHEN c.status IN ('CLAIMED', 'RUNNING') THEN $9::varchar END,
       claimed_at = CASE WHEN c.status IN ('CLAIMED', 'RUNNING') THEN statement_timestamp() END,
       claim_expires_at = CASE WHEN c.status = 'CLAIMED' THEN statement_timestamp() + $13::interval END,
       started_at = CASE WHEN c.status = 'RUNNING' THEN statement_timestamp() END,
       worker_hostname = CASE WHEN c.status = 'RUNNING' THEN $10::varchar END,
       worker_pid = CASE WHEN c.status = 'RUNNING' THEN $11::int END,
       worker_process_name = CASE WHEN c.status = 'RUNNING' THEN $12::varchar END,
       result = CASE WHEN c.status = 'EXPIRED' THEN $21::text END,
       error_code = CASE WHEN c.status = 'EXPIRED' THEN 'TASK_EXPIRED' END,
       failed_at = CASE WHEN c.status = 'EXPIRED' THEN statement_timestamp() END,
       terminal_at = CASE WHEN c.status = 'EXPIRED' THEN statement_timestamp() END,
       enqueued_at = CASE WHEN c.status = 'PENDING' THEN t.enqueued_at + interval '500 years' ELSE t.enqueued_at END,
       updated_at = statement_timestamp()
  FROM picked c
 WHERE t.ctid = c.tid AND t.status || '' = 'PENDING'
RETURNING t.id, t.status, t.claim_generation, t.task_name, t.args, t.kwargs, t.queue_name, t.priority, t.enqueued_at,
          t.retry_count, t.max_retries, t.task_options, t.is_workflow_task, c.since;

-- name: claim_next_batch :many
-- edge: PENDING -> RUNNING
-- params: queue_name, priority, since, row_limit, names, worker_id, hostname, pid, process_name, known_names
-- More of the same: the first row_limit of one (queue, priority) that an earlier claim_batch took from, as far as they
-- are of `names` (NULL: all known ones), not overdue and not a workflow's. Other tasks of `known_names` among them are
-- left as they are, and the batch that comes back short tells the worker to look at all there is. Rows of any other name
-- do not count. 38 instead of 52 µs of the server per row in batches of 64, and for a single one 0.87 instead of 1.10 ms:
-- one walk along the index instead of two, and nothing to count.
WITH picked AS MATERIALIZED (
    SELECT r.tid, min(r.enqueued_at) OVER () AS since
      FROM (SELECT t.ctid AS tid, t.enqueued_at, t.task_name, t.good_until, t.is_workflow_task FROM horsies_tasks t
             WHERE t.status = 'PENDING' AND t.queue_name = $1::text AND t.priority = $2::int
               AND t.enqueued_at >= $3::timestamptz AND t.enqueued_at <= statement_timestamp()
               AND (t.task_name IN (SELECT unnest($10::text[]))) IS TRUE
             ORDER BY t.enqueued_at, t.id LIMIT $4::int FOR UPDATE SKIP LOCKED) AS r
     WHERE ($5::text[] IS NULL OR r.task_name = ANY ($5::text[])) AND NOT r.is_workflow_task
       AND (r.good_until <= statement_timestamp()) IS NOT TRUE
)
UPDATE horsies_tasks t
   SET status = 'RUNNING', claim_generation = t.claim_generation + 1, claimed_by_worker_id = $6::varchar,
       claimed_at = statement_timestamp(), started_at = statement_timestamp(), worker_hostname = $7::varchar,
       worker_pid = $8::int, worker_process_name = $9::varchar, updated_at = statement_timestamp()
  FROM picked c
 WHERE t.ctid = c.tid AND t.status || '' = 'PENDING'
RETURNING t.id, t.status, t.claim_generation, t.task_name, t.args, t.kwargs, t.queue_name, t.priority, t.enqueued_at,
          t.retry_count, t.max_retries, t.task_options, t.is_workflow_task, c.since;

-- name: start_batch :many
-- edge: CLAIMED -> RUNNING; CLAIMED -> EXPIRED; CLAIMED -> PENDING
-- params: worker_id, ids, generations, hostname, pid, process_name, expired_result
-- An id that does not come back was lost (cancelled, requeued, lease over) and its user code does not run; or it was
-- started by an earlier try whose answer was lost, or is locked by somebody just now (read_held_batch tells). A task of
-- a workflow that is paused or has ended goes back, withdrawn: WORKFLOW_STOPPED.
WITH mine AS MATERIALIZED (
    SELECT t.tid, CASE WHEN t.good_until <= statement_timestamp() THEN 'EXPIRED'
                       WHEN t.is_workflow_task AND (SELECT w.status FROM horsies_workflow_tasks n, horsies_workflows w
                            WHERE n.task_id = x.id AND w.id = n.workflow_id) <> 'RUNNING' THEN 'PENDING'
                       ELSE 'RUNNING' END AS target
      FROM unnest($2::text[], $3::int[]) AS x (id, generation)
     CROSS JOIN LATERAL (SELECT t.ctid AS tid, t.good_until, t.is_workflow_task FROM horsies_tasks t
                          WHERE t.id = x.id AND t.claim_generation = x.generation AND t.claimed_by_worker_id = $1
                            AND t.status || '' = 'CLAIMED' AND t.claim_expires_at > statement_timestamp()
                            FOR UPDATE SKIP LOCKED) AS t
)
UPDATE horsies_tasks t
   SET status = mine.target, claimed = false, claim_expires_at = NULL,
       claimed_at = CASE WHEN mine.target <> 'PENDING' THEN t.claimed_at END,
       claimed_by_worker_id = CASE WHEN mine.target <> 'PENDING' THEN t.claimed_by_worker_id END,
       started_at = CASE WHEN mine.target = 'RUNNING' THEN statement_timestamp() END,
       worker_hostname = CASE WHEN mine.target = 'RUNNING' THEN $4::varchar END,
       worker_pid = CASE WHEN mine.target = 'RUNNING' THEN $5::int END,
       worker_process_name = CASE WHEN mine.target = 'RUNNING' THEN $6::varchar END,
       result = CASE WHEN mine.target = 'EXPIRED' THEN $7::text END,
       error_code = CASE WHEN mine.target = 'EXPIRED' THEN 'TASK_EXPIRED' END,
       failed_at = CASE WHEN mine.target = 'EXPIRED' THEN statement_timestamp() END,
       terminal_at = CASE WHEN mine.target = 'EXPIRED' THEN statement_timestamp() END,
       enqueued_at = CASE WHEN mine.target = 'PENDING' THEN t.enqueued_at + interval '500 years'
                          ELSE t.enqueued_at END,
       updated_at = statement_timestamp()
  FROM mine
 WHERE t.ctid = mine.tid
RETURNING t.id, t.status;

-- name: hand_back_batch :many
-- edge: CLAIMED -> PENDING; RUNNING -> PENDING; RUNNING -> CANCELLED
-- params: worker_id, ids, generations, delay, cancelled_result
-- Claimed and not started, or handed ahead to a child and provably never started: no attempt, and its place in the
-- line is kept (enqueued_at) unless a delay is asked for. A task that somebody wants cancelled ends here instead.
WITH mine AS MATERIALIZED (
    SELECT t.tid, t.cancel_requested_at IS NOT NULL AS unwanted FROM unnest($2::text[], $3::int[]) AS x (id, generation)
     CROSS JOIN LATERAL (SELECT t.ctid AS tid, t.cancel_requested_at FROM horsies_tasks t
                          WHERE t.id = x.id AND t.claim_generation = x.generation AND t.claimed_by_worker_id = $1
                            AND t.status || '' IN ('CLAIMED', 'RUNNING') FOR UPDATE SKIP LOCKED) AS t
)
UPDATE horsies_tasks t
   SET status = CASE WHEN mine.unwanted THEN 'CANCELLED' ELSE 'PENDING' END,
       claimed = false, claimed_at = NULL, claimed_by_worker_id = NULL, claim_expires_at = NULL,
       started_at = NULL, worker_pid = NULL, worker_hostname = NULL, worker_process_name = NULL,
       finalizing_at = NULL, finalizing_by_worker_id = NULL,
       result = CASE WHEN mine.unwanted THEN $5::text END,
       error_code = CASE WHEN mine.unwanted THEN 'TASK_CANCELLED' END,
       terminal_at = CASE WHEN mine.unwanted THEN statement_timestamp() END,
       enqueued_at = CASE WHEN $4::interval > '0' AND NOT mine.unwanted THEN statement_timestamp() + $4::interval
                          ELSE t.enqueued_at END,
       updated_at = statement_timestamp()
  FROM mine
 WHERE t.ctid = mine.tid
RETURNING t.id;

-- name: next_due :one
-- params: queues, names, look
-- Seconds until the first future task of these queues and names, NULL when there is none; the time of the asking; and
-- whether a (queue, priority) has at least `look` ready tasks. Asked only when idle: those are of other names. Of each (queue, priority) the first `look` future rows are read: where all of these are of
-- other names, the last of them is the time to look again.
WITH RECURSIVE found AS (
    SELECT q.name::text AS queue_name, f.priority FROM unnest($1::text[]) AS q (name)
     CROSS JOIN LATERAL (SELECT t.priority FROM horsies_tasks t WHERE t.status = 'PENDING' AND t.queue_name = q.name
                          ORDER BY t.priority LIMIT 1) AS f
    UNION ALL
    SELECT p.queue_name, f.priority FROM found p
     CROSS JOIN LATERAL (SELECT t.priority FROM horsies_tasks t WHERE t.status = 'PENDING'
                            AND t.queue_name = p.queue_name AND t.priority >= p.priority + 1
                          ORDER BY t.priority LIMIT 1) AS f
)
SELECT extract(epoch FROM min(coalesce(
           (SELECT x.enqueued_at FROM (
                SELECT t.enqueued_at, t.task_name FROM horsies_tasks t
                 WHERE t.status = 'PENDING' AND t.queue_name = p.queue_name AND t.priority = p.priority
                   AND t.enqueued_at > statement_timestamp()
                 ORDER BY t.enqueued_at LIMIT $3::int) AS x
             WHERE x.task_name = ANY ($2::text[]) LIMIT 1),
           (SELECT t.enqueued_at FROM horsies_tasks t
             WHERE t.status = 'PENDING' AND t.queue_name = p.queue_name AND t.priority = p.priority
               AND t.enqueued_at > statement_timestamp()
             ORDER BY t.enqueued_at OFFSET $3::int - 1 LIMIT 1))) - statement_timestamp())::float8 AS due_s,
       statement_timestamp() AS asked_at,
       coalesce(bool_or(EXISTS (
           SELECT FROM horsies_tasks t
            WHERE t.status = 'PENDING' AND t.queue_name = p.queue_name AND t.priority = p.priority
              AND t.enqueued_at <= statement_timestamp() ORDER BY t.enqueued_at OFFSET $3::int - 1)), false) AS is_crowded
  FROM found p;
