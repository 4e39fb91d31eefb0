-- What must hold in every database that horsies works in, after every fault. Each statement returns the rows
-- that break its rule: empty is good. Run by tests/support/invariants.py; tests/integration/test_invariants.py
-- has seen every rule fire. Groups: T task row, A attempts, W workflow, G signals, clocks and compensations, S schedule,
-- L ledger of the chaos run.
-- Parameters are psql variables: slack_s, running_stale_s, finalizing_stale_s, claimed_stale_s, wf_grace_s, cap,
-- qcap (jsonb: cap by queue, "*" for every other one), async_tasks (text[]).

-- T1 illegal status value
SELECT 'T1' AS inv, id FROM horsies_tasks
WHERE status NOT IN ('PENDING','CLAIMED','RUNNING','COMPLETED','FAILED','CANCELLED','EXPIRED');
-- T2 terminal timestamp matches the terminal status, and only terminal rows have one
SELECT 'T2' AS inv, id FROM horsies_tasks
WHERE CASE status
        WHEN 'COMPLETED' THEN NOT (completed_at IS NOT NULL AND failed_at IS NULL)
        WHEN 'FAILED'    THEN NOT (failed_at IS NOT NULL AND completed_at IS NULL)
        WHEN 'EXPIRED'   THEN NOT (failed_at IS NOT NULL AND completed_at IS NULL)
        WHEN 'CANCELLED' THEN completed_at IS NOT NULL
        ELSE completed_at IS NOT NULL OR failed_at IS NOT NULL
      END;
-- T3 a finished task has a stored outcome; success has no error_code, failure has one; live rows have neither
--    (a RUNNING row may carry the staged outcome only while finalizing, decision D3)
SELECT 'T3' AS inv, id FROM horsies_tasks
WHERE (status = 'COMPLETED' AND (result IS NULL AND position('"store_result"' in coalesce(task_options, '')) = 0
                                 OR error_code IS NOT NULL))
   OR (status IN ('FAILED','EXPIRED') AND (result IS NULL OR error_code IS NULL))
   OR (status IN ('PENDING','CLAIMED') AND (result IS NOT NULL OR error_code IS NOT NULL))
   OR (status = 'RUNNING' AND finalizing_at IS NULL AND (result IS NOT NULL OR error_code IS NOT NULL));
-- T4 ownership columns agree with the status
SELECT 'T4' AS inv, id FROM horsies_tasks
WHERE claimed IS DISTINCT FROM (status = 'CLAIMED')
   OR (withdrawn AND status <> 'PENDING')
   OR (status = 'PENDING' AND (claimed_by_worker_id IS NOT NULL OR claimed_at IS NOT NULL
                               OR claim_expires_at IS NOT NULL OR started_at IS NOT NULL OR finalizing_at IS NOT NULL))
   OR (status = 'CLAIMED' AND (claimed_by_worker_id IS NULL OR claimed_at IS NULL
                               OR claim_expires_at IS NULL OR started_at IS NOT NULL))
   OR (status = 'RUNNING' AND (claimed_by_worker_id IS NULL OR claimed_at IS NULL
                               OR started_at IS NULL OR claim_expires_at IS NOT NULL));
