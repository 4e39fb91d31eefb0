"""The test's own connection, with the interface of asyncpg that the worker's statements use.

The worker's statements rely on the types that the server infers for their parameters, which other drivers do not ask
for. So every value goes as text, with a cast to the type that PREPARE has found out. Transactions of the worker become
savepoints: the test's transaction stays open.
"""

import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, Final, TypeVar, cast

from asyncpg import PostgresError

from horsies._pg import foreign
from horsies._pg.enqueue import Rows
from horsies._pg.transient import sqlstate
from horsies.app import Horsies
from horsies.errors import UsageError
from horsies.testing.threads import Runner, in_thread
from horsies_worker.database.queries import Queries
from horsies_worker.database.session import Session
from horsies_worker.identity import Identity

R = TypeVar("R")
_PARAMETER: Final = re.compile(r"\$(\d+)")
_PREPARED: Final = "horsies_testing"
_SAVEPOINT: Final = "horsies_testing_{}"
_NO_TRANSACTION: Final = "25P01"
_FAILED_TRANSACTION: Final = "25P02"
_NO_SAVEPOINT: Final = "3B001"
_typed: Final[dict[str, str]] = {}
"""Statements with a cast behind each parameter, by their text."""


class Row(tuple[Any, ...]):
    """A row that is read by place or by name, as asyncpg's are."""

    columns: Mapping[str, int]

    def __getitem__(self, key: Any) -> Any:
        return super().__getitem__(self.columns[key] if isinstance(key, str) else key)

    def get(self, key: str, default: Any = None) -> Any:
        return self[key] if key in self.columns else default

    def keys(self) -> list[str]:
        return list(self.columns)


class CallersConnection:
    """Runs statements on a connection that the test has opened, in its transaction."""

    def __init__(self, connection: Any, verb: str, *, is_async: bool) -> None:
        """Make it in the thread of a synchronous connection: Django's `connection` is another one in each thread."""
        caller = foreign.adapt(connection, _named)
        self._execute = foreign.require_async(caller, verb) if is_async else None
        self._blocking = None if is_async else foreign.require_sync(caller, verb)
        self._here: Runner = in_thread
        self._verb = verb
        self._depth = 0

    def run_by(self, here: Runner) -> None:
        """Let this run the statements on a synchronous connection, in its thread."""
        self._here = here

    async def fetch(self, sql: str, *values: Any) -> list[Any]:
        return list(await self._run(await self._with_casts(sql), *map(_text, values)))

    async def fetchrow(self, sql: str, *values: Any) -> Any:
        rows = await self.fetch(sql, *values)
        return rows[0] if rows else None

    async def fetchval(self, sql: str, *values: Any) -> Any:
        row = await self.fetchrow(sql, *values)
        return None if row is None else row[0]

    async def execute(self, sql: str, *values: Any) -> None:
        if not sql.startswith("SET LOCAL"):  # settings of a worker: the transaction is the test's
            await self.fetch(sql, *values)

    @asynccontextmanager
    async def transaction(self, isolation: str | None = None) -> AsyncGenerator[None]:
        """A savepoint. `isolation` is that of the test's transaction."""
        name = await self._begin()
        try:
            yield
        except BaseException:
            await self._roll_back(name)
            raise
        await self._release(name)

    @asynccontextmanager
    async def attempt(self, task_name: str) -> AsyncGenerator[None]:
        """User code may run statements on this connection here. If one of them fails, the transaction goes on as it was
        before the attempt."""
        name = await self._begin()
        yield
        try:
            await self._release(name)
        except PostgresError as error:
            if error.sqlstate in (_NO_SAVEPOINT, _NO_TRANSACTION):
                raise UsageError(
                    f"task {task_name!r} has ended the transaction of {self._verb}(connection=...), by a commit or a "
                    "rollback: its end is not written. Give the task a savepoint, or drain without connection="
                ) from error
            if error.sqlstate != _FAILED_TRANSACTION:
                raise
            await self._roll_back(name)

    async def require_transaction(self) -> None:
        """Refuse a connection without an open transaction."""
        try:
            await self._release(await self._begin())
        except PostgresError as error:
            if error.sqlstate == _NO_TRANSACTION:
                raise UsageError(
                    f"{self._verb}(connection=...) works inside a transaction, and this connection commits each "
                    f"statement by itself: begin one, or call {self._verb}() without connection="
                ) from error
            if error.sqlstate == _FAILED_TRANSACTION:
                raise UsageError(
                    f"{self._verb}(connection=...): a statement in the transaction of this connection has failed: roll "
                    "it back first"
                ) from error
            raise

    async def _begin(self) -> str:
        self._depth += 1
        name = _SAVEPOINT.format(self._depth)
        await self._run(f"SAVEPOINT {name}")
        return name

    async def _release(self, name: str) -> None:
        await self._run(f"RELEASE SAVEPOINT {name}")
        self._depth -= 1

    async def _roll_back(self, name: str) -> None:
        await self._run(f"ROLLBACK TO SAVEPOINT {name}")
        await self._release(name)

    async def _with_casts(self, sql: str) -> str:
        if "$" not in sql:
            return sql
        if sql not in _typed:
            # as a value, so that no driver takes its $1 for a parameter
            await self._run("SELECT set_config('horsies.testing', $1::text, true)", f"PREPARE {_PREPARED} AS {sql}")
            await self._run("DO $$ BEGIN EXECUTE current_setting('horsies.testing'); END $$")
            found = await self._run(
                f"SELECT parameter_types::text[] AS types FROM pg_prepared_statements WHERE name = '{_PREPARED}'"
            )
            await self._run(f"DEALLOCATE {_PREPARED}")
            types: list[str] = found[0][0]
            _typed[sql] = _PARAMETER.sub(lambda match: f"${match[1]}::text::{types[int(match[1]) - 1]}", sql)
        return _typed[sql]

    async def _run(self, sql: str, *values: Any) -> Rows:
        try:
            if self._execute is not None:
                return await self._execute(sql, *values)
            assert self._blocking is not None
            return await self._here(partial(self._blocking, sql, *values))
        except Exception as error:
            code = sqlstate(error)
            if code is None or isinstance(error, PostgresError):
                raise
            # the worker's code knows the errors of asyncpg
            raise PostgresError.new({"S": "ERROR", "C": code, "M": str(error)}) from error


