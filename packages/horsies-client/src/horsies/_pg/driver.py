"""Opens all asyncpg connections of client and worker.

It adds six things to asyncpg (read in 0.32): a silent host does not hide the others (`hosts`), transactions end at
once when their task is cancelled, array types need no look-up on the server, times that Python cannot hold are read
(`times`), failures do not carry the password in their traceback, and errors do not quote rows and arguments.
"""

import asyncio
import os
import socket
from collections.abc import Awaitable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import asyncpg

from horsies._pg import times
from horsies._pg.hosts import connect_to_one
from horsies._pg.refusals import leave_out_values

if TYPE_CHECKING:  # generic in its stubs only
    _Connection = asyncpg.Connection[asyncpg.Record]
else:
    _Connection = asyncpg.Connection

R = TypeVar("R")

# Array types of PostgreSQL itself, whose numbers never change: name, number of the array, number of its element.
# asyncpg knows only text[] and oid[] by itself and looks up every other one on each new connection, with four round
# trips before the first statement that uses it.
_ARRAYS: Final = (
    ("_bool", 1000, 16), ("_bytea", 1001, 17), ("_int2", 1005, 21), ("_int4", 1007, 23), ("_varchar", 1015, 1043),
    ("_int8", 1016, 20), ("_float4", 1021, 700), ("_float8", 1022, 701), ("_timestamp", 1115, 1114),
    ("_date", 1182, 1082), ("_timestamptz", 1185, 1184), ("_interval", 1187, 1186), ("_numeric", 1231, 1700),
    ("_uuid", 2951, 2950), ("_json", 199, 114), ("_jsonb", 3807, 3802),
)  # fmt: skip
_TYPES: Final = tuple(
    {
        "oid": oid, "ns": "pg_catalog", "name": name, "kind": b"b", "basetype": None, "elemtype": element,
        "elemdelim": ",", "range_subtype": None, "attrtypoids": None, "attrnames": None, "depth": 0,
        "basetype_name": None, "elemtype_name": name[1:], "range_subtype_name": None,
    }
    for name, oid, element in _ARRAYS
)  # fmt: skip


class Connection(_Connection):
    """An asyncpg connection whose transactions never wait for a server that does not answer, and whose errors quote no
    rows and arguments: services log them, and an application may log what they cause."""

    async def execute(self, query: str, *args: Any, **options: Any) -> str:
        return await _without_values(super().execute(query, *args, **options))

    async def _do_execute(self, *args: Any, **options: Any) -> Any:
        """Every statement with parameters comes through here, and every `fetch`."""
        base: Any = super()
        return await _without_values(base._do_execute(*args, **options))

    async def prepare(self, query: str, **options: Any) -> "Prepared":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Prepared(await super().prepare(query, **options))

    def transaction(self, **options: Any) -> "Transaction":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Transaction(self, super().transaction(**options))


async def _without_values(statement: Awaitable[R]) -> R:
    try:
        return await statement
    except asyncpg.PostgresError as error:
        leave_out_values(error)
        raise


class Prepared:
    """A statement that is prepared already. asyncpg runs it past the connection's own methods."""

    __slots__ = ("_statement",)

    def __init__(self, statement: Any) -> None:
        self._statement = statement

    async def fetch(self, *args: Any) -> list[Any]:
        return await _without_values(self._statement.fetch(*args))


class Transaction:
    """`async with connection.transaction():`, a savepoint inside another one.

    asyncpg sends ROLLBACK whenever the block raises. After a cancellation or a timeout it first waits, without any
    bound, for the answer that never came; on a connection that has died it raises InterfaceError *instead of* the
    cancellation, so that a cancelled service goes on. Here the connection ends in both cases: the server rolls back
    what it finds open, and the original exception passes on.
    """

    __slots__ = ("_block", "_connection")

    def __init__(self, connection: Connection, block: Any) -> None:
        self._connection = connection
        self._block = block

    async def __aenter__(self) -> None:
        await self._block.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        if error is None:
            await self._block.commit()
        elif self._connection.is_closed():
            pass
        elif isinstance(error, asyncio.CancelledError | TimeoutError | GeneratorExit):
            self._connection.terminate()
        else:
            try:
                await self._block.rollback()
            except Exception:  # the connection broke in the meantime; the first error is raised
                self._connection.terminate()


async def connect(arguments: Mapping[str, Any]) -> Connection:
    """Open a connection with the arguments of `dsn.connect_arguments`."""
    given = dict(arguments)
    password = given.pop("password", None)
    if password is not None:
        # A function, so that no frame of asyncpg has the password among its arguments. It needs a plain str.
        given["password"] = lambda: str(password)
    try:
        connection = await _connect(given)
    except BaseException as error:
        _name_places(error, arguments)
        raise _without_frames(error)  # noqa: B904  (itself, with its own cause)
    _learn_types(connection)
    return connection


async def _connect(given: Mapping[str, Any]) -> Connection:
    hosts: Sequence[str] = given.get("host", ())
    if len(hosts) < 2:
        return await asyncpg.connect(**given, connection_class=Connection)

    async def one(at: int) -> Connection:
        single: dict[str, Any] = {**given, "host": hosts[at]}
        if "port" in given:
            single["port"] = given["port"][at]
        return await asyncpg.connect(**single, connection_class=Connection)

    return await connect_to_one(range(len(hosts)), one, given["timeout"])


def told_silent(arguments: Mapping[str, Any]) -> str:
    """The message for a server that accepts connections and says nothing, or an address that swallows packets."""
    where = ", ".join(_places(arguments)) or "the server of the environment (PGHOST) or of this machine"
    return f"{where} has not answered within {arguments['timeout'] * 1000:.0f} ms (connect_timeout_ms)"


def _places(arguments: Mapping[str, Any]) -> list[str]:
    hosts: list[str] = arguments.get("host", [])
    ports = arguments.get("port") or [os.environ.get("PGPORT") or 5432] * len(hosts)
    return [
        f"{host}/.s.PGSQL.{port}" if host.startswith("/") else f"{host}:{port}"
        for host, port in zip(hosts, ports, strict=True)
    ]


def _name_places(error: BaseException, arguments: Mapping[str, Any]) -> None:
    """Name the silent server; in the system's error, which names only addresses of TCP, the unknown host or the Unix
    socket."""
    places = _places(arguments)
    if isinstance(error, TimeoutError) and not str(error):
        error.args = (told_silent(arguments),)  # not another error, whose context would keep asyncpg's frames
    elif isinstance(error, OSError) and error.errno and places and (
        isinstance(error, socket.gaierror) or all(place.startswith("/") for place in places)
    ):  # fmt: skip
        error.filename = error.filename or ", ".join(places)


def _without_frames(error: BaseException) -> BaseException:
    """Remove asyncpg's frames, which hold the password as plain text while it connects."""
    found: BaseException | None = error
    seen: set[int] = set()
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
    return error


def _learn_types(connection: Any) -> None:
    try:
        settings = connection._protocol.get_settings()
        for name, oid, encode, decode in times.CODECS:  # before the arrays, which look up the codec of their elements
            settings.add_python_codec(oid, name, "pg_catalog", [], "scalar", encode, decode, "tuple")
        settings.register_data_types(_TYPES)
    except (AttributeError, TypeError, KeyError):
        pass  # another release of asyncpg: it looks up arrays by itself, and a time out of range fails its whole batch