-- T5 database-clock order of the life of one attempt (sent_at is left out: it is the producer's clock)
SELECT 'T5' AS inv, id FROM horsies_tasks
WHERE claimed_at < enqueued_at
   OR started_at < claimed_at
   OR COALESCE(completed_at, failed_at) < started_at
   OR finalizing_at < started_at
   OR updated_at < created_at;
-- T6 nothing starts at or after its deadline, before its retry time, or with too many retries
SELECT 'T6' AS inv, id FROM horsies_tasks
WHERE started_at >= good_until
   OR (retry_count > 0 AND started_at < next_retry_at)
   OR retry_count > max_retries OR retry_count < 0;
-- T7 an overdue PENDING row is not left behind (:slack_s = reaper check interval + 5)
SELECT 'T7' AS inv, id FROM horsies_tasks
WHERE status = 'PENDING' AND good_until < now() - make_interval(secs => :slack_s);
-- T8 no dead owner keeps a task beyond the promised time
SELECT 'T8' AS inv, t.id FROM horsies_tasks t
LEFT JOIN LATERAL (SELECT max(h.sent_at) AS hb FROM horsies_heartbeats h
                   WHERE h.task_id = t.id AND h.role = 'runner' AND h.sent_at >= t.started_at) r ON true
WHERE (t.status = 'RUNNING'
       AND GREATEST(t.started_at, COALESCE(r.hb, t.started_at))
           < now() - make_interval(secs => :running_stale_s + :slack_s)
       AND (t.finalizing_at IS NULL
            OR t.finalizing_at < now() - make_interval(secs => :finalizing_stale_s + :slack_s)))
   OR (t.status = 'CLAIMED' AND t.claim_expires_at < now() - make_interval(secs => :claimed_stale_s + :slack_s));
-- A1 attempt numbers are 1..n without holes
SELECT 'A1' AS inv, task_id FROM horsies_task_attempts
GROUP BY task_id HAVING min(attempt) <> 1 OR max(attempt) <> count(*);
-- A2 number of attempt rows fits status and retry_count
SELECT 'A2' AS inv, t.id FROM horsies_tasks t
LEFT JOIN (SELECT task_id, count(*) n FROM horsies_task_attempts GROUP BY 1) a ON a.task_id = t.id
WHERE COALESCE(a.n,0) <> CASE WHEN t.status IN ('COMPLETED','FAILED')
                                OR (t.status = 'CANCELLED' AND t.started_at IS NOT NULL)
                              THEN t.retry_count + 1 ELSE t.retry_count END;
-- A3 only the last attempt may end the task; its outcome is the task's outcome
SELECT 'A3' AS inv, t.id FROM horsies_tasks t JOIN horsies_task_attempts a ON a.task_id = t.id
WHERE (a.attempt <= t.retry_count AND t.manual_retries = 0 AND (NOT a.will_retry OR a.outcome = 'COMPLETED'))
   OR (a.attempt > t.retry_count AND a.will_retry)
   OR (t.status = 'COMPLETED' AND a.attempt = t.retry_count + 1 AND a.outcome <> 'COMPLETED')
   OR (t.status = 'FAILED' AND a.attempt = t.retry_count + 1 AND a.outcome = 'COMPLETED');
-- A4 two attempts of one task never overlap; each has positive length
SELECT 'A4' AS inv, a.task_id FROM horsies_task_attempts a
LEFT JOIN horsies_task_attempts b ON b.task_id = a.task_id AND b.attempt > a.attempt AND b.started_at < a.finished_at
WHERE b.id IS NOT NULL OR a.finished_at < a.started_at;
-- A5 error fields agree with the outcome
SELECT 'A5' AS inv, task_id FROM horsies_task_attempts
WHERE (outcome = 'COMPLETED' AND error_code IS NOT NULL) OR (outcome <> 'COMPLETED' AND error_code IS NULL);
-- A6 one child process runs one attempt of a sync task at a time (:async_tasks = names of async ones, as a text array);
-- tasks of one call of a batch task have the same name and the same start. Times come from the child's clock by an offset
-- that may be too large by a round trip, and an end is never later than the statement that writes it: two spans whose
-- statements ran in the other order may overlap by that much
SELECT 'A6' AS inv, task_id FROM (
  SELECT min(a.task_id) AS task_id, max(a.finished_at) AS finished_at,
         lead(a.started_at) OVER (PARTITION BY a.worker_hostname, a.worker_pid, a.worker_id
                                  ORDER BY a.started_at, max(a.finished_at)) AS next_start
  FROM horsies_task_attempts a JOIN horsies_tasks t ON t.id = a.task_id AND t.task_name <> ALL (:async_tasks::text[])
  WHERE a.outcome <> 'WORKER_FAILURE' AND COALESCE(a.error_code, '') <> 'WORKER_CRASHED'
    AND a.worker_hostname IS NOT NULL AND a.worker_pid IS NOT NULL AND a.worker_id IS NOT NULL
  GROUP BY a.worker_hostname, a.worker_pid, a.worker_id, t.task_name, a.started_at) AS calls
WHERE next_start < finished_at - interval '250 ms';
-- A7 cluster cap and per-queue cap were never exceeded (sweep line; crash rows are cut at their last heartbeat)
WITH e AS (
  SELECT t.queue_name q, a.started_at at, 1 d
  FROM horsies_task_attempts a JOIN horsies_tasks t ON t.id = a.task_id
  UNION ALL
  SELECT t.queue_name,
         CASE WHEN a.outcome = 'WORKER_FAILURE' OR a.error_code = 'WORKER_CRASHED'
              THEN COALESCE((SELECT max(h.sent_at) FROM horsies_heartbeats h
                             WHERE h.task_id = a.task_id AND h.role = 'runner'
                               AND h.sent_at BETWEEN a.started_at AND a.finished_at), a.started_at)
              ELSE a.finished_at END, -1
  FROM horsies_task_attempts a JOIN horsies_tasks t ON t.id = a.task_id),
s AS (SELECT q, at, sum(d) OVER (ORDER BY at, d) n, sum(d) OVER (PARTITION BY q ORDER BY at, d) nq FROM e)
SELECT 'A7' AS inv, q || ' ' || max(n) || '/' || max(nq) AS id FROM s
WHERE n > :cap::int OR nq > COALESCE(:qcap::jsonb ->> q, :qcap::jsonb ->> '*')::int GROUP BY q;
-- W1 a terminal workflow has only terminal nodes and a completion time
SELECT 'W1' AS inv, w.id FROM horsies_workflows w
WHERE w.status IN ('COMPLETED','FAILED','CANCELLED')
  AND (w.completed_at IS NULL OR EXISTS (SELECT 1 FROM horsies_workflow_tasks n WHERE n.workflow_id = w.id
       AND n.status NOT IN ('COMPLETED','FAILED','SKIPPED')));
-- W2 a workflow whose nodes are all terminal is not left RUNNING (grace)
SELECT 'W2' AS inv, w.id FROM horsies_workflows w
WHERE w.status = 'RUNNING' AND w.updated_at < now() - make_interval(secs => :wf_grace_s + :slack_s)
  AND NOT EXISTS (SELECT 1 FROM horsies_workflow_tasks n WHERE n.workflow_id = w.id
                  AND n.status NOT IN ('COMPLETED','FAILED','SKIPPED'));
-- W3 node and task agree once both had time to settle; a task that returned Continue has ended before its node, which
--    goes on as a workflow or fails because it cannot
SELECT 'W3' AS inv, n.id FROM horsies_workflow_tasks n JOIN horsies_tasks t ON t.id = n.task_id
WHERE (t.status IN ('COMPLETED','FAILED','CANCELLED','EXPIRED') AND n.status NOT IN ('COMPLETED','FAILED','SKIPPED')
       AND n.sub_workflow_id IS NULL AND t.updated_at < now() - make_interval(secs => :wf_grace_s + :slack_s))
   OR (n.status = 'COMPLETED' AND t.status <> 'COMPLETED')
   OR (n.status = 'FAILED' AND t.status NOT IN ('FAILED','EXPIRED','CANCELLED')
       AND left(coalesce(t.result, ''), 12) <> '{"continue":')
   OR (n.status = 'SKIPPED' AND t.status IN ('COMPLETED','RUNNING') AND n.sub_workflow_id IS NULL)
   OR NOT t.is_workflow_task
   OR (t.withdrawn AND EXISTS (SELECT 1 FROM horsies_workflows w WHERE w.id = n.workflow_id AND w.status = 'RUNNING'));
-- W4 each active node is backed; each workflow task row belongs to exactly one node; no task has two nodes
SELECT 'W4' AS inv, n.id FROM horsies_workflow_tasks n
WHERE n.status IN ('ENQUEUED','RUNNING')
  AND ((n.kind = 'task' AND NOT EXISTS (SELECT 1 FROM horsies_tasks t WHERE t.id = n.task_id))
   OR (n.kind <> 'task' AND n.sub_workflow_id IS NULL))
UNION ALL SELECT 'W4', t.id FROM horsies_tasks t WHERE t.is_workflow_task
  AND (SELECT count(*) FROM horsies_workflow_tasks n WHERE n.task_id = t.id) <> 1;
-- W5 a node ran only after what it waits for; a branch that was not taken leaves the join. Here and below, an edge counts
-- that one of its ends names: `then` of a batch has up to 100,000, and does not name them, because the list would be read at
-- the end of each member
WITH e AS (SELECT workflow_id, task_index AS dst, unnest(dependencies) AS src FROM horsies_workflow_tasks
  UNION SELECT workflow_id, unnest(dependents), task_index FROM horsies_workflow_tasks),
waits AS (
  SELECT n.id, n.allow_failed_deps, n.join_type, n.min_success,
         count(*) FILTER (WHERE d.skip_reason IS DISTINCT FROM 'not_taken' OR d.completed_at > n.started_at) total,
         count(*) FILTER (WHERE d.status = 'COMPLETED' AND d.completed_at <= n.started_at) ok,
         count(*) FILTER (WHERE d.status IN ('COMPLETED','FAILED','SKIPPED') AND d.completed_at <= n.started_at
                            AND d.skip_reason IS DISTINCT FROM 'not_taken') done
  FROM e JOIN horsies_workflow_tasks n ON n.workflow_id = e.workflow_id AND n.task_index = e.dst
  JOIN horsies_workflow_tasks d ON d.workflow_id = e.workflow_id AND d.task_index = e.src
  WHERE n.started_at IS NOT NULL AND n.status IN ('WAITING','RUNNING','COMPLETED','FAILED') GROUP BY n.id)
SELECT 'W5' AS inv, id FROM waits WHERE CASE
   WHEN allow_failed_deps THEN done < total
   WHEN join_type = 'any' THEN ok < 1
   WHEN join_type = 'quorum' THEN ok < min_success
   ELSE ok < total END
UNION ALL SELECT 'W5', n.id FROM horsies_workflow_tasks n
WHERE n.started_at IS NOT NULL AND n.status IN ('WAITING','RUNNING','COMPLETED','FAILED') AND n.when_index IS NOT NULL
  AND NOT EXISTS (SELECT 1 FROM horsies_workflow_tasks d WHERE d.workflow_id = n.workflow_id
       AND d.task_index = n.when_index AND d.status = 'COMPLETED' AND d.completed_at <= n.started_at
       AND d.result::json ->> 'ok' = n.when_value::text);
-- W6 a node whose dependencies are settled is not left waiting in a RUNNING workflow
WITH e AS (SELECT workflow_id, task_index AS dst, unnest(dependencies) AS src FROM horsies_workflow_tasks
  UNION SELECT workflow_id, unnest(dependents), task_index FROM horsies_workflow_tasks)
SELECT 'W6' AS inv, n.id FROM horsies_workflow_tasks n JOIN horsies_workflows w ON w.id = n.workflow_id
WHERE w.status = 'RUNNING' AND n.status IN ('PENDING','READY')
  AND w.updated_at < now() - make_interval(secs => :wf_grace_s + :slack_s)
  AND NOT EXISTS (SELECT 1 FROM horsies_workflow_tasks d
                  WHERE d.workflow_id = n.workflow_id AND d.task_index = n.when_index
                    AND d.status NOT IN ('COMPLETED','FAILED','SKIPPED'))
  AND NOT EXISTS (SELECT 1 FROM e JOIN horsies_workflow_tasks d ON d.workflow_id = e.workflow_id AND d.task_index = e.src
                  WHERE e.workflow_id = n.workflow_id AND e.dst = n.task_index
                    AND d.status NOT IN ('COMPLETED','FAILED','SKIPPED'));
-- W7 the graph is sound: known dependencies, no self loop, no cycle
WITH RECURSIVE e AS (SELECT workflow_id, task_index AS dst, unnest(dependencies) AS src FROM horsies_workflow_tasks
  UNION SELECT workflow_id, unnest(dependents), task_index FROM horsies_workflow_tasks),
walk(workflow_id, start, cur) AS (  -- closure, not paths: a ladder of diamonds has exponentially many
  SELECT workflow_id, src, dst FROM e
  UNION SELECT w.workflow_id, w.start, e.dst FROM walk w JOIN e ON e.workflow_id = w.workflow_id AND e.src = w.cur)
SELECT DISTINCT 'W7' AS inv, workflow_id AS id FROM walk WHERE start = cur
UNION SELECT 'W7', e.workflow_id FROM e WHERE NOT EXISTS (
  SELECT 1 FROM horsies_workflow_tasks n WHERE n.workflow_id = e.workflow_id AND n.task_index = e.src)
UNION SELECT 'W7', e.workflow_id FROM e WHERE NOT EXISTS (
  SELECT 1 FROM horsies_workflow_tasks n WHERE n.workflow_id = e.workflow_id AND n.task_index = e.dst);
-- W8 parent and child workflow agree
SELECT 'W8' AS inv, c.id FROM horsies_workflows c
LEFT JOIN horsies_workflows p ON p.id = c.parent_workflow_id
LEFT JOIN horsies_workflow_tasks n ON n.workflow_id = p.id AND n.task_index = c.parent_task_index
WHERE c.parent_workflow_id IS NOT NULL
  AND (p.id IS NULL OR c.depth <> p.depth + 1 OR n.sub_workflow_id IS DISTINCT FROM c.id
   OR (c.status IN ('COMPLETED','FAILED','CANCELLED') AND n.status NOT IN ('COMPLETED','FAILED','SKIPPED')
       AND c.updated_at < now() - make_interval(secs => :wf_grace_s + :slack_s)));
-- G1 a signal fed at most one node, which completed with its value; a node that a signal completed has exactly one. Only
-- a bool that a payload codec has encoded as this signal, and on which other nodes depend (`decides`), is stored decoded
SELECT 'G1' AS inv, g.id FROM horsies_workflow_signals g LEFT JOIN horsies_workflow_tasks n ON n.id = g.consumed_by
WHERE g.consumed_at IS NOT NULL AND (n.id IS NULL OR n.kind <> 'signal' OR n.status <> 'COMPLETED'
      OR n.signal_name <> g.name OR (n.result IS DISTINCT FROM '{"ok":' || g.value || '}'
          AND NOT (n.decides <> '{}' AND n.result ~ '^[{]"ok":(true|false)[}]$'
               AND CASE WHEN strpos(g.value, '"horsies.encoded"') > 0
                        THEN coalesce(g.value::jsonb ->> 'of' = 'signal:' || g.name, false) ELSE false END))
      OR g.created_at > n.completed_at)
UNION ALL SELECT 'G1', n.id FROM horsies_workflow_tasks n WHERE n.kind = 'signal' AND n.status = 'COMPLETED'
  AND (SELECT count(*) FROM horsies_workflow_signals g WHERE g.consumed_by = n.id) <> 1;
-- G2 no clock was early: a sleep, or the timeout of a signal
SELECT 'G2' AS inv, n.id FROM horsies_workflow_tasks n
WHERE (n.kind = 'sleep' AND n.status = 'COMPLETED' OR n.kind = 'signal' AND n.status = 'FAILED')
  AND n.completed_at < coalesce(n.good_until, n.started_at + n.ttl);
-- G3 compensations: one per node, of nodes that completed; one after the other, the last end first
SELECT 'G3' AS inv, u.id FROM horsies_workflow_tasks u LEFT JOIN horsies_workflow_tasks n ON n.id = u.compensates
WHERE u.compensates IS NOT NULL
  AND (n.id IS NULL OR n.status <> 'COMPLETED' OR n.compensate IS NULL OR n.compensates IS NOT NULL
   OR EXISTS (SELECT 1 FROM horsies_workflow_tasks v JOIN horsies_workflow_tasks m ON m.id = v.compensates
              WHERE v.id <> u.id AND (v.compensates = u.compensates
                 OR v.workflow_id = u.workflow_id AND v.started_at < u.completed_at AND u.started_at < v.completed_at
                 OR v.workflow_id = u.workflow_id AND m.workflow_id = n.workflow_id AND m.ended_seq > n.ended_seq
                    AND u.started_at < coalesce(v.completed_at, 'infinity'))));
-- G4 a run that has ended has no clock, no node that waits, and no end to come
SELECT 'G4' AS inv, w.id FROM horsies_workflows w
WHERE w.status IN ('COMPLETED','FAILED','CANCELLED')
  AND (w.wake_at IS NOT NULL OR w.ends_as IS NOT NULL
   OR EXISTS (SELECT 1 FROM horsies_workflow_tasks n WHERE n.workflow_id = w.id AND n.status = 'WAITING'));
-- G5 the clock of a live run is not later than its earliest one (a worker that looks at it moves it by its lease of 30 s,
-- perhaps after the transaction of this statement has begun: hence clock_timestamp())
SELECT 'G5' AS inv, w.id FROM horsies_workflows w
CROSS JOIN LATERAL (SELECT least(CASE WHEN w.ends_as IS NULL THEN w.deadline END,
                                 CASE WHEN w.status = 'PENDING' AND w.depth = 0 THEN w.start_at END,
                                 min(n.wake_at)) AS at
                      FROM horsies_workflow_tasks n WHERE n.workflow_id = w.id AND n.status = 'WAITING'
                       AND (n.kind = 'sleep' OR w.status <> 'PAUSED')) AS clock
WHERE w.status IN ('PENDING','RUNNING','PAUSED')
  AND coalesce(w.wake_at, 'infinity') > greatest(clock.at, clock_timestamp() + make_interval(secs => 30)) AND clock.at IS NOT NULL;
-- S1 schedule bookkeeping
SELECT 'S1' AS inv, schedule_name FROM horsies_schedule_state
WHERE next_run_at <= last_run_at OR run_count < 0 OR (run_count > 0 AND (last_run_at IS NULL OR last_task_id IS NULL));
-- L1 an acknowledged send is in the table (run before retention can delete)
SELECT 'L1' AS inv, s.k::text FROM chaos_sent s LEFT JOIN horsies_tasks t ON t.id = s.task_id
WHERE s.acked AND t.id IS NULL;
-- L2 every acknowledged send reached a terminal state after the drain
SELECT 'L2' AS inv, s.k::text FROM chaos_sent s JOIN horsies_tasks t ON t.id = s.task_id
WHERE t.status NOT IN ('COMPLETED','FAILED','CANCELLED','EXPIRED');
-- L3 no phantom success: COMPLETED means the body ran to its end
SELECT 'L3' AS inv, s.k::text FROM chaos_sent s JOIN horsies_tasks t ON t.id = s.task_id
WHERE t.status = 'COMPLETED' AND NOT EXISTS (SELECT 1 FROM chaos_ledger l WHERE l.k = s.k AND l.phase = 'end');
-- L4 at most one start per recorded attempt (an extra start is an unrecorded, i.e. zombie or double, run)
SELECT 'L4' AS inv, s.k::text FROM chaos_sent s JOIN horsies_tasks t ON t.id = s.task_id
WHERE (SELECT count(*) FROM chaos_ledger l WHERE l.k = s.k AND l.phase = 'start')
    > (SELECT count(*) FROM horsies_task_attempts a WHERE a.task_id = t.id) + t.snoozes + (t.status = 'RUNNING')::int;
-- L5 tasks that must not be repeated (max_retries = 0) started at most once
SELECT 'L5' AS inv, s.k::text FROM chaos_sent s JOIN horsies_tasks t ON t.id = s.task_id
WHERE t.max_retries = 0 AND (SELECT count(*) FROM chaos_ledger l WHERE l.k = s.k AND l.phase = 'start') > 1;
-- L6 two runs of one key do not overlap in time (allowed only inside freeze or partition windows of the fault log)
WITH r AS (SELECT k, run, min(at) s, max(at) e FROM chaos_ledger GROUP BY 1, 2)
SELECT 'L6' AS inv, a.k::text FROM r a JOIN r b ON b.k = a.k AND b.run <> a.run AND b.s > a.s AND b.s < a.e;
-- L7 cancelled or expired before start means the body never ran
SELECT 'L7' AS inv, s.k::text FROM chaos_sent s JOIN horsies_tasks t ON t.id = s.task_id
WHERE t.status IN ('CANCELLED','EXPIRED') AND t.retry_count = 0 AND t.started_at IS NULL
  AND EXISTS (SELECT 1 FROM chaos_ledger l WHERE l.k = s.k);
-- L8 one enqueue, one task: a retried send never made two rows
SELECT 'L8' AS inv, kwargs::text FROM horsies_tasks WHERE task_name = 'chaos' GROUP BY kwargs HAVING count(*) > 1;
