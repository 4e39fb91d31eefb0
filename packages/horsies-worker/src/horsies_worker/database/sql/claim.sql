-- Claims, starts and returns tasks. The pick walks distinct (queue, priority) pairs, so future and finished rows cost
-- nothing; the write goes by ctid, because a generic plan would otherwise hash-join the whole table; the outer guard is
-- written so that it implies no index predicate. Times are statement_timestamp(): stable, hence index conditions, and
-- newer than a lock that was waited for.

-- fragment: waits
-- Tasks that these statements claim: those without a group. They are in the index ix_horsies_tasks_claim.
t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NULL

-- fragment: waiting_pairs
-- One index descent per distinct (queue, priority) of the queues in $queues, but for paused ones and those that share a
-- limit, which horsies_claim_grouped claims from. `> p.priority` would begin one leaf page too early.
    SELECT q.name::text AS queue_name, f.priority FROM unnest($queues::text[]) AS q (name)
     CROSS JOIN LATERAL (SELECT t.priority FROM horsies_tasks t
                          WHERE {{waits}} AND t.queue_name = q.name
                          ORDER BY t.priority LIMIT 1) AS f
     WHERE NOT EXISTS (SELECT FROM horsies_queue_state s
                        WHERE s.queue_name = q.name AND (s.paused_at IS NOT NULL OR s.is_limited))
    UNION ALL
    SELECT p.queue_name, f.priority FROM found p
     CROSS JOIN LATERAL (SELECT t.priority FROM horsies_tasks t WHERE {{waits}}
                            AND t.queue_name = p.queue_name AND t.priority >= p.priority + 1
                          ORDER BY t.priority LIMIT 1) AS f

-- fragment: kind
-- What a task needs: a place for its kind, or none because it has expired or its workflow does not run.
CASE WHEN t.good_until <= statement_timestamp() THEN 'expired'
         WHEN t.is_workflow_task AND (SELECT w.status FROM horsies_workflow_tasks n, horsies_workflows w
              WHERE n.task_id = t.id AND w.id = n.workflow_id) <> 'RUNNING' THEN 'stopped'
         WHEN t.task_name = ANY ($async_names::text[]) THEN 'async'
         WHEN t.task_name = ANY ($short_names::text[]) THEN 'short'
         ELSE 'other' END

-- fragment: taken_columns
-- The columns of a task that a claim or a start takes (RUNNING, CLAIMED), expires, or leaves to withdraw_stopped
-- (PENDING).
started_at = CASE WHEN c.status = 'RUNNING' THEN statement_timestamp() END,
       worker_hostname = CASE WHEN c.status = 'RUNNING' THEN $hostname::varchar END,
       worker_pid = NULL, worker_process_name = NULL,
       result = CASE WHEN c.status = 'EXPIRED' THEN $expired_result::text END,
       error_code = CASE WHEN c.status = 'EXPIRED' THEN 'TASK_EXPIRED' END,
       failed_at = CASE WHEN c.status = 'EXPIRED' THEN statement_timestamp() END,
       terminal_at = CASE WHEN c.status = 'EXPIRED' THEN statement_timestamp() END,
       updated_at = statement_timestamp()

-- name: lock_caps :none
-- params: key
-- Alone in its statement: a count in the same one would have a snapshot older than the lock, and exceed the cap.
SELECT pg_advisory_xact_lock($key, hashtext(coalesce(current_schema(), '')));

-- name: is_capped :value
-- params: cap_queues, caps, cluster_cap
-- Whether a cap is exhausted. Runs under the lock of the caps, after a claim that brought nothing.
SELECT EXISTS (SELECT FROM unnest($cap_queues::text[], $caps::int[]) AS c (name, cap)
                WHERE c.cap <= (SELECT count(*) FROM horsies_tasks t WHERE t.queue_name = c.name
                                   AND t.status IN ('CLAIMED', 'RUNNING')))
       OR $cluster_cap::int <= (SELECT count(*) FROM horsies_tasks t WHERE t.status IN ('CLAIMED', 'RUNNING'));

