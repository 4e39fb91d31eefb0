-- The turns of a group of workers, and whether producers notify them (`claim/duty.py`). The locks are the session's.

-- name: wait_for_duty :one
-- params: group_key, place, channels, queues, names, slower, patience, is_backup
CALL horsies_wait_for_duty($group_key::bigint, $place::int, $channels::text[], $queues::text[], $names::text[],
                           $slower::int, $patience::interval, $is_backup::boolean, ''::text);

-- name: leave_duty :value
-- params: group_key, queues, has_lock, only_if_awaited, is_awake
SELECT horsies_leave_duty($group_key::bigint, $queues::text[], $has_lock::boolean, $only_if_awaited::boolean,
                          $is_awake::boolean);

-- name: set_awake :none
-- params: queues, is_awake
SELECT horsies_set_awake($queues::text[], $is_awake::boolean);
