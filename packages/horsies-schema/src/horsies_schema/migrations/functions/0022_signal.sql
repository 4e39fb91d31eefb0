-- Sends a signal to a run, or to a workflow inside it: `path` names the nodes that lead there ("outer/inner",
-- "orders/item[3]"). It only inserts and notifies; a step of the run gives the value to a node that waits.
-- Returns DELIVERED, or why nothing was stored: REPEATED (a signal with this id exists), WORKFLOW_ENDED,
-- WORKFLOW_NOT_FOUND, NODE_NOT_FOUND (there is no such path), NOT_STARTED (the workflow at the path has not started).
CREATE OR REPLACE FUNCTION @schema@.horsies_signal(workflow_id text, name text, value jsonb DEFAULT 'null', signal_id text DEFAULT NULL, path text DEFAULT NULL)
 RETURNS text
 LANGUAGE plpgsql
 SECURITY DEFINER
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
#variable_conflict use_column
DECLARE
    run_id text := $1;
    rest text := trim('/' FROM coalesce($5, ''));
    part text;
    target record;
BEGIN
    IF $2 IS NULL OR $2 = '' OR length($2) > 255 THEN
        RAISE USING ERRCODE = 'invalid_parameter_value', MESSAGE =
            'a signal needs a name of 1 to 255 characters, not ' || coalesce(quote_literal(left($2, 60)), 'NULL');
    ELSIF $4 = '' OR length($4) > 255 THEN
        RAISE 'the id of a signal has 1 to 255 characters' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    -- The id of a node may have slashes in it: the longest one that fits is taken.
    WHILE rest <> '' LOOP
        part := rest;
        LOOP
            SELECT n.sub_workflow_id, n.kind INTO target FROM @schema@.horsies_workflow_tasks n
             WHERE n.workflow_id = run_id AND n.node_id = regexp_replace(part, '^item\[(\d+)\]$', 'item-\1');
            EXIT WHEN FOUND OR position('/' in part) = 0;
            part := regexp_replace(part, '/[^/]*$', '');
        END LOOP;
        IF NOT FOUND THEN
            EXIT WHEN NOT EXISTS (SELECT FROM @schema@.horsies_workflows w WHERE w.id = run_id);
            RETURN 'NODE_NOT_FOUND';
        ELSIF target.sub_workflow_id IS NULL THEN
            RETURN CASE WHEN target.kind IN ('workflow', 'map') THEN 'NOT_STARTED' ELSE 'NODE_NOT_FOUND' END;
        END IF;
        run_id := target.sub_workflow_id;
        rest := ltrim(substr(rest, length(part) + 1), '/');
    END LOOP;
    SELECT w.status, w.ends_as INTO target FROM @schema@.horsies_workflows w WHERE w.id = run_id;
    IF NOT FOUND THEN
        RETURN 'WORKFLOW_NOT_FOUND';
    ELSIF EXISTS (SELECT FROM @schema@.horsies_workflow_signals s WHERE s.id = $4) THEN
        RETURN 'REPEATED';
    ELSIF target.status IN ('COMPLETED', 'FAILED', 'CANCELLED') OR target.ends_as IS NOT NULL THEN
        RETURN 'WORKFLOW_ENDED';
    END IF;
    INSERT INTO @schema@.horsies_workflow_signals (id, workflow_id, name, value)
    VALUES (coalesce($4, gen_random_uuid()::text), run_id, $2, coalesce($3, 'null')::text)
    ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RETURN 'REPEATED';
    END IF;
    PERFORM pg_notify('workflow_step', 's:' || run_id);
    RETURN 'DELIVERED';
END
$function$
