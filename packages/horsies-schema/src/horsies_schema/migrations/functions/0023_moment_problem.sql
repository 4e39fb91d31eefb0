-- Why this JSON value is no moment for `horsies_send`; NULL when it is one. Its text has a time zone: without one, the
-- session's setting would decide.
CREATE OR REPLACE FUNCTION @schema@.horsies_moment_problem(value jsonb)
 RETURNS text
 LANGUAGE plpgsql
 STABLE
 SET search_path TO 'pg_catalog', 'pg_temp'
AS $function$
BEGIN
    IF jsonb_typeof(value) = 'string'
        AND value #>> '{}' ~ '^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)? ?(Z|[+-]\d\d(:?\d\d)?)$'
        AND (value #>> '{}')::timestamptz BETWEEN timestamptz '1971-01-01 00:00:00Z' AND timestamptz '9000-01-01 00:00:00Z'
    THEN
        RETURN NULL;
    END IF;
    RETURN 'a moment with a time zone, from 1971 to 8999, such as "2030-01-31T12:00:00Z"';
EXCEPTION WHEN data_exception THEN  -- such as the 31st of February
    RETURN 'a moment that exists, such as "2030-01-31T12:00:00Z"';
END
$function$
