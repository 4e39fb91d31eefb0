-- Parts that several statements share, in this package and in others (see _pg/statements.py). `t` is a row of
-- horsies_tasks.

-- fragment: last_sign
-- The last sign of life of a claimed or running task: the newest of its state's own start, a staged outcome, and the
-- heartbeats of the current attempt. Its age is the task's silence, for the reaper, `horsies stale`, the doctor and the
-- dashboard.
greatest(t.claimed_at, t.started_at, t.finalizing_at, (
    SELECT h.sent_at FROM horsies_heartbeats h
     WHERE h.task_id = t.id AND h.role = CASE t.status WHEN 'RUNNING' THEN 'runner' ELSE 'claimer' END
       AND h.sent_at >= coalesce(t.started_at, t.claimed_at)
     ORDER BY h.sent_at DESC LIMIT 1))

-- fragment: is_live
-- Whether a row `i` of horsies_worker_instances is a live worker: one that has sent a heartbeat within three periods.
i.stopped_at IS NULL AND i.recovered_at IS NULL AND i.judged_dead_at IS NULL
   AND i.beat_at + 3::bigint * i.period_ms * interval '1 ms' > statement_timestamp()

-- fragment: wish
-- What an operator wants of a worker, and when and who asked for it.
wanted_state, wanted_processes, wanted_at, wanted_by

-- fragment: waits_alone
-- A waiting task without a group, in the words of its index.
t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NULL

-- fragment: waits_in_group
-- A waiting task of a group. These have indexes of their own, so a statement about all waiting tasks has two parts.
t.status = 'PENDING' AND NOT t.withdrawn AND t.group_key IS NOT NULL

-- fragment: task_info
-- The columns of TaskInfo that every role may read.
t.id, t.task_name, t.queue_name, t.priority, t.status, t.sent_at, t.enqueued_at, t.claimed_at, t.started_at,
       t.completed_at, t.failed_at, t.terminal_at, t.cancel_requested_at, t.good_until, t.next_retry_at, t.retry_count,
       t.max_retries, t.manual_retries, t.claimed_by_worker_id, t.worker_hostname, t.worker_pid, t.worker_process_name,
       t.error_code, t.is_workflow_task, t.group_key AS "group", t.snoozes, t.crash_count, t.created_at, t.updated_at,
       make_interval(secs => t.keep_seconds) AS keep_for

-- fragment: attempt_info
-- The columns of TaskAttempt that every role may read.
attempt, outcome, will_retry, started_at, finished_at, error_code, worker_id, worker_hostname, worker_pid,
       worker_process_name

-- fragment: task_since
-- When a task entered its state; for a waiting task, when it is due.
CASE WHEN t.status = 'PENDING' THEN t.enqueued_at ELSE coalesce(t.terminal_at, t.started_at, t.claimed_at) END

-- fragment: task_summary
-- The columns of TaskSummary.
t.id, t.task_name, t.queue_name, t.priority, t.status, {{task_since}} AS since,
       statement_timestamp() - {{task_since}} AS age, t.retry_count, t.max_retries, t.manual_retries,
       t.claimed_by_worker_id, t.worker_hostname, left(t.error_code, 200) AS error_code, t.is_workflow_task,
       t.withdrawn, t.terminal_at, t.group_key AS "group"

-- fragment: task_filter
-- The parameters of a TaskFilter, in the order of `TaskFilter.values`. Each may be NULL, which means any.
ids, id_start, statuses, queue_names, task_names, name_part, worker_id, worker_part, older_than, newer_than, in_workflow, error_codes, code_part, group_keys, has_code, metadata

