"""Is the database at a revision that this code can work with, and is there only one place that it can mean? Asked once
per pool; never runs DDL."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from horsies._pg.statements import FUNCTIONS, TABLES, load, qualify
from horsies.errors import SchemaError

REQUIRED_REVISION: Final = "0015"
"""The oldest schema revision that this release works with."""
HEAD_REVISION: Final = "0015"
"""The newest one that this release knows; a test compares it with horsies-schema. A worker with `auto_migrate` brings a
database there that is behind. Newer ones are fine unless they say that they break older code."""

VERSION_TABLE: Final = "horsies_alembic_version"


class Revision(NamedTuple):
    """What the version table says."""

    number: str
    breaking: str | None
    """Code that does not know this revision cannot work with the database."""


class _Connection(Protocol):
    async def fetch(self, query: str, *args: Any) -> Sequence[Any]: ...


async def require_schema(connection: _Connection, schema: str | None) -> str:
    """The revision that the database is at. Raises `SchemaError`, with what to do, when tables are missing, are too old
    or too new, or are found in two places."""
    await require_one_place(connection.fetch, schema)
    rows = await connection.fetch(load("horsies._pg", "schema.sql", schema)["revisions"].sql)
    if not rows:
        raise SchemaError(missing(schema))
    found = Revision(str(rows[0]["version_num"]), rows[0]["breaking"])
    if problem := revision_problem(found, schema):
        raise SchemaError(problem)
    return found.number


async def require_one_place(
    fetch: Callable[..., Awaitable[Sequence[Sequence[Any]]]], schema: str | None, *, or_none: bool = False
) -> None:
    """Raises `SchemaError` when this session finds the tables in two schemas, or others of their names, or (unless
    `or_none`) nowhere."""
    statement = load("horsies._pg", "schema.sql", schema)["places"]
    rows = await fetch(statement.sql, *places_values(schema))
    problem = places_problem(((row[0], row[1]) for row in rows), schema)
    if problem is not None and (rows or not or_none):
        raise SchemaError(problem)


# -- decisions and words -------------------------------------------------------------------------


def places_values(schema: str | None) -> tuple[list[str], list[str], str]:
    """Of the statement `places`."""
    return (
        [qualify(name, schema) for name in TABLES],
        [qualify(name, schema) for name in FUNCTIONS],
        qualify(VERSION_TABLE, schema),
    )


def places_problem(places: Iterable[tuple[str, str]], schema: str | None) -> str | None:
    """Why the tables that were found, as pairs of a schema and a name, cannot be used; None when all are in one."""
    found = {name: place for place, name in places}
    if (home := found.pop(qualify(VERSION_TABLE, schema), None)) is None:
        tables = {name.rpartition(".")[2]: place for name, place in found.items() if not name.endswith(")")}
        return taken(min(tables.values()), sorted(tables)) if tables else missing(schema)
    other = found.pop("another installation", None)
    elsewhere = {name: place for name, place in found.items() if place != home}
    if schema is not None or (other is None and not elsewhere):
        return None
    if other is not None:
        told = f"the schemas {home!r} and {other!r} both hold horsies tables"
    else:
        name, place = min(elsewhere.items())
        told = (
            f"{name} is found in schema {place!r}, but the horsies tables of this database are in schema {home!r}: "
            "what is sent would be lost there"
        )
    return (
        f"{told}. Both are in this role's search_path: name the one that is meant with PostgresConfig(schema=...), or "
        "drop the other"
    )


def revision_problem(found: Revision, schema: str | None) -> str | None:
    """Why this release cannot work with that revision; None when it can."""
    if found.breaking is not None and found.breaking > HEAD_REVISION:
        return (
            f"the database is at revision {found.number}, and code that does not know revision {found.breaking} cannot "
            f"work with it: this release knows {HEAD_REVISION}; install a newer release of horsies"
        )
    return behind(found.number, schema) if found.number < REQUIRED_REVISION else None


def behind(found: str, schema: str | None) -> str:
    """In the words of `horsies-migrate check`."""
    return f"{state(found)}: {remedy(schema)}"


def state(found: str) -> str:
    return f"the database is at revision {found}, this release needs {HEAD_REVISION}"


def missing(schema: str | None) -> str:
    where = f"schema {schema!r} of this database" if schema else "this database (by its search_path)"
    return f"there are no horsies tables in {where}: {remedy(schema)}"


def taken(place: str, tables: Sequence[str]) -> str:
    """In the words of `horsies-migrate up`."""
    return (
        f"schema {place!r} holds tables of these names that horsies-migrate did not make ({', '.join(tables)}): they "
        "are left as they are; use a schema of its own with `horsies-migrate up --schema NAME` and "
        "PostgresConfig(schema=NAME)"
    )


def remedy(schema: str | None) -> str:
    return f"run `horsies-migrate up{f' --schema {schema}' if schema else ''}`"
