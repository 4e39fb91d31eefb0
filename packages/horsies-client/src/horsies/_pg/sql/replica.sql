-- Reads from a streaming replica.

-- name: replica_lag :one
-- A replica that is connected and has replayed all that it received is up to date. Without a connection, or with WAL
-- that is left to replay, its rows are as old as the last commit that it has replayed since it was started. `pid` is all
-- that a role without pg_read_all_stats sees of the receiver. A server that knows of neither WAL nor replay shares the
-- storage of its primary, as some services do; PostgreSQL's functions cannot tell its lag.
SELECT s.is_standby, s.is_connected,
       CASE WHEN NOT s.is_standby OR s.is_connected AND s.received IS NOT DISTINCT FROM s.replayed
                 OR s.is_connected AND s.received <= s.replayed THEN interval '0'
            ELSE greatest(coalesce(clock_timestamp() - coalesce(s.last_commit, pg_postmaster_start_time()), '0'), '0')
       END AS lag
  FROM (SELECT pg_is_in_recovery() AS is_standby, w.received, w.replayed, w.last_commit,
               EXISTS (SELECT FROM pg_stat_wal_receiver r WHERE r.pid IS NOT NULL)
                   OR w.received IS NULL AND w.last_commit IS NULL AS is_connected
          FROM (SELECT pg_last_wal_receive_lsn() AS received, pg_last_wal_replay_lsn() AS replayed,
                       pg_last_xact_replay_timestamp() AS last_commit) AS w) AS s;
