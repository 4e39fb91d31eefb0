"""Is the database at a revision that this code can work with? Asked once per pool; never runs DDL."""

from typing import Final, Protocol

from horsies._pg.statements import qualify
from horsies.errors import SchemaError

REQUIRED_REVISION: Final = "0015"
"""The oldest schema revision that this release works with. Newer ones are fine: upgrades add first."""


class _Connection(Protocol):
    async def fetchval(self, query: str, *args: object) -> object: ...


async def require_schema(connection: _Connection, schema: str | None) -> str:
    """The revision that the database is at. Raises `SchemaError`, with what to run, when tables are missing or
    too old."""
    table = qualify("horsies_alembic_version", schema)
    option = f" --schema {schema}" if schema else ""
    found = None
    if await connection.fetchval("SELECT to_regclass($1)::text", table) is not None:
        found = await connection.fetchval(f"SELECT version_num FROM {table}")
    if found is None:
        where = f"schema {schema!r} of this database" if schema else "this database (by its search_path)"
        raise SchemaError(f"there are no horsies tables in {where}: run `horsies-migrate up{option}`")
    if str(found) < REQUIRED_REVISION:
        raise SchemaError(
            f"the horsies tables are at revision {found}, this release needs {REQUIRED_REVISION}: "
            f"run `horsies-migrate up{option}`"
        )
    return str(found)