-- fragment: chosen
-- The conditions of a TaskFilter that do not depend on the state. `has_code` says that every wanted state has an error
-- code (a CHECK guarantees it), which lets the planner use the index over error codes for a purge.
($ids::text[] IS NULL OR t.id = ANY ($ids::text[]))
   AND ($id_start::text IS NULL OR left(t.id, length($id_start::text)) = $id_start::text)
   AND ($queue_names::text[] IS NULL OR t.queue_name = ANY ($queue_names::text[]))
   AND ($task_names::text[] IS NULL OR t.task_name = ANY ($task_names::text[]))
   AND ($name_part::text IS NULL OR strpos(lower(t.task_name), $name_part::text) > 0)
   AND ($worker_id::text IS NULL OR t.claimed_by_worker_id = $worker_id::text)
   AND ($worker_part::text IS NULL OR strpos(t.claimed_by_worker_id, $worker_part::text) > 0)
   AND ($in_workflow::boolean IS NULL OR (t.is_workflow_task OR t.former_node_id IS NOT NULL) = $in_workflow::boolean)
   AND ($error_codes::text[] IS NULL OR t.error_code = ANY ($error_codes::text[]))
   AND ($code_part::text IS NULL OR strpos(lower(t.error_code), $code_part::text) > 0)
   AND (NOT $has_code::boolean OR t.error_code IS NOT NULL)
   AND ($group_keys::text[] IS NULL OR t.group_key = ANY ($group_keys::text[]))
   AND {{metadata_matches}}

-- fragment: metadata_matches
-- The condition of a TaskFilter on metadata. A viewer may not read that column, so the text without the condition does
-- not name it.
$metadata::jsonb IS NULL

-- fragment: metadata_matches in by_metadata
-- `$metadata` has the wanted text of each key. Passing over the rows without these keys first saves a third to a half of
-- the time: 300,000 ended tasks, half of them with the key, are read in 0.2 s instead of 0.3.
t.metadata ?& ARRAY(SELECT jsonb_object_keys($metadata::jsonb))
   AND (SELECT bool_and(coalesce(t.metadata ->> m.key = m.value, false)) FROM jsonb_each_text($metadata::jsonb) AS m)

-- fragment: metadata_column
-- One more column of a subquery whose rows `metadata_matches` is applied to.

-- fragment: metadata_column in by_metadata
, metadata

-- fragment: waiting_tasks
-- The waiting tasks of a filter; tasks of groups and withdrawn tasks have indexes of their own. The constant comparison
-- lets the planner drop this part when they are not wanted.
({{waits_alone}} OR {{waits_in_group}} OR t.withdrawn) AND 'PENDING' = ANY ($statuses::text[]) AND {{chosen}}
   AND ($older_than::interval IS NULL OR t.enqueued_at <= statement_timestamp() - $older_than::interval)
   AND ($newer_than::interval IS NULL OR t.enqueued_at > statement_timestamp() - $newer_than::interval)

-- fragment: held_tasks
-- The claimed and running tasks of a filter.
t.status IN ('CLAIMED', 'RUNNING') AND t.status = ANY ($statuses::text[]) AND {{chosen}}
   AND ($older_than::interval IS NULL
        OR coalesce(t.started_at, t.claimed_at) <= statement_timestamp() - $older_than::interval)
   AND ($newer_than::interval IS NULL
        OR coalesce(t.started_at, t.claimed_at) > statement_timestamp() - $newer_than::interval)

-- fragment: ended_tasks
-- The ended tasks of a filter.
t.terminal_at IS NOT NULL AND t.status = ANY ($statuses::text[]) AND {{chosen}}
   AND ($older_than::interval IS NULL OR t.terminal_at <= statement_timestamp() - $older_than::interval)
   AND ($newer_than::interval IS NULL OR t.terminal_at > statement_timestamp() - $newer_than::interval)

-- fragment: newest_first
-- The order of lists of ended tasks, which the indexes by state and by error code have.
ORDER BY t.terminal_at DESC, t.id DESC

-- fragment: of_state
-- The tasks of the state `s.status`, one of those without success, in the words of their index. A statement asks for each
-- state apart, because only the tasks of one state are in the order of their ends there. Such a statement must not say
-- or imply that `terminal_at` is not NULL: where the planner expects many failures it would walk along the index over
-- all ends instead, and pass over every success. For the same reason it compares rows, with ids of which none is ''.
t.status = s.status AND t.status IN ('FAILED', 'CANCELLED', 'EXPIRED')

