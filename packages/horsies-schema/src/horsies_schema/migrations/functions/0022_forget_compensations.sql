-- For a retry of runs that have ended and have undone what they did: the nodes that were undone run again. Their
-- compensations are deleted, and they are PENDING. Returns the runs of these nodes. `tree`: all runs that the caller has
-- locked. What a run did before it continued has no place in the tree, and stays undone: those compensations that completed
-- are kept, each on its own. A workflow that was undone as a whole stays as history, apart from the tree as a run's past is;
-- its node starts another one.
CREATE OR REPLACE FUNCTION @schema@.horsies_forget_compensations(ids text[], tree text[])
 RETURNS SETOF text
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
    RETURN QUERY WITH RECURSIVE every AS MATERIALIZED (
        SELECT u.id, u.task_id, u.status, n.id AS node_id, n.task_id AS former, n.sub_workflow_id, n.workflow_id,
               n.workflow_id = ANY (tree) AS runs_again
          FROM @schema@.horsies_workflow_tasks u JOIN @schema@.horsies_workflow_tasks n ON n.id = u.compensates
          JOIN @schema@.horsies_workflows w ON w.id = u.workflow_id AND w.status IN ('FAILED', 'CANCELLED')
         WHERE u.workflow_id = ANY (ids) AND u.compensates IS NOT NULL
    ), undo AS MATERIALIZED (
        SELECT * FROM every WHERE runs_again OR status <> 'COMPLETED'
    ), kept AS (
        UPDATE @schema@.horsies_workflow_tasks u SET dependencies = '{}', dependents = '{}', updated_at = statement_timestamp()
          FROM every WHERE u.id = every.id AND NOT every.runs_again AND every.status = 'COMPLETED'
    ), detached AS (
        UPDATE @schema@.horsies_tasks t SET is_workflow_task = false, former_node_id = x.node_id, updated_at = statement_timestamp()
          FROM (SELECT undo.task_id, undo.node_id FROM undo
                UNION ALL SELECT undo.former, undo.node_id FROM undo WHERE undo.status = 'COMPLETED') AS x
         WHERE t.id = x.task_id
    ), gone AS (
        DELETE FROM @schema@.horsies_workflow_tasks u USING undo WHERE u.id = undo.id
    ), inside AS (
        SELECT c.id, c.depth AS top FROM undo JOIN @schema@.horsies_workflows c ON c.id = undo.sub_workflow_id
         WHERE undo.status = 'COMPLETED'
        UNION
        SELECT c.id, inside.top FROM inside JOIN @schema@.horsies_workflows c ON c.parent_workflow_id = inside.id
    ), apart AS (
        UPDATE @schema@.horsies_workflows c
           SET depth = c.depth - inside.top,
               parent_workflow_id = CASE WHEN c.depth > inside.top THEN c.parent_workflow_id END,
               parent_task_index = CASE WHEN c.depth > inside.top THEN c.parent_task_index END
          FROM inside WHERE c.id = inside.id
    ), again AS (
        UPDATE @schema@.horsies_workflow_tasks n
           SET task_id = NULL, sub_workflow_id = NULL, result = NULL, error = NULL, started_at = NULL,
               completed_at = NULL, ended_seq = NULL, updated_at = statement_timestamp(), status = 'PENDING'
          FROM undo WHERE n.id = undo.node_id AND undo.status = 'COMPLETED'
        RETURNING n.workflow_id
    )
    SELECT again.workflow_id::text FROM again UNION SELECT undo.workflow_id::text FROM undo WHERE undo.runs_again;
END
$function$
