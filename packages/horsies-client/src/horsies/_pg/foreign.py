"""Runs statements on the caller's own connection: the task exists if and only if the caller's transaction commits.

A connection is recognised by the module and the name of its class, so no library is imported that the caller has not
imported. The placeholders `$1` are translated for each library. Cursor classes, row classes and codecs for JSON and
times that the caller has set on the connection have no effect. The caller commits, rolls back and closes.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache, partial
from typing import Any, Final

from horsies._pg.enqueue import Execute, ExecuteAsync, Rows
from horsies.errors import UsageError

_PARAMETER: Final = re.compile(r"\$(\d+)")
_TIME: Final = re.compile(r"(\$\d+)(::(?:timestamptz|interval))\b")
Shape = Callable[[Sequence[Any], Rows], Rows]


def unshaped(_columns: Sequence[Any], rows: Rows) -> Rows:
    return rows


@dataclass(frozen=True, slots=True)
class Foreign:
    """The caller's connection: `execute(sql, *values)` runs a statement. Exactly one of the two functions is set."""

    library: str
    execute: Execute | None = None
    execute_async: ExecuteAsync | None = None


def adapt(connection: Any, shape: Shape = unshaped) -> Foreign:
    """Recognise the caller's connection, or raise an error that lists the supported ones. `shape` gets name and type of
    each column, as a DB-API description has them, and the rows, and makes what `execute` returns."""
    # __class__, not type(): a traced connection or a LocalProxy returns the class of its target
    for cls in connection.__class__.__mro__:
        build = _ADAPTERS.get((cls.__module__.partition(".")[0], cls.__name__))
        if build is not None:
            return build(connection, shape)
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


def _asyncpg(connection: Any, shape: Shape) -> Foreign:
    async def execute(sql: str, *values: Any) -> Rows:
        sql, texts = _times_as_text(sql, values)
        if shape is unshaped:
            return await connection.fetch(sql, *texts)
        statement = await connection.prepare(sql)
        columns = [(column.name, column.type.oid) for column in statement.get_attributes()]
        return shape(columns, await statement.fetch(*texts))

    return Foreign("asyncpg", execute_async=execute)


def _sqlalchemy_session(session: Any, shape: Shape) -> Foreign:
    def execute(sql: str, *values: Any) -> Rows:
        return _on_sqlalchemy(session.connection(), shape, sql, *values)

    return Foreign("SQLAlchemy", execute=execute)


def _sqlalchemy_async_session(session: Any, shape: Shape) -> Foreign:
    async def execute(sql: str, *values: Any) -> Rows:
        connection = await session.connection()
        return await connection.run_sync(_on_sqlalchemy, shape, sql, *values)

    return Foreign("SQLAlchemy", execute_async=execute)


def _sqlalchemy_connection(connection: Any, shape: Shape) -> Foreign:
    return Foreign("SQLAlchemy", execute=partial(_on_sqlalchemy, connection, shape))


def _sqlalchemy_async_connection(connection: Any, shape: Shape) -> Foreign:
    return Foreign("SQLAlchemy", execute_async=partial(connection.run_sync, _on_sqlalchemy, shape))


def _on_sqlalchemy(connection: Any, shape: Shape, sql: str, *values: Any) -> Rows:
    # directly to the driver: SQLAlchemy would guess parameter types, such as a datetime without time zone
    if connection.dialect.name != "postgresql":
        raise UsageError(f"connection= needs PostgreSQL, this SQLAlchemy connection speaks {connection.dialect.name}")
    _refuse_pipeline(connection)
    style = connection.dialect.paramstyle
    if style == "numeric_dollar":
        result = connection.exec_driver_sql(*_times_as_text(sql, values))  # the driver is asyncpg
    elif style == "pyformat":
        result = connection.exec_driver_sql(*_pyformat(sql, values))
    else:
        result = connection.exec_driver_sql(*_format(sql, values))
    if not result.returns_rows:
        return []
    columns = result.cursor.description  # a result without rows left has no cursor
    return shape(columns, result.fetchall())


def _refuse_pipeline(connection: Any) -> None:
    """SQLAlchemy takes every answer in psycopg's pipeline mode for one without rows, and gives the cursor back."""
    driver = connection.connection.driver_connection
    if getattr(getattr(driver, "info", None), "pipeline_status", 0):
        raise UsageError(
            "connection=: this SQLAlchemy connection is in psycopg's pipeline mode, in which SQLAlchemy reads no rows: "
            "leave the pipeline() block first, or give the psycopg connection itself"
        )


