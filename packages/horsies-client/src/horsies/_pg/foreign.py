"""The caller's own connection: the task exists if and only if the caller's transaction commits.

Nothing is imported here; a connection is known by the module of its class. Our statements say `$1`; each
library gets them in its own spelling. Commit, rollback and closing stay with the caller.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from horsies._pg.enqueue import Rows
from horsies.errors import UsageError

Execute = Callable[[str, tuple[Any, ...]], Rows]
ExecuteAsync = Callable[[str, tuple[Any, ...]], Awaitable[Rows]]

_PARAMETER: Final = re.compile(r"\$(\d+)")


@dataclass(frozen=True, slots=True)
class Foreign:
    """How to run a statement there; exactly one of the two is set."""

    library: str
    execute: Execute | None = None
    execute_async: ExecuteAsync | None = None


def adapt(connection: Any) -> Foreign:
    """Recognise the caller's connection, or say which ones are understood."""
    names = {(cls.__module__.partition(".")[0], cls.__name__) for cls in type(connection).__mro__}
    for (library, name), build in _ADAPTERS.items():
        if (library, name) in names:
            return build(connection)
    if any(module == "django" for module, _ in names) and hasattr(connection, "cursor"):
        return _django(connection)
    raise UsageError(
        f"connection= does not understand {type(connection).__module__}.{type(connection).__qualname__}: "
        "give an asyncpg connection, a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection, "
        "a psycopg connection or Django's connection"
    )


def require_sync(foreign: Foreign, verb: str) -> Execute:
    if foreign.execute is None:
        raise UsageError(
            f"{verb}() cannot use an asynchronous {foreign.library} connection: await {verb}_async() instead"
        )
    return foreign.execute


def require_async(foreign: Foreign, verb: str) -> ExecuteAsync:
    if foreign.execute_async is None:
        raise UsageError(
            f"{verb}_async() cannot use a synchronous {foreign.library} connection, it would block the event loop: "
            f"call {verb}() from a thread instead"
        )
    return foreign.execute_async


# -- one per library -----------------------------------------------------------------------------


def _asyncpg(connection: Any) -> Foreign:
    async def execute(sql: str, values: tuple[Any, ...]) -> Rows:
        return await connection.fetch(sql, *values)

    return Foreign("asyncpg", execute_async=execute)


def _sqlalchemy_session(session: Any) -> Foreign:
    def execute(sql: str, values: tuple[Any, ...]) -> Rows:
        return _on_sqlalchemy(session.connection(), sql, values)

    return Foreign("SQLAlchemy", execute=execute)


def _sqlalchemy_async_session(session: Any) -> Foreign:
    async def execute(sql: str, values: tuple[Any, ...]) -> Rows:
        connection = await session.connection()
        return await connection.run_sync(_on_sqlalchemy, sql, values)

    return Foreign("SQLAlchemy", execute_async=execute)


def _sqlalchemy_connection(connection: Any) -> Foreign:
    return Foreign("SQLAlchemy", execute=lambda sql, values: _on_sqlalchemy(connection, sql, values))


def _sqlalchemy_async_connection(connection: Any) -> Foreign:
    async def execute(sql: str, values: tuple[Any, ...]) -> Rows:
        return await connection.run_sync(_on_sqlalchemy, sql, values)

    return Foreign("SQLAlchemy", execute_async=execute)


def _on_sqlalchemy(connection: Any, sql: str, values: tuple[Any, ...]) -> Rows:
    # straight to the driver: SQLAlchemy's own parameters would guess types (a datetime without a zone, for one)
    if connection.dialect.name != "postgresql":
        raise UsageError(f"connection= needs PostgreSQL, this SQLAlchemy connection speaks {connection.dialect.name}")
    style = connection.dialect.paramstyle
    if style == "numeric_dollar":
        return connection.exec_driver_sql(sql, values).fetchall()
    if style == "pyformat":
        return connection.exec_driver_sql(*_pyformat(sql, values)).fetchall()
    return connection.exec_driver_sql(*_format(sql, values)).fetchall()


def _psycopg(connection: Any) -> Foreign:
    return Foreign("psycopg", execute=lambda sql, values: _on_cursor(connection, sql, values))


def _psycopg_async(connection: Any) -> Foreign:
    async def execute(sql: str, values: tuple[Any, ...]) -> Rows:
        async with _tuples(connection) as cursor:
            await cursor.execute(*_pyformat(sql, values))
            return await cursor.fetchall()

    return Foreign("psycopg", execute_async=execute)


def _psycopg2(connection: Any) -> Foreign:
    def execute(sql: str, values: tuple[Any, ...]) -> Rows:
        with connection.cursor() as cursor:
            cursor.execute(*_pyformat(sql, values))
            return [tuple(row) for row in cursor.fetchall()]

    return Foreign("psycopg2", execute=execute)


def _django(connection: Any) -> Foreign:
    if connection.vendor != "postgresql":
        raise UsageError(f"connection= needs PostgreSQL, this Django connection is {connection.vendor}")

    def execute(sql: str, values: tuple[Any, ...]) -> Rows:
        with connection.cursor() as cursor:
            cursor.execute(*_pyformat(sql, values))
            return cursor.fetchall()

    return Foreign("Django", execute=execute)


def _on_cursor(connection: Any, sql: str, values: tuple[Any, ...]) -> Rows:
    with _tuples(connection) as cursor:
        cursor.execute(*_pyformat(sql, values))
        return cursor.fetchall()


def _tuples(connection: Any) -> Any:
    # the caller's connection may have a row factory of its own; ours must not depend on it
    from psycopg.rows import tuple_row

    return connection.cursor(row_factory=tuple_row)


def _pyformat(sql: str, values: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    text = _PARAMETER.sub(r"%(p\1)s", sql.replace("%", "%%"))
    return text, {f"p{index}": value for index, value in enumerate(values, 1)}


def _format(sql: str, values: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    order = [int(match) - 1 for match in _PARAMETER.findall(sql)]
    return _PARAMETER.sub("%s", sql.replace("%", "%%")), tuple(values[index] for index in order)


_ADAPTERS: Final[dict[tuple[str, str], Callable[[Any], Foreign]]] = {
    ("asyncpg", "Connection"): _asyncpg,
    ("asyncpg", "PoolConnectionProxy"): _asyncpg,
    ("sqlalchemy", "AsyncSession"): _sqlalchemy_async_session,
    ("sqlalchemy", "async_scoped_session"): _sqlalchemy_async_session,
    ("sqlalchemy", "Session"): _sqlalchemy_session,
    ("sqlalchemy", "scoped_session"): _sqlalchemy_session,
    ("sqlalchemy", "AsyncConnection"): _sqlalchemy_async_connection,
    ("sqlalchemy", "Connection"): _sqlalchemy_connection,
    ("psycopg", "AsyncConnection"): _psycopg_async,
    ("psycopg", "Connection"): _psycopg,
    ("psycopg2", "connection"): _psycopg2,
}
