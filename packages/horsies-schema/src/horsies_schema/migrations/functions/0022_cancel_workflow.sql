CREATE OR REPLACE FUNCTION @schema@.horsies_cancel_workflow(workflow_id text)
 RETURNS boolean
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
DECLARE
    ended constant text :=
        '{"err":{"error_code":"WORKFLOW_CANCELLED","message":"the workflow was cancelled","data":null}}';
    never_started constant text := '{"err":{"error_code":"TASK_CANCELLED","message":'
        '"its workflow was cancelled before it started","data":null}}';
    tree text[];
    seen int := -1;
    root record;
BEGIN
    LOOP  -- until it finds no more: the holder of a row that was waited for may have launched another run inside
        WITH RECURSIVE inside AS (
            SELECT w.id FROM @schema@.horsies_workflows w WHERE w.id = $1
            UNION
            SELECT c.id FROM inside JOIN @schema@.horsies_workflows c ON c.parent_workflow_id = inside.id
        ), locked AS MATERIALIZED (
            SELECT w.id FROM @schema@.horsies_workflows w
             WHERE w.id = ANY (ARRAY(SELECT inside.id FROM inside)) ORDER BY w.depth, w.id FOR NO KEY UPDATE
        )
        SELECT coalesce(array_agg(locked.id::text), '{}') INTO tree FROM locked;
        EXIT WHEN cardinality(tree) = seen;
        seen := cardinality(tree);
    END LOOP;
    SELECT w.status, w.parent_workflow_id, w.ends_as INTO root FROM @schema@.horsies_workflows w WHERE w.id = $1;
    IF NOT FOUND OR root.status NOT IN ('PENDING', 'RUNNING', 'PAUSED') OR root.ends_as IS NOT NULL THEN
        RETURN false;
    END IF;
    PERFORM @schema@.horsies_stop_workflows($1 || array_remove(tree, $1), 'CANCELLED', never_started, ended, ended, ended,
                                           'cancelled', true);
    IF root.parent_workflow_id IS NOT NULL THEN
        PERFORM pg_notify('workflow_step', 'w:' || root.parent_workflow_id);
    END IF;
    RETURN true;
END
$function$
