-- The policies of queues and of the limits that queues share, and the groups that they throttle. A policy is what the app
-- declared (workers write that) with what an operator has overridden; the next claim reads it, and the notification makes
-- workers claim at once.

-- fragment: ages
-- How long the two parts of a policy have been as they are.
statement_timestamp() - x.declared_at AS declared_for, statement_timestamp() - x.override_at AS override_for

-- fragment: clock
-- What `horsies_rate_room` needs besides a rate and its row: the time, and that of the clock's last forward step.
SELECT statement_timestamp() AS at,
       (SELECT r.free_at FROM horsies_rate_limits r
         WHERE r.name = '' AND r.key = '' AND r.free_at <= statement_timestamp()) AS stepped

-- name: queue_policies :many
-- params: queue_name
-- One queue, or all that were ever paused or have a policy.
SELECT x.queue_name, x.declared, x.declared_at, x.override, x.override_at, x.policy, {{ages}}
  FROM horsies_queue_state x WHERE $1::text IS NULL OR x.queue_name = $1::text ORDER BY x.queue_name;

-- name: shared_limits :many
-- params: name
-- One limit, or all, with the queues that name it, their tasks in flight, and the tokens that its rate has left.
SELECT x.name, x.declared, x.declared_at, x.override, x.override_at, x.policy, {{ages}}, q.queues,
       (SELECT count(*) FROM horsies_tasks t
         WHERE t.queue_name = ANY (q.queues) AND t.status IN ('CLAIMED', 'RUNNING')) AS running,
       r.tokens, r.burst, r.wait_s
  FROM horsies_limits x
 CROSS JOIN LATERAL (SELECT ARRAY(SELECT s.queue_name::text FROM horsies_queue_state s
                                   WHERE s.policy -> 'limits' ? x.name ORDER BY 1) AS queues) AS q
 CROSS JOIN ({{clock}}) AS c
 CROSS JOIN LATERAL horsies_rate_room(x.policy -> 'rate', x.free_at, c.at, c.stepped) AS r
 WHERE $1::text IS NULL OR x.name = $1::text
 ORDER BY x.name;

-- name: limit_names :many
SELECT name FROM horsies_limits ORDER BY name;

-- name: override_queue :many
-- params: queue_name, changes
-- The override of the given fields; those that were overridden before, and are not given, stay so.
INSERT INTO horsies_queue_state AS s (queue_name, override, override_at)
VALUES ($1::varchar, $2::jsonb, statement_timestamp())
ON CONFLICT (queue_name) DO UPDATE
   SET override = coalesce(s.override, '{}') || excluded.override, override_at = excluded.override_at,
       updated_at = statement_timestamp()
RETURNING s.queue_name, pg_notify('queue_state', s.queue_name);

-- name: unset_queue :many
-- params: queue_name, fields
-- Without an override of one of these fields, no row.
UPDATE horsies_queue_state s
   SET override = nullif(s.override - $2::text[], '{}'), updated_at = statement_timestamp(),
       override_at = CASE WHEN s.override - $2::text[] <> '{}' THEN statement_timestamp() END
 WHERE s.queue_name = $1::text AND s.override ?| $2::text[]
RETURNING s.queue_name, pg_notify('queue_state', s.queue_name);

-- name: override_limit :many
-- params: name, changes
-- No row when no app has declared a limit of this name.
UPDATE horsies_limits l
   SET override = coalesce(l.override, '{}') || $2::jsonb, override_at = statement_timestamp(),
       updated_at = statement_timestamp()
 WHERE l.name = $1::text
RETURNING l.name;

-- name: unset_limit :many
-- params: name, fields
UPDATE horsies_limits l
   SET override = nullif(l.override - $2::text[], '{}'), updated_at = statement_timestamp(),
       override_at = CASE WHEN l.override - $2::text[] <> '{}' THEN statement_timestamp() END
 WHERE l.name = $1::text AND l.override ?| $2::text[]
RETURNING l.name;

-- name: notify_limit :many
-- params: name
-- Tells the workers of every queue that shares the limit.
SELECT s.queue_name, pg_notify('queue_state', s.queue_name) FROM horsies_queue_state s
 WHERE s.policy -> 'limits' ? $1::text;

-- name: plan_by_order :one
-- For the rest of the transaction, ordered rows come from an index that has their order, never from a sort of the queue.
SELECT set_config('enable_sort', 'off', true), set_config('enable_incremental_sort', 'off', true),
       set_config('enable_bitmapscan', 'off', true), set_config('enable_seqscan', 'off', true);

