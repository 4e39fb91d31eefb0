"""Texts of errors with which the database refuses a connection or a statement, and remedies for them. They never show a
password, and no values of rows and arguments."""

import re
from typing import Any, Final

POOLER_FIX: Final = (
    "a transaction-mode pooler such as PgBouncer stands in front of the server: set PostgresConfig(pooler=True, "
    "direct_url=<the server's own URL>), or give the server's own URL"
)
_FIXES: Final = {
    "28P01": "correct the password or the role in the URL",
    "28000": "check the role (may it log in?), pg_hba.conf and the TLS settings (sslmode)",
    "3D000": "create the database, or correct its name in the URL",
    "42501": "let the owner of the tables run what `horsies-migrate grants` prints, and grant its role to this one; if "
    "the database refuses the connection itself, GRANT CONNECT ON DATABASE",
    "53300": "end idle sessions, lower pool sizes, raise max_connections, or put a pooler in front (pooler=True)",
    "57P03": "the server is starting or stopping: try again in a moment",
    # prepared statements of another client in the same pooled session
    "26000": POOLER_FIX,
    "42P05": POOLER_FIX,
}
_DETAIL: Final = "\nDETAIL:"
_ARGUMENT: Final = re.compile(r"(invalid input for query argument \$\d+[^:]*): .* (?=\()", re.DOTALL)
"""asyncpg's words for a value that it cannot send: the value stands between the colon and the reason in brackets."""


def is_undeclared_pooler(error: BaseException) -> bool:
    """True if a pooler refused the start-up settings: the configuration lacks `pooler=True`."""
    return "unsupported startup parameter" in str(error)


def leave_out_values(error: BaseException) -> None:
    """Take out of an error of asyncpg what quotes a row or an argument, so that no log line, traceback or message can
    have it. For a row that a constraint refuses, the server's DETAIL is the whole row: arguments, result and keys."""
    told: Any = error
    told.detail = None
    if error.args and isinstance(error.args[0], str):
        error.args = (_ARGUMENT.sub(r"\1 ", error.args[0]), *error.args[1:])


def worded(error: BaseException) -> str:
    """The error as text, also if it has none of its own. The error of a caller's driver is told without its DETAIL."""
    if type(error).__name__ == "InternalClientError" and "cannot switch to state" in str(error):
        # asyncpg's words for a server that ends the session just as a statement is sent
        return "ConnectionError: the connection was lost before the server answered"
    silent = "no answer in time" if isinstance(error, TimeoutError) else "no reason was given"
    # psycopg has the message apart; the word DETAIL in its str() may be translated
    said: object = getattr(getattr(error, "diag", None), "message_primary", None)
    text = said if isinstance(said, str) else _ARGUMENT.sub(r"\1 ", str(error).partition(_DETAIL)[0])
    return f"{type(error).__name__}: {text or silent}"


def and_remedy(error: BaseException) -> str:
    """The end of a sentence about the error: `; ` and the remedy, or nothing when none is known."""
    fix = remedy(error)
    return f"; {fix}" if fix else ""


def remedy(error: BaseException) -> str | None:
    """The remedy for an error, or None when none is known."""
    if is_undeclared_pooler(error):
        return POOLER_FIX
    return _FIXES.get(getattr(error, "sqlstate", None) or "")
