"""What revisions need to create a function or a table for all roles that used the older ones, or an index on a live
table."""

from importlib.resources import files

from alembic import op

from horsies_schema import connection


def build_index(name: str, definition: str) -> None:
    """Build an index on a live table without keeping its writers waiting.

    It waits for the transactions that began before it. No other session waits for it meanwhile, so a wait may last
    longer than those for locks of tables. A build that was interrupted leaves an invalid index, which is dropped first.
    """
    with op.get_context().autocommit_block():
        op.execute(f"SET lock_timeout = {connection.LOCK_PATIENCE_S * 1000:.0f}")
        try:
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY {name} ON {definition}")
        finally:
            op.execute(f"SET lock_timeout = {connection.LOCK_SLICE_MS}")


def create_function(name: str) -> None:
    """Create the function of `functions/NAME.sql`. A caller's search_path decides nothing: the text names the schema,
    which is known where it runs, also offline."""
    text = (files("horsies_schema.migrations") / "functions" / f"{name}.sql").read_text(encoding="utf-8")
    text = text.replace(":", r"\:")  # a colon before a word is a parameter to SQLAlchemy
    op.execute(
        f"""
DO $do$ BEGIN
    EXECUTE replace(replace($text${text}$text$, '@schema@', quote_ident(current_schema())),
                    '@name@', quote_literal(current_schema()));
END $do$
"""
    )


def own_like_the_tables(name: str, *, kind: str = "ROUTINE") -> None:
    """A superuser who migrates the tables of another role must not leave what others cannot replace."""
    op.execute(
        f"""
DO $do$ DECLARE owner text; BEGIN
    SELECT pg_get_userbyid(relowner) INTO owner FROM pg_class WHERE oid = 'horsies_tasks'::regclass;
    IF owner <> current_user THEN EXECUTE 'ALTER {kind} {name} OWNER TO ' || quote_ident(owner); END IF;
END $do$
"""
    )


def grant_like(old: str, new: str) -> None:
    """Let those roles execute the new function that may execute the old one, and no others."""
    op.execute(f"REVOKE ALL ON ROUTINE {new} FROM PUBLIC")
    op.execute(
        f"""
DO $do$ DECLARE role oid; BEGIN
    FOR role IN SELECT x.grantee
                  FROM pg_proc p CROSS JOIN LATERAL aclexplode(coalesce(p.proacl, acldefault('f', p.proowner))) AS x
                 WHERE p.oid = to_regprocedure('{old}') AND x.privilege_type = 'EXECUTE' LOOP
        EXECUTE 'GRANT EXECUTE ON ROUTINE {new} TO '
            || CASE WHEN role = 0 THEN 'PUBLIC' ELSE quote_ident(pg_get_userbyid(role)) END;
    END LOOP;
END $do$
"""
    )