-- name: claim_batch :many
-- edge: PENDING -> CLAIMED; PENDING -> RUNNING; PENDING -> EXPIRED
-- params: queues, floor, hint_queues, hint_priorities, hint_since, cap_queues, caps, cluster_cap, worker_id, hostname, lease, async_names, short_names, sync_names, room_async, room_sync, room_ahead, prefetch, row_limit, look, expired_result
-- Scans the first `look` ready tasks in the order priority, enqueued_at, id, over all queues, and claims at most
-- row_limit of them. The scan filters out the rows of names that are in neither list, so these are not locked, not
-- written, keep their place in the queue and hide nothing behind them. Walking past them is what costs: 8,809 buffers
-- for 100,000 rows, 116 from a `since` and 124 from a `floor` behind them (100 rows claimed). The list is hashed (IS
-- TRUE keeps the planner from turning it into a join): with 1,000 names, = ANY took 50 times as long. Each task is of
-- one kind, by its name. Async tasks have room_async places, other ones room_sync; short ones have what those leave of
-- room_sync, and room_ahead more. A task with a place becomes RUNNING in the same write, up to `prefetch` of the
-- others, in order, become CLAIMED, and the rest stays unlocked. Overdue tasks become EXPIRED. A task of a workflow
-- that is paused or has ended is returned as PENDING, for withdraw_stopped: it came back from a worker after the pause,
-- and every claim would scan it again. Fewer rows than asked for do not mean an empty queue: rows that others lock are
-- skipped. `since` of a returned row is the oldest enqueued_at that was seen in its (queue, priority): the hint of the
-- next claim. worker_pid stays NULL: the child is not known yet, and the parent's pid would be taken for the process to
-- kill. The first heartbeat, or the end of the task, writes the child's.
WITH RECURSIVE found AS (
{{waiting_pairs}}
), room AS MATERIALIZED (
    -- the free places under each queue's cap; a queue without a cap has no row
    SELECT c.name AS queue_name, c.cap - (SELECT count(*) FROM horsies_tasks t WHERE t.queue_name = c.name
                                             AND t.status IN ('CLAIMED', 'RUNNING')) AS n
      FROM unnest($cap_queues::text[], $caps::int[]) AS c (name, cap)
), budget AS MATERIALIZED (
    SELECT CASE WHEN $cluster_cap::int IS NULL THEN $row_limit::bigint
                ELSE greatest(0, least($row_limit::bigint, $cluster_cap::int - (SELECT count(*) FROM horsies_tasks t
                                                               WHERE t.status IN ('CLAIMED', 'RUNNING')))) END AS n
), pair AS (
    -- without a floor this is a full scan
    SELECT queue_name, priority, coalesce($floor::timestamptz, '-infinity') AS since FROM found
    UNION ALL
    -- pairs of an earlier claim, which left nothing before `since`: dead entries are not walked
    SELECT * FROM unnest($hint_queues::text[], $hint_priorities::int[], $hint_since::timestamptz[]) AS h (queue_name)
     WHERE NOT EXISTS (SELECT FROM horsies_queue_state s
                        WHERE s.queue_name = h.queue_name AND (s.paused_at IS NOT NULL OR s.is_limited))
), line AS MATERIALIZED (
    -- without locks: the first tasks in global order, and what each needs
    SELECT x.*, row_number() OVER () AS at FROM (
        SELECT p.queue_name, p.priority, r.enqueued_at, r.kind
          FROM (SELECT pair.* FROM pair LEFT JOIN room ON room.queue_name = pair.queue_name
                 WHERE room.n IS NULL OR room.n > 0 ORDER BY pair.priority) AS p
         CROSS JOIN LATERAL (SELECT t.enqueued_at, t.id,
                                    {{kind}} AS kind
                               FROM horsies_tasks t
                              WHERE {{waits}}
                                AND t.queue_name = p.queue_name AND t.priority = p.priority
                                AND t.enqueued_at >= p.since AND t.enqueued_at <= statement_timestamp()
                                AND (t.task_name IN (SELECT unnest($async_names::text[] || $sync_names::text[]))) IS TRUE
                              ORDER BY t.enqueued_at, t.id LIMIT $look::int) AS r
         ORDER BY p.priority, r.enqueued_at, r.id LIMIT $look::int) AS x
), placed AS (
    -- whether there is a place for the task
    SELECT line.*, kind IN ('expired', 'stopped')
                   OR row_number() OVER (PARTITION BY kind ORDER BY at)
                      <= CASE kind WHEN 'async' THEN $room_async::int WHEN 'other' THEN $room_sync::int
                              ELSE greatest(0, $room_sync::int - count(*) FILTER (WHERE kind = 'other') OVER ()) + $room_ahead::int
                         END AS runs
      FROM line
), held AS (
    -- whether there is a place in the buffer
    SELECT *, runs OR count(*) FILTER (WHERE NOT runs) OVER (ORDER BY at) <= $prefetch::int AS taken FROM placed
), quota AS MATERIALIZED (
    -- how many of each kind to take from each pair; where kinds are mixed, only as far as was scanned
    SELECT queue_name, priority, kind, count(*) FILTER (WHERE taken) AS n, count(*) FILTER (WHERE taken AND runs) AS runs,
           min(min(enqueued_at)) OVER same_pair AS since,
           CASE WHEN count(*) OVER same_pair = 1 THEN 'infinity' ELSE max(max(enqueued_at)) OVER same_pair END AS until
      FROM (SELECT queue_name, priority, kind, enqueued_at, runs,
                   taken AND count(*) FILTER (WHERE taken) OVER (ORDER BY at) <= (SELECT n FROM budget) AS taken
              FROM held) AS x
     GROUP BY queue_name, priority, kind
    WINDOW same_pair AS (PARTITION BY queue_name, priority)
), allowed AS (
    -- under a queue's cap, higher priorities come first
    SELECT q.*, greatest(0, least(q.n, room.n - coalesce(sum(q.n) OVER (
                    PARTITION BY q.queue_name ORDER BY q.priority, q.kind
                    ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0))) AS row_limit
      FROM quota q LEFT JOIN room ON room.queue_name = q.queue_name
     WHERE q.n > 0
), picked AS MATERIALIZED (
    -- lock that many rows, skipping those that others lock
    SELECT r.tid, k.since, CASE WHEN k.kind = 'expired' THEN 'EXPIRED'
                                WHEN k.kind = 'stopped' THEN 'PENDING'
                                WHEN r.nth <= k.runs THEN 'RUNNING'
                                ELSE 'CLAIMED' END AS status
      FROM allowed k CROSS JOIN LATERAL (SELECT tid, row_number() OVER () AS nth FROM (
        SELECT t.ctid AS tid FROM horsies_tasks t
         WHERE {{waits}} AND t.queue_name = k.queue_name AND t.priority = k.priority
           AND t.enqueued_at >= k.since AND t.enqueued_at <= least(k.until, statement_timestamp())
           AND (t.task_name IN (SELECT unnest($async_names::text[] || $sync_names::text[]))) IS TRUE
           AND {{kind}} = k.kind
         ORDER BY t.enqueued_at, t.id LIMIT k.row_limit FOR UPDATE SKIP LOCKED) AS locked) AS r
)
UPDATE horsies_tasks t
   SET status = c.status,
       claimed = c.status = 'CLAIMED',
       claim_generation = t.claim_generation + 1,
       claimed_by_worker_id = CASE WHEN c.status IN ('CLAIMED', 'RUNNING') THEN $worker_id::varchar END,
       claimed_at = CASE WHEN c.status IN ('CLAIMED', 'RUNNING') THEN statement_timestamp() END,
       claim_expires_at = CASE WHEN c.status = 'CLAIMED' THEN statement_timestamp() + $lease::interval END,
       {{taken_columns}}
  FROM picked c
 WHERE t.ctid = c.tid AND t.status || '' = 'PENDING'
RETURNING t.id, t.status, t.claim_generation, t.task_name, t.args, t.kwargs, t.queue_name, t.priority, t.enqueued_at,
          t.retry_count, t.max_retries, t.task_options, t.is_workflow_task, t.metadata, t.snoozes, c.since,
          date_part('epoch', t.enqueued_at) AS ready_at;

-- name: claim_next_batch :many
-- edge: PENDING -> RUNNING
-- params: queue_name, priority, since, row_limit, names, known_names, worker_id, hostname
-- More tasks like the last ones: the first row_limit of one (queue, priority), of which it takes those that are of
-- `names` (NULL: all known ones), not overdue and not of a workflow. It leaves other tasks of `known_names` as they
-- are, and the short answer tells the worker to scan everything. Rows of unknown names do not count. Server time is 38
-- instead of 52 µs per row in batches of 64, and 0.87 instead of 1.10 ms for a single one: one index walk instead of
-- two, and no counting. A timestamptz
-- takes 0.6 µs in Python, hence ready_at is a number and only one row has `since`.
WITH picked AS MATERIALIZED (
    SELECT r.tid, CASE WHEN row_number() OVER () = 1 THEN min(r.enqueued_at) OVER () END AS since
      FROM (SELECT t.ctid AS tid, t.enqueued_at, t.task_name, t.good_until, t.is_workflow_task FROM horsies_tasks t
             WHERE {{waits}} AND t.queue_name = $queue_name::text AND t.priority = $priority::int
               AND t.enqueued_at >= $since::timestamptz AND t.enqueued_at <= statement_timestamp()
               AND (t.task_name IN (SELECT unnest($known_names::text[]))) IS TRUE
               AND NOT EXISTS (SELECT FROM horsies_queue_state s
                                WHERE s.queue_name = $queue_name::text AND (s.paused_at IS NOT NULL OR s.is_limited))
             ORDER BY t.enqueued_at, t.id LIMIT $row_limit::int FOR UPDATE SKIP LOCKED) AS r
     WHERE ($names::text[] IS NULL OR r.task_name = ANY ($names::text[])) AND NOT r.is_workflow_task
       AND (r.good_until <= statement_timestamp()) IS NOT TRUE
)
UPDATE horsies_tasks t
   SET status = 'RUNNING', claim_generation = t.claim_generation + 1, claimed_by_worker_id = $worker_id::varchar,
       claimed_at = statement_timestamp(), started_at = statement_timestamp(), worker_hostname = $hostname::varchar,
       worker_pid = NULL, worker_process_name = NULL, updated_at = statement_timestamp()
  FROM picked c
 WHERE t.ctid = c.tid AND t.status || '' = 'PENDING'
RETURNING t.id, t.status, t.claim_generation, t.task_name, t.args, t.kwargs, t.queue_name, t.priority,
          t.retry_count, t.max_retries, t.task_options, t.is_workflow_task, t.metadata, t.snoozes, c.since,
          date_part('epoch', t.enqueued_at) AS ready_at;

-- name: restart_generations :many
-- After a claim that failed because a number was out of range. The rows wait, so no worker has one of these generations.
UPDATE horsies_tasks t SET claim_generation = 0, updated_at = statement_timestamp()
 WHERE t.status = 'PENDING' AND t.claim_generation = 2147483647
RETURNING t.id;

-- name: pair_heads :many
-- params: queues
-- The first ready task of each (queue, priority) of these queues, the oldest first: two index descents for each pair. It
-- may be of a name that the worker does not know; a claim from that pair then takes the first one that it does.
WITH RECURSIVE found AS (
{{waiting_pairs}}
)
SELECT p.queue_name, p.priority, h.enqueued_at,
       date_part('epoch', statement_timestamp() - h.enqueued_at) AS waited_s
  FROM found p CROSS JOIN LATERAL (
       SELECT t.enqueued_at FROM horsies_tasks t
        WHERE {{waits}} AND t.queue_name = p.queue_name AND t.priority = p.priority
          AND t.enqueued_at <= statement_timestamp()
        ORDER BY t.enqueued_at, t.id LIMIT 1) AS h
 ORDER BY h.enqueued_at LIMIT 20;

-- name: start_batch :many
-- edge: CLAIMED -> RUNNING; CLAIMED -> EXPIRED; CLAIMED -> PENDING
-- params: worker_id, ids, generations, hostname, expired_result
-- An id that does not come back was lost (cancelled, requeued, lease expired) and its user code does not run; or an
-- earlier statement whose answer was lost has started it, or another session locks it (read_owned_batch tells which). A
-- task of a workflow that is paused or has ended goes back, for withdraw_stopped.
WITH mine AS MATERIALIZED (
    SELECT t.tid, CASE WHEN t.good_until <= statement_timestamp() THEN 'EXPIRED'
                       WHEN t.is_workflow_task AND (SELECT w.status FROM horsies_workflow_tasks n, horsies_workflows w
                            WHERE n.task_id = x.id AND w.id = n.workflow_id) <> 'RUNNING' THEN 'PENDING'
                       ELSE 'RUNNING' END AS status
      FROM unnest($ids::text[], $generations::int[]) AS x (id, generation)
     CROSS JOIN LATERAL (SELECT t.ctid AS tid, t.good_until, t.is_workflow_task FROM horsies_tasks t
                          WHERE t.id = x.id AND t.claim_generation = x.generation AND t.claimed_by_worker_id = $worker_id
                            AND t.status || '' = 'CLAIMED' AND t.claim_expires_at > statement_timestamp()
                            FOR UPDATE SKIP LOCKED) AS t
)
UPDATE horsies_tasks t
   SET status = c.status, claimed = false, claim_expires_at = NULL,
       claimed_at = CASE WHEN c.status <> 'PENDING' THEN t.claimed_at END,
       claimed_by_worker_id = CASE WHEN c.status <> 'PENDING' THEN t.claimed_by_worker_id END,
       {{taken_columns}}
  FROM mine c
 WHERE t.ctid = c.tid
RETURNING t.id, t.status;

-- name: withdraw_stopped :many
-- params: ids
-- Withdraws the tasks of workflows that are paused or have ended (client's workflows.sql), which a claim or a start has
-- met. It locks the workflow: a resume that commits between the claim's snapshot and its write does not see the task, so
-- the claim itself would withdraw it for good.
WITH stopped AS MATERIALIZED (
    SELECT t.ctid AS tid FROM horsies_workflow_tasks n JOIN horsies_workflows w ON w.id = n.workflow_id
      JOIN horsies_tasks t ON t.id = n.task_id
     WHERE n.task_id = ANY ($ids::text[]) AND w.status <> 'RUNNING' AND t.status || '' = 'PENDING'
       FOR SHARE OF w FOR UPDATE OF t SKIP LOCKED
)
UPDATE horsies_tasks t SET withdrawn = true, updated_at = statement_timestamp()
  FROM stopped WHERE t.ctid = stopped.tid AND t.status || '' = 'PENDING'
RETURNING t.id;

-- name: hand_back_batch :many
-- edge: CLAIMED -> PENDING; RUNNING -> PENDING; RUNNING -> CANCELLED
-- params: worker_id, ids, generations, cancelled_result
-- Returns tasks that were claimed and whose user code never began. They leave no attempt, and enqueued_at keeps their
-- place in the queue. A task with a cancel request becomes CANCELLED instead.
WITH mine AS MATERIALIZED (
    SELECT t.tid, t.cancel_requested_at IS NOT NULL AS unwanted FROM unnest($ids::text[], $generations::int[]) AS x (id, generation)
     CROSS JOIN LATERAL (SELECT t.ctid AS tid, t.cancel_requested_at FROM horsies_tasks t
                          WHERE t.id = x.id AND t.claim_generation = x.generation AND t.claimed_by_worker_id = $worker_id
                            AND t.status || '' IN ('CLAIMED', 'RUNNING') FOR UPDATE SKIP LOCKED) AS t
)
UPDATE horsies_tasks t
   SET status = CASE WHEN mine.unwanted THEN 'CANCELLED' ELSE 'PENDING' END,
       claimed = false, claimed_at = NULL, claimed_by_worker_id = NULL, claim_expires_at = NULL,
       started_at = NULL, worker_pid = NULL, worker_hostname = NULL, worker_process_name = NULL,
       finalizing_at = NULL, finalizing_by_worker_id = NULL,
       result = CASE WHEN mine.unwanted THEN $cancelled_result::text END,
       error_code = CASE WHEN mine.unwanted THEN 'TASK_CANCELLED' END,
       terminal_at = CASE WHEN mine.unwanted THEN statement_timestamp() END,
       updated_at = statement_timestamp()
  FROM mine
 WHERE t.ctid = mine.tid
RETURNING t.id;

-- name: next_due :one
-- params: queues, names, look, since
-- Seconds until the first future task of these queues and names, NULL when there is none; the time of the question; and
-- whether a (queue, priority) has at least `look` ready tasks, which are of other names when the worker is idle. Tasks
-- that became ready within the last `since` count as future ones: the scan before this statement may not have seen them.
-- Of each (queue, priority) the first `look` future rows are read: when all of these are of other names, the time of the
-- last one is returned, and the worker asks again then.
WITH RECURSIVE found AS (
{{waiting_pairs}}
)
SELECT extract(epoch FROM min(coalesce(
           (SELECT x.enqueued_at FROM (
                SELECT t.enqueued_at, t.task_name FROM horsies_tasks t
                 WHERE {{waits}}
                   AND t.queue_name = p.queue_name AND t.priority = p.priority
                   AND t.enqueued_at > statement_timestamp() - $since::interval
                 ORDER BY t.enqueued_at LIMIT $look::int) AS x
             WHERE x.task_name = ANY ($names::text[]) LIMIT 1),
           (SELECT t.enqueued_at FROM horsies_tasks t
             WHERE {{waits}} AND t.queue_name = p.queue_name AND t.priority = p.priority
               AND t.enqueued_at > statement_timestamp() - $since::interval
             ORDER BY t.enqueued_at OFFSET $look::int - 1 LIMIT 1))) - statement_timestamp())::float8 AS due_s,
       statement_timestamp() AS asked_at,
       coalesce(bool_or(EXISTS (
           SELECT FROM horsies_tasks t
            WHERE {{waits}} AND t.queue_name = p.queue_name AND t.priority = p.priority
              AND t.enqueued_at <= statement_timestamp() ORDER BY t.enqueued_at OFFSET $look::int - 1)), false) AS is_crowded
  FROM found p;
