"""Runs statements on the caller's own connection: the task exists if and only if the caller's transaction commits.

A connection is recognised by the module and the name of its class, so no library is imported that the caller has not
imported. The placeholders `$1` are translated for each library. Cursor and row classes that the caller has set on the
connection have no effect. The caller commits, rolls back and closes.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, Final

from horsies._pg.enqueue import Execute, ExecuteAsync, Rows
from horsies.errors import UsageError

_PARAMETER: Final = re.compile(r"\$(\d+)")


@dataclass(frozen=True, slots=True)
class Foreign:
    """The caller's connection: `execute(sql, *values)` runs a statement. Exactly one of the two functions is set."""

    library: str
    execute: Execute | None = None
    execute_async: ExecuteAsync | None = None


def adapt(connection: Any) -> Foreign:
    """Recognise the caller's connection, or raise an error that lists the supported ones."""
    # __class__, not type(): a traced connection or a LocalProxy returns the class of its target
    for cls in connection.__class__.__mro__:
        build = _ADAPTERS.get((cls.__module__.partition(".")[0], cls.__name__))
        if build is not None:
            return build(connection)
    raise UsageError(
        f"connection= does not understand {type(connection).__module__}.{type(connection).__qualname__}: "
        "give an asyncpg connection, a SQLAlchemy Session, AsyncSession, Connection or AsyncConnection, "
        "a psycopg connection or Django's connection (a pool or an engine is not one: take a connection from it)"
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
    return Foreign("asyncpg", execute_async=connection.fetch)


def _sqlalchemy_session(session: Any) -> Foreign:
    def execute(sql: str, *values: Any) -> Rows:
        return _on_sqlalchemy(session.connection(), sql, *values)

    return Foreign("SQLAlchemy", execute=execute)


def _sqlalchemy_async_session(session: Any) -> Foreign:
    async def execute(sql: str, *values: Any) -> Rows:
        connection = await session.connection()
        return await connection.run_sync(_on_sqlalchemy, sql, *values)

    return Foreign("SQLAlchemy", execute_async=execute)


def _sqlalchemy_connection(connection: Any) -> Foreign:
    return Foreign("SQLAlchemy", execute=partial(_on_sqlalchemy, connection))


def _sqlalchemy_async_connection(connection: Any) -> Foreign:
    return Foreign("SQLAlchemy", execute_async=partial(connection.run_sync, _on_sqlalchemy))


def _on_sqlalchemy(connection: Any, sql: str, *values: Any) -> Rows:
    # directly to the driver: SQLAlchemy would guess parameter types, such as a datetime without time zone
    if connection.dialect.name != "postgresql":
        raise UsageError(f"connection= needs PostgreSQL, this SQLAlchemy connection speaks {connection.dialect.name}")
    style = connection.dialect.paramstyle
    if style == "numeric_dollar":
        return connection.exec_driver_sql(sql, values).fetchall()
    if style == "pyformat":
        return connection.exec_driver_sql(*_pyformat(sql, values)).fetchall()
    return connection.exec_driver_sql(*_format(sql, values)).fetchall()


def _psycopg(connection: Any) -> Foreign:
    def execute(sql: str, *values: Any) -> Rows:
        with _psycopg_cursor(connection) as cursor:
            cursor.execute(*_for_psycopg(cursor, sql, values))
            return cursor.fetchall()

    return Foreign("psycopg", execute=execute)


def _psycopg_async(connection: Any) -> Foreign:
    async def execute(sql: str, *values: Any) -> Rows:
        async with _psycopg_cursor(connection) as cursor:
            await cursor.execute(*_for_psycopg(cursor, sql, values))
            return await cursor.fetchall()

    return Foreign("psycopg", execute_async=execute)


def _psycopg_cursor(connection: Any) -> Any:
    from psycopg.rows import tuple_row

    return connection.cursor(row_factory=tuple_row)


def _for_psycopg(cursor: Any, sql: str, values: tuple[Any, ...]) -> tuple[str, Any]:
    if any(cls.__name__ == "RawCursorMixin" for cls in cursor.__class__.__mro__):
        return sql, values  # the caller's cursor_factory takes $1
    return _pyformat(sql, values)


def _psycopg2(connection: Any) -> Foreign:
    from psycopg2.extensions import cursor as plain_cursor

    return Foreign("psycopg2", execute=_on_cursor(lambda: connection.cursor(cursor_factory=plain_cursor)))


def _django(connection: Any) -> Foreign:
    vendor = getattr(connection, "vendor", "no database")  # Django uses the same proxy class for its caches
    if vendor != "postgresql":
        raise UsageError(f"connection= needs PostgreSQL, this Django connection is {vendor}")
    return Foreign("Django", execute=_on_cursor(connection.cursor))


def _on_cursor(cursor: Callable[[], Any]) -> Execute:
    def execute(sql: str, *values: Any) -> Rows:
        with cursor() as opened:
            opened.execute(*_pyformat(sql, values))
            return opened.fetchall()

    return execute


# -- spellings -----------------------------------------------------------------------------------


def _pyformat(sql: str, values: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    return _pyformat_text(sql), {f"p{index}": value for index, value in enumerate(values, 1)}


@cache  # statements are constant and few
def _pyformat_text(sql: str) -> str:
    return _PARAMETER.sub(r"%(p\1)s", sql.replace("%", "%%"))


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
    ("django", "ConnectionProxy"): _django,
    ("django", "BaseDatabaseWrapper"): _django,
}
