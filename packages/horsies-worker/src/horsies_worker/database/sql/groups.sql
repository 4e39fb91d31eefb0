-- Tasks with a group, and the policies of queues. The claim is a function of the schema (revision 0021), because it locks
-- and then counts: two statements, for which it needs one round trip.

-- name: claim_grouped :many
-- edge: PENDING -> RUNNING; PENDING -> EXPIRED
-- params: queues, look_queues, look_keys, is_walk, cursor_queues, cursor_priorities, cursor_keys, cursor_wrapped, cursor_stops, max_groups, row_limit, room_async, room_sync, room_ahead, async_names, short_names, sync_names, cap_queues, caps, cluster_cap, worker_id, hostname, expired_result, expected_at
-- The last row has no id and a report.
SELECT * FROM horsies_claim_grouped(
    $queues::text[], $look_queues::text[], $look_keys::text[], $is_walk::boolean, $cursor_queues::text[],
    $cursor_priorities::int[], $cursor_keys::text[], $cursor_wrapped::boolean[], $cursor_stops::text[],
    $max_groups::int, $row_limit::int, $room_async::int, $room_sync::int, $room_ahead::int, $async_names::text[],
    $short_names::text[], $sync_names::text[], $cap_queues::text[], $caps::int[], $cluster_cap::int,
    hashtext(coalesce(current_schema(), '')), $worker_id::text, $hostname::text, $expired_result::text, $expected_at::float8);

-- name: declare_policies :many
-- params: queues, policies, limits, limit_policies
-- What the app of a worker declares, written when the worker starts; returns what changes, and what was declared before.
-- Rows that say the same are not written. They are in one order, so that two workers that start together do not lock them
-- crosswise. The workers of the queues concerned are told: more tasks may be allowed now.
WITH shared AS (
    INSERT INTO horsies_limits AS l (name, declared, declared_at)
    SELECT x.name, x.policy::jsonb, statement_timestamp()
      FROM unnest($limits::text[], $limit_policies::text[]) AS x (name, policy)
     WHERE NOT EXISTS (SELECT FROM horsies_limits k WHERE k.name = x.name AND k.declared = x.policy::jsonb)
     ORDER BY x.name COLLATE "C"
    ON CONFLICT (name) DO UPDATE
       SET declared = excluded.declared, declared_at = excluded.declared_at, updated_at = statement_timestamp()
    RETURNING l.name, l.declared
), queue AS (
    INSERT INTO horsies_queue_state AS s (queue_name, declared, declared_at)
    SELECT x.name, x.policy::jsonb, statement_timestamp()
      FROM unnest($queues::text[], $policies::text[]) AS x (name, policy)
     WHERE NOT EXISTS (SELECT FROM horsies_queue_state k WHERE k.queue_name = x.name
                          AND k.declared IS NOT DISTINCT FROM x.policy::jsonb)
       AND (x.policy IS NOT NULL OR EXISTS (SELECT FROM horsies_queue_state k WHERE k.queue_name = x.name))
     ORDER BY x.name COLLATE "C"
    ON CONFLICT (queue_name) DO UPDATE
       SET declared = excluded.declared, declared_at = excluded.declared_at, updated_at = statement_timestamp()
    RETURNING s.queue_name, s.declared
), told AS MATERIALIZED (
    SELECT pg_notify('queue_state', x.name) FROM (
        SELECT q.queue_name AS name FROM queue q
        UNION
        SELECT s.queue_name FROM horsies_queue_state s
         WHERE s.is_limited AND EXISTS (SELECT FROM shared WHERE s.policy -> 'limits' ? shared.name)) AS x
)
SELECT 'queue' AS what, q.queue_name AS name, q.declared, k.declared AS before
  FROM queue q LEFT JOIN horsies_queue_state k ON k.queue_name = q.queue_name
 WHERE (SELECT count(*) FROM told) >= 0
UNION ALL
SELECT 'limit', l.name, l.declared, k.declared FROM shared l LEFT JOIN horsies_limits k ON k.name = l.name;

-- name: tell_limited_queues :many
-- params: queues
-- A place under a limit came free, and these queues have no task for it: a worker of another queue that shares the limit
-- may have one.
SELECT pg_notify('task_grouped', o.queue_name)
  FROM horsies_queue_state o
 WHERE o.is_limited AND o.queue_name <> ALL ($queues::text[])
   AND EXISTS (SELECT FROM horsies_queue_state s WHERE s.queue_name = ANY ($queues::text[]) AND s.is_limited
                  AND EXISTS (SELECT FROM jsonb_array_elements_text(s.policy -> 'limits') AS l (name)
                               WHERE o.policy -> 'limits' ? l.name));

-- name: tell_groups :many
-- params: queues, keys
-- This worker has no room for these groups: one that has room should look.
SELECT pg_notify('task_grouped', x.queue_name || coalesce(' ' || x.key, ''))
  FROM unnest($queues::text[], $keys::text[]) AS x (queue_name, key);