-- name: top_groups :many
-- params: queue_name, walked, sample, looked, row_limit, few, many
-- The groups of a queue with the most waiting tasks among those that were looked at, of which there are at most `looked`:
-- the first groups by key (all of them, if there are at most `walked`), the groups of the oldest and of the newest
-- waiting tasks, and those with tasks in flight. A group with a backlog has old tasks, and one that has just been flooded
-- has new ones. Waiting tasks are counted up to `few` to rank the groups, and up to `many` for the `row_limit` that are
-- returned. `throttled` is the number of all groups that were looked at whose ready tasks wait for a place or a token.
-- The tasks of one group are a range in the order of the keys, which only ix_horsies_tasks_grouped has: by equality, and
-- before the first ANALYZE, the planner takes the index by age and reads the whole queue for each group.
WITH RECURSIVE level AS (
    -- the priorities with waiting tasks of groups
    (SELECT t.priority FROM horsies_tasks t WHERE {{waits_in_group}} AND t.queue_name = $queue_name::text
      ORDER BY t.priority LIMIT 1)
    UNION ALL
    SELECT n.priority FROM level l
     CROSS JOIN LATERAL (SELECT t.priority FROM horsies_tasks t WHERE {{waits_in_group}}
                            AND t.queue_name = $queue_name::text AND t.priority > l.priority
                          ORDER BY t.priority LIMIT 1) AS n
), size AS (
    SELECT greatest(1, count(*)) AS levels FROM level
), walk AS (
    (SELECT 1 AS nth, t.priority, t.group_key FROM horsies_tasks t
      WHERE {{waits_in_group}} AND t.queue_name = $queue_name::text ORDER BY t.priority, t.group_key LIMIT 1)
    UNION ALL
    SELECT w.nth + 1, n.priority, n.group_key FROM walk w
     CROSS JOIN LATERAL (SELECT t.priority, t.group_key FROM horsies_tasks t
                          WHERE {{waits_in_group}} AND t.queue_name = $queue_name::text
                            AND (t.priority, t.group_key) > (w.priority, w.group_key)
                          ORDER BY t.priority, t.group_key LIMIT 1) AS n
     WHERE w.nth <= $walked::int
), seen AS (
    SELECT s.group_key FROM level l, size z
     CROSS JOIN LATERAL (
           (SELECT t.group_key FROM horsies_tasks t
             WHERE {{waits_in_group}} AND t.queue_name = $queue_name::text AND t.priority = l.priority
             ORDER BY t.enqueued_at, t.id LIMIT $sample::int / z.levels)
           UNION ALL
           (SELECT t.group_key FROM horsies_tasks t
             WHERE {{waits_in_group}} AND t.queue_name = $queue_name::text AND t.priority = l.priority
             ORDER BY t.enqueued_at DESC, t.id DESC LIMIT $sample::int / z.levels)) AS s
    UNION ALL
    (SELECT t.group_key FROM horsies_tasks t
      WHERE t.status IN ('CLAIMED', 'RUNNING') AND t.group_key IS NOT NULL AND t.queue_name = $queue_name::text
      LIMIT $sample::int)
    UNION ALL
    SELECT w.group_key FROM walk w
), candidate AS MATERIALIZED (
    -- with many priorities, each group costs more descents
    SELECT s.group_key AS key, count(*) AS seen FROM seen s GROUP BY s.group_key
     ORDER BY count(*) DESC, s.group_key
     LIMIT greatest(least($looked::int, 10 * $looked::int / (SELECT levels FROM size)), $row_limit::int)
), figure AS MATERIALIZED (
    SELECT c.key, c.seen, w.waiting, o.oldest_at, f.running, r.tokens, r.burst, r.wait_s,
           (p.policy ->> 'max_concurrency')::int AS most
      FROM candidate c
     CROSS JOIN ({{clock}}) AS k
      LEFT JOIN horsies_queue_state p ON p.queue_name = $queue_name::text
     CROSS JOIN LATERAL (SELECT count(*) AS waiting FROM (
           SELECT FROM level l CROSS JOIN LATERAL (
                  SELECT FROM horsies_tasks t
                   WHERE {{waits_in_group}} AND t.queue_name = $queue_name::text AND t.priority = l.priority
                     AND t.group_key >= c.key AND t.group_key <= c.key
                   ORDER BY t.group_key LIMIT $few::int) AS t LIMIT $few::int) AS x) AS w
     CROSS JOIN LATERAL (SELECT min(t.enqueued_at) AS oldest_at FROM level l CROSS JOIN LATERAL (
           SELECT t.enqueued_at FROM horsies_tasks t
            WHERE {{waits_in_group}} AND t.queue_name = $queue_name::text AND t.priority = l.priority
              AND t.group_key >= c.key AND t.group_key <= c.key AND t.enqueued_at <= statement_timestamp()
            ORDER BY t.group_key, t.enqueued_at LIMIT 1) AS t) AS o
     CROSS JOIN LATERAL (SELECT count(*) AS running FROM (
           SELECT FROM horsies_tasks t
            WHERE t.queue_name = $queue_name::text AND t.group_key = c.key AND t.status IN ('CLAIMED', 'RUNNING')
            LIMIT $many::int) AS x) AS f
     CROSS JOIN LATERAL horsies_rate_room(p.policy -> 'rate', (
           SELECT r.free_at FROM horsies_rate_limits r WHERE r.name = $queue_name::text AND r.key = c.key),
           k.at, k.stepped) AS r
), ranked AS MATERIALIZED (
    SELECT f.*, row_number() OVER (ORDER BY f.waiting DESC, f.seen DESC, f.running DESC, f.key) AS rank FROM figure f
)
SELECT r.key, f.waiting, r.running, statement_timestamp() - r.oldest_at AS oldest_ready, r.most, r.tokens, r.burst,
       r.wait_s, (SELECT count(*) FROM figure) AS looked, (SELECT count(*) FROM walk) <= $walked::int AS is_complete,
       (SELECT count(*) FROM figure f WHERE f.oldest_at IS NOT NULL AND (f.running >= f.most OR f.tokens = 0)) AS throttled
  FROM ranked r
 CROSS JOIN LATERAL (
       SELECT CASE WHEN r.waiting < $few::int THEN r.waiting ELSE (SELECT count(*) FROM (
                  SELECT FROM level l CROSS JOIN LATERAL (
                         SELECT FROM horsies_tasks t
                          WHERE {{waits_in_group}} AND t.queue_name = $queue_name::text AND t.priority = l.priority
                            AND t.group_key >= r.key AND t.group_key <= r.key
                          ORDER BY t.group_key LIMIT $many::int) AS t LIMIT $many::int) AS x) END AS waiting) AS f
 WHERE r.rank <= $row_limit::int
 ORDER BY f.waiting DESC, r.rank;
