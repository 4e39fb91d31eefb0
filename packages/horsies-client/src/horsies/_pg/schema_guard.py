"""Checks, once per pool, that the database is at a revision that this release supports and that its tables are found in
one schema only. Never runs DDL."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

from horsies._pg.statements import FUNCTIONS, TABLES, load, qualify
from horsies.errors import SchemaError

MINIMUM_SERVER: Final = 14
"""The oldest major version of PostgreSQL."""
REQUIRED_REVISION: Final = "0028"
"""The oldest schema revision that this release works with."""
HEAD_REVISION: Final = "0032"
"""The newest revision that this release knows; a test compares it with horsies-schema. A worker with `auto_migrate`
upgrades an older database to it. Newer revisions are accepted unless they are marked as breaking for older code."""

VERSION_TABLE: Final = "horsies_alembic_version"


class Revision(NamedTuple):
    """The row of the version table."""

    number: str
    breaking: str | None
    """Code that does not know this revision cannot work with the database."""


class _Connection(Protocol):
    async def fetch(self, query: str, *args: Any) -> Sequence[Any]: ...


async def require_schema(connection: _Connection, schema: str | None) -> str:
    """Return the database's revision. Raises `SchemaError`, with a remedy, when tables are missing, are too old or too
    new, or are found in two schemas."""
    statements = load("horsies._pg", "schema.sql", schema)
    # before all others: without a right the tables would seem to be missing
    for role, right in await connection.fetch(statements["missing_rights"].sql, schema, VERSION_TABLE):
        raise SchemaError(no_right(role, right))
    await require_one_place(connection.fetch, schema)
    rows = await connection.fetch(statements["revisions"].sql)
    if not rows:
        places = await connection.fetch(statements["places"].sql, *places_values(schema))
        raise SchemaError(no_row((row[1] for row in places), schema))
    if problem := rows_problem([str(row["version_num"]) for row in rows]):
        raise SchemaError(problem)
    found = Revision(str(rows[0]["version_num"]), rows[0]["breaking"])
    if problem := revision_problem(found, schema):
        raise SchemaError(problem)
    return found.number


async def require_one_place(
    fetch: Callable[..., Awaitable[Sequence[Sequence[Any]]]], schema: str | None, *, or_none: bool = False
) -> None:
    """Raise `SchemaError` when this session finds the tables in two schemas, or foreign tables of the same names, or
    (unless `or_none`) no tables."""
    statement = load("horsies._pg", "schema.sql", schema)["places"]
    rows = await fetch(statement.sql, *places_values(schema))
    problem = places_problem(((row[0], row[1]) for row in rows), schema)
    if problem is not None and (rows or not or_none):
        raise SchemaError(problem)


# -- problems and their messages -----------------------------------------------------------------


def places_values(schema: str | None) -> tuple[list[str], list[str], str]:
    """The parameters of the statement `places`."""
    return (
        [qualify(name, schema) for name in TABLES],
        [qualify(name, schema) for name in FUNCTIONS],
        qualify(VERSION_TABLE, schema),
    )


def places_problem(places: Iterable[tuple[str, str]], schema: str | None) -> str | None:
    """Why the tables that were found (pairs of schema and name) cannot be used; None when all are in one schema."""
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


def rows_problem(numbers: Sequence[str]) -> str | None:
    """In the words of `horsies-migrate`."""
    if len(numbers) < 2:
        return None
    return (
        f"the table {VERSION_TABLE} has {len(numbers)} rows ({', '.join(sorted(numbers))}), not one: delete all but "
        "that of the revision which the tables are at"
    )


def no_row(names: Iterable[str], schema: str | None) -> str:
    """The version table is empty. `names` are those that the statement `places` found. Where tables are among them, the
    message is that of `horsies-migrate`."""
    others = {qualify(VERSION_TABLE, schema), "another installation"}
    if all(name in others or name.endswith(")") for name in names):
        return missing(schema)
    return (
        f"the horsies tables are there, but the table {VERSION_TABLE} is empty: as the owner of the tables restore its "
        "row from a backup, or insert the revision that `horsies-migrate up` brought them to, such as that of another "
        f"database of the same release: INSERT INTO {VERSION_TABLE} (version_num) VALUES ('...'); `horsies doctor` "
        "then names what does not fit it"
    )


def behind(found: str, schema: str | None) -> str:
    """The same message as `horsies-migrate check` prints."""
    return f"{state(found)}: {remedy(schema)}"


def state(found: str) -> str:
    return f"the database is at revision {found}, this release needs {HEAD_REVISION}"


def missing(schema: str | None) -> str:
    where = f"schema {schema!r} of this database" if schema else "this database (by its search_path)"
    return f"there are no horsies tables in {where}: {remedy(schema)}"


def taken(place: str, tables: Sequence[str]) -> str:
    """The same message as `horsies-migrate up` prints."""
    return (
        f"schema {place!r} holds tables of these names that horsies-migrate did not make ({', '.join(tables)}): they "
        "are left as they are; use a schema of its own with `horsies-migrate up --schema NAME` and "
        "PostgresConfig(schema=NAME)" + _of_0x(tables)
    )


def _of_0x(names: Sequence[str]) -> str:
    """The original horsies makes tables of the same names."""
    is_likely = {"horsies_tasks", "horsies_schedule_state", "horsies_worker_states"} <= set(names)
    return (
        "; they look like those of horsies 0.x: see moving/from-horsies-0.md in the documentation" if is_likely else ""
    )


def no_right(role: str, right: str) -> str:
    return (
        f"the connection works, but role {role!r} has no {right}: let the owner of the tables run what "
        "`horsies-migrate grants` prints, and grant one of its roles to this one"
    )


def remedy(schema: str | None) -> str:
    return f"run `horsies-migrate up{f' --schema {schema}' if schema else ''}`"
