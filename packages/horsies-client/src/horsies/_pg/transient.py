"""Tells transient database errors, after which a statement may be repeated, from permanent ones."""

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
        "57014",  # query_canceled: a statement_timeout or a cancel, not an outage
        "53400",  # configuration_limit_exceeded
    }
)
_SERVER_LIMITS: Final = frozenset({"PreCommit_Notify", "GetNewTransactionId", "GetNewMultiXactId"})
"""The functions of PostgreSQL in which a limit of the server, and no value of a statement, raises SQLSTATE 54000."""
_ENDS_OF_SESSIONS: Final = frozenset({"57P01", "57P02", "57P05", "25P03", "25P04"})
"""admin_shutdown, crash_shutdown, and the time-outs of idle sessions, idle transactions and transactions."""


class NoAnswerError(Exception):
    """A statement that commits on its way failed with the error that is the cause, and whether it had committed could
    not be read."""


def is_transient(error: BaseException) -> bool:
    """True when the same statement may succeed soon: a lost connection, a restart, a deadlock, a failover."""
    if isinstance(error, OSError | TimeoutError | EOFError):  # includes every ConnectionError and socket time-out
        return True
    if isinstance(error, NoAnswerError):
        return error.__cause__ is not None and is_transient(error.__cause__)
    sqlstate = getattr(error, "sqlstate", None)
    if isinstance(sqlstate, str):
        if sqlstate in _NEVER or is_undeclared_pooler(error):
            return False
        if is_server_limit(error):
            return True
        return sqlstate[:2] in _SQLSTATE_CLASSES or sqlstate in _SQLSTATES
    from asyncpg import InterfaceError, InternalClientError
    from asyncpg.exceptions import TargetServerAttributeNotMatched

    if isinstance(error, TargetServerAttributeNotMatched):  # none of several hosts is the primary: a failover
        return True
    # asyncpg's own error for a lost connection has no SQLSTATE
    return isinstance(error, InterfaceError | InternalClientError) and any(
        word in str(error) for word in ("closed", "connection was", "another operation", "lost", "terminated")
    )


def is_lock_timeout(error: BaseException) -> bool:
    """True when a statement has waited for a lock for longer than `lock_timeout` (lock_not_available)."""
    return getattr(error, "sqlstate", None) == "55P03"


def is_notify_queue_full(error: BaseException) -> bool:
    """True when a commit was refused because a session that listens has not read its notifications for long."""
    return _limit_of_server(error) == "PreCommit_Notify"


def is_server_limit(error: BaseException) -> bool:
    """True when the server takes no writes at all for now: its queue of notifications is full, or it has no transaction
    ids left and waits for a vacuum."""
    return _limit_of_server(error) in _SERVER_LIMITS


def _limit_of_server(error: BaseException) -> str | None:
    """The function of the server that refused. The SQLSTATE is also that of values that are too large, and the text
    depends on the server's language."""
    return getattr(error, "server_source_function", None) if getattr(error, "sqlstate", None) == "54000" else None


def is_refusal(error: BaseException) -> bool:
    """True when the server denies this role the connection or the statement: a changed password, a role without LOGIN,
    a revoked right."""
    sqlstate = getattr(error, "sqlstate", None)
    return isinstance(sqlstate, str) and (sqlstate.startswith("28") or sqlstate == "42501")


def is_from_driver(error: BaseException) -> bool:
    """True for errors of the server, for asyncpg's own, and for a lost answer."""
    from asyncpg import InterfaceError, InternalClientError, PostgresError

    return isinstance(error, PostgresError | InterfaceError | InternalClientError | NoAnswerError)


class Doubt:
    """Whether the statements of a failed operation were sent, and whether they may have taken effect.

    It covers all attempts of one operation: after a lost answer the doubt remains, even if the next attempt is refused.
    """

    __slots__ = ("may_be_done", "was_sent")

    def __init__(self) -> None:
        self.was_sent = False
        """True if the latest attempt sent a statement."""
        self.may_be_done = False

    def note(self, error: BaseException) -> None:
        """Record the error of a statement that was sent."""
        if not is_answer(error):
            self.may_be_done = True

    def describe(self, told: str) -> str:
        """A sentence for the message; `told` is the driver's error."""
        if self.may_be_done:
            return f"the database gave no answer ({told})"
        if self.was_sent:
            return f"the database refused it ({told})"
        return f"there is no connection to the database ({told})"


def is_answer(error: BaseException) -> bool:
    """True if the server refused the statement, and so has rolled it back.

    False when it ended the session, which may happen between a commit and its answer, and for asyncpg's own error for a
    lost connection, which has a code of class 08.
    """
    code = None if isinstance(error, NoAnswerError) else sqlstate(error)
    return code is not None and not code.startswith("08") and code not in _ENDS_OF_SESSIONS


def sqlstate(error: BaseException) -> str | None:
    """The server's code in an error of any driver, also inside SQLAlchemy's (`orig`) and Django's (the cause)."""
    for spoken in (error, getattr(error, "orig", None), error.__cause__):
        code = getattr(spoken, "sqlstate", None) or getattr(spoken, "pgcode", None)
        if isinstance(code, str):
            return code
    return None
