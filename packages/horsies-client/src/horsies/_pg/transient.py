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
_ENDS_OF_SESSIONS: Final = frozenset({"57P01", "57P02", "57P05"})
"""admin_shutdown, crash_shutdown, idle_session_timeout."""


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


class Doubt:
    """What is known of statements that failed: whether they were sent, and whether they may have taken effect.

    Kept for all attempts of one operation: an answer that was lost stays lost when the next attempt is refused.
    """

    __slots__ = ("may_be_done", "was_sent")

    def __init__(self) -> None:
        self.was_sent = False
        """Whether the latest attempt came as far as a statement."""
        self.may_be_done = False

    def note(self, error: BaseException) -> None:
        """A statement was on its way and ended like this."""
        if not _is_answer(error):
            self.may_be_done = True

    def describe(self, told: str) -> str:
        """In words; `told` is what the driver said."""
        if self.may_be_done:
            return f"the database gave no answer ({told})"
        if self.was_sent:
            return f"the database refused it ({told})"
        return f"there is no connection to the database ({told})"


def _is_answer(error: BaseException) -> bool:
    """Whether the server itself said no, and so has undone the statement.

    Not when it ended the session: it may do so between a commit and its answer. asyncpg, too, gives a class of its
    own for a lost connection a code of class 08.
    """
    code = sqlstate(error)
    return code is not None and not code.startswith("08") and code not in _ENDS_OF_SESSIONS


def sqlstate(error: BaseException) -> str | None:
    """The server's code in an error of any driver, also inside SQLAlchemy's (`orig`) and Django's (the cause)."""
    for spoken in (error, getattr(error, "orig", None), error.__cause__):
        code = getattr(spoken, "sqlstate", None) or getattr(spoken, "pgcode", None)
        if isinstance(code, str):
            return code
    return None
