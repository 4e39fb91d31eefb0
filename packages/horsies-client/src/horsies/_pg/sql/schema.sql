-- Finds the schema and the revision of the tables, before any other statement. Needs only the right to read the version.

-- name: places :many
-- params: tables, functions, version_table
-- The schema in which this session finds each name. Two version tables in the search_path are two installations.
SELECT n.nspname::text AS schema_name, t.name FROM unnest($1::text[]) AS t (name)
  JOIN pg_catalog.pg_class c ON c.oid = pg_catalog.to_regclass(t.name)
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
UNION ALL
SELECT n.nspname::text, f.name FROM unnest($2::text[]) AS f (name)
  JOIN pg_catalog.pg_proc p ON p.oid = pg_catalog.to_regprocedure(f.name)
  JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
UNION ALL
SELECT n.nspname::text, 'another installation' FROM pg_catalog.pg_class home
  JOIN pg_catalog.pg_class c ON c.relname = home.relname AND c.oid <> home.oid
  JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE home.oid = pg_catalog.to_regclass($3::text) AND n.nspname = ANY (pg_catalog.current_schemas(false))
 ORDER BY 2, 1;

-- name: missing_rights :many
-- params: schema, version_table
-- What this role lacks to see the tables and to read their revision. Only catalogs are read, which every role may read:
-- to_regclass does not see a schema without USAGE.
SELECT current_user::text AS role,
       CASE WHEN pg_catalog.has_schema_privilege(n.oid, 'USAGE')
            THEN 'SELECT on table ' || pg_catalog.quote_ident(n.nspname) || '.' || c.relname
            ELSE 'USAGE on schema ' || pg_catalog.quote_ident(n.nspname) END AS missing
  FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace
 WHERE c.relname = $2::text AND c.relkind IN ('r', 'p')
   AND NOT (pg_catalog.has_schema_privilege(n.oid, 'USAGE') AND pg_catalog.has_table_privilege(c.oid, 'SELECT'))
   AND CASE WHEN $1::text IS NOT NULL THEN n.nspname = $1::text
            WHEN pg_catalog.to_regclass($2::text) IS NOT NULL THEN c.oid = pg_catalog.to_regclass($2::text)
            ELSE EXISTS (
                 SELECT FROM pg_catalog.unnest(
                        pg_catalog.string_to_array(pg_catalog.current_setting('search_path'), ',')) AS entry (name)
                  WHERE replace(trim(both ' "' FROM entry.name), '$user', current_user) = n.nspname) END
 ORDER BY n.nspname LIMIT 1;

-- name: revisions :many
-- `breaking` is the newest revision that older code cannot work with; before revision 0013 there is no such column.
SELECT v.version_num, pg_catalog.to_jsonb(v) ->> 'breaking' AS breaking FROM horsies_alembic_version v;
