"""The one place that opens asyncpg connections, for the client and for the worker.

It adds three things to asyncpg (read in 0.32): transactions that end at once when their task is cancelled, array types
without a look-up on the server, and failures that do not carry the password in their traceback.
"""

import asyncio
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

import asyncpg

if TYPE_CHECKING:  # generic in its stubs only
    _Connection = asyncpg.Connection[asyncpg.Record]
else:
    _Connection = asyncpg.Connection

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
    """An asyncpg connection whose transactions never wait for a server that does not answer."""

    def transaction(self, **options: Any) -> "Transaction":  # pyright: ignore[reportIncompatibleMethodOverride]
        return Transaction(self, super().transaction(**options))


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
            except Exception:  # the connection broke meanwhile; what happened first is the news
                self._connection.terminate()


async def connect(arguments: Mapping[str, Any]) -> Connection:
    """Open a connection with the arguments of `dsn.connect_arguments`."""
    given = dict(arguments)
    password = given.pop("password", None)
    if password is not None:
        # A function, so that no frame of asyncpg has the password among its arguments. It needs a plain str.
        given["password"] = lambda: str(password)
    try:
        connection: Connection = await asyncpg.connect(**given, connection_class=Connection)
    except BaseException as error:
        raise _without_frames(error)  # noqa: B904  (itself, with its own cause)
    _learn_arrays(connection)
    return connection


def _without_frames(error: BaseException) -> BaseException:
    """asyncpg's own frames hold the password as plain text while it connects, and explain nothing."""
    found: BaseException | None = error
    seen: set[int] = set()
    while found is not None and id(found) not in seen:
        seen.add(id(found))
        found.__traceback__ = None
        found = found.__cause__ or found.__context__
    return error


def _learn_arrays(connection: Any) -> None:
    try:
        connection._protocol.get_settings().register_data_types(_TYPES)
    except (AttributeError, TypeError, KeyError):
        pass  # another release of asyncpg: it looks them up by itself, which costs round trips and nothing else
