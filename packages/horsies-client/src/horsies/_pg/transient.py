"""Which database errors pass by themselves. Everything else is somebody's mistake and is told at once."""

from typing import Final

from horsies._pg.refusals import is_undeclared_pooler

_SQLSTATE_CLASSES: Final = frozenset({"08", "53", "57", "40"})
"""Connection; resources (too many connections, disk full); operator intervention (restart); 40001 and 40P01."""
_SQLSTATES: Final = frozenset(
    {
        "55P03",  # lock_not_available
        "25006",  # read_only_sql_transaction: a failover left us on the old primary
    }
)
_NEVER: Final = frozenset(
    {
        "57014",  # query_canceled: somebody's statement_timeout or cancel, not an outage
        "53400",  # configuration_limit_exceeded
    }
)


def is_transient(error: BaseException) -> bool:
    """True when the same statement may succeed soon: a lost connection, a restart, a deadlock, a failover."""
    if isinstance(error, OSError | TimeoutError | EOFError):  # includes every ConnectionError and socket time-out
        return True
    sqlstate = getattr(error, "sqlstate", None)
    if isinstance(sqlstate, str):
        if sqlstate in _NEVER or is_undeclared_pooler(error):
            return False
        return sqlstate[:2] in _SQLSTATE_CLASSES or sqlstate in _SQLSTATES
    from asyncpg import InterfaceError, InternalClientError
    from asyncpg.exceptions import TargetServerAttributeNotMatched

    if isinstance(error, TargetServerAttributeNotMatched):  # several hosts, none of them the primary: a failover
        return True
    # asyncpg's own complaint about a connection that went away under it; it has no SQLSTATE
    return isinstance(error, InterfaceError | InternalClientError) and any(
        word in str(error) for word in ("closed", "connection was", "another operation", "lost", "terminated")
    )


def is_refusal(error: BaseException) -> bool:
    """True when the server does not let this role in, or not do this: a changed password, a role that may no longer log
    in, a right that was revoked."""
    sqlstate = getattr(error, "sqlstate", None)
    return isinstance(sqlstate, str) and (sqlstate.startswith("28") or sqlstate == "42501")


def is_from_driver(error: BaseException) -> bool:
    """True for what the server said, and for what asyncpg says by itself."""
    from asyncpg import InterfaceError, InternalClientError, PostgresError

    return isinstance(error, PostgresError | InterfaceError | InternalClientError)
