-- For a retry of the ended runs `ids`, which the caller has locked with the runs inside them (`tree`): nodes that were undone
-- run again. Their compensations are deleted, and they are PENDING. What a run did before it continued has no place in the
-- tree, and stays undone: these compensations stay too, alone. A run inside a node that was undone as a whole leaves the
-- node, which runs anew; it stays as history of the outermost run. Returns the runs of all these nodes.
CREATE OR REPLACE FUNCTION @schema@.horsies_forget_compensations(ids text[], tree text[])
 RETURNS SETOF text
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
    ended constant text[] := ARRAY(SELECT w.id FROM @schema@.horsies_workflows w
                                    WHERE w.id = ANY (ids) AND w.status IN ('FAILED', 'CANCELLED'));
    changed text[];
    replaced text[];
BEGIN
    WITH undo AS MATERIALIZED (
        SELECT u.id, u.task_id, u.status, n.id AS node_id, n.task_id AS former, n.workflow_id, n.sub_workflow_id
          FROM @schema@.horsies_workflow_tasks u JOIN @schema@.horsies_workflow_tasks n ON n.id = u.compensates
         WHERE u.workflow_id = ANY (ended) AND u.compensates IS NOT NULL AND n.workflow_id = ANY (tree)
    ), detached AS (
        UPDATE @schema@.horsies_tasks t
           SET is_workflow_task = false, former_node_id = x.node_id, updated_at = statement_timestamp()
          FROM (SELECT undo.task_id, undo.node_id FROM undo
                UNION ALL SELECT undo.former, undo.node_id FROM undo WHERE undo.status = 'COMPLETED') AS x
         WHERE t.id = x.task_id
    ), gone AS (
        DELETE FROM @schema@.horsies_workflow_tasks u USING undo WHERE u.id = undo.id
    ), left_alone AS (
        UPDATE @schema@.horsies_workflow_tasks u SET dependencies = '{}', dependents = '{}', deps_left = 0
         WHERE u.workflow_id = ANY (ended) AND u.compensates IS NOT NULL
           AND NOT EXISTS (SELECT FROM undo WHERE undo.id = u.id)
    ), again AS (
        UPDATE @schema@.horsies_workflow_tasks n
           SET task_id = NULL, sub_workflow_id = NULL, result = NULL, error = NULL, started_at = NULL,
               completed_at = NULL, ended_seq = NULL, updated_at = statement_timestamp(), status = 'PENDING'
          FROM undo WHERE n.id = undo.node_id AND undo.status = 'COMPLETED'
        RETURNING undo.sub_workflow_id
    )
    SELECT ARRAY(SELECT DISTINCT undo.workflow_id::text FROM undo),
           ARRAY(SELECT again.sub_workflow_id::text FROM again WHERE again.sub_workflow_id IS NOT NULL)
      INTO changed, replaced;
    WITH RECURSIVE inside AS (
        SELECT c.id, c.depth AS levels FROM @schema@.horsies_workflows c WHERE c.id = ANY (replaced)
        UNION
        SELECT c.id, inside.levels FROM inside JOIN @schema@.horsies_workflows c ON c.parent_workflow_id = inside.id
    )
    UPDATE @schema@.horsies_workflows c
       SET parent_workflow_id = CASE WHEN NOT c.id = ANY (replaced) THEN c.parent_workflow_id END,
           parent_task_index = CASE WHEN NOT c.id = ANY (replaced) THEN c.parent_task_index END,
           depth = c.depth - inside.levels
      FROM inside WHERE c.id = inside.id;
    RETURN QUERY SELECT x.id FROM unnest(changed) AS x (id);
END
$function$
