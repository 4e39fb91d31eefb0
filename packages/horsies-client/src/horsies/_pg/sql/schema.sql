-- Where the tables are and at which revision, asked before anything else is. Needs no right but that to read the version.

-- name: places :many
-- params: tables, functions, version_table
-- The schema in which each name is found by this session. Two version tables in the search_path are two installations.
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

-- name: revisions :many
-- `breaking` is the newest revision that older code cannot work with; before revision 0013 there is no such column.
SELECT v.version_num, pg_catalog.to_jsonb(v) ->> 'breaking' AS breaking FROM horsies_alembic_version v;
