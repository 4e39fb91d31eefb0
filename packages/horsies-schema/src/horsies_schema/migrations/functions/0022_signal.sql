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
    part text;
    target record;
BEGIN
    IF $2 IS NULL OR $2 = '' OR length($2) > 255 THEN
        RAISE USING ERRCODE = 'invalid_parameter_value', MESSAGE =
            'a signal needs a name of 1 to 255 characters, not ' || coalesce(quote_literal(left($2, 60)), 'NULL');
    ELSIF $4 = '' OR length($4) > 255 THEN
        RAISE 'the id of a signal has 1 to 255 characters' USING ERRCODE = 'invalid_parameter_value';
    END IF;
    FOREACH part IN ARRAY string_to_array(coalesce($5, ''), '/') LOOP
        CONTINUE WHEN part = '';
        SELECT n.sub_workflow_id INTO target FROM @schema@.horsies_workflow_tasks n
         WHERE n.workflow_id = run_id AND n.node_id = regexp_replace(part, '^item\[(\d+)\]$', 'item-\1');
        IF NOT FOUND THEN
            EXIT WHEN NOT EXISTS (SELECT FROM @schema@.horsies_workflows w WHERE w.id = run_id);
            RETURN 'NODE_NOT_FOUND';
        ELSIF target.sub_workflow_id IS NULL THEN
            RETURN 'NOT_STARTED';
        END IF;
        run_id := target.sub_workflow_id;
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