-- fragment: in_span
-- `older_than` and `newer_than` of a filter, for such statements.
($older_than::interval IS NULL OR (t.terminal_at, t.id)
        < (statement_timestamp() - $older_than::interval + interval '1 microsecond', ''::text))
   AND ($newer_than::interval IS NULL OR (t.terminal_at, t.id)
        >= (statement_timestamp() - $newer_than::interval + interval '1 microsecond', ''::text))

-- fragment: unsuccessful_tasks
-- The ended tasks of a filter in the state `s.status`.
{{of_state}} AND {{chosen}} AND {{in_span}}

-- fragment: coded_tasks
-- The ended tasks of a filter with the error code `c.code`. No index can be used for the condition on the state: where the
-- planner expects few failures it would read all of a state.
t.error_code = c.code AND t.status || '' = ANY ($statuses::text[]) AND {{chosen}} AND {{in_span}}

-- fragment: kept_by_workflow
-- A workflow that has not ended, at any level, keeps its tasks.
(t.is_workflow_task AND EXISTS (
    SELECT FROM horsies_workflow_tasks n
      JOIN horsies_workflows w ON w.id = n.workflow_id
      LEFT JOIN horsies_workflows r ON r.id = w.root_workflow_id
     WHERE n.task_id = t.id AND (w.completed_at IS NULL OR (r.id IS NOT NULL AND r.completed_at IS NULL))))

-- fragment: requeue_target
-- Sends the claimed tasks that the CTE `target` locked back to their queue.
UPDATE horsies_tasks t
   SET status = 'PENDING', claimed = false, claimed_at = NULL, claimed_by_worker_id = NULL, claim_expires_at = NULL,
       updated_at = statement_timestamp()
  FROM target

-- fragment: lost_attempt
-- What ending the attempt of a lost worker needs.
t.id, t.task_name, t.claim_generation, t.claimed_by_worker_id, t.retry_count, t.max_retries, t.task_options,
       t.worker_pid, t.worker_process_name, t.started_at, t.result, t.finalizing_at, t.cancel_requested_at,
       date_part('epoch', statement_timestamp() - t.started_at) AS ran_s

-- fragment: workflow_info
-- The columns of WorkflowInfo but its metadata, which a viewer may not read; `w` is a row of horsies_workflows.
w.id, w.name, w.status, w.on_error, w.definition_key, w.parent_workflow_id, w.depth, w.nodes_left, w.sent_at,
       w.created_at, w.started_at, w.completed_at, w.updated_at, w.deadline, w.start_at, w.priority, w.release, w.ends_as,
       w.continues, w.root_workflow_id

-- fragment: node_info
-- The columns of WorkflowNodeInfo; `n` is the node, `t` its task and `c` the workflow inside it. A node's row stays
-- ENQUEUED while its task runs, which saves a write per node, so RUNNING is read from the task.
n.task_index, n.node_id, n.task_name, n.dependencies, n.join_type, n.kind IN ('workflow', 'map') AS is_subworkflow, n.sub_workflow_id,
       n.task_id, n.kind, n.wake_at, n.signal_name, n.when_index, n.when_value, n.skip_reason,
       n.compensates IS NOT NULL AS is_compensation,
       CASE WHEN n.status = 'ENQUEUED' AND t.status = 'RUNNING' THEN 'RUNNING' ELSE n.status END AS status,
       coalesce(n.started_at, t.started_at) AS started_at, n.completed_at, c.status AS sub_workflow_status

-- fragment: is_cancelled
-- The node `n`, a member of a batch, was cancelled: with the batch, or alone. A viewer may not read errors, but may read the
-- states of tasks; CASE, so that only those of failed nodes are read.
CASE n.status WHEN 'SKIPPED' THEN true
                                           WHEN 'FAILED' THEN EXISTS (SELECT FROM horsies_tasks k WHERE k.id = n.task_id AND k.status = 'CANCELLED')
                                           ELSE false END

-- fragment: with_holder
-- `t` with the session `a` whose open transaction has changed or locked the row. A row that several transactions have locked
-- names none of them.
  FROM horsies_tasks t
  JOIN pg_locks l ON l.locktype = 'transactionid' AND l.granted AND l.transactionid = t.xmax
  JOIN pg_stat_activity a ON a.pid = l.pid