class CallersSession(Session):
    """A session on the connection of the test."""

    def __init__(self, app: Horsies, connection: CallersConnection) -> None:
        super().__init__(app.config.broker, "testing", Queries(app.schema, Identity()))
        self.pooled = False
        self.caller = connection

    async def run(self, action: Callable[[Any], Awaitable[R]]) -> R:
        return await action(self.caller)


def _named(columns: Sequence[Any], rows: Rows) -> Rows:
    """The rows of a DB-API cursor with the values of asyncpg."""
    names = {column[0]: at for at, column in enumerate(columns)}
    others = {at: _CONVERTED[column[1]] for at, column in enumerate(columns) if column[1] in _CONVERTED}
    kind = type("Row", (Row,), {"columns": names})
    return [kind(_converted(row, others) if others else row) for row in rows]


def _converted(row: Sequence[Any], others: Mapping[int, Callable[[Any], Any]]) -> list[Any]:
    values = list(row)
    for at, convert in others.items():
        if values[at] is not None:
            values[at] = convert(values[at])
    return values


def _json_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _in_utc(value: datetime) -> datetime:
    """Also of a time without a zone, as Django gives with USE_TZ=False: it is one of the process's zone."""
    return value.astimezone(UTC)


_CONVERTED: Final[Mapping[Any, Callable[[Any], Any]]] = {114: _json_text, 3802: _json_text, 1184: _in_utc}
"""By the oids of json, jsonb and timestamptz."""


def _text(value: Any) -> str | None:
    """The value as PostgreSQL reads it from text."""
    match value:
        case None:
            return None
        case str():
            return value
        case bool():
            return "true" if value else "false"
        case datetime():
            return value.isoformat()
        case timedelta():
            return f"{value // timedelta(microseconds=1)} microseconds"
        case list() | tuple():
            return "{" + ",".join(map(_item, cast("Sequence[Any]", value))) + "}"
        case _:
            return str(value)


def _item(value: Any) -> str:
    text = _text(value)
    if text is None:
        return "NULL"
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