def _psycopg(connection: Any, shape: Shape) -> Foreign:
    def execute(sql: str, *values: Any) -> Rows:
        with _psycopg_cursor(connection) as cursor:
            cursor.execute(*_for_psycopg(cursor, sql, values))
            return _fetched(cursor, shape)

    return Foreign("psycopg", execute=execute)


def _psycopg_async(connection: Any, shape: Shape) -> Foreign:
    async def execute(sql: str, *values: Any) -> Rows:
        async with _psycopg_cursor(connection) as cursor:
            await cursor.execute(*_for_psycopg(cursor, sql, values))
            if _is_without_rows(cursor):
                return []
            try:
                rows = await cursor.fetchall()
            except Exception:
                if _is_without_rows(cursor):
                    return []
                raise
            return shape(cursor.description, rows)

    return Foreign("psycopg", execute_async=execute)


def _psycopg_cursor(connection: Any) -> Any:
    from psycopg.rows import tuple_row

    return connection.cursor(row_factory=tuple_row)


def _for_psycopg(cursor: Any, sql: str, values: tuple[Any, ...]) -> tuple[str, Any]:
    if any(cls.__name__ == "RawCursorMixin" for cls in cursor.__class__.__mro__):
        return sql, values  # the caller's cursor_factory takes $1
    return _pyformat(sql, values)


def _psycopg2(connection: Any, shape: Shape) -> Foreign:
    from psycopg2.extensions import cursor as plain_cursor

    return Foreign("psycopg2", execute=_on_cursor(lambda: connection.cursor(cursor_factory=plain_cursor), shape))


def _django(connection: Any, shape: Shape) -> Foreign:
    vendor = getattr(connection, "vendor", "no database")  # Django uses the same proxy class for its caches
    if vendor != "postgresql":
        raise UsageError(f"connection= needs PostgreSQL, this Django connection is {vendor}")
    return Foreign("Django", execute=_on_cursor(connection.cursor, shape))


def _on_cursor(cursor: Callable[[], Any], shape: Shape) -> Execute:
    def execute(sql: str, *values: Any) -> Rows:
        with cursor() as opened:
            opened.execute(*_pyformat(sql, values))
            return _fetched(opened, shape)

    return execute


def _fetched(cursor: Any, shape: Shape) -> Rows:
    if _is_without_rows(cursor):
        return []
    try:
        rows = cursor.fetchall()
    except Exception:
        if _is_without_rows(cursor):
            return []
        raise
    return shape(cursor.description, rows)


def _is_without_rows(cursor: Any) -> bool:
    """The server has answered, and the statement returns no rows. In psycopg's pipeline mode the answer may arrive only
    with a fetch, and a cursor without an answer has no description either."""
    return cursor.description is None and cursor.statusmessage is not None


# -- spellings -----------------------------------------------------------------------------------


def _pyformat(sql: str, values: Sequence[Any]) -> tuple[str, dict[str, Any]]:
    return _pyformat_text(sql), {f"p{index}": value for index, value in enumerate(values, 1)}


@cache  # statements are constant and few
def _pyformat_text(sql: str) -> str:
    return _PARAMETER.sub(r"%(p\1)s", sql.replace("%", "%%"))


def _times_as_text(sql: str, values: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    """The statement and its values for asyncpg, whose encoders take the types of the caller: `set_type_codec` lets an
    interval be a relativedelta only."""
    return _times_as_text_sql(sql), tuple(map(_time_as_text, values))


@cache
def _times_as_text_sql(sql: str) -> str:
    return _TIME.sub(r"\1::text\2", sql)


def _time_as_text(value: Any) -> Any:
    if isinstance(value, timedelta):
        # PostgreSQL 14 takes no more than 2**31 microseconds
        return f"{value.days} days {value.seconds}.{value.microseconds:06} seconds"
    return value.isoformat() if isinstance(value, datetime) else value


def _format(sql: str, values: Sequence[Any]) -> tuple[str, tuple[Any, ...]]:
    order = [int(match) - 1 for match in _PARAMETER.findall(sql)]
    return _PARAMETER.sub("%s", sql.replace("%", "%%")), tuple(values[index] for index in order)


_ADAPTERS: Final[dict[tuple[str, str], Callable[[Any, Shape], Foreign]]] = {
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
