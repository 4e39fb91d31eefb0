-- Ends the first of these runs with new_status and run_error, and the others, which are inside it, as CANCELLED with
-- inside_error, before their nodes have ended. undoes: those that have something to undo end when that is done.
CREATE OR REPLACE FUNCTION @schema@.horsies_stop_workflows(ids text[], new_status text, task_error text, node_error text, run_error text, inside_error text, reason text, undoes boolean)
 RETURNS SETOF text
 LANGUAGE plpgsql
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
    moment constant timestamptz := clock_timestamp();
    -- Runs that have something to undo, and the runs around them, go on until their running tasks have ended and their
    -- compensations have run; `ends_as` keeps the end. A run that was continued may have something in its past.
    undoing constant text[] := CASE WHEN undoes THEN ARRAY(
        WITH RECURSIVE around AS (
            SELECT w.id, w.parent_workflow_id FROM @schema@.horsies_workflows w
             WHERE w.id = ANY (ids) AND (w.continues > 0 OR EXISTS (
                   SELECT FROM @schema@.horsies_workflow_tasks n WHERE n.workflow_id = w.id
                      AND n.compensate IS NOT NULL AND n.status IN ('COMPLETED', 'ENQUEUED', 'RUNNING')))
            UNION
            SELECT p.id, p.parent_workflow_id FROM around
              JOIN @schema@.horsies_workflows p ON p.id = around.parent_workflow_id
             WHERE p.id = ANY (ids))
        SELECT around.id FROM around) ELSE '{}' END;
    stopped_ids text[];
BEGIN
    WITH run AS (
        UPDATE @schema@.horsies_workflows w
           SET error = CASE WHEN w.id = ids[1] THEN run_error ELSE inside_error END, updated_at = moment, nodes_left = 0, wake_at = NULL, paused_inside = false,
               completed_at = CASE WHEN NOT w.id = ANY (undoing) THEN moment END,
               ends_as = CASE WHEN w.id = ANY (undoing) THEN CASE WHEN w.id = ids[1] THEN new_status ELSE 'CANCELLED' END END,
               unsettled = w.unsettled AND (w.id = ANY (undoing) OR NOT w.parent_workflow_id = ANY (ids)),
               status = CASE WHEN w.id = ANY (undoing) THEN 'RUNNING' WHEN w.id = ids[1] THEN new_status ELSE 'CANCELLED' END
         WHERE w.id = ANY (ids) AND w.status IN ('PENDING', 'RUNNING', 'PAUSED') AND w.ends_as IS NULL
        RETURNING w.id
    ), live AS MATERIALIZED (
        SELECT n.ctid AS tid, n.task_id, n.sub_workflow_id FROM run
          JOIN @schema@.horsies_workflow_tasks n ON n.workflow_id = run.id
           AND n.status IN ('PENDING', 'READY', 'WAITING', 'ENQUEUED', 'RUNNING')
         -- the workflow inside is still to end, and ends its node
         WHERE NOT (n.status = 'RUNNING' AND EXISTS (
               SELECT FROM @schema@.horsies_workflows c WHERE c.id = n.sub_workflow_id
                  AND (c.id = ANY (undoing) OR c.ends_as IS NOT NULL)))
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
        SELECT live.tid FROM live WHERE live.task_id IS NULL OR live.sub_workflow_id IS NOT NULL
        UNION ALL
        SELECT stopped.tid FROM stopped WHERE stopped.status = 'CANCELLED'
    ), node AS (
        UPDATE @schema@.horsies_workflow_tasks n
           SET error = node_error, completed_at = moment, updated_at = moment, wake_at = NULL,
               skip_reason = CASE WHEN n.status <> 'RUNNING' THEN reason END,
               status = CASE WHEN n.status = 'RUNNING' THEN 'FAILED' ELSE 'SKIPPED' END
          FROM unstarted u WHERE n.ctid = u.tid
    ), told AS MATERIALIZED (
        SELECT pg_notify('task_cancel', stopped.id) FROM stopped WHERE stopped.status = 'RUNNING'
    ), stepped AS MATERIALIZED (
        SELECT run.id, pg_notify('workflow_step', 'w:' || run.id) FROM run
    )
    SELECT coalesce(array_agg(stepped.id::text), '{}') INTO stopped_ids
      FROM stepped WHERE (SELECT count(*) FROM told) >= 0;
    UPDATE @schema@.horsies_workflows w
       SET nodes_left = (SELECT count(*) FROM @schema@.horsies_workflow_tasks n WHERE n.workflow_id = w.id
                            AND n.status NOT IN ('COMPLETED', 'FAILED', 'SKIPPED'))
     WHERE w.id = ANY (stopped_ids) AND w.id = ANY (undoing);
    RETURN QUERY SELECT x.id FROM unnest(stopped_ids) AS x (id);
END
$function$
