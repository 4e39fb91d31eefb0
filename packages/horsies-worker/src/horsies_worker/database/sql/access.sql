-- Whether this session has the rights that a worker or a scheduler needs. Run once, before anything else.

-- name: session_access :one
-- params: schema, tables, rights
-- Parameters are the tables and the rights needed on each. Only catalogs are read, which every role may read:
-- to_regclass does not see a schema without USAGE. `refused` lists the missing rights, in order.
WITH place AS (
    SELECT n.oid, n.nspname FROM pg_catalog.pg_namespace n
      JOIN pg_catalog.pg_class c ON c.relnamespace = n.oid AND c.relname = 'horsies_tasks' AND c.relkind IN ('r', 'p')
      LEFT JOIN LATERAL (
           SELECT min(entry.position) AS position
             FROM unnest(string_to_array(current_setting('search_path'), ',')) WITH ORDINALITY AS entry (name, position)
            WHERE replace(trim(both ' "' FROM entry.name), '$user', current_user) = n.nspname) path ON true
     WHERE CASE WHEN $1::text IS NULL THEN path.position IS NOT NULL ELSE n.nspname = $1::text END
     ORDER BY path.position LIMIT 1
), refused AS (
    SELECT 0 AS rank, 'USAGE on schema ' || quote_ident(place.nspname) AS told
      FROM place WHERE NOT has_schema_privilege(place.oid, 'USAGE')
    UNION ALL
    SELECT 1, upper(wanted.right_) || ' on table ' || quote_ident(place.nspname) || '.' || quote_ident(c.relname)
      FROM place
      JOIN pg_catalog.pg_class c ON c.relnamespace = place.oid AND c.relkind IN ('r', 'p')
      JOIN unnest($2::text[], $3::text[]) AS asked (name, rights) ON asked.name = c.relname
     CROSS JOIN LATERAL unnest(string_to_array(asked.rights, ' ')) AS wanted (right_)
     WHERE NOT has_table_privilege(c.oid, wanted.right_)
    UNION ALL
    SELECT 2, 'EXECUTE on function ' || quote_ident(place.nspname) || '.' || quote_ident(p.proname)
      FROM place JOIN pg_catalog.pg_proc p ON p.pronamespace = place.oid AND p.proname = 'horsies_task_is_sound'
     WHERE NOT has_function_privilege(p.oid, 'EXECUTE')
)
SELECT current_user::text AS role, current_database()::text AS database, pg_is_in_recovery() AS in_recovery,
       current_setting('transaction_read_only') = 'on' AS read_only,
       (SELECT s.source FROM pg_catalog.pg_settings s WHERE s.name = 'default_transaction_read_only') AS read_only_by,
       ARRAY(SELECT told FROM refused ORDER BY rank, told)::text[] AS refused;
