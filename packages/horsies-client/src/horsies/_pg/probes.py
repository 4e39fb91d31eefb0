"""What connections reveal about the way to the server: whether a pooler stands in between, how it shares
sessions, and whether two URLs lead to the same database.

Every question is asked in a transaction: a pooler could prepare and execute a statement in two different sessions.
"""

import secrets
from collections.abc import Awaitable, Callable
from typing import Any, Final

from horsies.config.postgres import PostgresConfig

_ANSWER_S: Final = 8.0


async def value(connection: Any, sql: str, *args: Any) -> Any:
    """One value, read in a transaction of its own."""
    async with connection.transaction():
        return await connection.fetchval(sql, *args, timeout=_ANSWER_S)


async def is_pooled(connection: Any) -> bool:
    """Whether a pooler stands in between: it reports a process id of its own at the start of a connection."""
    return connection.get_server_pid() != await value(connection, "SELECT pg_backend_pid()")


async def shares_sessions(connection: Any, connect: Callable[[], Awaitable[Any]]) -> bool:
    """Whether the pooler gives one session to two clients. `connect` opens another connection by the same URL.

    In transaction mode the session that one client has just left goes to the next client, and while a transaction of
    that client holds it, the first client gets another session.
    """
    mine = await value(connection, "SELECT pg_backend_pid()")
    other = await connect()
    try:
        async with other.transaction():
            # the first answer is enough if it is the same session: a pool of one session would not give the second
            return (
                await other.fetchval("SELECT pg_backend_pid()", timeout=_ANSWER_S) == mine
                or await value(connection, "SELECT pg_backend_pid()") != mine
            )
    finally:
        await close(other)


async def told_elsewhere(config: PostgresConfig, connection: Any, direct: Any) -> str | None:
    """A sentence that names both databases if `direct`, by `direct_url`, leads to another one than `connection`.

    An advisory lock needs no right, and is seen in the same database of the same server only.
    """
    lock, key = "SELECT pg_try_advisory_xact_lock($1)", secrets.randbits(62)
    async with connection.transaction():
        await connection.fetchval(lock, key, timeout=_ANSWER_S)
        if config.direct_url is None or not await value(direct, lock, key):
            return None
    return config.redact(f"direct_url leads to another database ({config.direct_url}) than database_url ({config.url})")


async def close(connection: Any) -> None:
    try:
        await connection.close(timeout=2)
    except Exception:
        connection.terminate()
