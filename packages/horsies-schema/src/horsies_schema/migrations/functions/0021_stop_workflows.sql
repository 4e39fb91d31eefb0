CREATE OR REPLACE FUNCTION @schema@.horsies_stop_workflows(ids text[], new_status text, task_error text, node_error text, run_error text)
 RETURNS SETOF text
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
    moment constant timestamptz := clock_timestamp();
BEGIN
    RETURN QUERY WITH run AS (
        UPDATE @schema@.horsies_workflows w
           SET error = run_error, completed_at = moment, updated_at = moment,
               nodes_left = 0, status = new_status
         WHERE w.id = ANY (ids) AND w.status IN ('PENDING', 'RUNNING', 'PAUSED')
        RETURNING w.id
    ), live AS MATERIALIZED (
        SELECT n.ctid AS tid, n.task_id FROM run
          JOIN @schema@.horsies_workflow_tasks n ON n.workflow_id = run.id
           AND n.status IN ('PENDING', 'READY', 'ENQUEUED', 'RUNNING')
    ), task AS MATERIALIZED (
        SELECT t.id, live.tid FROM live JOIN @schema@.horsies_tasks t ON t.id = live.task_id
         WHERE t.status IN ('PENDING', 'CLAIMED', 'RUNNING') ORDER BY t.id FOR UPDATE OF t
    ), stopped AS (
        UPDATE @schema@.horsies_tasks t
           SET withdrawn = false, claimed = false, claim_expires_at = CASE WHEN t.status = 'RUNNING' THEN t.claim_expires_at END,
               status = CASE WHEN t.status = 'RUNNING' THEN t.status ELSE 'CANCELLED' END,
               result = CASE WHEN t.status = 'RUNNING' THEN t.result ELSE task_error END,
               error_code = CASE WHEN t.status = 'RUNNING' THEN t.error_code ELSE 'TASK_CANCELLED' END,
               terminal_at = CASE WHEN t.status <> 'RUNNING' THEN moment END,
               cancel_requested_at = moment, updated_at = moment
          FROM task WHERE t.id = task.id
        RETURNING t.id, t.status, task.tid
    ), unstarted AS (
        -- by what became of the task, not by what the snapshot says of it: it may have been started meanwhile
        SELECT live.tid FROM live WHERE live.task_id IS NULL
        UNION ALL
        SELECT stopped.tid FROM stopped WHERE stopped.status = 'CANCELLED'
    ), node AS (
        UPDATE @schema@.horsies_workflow_tasks n
           SET error = node_error, completed_at = moment, updated_at = moment,
               status = CASE WHEN n.kind <> 'task' AND n.status = 'RUNNING' THEN 'FAILED' ELSE 'SKIPPED' END
          FROM unstarted u WHERE n.ctid = u.tid
    ), told AS MATERIALIZED (
        SELECT pg_notify('task_cancel', stopped.id) FROM stopped WHERE stopped.status = 'RUNNING'
    ), stepped AS MATERIALIZED (
        SELECT run.id, pg_notify('workflow_step', 'w:' || run.id) FROM run
    )
    SELECT stepped.id::text FROM stepped WHERE (SELECT count(*) FROM told) >= 0;
END
$function$
